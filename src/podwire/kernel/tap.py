"""Tap devices, made through /dev/net/tun (linux/if_tun.h): persistent, so they outlive this process."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from typing import TYPE_CHECKING

from podwire.kernel.attributes import IFNAME
from podwire.kernel.errors import InvalidValue, KernelError

if TYPE_CHECKING:
    from podwire.kernel.netns import Netns

_TUNSETIFF = 0x400454CA
_TUNSETPERSIST = 0x400454CB
_TUNSETOWNER = 0x400454CC
_TUNSETGROUP = 0x400454CE
_IFF_TAP = 0x0002
_IFF_MULTI_QUEUE = 0x0100
_IFF_NO_PI = 0x1000
_IFF_TUN_EXCL = 0x8000
_REQUEST = struct.Struct("=16sH22x")


def create(
    name: str,
    *,
    netns: Netns | None = None,
    owner: int | None = None,
    group: int | None = None,
    multi_queue: bool = False,
) -> None:
    """Make a tap ``name`` in ``netns`` (or here); ``owner`` and ``group`` are the IDs that may open it.

    Everything else, and its deletion, is as for any link. Raises :class:`KernelError`: EEXIST or EBUSY if the
    name is taken, ENOENT if this kernel has no /dev/net/tun.
    """
    try:
        IFNAME.pack(0, name)
    except ValueError as error:
        raise InvalidValue(f"tap name {name!r}", str(error)) from error
    flags = _IFF_TAP | _IFF_NO_PI | _IFF_TUN_EXCL | (_IFF_MULTI_QUEUE if multi_queue else 0)

    def make() -> None:
        fd = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.ioctl(fd, _TUNSETIFF, _REQUEST.pack(os.fsencode(name), flags))
            # Until it is persistent the device goes with the descriptor: all or nothing.
            if owner is not None:
                fcntl.ioctl(fd, _TUNSETOWNER, owner)
            if group is not None:
                fcntl.ioctl(fd, _TUNSETGROUP, group)
            fcntl.ioctl(fd, _TUNSETPERSIST, 1)
        finally:
            os.close(fd)

    try:
        make() if netns is None else netns.run(make)
    except OSError as error:
        raise KernelError(error.errno or errno.EIO, "create tap", name) from error
