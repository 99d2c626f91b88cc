"""One caller's connection: the answer is given once, by whoever is first, and it shows when it was taken."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable

from podwire.agent import caller, http, protocol
from podwire.agent.caller import Peer
from podwire.agent.turns import Waiter
from podwire.cni.process import Reply

_TAKEN_SECONDS = 1.0
"""How long a caller may take from the answer to its leaving; whoever stays longer has it."""


class Client:
    """A connection whose request was read.

    ``give_up_at`` (time.monotonic) is when its caller must have an answer, whatever its plugin does.
    """

    def __init__(self, connection: socket.socket, peer: Peer) -> None:
        self.connection = connection
        self.before_answer: Callable[[Client], None] = lambda _client: None
        """Called when its plugin has an answer, before that is given: nobody needs to watch it then."""
        self.peer = peer
        self.pid = peer.pid
        self.view = caller.mount_namespace(peer.pid) if peer.pid else 0
        self.cancel = threading.Event()
        self.waiter = Waiter()
        self.began = time.monotonic()
        self.give_up_at = float("inf")
        self.subject = ""
        self.gone = False
        self.given_up = False
        self.late = False
        self.watched = False
        self.reply: Reply | None = None
        self._claim = threading.Lock()

    @property
    def answered(self) -> bool:
        """Whether an answer was begun."""
        return self._claim.locked()

    def leave(self) -> None:
        """Note that the caller has gone: its request is cancelled, or leaves its queue."""
        self.gone = True
        self.cancel.set()
        self.waiter.abandon()

    def deliver(self, reply: Reply) -> bool:
        """Give the answer; False if the caller got another, or has gone, from an ADD also without reading."""
        self.reply = reply
        self.before_answer(self)
        if self.gone or not self.send(protocol.answer(reply)):
            return False
        return reply.result is None or self._taken()

    def give_up(self, reply: Reply) -> bool:
        """Answer from another thread, in the place of one that does not return; False if that was quicker."""
        if not self.send(protocol.answer(reply)):
            return False
        self.given_up = True
        self.cancel.set()
        return True

    def send(self, data: bytes) -> bool:
        """Send an answer, unless one was begun; tell whether the caller's socket took it."""
        if not self._claim.acquire(blocking=False):
            return False
        try:
            self.connection.sendall(data)
            self.connection.shutdown(socket.SHUT_WR)
        except OSError:
            return False
        return True

    def _taken(self) -> bool:
        """Wait until the caller closes its end. The kernel tells if it did so without having read all."""
        http.set_timeouts(self.connection, _TAKEN_SECONDS)
        try:
            while self.connection.recv(4096):
                pass
        except ConnectionError:
            return False
        except OSError:
            return True
        return True
