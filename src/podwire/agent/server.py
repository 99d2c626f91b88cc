"""Threads that accept, read, run and answer: one thread does all of a request, so nothing is handed over.

GET /healthz               200 when requests are served
GET /readyz                200 or 503, with JSON of what is wrong
GET /v1/status             JSON: what runs, what was done, what is wrong
GET /v1/attachments        JSON: what the records hold
POST /v1/gc?dry-run=true   JSON: what no live namespace needs; without dry-run it is removed
POST /cni/v1/<plugin>      a plugin (`podwire.agent.protocol`)
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Mapping

import msgspec

from podwire.agent import caller, http, protocol
from podwire.agent.client import Client
from podwire.agent.counts import SLOW_SECONDS, Counts
from podwire.agent.guard import Guard
from podwire.agent.host import PluginHost
from podwire.agent.http import Asked, Refused
from podwire.kernel import netns

THREADS_MAX = 128
"""Requests that are served side by side, beside those that were given up."""
HANGING_MAX = 64
"""Threads that may hang in a plugin; with more the agent is not well (`/healthz`)."""
_IDLE_MAX = 16
_GIVE_UP_SHARE = 0.95

Page = Callable[[Mapping[str, str]], tuple[int, object]]
"""Answers with a status and what is to be shown as JSON, given the words after the question mark."""


class Server:
    """Serves a plugin host on a listening socket."""

    def __init__(
        self, listener: socket.socket, host: PluginHost, counts: Counts, pages: Mapping[tuple[str, str], Page]
    ) -> None:
        self._listener = listener
        self._host = host
        self._counts = counts
        self._pages = pages
        self.guard = Guard(counts)
        self._lock = threading.Lock()
        self._ended = threading.Condition(self._lock)
        self._threads = 0
        self._idle = 0
        self._closing = False
        self._allowed = {0, os.geteuid()}

    def start(self) -> None:
        """Begin to accept."""
        with self._lock:
            self._another()

    def stop(self, seconds: float) -> int:
        """Accept no more, let what runs end within some seconds, and return how many requests did not."""
        end = time.monotonic() + seconds
        with self._lock:
            self._closing = True
            self._listener.shutdown(socket.SHUT_RDWR)
            while self._threads and (left := end - time.monotonic()) > 0:
                self._ended.wait(left)
            unfinished = self._threads
        self._listener.close()
        self.guard.close()
        return unfinished

    def _another(self) -> None:
        """Start a thread that accepts; with the lock held."""
        try:
            threading.Thread(target=self._serve, name="agent", daemon=True).start()
        except RuntimeError as error:
            self._counts.log.error("no further thread: %s", error)
            return
        self._threads += 1
        self._idle += 1

    def _serve(self) -> None:
        with netns.settled():
            self._serve_at_home()

    def _serve_at_home(self) -> None:
        try:
            while (connection := self._accept()) is not None:
                with self._lock:
                    self._idle -= 1
                    if not self._idle and self._threads < THREADS_MAX + self.guard.hanging():
                        self._another()
                try:
                    self._handle(connection)
                except Exception:
                    self._counts.log.exception("a fault in podwire")
                finally:
                    connection.close()
                with self._lock:
                    if self._idle >= _IDLE_MAX:
                        return
                    self._idle += 1
        finally:
            with self._lock:
                self._threads -= 1
                self._ended.notify_all()

    def _accept(self) -> socket.socket | None:
        """Wait for a connection; None at the end."""
        while True:
            try:
                return self._listener.accept()[0]
            except OSError as error:
                if self._closing:
                    return None
                self._counts.log.error("accept: %s", error)
                time.sleep(0.1)  # no descriptors left: some request's end frees one

    def _handle(self, connection: socket.socket) -> None:
        peer = caller.peer_of(connection)
        try:
            if peer.uid not in self._allowed:
                raise Refused(403, f"user {peer.uid} may not ask: only root may")
            http.set_timeouts(connection)
            asked = http.receive(connection)
            if asked is None:
                return
            if asked.head.target.startswith(protocol.PREFIX):
                self._run_plugin(protocol.read(asked), Client(connection, peer))
            else:
                connection.sendall(self._page(asked))
        except Refused as error:
            self._counts.refused += 1
            self._counts.log.warning("refused a request of process %d: %s", peer.pid, error.text)
            _say(connection, http.said(error.status, error.text))
        except (ConnectionError, BlockingIOError):
            self._counts.abandoned += 1

    def _run_plugin(self, call: protocol.Call, client: Client) -> None:
        client.give_up_at = client.began + call.timeout * _GIVE_UP_SHARE
        client.subject = _subject(call)
        client.before_answer = self.guard.answers
        self.guard.watch(client)
        try:
            self._host.run(call, client)
        finally:
            self.guard.forget(client)
            self._tell(client, time.monotonic() - client.began)

    def _tell(self, client: Client, seconds: float) -> None:
        counts, reply = self._counts, client.reply
        counts.served += 1
        outcome = "no answer" if reply is None else "done"
        if reply is not None and reply.status:
            counts.failed += 1
            outcome = f"failed: {reply.error}"
        if client.given_up:
            outcome += ", after it was given up"
        elif client.gone:
            outcome += ", the caller had gone"
        loud = outcome != "done" or seconds >= SLOW_SECONDS
        if loud or counts.log.isEnabledFor(10):
            counts.log.log(30 if loud else 10, "%s: %.1f ms: %s", client.subject, seconds * 1000, outcome)

    def _page(self, asked: Asked) -> bytes:
        path, _, question = asked.head.target.partition("?")
        page = self._pages.get((asked.head.method, path))
        if page is None:
            known = any(path == other for _, other in self._pages)
            raise Refused(405 if known else 404, f"{asked.head.method} {path}: there is no such page")
        words = dict(word.partition("=")[::2] for word in question.split("&") if word)
        status, body = page(words)
        if isinstance(body, str):
            return http.said(status, body)
        return http.answer(status, msgspec.json.encode(body) + b"\n", {"Content-Type": "application/json"})


def _subject(call: protocol.Call) -> str:
    environ = call.environ
    words = [environ.get("CNI_COMMAND", "about"), call.plugin]
    for name, key in (("container", "CNI_CONTAINERID"), ("ifname", "CNI_IFNAME")):
        if environ.get(key):
            words += [name, environ[key]]
    return " ".join(words)


def _say(connection: socket.socket, data: bytes) -> None:
    try:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        # What is still unread when a socket closes takes the answer with it.
        while connection.recv(65536):
            pass
    except OSError:
        pass
