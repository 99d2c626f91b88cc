"""Section 2, ADD that fails: nothing of it is left, in the container or on the host."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from podwire.conformance import profiles
from podwire.conformance.case import Case
from podwire.conformance.catalogue import AFTER, HOLDS, MAKES, check
from podwire.conformance.findings import Problem, Skip
from podwire.conformance.pods import Pod
from podwire.conformance.profiles import Kind

_NOTHING = "an error, nothing left in the container or on the host, and a DEL that succeeds"


def _fails(case: Case, pod: Pod, config: dict[str, Any], label: str) -> Iterator[Problem]:
    before = case.state(pod)
    ran = case.run("ADD", pod, config=config, label=label)
    yield from case.refused(ran)
    if ran.status == 0:
        case.run("DEL", pod, config=config)
        return
    yield from case.settled(before, ran.label, pod, why="left behind")
    deleted = case.run("DEL", pod, config=config, label=f"DEL after {label}")
    # A plugin may refuse the DEL for what it refused the ADD.
    if deleted.status == 0 or (deleted.error or {}).get("code") != (ran.error or {}).get("code"):
        yield from case.succeeded(deleted)
    yield from case.settled(before, deleted.label, pod, why="left behind")


@check("failed-add-exhausted", "2 ADD", _NOTHING, kinds=frozenset({Kind.MAIN, Kind.IPAM}))
def exhausted(case: Case) -> Iterator[Problem]:
    """An ADD when no address is left."""
    first = case.pod()
    case.added(first, config=case.one_address(first))
    second = case.pod()
    yield from _fails(case, second, case.one_address(second), "ADD with no address left")


@check("failed-add-config", "2 ADD", _NOTHING, kinds=HOLDS)
def broken(case: Case) -> Iterator[Problem]:
    """An ADD with a configuration that cannot be had."""
    if not case.subject.profile.broken:
        raise Skip("no configuration is known that it cannot have")
    case.witness()
    for what, changes in case.subject.profile.broken.items():
        pod = case.pod()
        yield from _fails(case, pod, case.config(pod, **changes), f"ADD with {what}")


@check(
    "failed-add-chain",
    "3 Lifecycle",
    "an error, and nothing left in the container or on the host after the DEL of the chain",
    kinds=MAKES,
)
def chain_broken(case: Case) -> Iterator[Problem]:
    """An ADD of a chain that fails at a later plugin."""
    if not case.subject.then:
        raise Skip("for chains")
    later = [
        (one.type, what, changes) for one in case.subject.then for what, changes in one.profile.broken.items()
    ]
    if not later:
        raise Skip("no configuration is known that one of the later plugins cannot have")
    case.witness()
    for type, what, changes in later:
        pod = case.pod()
        before = case.state(pod)
        ran = case.run("ADD", pod, later={type: changes}, label=f"ADD with {what}")
        yield from case.refused(ran)
        deleted = case.run("DEL", pod, later={type: changes}, label=f"DEL after {ran.label}")
        # A plugin may refuse the DEL for what it refused the ADD; the runtime gives up the chain there.
        if deleted.status == 0 or (deleted.error or {}).get("code") != (ran.error or {}).get("code"):
            yield from case.succeeded(deleted)
        if deleted.status != 0:
            yield from case.succeeded(case.run("DEL", pod, label="DEL with a configuration that can be had"))
        yield from case.settled(before, deleted.label, pod, why="left behind")


@check("failed-add-late", "2 ADD", _NOTHING, kinds=MAKES)
def late(case: Case) -> Iterator[Problem]:
    """An ADD that fails at a route, its last step, when links and addresses are there already."""
    if not case.pool_can_be_narrowed:
        raise Skip("needs host-local as the IPAM plugin, to give a route that cannot be had")
    case.witness()
    pod = case.pod()
    refused = [{"dst": "192.0.2.0/24", "gw": "224.0.0.1"}]
    config = case.config(pod, ipam={**profiles.host_local(), "routes": refused})
    yield from _fails(case, pod, config, "ADD with a route by a multicast address")


@check("failed-add-no-prev-result", "2 ADD", "an error", kinds=AFTER)
def no_prev_result(case: Case) -> Iterator[Problem]:
    """An ADD of a chained plugin without prevResult."""
    pod = case.pod()
    before = case.state(pod)
    ran = case.run("ADD", pod, prev_result=False, label="ADD without prevResult")
    yield from case.refused(ran)
    yield from case.settled(before, ran.label, pod)
