"""A host with a bridge, pods on it, and a client outside, all in the test's throwaway namespace.

host: cni0 10.1.0.1/24 fd00:1::1/64, out0 192.0.2.1/24 2001:db8::1/64; client: 192.0.2.9, 2001:db8::9.
"""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from podwire.cni.plugin import Interface, IPConfig, Result, call, make_request
from podwire.kernel import netns
from podwire.kernel.host import Kernel
from podwire.kernel.message import Message
from podwire.kernel.nft import NetfilterSocket
from podwire.plugins import portmap

PATIENCE = 3.0
SHORT = 0.3
ID = "0123456789abcdef" * 4


def sh(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def ip(*words: str) -> str:
    return sh("ip", *words)


def batch(where: str | None, *commands: str) -> None:
    words = ["ip", *(["-n", where] if where else []), "-batch", "-"]
    subprocess.run(words, input="\n".join(commands), check=True, capture_output=True, text=True)


def ruleset() -> list[dict[str, Any]]:
    listed = json.loads(sh("nft", "-j", "list", "ruleset"))["nftables"]
    return [item for item in listed if "metainfo" not in item]


def rules() -> int:
    return sum("rule" in item for item in ruleset())


def generation() -> int:
    """The kernel's count of transactions (NFTA_GEN_ID of NFT_MSG_GETGEN)."""
    with NetfilterSocket.open() as sock:
        _, answer = sock.request(Message(10 << 8 | 16, 0, bytes(4), "read", "generation"))
    return int.from_bytes(answer[8:12], "big")


def elements(name: str) -> list[Any]:
    for item in ruleset():
        for kind in ("map", "set"):
            if kind in item and item[kind]["name"] == name:
                return list(item[kind].get("elem", []))
    return []


def all_elements() -> dict[str, list[Any]]:
    found = {}
    for item in ruleset():
        for kind in ("map", "set"):
            if kind in item and item[kind].get("elem"):
                found[item[kind]["name"]] = item[kind]["elem"]
    return found


def flows(family: str = "ipv4") -> list[str]:
    shown = sh("conntrack", "-L", "-f", family, "-p", "udp")
    return [line for line in shown.splitlines() if line.strip()]


@dataclass(frozen=True)
class Pod:
    name: str
    addresses: tuple[str, ...]
    container_id: str = ID

    def result(self, ifname: str = "eth0") -> Result:
        path = f"/run/netns/{self.name}"
        interfaces = (Interface("cni0"), Interface(f"veth{self.name}"), Interface(ifname, sandbox=path))
        return Result(interfaces, tuple(IPConfig(each, interface=2) for each in self.addresses))

    @property
    def v4(self) -> str:
        return next(each.partition("/")[0] for each in self.addresses if ":" not in each)

    @property
    def v6(self) -> str:
        return next(each.partition("/")[0] for each in self.addresses if ":" in each)


@dataclass
class Lab:
    kernel: Kernel
    sockets: list[socket.socket] = field(default_factory=list)

    def pod(self, name: str, *addresses: str, container_id: str | None = None) -> Pod:
        batch(
            None,
            f"netns add {name}",
            f"link add veth{name} type veth peer name eth0 netns {name}",
            f"link set veth{name} addrgenmode none",
            f"link set veth{name} master cni0 up",
            f"link set veth{name} type bridge_slave hairpin on",
        )
        inside = ["link set lo up", "link set eth0 addrgenmode none", "link set eth0 up"]
        for each in addresses:
            inside.append(f"addr add {each} dev eth0" + (" nodad" if ":" in each else ""))
            inside.append(f"route add default via {'fd00:1::1' if ':' in each else '10.1.0.1'}")
        batch(name, *inside)
        return Pod(name, addresses, container_id or (name.encode().hex() * 32)[:64])

    def open(self, where: str | None, family: int, kind: int, protocol: int = 0) -> socket.socket:
        def make() -> socket.socket:
            return socket.socket(family, kind, protocol)

        if where is None:
            made = make()
        else:
            with netns.open(f"/run/netns/{where}") as inside:
                made = inside.run(make)
        made.settimeout(PATIENCE)
        self.sockets.append(made)
        return made

    def listen(
        self, where: str | None, address: str, port: int, kind: int = socket.SOCK_STREAM
    ) -> socket.socket:
        server = self.open(where, _family(address), kind)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((address, port))
        if kind == socket.SOCK_STREAM:
            server.listen()
        return server

    def reach(
        self,
        server: socket.socket,
        where: str | None,
        address: str,
        port: int,
        *,
        source: str | None = None,
    ) -> str:
        """Talk to ``server`` by way of ``address``; return whom the server saw. Fails if it saw nobody."""
        kind = server.type
        client = self.open(where, _family(address), kind)
        if source:
            client.bind((source, 0))
        client.connect((address, port))
        if kind == socket.SOCK_DGRAM:
            client.send(b"ping")
            data, peer = server.recvfrom(64)
            assert data == b"ping"
            server.sendto(b"pong", peer)
            assert client.recv(64) == b"pong"
        else:
            accepted, peer = server.accept()
            self.sockets.append(accepted)
            accepted.settimeout(PATIENCE)
            client.sendall(b"ping")
            assert accepted.recv(64) == b"ping"
            accepted.sendall(b"pong")
            assert client.recv(64) == b"pong"
        return str(peer[0])

    def refused(self, where: str | None, address: str, port: int) -> bool:
        """Whether a TCP connection meets nobody: refused, or silence."""
        client = self.open(where, _family(address), socket.SOCK_STREAM)
        client.settimeout(SHORT)
        try:
            client.connect((address, port))
        except (ConnectionRefusedError, TimeoutError):
            return True
        return False

    def close(self) -> None:
        for each in self.sockets:
            each.close()
        self.kernel.close()


def _family(address: str) -> int:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def build() -> Lab:
    for key in ("ipv4/ip_forward", "ipv6/conf/all/forwarding"):
        Path(f"/proc/sys/net/{key}").write_text("1")
    # No link-local addresses that wait for their detection; a router must have one to find neighbours.
    batch(
        None,
        "link add cni0 type bridge",
        "link set cni0 addrgenmode none",
        "link set cni0 up",
        "addr add 10.1.0.1/24 dev cni0",
        "addr add fd00:1::1/64 dev cni0 nodad",
        "addr add fe80::1/64 dev cni0 nodad",
        "netns add client",
        "link add out0 type veth peer name eth0 netns client",
        "link set out0 addrgenmode none",
        "addr add 192.0.2.1/24 dev out0",
        "addr add 2001:db8::1/64 dev out0 nodad",
        "addr add fe80::1/64 dev out0 nodad",
        "link set out0 up",
    )
    batch(
        "client",
        "link set lo up",
        "link set eth0 addrgenmode none",
        "link set eth0 up",
        "addr add 192.0.2.9/24 dev eth0",
        "addr add 2001:db8::9/64 dev eth0 nodad",
        "route add default via 192.0.2.1",
        "route add default via 2001:db8::1",
    )
    return Lab(Kernel.open())


def tear_down(lab: Lab) -> None:
    lab.close()
    batch(None, *(f"netns del {path.name}" for path in Path("/run/netns").iterdir()))


def mapping(host: int, container: int, protocol: str = "tcp", host_ip: str | None = None) -> dict[str, Any]:
    entry: dict[str, Any] = {"hostPort": host, "containerPort": container, "protocol": protocol}
    return entry if host_ip is None else {**entry, "hostIP": host_ip}


def portmap_call(
    lab: Lab,
    command: str,
    pod: Pod,
    *mappings: Mapping[str, Any],
    network: str = "net",
    ifname: str = "eth0",
    valid: Sequence[Pod] | None = None,
    **options: Any,
) -> Result | None:
    config: dict[str, Any] = {
        "cniVersion": "1.1.0",
        "name": network,
        "type": "portmap",
        "capabilities": {"portMappings": True},
        **({"runtimeConfig": {"portMappings": list(mappings)}} if mappings else {}),
        **options,
    }
    if valid is not None:
        config["cni.dev/valid-attachments"] = [
            {"containerID": each.container_id, "ifname": "eth0"} for each in valid
        ]
    request = make_request(
        portmap.PLUGIN,
        command,
        config,
        container_id=pod.container_id,
        netns=f"/run/netns/{pod.name}",
        ifname=ifname,
        prev_result=pod.result(ifname) if command in {"ADD", "CHECK"} else None,
    )
    return call(portmap.PLUGIN, request, lab.kernel)
