"""The whole server: storage, kinds, controllers and the sockets that it answers on.

It runs in an event loop of its own process (``podwire apiserver``) or of a node's.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from podwire.apiserver import kinds
from podwire.apiserver.controllers.expiry import Expiry
from podwire.apiserver.controllers.garbage import Garbage
from podwire.apiserver.controllers.namespaces import Namespaces
from podwire.apiserver.controllers.nodes import Nodes
from podwire.apiserver.controllers.scheduler import Scheduler
from podwire.apiserver.crd import Definitions
from podwire.apiserver.files import Files
from podwire.apiserver.http.app import Access, Server
from podwire.apiserver.http.backend import NodeBackend
from podwire.apiserver.http.eachnode import EachNode
from podwire.apiserver.http.kubelets import Kubelets
from podwire.apiserver.registry import Registry
from podwire.apiserver.storage import Storage

PORT = 6443
_BACKLOG = 1024


class ListenError(Exception):
    """An address that cannot be listened on; ``cause`` says why."""

    def __init__(self, address: str, cause: OSError | ValueError) -> None:
        super().__init__(f"{address}: {cause}")
        self.address = address
        self.cause = cause


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How to serve. ``directory`` is for the objects, the token, the certificates and the kubeconfig.

    ``listen`` holds ``HOST:PORT`` (port 0: any that is free), served with TLS, and ``unix:PATH``, served
    without, to whoever may open it. ``cluster_ranges`` are those of service addresses, one of a family.
    """

    directory: Path
    listen: tuple[str, ...] = (f"127.0.0.1:{PORT}",)
    cluster_ranges: Sequence[str] = ()
    controllers: bool = True


class ApiServer:
    """An API server that runs from :meth:`start` to :meth:`close`."""

    def __init__(self, settings: Settings, backend: NodeBackend | None = None) -> None:
        """Open the storage. Raise DatabaseFault, OSError."""
        self.files = Files(settings.directory)
        self.files.prepare()
        self.token = self.files.token()
        self.storage = Storage(self.files.database)
        self.registry = Registry(self.storage, kinds.builtin(settings.cluster_ranges, self.token))
        self._definitions = Definitions(self.registry)
        self._own_nodes: dict[str, NodeBackend] = {}
        kubelets = Kubelets(self._node, self.files.kubelet_tls)
        self.server = Server(
            self.registry, access=Access(self.token), backend=backend or EachNode(self._own_nodes, kubelets)
        )
        self.url = ""
        """Where it is reached over TCP; empty if it listens on no port."""
        self._settings = settings
        self._runner: web.AppRunner | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Furnish, listen, and write the kubeconfig. Raise ListenError, DatabaseFault."""
        settings = self._settings
        await self._definitions.start()
        work: list[Callable[[], Awaitable[Any]]] = []
        if settings.controllers:
            namespaces = Namespaces(self.registry)
            await namespaces.furnish()
            work = [
                namespaces.run,
                Garbage(self.registry).run,
                Nodes(self.registry).run,
                Scheduler(self.registry).run,
                Expiry(self.registry).run,
            ]
        self._runner = web.AppRunner(
            self.server.application(), access_log=None, shutdown_timeout=0.5, handler_cancellation=True
        )
        await self._runner.setup()
        for address in settings.listen:
            await self._listen(self._runner, address)
        if self.url:
            self.files.write_kubeconfig(self.url, self.token)
        self._tasks = [asyncio.ensure_future(run()) for run in work]

    def use_node(self, name: str, backend: NodeBackend) -> None:
        """Ask this one for logs and streams of the pods of a node, and not the kubelet's port of that."""
        self._own_nodes[name] = backend

    def _node(self, name: str) -> dict[str, Any]:
        kind = self.registry.lookup("", "v1", "nodes")
        assert kind is not None
        return self.registry.get(kind, "", name).object

    async def close(self) -> None:
        """Stop listening, end the watches and the controllers, and close the storage."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._definitions.close()
        self.storage.end_watches()
        if self._runner is not None:
            await self._runner.cleanup()
        await self.storage.close()
        for address in self._settings.listen:
            if address.startswith("unix:"):
                Path(address.removeprefix("unix:")).unlink(missing_ok=True)

    async def _listen(self, runner: web.AppRunner, address: str) -> None:
        try:
            if address.startswith("unix:"):
                listener = _unix(Path(address.removeprefix("unix:")))
                await web.SockSite(runner, listener, backlog=_BACKLOG).start()
                return
            host, port = split(address)
            context = await asyncio.to_thread(self.files.tls, (host,))
            site = web.TCPSite(runner, host, port, ssl_context=context, backlog=_BACKLOG)
            await site.start()
            if not self.url:
                bound = runner.addresses[-1]
                shown = f"[{host}]" if ":" in host else host
                self.url = f"https://{shown}:{bound[1]}"
        except (OSError, ValueError) as error:
            raise ListenError(address, error) from error


def split(address: str) -> tuple[str, int]:
    """Host and port of ``127.0.0.1:6443`` or ``[::1]:6443``. Raise ValueError unless the host is loopback."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    if not port.isdigit() or int(port) > 65535:
        raise ValueError("HOST:PORT is expected")
    if host != "localhost":
        try:
            loopback = ipaddress.ip_address(host).is_loopback
        except ValueError:
            loopback = False
        if not loopback:
            raise ValueError("a loopback address is expected: this server is for one machine")
    return host, int(port)


def _unix(path: Path) -> socket.socket:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    made = path.with_name(f".{path.name}")
    made.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        listener.bind(str(made))
        made.chmod(0o600)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
        made.replace(path)
    except BaseException:
        listener.close()
        with contextlib.suppress(OSError):
            made.unlink()
        raise
    return listener
