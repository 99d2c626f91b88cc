"""DHCP leases kept by the agent itself: its plugins find the keeper in their own process."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from podwire.dhcp import access
from podwire.dhcp.errors import DHCPError
from podwire.dhcp.keeper import LeaseKeeper


@contextmanager
def kept(path: Path, log: logging.Logger) -> Iterator[None]:
    """Keep the leases in the file at ``path`` for the length of a block; they stay for the next agent.

    Where the file cannot be had, the agent serves all else, and dhcp goes by its socket, where another daemon
    may listen.
    """
    keeper = LeaseKeeper(path)
    try:
        keeper.start()
    except DHCPError as error:
        log.error("DHCP leases are not kept here: %s", error)
        yield
        return
    access.host(keeper)
    try:
        yield
    finally:
        access.host(None)
        keeper.close()
