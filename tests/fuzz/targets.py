"""What is fuzzed: each target takes bytes, and fails with nothing but its typed errors."""

from __future__ import annotations

import json
import struct
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, ip_address
from pathlib import Path

from podwire.cli import arguments, checks, cnitool, selectors
from podwire.cli.errors import CommandError
from podwire.cni import config, fields
from podwire.cni.args import parse_args, salvage_args
from podwire.cni.errors import CNIError
from podwire.dhcp.errors import DHCPError
from podwire.dhcp.lease import lease_of
from podwire.dhcp.packet import Packet, decode, encode
from podwire.ipam.allocation import allocate
from podwire.ipam.directory import AddressDirectory
from podwire.ipam.errors import Holder, IPAMError
from podwire.ipam.ranges import Range, RangeSet
from podwire.kernel import addresses, datagrams, link_codec, neighbours, nft, routes, rules
from podwire.kernel.errors import KernelError, MalformedReply
from podwire.kernel.netlink import split
from podwire.kernel.nftset import IPV4, PORT, PROTOCOL, NamedSet
from podwire.kube.errors import ManifestError
from podwire.kube.manifest import load_pod
from podwire.kube.quantity import parse_quantity
from podwire.node import hoststate, logs
from podwire.plugins import bridge, conditions, host_local
from podwire.runtime import wire
from podwire.runtime.records import Places, Unreadable
from tests.kube.test_manifest_fuzz import CORPUS as MANIFESTS


@dataclass(frozen=True)
class Target:
    """``run`` takes an input; ``refusals`` are the errors that it may answer with.

    ``prepare`` is called once before, without a limit of time.
    """

    run: Callable[[bytes], object]
    refusals: tuple[type[Exception], ...]
    corpus: Sequence[bytes]
    prepare: Callable[[], object] = lambda: None


def text(data: bytes) -> str:
    """The input as an environment variable or an argument brings it."""
    return data.decode(errors="surrogateescape")


NETWORK = json.dumps(
    {
        "cniVersion": "1.0.0",
        "name": "net",
        "disableCheck": False,
        "plugins": [
            {
                "type": "bridge",
                "bridge": "br0",
                "capabilities": {"ips": True},
                "ipam": {
                    "type": "host-local",
                    "subnet": "10.1.0.0/24",
                    "gateway": "10.1.0.1",
                    "ranges": [[{"subnet": "fd00::/64", "rangeStart": "fd00::5", "rangeEnd": "fd00::9"}]],
                    "routes": [{"dst": "0.0.0.0/0", "gw": "10.1.0.9"}],
                },
            },
            {"type": "portmap", "conditionsV4": ["-d", "10.0.0.0/8", "!", "-s", "10.9.0.1"]},
        ],
    }
).encode()


def network(data: bytes) -> None:
    """A conflist, and the address ranges in it as host-local reads them."""
    made = config.parse_list(data, "10.conflist")
    for plugin in made.plugins:
        given = plugin.execution(made.name, made.cni_version)
        for take in (
            lambda given=given: fields.convert(given, bridge.Config),
            lambda given=given: host_local.range_sets(fields.convert(given, host_local.Config)),
        ):
            try:
                take()
            except (CNIError, fields.FieldError):
                continue


SET = NamedSet("target", (IPV4, PROTOCOL, PORT), (IPV4, PORT))


def nft_elements(data: bytes) -> None:
    """An answer with elements of a map, and what is written back of them."""
    for element in nft.read_elements(SET, data):
        SET.create(element)
        SET.pack_key(element.key)


def attribute(number: int, body: bytes) -> bytes:
    return struct.pack("<HH", len(body) + 4, number) + body + bytes(-len(body) % 4)


def element(address: str, comment: bytes) -> bytes:
    key = ip_address(address).packed + b"\x06\0\0\0" + b"\x1f\x90\0\0"
    value = ip_address(address).packed + b"\0\x50\0\0"
    return attribute(
        1,
        attribute(1, attribute(1, key))
        + attribute(2, attribute(1, value))
        + attribute(6, bytes((0, len(comment) + 1)) + comment + b"\0"),
    )


ELEMENTS = b"\1\0\0\0" + attribute(3, element("10.0.0.1", b"net/id/eth0") + element("10.0.0.2", b"x"))
LINK = struct.pack("<BxHiII", 0, 1, 7, 0x1043, 0) + b"".join(
    (
        attribute(3, b"eth0\0"),
        attribute(1, bytes(6)),
        attribute(4, struct.pack("<I", 1500)),
        attribute(5, struct.pack("<I", 9)),
        attribute(16, b"\6"),
        attribute(
            18, attribute(1, b"veth\0") + attribute(4, b"bridge\0") + attribute(5, attribute(4, b"\1"))
        ),
        attribute(26, attribute(10, attribute(8, b"\1"))),
        attribute(20, b"alias\0"),
    )
)
ROUTE = struct.pack("<BBBBBBBBI", 2, 24, 0, 0, 254, 3, 0, 1, 0) + b"".join(
    (
        attribute(1, bytes((10, 0, 0, 0))),
        attribute(5, bytes((10, 0, 0, 1))),
        attribute(4, struct.pack("<I", 7)),
        attribute(8, attribute(2, struct.pack("<I", 1400))),
        attribute(9, struct.pack("<HBBi", 16, 0, 0, 7) + attribute(5, bytes((10, 0, 0, 1)))),
        attribute(18, b"\x0a\0" + bytes(16)),
    )
)
ADDRESS = struct.pack("<BBBBI", 10, 64, 0, 0, 7) + attribute(1, bytes(16)) + attribute(8, bytes(4))
NEIGHBOUR = struct.pack("<BxxxiHBB", 2, 7, 2, 0, 1) + attribute(1, bytes(4)) + attribute(2, bytes(6))
RULE = (
    struct.pack("<BBBBBBBBI", 2, 32, 0, 0, 254, 0, 0, 1, 0) + attribute(1, bytes(4)) + attribute(6, bytes(4))
)


def netlink(data: bytes) -> None:
    """A datagram of messages, each read as every kind of object."""
    for _, _, _, body in split(data):
        for parse in PARSERS:
            try:
                parse(body)
            except MalformedReply:
                continue


PARSERS: tuple[Callable[[bytes], object], ...] = (
    link_codec.parse,
    routes.parse,
    addresses.parse,
    rules.parse,
    neighbours.parse,
    neighbours.parse_forwarding,
)


def message(body: bytes) -> bytes:
    return struct.pack("<IHHII", len(body) + 16, 16, 0, 1, 0) + body + bytes(-len(body) % 4)


def frames(data: bytes) -> None:
    """Frames as they come, cut in two at each place of the input's first byte."""
    decoder = wire.Decoder()
    cut = data[0] if data else 0
    for part in (data[:cut], data[cut:]):
        for frame in decoder.feed(part):
            wire.encode(frame)


def address_directory(data: bytes) -> None:
    """A host-local directory: the input is its files, ``name`` NUL ``content`` NUL and so on."""
    parts = data.split(b"\0")
    with tempfile.TemporaryDirectory() as home:
        network = Path(home) / "net"
        network.mkdir()
        for name, content in zip(parts[::2], parts[1::2], strict=False):
            if name and b"/" not in name and name not in (b".", b"..", b"lock") and len(name) < 250:
                (network / name.decode(errors="surrogateescape")).write_bytes(content)
        ranges = RangeSet([Range.parse("10.1.0.0/28")])
        with AddressDirectory(home, "net").locked() as leases:
            allocate(leases, [ranges], Holder("id", "eth0"))
            leases.release("id", "eth0")
            leases.retain([("a", "eth0")])


def container_log(data: bytes) -> None:
    """A log file, read from its start, and its last lines."""
    with tempfile.TemporaryDirectory() as home:
        path = Path(home) / "0.log"
        path.write_bytes(data)
        for tail in (None, 0, 1, 3):
            reader = logs.LogReader(path, tail)
            try:
                renderer = logs.Renderer(timestamps=tail == 1, since=b"2026-01-01T00:00:00Z" if tail else b"")
                while entries := reader.read():
                    renderer.render(entries)
            finally:
                reader.close()


def ledger(data: bytes) -> None:
    """The record of what was changed on the host."""
    with tempfile.TemporaryDirectory() as home:
        path = Path(home) / "host.json"
        path.write_bytes(data)
        hoststate.load(path)


def sandbox_record(data: bytes) -> None:
    """The runtime's record of a sandbox."""
    with tempfile.TemporaryDirectory() as home:
        places = Places(Path(home), Path(home))
        directory = places.state("s")
        directory.mkdir(parents=True)
        (directory / "sandbox.json").write_bytes(data)
        places.load("s")


def flags(data: bytes) -> None:
    """Texts of flags, each read as each kind of them."""
    for check in (
        lambda value: selectors.parse(value).matches({"a": "b"}),
        checks.pod_cidrs,
        checks.bridge_name,
        checks.node_name,
        arguments.namespace,
        arguments.duration("--since"),
    ):
        try:
            check(text(data))
        except CommandError:
            continue


def match_conditions(data: bytes) -> None:
    """Portmap's further conditions, as words of iptables or a text of nft."""
    conditions.translate(text(data).split(" "), 4, "conditionsV4")


def dhcp(data: bytes) -> None:
    """An IPv4 packet from a DHCP server: read, made a lease of, written again."""
    datagram = datagrams.unpack(data, 68)
    packet = decode(datagram.payload if datagram is not None else data)
    lease_of(packet, IPv4Address("10.0.0.1"), 0.0)
    assert decode(encode(packet)) == packet


ACK = Packet(
    1,
    bytes(6),
    {
        1: bytes((255, 255, 255, 0)),
        3: bytes((10, 0, 0, 1)),
        6: bytes((10, 0, 0, 2)),
        15: b"example.org",
        33: bytes((10, 1, 0, 0, 10, 0, 0, 3)),
        51: bytes((0, 0, 2, 88)),
        53: b"\5",
        119: b"\3one\0\3two\xc0\0",
        121: bytes((16, 10, 2, 10, 0, 0, 1, 0, 10, 0, 0, 1)),
    },
    reply=True,
    yours=IPv4Address("10.0.0.5"),
)


DEEP = b'{"a":' * 5000


TARGETS: dict[str, Target] = {
    "manifest": Target(
        lambda data: load_pod(data, "f.yaml"), (ManifestError,), [entry.encode() for entry in MANIFESTS]
    ),
    "conflist": Target(network, (CNIError, fields.FieldError), [NETWORK]),
    "cni-args": Target(
        lambda data: (salvage_args(text(data)), parse_args(text(data))),
        (CNIError,),
        [b"IgnoreUnknown=1;K8S_POD_NAME=web;IP=10.0.0.1", b"a=b"],
    ),
    "cap-args": Target(
        lambda data: cnitool.capability_args(text(data)),
        (CommandError,),
        [b'{"portMappings":[{"hostPort":80,"containerPort":80,"protocol":"tcp"}],"mac":"02:00:00:00:00:01"}'],
    ),
    "conditions": Target(
        match_conditions,
        (CNIError,),
        [b"-d 10.0.0.0/8 ! -s 10.9.0.1 -i eth0 --dport 80:90", b"ip saddr 10.0.0.1"],
    ),
    "netlink": Target(
        netlink, (KernelError,), [message(each) for each in (LINK, ROUTE, ADDRESS, NEIGHBOUR, RULE)]
    ),
    "nft-elements": Target(nft_elements, (KernelError,), [ELEMENTS]),
    "wire": Target(
        frames,
        (wire.Broken,),
        [
            wire.encode({"op": "start", "id": 7}) + wire.encode({"op": "wait"}),
            len(DEEP).to_bytes(4, "big") + DEEP,
        ],
    ),
    "host-local": Target(
        address_directory,
        (IPAMError,),
        [b"10.1.0.2\0id\neth0\x0010.1.0.3\0a\r\neth0\0last_reserved_ip.0\x0010.1.0.3\0fd00::1\0b\0x\0y"],
    ),
    "log": Target(
        container_log,
        (),
        [b"2026-01-01T00:00:00.1Z stdout F hello\n2026-01-01T00:00:01.1Z stderr P a\n2026-01-01T00:00:02Z x"],
    ),
    "ledger": Target(
        ledger,
        (hoststate.HostStateError,),
        [
            b'{"bridge":"b","pod_cidrs":["10.0.0.0/8"],"node_name":"n","boot_id":"x","directories":["/x"],'
            b'"sysctls":{"a":"1"}}',
            DEEP,
        ],
    ),
    "sandbox-record": Target(
        sandbox_record, (Unreadable,), [b'{"id":"s","created_at":1,"phase":"ready"}', DEEP]
    ),
    "dhcp": Target(
        dhcp,
        (DHCPError,),
        [
            encode(ACK),
            datagrams.pack(
                encode(ACK),
                source=IPv4Address("10.0.0.1"),
                source_port=67,
                destination=IPv4Address("10.0.0.5"),
                destination_port=68,
            ),
        ],
    ),
    "quantity": Target(lambda data: parse_quantity(text(data)), (ValueError,), [b"500m", b"1.5Gi", b"1e3"]),
    "flags": Target(
        flags, (CommandError,), [b"a in (b,c),!d,e!=f", b"10.0.0.0/8,fd00::/64", b"podwire0", b"1h30m5s"]
    ),
}
