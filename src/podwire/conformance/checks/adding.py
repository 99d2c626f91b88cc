"""Section 2, ADD: the result, whether it is true, and interfaces that are there already."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from podwire.cni import convert
from podwire.cni.errors import CNIError
from podwire.conformance import profiles, schema, truth
from podwire.conformance.case import Case
from podwire.conformance.catalogue import AFTER, INSIDE, MAKES, OWN, check
from podwire.conformance.findings import Problem, Skip
from podwire.conformance.pods import Pod
from podwire.conformance.profiles import Kind
from podwire.conformance.schema import values
from podwire.kernel import links, netns
from podwire.kernel.netlink import RouteSocket

SIDE_BY_SIDE = 16


@check("add", "2 ADD", "exit status 0 and a result of the configuration's version (section 5)")
def add(case: Case) -> Iterator[Problem]:
    """An ADD to an empty container."""
    ran = case.add(case.pod())
    if ran.status != 0:
        yield Problem(ran.label, ran.describe())
        return
    for fault in schema.faults(ran.said, case.version):
        yield Problem(ran.label, fault)


def _true(case: Case, pod: Pod, did: str) -> Iterator[Problem]:
    try:
        result = convert.decode_result(pod.result, case.version)
    except CNIError as error:
        raise Skip(f"needs a readable result: {error}") from None
    for fault in truth.faults(result, pod.ifname, pod.netns):
        yield Problem(did, fault)


@check(
    "result-true",
    "5 Success",
    "the interfaces, MACs, MTUs, addresses and routes of the result are in the kernel",
    kinds=INSIDE,
)
def result_true(case: Case) -> Iterator[Problem]:
    """The result beside what the kernel has."""
    case.need("0.3.0", "interfaces")
    yield from _true(case, case.added(), "ADD")


@check("dual-stack", "5 Success", "both families are in the result and in the kernel", kinds=MAKES)
def dual_stack(case: Case) -> Iterator[Problem]:
    """An ADD whose IPAM plugin gives an IPv4 and an IPv6 address."""
    case.need("0.3.0", "interfaces")
    if not case.pool_can_be_narrowed:
        raise Skip("needs host-local as the IPAM plugin")
    pod = case.pod()
    pod = case.added(pod, config=case.config(pod, ipam=profiles.host_local(dual_stack=True)))
    families = {":" in address for address in values(pod.result, "ips", "address")}
    if families != {False, True}:
        yield Problem("ADD with a range of each family", f"ips: {pod.result.get('ips')}")
    yield from _true(case, pod, "ADD with a range of each family")


@check(
    "prev-result-passed",
    "2 ADD",
    "the interfaces and addresses of prevResult are in the result",
    kinds=AFTER,
)
def prev_result_passed(case: Case) -> Iterator[Problem]:
    """What the plugins before it made, in its result."""
    pod = case.added()
    previous: Any = pod.previous
    names = values(pod.result, "interfaces", "name")
    ips = values(pod.result, "ips", "address")
    for key, wanted, found in (
        ("interfaces", [one["name"] for one in previous["interfaces"]], names),
        ("ips", [one["address"] for one in previous["ips"]], ips),
    ):
        lost = [one for one in wanted if one not in found]
        if lost:
            yield Problem("ADD with a prevResult", f"{key} lost: {', '.join(lost)}")


@check("ifname-taken", "2 ADD", "an error, and nothing changed in the container or on the host", kinds=MAKES)
def ifname_taken(case: Case) -> Iterator[Problem]:
    """An ADD for an interface name that the container has already."""
    case.witness()
    pod = case.pod()
    with netns.open(pod.netns) as inside, RouteSocket.open(inside) as sock:
        sock.send(links.veth(pod.ifname, "other0", up=True))
    before = case.state(pod)
    ran = case.run("ADD", pod, label=f"ADD with {pod.ifname} there already")
    yield from case.refused(ran)
    yield from case.settled(before, ran.label, pod, why="left behind")


@check("add-twice", "2 ADD", "an error, and the first attachment as it was", kinds=MAKES)
def add_twice(case: Case) -> Iterator[Problem]:
    """A second ADD for the same container and interface."""
    pod = case.added()
    before = case.state(pod)
    ran = case.run("ADD", pod, label="a second ADD")
    yield from case.refused(ran)
    yield from case.settled(before, ran.label, pod, why="the first attachment was changed")


@check(
    "address-twice",
    "2 ADD",
    "an error or the same address, and one address held",
    kinds=frozenset({Kind.IPAM}),
)
def address_twice(case: Case) -> Iterator[Problem]:
    """A second ADD for the same container and interface of an IPAM plugin."""
    pod = case.added()
    before = case.state()
    ran = case.run("ADD", pod, label="a second ADD")
    if ran.status == 0 and values(ran.said, "ips", "address") != values(pod.result, "ips", "address"):
        yield Problem(ran.label, f"another address: {ran.describe()}")
    yield from case.settled(before, ran.label, why="another address is held")


@check("add-no-netns", "2 ADD", "an error, and nothing left on the host", kinds=OWN)
def add_no_netns(case: Case) -> Iterator[Problem]:
    """An ADD for a namespace that does not exist, or that is a plain file."""
    case.witness()
    pod = case.pod()
    before = case.state(pod)
    for label, path in (
        ("a missing CNI_NETNS", "/run/netns/nosuch"),
        ("a plain file as CNI_NETNS", "/etc/passwd"),
    ):
        ran = case.run("ADD", pod, env={"CNI_NETNS": path}, label=f"ADD with {label}")
        yield from case.refused(ran)
        yield from case.settled(before, ran.label, pod, why="left behind")


@check("side-by-side", "3 Lifecycle", "all succeed, no address twice, and nothing is left after the DELs")
def side_by_side(case: Case) -> Iterator[Problem]:
    """ADDs for 16 containers at once, then their DELs at once."""
    case.need_second()
    case.witness()
    pods = [case.pod() for _ in range(SIDE_BY_SIDE)]
    before = case.state(*pods)
    with ThreadPoolExecutor(SIDE_BY_SIDE) as threads:
        added = list(threads.map(case.add, pods))
        for ran in added:
            yield from case.succeeded(ran, silent=False)
        if case.subject.kind is not Kind.CHAINED:
            held = Counter(address for ran in added for address in values(ran.said, "ips", "address"))
            for address, count in held.items():
                if count > 1 and not address.startswith(("127.", "::1/")):
                    yield Problem(f"{SIDE_BY_SIDE} ADDs at once", f"{address} was given {count} times")
        for ran in threads.map(lambda pod: case.run("DEL", pod), pods):
            yield from case.succeeded(ran)
    yield from case.settled(before, f"{SIDE_BY_SIDE} ADDs and DELs at once", *pods, why="left behind")
