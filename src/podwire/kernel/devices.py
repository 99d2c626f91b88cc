"""Quick questions about one network device, by ioctl(2): a tenth of what a look-up by rtnetlink costs.

Sources: netdevice(7), linux/sockios.h, socket(7).
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from typing import TYPE_CHECKING

from podwire.kernel.errors import KernelError

if TYPE_CHECKING:
    from podwire.kernel.netlink import RouteSocket

_SIOCGIFNAME = 0x8910
_SIOCGIFFLAGS = 0x8913
_SIOCGIFMTU = 0x8921
_SIOCGIFINDEX = 0x8933
_NAME_SIZE = 16  # with the NUL
_FLAGS = struct.Struct("16sH22x")
_INDEX = struct.Struct("16si20x")


def find(sock: RouteSocket, name: str) -> int:
    """The index of the device of this name; 0 if there is none.

    Not by ioctl, which makes the kernel look for a module of that name where there is no device (dev_load),
    by running modprobe; nor does this wait for the lock of rtnetlink, or let another thread of Python in.
    """
    raw = _raw(name)
    if not 0 < len(raw) < _NAME_SIZE:
        return 0
    try:
        return sock.device_index(raw)
    except OSError as error:
        if error.errno == errno.ENODEV:
            return 0
        raise KernelError(error.errno or errno.EIO, "look up link", name) from error


def flags(sock: RouteSocket, name: str) -> int:
    """The IFF_* flags. Raises :class:`KernelError`, ENODEV if there is no such device."""
    answer: int = _FLAGS.unpack(_ask(sock, _SIOCGIFFLAGS, name, _FLAGS.pack(_raw(name), 0)))[1]
    return answer


def index(sock: RouteSocket, name: str) -> int:
    """The index. Raises :class:`KernelError`, ENODEV if there is no such device."""
    answer: int = _INDEX.unpack(_ask(sock, _SIOCGIFINDEX, name, _INDEX.pack(_raw(name), 0)))[1]
    return answer


def mtu(sock: RouteSocket, name: str) -> int:
    """The MTU in bytes. Raises :class:`KernelError`, ENODEV if there is no such device."""
    answer: int = _INDEX.unpack(_ask(sock, _SIOCGIFMTU, name, _INDEX.pack(_raw(name), 0)))[1]
    return answer


def name(sock: RouteSocket, index: int) -> str:
    """The name of the device with this index. Raises :class:`KernelError`, ENODEV if there is none."""
    answer = _ask(sock, _SIOCGIFNAME, f"index {index}", _INDEX.pack(b"", index))
    return os.fsdecode(_INDEX.unpack(answer)[0].partition(b"\0")[0])


def exists(sock: RouteSocket, index: int) -> bool:
    """Tell whether there is a device with this index. Raises :class:`KernelError`."""
    try:
        name(sock, index)
    except KernelError as error:
        if error.errno == errno.ENODEV:
            return False
        raise
    return True


def free_index(sock: RouteSocket) -> int:
    """The least index that no device has, after the loopback device's 1. Raises :class:`KernelError`."""
    index = 2
    while exists(sock, index):
        index += 1
    return index


def _raw(name: str) -> bytes:
    return os.fsencode(name)


def _ask(sock: RouteSocket, request: int, name: str, argument: bytes) -> bytes:
    try:
        return fcntl.ioctl(sock.fileno(), request, argument)
    except OSError as error:
        raise KernelError(error.errno or errno.EIO, "look up link", name) from error
