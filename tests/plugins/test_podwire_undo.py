"""An ADD of `podwire` that fails at any step leaves nothing; so does a DEL that is tried again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from podwire.cni.errors import CNIError
from podwire.kernel.host import Kernel
from tests.plugins import podwire_lab
from tests.plugins.faults import Faults
from tests.plugins.helpers import run
from tests.plugins.podwire_lab import Node

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
    failed = set()
    whole = node.kernel
    for step in range(1, 120):
        faults = Faults(step, after=after)
        try:
            # Opened anew each time, so that every ADD has the same steps.
            with Kernel.open() as node.kernel, faults.active():
                result = node.add(config, "one")
        except CNIError as error:
            assert "Input/output error" in str(error), f"step {step}: {error}"
            assert everything(node) == clean, f"after {faults.failed}, step {step}"
            failed.add(faults.failed)
        else:  # a step that may fail, such as one more look at a link
            node.kernel = whole
            node.check(config, "one", result)
            if faults.count < step:
                break
            node.delete(config, "one")
            assert everything(node) == clean, f"after the DEL, step {step}"
    assert failed >= {"NetlinkSocket.send", "NetlinkSocket.open", "Netns.run", "Leases.reserve"}
    assert step > 15
    node.delete(config, "one")
    assert everything(node) == clean


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_steady_node_undoes_as_well(node: Node, after: bool) -> None:
    """With the rules there already, elements are written by messages of our own."""
    config = node.network("routed")
    node.attached(config, "zero")
    node.pod("one")
    clean = everything(node)
    failed = set()
    for step in range(1, 60):
        faults = Faults(step, after=after)
        try:
            with faults.active():
                node.add(config, "one")
        except CNIError:
            assert everything(node) == clean, f"after {faults.failed}, step {step}"
            failed.add(faults.failed)
        else:
            if faults.count < step:
                break
            node.delete(config, "one")
    assert "Nft.write" in failed


@pytest.mark.parametrize(("mode", "after"), [("routed", False), ("bridge", True)])
def test_a_del_that_failed_is_completed_by_the_next(node: Node, mode: str, after: bool) -> None:
    config = full(node, mode)
    node.pod("one")
    node.add(config, "one")
    node.delete(config, "one")
    clean = everything(node)
    for step in range(1, 60):
        node.add(config, "one")
        faults = Faults(step, after=after)
        try:
            with faults.active():
                node.delete(config, "one")
        except CNIError as error:
            assert "Input/output error" in str(error)
        node.delete(config, "one")
        assert everything(node) == clean, f"after {faults.failed}, step {step}"
        if faults.count < step:
            break
    assert step > 3


def test_a_real_refusal_in_the_middle_leaves_nothing(node: Node) -> None:
    """The kernel refuses a route whose gateway is no station."""
    node.pod("one")
    clean = everything(node)
    with pytest.raises(CNIError, match=r"add route 192\.0\.2\.0/24: "):
        node.add(node.network("routed", routes=[{"dst": "192.0.2.0/24", "gw": "224.0.0.1"}]), "one")
    assert everything(node)[-2:] == clean[-2:]
    assert "eth0" not in run("ip", "-n", "one", "link")
