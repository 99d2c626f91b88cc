"""A client of the Kubernetes API: typed objects, typed errors, deadlines, retries, a limit of its rate."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

import aiohttp
import msgspec

from podwire.kube import config as configuration
from podwire.kube.calls import TIMEOUT, TRIES, Answer, Calls, is_json, query
from podwire.kube.clock import Clock, SystemClock
from podwire.kube.config import Config
from podwire.kube.decode import Identity, Page, decode_object, decode_page
from podwire.kube.errors import BadAnswer, DeadlinePassed, Expired
from podwire.kube.ratelimit import Priority, TokenBucket
from podwire.kube.resource import Resource
from podwire.kube.transport import USER_AGENT, Transport
from podwire.kube.watching import PING_TIMEOUT, Watch

T = TypeVar("T")
PatchKind = Literal["merge", "strategic", "json", "apply"]

PAGE = 500
_PATCH_TYPES: dict[str, str] = {
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "json": "application/json-patch+json",
    "apply": "application/apply-patch+yaml",
}


class Client:
    """One API server. Use it as an async context manager, or call ``close``.

    Each call has a deadline (``timeout`` seconds, its tries included) and takes its turn by ``priority``.
    Reading is tried again when the connection breaks or the server asks for that; writing only where it is
    certain that nothing was done: the connection was refused, or the server said "later". All calls raise
    ApiError (a subclass by reason), ConnectionFailed, BadAnswer, CredentialError, ConfigError.
    """

    def __init__(
        self,
        config: Config,
        *,
        clock: Clock | None = None,
        qps: float = 50.0,
        burst: int = 100,
        timeout: float = TIMEOUT,
        user_agent: str = USER_AGENT,
        rng: random.Random | None = None,
    ) -> None:
        self.config = config
        self.clock = clock or SystemClock()
        self.timeout = timeout
        self._bucket = TokenBucket(qps, burst, self.clock)
        self._transport = Transport(config, self.clock, user_agent=user_agent)
        self._calls = Calls(self._transport, self._bucket, self.clock, timeout, rng or random.Random())
        self._pinging: asyncio.Task[None] | None = None

    @classmethod
    def from_environment(cls, *, context: str | None = None, **options: Any) -> Self:
        """The server that ``kubectl`` would use here; see :func:`podwire.kube.config.load`."""
        return cls(configuration.load(context=context), **options)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        if self._pinging is not None:
            self._pinging.cancel()
        await self._transport.close()

    async def get(
        self,
        resource: Resource[T],
        name: str,
        namespace: str = "",
        *,
        subresource: str = "",
        version: str = "",
        timeout: float | None = None,
        priority: Priority = Priority.NORMAL,
    ) -> T:
        """One object. ``version`` "0" allows an old state from the server's cache. Raises NotFound."""
        path = resource.path(namespace, name, subresource)
        body = await self._calls.ask(
            "GET", path, {"resourceVersion": version}, timeout=timeout, priority=priority
        )
        return decode_object(resource, body)

    async def list(
        self,
        resource: Resource[T],
        namespace: str = "",
        *,
        labels: str = "",
        fields: str = "",
        limit: int = 0,
        token: str = "",
        version: str = "",
        match: str = "",
        timeout: float | None = None,
        priority: Priority = Priority.BULK,
        repeat: bool = True,
    ) -> Page[T]:
        """One page: ``limit`` objects (0: all), from ``token`` on. Raises Expired for a token too old.

        ``labels`` and ``fields`` are selectors in kubectl's syntax, ``match`` is resourceVersionMatch. With
        ``repeat`` false one request is sent and no more.
        """
        params = _selection(labels, fields)
        params.update({"limit": str(limit or ""), "continue": token})
        if not token:  # a token carries its version
            params.update({"resourceVersion": version, "resourceVersionMatch": match})
        body = await self._calls.ask(
            "GET",
            resource.path(namespace),
            params,
            timeout=timeout,
            priority=priority,
            tries=TRIES if repeat else 1,
        )
        return decode_page(resource, body)

    async def list_all(
        self,
        resource: Resource[T],
        namespace: str = "",
        *,
        labels: str = "",
        fields: str = "",
        page: int = PAGE,
        version: str = "",
        timeout: float | None = None,
        priority: Priority = Priority.BULK,
    ) -> Page[T]:
        """All objects, page by page, as of one version. ``timeout`` is for each page.

        When the pages' version expires in between, all are asked for at once.
        """
        items: list[T] = []
        token = ""
        unreadable: tuple[Identity, ...] = ()
        while True:
            try:
                found = await self.list(
                    resource,
                    namespace,
                    labels=labels,
                    fields=fields,
                    limit=page,
                    token=token,
                    version=version,
                    timeout=timeout,
                    priority=priority,
                )
            except Expired:
                if not token:
                    raise
                return await self.list(
                    resource, namespace, labels=labels, fields=fields, timeout=timeout, priority=priority
                )
            items += found.items
            unreadable += found.unreadable
            token = found.token
            if not token:
                return Page(items, found.version, unreadable=unreadable)

    def watch(
        self,
        resource: Resource[T],
        namespace: str = "",
        *,
        since: str = "",
        labels: str = "",
        fields: str = "",
        bookmarks: bool = True,
        initial_events: bool = False,
        seconds: int = 0,
        most_silent: float | None = None,
        timeout: float | None = None,
        priority: Priority = Priority.NORMAL,
    ) -> Watch[T]:
        """The changes after version ``since``; with ``initial_events`` first what is there.

        ``seconds`` is how long the server shall keep the stream open (0: as it likes), ``timeout`` how long
        its answer may take to begin; after ``most_silent`` seconds without a byte the stream ends here. One
        request is sent, however it ends.
        """
        params = _selection(labels, fields)
        params.update({"watch": "1", "resourceVersion": since, "timeoutSeconds": str(seconds or "")})
        if bookmarks or initial_events:
            params["allowWatchBookmarks"] = "true"
        if initial_events:
            params.update({"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"})
        path = resource.path(namespace)

        @asynccontextmanager
        async def connect() -> AsyncIterator[aiohttp.ClientResponse]:
            given = self.timeout if timeout is None else timeout
            async with _opened(self.clock, given, path) as opened:
                await self._bucket.take(priority)
                async with self._transport.request("GET", path, params=query(params), watch=True) as response:
                    if response.status != 200:
                        raise await self._calls.error(response)
                    if not is_json(response.content_type):
                        raise BadAnswer(
                            f"GET {path}: a stream of JSON was expected, {response.content_type} came"
                        )
                    opened()
                    yield response

        return Watch(resource, self.clock, connect, self.ping, most_silent)

    async def create(
        self,
        resource: Resource[T],
        body: object,
        namespace: str = "",
        *,
        field_manager: str = "",
        field_validation: str = "",
        dry_run: bool = False,
        timeout: float | None = None,
        priority: Priority = Priority.NORMAL,
    ) -> T:
        """Make an object (a struct, a dict or JSON). Raises AlreadyExists."""
        params = _writing(field_manager, field_validation, dry_run)
        answer = await self._calls.ask(
            "POST", resource.path(namespace), params, body, timeout=timeout, priority=priority
        )
        return decode_object(resource, answer)

    async def replace(
        self,
        resource: Resource[T],
        body: object,
        name: str,
        namespace: str = "",
        *,
        subresource: str = "",
        field_manager: str = "",
        field_validation: str = "",
        dry_run: bool = False,
        timeout: float | None = None,
        priority: Priority = Priority.NORMAL,
    ) -> T:
        """Put an object in the place of the one that is there; with its resourceVersion raises Conflict.

        Typed objects hold only the fields that Podwire knows: replacing one that others write as well loses
        theirs. Use ``patch`` for such, or an unstructured resource.
        """
        params = _writing(field_manager, field_validation, dry_run)
        path = resource.path(namespace, name, subresource)
        answer = await self._calls.ask("PUT", path, params, body, timeout=timeout, priority=priority)
        return decode_object(resource, answer)

    async def patch(
        self,
        resource: Resource[T],
        body: object,
        name: str,
        namespace: str = "",
        *,
        kind: PatchKind = "merge",
        subresource: str = "",
        field_manager: str = "",
        field_validation: str = "",
        force: bool = False,
        dry_run: bool = False,
        timeout: float | None = None,
        priority: Priority = Priority.NORMAL,
    ) -> T:
        """Change an object. ``kind`` "apply" is server-side apply and needs ``field_manager``.

        ``force`` takes fields over from other appliers. Raises Conflict, Invalid.
        """
        if kind == "apply" and not field_manager:
            raise ValueError("apply: a field_manager is needed")
        if force and kind != "apply":
            raise ValueError(f"force is for apply, not for a {kind} patch")
        params = _writing(field_manager, field_validation, dry_run)
        if force:
            params["force"] = "true"
        path = resource.path(namespace, name, subresource)
        answer = await self._calls.ask(
            "PATCH", path, params, body, _PATCH_TYPES[kind], timeout=timeout, priority=priority
        )
        return decode_object(resource, answer)

    async def delete(
        self,
        resource: Resource[T],
        name: str,
        namespace: str = "",
        *,
        uid: str = "",
        version: str = "",
        grace: int | None = None,
        propagation: Literal["", "Orphan", "Background", "Foreground"] = "",
        dry_run: bool = False,
        timeout: float | None = None,
        priority: Priority = Priority.NORMAL,
    ) -> T | None:
        """Delete an object: None once it is gone, else the object that is ending.

        ``uid`` and ``version`` are preconditions (Conflict if they do not hold); ``grace`` is in seconds.
        """
        options = _delete_options(uid, version, grace, propagation, dry_run)
        answer = await self._calls.ask(
            "DELETE", resource.path(namespace, name), {}, options, timeout=timeout, priority=priority
        )
        return None if _is_status(answer) else decode_object(resource, answer)

    async def delete_collection(
        self,
        resource: Resource[Any],
        namespace: str = "",
        *,
        labels: str = "",
        fields: str = "",
        grace: int | None = None,
        timeout: float | None = None,
        priority: Priority = Priority.NORMAL,
    ) -> None:
        """Delete all objects that the selectors choose."""
        options = _delete_options("", "", grace, "", False)
        params = _selection(labels, fields)
        await self._calls.ask(
            "DELETE", resource.path(namespace), params, options, timeout=timeout, priority=priority
        )

    async def raw(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: object = None,
        content_type: str = "application/json",
        accept: str = "application/json",
        timeout: float | None = None,
        priority: Priority = Priority.NORMAL,
        repeat: bool = True,
    ) -> Answer:
        """Any request. ``body`` is encoded as JSON unless it is bytes."""
        return await self._calls.call(
            method,
            path,
            dict(params or {}),
            body,
            content_type,
            accept=accept,
            timeout=timeout,
            priority=priority,
            tries=TRIES if repeat else 1,
        )

    async def ping(self) -> None:
        """Return when the server answers on a new connection. Raises ConnectionFailed after 10 s.

        Callers that come while a ping is under way share it.
        """
        if self._pinging is None or self._pinging.done():
            self._pinging = asyncio.create_task(self._send_ping())
            self._pinging.add_done_callback(lambda task: task.cancelled() or task.exception())
        await asyncio.shield(self._pinging)

    async def _send_ping(self) -> None:
        async with self._transport.request("GET", "/version", timeout=PING_TIMEOUT, watch=True):
            pass


@asynccontextmanager
async def _opened(clock: Clock, seconds: float, path: str) -> AsyncIterator[Callable[[], None]]:
    """A deadline that is called off once the function it gives is called."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(None) as timeout:
            timer = clock.call_later(seconds, lambda: timeout.reschedule(loop.time()))
            try:
                yield timer.cancel
            finally:
                timer.cancel()
    except TimeoutError as error:
        raise DeadlinePassed(f"GET {path}: no answer in {seconds:g} s", error) from error


def _selection(labels: str, fields: str) -> dict[str, str]:
    return {"labelSelector": labels, "fieldSelector": fields}


def _writing(field_manager: str, field_validation: str, dry_run: bool) -> dict[str, str]:
    return {
        "fieldManager": field_manager,
        "fieldValidation": field_validation,
        "dryRun": "All" if dry_run else "",
    }


def _delete_options(
    uid: str, version: str, grace: int | None, propagation: str, dry_run: bool
) -> dict[str, Any] | None:
    options: dict[str, Any] = {}
    preconditions = {name: value for name, value in (("uid", uid), ("resourceVersion", version)) if value}
    if preconditions:
        options["preconditions"] = preconditions
    if grace is not None:
        options["gracePeriodSeconds"] = grace
    if propagation:
        options["propagationPolicy"] = propagation
    if dry_run:
        options["dryRun"] = ["All"]
    return {"apiVersion": "v1", "kind": "DeleteOptions", **options} if options else None


class _Kind(msgspec.Struct):
    kind: str = ""


def _is_status(body: bytes) -> bool:
    try:
        return msgspec.json.decode(body, type=_Kind).kind == "Status"
    except msgspec.MsgspecError:
        return False
