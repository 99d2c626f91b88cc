"""UDP over IPv4 on an interface that has no address yet: raw sockets of one port (packet(7), RFC 768)."""

from __future__ import annotations

import ctypes
import errno
import socket
import struct
from ipaddress import IPv4Address
from typing import NamedTuple

from podwire.kernel.closing import ClosedAtEnd
from podwire.kernel.errors import KernelError
from podwire.kernel.netns import Netns

BROADCAST = IPv4Address("255.255.255.255")
BROADCAST_STATION = b"\xff" * 6

_ETH_P_IP = 0x0800
_SO_ATTACH_FILTER = 26
_UDP = 17
_TTL = 64
_LONGEST = 65535
_IP = struct.Struct("!BBHHHBBH4s4s")
_UDP_HEADER = struct.Struct("!HHHH")
_FRAGMENT = 0x3FFF  # more fragments, or not the first one

# Classic BPF (linux/filter.h: code, jump if true, jump if false, operand) over the IP header onwards.
_BPF = struct.Struct("=HBBI")


class Datagram(NamedTuple):
    """What came: the sender's address and port, the payload, and the station that sent the frame."""

    source: IPv4Address
    source_port: int
    payload: bytes
    station: bytes = b""


def pack(
    payload: bytes, *, source: IPv4Address, source_port: int, destination: IPv4Address, destination_port: int
) -> bytes:
    """Return an IPv4 packet with a UDP datagram in it, both with their checksums."""
    size = _UDP_HEADER.size + len(payload)
    pseudo = source.packed + destination.packed + struct.pack("!BBH", 0, _UDP, size)
    bare = _UDP_HEADER.pack(source_port, destination_port, size, 0)
    # 0 would mean that there is no checksum.
    checksum = _checksum(pseudo + bare + payload) or 0xFFFF
    datagram = _UDP_HEADER.pack(source_port, destination_port, size, checksum) + payload
    total = _IP.size + len(datagram)
    fields = (0x45, 0x10, total, 0, 0, _TTL, _UDP, 0, source.packed, destination.packed)
    header = _IP.pack(*fields)
    return _IP.pack(*fields[:7], _checksum(header), *fields[8:]) + datagram


def unpack(packet: bytes, port: int) -> Datagram | None:
    """Return the UDP datagram for ``port`` in an IPv4 packet; None for anything else.

    Its checksum is not looked at: the kernel has not computed it yet for packets that never left the host.
    """
    if len(packet) < _IP.size:
        return None
    version, _, total, _, fragment, _, protocol, _, source, _ = _IP.unpack_from(packet)
    start = (version & 0xF) * 4
    whole = start >= _IP.size and start + _UDP_HEADER.size <= total <= len(packet)
    if version >> 4 != 4 or not whole or protocol != _UDP or fragment & _FRAGMENT:
        return None
    source_port, destination_port, size, _ = _UDP_HEADER.unpack_from(packet, start)
    if destination_port != port or not _UDP_HEADER.size <= size <= total - start:
        return None
    return Datagram(IPv4Address(source), source_port, packet[start + _UDP_HEADER.size : start + size])


def _checksum(data: bytes) -> int:
    """The Internet checksum (RFC 1071)."""
    if len(data) % 2:
        data += b"\0"
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


class DatagramPort(ClosedAtEnd):
    """One UDP port of one interface, below IP: it needs no address to send from, and none to be sent to.

    Nothing blocks. Close it.
    """

    def __init__(self, netns: Netns, ifname: str, port: int) -> None:
        """Open it. Raises :class:`KernelError`, ENODEV if there is no such interface."""
        self._name = ifname
        self._port = port
        try:
            self._raw = netns.run(self._open_raw)
        except OSError as error:
            raise KernelError(error.errno or errno.EIO, "open packet socket on", ifname) from error
        try:
            self._holder: socket.socket | None = netns.run(self._hold)
        except OSError:  # somebody in the container has the port
            self._holder = None
        except BaseException:
            self._raw.close()
            raise

    def _open_raw(self) -> socket.socket:
        kind = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        # Protocol 0 until the filter is in place: no packet of another port slips in before.
        raw = socket.socket(socket.AF_PACKET, kind, 0)
        try:
            program = b"".join(_BPF.pack(*step) for step in _only(self._port))
            held = ctypes.create_string_buffer(program, len(program))
            wanted = struct.pack("@HP", len(program) // _BPF.size, ctypes.addressof(held))
            raw.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, wanted)
            raw.bind((self._name, _ETH_P_IP))
        except BaseException:
            raw.close()
            raise
        return raw

    def _hold(self) -> socket.socket:
        """Take the port of IP's as well: the kernel would answer that nobody has it."""
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, self._name.encode() + b"\0")
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 0)
            made.bind(("", self._port))
        except BaseException:
            made.close()
            raise
        return made

    def fileno(self) -> int:
        """The descriptor to poll for what comes."""
        return self._raw.fileno()

    def send(
        self,
        payload: bytes,
        port: int,
        *,
        source: IPv4Address,
        destination: IPv4Address = BROADCAST,
        station: bytes = BROADCAST_STATION,
    ) -> None:
        """Send to ``port`` of an address behind a station of the link, by default to everybody.

        Raises :class:`KernelError`, ENETDOWN if the link is down.
        """
        packet = pack(
            payload, source=source, source_port=self._port, destination=destination, destination_port=port
        )
        try:
            self._raw.sendto(packet, (self._name, _ETH_P_IP, 0, 0, station))
        except OSError as error:
            raise KernelError(error.errno or errno.EIO, "send on", self._name) from error

    def receive(self) -> Datagram | None:
        """Return the next datagram, skipping what is none; None if nothing more is there.

        Raises :class:`KernelError`, ENETDOWN once when the link has gone down.
        """
        while True:
            try:
                packet, sender = self._raw.recvfrom(_LONGEST)
            except BlockingIOError:
                return None
            except OSError as error:
                raise KernelError(error.errno or errno.EIO, "receive on", self._name) from error
            datagram = unpack(packet, self._port)
            if datagram is not None:
                return datagram._replace(station=sender[4])

    def close(self) -> None:
        """Close the sockets; more than once does nothing."""
        self._raw.close()
        if self._holder is not None:
            self._holder.close()


def _only(port: int) -> tuple[tuple[int, int, int, int], ...]:
    """The filter that lets first or only fragments of UDP datagrams for ``port`` pass."""
    return (
        (0x30, 0, 0, 9),  # load 8 bits: the protocol
        (0x15, 0, 6, _UDP),
        (0x28, 0, 0, 6),  # load 16 bits: flags and fragment offset
        (0x45, 4, 0, 0x1FFF),
        (0xB1, 0, 0, 0),  # the header's length into the index
        (0x48, 0, 0, 2),  # load 16 bits behind it: the destination port
        (0x15, 0, 1, port),
        (0x06, 0, 0, 0xFFFFFFFF),
        (0x06, 0, 0, 0),
    )
