"""Container logs as a text answer that may go on for long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from aiohttp import web

from podwire.serving import status
from podwire.serving.query import flag, number
from podwire.serving.status import Cause
from podwire.serving.streaming.backend import LogOptions
from podwire.serving.streaming.tasks import cancelled, closing

GONE_CHECK = 1.0
"""Seconds after which a client that is sent nothing is looked at, whether it is still there."""
_STREAMS = ("All", "Stdout", "Stderr")


def log_options(request: web.Request) -> tuple[LogOptions, int | None]:
    """The options, and how many bytes the client takes at most. Raise Failure 400, 422.

    Source: k8s.io/kubernetes/pkg/apis/core/validation, ValidatePodLogOptions.
    """
    query = request.query
    options = LogOptions(
        follow=flag(request, "follow"),
        previous=flag(request, "previous"),
        timestamps=flag(request, "timestamps"),
        since_seconds=number(request, "sinceSeconds"),
        since_time=query.get("sinceTime", ""),
        tail_lines=number(request, "tailLines"),
        stream=query.get("stream") or "All",
    )
    limit = number(request, "limitBytes")
    causes: list[Cause] = []
    if options.tail_lines is not None and options.tail_lines < 0:
        causes.append(
            status.invalid_value("tailLines", options.tail_lines, "must be greater than or equal to 0")
        )
    if limit is not None and limit < 1:
        causes.append(status.invalid_value("limitBytes", limit, "must be greater than 0"))
    if options.since_seconds is not None and options.since_time:
        causes.append(
            status.forbidden_field("", "at most one of `sinceTime` or `sinceSeconds` may be specified")
        )
    elif options.since_seconds is not None and options.since_seconds < 1:
        causes.append(status.invalid_value("sinceSeconds", options.since_seconds, "must be greater than 0"))
    if options.stream not in _STREAMS:
        causes.append(status.not_supported("stream", options.stream, _STREAMS))
    elif options.stream != "All" and options.tail_lines is not None:
        causes.append(
            status.forbidden_field("", "`tailLines` and specific `stream` are mutually exclusive for now")
        )
    if causes:
        raise status.invalid("", "PodLogOptions", "", causes)
    return options, limit


async def send(request: web.Request, pieces: AsyncIterator[bytes], limit: int | None) -> web.StreamResponse:
    """Answer with the pieces as they come, until they end, the limit is reached or the client has gone."""
    response = web.StreamResponse(headers={"Content-Type": "text/plain"})
    try:
        async with closing(pieces):
            await response.prepare(request)
            # The headers on their own: a client that follows a silent log has to know that it is heard.
            await response.write(b"")
            while limit is None or limit > 0:
                piece = await _next(pieces, request)
                if piece is None:
                    break
                if limit is not None:
                    piece = piece[:limit]
                    limit -= len(piece)
                await response.write(piece)
            await response.write_eof()
    except ConnectionError:
        pass
    return response


async def _next(pieces: AsyncIterator[bytes], request: web.Request) -> bytes | None:
    """The next piece; None at the end. Raise ConnectionError when the client has gone."""
    following = asyncio.ensure_future(anext(pieces, None))
    try:
        while not (await asyncio.wait((following,), timeout=GONE_CHECK))[0]:
            if request.transport is None or request.transport.is_closing():
                raise ConnectionResetError("the client has gone")
        return following.result()
    finally:
        await cancelled(following)
