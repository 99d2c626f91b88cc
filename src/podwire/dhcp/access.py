"""Where a plugin finds the keeper of leases: in its own process, or behind a socket."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from podwire.dhcp.wire import Keeper

_hosted: Keeper | None = None


def host(keeper: Keeper | None) -> None:
    """Have all plugins of this process use ``keeper``, or again the one behind the socket (None)."""
    global _hosted
    _hosted = keeper


def hosted() -> Keeper | None:
    """Return the keeper of this process, if it has one."""
    return _hosted


def find(path: str) -> Keeper:
    """Return this process's keeper, else the one that listens at ``path`` (which is not asked yet)."""
    if _hosted is not None:
        return _hosted
    from podwire.dhcp.remote import RemoteKeeper

    return RemoteKeeper(path)
