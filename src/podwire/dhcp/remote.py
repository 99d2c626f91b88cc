"""The way to a keeper in another process, by its socket."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Collection

import msgspec

from podwire.dhcp import wire
from podwire.dhcp.errors import KeeperUnavailable, LeaseDenied
from podwire.dhcp.lease import Lease
from podwire.dhcp.records import Key, Wish

CALL_SECONDS = 15.0
"""How long any call but an acquisition may take."""
_GRACE_SECONDS = 2.0
_CANCEL_TICK = 0.2


class RemoteKeeper:
    """Calls the keeper that listens at ``path``, each time by a connection of its own."""

    def __init__(self, path: str) -> None:
        self.path = path

    def acquire(
        self, key: Key, wish: Wish, deadline: float, cancelled: Callable[[], bool] | None = None
    ) -> Lease:
        """Get a lease; a connection that is given up has the keeper give back what it asked for."""
        left = max(0.0, deadline - time.monotonic())
        # The keeper's own error, which tells what was answered, comes before ours.
        call = wire.Call("acquire", key, wish, seconds=max(left - _GRACE_SECONDS, left / 2))
        lease = self._call(call, deadline, cancelled).lease
        if lease is None:
            raise KeeperUnavailable(self.path, "the answer to an acquisition has no lease")
        return lease

    def check(self, key: Key) -> Lease:
        """Return the attachment's lease."""
        lease = self._call(wire.Call("check", key)).lease
        if lease is None:
            raise KeeperUnavailable(self.path, "the answer to a check has no lease")
        return lease

    def release(self, key: Key) -> bool:
        """Give the attachment's lease back."""
        return self._call(wire.Call("release", key)).released

    def gc(self, network: str, keep: Collection[tuple[str, str]]) -> list[Key]:
        """Give back a network's leases but those of ``keep``."""
        call = wire.Call("gc", Key(network, "", ""), keep=tuple(keep))
        return list(self._call(call).keys)

    def status(self) -> None:
        """Raise :class:`KeeperUnavailable` if nobody keeps leases there."""
        self._call(wire.Call("status"))

    def _call(
        self, call: wire.Call, deadline: float | None = None, cancelled: Callable[[], bool] | None = None
    ) -> wire.Answer:
        until = time.monotonic() + CALL_SECONDS if deadline is None else deadline
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            try:
                connection.settimeout(max(0.01, until - time.monotonic()))
                connection.connect(self.path)
                uid = wire.peer_uid(connection)
                if uid not in (0, os.geteuid()):
                    raise KeeperUnavailable(self.path, f"user {uid} listens there, and not root")
                connection.sendall(msgspec.json.encode(call) + b"\n")
                line = _answer(connection, until, cancelled)
            except TimeoutError:
                raise LeaseDenied(f"{self.path}: no answer to {call.operation} in time") from None
            except OSError as error:
                raise KeeperUnavailable(self.path, os.strerror(error.errno or 0)) from error
        try:
            answer = msgspec.json.decode(line, type=wire.Answer)
        except msgspec.DecodeError:
            what = "it closed the connection" if not line else "it answers in another protocol"
            raise KeeperUnavailable(self.path, f"no keeper of Podwire's: {what}") from None
        if answer.failure is not None:
            raise wire.error_of(answer.failure)
        return answer


def _answer(connection: socket.socket, until: float, cancelled: Callable[[], bool] | None) -> bytes:
    import select

    poll = select.poll()
    poll.register(connection, select.POLLIN)
    while True:
        left = until - time.monotonic()
        if left <= 0 or (cancelled is not None and cancelled()):
            raise TimeoutError
        if poll.poll(1000 * (min(left, _CANCEL_TICK) if cancelled else left)):
            connection.settimeout(max(0.01, left))
            return wire.read_line(connection)
