"""How answers are written: objects as JSON, failures as Status objects."""

from __future__ import annotations

import msgspec
from aiohttp import web

from podwire.serving.status import Failure

HEADERS = {"Cache-Control": "no-cache, private"}
encode = msgspec.json.Encoder().encode


def failed(failure: Failure) -> web.Response:
    """The answer to a request that failed."""
    response = web.Response(
        body=encode(failure.body), status=failure.code, content_type="application/json", headers=HEADERS
    )
    if failure.retry_after:
        response.headers["Retry-After"] = str(failure.retry_after)
    return response
