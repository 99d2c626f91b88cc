"""HTTP/1.1 on a local socket (RFC 9112), as much as our own programs and curl need, and strictly so.

One request a connection, its length told beforehand. What is ambiguous is refused, never guessed.
"""

from __future__ import annotations

import re
import socket
import struct
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

HEAD_MAX = 16 << 10
"""Bytes that the request line and the headers may have together."""
BODY_MAX = 8 << 20
"""Bytes that a body may have: the list of valid attachments of a GC is the longest."""
READ_SECONDS = 10.0
"""How long a caller may keep us waiting between two parts of its request, or of its reading the answer."""

_CHUNK = 64 << 10
_END = b"\r\n\r\n"
_METHOD = re.compile(r"[A-Z]{1,16}")
_TARGET = re.compile(r"/[!-~]{0,1023}")
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\t -~\x80-\xff]*")
_NUMBER = re.compile(r"[0-9]{1,15}")
_TIME = struct.Struct("ll")

REASONS: Mapping[int, str] = {
    200: "OK",
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    413: "Content Too Large",
    415: "Unsupported Media Type",
    417: "Expectation Failed",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    501: "Not Implemented",
    503: "Service Unavailable",
    505: "HTTP Version Not Supported",
}
"""The statuses that we answer with, and their phrases (RFC 9110, section 15)."""


class Refused(Exception):
    """A request that is not served: the ``status`` of the answer, and its text."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(status, text)
        self.status = status
        self.text = text


class Head(NamedTuple):
    """A request's line and headers; the headers' names are in lower case."""

    method: str
    target: str
    headers: Mapping[str, str]

    def number(self, name: str, default: int = 0) -> int:
        """Return a header that is a number; Refused (400) if it is none."""
        text = self.headers.get(name)
        if text is None:
            return default
        if not _NUMBER.fullmatch(text):
            raise Refused(400, f"{name}: want a number (it is {text[:100]!r})")
        return int(text)


class Asked(NamedTuple):
    """A request as it came."""

    head: Head
    body: bytes


@lru_cache(maxsize=64)
def parse_head(text: bytes) -> Head:
    """Read the request line and the headers, without the empty line that ends them. Refused says why not."""
    line, *fields = text.decode("latin-1").split("\r\n")
    words = line.split(" ")
    if len(words) != 3 or not _METHOD.fullmatch(words[0]) or not _TARGET.fullmatch(words[1]):
        raise Refused(400, f"no request line: {line[:100]!r}")
    if words[2] != "HTTP/1.1":
        raise Refused(505, f"want HTTP/1.1 (it is {words[2][:20]!r})")
    headers: dict[str, str] = {}
    for field in fields:
        name, colon, value = field.partition(":")
        if not colon or not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise Refused(400, f"no header: {field[:100]!r}")
        name = name.lower()
        if name in headers:
            raise Refused(400, f"{name}: is there twice")
        headers[name] = value.strip(" \t")
    if "host" not in headers:
        raise Refused(400, "host: is missing")
    if "transfer-encoding" in headers:
        raise Refused(501, "transfer-encoding: want a Content-Length")
    if "expect" in headers:
        raise Refused(417, "expect: is not supported")
    return Head(words[0], words[1], headers)


def set_timeouts(connection: socket.socket, seconds: float = READ_SECONDS) -> None:
    """Bound each wait for the peer. By the kernel: Python's own costs a poll(2) before every call."""
    value = _TIME.pack(int(seconds), int(seconds % 1 * 1_000_000))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, value)


def receive(connection: socket.socket) -> Asked | None:
    """Read a request; ``None`` if the peer has left without a word. Refused says what is wrong with it."""
    data = _more(connection)
    if not data:
        return None
    while (end := data.find(_END, 0, HEAD_MAX + len(_END))) < 0:
        if len(data) > HEAD_MAX:
            raise Refused(431, f"the headers are longer than {HEAD_MAX} bytes")
        data += _some(connection)
    head = parse_head(data[:end])
    length = head.number("content-length")
    if length > BODY_MAX:
        raise Refused(413, f"the body is longer than {BODY_MAX} bytes")
    body = data[end + len(_END) :]
    if len(body) < length:
        parts, have = [body], len(body)
        while have < length:
            parts.append(_some(connection))
            have += len(parts[-1])
        body = b"".join(parts)
    if len(body) > length:
        raise Refused(400, f"{len(body) - length} bytes after the body")
    return Asked(head, body)


def _some(connection: socket.socket) -> bytes:
    data = _more(connection)
    if not data:
        raise Refused(400, "the request ends in the middle")
    return data


def _more(connection: socket.socket) -> bytes:
    try:
        return connection.recv(_CHUNK)
    except BlockingIOError:
        raise Refused(408, f"nothing came for {READ_SECONDS:g} s") from None


def answer(status: int, body: bytes, headers: Mapping[str, object]) -> bytes:
    """Return the bytes of an answer, after which the connection is closed."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    start = f"HTTP/1.1 {status} {REASONS[status]}\r\nContent-Length: {len(body)}\r\n"
    return f"{start}{lines}Connection: close\r\n\r\n".encode("latin-1") + body


def said(status: int, text: str) -> bytes:
    """Return an answer of plain text."""
    body = text.encode(errors="backslashreplace")
    return answer(status, body + b"\n", {"Content-Type": "text/plain; charset=utf-8"})
