"""The shim: the static program that runtimes call under each plugin's name (its source: ``shim/``).

It is one file, compiled when the package is built. The path of the agent's socket stands behind a mark
inside it, so that it can be told of another one, and so that our programs are known among others.
"""

from __future__ import annotations

import platform
from importlib.resources import files
from pathlib import Path

MARK = b"podwire-shim settings 1\0"
"""What every shim has inside, in front of the socket's path (``struct settings``)."""
SOCKET_LIMIT = 107
"""Bytes of the socket's path (sun_path of linux/un.h, less its NUL)."""
_LARGEST = 2 << 20
"""Bytes of a shim at most; one linked with glibc has 700 KB. Larger files are not looked through."""


class ShimMissing(Exception):
    """The package was built without a shim for this machine; ``path`` is where it would be."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path}: this installation of podwire has no shim for {platform.machine()}")
        self.path = path


def binary() -> bytes:
    """Return this machine's shim, as built. ShimMissing."""
    path = Path(str(files("podwire"))) / "shim" / platform.machine() / "podwire-shim"
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise ShimMissing(path) from None


def told_of(shim: bytes, socket: Path) -> bytes:
    """Return the shim with another path of the agent's socket in it.

    ValueError if the path is relative or longer than a socket's can be.
    """
    name = bytes(socket)
    if not socket.is_absolute() or len(name) > SOCKET_LIMIT or b"\0" in name:
        raise ValueError(f"{socket}: not an absolute path of at most {SOCKET_LIMIT} bytes")
    if shim.count(MARK) != 1:
        raise ValueError("not a shim: its mark is not inside")
    start = shim.index(MARK) + len(MARK)
    return shim[:start] + name.ljust(SOCKET_LIMIT + 1, b"\0") + shim[start + SOCKET_LIMIT + 1 :]


def socket_of(shim: bytes) -> Path:
    """Return the path of the agent's socket that a shim calls. ValueError if it is none."""
    start = shim.index(MARK) + len(MARK)
    return Path(shim[start : start + SOCKET_LIMIT].split(b"\0")[0].decode(errors="surrogateescape"))


def is_ours(path: Path) -> bool:
    """Whether a regular file is a shim, of this or another version. OSError if it cannot be read."""
    try:
        if path.is_symlink() or not path.is_file() or path.stat().st_size > _LARGEST:
            return False
        data = path.read_bytes()
    except FileNotFoundError:
        return False
    return data.startswith(b"\x7fELF") and MARK in data
