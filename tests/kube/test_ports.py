from __future__ import annotations

import itertools

import msgspec
import pytest

from podwire.kube.objects import Pod
from podwire.kube.ports import HostPort, host_ports
from tests.kube.helpers import pod, spec

ANY, V4, V6, ONE, OTHER, ONE6 = "", "0.0.0.0", "::", "10.0.0.1", "10.0.0.2", "fd00::1"
SAME = {(ANY, V4), (ANY, V6)} | {(ip, ip) for ip in (ANY, V4, V6, ONE, OTHER, ONE6)}
OVERLAP = SAME | {(ANY, ONE), (ANY, OTHER), (ANY, ONE6), (V4, ONE), (V4, OTHER), (V6, ONE6)}


@pytest.mark.parametrize(
    ("a", "b"), list(itertools.combinations_with_replacement((ANY, V4, V6, ONE, OTHER, ONE6), 2))
)
def test_which_addresses_are_the_same_and_which_overlap(a: str, b: str) -> None:
    for first, second in ((a, b), (b, a)):
        one, two = HostPort(first, 80, "TCP"), HostPort(second, 80, "TCP")
        assert one.same(two) == ((a, b) in SAME)
        assert one.overlaps(two) == ((a, b) in OVERLAP)


@pytest.mark.parametrize("other", [HostPort("", 81, "TCP"), HostPort("", 80, "UDP")])
def test_another_port_or_protocol_never_conflicts(other: HostPort) -> None:
    one = HostPort("", 80, "TCP")
    assert not one.same(other)
    assert not one.overlaps(other)


def named(name: str, ports: str, extra: str = "") -> Pod:
    made = pod(spec(f"ports: [{ports}]", extra))
    return msgspec.structs.replace(made, metadata=msgspec.structs.replace(made.metadata, name=name, uid=name))


def taken(pod: Pod, other: Pod) -> list[HostPort]:
    """The host ports of a pod that the other one has."""
    return [mine for mine in host_ports(pod) if any(mine.overlaps(theirs) for theirs in host_ports(other))]


def test_G10_a_port_on_all_addresses_is_taken_for_every_address() -> None:
    first = named("a", "{containerPort: 1, hostPort: 8080, hostIP: 0.0.0.0}")
    wanted = named(
        "b", "{containerPort: 1, hostPort: 8080, hostIP: 10.1.1.1}, {containerPort: 2, hostPort: 1}"
    )
    (port,) = taken(wanted, first)
    assert (port.ip, port.port) == ("10.1.1.1", 8080)
    assert port.field == "spec.containers[0].ports[0].hostPort"


def test_G10_other_addresses_take_nothing() -> None:
    first = named("a", "{containerPort: 1, hostPort: 8080, hostIP: 10.1.1.1}")
    second = named("b", "{containerPort: 1, hostPort: 8080, hostIP: 10.1.1.2}")
    assert taken(second, first) == []


def test_a_host_network_pod_takes_its_container_ports() -> None:
    first = named("a", "{containerPort: 8080}", "hostNetwork: true")
    second = named("b", "{containerPort: 1, hostPort: 8080}")
    assert [port.port for port in taken(second, first)] == [8080]


def test_init_containers_that_end_take_no_host_ports() -> None:
    port = "ports: [{containerPort: 1, hostPort: 8080}]"
    ends = pod(spec("", f"initContainers: [{{name: i, {port}}}]"))
    stays = pod(spec("", f"initContainers: [{{name: i, restartPolicy: Always, {port}}}]"))
    assert host_ports(ends) == []
    assert [p.field for p in host_ports(stays)] == ["spec.initContainers[0].ports[0].hostPort"]
