"""What can go wrong with leases: one tree, each error naming the object that it is about."""

from __future__ import annotations

import os


class DHCPError(Exception):
    """Base of this package's errors."""


class MalformedPacket(DHCPError):
    """Bytes that are no DHCPv4 message, or values that do not fit into one."""


class Unusable(DHCPError):
    """A server's answer that no lease can be made of; the text says what is missing."""


class NoLease(DHCPError):
    """The attachment holds no lease."""


class LeaseDenied(DHCPError):
    """No server gave a lease until the deadline; the text tells what was asked and what was answered."""


class ContainerGone(DHCPError):
    """The container's namespace, in which a lease is wanted or held, is not there, or is another one."""


class InterfaceGone(ContainerGone):
    """The namespace is there, but not the interface that a lease is wanted on or held for."""


class KeeperUnavailable(DHCPError):
    """Nobody keeps leases where somebody should; ``place`` is the socket's path or the store's."""

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(f"{place}: {reason}")
        self.place = place
        self.reason = reason


class StoreError(DHCPError):
    """The file of leases cannot be read or written; ``errno`` is 0 where the system did not say why."""

    def __init__(self, operation: str, path: str, reason: str, errno: int = 0) -> None:
        super().__init__(f"{operation} {path}: {reason or os.strerror(errno)}")
        self.operation = operation
        self.path = path
        self.errno = errno
