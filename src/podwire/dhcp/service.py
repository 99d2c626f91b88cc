"""The keeper's socket: where plugins that run as processes of their own reach it."""

from __future__ import annotations

import logging
import os
import select
import socket
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from podwire.dhcp import wire
from podwire.dhcp.errors import DHCPError, KeeperUnavailable
from podwire.dhcp.wire import Keeper
from podwire.kernel.errors import KernelError

_log = logging.getLogger(__name__)

_READ_SECONDS = 5.0
_BACKLOG = 128


def listen(path: str) -> socket.socket:
    """Listen at ``path``, for root only; its directory is made (0700) if missing.

    A socket that nobody listens on any more is replaced. Raises :class:`KeeperUnavailable` if somebody does,
    or if there can be no socket there.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        Path(path).parent.mkdir(0o700, parents=True, exist_ok=True)
        _remove_stale(path)
        earlier = os.umask(0o177)
        try:
            listener.bind(path)
        finally:
            os.umask(earlier)
        listener.listen(_BACKLOG)
    except KeeperUnavailable:
        listener.close()
        raise
    except OSError as error:
        listener.close()
        raise KeeperUnavailable(path, f"cannot listen: {error.strerror or error}") from error
    return listener


def _remove_stale(path: str) -> None:
    if not Path(path).is_socket():
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except OSError:
            Path(path).unlink(missing_ok=True)
            return
    raise KeeperUnavailable(path, "another daemon listens there")


class KeeperService:
    """Serves a keeper's calls on a listening socket: a thread for each connection, and one that accepts."""

    def __init__(self, keeper: Keeper, listener: socket.socket, *, longest: float = float("inf")) -> None:
        """Serve ``keeper``; no acquisition takes more than ``longest`` seconds, whatever is asked for."""
        self._keeper = keeper
        self._listener = listener
        self._longest = longest
        self._thread = threading.Thread(target=self._accept, name="dhcp-socket", daemon=True)
        self._stop = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._closed = False

    def start(self) -> None:
        """Begin to accept connections."""
        self._thread.start()

    def close(self) -> None:
        """Accept no more; calls under way end with their keeper."""
        if self._closed:
            return
        self._closed = True
        os.eventfd_write(self._stop, 1)
        self._thread.join()
        self._listener.close()
        os.close(self._stop)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _accept(self) -> None:
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        poll.register(self._stop, select.POLLIN)
        while True:
            if any(fd == self._stop for fd, _ in poll.poll()):
                return
            try:
                connection, _ = self._listener.accept()
            except OSError as error:  # the caller is gone again, or descriptors have run out
                _log.warning("cannot accept a connection: %s", error.strerror)
                time.sleep(0.05)
                continue
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                if wire.peer_uid(connection) not in (0, os.geteuid()):
                    return
                connection.settimeout(_READ_SECONDS)
                line = wire.read_line(connection)
                connection.sendall(msgspec.json.encode(self._answer(line, connection)) + b"\n")
            except OSError as error:
                _log.info("a caller went away: %s", error.strerror)

    def _answer(self, line: bytes, connection: socket.socket) -> wire.Answer:
        try:
            call = msgspec.json.decode(line, type=wire.Call)
        except (msgspec.DecodeError, ValueError) as error:
            return wire.Answer(wire.Failure("DHCPError", f"not a call of this keeper: {error}"))
        try:
            return self._done(call, connection)
        except (DHCPError, KernelError) as error:
            return wire.Answer(wire.failure_of(error))

    def _done(self, call: wire.Call, connection: socket.socket) -> wire.Answer:
        match call.operation:
            case "acquire":
                deadline = time.monotonic() + min(call.seconds, self._longest)
                lease = self._keeper.acquire(call.key, call.wish, deadline, lambda: _left(connection))
                return wire.Answer(lease=lease)
            case "check":
                return wire.Answer(lease=self._keeper.check(call.key))
            case "release":
                return wire.Answer(released=self._keeper.release(call.key))
            case "gc":
                return wire.Answer(keys=tuple(self._keeper.gc(call.key.network, call.keep)))
            case "status":
                return wire.Answer()


def _left(connection: socket.socket) -> bool:
    """Whether the caller has closed its end."""
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    return bool(poll.poll(0))
