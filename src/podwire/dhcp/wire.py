"""What a plugin's process and the keeper's say to each other: one JSON line each way on a unix socket.

The same calls as a keeper in process has: `Keeper` is what both are.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Callable, Collection
from typing import Literal, Protocol

import msgspec

from podwire.dhcp import errors
from podwire.dhcp.errors import DHCPError, KeeperUnavailable
from podwire.dhcp.lease import Lease
from podwire.dhcp.records import Key, Wish
from podwire.kernel.errors import KernelError

SOCKET = "/run/cni/dhcp.sock"
"""Where the keeper of a host listens: the reference daemon's place."""
LONGEST_LINE = 1 << 20
_PEER = struct.Struct("=iII")
_ERRORS: dict[str, type[DHCPError]] = {
    kind.__name__: kind
    for kind in (
        errors.MalformedPacket,
        errors.Unusable,
        errors.NoLease,
        errors.LeaseDenied,
        errors.ContainerGone,
        errors.InterfaceGone,
    )
}


class Keeper(Protocol):
    """Who keeps leases: a :class:`~podwire.dhcp.keeper.LeaseKeeper`, or the way to one in another process."""

    def acquire(
        self, key: Key, wish: Wish, deadline: float, cancelled: Callable[[], bool] | None = None
    ) -> Lease:
        """Get a lease, or return the one that the attachment has."""

    def check(self, key: Key) -> Lease:
        """Return the attachment's lease."""

    def release(self, key: Key) -> bool:
        """Give the attachment's lease back."""

    def gc(self, network: str, keep: Collection[tuple[str, str]]) -> list[Key]:
        """Give back a network's leases but those of ``keep``."""


class Call(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request. ``seconds`` is how long an acquisition may take, ``keep`` what a GC leaves alone."""

    operation: Literal["acquire", "check", "release", "gc", "status"]
    key: Key = Key("", "", "")
    wish: Wish = Wish("")
    seconds: float = 0.0
    keep: tuple[tuple[str, str], ...] = ()


class Failure(msgspec.Struct, frozen=True, omit_defaults=True):
    """An error of this package or of the kernel's; ``kind`` is the name of its class."""

    kind: str
    text: str
    errno: int = 0
    subject: str = ""
    detail: str = ""


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer: a failure, or what the call returns."""

    failure: Failure | None = None
    lease: Lease | None = None
    released: bool = False
    keys: tuple[Key, ...] = ()


def failure_of(error: DHCPError | KernelError) -> Failure:
    """Return an error as it goes over the socket."""
    kind = type(error).__name__
    if isinstance(error, KernelError):
        return Failure("KernelError", error.operation, error.errno, error.subject, error.detail)
    if isinstance(error, errors.StoreError):
        return Failure(kind, error.operation, error.errno, error.path, str(error))
    if isinstance(error, KeeperUnavailable):
        return Failure(kind, error.reason, subject=error.place)
    return Failure(kind, str(error))


def error_of(failure: Failure) -> DHCPError | KernelError:
    """Return the error that was told."""
    match failure.kind:
        case "KernelError":
            return KernelError(failure.errno, failure.text, failure.subject, failure.detail)
        case "StoreError":
            return errors.StoreError(failure.text, failure.subject, failure.detail, failure.errno)
        case "KeeperUnavailable":
            return KeeperUnavailable(failure.subject, failure.text)
        case _:
            return _ERRORS.get(failure.kind, DHCPError)(failure.text)


def peer_uid(connection: socket.socket) -> int:
    """The user of the process at the other end (SO_PEERCRED, unix(7))."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    uid: int = _PEER.unpack(credentials)[1]
    return uid


def read_line(connection: socket.socket) -> bytes:
    """Read up to a newline or the end; OSError, also for a line that is too long."""
    line = bytearray()
    while not line.endswith(b"\n"):
        part = connection.recv(65536)
        if not part:
            break
        line += part
        if len(line) > LONGEST_LINE:
            raise OSError(errno.EMSGSIZE, os.strerror(errno.EMSGSIZE))
    return bytes(line)
