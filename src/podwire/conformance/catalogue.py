"""The table of checks: each one function of a `Case` that yields the problems it found.

To add one, write it in the module of ``checks`` that it belongs to: its docstring's first line is its title,
and the decorator says the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module

import msgspec

from podwire.conformance.case import Case
from podwire.conformance.findings import Problem, Severity
from podwire.conformance.profiles import Kind

Run = Callable[[Case], Iterable[Problem]]

ALL = frozenset(Kind)
MAKES = frozenset({Kind.MAIN})
AFTER = frozenset({Kind.CHAINED})
INSIDE = frozenset({Kind.MAIN, Kind.LOOPBACK, Kind.CHAINED})
"""Plugins that work in the container's namespace."""
OWN = frozenset({Kind.MAIN, Kind.LOOPBACK})
"""Plugins that need the container's namespace to do anything."""
HOLDS = frozenset({Kind.MAIN, Kind.IPAM, Kind.CHAINED})
"""Plugins that hold something for an attachment, outside of the container."""

_MODULES = ("parameters", "versions", "adding", "checking", "deleting", "failing", "delegating", "collecting")
_OF_ONE = frozenset({"parameters", "versions", "delegating"})
"""Modules whose checks look at calls of one plugin, to which a chain adds nothing."""

_WHY_NOT = {
    MAKES: "for plugins that make the container's interface",
    AFTER: "for chained plugins",
    OWN: "for plugins that set an interface of the container up",
    INSIDE: "for plugins that work in the container's namespace",
    HOLDS: "for plugins that hold something on the host",
}


class Check(msgspec.Struct, frozen=True):
    """One row of the table. ``section`` is the specification's, ``severity`` that of its problems."""

    id: str
    section: str
    severity: Severity
    title: str
    expected: str
    kinds: frozenset[Kind]
    run: Run

    def not_for(self, kind: Kind, *, chain: bool = False) -> str:
        """Say why the check is not for plugins of that kind, or for chains that they begin; empty: it is."""
        if chain and self.run.__module__.rpartition(".")[2] in _OF_ONE:
            return "looks at one plugin's calls: for plugins alone"
        if kind in self.kinds:
            return ""
        return _WHY_NOT.get(self.kinds, f"for plugins of the kind {', '.join(sorted(self.kinds))}")


_table: dict[str, Check] = {}


def check(
    id: str,
    section: str,
    expected: str,
    *,
    severity: Severity = Severity.VIOLATION,
    kinds: frozenset[Kind] = ALL,
) -> Callable[[Run], Run]:
    """Put a function into the table."""

    def register(run: Run) -> Run:
        title = (run.__doc__ or "").strip().splitlines()[0].rstrip(".")
        _table[id] = Check(id, section, severity, title, expected, kinds, run)
        return run

    return register


def checks() -> tuple[Check, ...]:
    """Return all checks in the order of the modules."""
    for module in _MODULES:
        import_module(f"podwire.conformance.checks.{module}")
    return tuple(_table.values())
