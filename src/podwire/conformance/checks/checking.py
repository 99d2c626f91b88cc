"""Section 2, CHECK: success on what is whole, an error for what is not."""

from __future__ import annotations

from collections.abc import Iterator

from podwire.cni import versions
from podwire.conformance.case import Case, labelled
from podwire.conformance.catalogue import check
from podwire.conformance.findings import Problem, Severity, Skip
from podwire.conformance.profiles import Kind


@check("check", "2 CHECK", "exit status 0 and nothing on stdout")
def check_after_add(case: Case) -> Iterator[Problem]:
    """A CHECK after the ADD, and one more after another container came."""
    case.need(versions.CHECK_SINCE, "CHECK")
    pod = case.added()
    yield from case.succeeded(case.run("CHECK", pod))
    if not case.subject.single:
        case.added()
        yield from case.succeeded(case.run("CHECK", pod, label="CHECK after the ADD of another container"))


@check("check-no-prev-result", "2 CHECK", "an error")
def no_prev_result(case: Case) -> Iterator[Problem]:
    """A CHECK without prevResult."""
    case.need(versions.CHECK_SINCE, "CHECK")
    pod = case.added()
    ran = case.run("CHECK", pod, prev_result=False, label="CHECK without prevResult")
    problems = case.refused(ran)
    # An IPAM plugin can tell from its own records, and loopback from lo.
    mild = case.subject.kind in {Kind.IPAM, Kind.LOOPBACK}
    yield from labelled(problems, Severity.WEAKNESS) if mild else problems


@check("check-damage", "2 CHECK", "an error")
def damage(case: Case) -> Iterator[Problem]:
    """A CHECK after somebody took away what the ADD made."""
    case.need(versions.CHECK_SINCE, "CHECK")
    tampers = [pair for one in case.subject.members for pair in one.profile.tamper.items()]
    if not tampers:
        raise Skip("nothing of what it makes is known, to take it away")
    for what, tamper in tampers:
        pod = case.added()
        tamper(pod)
        yield from case.refused(case.run("CHECK", pod, label=f"CHECK after {what}"))
        case.run("DEL", pod)
