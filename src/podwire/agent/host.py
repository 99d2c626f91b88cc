"""Runs plugins for callers: in turn, recorded, and undone where nobody learns that it was done."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import msgspec

from podwire.agent import caller, protocol
from podwire.agent.counts import Counts
from podwire.agent.protocol import Call
from podwire.agent.records import Record, Records, RecordsBroken
from podwire.agent.turns import Abandoned, Turns, Waiter
from podwire.cni import process
from podwire.cni.errors import CNIError, InvalidNetns, PluginMissing
from podwire.cni.process import Invocation, Reply
from podwire.cni.request import CLEANUP_SECONDS, Plugin
from podwire.kernel import netns
from podwire.kernel.errors import KernelError, NetnsMissing, NotANetns
from podwire.kernel.host import Kernel

_SHARE = 0.9
"""The part of the caller's time that a plugin gets: the rest is for telling that it did not suffice."""

Load = Callable[[str], "Plugin[Any, Any] | None"]


class Caller(Protocol):
    """Who waits for an answer."""

    cancel: threading.Event
    waiter: Waiter
    pid: int
    view: int
    subject: str

    def deliver(self, reply: Reply) -> bool:
        """Give the answer; False if nobody takes it (any more)."""


class PluginHost:
    """The plugins of one node on one kernel. Thread-safe."""

    def __init__(self, kernel: Kernel, load: Load, records: Records, counts: Counts) -> None:
        self.kernel = kernel
        self.records = records
        self.turns = Turns()
        self.counts = counts
        self.before_add: Callable[[str], None] = lambda _container_id: None
        """Called with the container ID, in its turn, before each of its ADDs."""
        self._load = load
        self._view = caller.mount_namespace()
        self._opened = nullcontext(kernel)

    def plugin(self, type: str) -> Plugin[Any, Any] | None:
        """Return one of our plugins."""
        return self._load(type)

    def run(self, call: Call, client: Caller) -> None:
        """Run a plugin as its caller asked, and deliver the answer."""
        try:
            plugin = self._load(call.plugin)
        except ImportError as error:
            client.deliver(process.refusal(error))
            return
        if plugin is None:
            path = tuple(part for part in call.environ.get("CNI_PATH", "").split(":") if part)
            client.deliver(process.refusal(PluginMissing([call.plugin], path)))
            return
        read = process.prepare(
            plugin,
            call.environ,
            call.stdin,
            registry=self._load,
            deadline=time.monotonic() + call.timeout * _SHARE,
            cancel=client.cancel,
            own_netns=self.kernel.netns.identity,
        )
        if isinstance(read, Reply):
            client.deliver(read)
            return
        try:
            self._in_turn(call, read, client)
        except Abandoned:
            self.counts.abandoned += 1
        except CNIError as error:
            client.deliver(process.refusal(error, read.request.cni_version))
        except Exception as error:
            self.counts.log.exception("a fault in podwire")
            client.deliver(process.refusal(error, read.request.cni_version))

    def _in_turn(self, call: Call, invocation: Invocation[Any, Any], client: Caller) -> None:
        request = invocation.request
        subject = client.subject = subject_of(invocation)
        if request.command == "STATUS":
            client.deliver(self.perform(invocation))
        elif request.command == "GC":
            with self.turns.network(request.name, subject, request.deadline, client.waiter):
                client.deliver(self.perform(invocation))
        else:
            with (
                self.turns.container(
                    request.container_id, request.name, subject, request.deadline, client.waiter
                ),
                caller.root_of(client.view, client.pid, self._view) as root,
                netns.seen_from(root),
            ):
                if root is not None and request.netns:
                    self._not_own(request.netns)
                if request.command == "ADD":
                    self._add(call, invocation, client)
                elif request.command == "DEL":
                    self._delete(invocation, client)
                else:
                    client.deliver(self.perform(invocation))

    def _not_own(self, path: str) -> None:
        try:
            with netns.open(path) as found:
                own = found.identity == self.kernel.netns.identity
        except KernelError:
            return
        if own:
            raise InvalidNetns(
                "plugin's netns and netns from CNI_NETNS should not be the same", f"CNI_NETNS={path}"
            )

    def _add(self, call: Call, invocation: Invocation[Any, Any], client: Caller) -> None:
        request = invocation.request
        self.before_add(request.container_id)
        environment = protocol.format_environment(call.environ)
        number = self.records.begin(request, client.view, environment, call.stdin)
        reply = self.perform(invocation)
        if reply.status:
            self._forget(number)
            client.deliver(reply)
            return
        try:
            self.records.complete(number, reply.stdout)
        except RecordsBroken as error:
            self.undo(invocation, reply, number)
            client.deliver(process.refusal(error, request.cni_version))
            return
        if not client.deliver(reply):
            self.undo(invocation, reply, number)

    def _delete(self, invocation: Invocation[Any, Any], client: Caller) -> None:
        # Nobody's leaving stops it: what is to go had better go.
        request = msgspec.structs.replace(invocation.request, cancel=None)
        reply = self.perform(Invocation(invocation.plugin, request))
        if not reply.status:
            try:
                self.records.remove(request)
            except RecordsBroken as error:
                # The next look finds its namespace gone and deletes once more, which does no harm.
                self.counts.log.warning("%s: done, but its record stays: %s", subject_of(invocation), error)
        client.deliver(reply)

    def undo(self, invocation: Invocation[Any, Any], reply: Reply, number: int) -> None:
        """Take back an ADD of which nobody knows that it succeeded; the record goes only with it."""
        undone = self.perform(invocation.undoing(reply.result))
        self.counts.undone += 1
        subject = subject_of(invocation)
        if undone.status:
            self.counts.log.warning(
                "%s: nobody took the result, and undoing failed: %s", subject, undone.error
            )
            return
        self.counts.log.warning("%s: nobody took the result: undone", subject)
        self._forget(number)

    def _forget(self, number: int) -> None:
        try:
            self.records.drop(number)
        except RecordsBroken as error:
            self.counts.log.warning("a record of an ADD that failed stays: %s", error)

    def perform(self, invocation: Invocation[Any, Any]) -> Reply:
        """Run an invocation on the host's kernel."""
        return process.perform(invocation, self._opened)

    def delete(self, record: Record) -> Reply:
        """Run the DEL of what a record tells, in the caller's turn; the record goes if it succeeds."""
        plugin = self._load(record.plugin)
        if plugin is None:
            return process.refusal(PluginMissing([record.plugin], ()))
        read = self.prepared(plugin, record, "DEL")
        if isinstance(read, Invocation):
            with self.view_of(record) as root, netns.seen_from(root):
                reply = self.perform(read)
        else:
            reply = read
        if not reply.status:
            self.records.drop(record.id)
        return reply

    def prepared(
        self, plugin: Plugin[Any, Any], record: Record, command: str
    ) -> Invocation[Any, Any] | Reply:
        """Return a command about an attachment as it was made, with its result as prevResult."""
        return process.prepare(
            plugin,
            {**record.environ, "CNI_COMMAND": command},
            with_result(record),
            registry=self._load,
            deadline=time.monotonic() + CLEANUP_SECONDS,
        )

    def view_of(self, record: Record) -> AbstractContextManager[int | None]:
        """Open the root directory from which a record's paths are seen, as `caller.root_of`.

        Its caller is gone: the host's first process stands for it, if that is in the same mount namespace.
        """
        seen = record.view if record.view == caller.mount_namespace(1) else 0
        return caller.root_of(seen, 1, self._view)

    def is_gone(self, record: Record) -> bool:
        """Tell whether an attachment's namespace is gone from where its caller had it.

        What cannot be told is not gone: a path in a mount namespace of others, or one of a process, which
        may be gone while the namespace is not.
        """
        seen = (0, self._view, caller.mount_namespace(1))
        if record.view not in seen or record.netns.startswith("/proc/"):
            return False
        try:
            with self.view_of(record) as root, netns.seen_from(root), netns.open(record.netns):
                return False
        except (NetnsMissing, NotANetns):
            return True
        except KernelError:
            return False


def subject_of(invocation: Invocation[Any, Any]) -> str:
    """Return what an invocation is about, for logs and errors."""
    request = invocation.request
    what = f"{request.command} {request.plugin_type} network {request.name}"
    if not request.container_id:
        return what
    return f"{what} container {request.container_id} ifname {request.ifname}"


def with_result(record: Record) -> bytes:
    """Return a record's configuration with its result as prevResult."""
    if not record.result:
        return record.config
    config = {
        key: value for key, value in msgspec.json.decode(record.config).items() if key.lower() != "prevresult"
    }
    config["prevResult"] = msgspec.Raw(record.result)
    return msgspec.json.encode(config)
