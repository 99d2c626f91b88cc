"""The netlink attribute codec: a table names the attributes of one nest and says how each is packed.

An attribute is ``struct nlattr`` (length and type, 16 bits each, host order), its payload, and padding to 4
bytes (linux/netlink.h). A :class:`Table` is itself a codec, so nests are tables within tables.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address
from typing import Any, NamedTuple, Protocol

from podwire.kernel.errors import InvalidValue, MalformedReply

NESTED = 0x8000
_TYPE_MASK = 0x3FFF
_LONGEST_PAYLOAD = 0xFFFF - 4
ATTRIBUTE = struct.Struct("=HH")
"""Length, header and payload together, and number of an attribute."""
PADDING = (b"", b"\0\0\0", b"\0\0", b"\0")
"""What fills up to 4 bytes, by the last two bits of a length."""

IPAddress = IPv4Address | IPv6Address


class Codec(Protocol):
    """How one attribute is written and read."""

    @property
    def pack(self) -> Callable[[int, Any], bytes]:
        """The whole attribute, header and padding included, from its number and value."""

    @property
    def unpack(self) -> Callable[[bytes], Any]:
        """The value, from the payload alone."""


class PayloadCodec(NamedTuple):
    """A codec of two functions."""

    pack: Callable[[int, Any], bytes]
    unpack: Callable[[bytes], Any]


def attribute(number: int, payload: bytes) -> bytes:
    """One attribute around ``payload``; ``number`` carries NESTED where it is due."""
    size = len(payload)
    if size > _LONGEST_PAYLOAD:
        raise ValueError(f"{size} bytes do not fit into an attribute")
    return ATTRIBUTE.pack(size + 4, number) + payload + PADDING[size & 3]


def _integer(layout: str) -> PayloadCodec:
    payload = struct.Struct(f"={layout}")
    size = payload.size
    whole = struct.Struct(f"=HH{layout}{-size % 4}x").pack
    read = payload.unpack_from
    length = size + 4

    def pack(number: int, value: int) -> bytes:
        return whole(length, number, value)

    def unpack(data: bytes) -> int:
        value: int = read(data)[0]
        return value

    return PayloadCodec(pack, unpack)


def _pack_be16(number: int, value: int) -> bytes:
    return ATTRIBUTE.pack(6, number) + value.to_bytes(2, "big") + b"\0\0"


def _unpack_be16(data: bytes) -> int:
    if len(data) < 2:
        raise ValueError(f"{len(data)} bytes for a 16-bit number")
    return int.from_bytes(data[:2], "big")


def _pack_flag(number: int, value: bool) -> bytes:
    return ATTRIBUTE.pack(4, number) if value else b""


def _pack_switch(number: int, value: bool) -> bytes:
    return U8.pack(number, 1 if value else 0)


def _pack_string(number: int, value: str) -> bytes:
    raw = os.fsencode(value)
    if b"\0" in raw:
        raise ValueError("holds a NUL")
    return attribute(number, raw + b"\0")


def _unpack_string(data: bytes) -> str:
    return os.fsdecode(data.partition(b"\0")[0])


@lru_cache(maxsize=1024)  # a link is named in several requests
def _pack_name(number: int, value: str) -> bytes:
    """Pack an interface name after dev_valid_name() of net/core/dev.c, which answers a bare EINVAL.

    ``%d`` would be a pattern (dev_alloc_name): the kernel would make a link of another name.
    """
    raw = os.fsencode(value)
    if not 0 < len(raw) < 16:
        raise ValueError(f"an interface name has 1 to 15 bytes, this has {len(raw)}")
    if value in {".", ".."} or not raw.isascii() or any(byte in b"/:% \t\n\r\v\f\0" for byte in raw):
        raise ValueError(
            "an interface name is ASCII and holds no '/', ':', '%', space or NUL, nor is it '.' or '..'"
        )
    return ATTRIBUTE.pack(len(raw) + 5, number) + raw + b"\0" + PADDING[(len(raw) + 1) & 3]


def _pack_mac(number: int, value: str) -> bytes:
    raw = bytes.fromhex(value.replace(":", ""))
    if len(raw) != 6 or len(value) != 17:
        raise ValueError("a MAC address has six bytes in hexadecimal with ':' between them")
    return ATTRIBUTE.pack(10, number) + raw + b"\0\0"


def _unpack_mac(data: bytes) -> str:
    return data.hex(":")


def _pack_ip(number: int, value: IPAddress) -> bytes:
    return attribute(number, value.packed)


def _unpack_ip(data: bytes) -> IPAddress:
    if len(data) == 4:
        return IPv4Address(data)
    return IPv6Address(data)


def _pack_nested(number: int, value: bytes) -> bytes:
    return attribute(number | NESTED, value)


U8 = _integer("B")
U16 = _integer("H")
U32 = _integer("I")
S32 = _integer("i")
U64 = _integer("Q")
BE16 = PayloadCodec(_pack_be16, _unpack_be16)
SWITCH = PayloadCodec(_pack_switch, lambda data: U8.unpack(data) != 0)
"""A bool in one byte."""
FLAG = PayloadCodec(_pack_flag, lambda data: True)
"""A bool by presence, without payload."""
STRING = PayloadCodec(_pack_string, _unpack_string)
"""Text that ends with a NUL; bytes that are not UTF-8 survive as surrogates."""
IFNAME = PayloadCodec(_pack_name, _unpack_string)
MAC = PayloadCodec(_pack_mac, _unpack_mac)
"""``aa:bb:cc:dd:ee:ff``; addresses of other lengths are read, not written."""
IP = PayloadCodec(_pack_ip, _unpack_ip)
BINARY = PayloadCodec(attribute, bytes)
NESTED_BYTES = PayloadCodec(_pack_nested, bytes)
"""A nest that another table encodes or decodes, chosen by a neighbour (link kind and its data)."""


class Table:
    """The attributes of one nest: ``name=(number, codec)``; ``name`` is also the key of the decoded value."""

    def __init__(self, title: str, /, **fields: tuple[int, Codec]) -> None:
        self.title = title
        self._writers = {name: (number, codec.pack) for name, (number, codec) in fields.items()}
        self._readers = {number: (name, codec.unpack) for name, (number, codec) in fields.items()}

    def encode(self, values: dict[str, Any]) -> bytes:
        """Write the attributes in the order of ``values``, without those that are None.

        Raises :class:`InvalidValue` naming the attribute.
        """
        name = ""
        value: Any = None
        parts = []
        writers = self._writers
        try:
            for name, value in values.items():
                if value is not None:
                    number, pack = writers[name]
                    parts.append(pack(number, value))
        except (ValueError, OverflowError, struct.error, AttributeError, TypeError) as error:
            if isinstance(error, InvalidValue):
                raise
            raise InvalidValue(f"{self.title} {name} {value!r}", str(error)) from error
        return b"".join(parts)

    def decode(self, data: bytes, start: int = 0) -> dict[str, Any]:
        """Read the attributes of ``data[start:]`` that the table knows; of two alike the later counts.

        Raises :class:`MalformedReply`.
        """
        values: dict[str, Any] = {}
        readers = self._readers
        end = len(data)
        offset = start
        while end - offset >= 4:
            length, number = ATTRIBUTE.unpack_from(data, offset)
            if length < 4 or offset + length > end:
                raise MalformedReply(self.title, f"attribute of {length} bytes at {offset} of {end}")
            reader = readers.get(number & _TYPE_MASK)
            if reader is not None:
                name, unpack = reader
                try:
                    values[name] = unpack(data[offset + 4 : offset + length])
                except (ValueError, struct.error) as error:
                    if isinstance(error, MalformedReply):
                        raise
                    raise MalformedReply(f"{self.title} {name}", str(error)) from error
            offset += (length + 3) & ~3
        return values

    def pack(self, number: int, value: dict[str, Any]) -> bytes:
        """The nest as one attribute."""
        return attribute(number | NESTED, self.encode(value))

    def unpack(self, data: bytes) -> dict[str, Any]:
        """The values of the nest, from its payload."""
        return self.decode(data)
