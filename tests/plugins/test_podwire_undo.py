"""An ADD of `podwire` that fails at any step leaves nothing; so does a DEL that is tried again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from podwire.cni.errors import CNIError
from tests.plugins import podwire_lab
from tests.plugins.helpers import run
from tests.plugins.podwire_lab import Node
from tests.plugins.undo import add_failing_at_each_step, delete_failing_at_each_step

pytestmark = pytest.mark.kernel

RATE = {
    "ingressRate": 8_000_000,
    "ingressBurst": 8_000_000,
    "egressRate": 8_000_000,
    "egressBurst": 8_000_000,
}
PORTS = [
    {"hostPort": 8080, "containerPort": 80, "protocol": "tcp"},
    {"hostPort": 53, "containerPort": 53, "protocol": "udp", "hostIP": "192.0.2.1"},
]
LOOK = """
ip -br link | cut -d' ' -f1 | sort
ip -n one -br link | cut -d' ' -f1 | sort
ip route show table all | sed 's/ linkdown//'
ip -6 route show table all | sed 's/ linkdown//'
ip neigh show nud permanent
tc qdisc show
cat /proc/sys/net/ipv4/ip_forward /proc/sys/net/ipv6/conf/all/forwarding
"""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with podwire_lab.node(tmp_path) as made:
        yield made


def everything(node: Node) -> list[Any]:
    """All that an ADD may touch, as independent observers see it."""
    seen = run("sh", "-c", LOOK).splitlines()
    elements = {name: sorted(map(str, each)) for name, each in podwire_lab.pod_elements().items()}
    return [line for line in seen if "podwire0" not in line] + [elements, sorted(node.held())]


def full(node: Node, mode: str) -> dict[str, Any]:
    return {**node.network(mode, bandwidth=RATE), "runtimeConfig": {"portMappings": PORTS}}


@pytest.mark.parametrize(("mode", "after"), [("routed", True), ("bridge", False)])
def test_a_failure_at_any_step_leaves_nothing(node: Node, mode: str, after: bool) -> None:
    config = full(node, mode)
    node.pod("one")
    for key in ("ipv4/ip_forward", "ipv6/conf/all/forwarding"):
        Path(f"/proc/sys/net/{key}").write_text("1")  # stays on: the first pod's ADD is for all
    clean = everything(node)
    tried = add_failing_at_each_step(node, config, lambda: everything(node), after=after)
    assert {"NetlinkSocket.send", "NetlinkSocket.open", "Netns.run", "Leases.reserve"} <= set(tried.told)
    assert len(tried.told) > 15
    node.delete(config, "one")
    assert everything(node) == clean


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_steady_node_undoes_as_well(node: Node, after: bool) -> None:
    """With the rules there already, elements are written by messages of our own."""
    config = node.network("routed")
    node.attached(config, "zero")
    node.pod("one")
    tried = add_failing_at_each_step(node, config, lambda: everything(node), after=after, fresh=False)
    assert "Nft.write" in tried.told


@pytest.mark.parametrize(("mode", "after"), [("routed", False), ("bridge", True)])
def test_a_del_that_failed_is_completed_by_the_next(node: Node, mode: str, after: bool) -> None:
    config = full(node, mode)
    node.pod("one")
    tried = delete_failing_at_each_step(node, config, lambda: everything(node), after=after)
    assert len(tried.told) >= 3


def test_a_real_refusal_in_the_middle_leaves_nothing(node: Node) -> None:
    """The kernel refuses a route whose gateway is no station."""
    node.pod("one")
    clean = everything(node)
    with pytest.raises(CNIError, match=r"add route 192\.0\.2\.0/24: "):
        node.add(node.network("routed", routes=[{"dst": "192.0.2.0/24", "gw": "224.0.0.1"}]), "one")
    assert everything(node)[-2:] == clean[-2:]
    assert "eth0" not in run("ip", "-n", "one", "link")
