"""What is asked for, and what is remembered, of one attachment's lease."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from podwire.dhcp.lease import Lease


class Key(NamedTuple):
    """Which attachment a lease is for: a container's interface on a network."""

    network: str
    container_id: str
    ifname: str

    def __str__(self) -> str:
        return f"{self.container_id} ({self.ifname}) on network {self.network}"


class Wish(msgspec.Struct, frozen=True):
    """What an ADD asks for: where the interface is, and the options of the request.

    ``provide`` are raw options that go along, by number; ``parameters`` the numbers of those asked for.
    ``metric`` is the one of the lease's routes (0: none); ``no_gateway`` leaves out the router and the
    default routes.
    """

    netns: str
    provide: dict[int, bytes] = {}
    parameters: tuple[int, ...] = ()
    metric: int = 0
    no_gateway: bool = False


class Record(msgspec.Struct, frozen=True):
    """What is remembered of an attachment.

    ``netns_id`` (device, inode), ``mac`` and ``boot`` (the kernel's boot ID) tell whether it is still the
    same interface. ``station`` is the MAC by which the server is reached. ``pending`` is whether the lease
    was only asked for, and nobody was told of it; ``lost`` whether it ended, so that its address is not in
    use, ``foreign`` whether the namespace's path is one of another mount namespace than the keeper's.
    """

    wish: Wish
    netns_id: tuple[int, int]
    mac: bytes
    boot: str
    lease: Lease
    station: bytes
    pending: bool = False
    lost: bool = False
    foreign: bool = False
