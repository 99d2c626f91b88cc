"""A node with an uplink, a client outside of it, and pods of a `podwire` network, watched from outside.

host: up0 192.0.2.1/24 2001:db8::1/64, its default route; client: 192.0.2.9, 2001:db8::9, which has no route
to the pods.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from podwire.cni.plugin import Result
from podwire.kernel import netns
from podwire.kernel.host import Kernel
from tests.plugins import nat_lab
from tests.plugins.helpers import Host, run
from tests.plugins.nat_lab import batch

NETWORKS = ("net", "other", "routed", "bridge")
"""Names of networks; each has subnets of its own, those of the first are `SUBNETS`."""
SUBNETS = ("10.1.0.0/24", "fd00:1::/64")
PATIENCE = 3.0
SILENCE = 0.3
ETH_ALL = 3


def _subnets(network: str) -> tuple[str, ...]:
    number = NETWORKS.index(network) + 1
    return f"10.{number}.0.0/24", f"fd00:{number}::/64"


class Node(Host):
    """The test's namespace as a node of `podwire` pods."""

    def __init__(self, directory: Path, kernel: Kernel) -> None:
        super().__init__(directory, kernel)
        self.sockets: list[socket.socket] = []

    def network(self, mode: str, *subnets: str, **options: Any) -> dict[str, Any]:
        return {
            "cniVersion": "1.1.0",
            "name": "net",
            "type": "podwire",
            "mode": mode,
            "subnets": list(subnets or _subnets(options.get("name", "net"))),
            "dataDir": str(self.data),
            **options,
        }

    def attached(self, config: dict[str, Any], *names: str) -> list[Result]:
        return [self.add(config, self.pod(name)) for name in names]

    def open(self, where: str, family: int, kind: int, protocol: int = 0) -> socket.socket:
        def make() -> socket.socket:
            return socket.socket(family, kind, protocol)

        if where:
            with netns.open(f"/run/netns/{where}") as inside:
                made = inside.run(make)
        else:
            made = make()
        made.settimeout(PATIENCE)
        self.sockets.append(made)
        return made

    def talk(self, server_at: str, client_at: str, address: str, port: int, **options: Any) -> str:
        """Have a client send to ``address`` and be answered; return whom the server saw.

        ``inner``: the port that the server listens on, if another; ``kind``: TCP unless it is SOCK_DGRAM;
        ``source``: the client's address.
        """
        kind = options.get("kind", socket.SOCK_STREAM)
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        server = self.open(server_at, family, kind)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("::" if family == socket.AF_INET6 else "", options.get("inner", port)))
        if kind == socket.SOCK_STREAM:
            server.listen()
        client = self.open(client_at, family, kind)
        if "source" in options:
            client.bind((options["source"], 0))
        try:
            client.connect((address, port))
            if kind == socket.SOCK_DGRAM:
                client.send(b"ping")
                data, peer = server.recvfrom(64)
                server.sendto(b"pong", peer)
            else:
                answering, peer = server.accept()
                self.sockets.append(answering)
                answering.settimeout(PATIENCE)
                client.sendall(b"ping")
                data = answering.recv(64)
                answering.sendall(b"pong")
            assert data == b"ping"
            assert client.recv(64) == b"pong"
        finally:
            server.close()
            client.close()
        return str(peer[0])

    def close(self) -> None:
        for each in self.sockets:
            each.close()
        self.remove_pods()
        run("ip", "netns", "delete", "client", check=False)


@contextmanager
def node(directory: Path) -> Iterator[Node]:
    batch(
        None,
        "netns add client",
        "link add up0 type veth peer name eth0 netns client",
        "link set up0 addrgenmode none",
        "addr add 192.0.2.1/24 dev up0",
        "addr add 2001:db8::1/64 dev up0 nodad",
        "addr add fe80::1:1/64 dev up0 nodad",
        "link set up0 up",
    )
    batch(
        "client",
        "link set lo up",
        "link set eth0 addrgenmode none",
        "link set eth0 up",
        "addr add 192.0.2.9/24 dev eth0",
        "addr add 2001:db8::9/64 dev eth0 nodad",
        "addr add fe80::1:9/64 dev eth0 nodad",
    )
    batch(None, "route add default via 192.0.2.9", "route add default via 2001:db8::9")
    with Kernel.open() as kernel:
        made = Node(directory, kernel)
        yield made
        made.close()


def pod_elements() -> dict[str, list[Any]]:
    """What is in nftables but for what a network has once."""
    once = ("pod_networks4", "pod_networks6", "localnet")
    return {name: each for name, each in nat_lab.all_elements().items() if name not in once}


def packet4(source: str, destination: str, payload: bytes) -> bytes:
    """A UDP packet to port 9, from port 9."""
    udp = struct.pack("!HHHH", 9, 9, 8 + len(payload), 0) + payload
    head = struct.pack(
        "!BBHHHBBH4s4s",
        0x45, 0, 20 + len(udp), 1, 0, 64, 17, 0,
        socket.inet_aton(source), socket.inet_aton(destination),
    )  # fmt: skip
    return head[:10] + struct.pack("!H", checksum(head)) + head[12:] + udp


def packet6(source: str, destination: str, payload: bytes, protocol: int = 17) -> bytes:
    """A UDP packet to port 9, or a payload of another protocol whose checksum at offset 2 is filled in."""
    body = struct.pack("!HHHH", 9, 9, 8 + len(payload), 0) + payload if protocol == 17 else payload
    ends = socket.inet_pton(socket.AF_INET6, source) + socket.inet_pton(socket.AF_INET6, destination)
    total = checksum(ends + struct.pack("!II", len(body), protocol) + body)
    place = 6 if protocol == 17 else 2
    body = body[:place] + struct.pack("!H", total) + body[place + 2 :]
    return struct.pack("!IHBB", 6 << 28, len(body), protocol, 255) + ends + body


def checksum(data: bytes) -> int:
    total: int
    if len(data) % 2:
        data += b"\0"
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def frame(destination: str, source: str, kind: int, payload: bytes) -> bytes:
    return mac(destination) + mac(source) + struct.pack("!H", kind) + payload


def mac(text: str) -> bytes:
    return bytes.fromhex(text.replace(":", ""))
