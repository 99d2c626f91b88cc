"""kill -9 of the agent at a chosen step of a request: what it asks of the kernel, the disk or its records."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from podwire.agent.client import Client
from podwire.agent.records import Records
from podwire.ipam.directory import AddressDirectory, Leases
from podwire.kernel import sysctl
from podwire.kernel.netlink import NetlinkSocket
from podwire.kernel.nft import Nft
from podwire.kernel.removal import LinkRemover

# Not Netns.run: how often it is called depends on which thread serves, since each opens a socket of its own.
STEPS: tuple[tuple[Any, str], ...] = (
    (NetlinkSocket, "send"),
    (NetlinkSocket, "request_after"),
    (Nft, "run"),
    (Nft, "write"),
    (sysctl, "write_all"),
    (AddressDirectory, "locked"),
    (Leases, "reserve"),
    (Leases, "release"),
    (LinkRemover, "remove"),
    (Records, "begin"),
    (Records, "complete"),
    (Records, "remove"),
    (Client, "send"),
)


class Death:
    """The process dies at the ``step``-th step of its requests, ``after`` it was done or before.

    Steps count while the file ``armed`` is there. How many there were, with the name of the last, is in
    ``counted``.
    """

    def __init__(self, step: int, counted: Path, *, after: bool = False) -> None:
        self.step = step
        self.after = after
        self.count = 0
        self._counted = counted
        self._armed = counted.with_name("armed")

    def arm(self) -> None:
        """Count from here on, in this process."""
        for owner, name in STEPS:
            setattr(owner, name, self._wrapped(f"{owner.__name__}.{name}", getattr(owner, name)))

    def _wrapped(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **kwargs: Any) -> Any:
            # What the agent does of itself has no number.
            if threading.current_thread().name != "agent" or not self._armed.exists():
                return real(*args, **kwargs)
            self.count += 1
            mine = self.count == self.step
            self._counted.write_text(f"{self.count} {name}")
            if mine and not self.after:
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                return real(*args, **kwargs)
            finally:
                if mine:
                    os.kill(os.getpid(), signal.SIGKILL)

        return step
