"""A watch as a stream of lines: events, bookmarks, and errors that end it.

Source: k8s.io/apiserver/pkg/endpoints/handlers/watch.go, pkg/storage/cacher/cache_watcher.go.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from typing import Any

import msgspec
from aiohttp import web

from podwire.apiserver.http import tables
from podwire.apiserver.http.negotiation import TABLE, Form
from podwire.apiserver.kind import Kind
from podwire.apiserver.reading import ListOptions
from podwire.apiserver.registry import Registry
from podwire.apiserver.storage import Stored
from podwire.apiserver.watches import Watch
from podwire.serving.answers import HEADERS
from podwire.serving.status import Failure

Object = dict[str, Any]

BOOKMARKS = 60.0
"""Seconds between bookmarks."""
LONGEST = (1800, 3600)
"""Seconds that a watch lasts if it names no timeoutSeconds."""
INITIAL_END = "k8s.io/initial-events-end"

_encode = msgspec.json.Encoder().encode
Line = Callable[[str, Stored], bytes]


class Liner:
    """How one watch writes its events."""

    def __init__(self, registry: Registry, kind: Kind, form: Form, include: str) -> None:
        self._registry = registry
        self._kind = kind
        self._form = form
        self._include = include
        self._headings = True
        self.plain = kind.read is None and not form.as_kind

    def line(self, event: str, stored: Stored) -> bytes:
        """An event with the object in the form that was asked for."""
        if self.plain:
            return b'{"type":"%s","object":%s}\n' % (event.encode(), stored.raw)
        return self.of(event, self._registry.view(self._kind, stored))

    def of(self, event: str, obj: Object) -> bytes:
        """An event with an object that is not stored."""
        if self._form.as_kind == TABLE:
            meta = {"resourceVersion": obj["metadata"].get("resourceVersion", "")}
            obj = tables.table(
                self._kind, [obj], meta, self._form, include=self._include, headings=self._headings
            )
            self._headings = False
        elif self._form.as_kind:
            obj = tables.partial(obj, self._form.version)
        return _encode({"type": event, "object": obj}) + b"\n"

    def bookmark(self, revision: int, *, initial_end: bool = False) -> bytes:
        """A bookmark: all events up to the revision were sent."""
        meta: Object = {"resourceVersion": str(revision), "creationTimestamp": None}
        if initial_end:
            meta["annotations"] = {INITIAL_END: "true"}
        obj: Object = {"kind": self._kind.kind, "apiVersion": self._kind.api_version, "metadata": meta}
        if self._form.as_kind == TABLE:
            cells: list[Any] = ["" for _ in self._kind.columns or tables.DEFAULT_COLUMNS]
            obj = {
                "kind": TABLE,
                "apiVersion": f"meta.k8s.io/{self._form.version}",
                "metadata": meta,
                "columnDefinitions": None,
                "rows": [{"cells": cells, "object": tables.partial(obj, self._form.version)}],
            }
        elif self._form.as_kind:
            obj = tables.partial(obj, self._form.version)
        return _encode({"type": "BOOKMARK", "object": obj}) + b"\n"


async def stream(
    request: web.Request,
    registry: Registry,
    kind: Kind,
    namespace: str | None,
    *,
    options: ListOptions,
    form: Form,
) -> web.StreamResponse:
    """Answer with a watch until it times out, its client goes, or the server ends."""
    try:
        first, revision, watch = registry.watch(kind, namespace, options)
    except Failure as failure:
        if failure.code not in (410, 504):
            raise
        # What the storage cannot serve is told as an event: the request itself was good.
        return await _ended(request, failure)
    liner = Liner(registry, kind, form, request.query.get("includeObject", "Metadata"))
    headers = {**HEADERS, "Content-Type": "application/json"}
    if form.as_kind:
        headers["Content-Type"] = (
            f"application/json;as={form.as_kind};g=meta.k8s.io;v={form.version};stream=watch"
            if form.as_kind != TABLE
            else f"application/json;as=Table;g=meta.k8s.io;v={form.version}"
        )
    response = web.StreamResponse(headers=headers)
    try:
        await response.prepare(request)
        lines = [liner.line("ADDED", stored) for stored in first]
        if options.send_initial_events and options.allow_bookmarks:
            lines.append(liner.bookmark(revision, initial_end=True))
        for start in range(0, len(lines), 256):
            await response.write(b"".join(lines[start : start + 256]))
        lasts = options.timeout_seconds or random.randint(*LONGEST)
        await _copy(response, registry, watch, liner, lasts, bookmarks=options.allow_bookmarks)
        await response.write_eof()
    except ConnectionError:
        pass
    finally:
        watch.close()
    return response


async def _ended(request: web.Request, failure: Failure) -> web.StreamResponse:
    response = web.StreamResponse(headers={**HEADERS, "Content-Type": "application/json"})
    with contextlib.suppress(ConnectionError):
        await response.prepare(request)
        await response.write(_encode({"type": "ERROR", "object": failure.body}) + b"\n")
        await response.write_eof()
    return response


async def _copy(
    response: web.StreamResponse,
    registry: Registry,
    watch: Watch,
    liner: Liner,
    lasts: float,
    *,
    bookmarks: bool,
) -> None:
    loop = asyncio.get_running_loop()
    end = loop.time() + lasts
    while (left := end - loop.time()) > 0:
        try:
            async with asyncio.timeout(min(left, BOOKMARKS)):
                events = await watch.batch()
        except TimeoutError:
            if bookmarks and watch.idle:
                await response.write(liner.bookmark(registry.storage.revision))
            continue
        if not events:
            return
        if liner.plain:
            await response.write(b"".join([event.line for event in events]))
        else:
            await response.write(b"".join([liner.line(event.type, event.stored) for event in events]))
