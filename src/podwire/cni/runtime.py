"""The runtime library (what libcni is for Go), asynchronous: ADD, CHECK, DEL, GC and STATUS over lists.

Requests for one container run in order, those for different containers side by side, GC of a network alone,
also between processes that share the cache directory. Each runs in a thread of a pool, from beginning to
end; every wait has a deadline.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from podwire.cni.cache import DEFAULT_DIRECTORY, Cache, Record
from podwire.cni.chain import Chain, about, recorded
from podwire.cni.config import NetworkConfigList
from podwire.cni.errors import CNIError, TryLater, joined
from podwire.cni.filelock import FileLocks
from podwire.cni.locks import Locks
from podwire.cni.request import CLEANUP_SECONDS, DEFAULT_SECONDS, Plugin, Registry, as_registry
from podwire.cni.turns import Attachment, Step
from podwire.cni.types import AttachmentKey, Result, TraceContext

if TYPE_CHECKING:
    # What runs an event loop has these loaded; what only reads configurations need not wait for them.
    import asyncio
    from pathlib import Path
    from types import TracebackType
    from typing import Self

__all__ = ["Attachment", "Runtime", "Step", "TraceContext"]

T = TypeVar("T")
_WORKERS = 64
_GRACE = 2.0


class Runtime:
    """A CNI runtime over plugins of ours (``plugins``, called with ``kernel``) and programs in ``path``.

    ``cache_dir`` is libcni's (records lie in its ``results``). ``timeout`` (seconds) is each operation's
    deadline where the call names none; undoing a failed ADD gets 30 s more of its own. ``observe`` is called
    from the working thread after each plugin's turn. ``trace``, of a call, is the span that plugins continue.

    Close it, or use it as an asynchronous context manager: it has threads, and a file open once it was used.
    """

    def __init__(
        self,
        plugins: Mapping[str, Plugin[Any, Any]] | Registry | None = None,
        kernel: Any = None,
        *,
        path: Sequence[str] = (),
        cache_dir: Path | str = DEFAULT_DIRECTORY,
        timeout: float = DEFAULT_SECONDS,
        observe: Callable[[Step], None] | None = None,
    ) -> None:
        self.chain = Chain(as_registry(plugins), kernel, path, Cache(cache_dir), observe)
        self.timeout = timeout
        self._files = FileLocks(self.chain.cache.directory)
        self._locks = Locks(self._files)
        from concurrent.futures import ThreadPoolExecutor

        self._pool = ThreadPoolExecutor(_WORKERS, thread_name_prefix="cni")
        self._running: set[asyncio.Task[Any]] = set()

    async def add(
        self,
        network: NetworkConfigList,
        attachment: Attachment,
        *,
        timeout: float | None = None,
        trace: TraceContext | None = None,
    ) -> Result:
        """Attach a container and return the final result; all or nothing.

        A failure, also a deadline or the cancellation of this call, is undone before the container's next
        request begins. AlreadyAttached if it is attached; PluginMissing before anything began.
        """

        def work(deadline: float, cancel: threading.Event) -> Result:
            return self.chain.add(network, attachment, deadline, cancel, trace)

        return await self._operate(f"ADD to {network.name}", network.name, attachment, work, timeout)

    async def check(
        self,
        network: NetworkConfigList,
        attachment: Attachment,
        *,
        timeout: float | None = None,
        trace: TraceContext | None = None,
    ) -> None:
        """Verify that an attachment still is as its ADD answered."""

        def work(deadline: float, _cancel: threading.Event) -> None:
            self.chain.check(network, attachment, deadline, trace)

        await self._operate(f"CHECK of {network.name}", network.name, attachment, work, timeout)

    async def delete(
        self,
        network: NetworkConfigList | str,
        attachment: Attachment,
        *,
        timeout: float | None = None,
        trace: TraceContext | None = None,
    ) -> None:
        """Detach a container, by its record where there is one; repeatable, and a success when all is gone.

        ``network`` may be the bare name, when its configuration is gone. Failures keep the record for a
        retry and are all told (`Failures`).
        """
        name = network if isinstance(network, str) else network.name

        def work(deadline: float, _cancel: threading.Event) -> None:
            self.chain.delete(network, attachment, deadline, trace)

        await self._operate(f"DEL from {name}", name, attachment, work, timeout)

    async def gc(
        self,
        network: NetworkConfigList,
        valid: Iterable[AttachmentKey | Attachment],
        *,
        timeout: float | None = None,
        trace: TraceContext | None = None,
    ) -> None:
        """Remove each attachment to the network that is not in ``valid``; nothing else runs on it then."""
        keys = [each.key if isinstance(each, Attachment) else each for each in valid]

        def work(deadline: float, _cancel: threading.Event) -> None:
            self.chain.gc(network, keys, deadline, trace)

        await self._operate(f"GC of {network.name}", network.name, None, work, timeout, alone=True)

    async def status(
        self,
        network: NetworkConfigList,
        *,
        timeout: float | None = None,
        trace: TraceContext | None = None,
    ) -> None:
        """Ask whether the network can take an ADD: NotAvailable (50) or LimitedConnectivity (51) if not."""

        def work(deadline: float, _cancel: threading.Event) -> None:
            self.chain.status(network, deadline, trace)

        await self._operate(f"STATUS of {network.name}", None, None, work, timeout)

    async def validate(self, network: NetworkConfigList, *, timeout: float | None = None) -> tuple[str, ...]:
        """Check that every plugin exists and speaks the version; returns the capabilities declared."""

        def work(deadline: float, _cancel: threading.Event) -> tuple[str, ...]:
            return self.chain.validate(network, deadline)

        return await self._operate(f"validation of {network.name}", None, None, work, timeout)

    async def versions(self, type: str, *, timeout: float | None = None) -> tuple[str, ...]:
        """Return the specification versions that a plugin speaks."""

        def work(deadline: float, _cancel: threading.Event) -> tuple[str, ...]:
            return self.chain.versions(type, deadline)

        return await self._operate(f"VERSION of {type}", None, None, work, timeout)

    async def sweep(self, *, timeout: float | None = None) -> None:
        """Delete what earlier boots left: attachments whose namespaces went with the boot. For start-up."""
        errors: list[CNIError] = []
        for record in self.attachments():
            if not self.chain.cache.is_stale(record):
                continue
            try:
                await self.delete(record.network, recorded(record), timeout=timeout)
            except CNIError as error:
                errors.append(about(record, error))
        if errors:
            raise joined(errors)

    def attachments(self, container_id: str | None = None, *, network: str | None = None) -> list[Record]:
        """Return the records of a container or a network, or all; those without a result are unfinished."""
        return self.chain.cache.records(network=network, container_id=container_id)

    async def close(self) -> None:
        """Wait for what is still under way, e.g. the undoing of abandoned requests, and end the threads."""
        import asyncio

        while self._running:
            await asyncio.wait(set(self._running))
        self._pool.shutdown(wait=False)
        self._files.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _operate(
        self,
        what: str,
        network: str | None,
        attachment: Attachment | None,
        work: Callable[[float, threading.Event], T],
        timeout: float | None,
        *,
        alone: bool = False,
    ) -> T:
        import asyncio

        began = time.monotonic()
        deadline = began + (self.timeout if timeout is None else timeout)
        subject = what if attachment is None else f"{what} of container {attachment.container_id}"
        cancel = threading.Event()
        started = threading.Event()

        async def locked() -> T:
            # The container's lock comes first, everywhere.
            wanted = [] if attachment is None else [(("container", attachment.container_id), True)]
            # Neither STATUS nor VERSION needs a lock, nor should a check of readiness wait for a GC.
            if network is not None:
                wanted.append((("network", network), alone))
            await self._locks.take(wanted, subject, deadline)
            try:
                started.set()
                return await asyncio.get_running_loop().run_in_executor(self._pool, work, deadline, cancel)
            finally:
                self._locks.release(wanted)

        task = asyncio.create_task(locked())
        self._running.add(task)
        task.add_done_callback(self._ended)
        try:
            done, _ = await asyncio.wait({task}, timeout=deadline - began + CLEANUP_SECONDS + _GRACE)
        except asyncio.CancelledError:
            cancel.set()
            if not started.is_set():
                task.cancel()
            await _settled(task, time.monotonic() + CLEANUP_SECONDS + _GRACE)
            raise
        if not done:
            cancel.set()
            raise TryLater(
                f"{subject} is not done after {time.monotonic() - began:.0f} s",
                "it goes on in the background and is undone when it ends; the container is locked until then",
            )
        return task.result()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()


async def _settled(task: asyncio.Task[Any], until: float) -> None:
    """Wait for a task through further cancellations: what it undoes must be undone."""
    import asyncio

    while not task.done() and time.monotonic() < until:
        try:
            await asyncio.wait({task}, timeout=until - time.monotonic())
        except asyncio.CancelledError:
            continue
