"""The codec: what is written is read, whatever comes raises nothing but its own error, RFC 2131 by bytes."""

from __future__ import annotations

from ipaddress import IPv4Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.dhcp.errors import MalformedPacket, Unusable
from podwire.dhcp.lease import lease_of
from podwire.dhcp.packet import LARGEST, Kind, Option, Packet, decode, encode

ADDRESS = st.integers(0, 2**32 - 1).map(IPv4Address)
OPTIONS = st.dictionaries(
    st.integers(1, 254).filter(lambda number: number != 52), st.binary(max_size=300), max_size=4
)
PACKETS = st.builds(
    Packet,
    xid=st.integers(0, 2**32 - 1),
    mac=st.binary(min_size=6, max_size=6),
    options=OPTIONS,
    reply=st.booleans(),
    seconds=st.integers(0, 0xFFFF),
    broadcast=st.booleans(),
    client=ADDRESS,
    yours=ADDRESS,
    server=ADDRESS,
    relay=ADDRESS,
)
MAC = bytes.fromhex("028800000101")
SERVER = IPv4Address("10.0.0.1")


@given(PACKETS)
def test_what_is_written_is_read(packet: Packet) -> None:
    try:
        data = encode(packet)
    except MalformedPacket:
        assert sum(map(len, packet.options.values())) > 1100
        return
    assert 300 <= len(data) <= LARGEST
    assert decode(data) == packet


@given(st.binary(max_size=600))
def test_arbitrary_bytes_raise_nothing_but_malformed_packet(data: bytes) -> None:
    try:
        packet = decode(data)
    except MalformedPacket:
        return
    assert len(packet.mac) == 6


@given(st.binary(max_size=400), st.integers(0, 7))
def test_arbitrary_options_make_a_lease_or_are_unusable(options: bytes, message: int) -> None:
    head = bytes((2, 1, 6, 0)) + bytes(12) + IPv4Address("10.0.0.5").packed + bytes(216)
    data = head + b"\x63\x82\x53\x63" + b"\x01\x04\xff\xff\xff\0\x35\x01" + bytes((message,)) + options
    packet = decode(data)
    try:
        lease = lease_of(packet, SERVER, 0.0)
    except Unusable:
        return
    assert 0 < lease.renew_after <= lease.rebind_after < lease.seconds


def test_a_discover_by_its_bytes() -> None:
    packet = Packet(0x3903F326, MAC, {53: b"\1", 61: b"\0me", 55: b"\1\3"}, seconds=2, broadcast=True)
    data = encode(packet)
    assert data[:12] == bytes.fromhex("01010600 3903f326 0002 8000".replace(" ", ""))
    assert data[12:28] == bytes(16)
    assert data[28:44] == MAC + bytes(10)
    assert data[236:] == bytes.fromhex("63825363 350101 37020103 3d03006d65 ff".replace(" ", "")) + bytes(47)
    assert len(data) == 300


def test_a_long_option_is_split_and_joined_rfc3396() -> None:
    packet = Packet(1, MAC, {121: bytes(range(256)) + b"tail"})
    data = encode(packet)
    assert data.count(b"\x79\xff") == 1
    assert decode(data).options[121] == bytes(range(256)) + b"tail"


def test_options_go_on_in_file_and_sname() -> None:
    data = bytearray(encode(Packet(1, MAC, {53: b"\5"}, reply=True)))
    data[240:250] = b"\x35\1\5\x34\1\3\x01\4\xff\xff"  # overload 3; a mask cut by the end of what follows
    data[250:253] = b"\0\0\xff"
    data[108:114] = b"\x33\4\0\0\1\0"  # file: a lease time
    data[114] = 255
    data[44:50] = b"\x03\4\n\0\0\1"  # sname: a router
    data[50] = 255
    options = decode(bytes(data)).options
    assert options[51] == b"\0\0\1\0"
    assert options[3] == SERVER.packed
    assert options[1] == b"\xff\xff\0\0"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "0 bytes are too short"),
        (bytes(300), "operation 0"),
        (b"\2\6\6" + bytes(297), "hardware type 6"),
        (b"\2\1\7" + bytes(297), "addresses of 7 bytes"),
        (b"\2\1\6" + bytes(297), "magic cookie"),
    ],
)
def test_what_is_no_message_is_told(data: bytes, reason: str) -> None:
    with pytest.raises(MalformedPacket, match=reason):
        decode(data)


@pytest.mark.parametrize("options", [{0: b""}, {255: b""}, {43: bytes(1300)}])
def test_what_does_not_fit_is_refused(options: dict[int, bytes]) -> None:
    with pytest.raises(MalformedPacket):
        encode(Packet(1, MAC, options))


def test_a_mac_of_another_length_is_refused() -> None:
    with pytest.raises(MalformedPacket, match="6 bytes, not 8"):
        encode(Packet(1, bytes(8), {}))


def test_a_short_message_without_padding_or_end_is_read() -> None:
    data = encode(Packet(1, MAC, {53: b"\2"}, reply=True))[:243]
    assert decode(data).kind is Kind.OFFER


def test_a_message_type_of_two_bytes_is_none() -> None:
    assert Packet(1, MAC, {Option.MESSAGE_TYPE: b"\1\2"}).kind is None
    assert Packet(1, MAC, {Option.SERVER: b"\1\2"}).server_id is None
