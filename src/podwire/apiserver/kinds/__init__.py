"""The kinds that are built in."""

from __future__ import annotations

from podwire.apiserver.kind import Kind


def builtin() -> list[Kind]:
    """All built-in kinds, in the order of discovery."""
    from podwire.apiserver.kinds import core

    return [*core.KINDS]
