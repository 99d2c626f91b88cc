"""Section 2, GC and STATUS (1.1.0)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from podwire.cni import versions
from podwire.conformance.case import Case
from podwire.conformance.catalogue import HOLDS, check
from podwire.conformance.findings import Problem, Severity, Skip
from podwire.conformance.invocation import Ran
from podwire.conformance.pods import Pod
from podwire.conformance.profiles import Kind

_VALID = "cni.dev/valid-attachments"
_OTHER = "cni.dev/attachments"


def _collect(case: Case, keys: Sequence[str], valid: Sequence[Pod], label: str) -> Ran:
    listed = [{"containerID": pod.container_id, "ifname": pod.ifname} for pod in valid]
    changes: dict[str, Any] = dict.fromkeys(keys, listed)
    return case.run("GC", config=case.config(None, **changes), label=label)


@check(
    "gc-there",
    "2 GC",
    "supportedVersions has 1.1.0",
    severity=Severity.WEAKNESS,
    kinds=HOLDS,
)
def there(case: Case) -> Iterator[Problem]:
    """Whether there is a GC at all."""
    if versions.GC_SINCE not in case.subject.versions:
        yield Problem(
            "VERSION",
            f"it speaks {case.version} at most: nothing frees what lost containers hold, no STATUS",
        )


@check(
    "gc", "2 GC", "what no valid attachment holds is gone, what a valid one holds is as it was", kinds=HOLDS
)
def collect(case: Case) -> Iterator[Problem]:
    """GC after one container was lost without a DEL."""
    case.need(versions.GC_SINCE, "GC")
    case.need_second()
    if case.subject.type == "static":
        raise Skip("it holds nothing")
    kept = case.added()
    before = case.state(kept)
    lost = case.added()
    case.remove_netns(lost)
    ran = _collect(case, [_VALID], [kept], "GC with one valid attachment of two")
    yield from case.succeeded(ran)
    yield from case.settled(before, ran.label, kept, why="not as without the lost container", fixtures=False)


@check("gc-keeps", "2 GC", "nothing changed", kinds=HOLDS)
def keeps(case: Case) -> Iterator[Problem]:
    """GC when all attachments are valid, told by either key or by both."""
    case.need(versions.GC_SINCE, "GC")
    pods = [case.added()] if case.subject.single else [case.added(), case.added()]
    before = case.state(*pods)
    for label, keys in (
        ("GC with all attachments valid", [_VALID]),
        ("GC with both keys, as libcni has them", [_VALID, _OTHER]),
    ):
        ran = _collect(case, keys, pods, label)
        yield from case.succeeded(ran)
        yield from case.settled(before, ran.label, *pods)
    for pod in pods:
        yield from case.succeeded(case.run("CHECK", pod, label="CHECK after GC"))


@check("gc-no-list", "2 GC", "nothing is deleted", severity=Severity.WEAKNESS, kinds=HOLDS)
def no_list(case: Case) -> Iterator[Problem]:
    """GC without a list of valid attachments, or with the one of the name that was once in use only."""
    case.need(versions.GC_SINCE, "GC")
    pod = case.added()
    before = case.state(pod)
    ran = _collect(case, [], [], "GC with neither key")
    if ran.status != 0:
        yield from case.refused(ran)
    yield from case.settled(before, ran.label, pod)
    ran = _collect(case, [_OTHER], [pod], f"GC with {_OTHER} only")
    yield from case.settled(before, ran.label, pod)


@check("status", "2 STATUS", "exit status 0 and nothing on stdout")
def status(case: Case) -> Iterator[Problem]:
    """STATUS of a plugin that could serve an ADD."""
    case.need(versions.STATUS_SINCE, "STATUS")
    case.pod()  # what its ADD would use up is there
    yield from case.succeeded(case.run("STATUS", config=case.config()))


@check("status-exhausted", "2 STATUS", "error code 50", kinds=frozenset({Kind.MAIN, Kind.IPAM}))
def status_exhausted(case: Case) -> Iterator[Problem]:
    """STATUS when no address is left."""
    case.need(versions.STATUS_SINCE, "STATUS")
    pod = case.pod()
    config = case.one_address(pod)
    case.added(pod, config=config)
    yield from case.refused(case.run("STATUS", config=config, label="STATUS with no address left"), 50)


@check("status-master", "2 STATUS", "error code 50", severity=Severity.WEAKNESS, kinds=frozenset({Kind.MAIN}))
def status_master(case: Case) -> Iterator[Problem]:
    """STATUS when what the configuration names does not exist."""
    case.need(versions.STATUS_SINCE, "STATUS")
    broken = case.subject.profile.broken
    if not broken:
        raise Skip("no configuration is known that it cannot have")
    for what, changes in broken.items():
        config = case.config(None, **changes)
        yield from case.refused(case.run("STATUS", config=config, label=f"STATUS with {what}"), 50)
