"""UDP below IP: headers by the RFCs' bytes, sockets beside the kernel's own."""

from __future__ import annotations

import select
import socket
import subprocess
from collections.abc import Iterator
from ipaddress import IPv4Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.kernel import netns
from podwire.kernel.datagrams import Datagram, DatagramPort, pack, unpack
from podwire.kernel.errors import KernelError

ONE, TWO = IPv4Address("10.0.0.1"), IPv4Address("10.0.0.2")


@given(st.binary(max_size=300), st.integers(0, 65535), st.integers(0, 65535))
def test_what_is_packed_is_unpacked(payload: bytes, source: int, destination: int) -> None:
    packet = pack(payload, source=ONE, source_port=source, destination=TWO, destination_port=destination)
    assert unpack(packet, destination) == Datagram(ONE, source, payload)
    assert unpack(packet, destination ^ 1) is None
    assert unpack(packet[:-1], destination) is None


@given(st.binary(max_size=100), st.integers(0, 65535))
def test_arbitrary_bytes_are_no_datagram_or_a_part_of_them(data: bytes, port: int) -> None:
    found = unpack(data, port)
    assert found is None or found.payload in data


def test_a_fragment_is_no_datagram() -> None:
    packet = bytearray(pack(b"x", source=ONE, source_port=1, destination=TWO, destination_port=2))
    packet[6] = 0x20
    assert unpack(bytes(packet), 2) is None


def run(*command: str) -> None:
    subprocess.run(command, check=True)


@pytest.fixture
def _wire() -> Iterator[None]:
    """e0 (10.0.0.1) here and e1 without an address in the namespace "far"."""
    run("ip", "netns", "add", "far")
    run("ip", "link", "add", "e0", "type", "veth", "peer", "name", "e1", "netns", "far")
    run("ip", "address", "add", "10.0.0.1/24", "dev", "e0")
    run("ip", "link", "set", "e0", "up")
    run("ip", "-n", "far", "link", "set", "e1", "up")
    yield
    run("ip", "netns", "delete", "far")


def arrived(port: DatagramPort) -> Datagram | None:
    return port.receive() if select.select([port], [], [], 2)[0] else None


@pytest.mark.kernel
@pytest.mark.usefixtures("_wire")
def test_an_interface_without_an_address_talks_to_the_kernels_sockets() -> None:
    with netns.open("/run/netns/far") as far, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("", 67))
        server.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        server.settimeout(2)
        with DatagramPort(far, "e1", 68) as port:
            port.send(b"hello", 67, source=IPv4Address(0))
            assert server.recvfrom(100) == (b"hello", ("0.0.0.0", 68))
            server.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"e0\0")
            server.sendto(b"other port", ("255.255.255.255", 69))
            server.sendto(b"welcome", ("255.255.255.255", 68))
            found = arrived(port)
            assert found is not None
            assert (found.source, found.source_port, found.payload) == (ONE, 67, b"welcome")
            # The kernel accepts the checksums of what is sent to one station.
            port.send(b"again", 67, source=TWO, destination=ONE, station=found.station)
            assert server.recvfrom(100) == (b"again", ("10.0.0.2", 68))
            assert port.receive() is None


@pytest.mark.kernel
@pytest.mark.usefixtures("_wire")
def test_what_cannot_be_opened_or_sent_is_told() -> None:
    with netns.open("/run/netns/far") as far:
        with pytest.raises(KernelError, match="ENODEV"):
            DatagramPort(far, "nosuch", 68)
        with DatagramPort(far, "e1", 68) as port:
            run("ip", "-n", "far", "link", "set", "e1", "down")
            with pytest.raises(KernelError, match="ENETDOWN"):
                port.send(b"x", 67, source=IPv4Address(0))


@pytest.mark.kernel
@pytest.mark.usefixtures("_wire")
def test_a_port_that_the_container_uses_itself_is_no_obstacle() -> None:
    with netns.open("/run/netns/far") as far:
        own = far.run(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        with own:
            own.bind(("", 68))
            with DatagramPort(far, "e1", 68) as port:
                port.send(b"x", 67, source=IPv4Address(0))
