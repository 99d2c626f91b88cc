"""Named sets and maps of nftables: one description gives the text to write and the bytes to read.

A key or value is a tuple with one member per field of the concatenation. In the kernel each field starts on a
4-byte boundary (linux/netfilter/nf_tables.h; registers of 32 bits).
"""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import IPv4Address, IPv6Address
from typing import Any, NamedTuple

import msgspec

from podwire.kernel.attributes import PADDING
from podwire.kernel.errors import MalformedReply

Fields = tuple[Any, ...]


class Kind(NamedTuple):
    """A datatype of nft(8): its name, its bytes in the kernel, and both ways to write a value."""

    name: str
    size: int
    pack: Callable[[Any], bytes]
    unpack: Callable[[bytes], Any]
    text: Callable[[Any], str] = str


IPV4 = Kind("ipv4_addr", 4, lambda value: value.packed, IPv4Address)
IPV6 = Kind("ipv6_addr", 16, lambda value: value.packed, IPv6Address)
PROTOCOL = Kind("inet_proto", 1, lambda value: value.to_bytes(1, "big"), lambda data: data[0])
PORT = Kind(
    "inet_service", 2, lambda value: value.to_bytes(2, "big"), lambda data: int.from_bytes(data, "big")
)
INTERFACE = Kind(
    "ifname",
    16,
    lambda value: value.encode().ljust(16, b"\0"),
    lambda data: data.rstrip(b"\0").decode(errors="surrogateescape"),
    lambda value: f'"{value}"',
)


class Element(NamedTuple):
    """One element: its key, what it maps to (fields, a chain's name, or None in a set), and its comment."""

    key: Fields
    value: Fields | str | None = None
    comment: str = ""


class NamedSet(msgspec.Struct, frozen=True):
    """A set, a map to ``data``, or a verdict map to chains; ``family`` and ``table`` say where it is."""

    name: str
    key: tuple[Kind, ...]
    data: tuple[Kind, ...] | None = None
    verdict: bool = False
    table: str = "podwire"
    family: str = "inet"

    def create(self, *elements: Element) -> str:
        """The command that makes elements and fails with EEXIST if one is there, whatever its value."""
        return self._command("create", [self._text(element) for element in elements])

    def add(self, *elements: Element) -> str:
        """The command that makes elements and is content with equal ones."""
        return self._command("add", [self._text(element) for element in elements])

    def delete(self, *keys: Fields) -> str:
        """The command that removes elements and fails with ENOENT if one is not there."""
        return self._command("delete", [_words(self.key, key) for key in keys])

    def pack_key(self, key: Fields) -> bytes:
        """The key as the kernel holds it."""
        return _pack(self.key, key)

    def pack_value(self, value: Fields) -> bytes:
        """A value of a map to data as the kernel holds it."""
        return _pack(self.data or (), value)

    def unpack_key(self, data: bytes) -> Fields:
        """Read a key. Raises :class:`MalformedReply`."""
        return _unpack(self.key, data)

    def unpack_value(self, data: bytes) -> Fields:
        """Read a value of a map to data. Raises :class:`MalformedReply`."""
        return _unpack(self.data or (), data)

    def _command(self, verb: str, elements: list[str]) -> str:
        if not elements:
            return ""
        return f"{verb} element {self.family} {self.table} {self.name} {{ {', '.join(elements)} }}\n"

    def _text(self, element: Element) -> str:
        text = _words(self.key, element.key)
        if element.comment:
            text += f' comment "{element.comment}"'
        if self.verdict:
            text += f" : goto {element.value}"
        elif self.data is not None and isinstance(element.value, tuple):
            text += f" : {_words(self.data, element.value)}"
        return text


def _words(kinds: tuple[Kind, ...], values: Fields) -> str:
    return " . ".join(kind.text(value) for kind, value in zip(kinds, values, strict=True))


def _pack(kinds: tuple[Kind, ...], values: Fields) -> bytes:
    """Fields as the kernel holds them: several are padded to 4 bytes each."""
    parts = [kind.pack(value) for kind, value in zip(kinds, values, strict=True)]
    if len(parts) == 1:
        return parts[0]
    return b"".join([part + PADDING[len(part) & 3] for part in parts])


def _unpack(kinds: tuple[Kind, ...], data: bytes) -> Fields:
    values = []
    offset = 0
    for kind in kinds:
        field = data[offset : offset + kind.size]
        if len(field) != kind.size:
            raise MalformedReply(kind.name, f"{len(field)} bytes at {offset} of {len(data)}")
        values.append(kind.unpack(field))
        offset += (kind.size + 3) & ~3
    return tuple(values)
