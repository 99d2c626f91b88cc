"""Header blocks of SPDY/3: names and values, compressed by zlib with a dictionary, one stream per direction.

Source: SPDY Protocol - Draft 3.1, section 2.6.10 (Name/Value Header Block).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Mapping

from podwire.serving.streaming.spdy.frames import ProtocolError

_NAMES = (
    "options head post put delete trace accept accept-charset accept-encoding accept-language accept-ranges"
    " age allow authorization cache-control connection content-base content-encoding content-language"
    " content-length content-location content-md5 content-range content-type date etag expect expires from"
    " host if-match if-modified-since if-none-match if-range if-unmodified-since last-modified location"
    " max-forwards pragma proxy-authenticate proxy-authorization range referer retry-after server te trailer"
    " transfer-encoding upgrade user-agent vary via warning www-authenticate method get status"
)
_TAIL = (
    "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505"
    "203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized"
    "403 Forbidden404 Not Found500 Internal Server Error501 Not Implemented503 Service Unavailable"
    "Jan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMT"
    "chunked,text/html,image/png,image/jpg,image/gif,application/xml,application/xhtml+xml,text/plain,"
    "text/javascript,publicprivatemax-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0."
)
LARGEST = 64 << 10
"""Bytes of a block before compression; larger ones are refused."""


def _dictionary() -> bytes:
    words: Iterable[str] = (
        *_NAMES.split(),
        *("200 OK", "version", "HTTP/1.1", "url", "public", "set-cookie", "keep-alive", "origin"),
    )
    return b"".join(struct.pack(">I", len(word)) + word.encode() for word in words) + _TAIL.encode()


DICTIONARY = _dictionary()


class Compressor:
    """Writes the header blocks of one direction of a connection, in their order."""

    def __init__(self) -> None:
        self._zlib = zlib.compressobj(zdict=DICTIONARY)

    def block(self, headers: Mapping[str, str]) -> bytes:
        """The compressed block. Names become lower case, as the protocol asks."""
        parts = [struct.pack(">I", len(headers))]
        for name, value in headers.items():
            for text in (name.lower().encode(), value.encode()):
                parts += (struct.pack(">I", len(text)), text)
        return self._zlib.compress(b"".join(parts)) + self._zlib.flush(zlib.Z_SYNC_FLUSH)


class Decompressor:
    """Reads the header blocks of one direction of a connection; every one must pass, in their order."""

    def __init__(self) -> None:
        self._zlib = zlib.decompressobj(zdict=DICTIONARY)

    def headers(self, block: bytes) -> dict[str, str]:
        """Names in lower case and values; several values of a name are separated by NUL.

        Raise ProtocolError for what cannot be read or is larger than LARGEST.
        """
        try:
            plain = self._zlib.decompress(block, LARGEST)
        except zlib.error as error:
            raise ProtocolError(f"header block: {error}") from error
        if self._zlib.unconsumed_tail or self._zlib.eof:
            raise ProtocolError(
                f"header block: more than {LARGEST} bytes, or the end of the compressed stream"
            )
        return _parse(plain)


def _parse(plain: bytes) -> dict[str, str]:
    headers: dict[str, str] = {}
    position = 4
    try:
        (count,) = struct.unpack_from(">I", plain)
        for _ in range(count):
            texts = []
            for _ in ("name", "value"):
                (length,) = struct.unpack_from(">I", plain, position)
                position += 4 + length
                if position > len(plain):
                    raise ProtocolError("header block: a string goes beyond the end")
                texts.append(plain[position - length : position].decode("utf-8", "replace"))
            name, value = texts
            if name.lower() in headers:
                raise ProtocolError(f"header block: {name!r} twice")
            headers[name.lower()] = value
    except struct.error as error:
        raise ProtocolError(f"header block: {error}") from error
    return headers
