"""A link with a DHCP server at one end and pods at the other, a clock moved by hand, a scripted server."""

from __future__ import annotations

import json
import os
import select
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ipaddress import IPv4Address
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from podwire.dhcp.keeper import LeaseKeeper
from podwire.dhcp.packet import CLIENT_PORT, SERVER_PORT, Kind, Option, Packet, decode, encode
from podwire.dhcp.records import Key, Wish
from podwire.kernel import netns
from podwire.kernel.datagrams import BROADCAST_STATION, DatagramPort
from tests.waiting import until

SERVER = IPv4Address("10.88.0.1")
BRIDGE = "dh0"
WAIT = 8.0


def sh(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr or done.stdout}"
    return done.stdout


def ip(*arguments: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(sh("ip", "-j", *arguments) or "[]")
    return [entry for entry in found if entry]


def make_bridge() -> None:
    sh("ip", "link", "add", BRIDGE, "address", "02:88:00:00:00:01", "type", "bridge")
    sh("ip", "address", "add", f"{SERVER}/24", "dev", BRIDGE)
    sh("ip", "link", "set", BRIDGE, "up")


def make_pod(name: str = "pod", mac: str = "02:88:00:00:01:01") -> Wish:
    """A namespace whose eth0, up, is on the bridge."""
    sh("ip", "netns", "add", name)
    host_end = f"v-{name}"
    sh(
        *("ip", "link", "add", host_end, "master", BRIDGE, "type", "veth"),
        *("peer", "name", "eth0", "address", mac, "netns", name),
    )
    sh("ip", "link", "set", host_end, "up")
    sh("ip", "-n", name, "link", "set", "eth0", "up")
    return Wish(f"/run/netns/{name}", {}, (3, 1, 58, 59))


def addresses(name: str = "pod") -> list[str]:
    return [
        f"{one['local']}/{one['prefixlen']}"
        for link in ip("-n", name, "-4", "address", "show", "dev", "eth0")
        for one in link["addr_info"]
    ]


def is_up(name: str = "pod") -> bool:
    return "UP" in ip("-n", name, "link", "show", "dev", "eth0")[0]["flags"]


def key(pod: str = "pod", network: str = "net") -> Key:
    return Key(network, f"id-{pod}", "eth0")


def soon() -> float:
    return time.monotonic() + WAIT


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float, keeper: LeaseKeeper) -> None:
        self.now += seconds
        keeper.wake()


@contextmanager
def running(clock: Clock, keeper: LeaseKeeper, pace: float = 10.0) -> Iterator[None]:
    """Have the clock run for the length of a block, ``pace`` times as fast as others."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(0.02):
            clock.advance(0.02 * pace, keeper)

    mover = threading.Thread(target=run)
    mover.start()
    try:
        yield
    finally:
        ended.set()
        mover.join()


class Server:
    """A server on the bridge. ``answer`` makes the replies to a packet; by default a proper server's."""

    def __init__(
        self, *, address: str = "10.88.0.50", seconds: int = 600, identifier: IPv4Address = SERVER
    ) -> None:
        self.address = IPv4Address(address)
        self.seconds = seconds
        self.identifier = identifier
        self.silent = False
        self.refuse = False
        self.seen: list[Packet] = []
        self.answer: Callable[[Packet], list[bytes]] = self.proper
        self.more: dict[int, bytes] = {Option.ROUTERS: SERVER.packed}
        self._port: DatagramPort | None = None
        self._stop = os.eventfd(0)
        self._thread = threading.Thread(target=self._run)

    def reply(self, asked: Packet, kind: Kind, **changes: Any) -> Packet:
        options: dict[int, bytes] = {
            Option.MESSAGE_TYPE: bytes((kind,)),
            Option.SERVER: self.identifier.packed,
        }
        if kind is not Kind.NAK:
            options |= {
                Option.LEASE_SECONDS: self.seconds.to_bytes(4),
                Option.SUBNET_MASK: b"\xff\xff\xff\0",
                **self.more,
            }
        options |= changes.pop("options", {})
        fields: dict[str, Any] = {
            "xid": asked.xid,
            "mac": asked.mac,
            "reply": True,
            "yours": IPv4Address(0) if kind is Kind.NAK else self.address,
            **changes,
        }
        return Packet(options=options, **fields)

    def proper(self, asked: Packet) -> list[bytes]:
        match asked.kind:
            case Kind.DISCOVER:
                return [encode(self.reply(asked, Kind.OFFER))]
            case Kind.REQUEST:
                chosen = asked.options.get(Option.SERVER, self.identifier.packed)
                if chosen != self.identifier.packed:
                    return []
                return [encode(self.reply(asked, Kind.NAK if self.refuse else Kind.ACK))]
            case _:
                return []

    def kinds(self) -> list[Kind | None]:
        return [packet.kind for packet in self.seen]

    def count(self, kind: Kind) -> int:
        return self.kinds().count(kind)

    def wait_for(self, kind: Kind, count: int = 1) -> Packet:
        """Wait for the ``count``-th packet of a kind, and return it."""
        until(lambda: self.count(kind) >= count)
        return [packet for packet in self.seen if packet.kind is kind][count - 1]

    def send(self, payload: bytes, station: bytes = BROADCAST_STATION) -> None:
        assert self._port is not None
        self._port.send(payload, CLIENT_PORT, source=self.identifier, station=station)

    def _run(self) -> None:
        port = self._port
        assert port is not None
        poll = select.poll()
        poll.register(port, select.POLLIN)
        poll.register(self._stop, select.POLLIN)
        while not any(fd == self._stop for fd, _ in poll.poll()):
            while (datagram := port.receive()) is not None:
                packet = decode(datagram.payload)
                replies = [] if self.silent else self.answer(packet)
                self.seen.append(packet)
                for reply in replies:
                    self.send(reply, packet.mac)

    def __enter__(self) -> Self:
        with netns.current() as here:
            self._port = DatagramPort(here, BRIDGE, SERVER_PORT)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.eventfd_write(self._stop, 1)
        self._thread.join()
        os.close(self._stop)
        assert self._port is not None
        self._port.close()


UDHCPD = """start {start}
end {end}
interface {bridge}
lease_file {home}/leases
pidfile {home}/pid
auto_time 0
max_leases 200
{more}
"""


@contextmanager
def udhcpd(
    home: Path, more: str = "", start: str = "10.88.0.100", end: str = "10.88.0.250"
) -> Iterator[None]:
    """Busybox's server on the bridge."""
    defaults = "option subnet 255.255.255.0\noption router 10.88.0.1\noption lease 600"
    home.mkdir(exist_ok=True)
    (home / "leases").touch()
    (home / "udhcpd.conf").write_text(
        UDHCPD.format(start=start, end=end, bridge=BRIDGE, home=home, more=more or defaults)
    )
    process = subprocess.Popen(
        ["busybox", "udhcpd", "-f", "-a", "1", str(home / "udhcpd.conf")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until(lambda: ":0043 " in Path("/proc/thread-self/net/udp").read_text())
        yield
    finally:
        process.terminate()
        process.wait()
