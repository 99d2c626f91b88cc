"""portmap beside the reference plugin (Debian's containernetworking-plugins): same requests, same port table.

The rules themselves are iptables' and nftables', so each side's are read as a table of ports.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from podwire.cni.errors import CNIError
from tests.differential.harness import Difference
from tests.plugins import nat_lab
from tests.plugins.nat_lab import Lab, Pod, mapping, portmap_call, sh

GO = "/usr/lib/cni/portmap"
DUAL = Pod("one", ("10.1.0.5/24", "fd00:1::5/64"), "a" * 64)
ONLY4 = Pod("one", ("10.1.0.5/24",), "a" * 64)
# (destination address or "", protocol, port, where it leads)
PortTable = set[tuple[str, str, int, str]]

pytestmark = pytest.mark.kernel

CONFLICT = Difference(
    "portmap-conflict",
    "ADD portmap / reply / status",
    "of two mappings of one port the second could never be reached",
    go=0,
    ours=1,
)
LOOPBACK6 = Difference(
    "portmap-loopback-ipv6",
    "ADD portmap / reply / status",
    "the kernel routes nothing from ::1 to another interface: such a mapping can never work",
    go=0,
    ours=1,
)
DIFFERENCES = (CONFLICT, LOOPBACK6)


@pytest.fixture
def lab() -> Iterator[Lab]:
    built = nat_lab.build()
    yield built
    nat_lab.tear_down(built)


def go(pod: Pod, *mappings: dict[str, Any], **options: Any) -> bool:
    result = {
        "cniVersion": "1.0.0",
        "interfaces": [{"name": "cni0"}, {"name": "veth"}, {"name": "eth0", "sandbox": "/x"}],
        "ips": [{"address": each, "interface": 2} for each in pod.addresses],
    }
    config = {"cniVersion": "1.0.0", "name": "net", "type": "portmap", "prevResult": result, **options}
    config["runtimeConfig"] = {"portMappings": list(mappings)}
    environment = {
        "CNI_COMMAND": "ADD",
        "CNI_CONTAINERID": pod.container_id,
        "CNI_NETNS": "/proc/self/ns/net",
        "CNI_NETNS_OVERRIDE": "1",
        "CNI_IFNAME": "eth0",
        "CNI_PATH": "/usr/lib/cni",
        "PATH": "/usr/sbin:/usr/bin",
    }
    run = subprocess.run([GO], input=json.dumps(config), env=environment, capture_output=True, text=True)
    return run.returncode == 0


def go_table() -> PortTable:
    """What the DNAT rules of iptables say, one per port."""
    found: PortTable = set()
    for program in ("iptables-save", "ip6tables-save"):
        for line in sh(program, "-t", "nat").splitlines():
            if "--to-destination" not in line:
                continue
            words = dict(re.findall(r"(-d|-p|--dport|--to-destination) (\S+)", line))
            address = words.get("-d", "").partition("/")[0]
            found.add((address, words["-p"], int(words["--dport"]), words["--to-destination"]))
    return found


def our_table() -> PortTable:
    found: PortTable = set()
    for name in ("target_any4", "target_any6", "target_at4", "target_at6"):
        for key, value in nat_lab.elements(name):
            *address, protocol, port = key["elem"]["val"]["concat"]
            target, target_port = value["concat"]
            host = f"[{target}]" if ":" in target else target
            found.add((address[0] if address else "", protocol, port, f"{host}:{target_port}"))
    return found


@pytest.mark.parametrize(
    ("pod", "mappings", "options"),
    [
        (DUAL, [mapping(8080, 80)], {}),
        (DUAL, [mapping(8080, 80, "udp"), mapping(8080, 81, "tcp"), mapping(8081, 80, "sctp")], {}),
        (DUAL, [mapping(8080, 80, host_ip="192.0.2.1"), mapping(8080, 81, host_ip="2001:db8::1")], {}),
        (ONLY4, [mapping(8080, 80), mapping(8080, 80, host_ip="::")], {}),
        (DUAL, [], {}),
        (DUAL, [mapping(8080, 80)], {"snat": False, "markMasqBit": 5}),
        (DUAL, [mapping(8080, 80)], {"conditionsV4": ["!", "-d", "192.0.2.0/24"]}),
        (DUAL, [mapping(8080, 80)], {"conditionsV6": ["-s", "fd00::/8"], "masqAll": True}),
    ],
)
def test_what_the_reference_accepts_leads_to_the_same_place(
    lab: Lab, pod: Pod, mappings: list[dict[str, Any]], options: dict[str, Any]
) -> None:
    assert go(pod, *mappings, **options)
    portmap_call(lab, "ADD", pod, *mappings, **options)
    assert our_table() == go_table()


@pytest.mark.parametrize(
    ("mappings", "options"),
    [
        ([mapping(0, 80)], {}),
        ([mapping(-1, 80)], {}),
        ([mapping(65536, 80)], {}),
        ([mapping(8080, 0)], {}),
        ([mapping(8080, 80, "icmp")], {}),
        ([{"hostPort": 8080, "containerPort": 80}], {}),
        ([mapping(8080, 80, host_ip="nonsense")], {}),
        ([mapping(8080, 80)], {"markMasqBit": 32}),
        ([mapping(8080, 80)], {"markMasqBit": 5, "externalSetMarkChain": "X"}),
        ([mapping(8080, 80)], {"conditionsV4": ["-m", "no-such-match"]}),
        ([mapping(8080, 80)], {"snat": "yes"}),
    ],
)
def test_what_the_reference_refuses_is_refused(
    lab: Lab, mappings: list[dict[str, Any]], options: dict[str, Any]
) -> None:
    assert not go(DUAL, *mappings, **options)
    with pytest.raises(CNIError) as caught:
        portmap_call(lab, "ADD", DUAL, *mappings, **options)
    assert caught.value.code == 7
    assert our_table() == set()


@pytest.mark.parametrize(
    ("mappings", "difference"),
    [
        ([mapping(8080, 80), mapping(8080, 81)], CONFLICT),
        ([mapping(8080, 80, host_ip="::1")], LOOPBACK6),
    ],
    ids=["twice", "no way from ::1"],
)
def test_what_the_reference_accepts_but_cannot_work_is_refused(
    lab: Lab, mappings: list[dict[str, Any]], difference: Difference
) -> None:
    assert go(DUAL, *mappings) == (difference.go == 0)
    with pytest.raises(CNIError):
        portmap_call(lab, "ADD", DUAL, *mappings)
