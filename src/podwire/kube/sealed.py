"""Objects as a store keeps them: packed, and decoded when somebody looks.

A pod of 3 KB of JSON takes 13 KB as Python objects; a cluster's pods resemble one another. Packed with one of
them as the dictionary each takes a few hundred bytes, and 3 µs to unpack beside the 7 µs that decoding takes.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from typing_extensions import Buffer

T = TypeVar("T")

_LEVEL = 1
_MEMORY = 6
_LARGEST_WINDOW = 15


class Shelf:
    """How the objects of one store are packed: DEFLATE (RFC 1951) with the first object as the dictionary."""

    def __init__(self) -> None:
        self._sample = b""
        self._window = _LARGEST_WINDOW
        self._empty: zlib._Compress | None = None

    def pack(self, data: Buffer) -> bytes:
        """The bytes, smaller."""
        if self._empty is None:
            self._begin(bytes(data))
        assert self._empty is not None
        # A copy of one that has its dictionary is made in a fraction of the time of a new one.
        packing = self._empty.copy()
        return packing.compress(data) + packing.flush()

    def unpack(self, packed: bytes) -> bytes:
        """The bytes that were packed."""
        return zlib.decompressobj(-self._window, self._sample).decompress(packed)

    def _begin(self, sample: bytes) -> None:
        # The window must reach from an object's end to where the same thing stands in the sample.
        self._window = min(max((2 * len(sample) + 512).bit_length(), 13), _LARGEST_WINDOW)
        self._sample = sample[-(1 << self._window) :]
        self._empty = zlib.compressobj(
            _LEVEL, zlib.DEFLATED, -self._window, _MEMORY, zlib.Z_DEFAULT_STRATEGY, self._sample
        )


class Sealed(Generic[T]):
    """One state of an object. ``open`` decodes it, anew each time."""

    __slots__ = ("_decode", "_packed", "_unpack", "key", "uid", "version")

    def __init__(
        self,
        key: str,
        uid: str,
        version: str,
        *,
        packed: bytes,
        unpack: Callable[[bytes], bytes],
        decode: Callable[[bytes], T],
    ) -> None:
        self.key = key
        """``namespace/name``, or ``name`` for what has no namespace."""
        self.uid = uid
        self.version = version
        """The resource version."""
        self._packed = packed
        self._unpack = unpack
        self._decode = decode

    def open(self) -> T:
        """The object."""
        return self._decode(self._unpack(self._packed))

    def same(self, other: Sealed[T]) -> bool:
        """Whether it is the same state of the same object, as far as versions tell."""
        return self.version == other.version != "" and self.uid == other.uid and self.key == other.key
