"""JSON as Go's encoding/json reads and writes it, where that differs from ours and a peer would notice."""

from __future__ import annotations

from typing import Any

import msgspec

# Go escapes these wherever they stand in a string; outside of strings they cannot occur.
_ESCAPES = (
    (b"<", b"\\u003c"),
    (b">", b"\\u003e"),
    (b"&", b"\\u0026"),
    ("\u2028".encode(), b"\\u2028"),
    ("\u2029".encode(), b"\\u2029"),
)


def escaped(text: bytes) -> bytes:
    """Return JSON text with the characters escaped that Go escapes."""
    for raw, escape in _ESCAPES:
        if raw in text:
            text = text.replace(raw, escape)
    return text


def indented(text: bytes) -> bytes:
    """Return JSON text as ``json.MarshalIndent`` with four spaces lays it out."""
    return msgspec.json.format(escaped(text), indent=4)


def parse(text: bytes | str) -> Any:
    """Return the value that JSON text holds; ValueError for anything that is none, however deep."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise ValueError(_place(text) or str(error)) from None
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _place(text: bytes | str) -> str:
    """Say where JSON text goes wrong, by line; the fast decoder counts bytes only."""
    import json

    if not text.strip():
        return "it is empty"
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return f"{error.msg} at line {error.lineno} column {error.colno}"
    except (ValueError, RecursionError):
        return ""
    return ""
