"""How answers are written: JSON or YAML, with Warning headers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from aiohttp import web

from podwire.apiserver.http.negotiation import YAML, Form
from podwire.serving.answers import HEADERS, encode

Object = dict[str, Any]


def answer(
    body: bytes | Object, *, code: int = 200, form: Form | None = None, warnings: Iterable[str] = ()
) -> web.Response:
    """An answer with a JSON object, given or already encoded."""
    content_type = "application/json"
    if form is not None and form.media == YAML:
        import yaml

        content_type = YAML
        value = msgspec.json.decode(body) if isinstance(body, bytes) else body
        body = yaml.safe_dump(value, sort_keys=False, allow_unicode=True).encode()
    elif not isinstance(body, bytes):
        body = encode(body)
    response = web.Response(body=body, status=code, content_type=content_type, headers=HEADERS)
    for text in dict.fromkeys(warnings):
        response.headers.add("Warning", f"299 - {quoted(text)}")
    return response


def quoted(text: str) -> str:
    """A quoted string of RFC 9110; what cannot stand in a header is left out."""
    kept = "".join(c for c in text if c == "\t" or (c.isprintable() and ord(c) < 256))
    return '"' + kept.replace("\\", "\\\\").replace('"', '\\"') + '"'
