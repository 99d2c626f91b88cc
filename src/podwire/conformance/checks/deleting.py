"""Section 2, DEL: all is given back, however often it is called and whatever is gone already."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from podwire.conformance import profiles
from podwire.conformance.case import Case, labelled
from podwire.conformance.catalogue import INSIDE, check
from podwire.conformance.findings import Problem, Severity, Skip
from podwire.conformance.pods import Pod
from podwire.conformance.profiles import Kind

_GONE = "exit status 0, and nothing of the attachment left on the host"


@check("del", "2 DEL", "exit status 0, nothing on stdout, and the container and the host as before the ADD")
def delete(case: Case) -> Iterator[Problem]:
    """ADD and DEL, and DEL once more."""
    case.witness()
    pod = case.pod()
    before = case.state(pod)
    case.added(pod)
    yield from case.succeeded(case.run("DEL", pod))
    left = case.settled(before, "ADD and DEL", pod, why="left behind")
    yield from left
    yield from case.succeeded(case.run("DEL", pod, label="a second DEL"))
    if not left:
        yield from case.settled(before, "a second DEL", pod)


@check("del-netns-gone", "2 DEL", _GONE)
def netns_gone(case: Case) -> Iterator[Problem]:
    """A DEL when the container's namespace is gone."""
    case.witness()
    before = case.state()
    pod = case.added()
    case.remove_netns(pod)
    yield from case.succeeded(case.run("DEL", pod, label="DEL with a CNI_NETNS that is gone"))
    yield from case.settled(before, "ADD, the namespace's end, DEL", why="left behind", fixtures=False)


@check("del-netns-empty", "2 DEL", _GONE)
def netns_empty(case: Case) -> Iterator[Problem]:
    """A DEL without CNI_NETNS, whose namespace ends afterwards."""
    case.witness()
    before = case.state()
    pod = case.added()
    ran = case.run("DEL", pod, without=["CNI_NETNS"], label="DEL without CNI_NETNS")
    yield from case.succeeded(ran)
    ran = case.run("DEL", pod, env={"CNI_NETNS": ""}, label="DEL with an empty CNI_NETNS")
    yield from case.succeeded(ran)
    case.remove_netns(pod)
    did = "ADD, DEL without CNI_NETNS, the namespace's end"
    yield from case.settled(before, did, why="left behind", fixtures=False)


@check("del-netns-is-none", "2 DEL", _GONE, kinds=INSIDE)
def netns_is_none(case: Case) -> Iterator[Problem]:
    """A DEL whose CNI_NETNS is a plain file, as a mount that lost its namespace."""
    case.witness()
    before = case.state()
    pod = case.added()
    case.remove_netns(pod)
    ran = case.run("DEL", pod, env={"CNI_NETNS": "/etc/passwd"}, label="DEL with a plain file as CNI_NETNS")
    yield from case.succeeded(ran)
    did = "ADD, the namespace's end, DEL with a plain file as CNI_NETNS"
    yield from case.settled(before, did, why="left behind", fixtures=False)


@check("del-no-prev-result", "2 DEL", _GONE)
def no_prev_result(case: Case) -> Iterator[Problem]:
    """A DEL without prevResult, as when the runtime's cache is lost."""
    case.witness()
    pod = case.pod()
    before = case.state()
    case.added(pod)
    yield from case.succeeded(case.run("DEL", pod, prev_result=False, label="DEL without prevResult"))
    # The specification asks for what is possible without it.
    left = case.settled(before, "ADD and DEL without prevResult", why="left behind")
    yield from labelled(left, Severity.WEAKNESS)


@check("del-unknown", "2 DEL", "exit status 0, and nothing changed")
def unknown(case: Case) -> Iterator[Problem]:
    """A DEL for a container that never had an ADD."""
    case.witness()
    pod = case.pod()
    pod.previous = None
    before = case.state(pod)
    ran = case.run("DEL", pod, label="DEL of a container without ADD")
    yield from case.succeeded(ran)
    yield from case.settled(before, ran.label, pod)


@check("del-late", "2 DEL", "exit status 0, and the new container as it was")
def late(case: Case) -> Iterator[Problem]:
    """A late second DEL of an old container, whose address a new one has by now."""
    old = case.pod()
    config = case.config(old)
    if case.subject.kind is Kind.CHAINED:
        address = str(old.previous["ips"][0]["address"]) if old.previous else ""
        case.added(old)
        first = case.run("DEL", old)
        case.remove_netns(old)
        new = case.added(case.pod(address=address))
    else:
        if case.pool_can_be_narrowed:
            config = case.one_address(old)
        case.added(old, config=config)
        first = case.run("DEL", old, config=config)
        new = case.added(case.pod(), config=config)
    if first.status != 0:
        raise Skip(f"needs a DEL that succeeds: {first.describe()}")
    before = case.state(new)
    ran = case.run("DEL", old, config=config, label="a late DEL of the old container")
    yield from case.succeeded(ran)
    yield from case.settled(before, ran.label, new, why="the new container was changed")


@check(
    "del-one-of-two",
    "3 Lifecycle",
    "both ADDs succeed, and the DEL of one leaves the other as it was",
    kinds=frozenset({Kind.MAIN, Kind.CHAINED}),
)
def one_of_two(case: Case) -> Iterator[Problem]:
    """A container with two interfaces on the network, and a DEL of one of them."""
    case.need_second()
    pod = case.added(config=_without_default_route(case))
    second = case.second_interface(pod)
    before = case.state(pod)
    config = _without_default_route(case, second)
    ran = case.add(second, config=config, label="ADD of net1 beside eth0")
    if ran.status != 0:
        yield Problem(ran.label, ran.describe(), Severity.WEAKNESS)
        return
    yield from case.succeeded(case.run("DEL", second, config=config, label="DEL of net1 beside eth0"))
    yield from case.settled(before, "ADD and DEL of net1 beside eth0", pod)


def _without_default_route(case: Case, pod: Pod | None = None) -> dict[str, Any]:
    """Return the configuration without the default route, which one interface only can have."""
    if case.pool_can_be_narrowed:
        return case.config(pod, ipam={**profiles.host_local(), "routes": []})
    return case.config(pod)
