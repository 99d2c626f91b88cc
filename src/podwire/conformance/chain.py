"""A chain of plugins called as a runtime calls it: in order, for DEL backwards (section 3, Lifecycle)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from podwire.conformance.invocation import Ran
from podwire.conformance.subject import Subject

Call = Callable[[Subject, Mapping[str, Any]], Ran]


def run(
    chain: Subject,
    command: str,
    first: Mapping[str, Any],
    call: Call,
    *,
    number: int,
    later: Mapping[str, Mapping[str, Any]],
) -> Ran:
    """Call each plugin of a chain for the attachment of that number; return the last call, or the failed one.

    ``first`` is the first plugin's configuration, with the ``prevResult`` that all get; of an ADD each gets
    the result before it. A failure ends it, but for GC, which all plugins get.
    """
    members = chain.members[::-1] if command == "DEL" else chain.members
    calls: list[Ran] = []
    result: Mapping[str, Any] = {}
    for member in members:
        own = first if member is chain else _configuration(member, first, number, later.get(member.type, {}))
        ran = call(member, {**own, **result})
        calls.append(ran)
        if ran.status != 0 and command != "GC":
            break
        if command == "ADD":
            result = {"prevResult": ran.said}
    return next((ran for ran in calls if ran.status != 0), calls[-1])


def _configuration(
    member: Subject, first: Mapping[str, Any], number: int, changes: Mapping[str, Any]
) -> dict[str, Any]:
    own = {**member.config(number), **changes}
    # What a runtime gives to every plugin of a list.
    shared = ("cniVersion", "name", "prevResult")
    given = {key: value for key, value in first.items() if key in shared or key.startswith("cni.dev/")}
    return {**own, **given}
