"""The host's side of the kernel, opened once per process and shared by all its threads."""

from __future__ import annotations

import os
import threading
import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Self

from podwire.kernel import netns, sysctl
from podwire.kernel.netlink import RouteSocket
from podwire.kernel.netns import Netns

if TYPE_CHECKING:
    from podwire.kernel.nft import Nft
    from podwire.kernel.removal import LinkRemover


class Kernel:
    """The host's namespace and what works on it. Thread-safe; a context manager that closes all of it."""

    def __init__(self, host: Netns) -> None:
        self.netns = host
        self.parameters = sysctl.Kept(host)
        """The sysctls of the host's namespace."""
        self._local = threading.local()
        self._lock = threading.Lock()
        self._sockets: weakref.WeakSet[_ThreadSocket] = weakref.WeakSet()
        self._nft: Nft | None = None
        self._links: LinkRemover | None = None

    @classmethod
    def open(cls) -> Self:
        """Take the calling thread's namespace as the host's."""
        return cls(netns.current())

    @property
    def away(self) -> Netns | None:
        """The host's namespace, or None if the calling thread is in it and need not enter it."""
        here = os.stat("/proc/thread-self/ns/net")  # noqa: PTH116
        return None if (here.st_dev, here.st_ino) == self.netns.identity else self.netns

    def route(self) -> RouteSocket:
        """The calling thread's socket in the host's namespace; it ends with the thread or this object."""
        owned: _ThreadSocket | None = getattr(self._local, "owned", None)
        if owned is None or owned.socket.fileno() < 0:
            owned = _ThreadSocket(RouteSocket.open(self.netns))
            self._local.owned = owned
            with self._lock:
                self._sockets.add(owned)
        return owned.socket

    @property
    def nft(self) -> Nft:
        """The host's nftables, opened on first use."""
        with self._lock:
            if self._nft is None:
                from podwire.kernel.nft import Nft

                self._nft = Nft.open(self.netns)
            return self._nft

    @property
    def links(self) -> LinkRemover:
        """Removes links of the host's namespace, opened on first use."""
        with self._lock:
            if self._links is None:
                from podwire.kernel.removal import LinkRemover

                self._links = LinkRemover(self.netns)
            return self._links

    def close(self) -> None:
        """Wait for the removals that are under way, then close everything; more than once does nothing."""
        with self._lock:
            remover, self._links = self._links, None
            nft, self._nft = self._nft, None
            sockets = list(self._sockets)
        if remover is not None:
            remover.close()
        if nft is not None:
            nft.close()
        for owned in sockets:
            owned.socket.close()
        self.parameters.close()
        self.netns.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _ThreadSocket:
    """Closes a thread's socket when the thread's storage goes."""

    __slots__ = ("__weakref__", "socket")

    def __init__(self, socket: RouteSocket) -> None:
        self.socket = socket

    def __del__(self) -> None:
        self.socket.close()
