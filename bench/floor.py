"""The floor: the same kernel requests, packed beforehand and sent from a loop with nothing around them."""

from __future__ import annotations

import ctypes
import os
import socket
import struct
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Interface
from pathlib import Path

from podwire.kernel import addresses, links, routes
from podwire.kernel.message import Message
from podwire.kernel.netns import Netns

CLONE_NEWNET = 0x40000000
_REQUEST_ACK = 0x5
_HEADER = struct.Struct("=IHHII")
_ERROR = struct.Struct("=16xi")
_POD_INDEX = 2
_libc = ctypes.CDLL(None, use_errno=True)


def pack(messages: Sequence[Message]) -> tuple[bytes, int]:
    """One buffer for one ``sendmsg``, and how many acknowledgements it asks for."""
    parts = []
    for number, message in enumerate(messages):
        length = _HEADER.size + len(message.body)
        parts.append(_HEADER.pack(length, message.type, message.flags | _REQUEST_ACK, number + 1, 0))
        parts.append(message.body)
    return b"".join(parts), len(messages)


def exchange(sock: socket.socket, packed: tuple[bytes, int]) -> None:
    """Send and read the acknowledgements; OSError with the first errno that is not 0."""
    data, waiting = packed
    sock.send(data)
    while waiting:
        (code,) = _ERROR.unpack_from(sock.recv(4096))
        if code:
            raise OSError(-code, os.strerror(-code))
        waiting -= 1


class Floor:
    """Pods on one bridge by bare netlink: what any implementation has to ask of the kernel."""

    def __init__(self, host: Netns, bridge: str, subnet: str) -> None:
        self._host = host
        self._socket = route_socket()
        self._network = IPv4Interface(subnet).network
        self._gateway = self._network[1]
        exchange(self._socket, pack([links.bridge(bridge, up=True)]))
        self._bridge = socket.if_nametoindex(bridge)
        address = IPv4Interface((self._gateway, self._network.prefixlen))
        exchange(self._socket, pack([addresses.add(self._bridge, address)]))

    def prepare(self, number: int) -> tuple[tuple[bytes, int], tuple[bytes, int], tuple[bytes, int]]:
        """The requests of one pod: its pair, what is inside, what is on the host."""
        name = f"floor{number}"
        address = IPv4Interface((self._network[number + 2], self._network.prefixlen))
        assert isinstance(self._gateway, IPv4Address)
        return (
            pack([links.veth("eth0", name, index=_POD_INDEX, peer_netns=self._host, mtu=1500)]),
            pack(
                [
                    links.configure(_POD_INDEX, addr_gen_mode=links.AddrGenMode.NONE),
                    addresses.add(_POD_INDEX, address, broadcast=self._network.broadcast_address),
                    links.configure(_POD_INDEX, up=True),
                    routes.add(None, device=_POD_INDEX, gateway=self._gateway),
                ]
            ),
            pack(
                [
                    links.configure(name, addr_gen_mode=links.AddrGenMode.NONE),
                    links.configure(name, master=self._bridge, up=True),
                ]
            ),
        )

    def add(
        self, prepared: tuple[tuple[bytes, int], tuple[bytes, int], tuple[bytes, int]], netns: Path
    ) -> None:
        """One pod's attachment: three exchanges, one visit to the pod's namespace."""
        pair, inside, outside = prepared
        fd = os.open(netns, os.O_RDONLY | os.O_CLOEXEC)
        _enter(fd)
        sock = route_socket()
        _enter(self._host.fd)
        os.close(fd)
        exchange(sock, pair)
        exchange(sock, inside)
        exchange(self._socket, outside)
        sock.close()

    def delete(self, number: int) -> None:
        """One pod's detachment: the kernel's answer to RTM_DELLINK is waited for."""
        exchange(self._socket, pack([links.delete(f"floor{number}")]))

    def delete_group(self, numbers: Sequence[int], group: int) -> None:
        """Many at once, as one group."""
        for number in numbers:
            exchange(self._socket, pack([links.configure(f"floor{number}", group=group)]))
        exchange(self._socket, pack([links.delete_group(group)]))

    def close(self) -> None:
        """Close the host's socket."""
        self._socket.close()


def route_socket() -> socket.socket:
    """A NETLINK_ROUTE socket in the calling thread's namespace."""
    sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
    sock.bind((0, 0))
    return sock


def _enter(fd: int) -> None:
    if _libc.setns(fd, CLONE_NEWNET) != 0:
        errno = ctypes.get_errno()
        raise OSError(errno, os.strerror(errno))
