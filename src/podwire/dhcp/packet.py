"""DHCPv4 messages: bytes to values and back (RFC 2131 figure 1, RFC 2132, RFC 3396).

Reading is lenient where servers in the field are: no padding is needed, options may be cut short by the end
of the message, and go on in the ``file`` and ``sname`` fields (option 52).
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator, Mapping
from ipaddress import IPv4Address

import msgspec

from podwire.dhcp.errors import MalformedPacket

SERVER_PORT = 67
CLIENT_PORT = 68
LARGEST = 1472
"""Bytes of a message that fit into an Ethernet frame without fragments."""

UNSPECIFIED = IPv4Address(0)
_REQUEST = 1
_REPLY = 2
_ETHERNET = 1
_BROADCAST = 0x8000
_MAGIC = b"\x63\x82\x53\x63"
# op, htype, hlen, hops, xid, secs, flags, ciaddr, yiaddr, siaddr, giaddr, chaddr, sname, file
_HEADER = struct.Struct("!BBBBIHH4s4s4s4s16s64s128s")
_SHORTEST = 300  # RFC 1542 section 2.1: some relays drop less
_PAD = 0
_OVERLOAD = 52
_END = 255


class Kind(enum.IntEnum):
    """The DHCP message type (option 53)."""

    DISCOVER = 1
    OFFER = 2
    REQUEST = 3
    DECLINE = 4
    ACK = 5
    NAK = 6
    RELEASE = 7
    INFORM = 8


class Option(enum.IntEnum):
    """Numbers of options that have a meaning here (RFC 2132, 3397, 3442)."""

    SUBNET_MASK = 1
    ROUTERS = 3
    NAME_SERVERS = 6
    HOST_NAME = 12
    DOMAIN_NAME = 15
    STATIC_ROUTES = 33
    REQUESTED_ADDRESS = 50
    LEASE_SECONDS = 51
    MESSAGE_TYPE = 53
    SERVER = 54
    PARAMETERS = 55
    MESSAGE = 56
    LARGEST_MESSAGE = 57
    RENEWAL_SECONDS = 58
    REBINDING_SECONDS = 59
    VENDOR_CLASS = 60
    CLIENT_ID = 61
    USER_CLASS = 77
    SEARCH = 119
    CLASSLESS_ROUTES = 121


class Packet(msgspec.Struct, frozen=True):
    """One message. ``mac`` is the client's, 6 bytes; ``options`` are raw values by number, 1 to 254."""

    xid: int
    mac: bytes
    options: Mapping[int, bytes]
    reply: bool = False
    seconds: int = 0
    broadcast: bool = False
    client: IPv4Address = UNSPECIFIED
    yours: IPv4Address = UNSPECIFIED
    server: IPv4Address = UNSPECIFIED
    relay: IPv4Address = UNSPECIFIED

    @property
    def kind(self) -> Kind | None:
        """The message type; None if it has none that is known."""
        value = self.options.get(Option.MESSAGE_TYPE, b"")
        return Kind(value[0]) if len(value) == 1 and value[0] in Kind._value2member_map_ else None

    @property
    def server_id(self) -> IPv4Address | None:
        """The server identifier, if the message has a proper one."""
        value = self.options.get(Option.SERVER, b"")
        return IPv4Address(value) if len(value) == 4 and any(value) else None


def encode(packet: Packet) -> bytes:
    """Return the bytes of a message; MalformedPacket for what does not fit into one."""
    if len(packet.mac) != 6:
        raise MalformedPacket(f"a hardware address has 6 bytes, not {len(packet.mac)}")
    options = bytearray(_MAGIC)
    # Servers and relays look for the message type first.
    for number in sorted(packet.options, key=lambda one: (one != Option.MESSAGE_TYPE, one)):
        if not _PAD < number < _END:
            raise MalformedPacket(f"option {number}: options are numbered from 1 to 254")
        value = packet.options[number]
        for start in range(0, max(1, len(value)), 255):
            part = value[start : start + 255]
            options += bytes((number, len(part))) + part
    options.append(_END)
    header = _HEADER.pack(
        _REPLY if packet.reply else _REQUEST,
        _ETHERNET,
        6,
        0,
        packet.xid,
        min(packet.seconds, 0xFFFF),
        _BROADCAST if packet.broadcast else 0,
        packet.client.packed,
        packet.yours.packed,
        packet.server.packed,
        packet.relay.packed,
        packet.mac,
        b"",
        b"",
    )
    data = header + bytes(options)
    if len(data) > LARGEST:
        raise MalformedPacket(f"a message of {len(data)} bytes does not fit into a frame of {LARGEST}")
    return data.ljust(_SHORTEST, b"\0")


def decode(data: bytes) -> Packet:
    """Return the message that ``data`` holds; MalformedPacket if it is none."""
    if len(data) < _HEADER.size + len(_MAGIC):
        raise MalformedPacket(f"{len(data)} bytes are too short for a DHCP message")
    op, hardware, length, _, xid, seconds, flags, ci, yi, si, gi, mac, name, file = _HEADER.unpack_from(data)
    if op not in (_REQUEST, _REPLY):
        raise MalformedPacket(f"operation {op} is neither a request nor a reply")
    if hardware != _ETHERNET or length != 6:
        raise MalformedPacket(f"hardware type {hardware} with addresses of {length} bytes is no Ethernet")
    start = _HEADER.size + len(_MAGIC)
    if data[_HEADER.size : start] != _MAGIC:
        raise MalformedPacket("the magic cookie is missing: BOOTP or something else")
    options: dict[int, bytes] = {}
    _collect(options, data[start:])
    overload = options.get(_OVERLOAD, b"\0")[:1]
    if overload in (b"\1", b"\3"):
        _collect(options, file)
    if overload in (b"\2", b"\3"):
        _collect(options, name)
    return Packet(
        xid=xid,
        mac=mac[:6],
        options=options,
        reply=op == _REPLY,
        seconds=seconds,
        broadcast=bool(flags & _BROADCAST),
        client=IPv4Address(ci),
        yours=IPv4Address(yi),
        server=IPv4Address(si),
        relay=IPv4Address(gi),
    )


def _collect(options: dict[int, bytes], data: bytes) -> None:
    # Parts of one option are to be joined (RFC 3396).
    for number, value in _options(data):
        options[number] = options.get(number, b"") + value


def _options(data: bytes) -> Iterator[tuple[int, bytes]]:
    offset = 0
    while offset < len(data):
        number = data[offset]
        offset += 1
        if number == _PAD:
            continue
        if number == _END or offset == len(data):
            return
        length = data[offset]
        value = data[offset + 1 : offset + 1 + length]
        if len(value) < length:
            return
        yield number, value
        offset += 1 + length
