from __future__ import annotations

from typing import Any

import pytest

from podwire.kube.objects import Pod
from podwire.node.admission import HostPorts, claims
from podwire.node.errors import PodRefused
from tests.node.helpers import container, pod


def with_port(name: str, port: int, ip: str = "", protocol: str = "TCP", **spec: Any) -> Pod:
    entry = {"containerPort": 80, "hostPort": port, "hostIP": ip, "protocol": protocol}
    return pod(name, containers=[container("main", ports=[entry])], **spec)


@pytest.mark.parametrize(
    ("one", "two", "clash"),
    [
        ((8080, ""), (8080, ""), True),
        ((8080, ""), (8081, ""), False),
        ((8080, "10.1.1.1"), (8080, "10.1.1.2"), False),
        ((8080, "10.1.1.1"), (8080, "10.1.1.1"), True),
        ((8080, "10.1.1.1"), (8080, "0.0.0.0"), True),
        ((8080, "10.1.1.1"), (8080, ""), True),
        ((8080, "10.1.1.1"), (8080, "::"), False),
        ((8080, "fd00::1"), (8080, "::"), True),
        ((8080, "fd00::1"), (8080, "0.0.0.0"), False),
        ((8080, "0.0.0.0"), (8080, "::"), False),
        ((2049, "", "TCP"), (2049, "", "UDP"), False),
        ((2049, "", "SCTP"), (2049, "", "SCTP"), True),
    ],
)
def test_g10_conflict_only_on_the_same_address_port_and_protocol(one: Any, two: Any, clash: bool) -> None:
    ports = HostPorts(lambda _uid: None)
    assert ports.take(with_port("one", *one)) is None
    conflict = ports.take(with_port("two", *two))
    assert (conflict is not None) == clash
    assert conflict is None or conflict.holder == "default/one"


def test_g12_the_same_port_twice_in_one_pod_is_refused() -> None:
    port = {"containerPort": 80, "hostPort": 8077}
    twice = pod(containers=[container("a", ports=[port]), container("b", ports=[port])])
    with pytest.raises(PodRefused) as refused:
        claims(twice)
    assert refused.value.message == (
        "spec.containers[1].ports[0].hostPort: TCP port 8077 of all addresses is already asked for by "
        "spec.containers[0].ports[0].hostPort"
    )


def test_g09_one_pod_may_have_a_port_on_all_addresses_and_on_one() -> None:
    ports = [
        {"containerPort": 123, "hostPort": 987},
        {"containerPort": 456, "hostPort": 987, "hostIP": "1.2.3.4"},
    ]
    assert len(claims(pod(containers=[container("a", ports=ports)]))) == 2


def test_the_waiting_pod_is_told_when_the_holder_goes() -> None:
    told: list[str] = []
    ports = HostPorts(told.append)
    first, second = with_port("first", 80), with_port("second", 80)
    ports.take(first)
    conflict = ports.take(second)
    assert conflict is not None
    assert conflict.message == (
        "node(s) didn't have free ports for the requested pod ports: "
        "spec.containers[0].ports[0].hostPort: TCP port 80 of all addresses is held by pod default/first"
    )
    ports.release("uid-second")
    ports.release("uid-nobody")
    ports.take(second)
    ports.release("uid-first")
    assert told == ["uid-second"]
    assert ports.take(second) is None
    assert ports.take(first) is not None


def test_a_pod_that_runs_already_keeps_its_port_and_taking_again_is_free() -> None:
    ports = HostPorts(lambda _uid: None)
    new, running = with_port("new", 80), with_port("running", 80)
    assert ports.take(new) is None
    assert ports.take(running, running=True) is None
    assert ports.take(running) is None
    ports.release("uid-new")
    assert ports.take(new) is not None


def test_an_edited_pod_gives_back_what_it_no_longer_asks_for() -> None:
    told: list[str] = []
    ports = HostPorts(told.append)
    ports.take(with_port("one", 80))
    assert ports.take(with_port("two", 80)) is not None
    assert ports.take(with_port("one", 81)) is None
    assert told == ["uid-two"]
    assert ports.take(with_port("two", 80)) is None


def test_host_network_ports_are_the_hosts() -> None:
    ports = HostPorts(lambda _uid: None)
    entry = {"containerPort": 9100}
    assert ports.take(pod("a", hostNetwork=True, containers=[container("m", ports=[entry])])) is None
    assert ports.take(with_port("b", 9100)) is not None
