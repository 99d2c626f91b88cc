"""What the kernel announces to everybody: here, the links that are gone (RTNLGRP_LINK, linux/rtnetlink.h)."""

from __future__ import annotations

import ctypes
import errno
import socket
import struct
from typing import TYPE_CHECKING

from podwire.kernel import links
from podwire.kernel.errors import KernelError
from podwire.kernel.netlink import ADD_MEMBERSHIP, NETLINK_ROUTE, SOL_NETLINK, open_socket, split

if TYPE_CHECKING:
    from podwire.kernel.netns import Netns

_GROUP_LINK = 1
_SO_ATTACH_FILTER = 26
_AF_UNSPEC = 0
_INDEX = struct.Struct("=4xi")

# Classic BPF (linux/filter.h: code, jump if true, jump if false, operand). It reads in network byte order.
_BPF = struct.Struct("=HBBI")
_TYPE = int.from_bytes(struct.pack("=H", links.DELLINK), "big")
_ONLY_GONE = b"".join(
    _BPF.pack(*step)
    for step in (
        (0x28, 0, 0, 4),  # load 16 bits: nlmsg_type
        (0x15, 0, 3, _TYPE),
        (0x30, 0, 0, 16),  # load 8 bits: ifi_family, which a bridge's own announcements set
        (0x15, 0, 1, _AF_UNSPEC),
        (0x06, 0, 0, 0xFFFFFFFF),
        (0x06, 0, 0, 0),
    )
)


class GoneLinks:
    """The indexes of links that are deleted, or leave, a namespace. Other announcements wake nobody."""

    def __init__(self, netns: Netns) -> None:
        self._socket = open_socket(NETLINK_ROUTE, netns)
        try:
            program = ctypes.create_string_buffer(_ONLY_GONE, len(_ONLY_GONE))
            size = len(_ONLY_GONE) // _BPF.size
            self._socket.setsockopt(
                socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("@HP", size, ctypes.addressof(program))
            )
            self._socket.setsockopt(SOL_NETLINK, ADD_MEMBERSHIP, _GROUP_LINK)
        except OSError as error:
            self._socket.close()
            raise KernelError(error.errno or errno.EIO, "subscribe to", "link announcements") from error

    def fileno(self) -> int:
        """The descriptor to poll."""
        return self._socket.fileno()

    def read(self) -> list[int]:
        """Wait for the next announcement, and take what has come with it.

        KernelError with ENOBUFS means that some were lost.
        """
        gone: list[int] = []
        flags = 0
        while True:
            try:
                data = self._socket.recv(65536, flags)
            except BlockingIOError:
                return gone
            except OSError as error:
                raise KernelError(error.errno or errno.EIO, "read", "link announcements") from error
            gone += (
                _INDEX.unpack_from(body)[0]
                for kind, _, _, body in split(data)
                if kind == links.DELLINK and len(body) >= _INDEX.size and body[0] == _AF_UNSPEC
            )
            flags = socket.MSG_DONTWAIT

    def close(self) -> None:
        """Unsubscribe."""
        self._socket.close()
