"""Puts back what others took from attachments that the agent made, and tells what it cannot put back.

One cheap look at all attachments tells which of those of `bridge`, `podwire` and `portmap` seem to be short
of something: they are looked at closely at once, by the `mend` of their plugins. All attachments of every
plugin are looked at closely in turn, as many as a look has time for: by `mend`, then by CHECK. What is on the
host is put back; what is inside the pod may be the pod's own doing, and is only told.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from podwire.agent.counts import Counts
from podwire.agent.host import PluginHost
from podwire.agent.records import Record, RecordsBroken
from podwire.agent.turns import Waiter
from podwire.cni.errors import CNIError, InvalidNetns, UnknownContainer
from podwire.cni.process import Invocation
from podwire.cni.request import Plugin
from podwire.cni.types import Result
from podwire.kernel import netns
from podwire.kernel.errors import KernelError
from podwire.plugins import ruleset
from podwire.plugins.repair import Attached, Repairer

_TURN_SECONDS = 5.0
CLOSE_SECONDS = 0.1
"""How long a look may look closely at attachments that seem sound; at one at least."""


class _Nothing(msgspec.Struct, frozen=True):
    """No option at all."""


_SILENT: Plugin[Any, Any] = Plugin(
    type="", about="stands for an IPAM plugin that is not ours", config=_Nothing, add=lambda *_: Result()
)


class Mender:
    """Looks after the attachments in the records."""

    def __init__(self, host: PluginHost, counts: Counts) -> None:
        self._host = host
        self._counts = counts
        self._repairer = Repairer(host.kernel)
        self._lost: set[int] = set()
        self._looks = 0
        self._at = -1
        self._records: list[Record] = []
        self._attached: list[Attached] = []
        self._results: dict[tuple[str, str, str], bytes] = {}
        self._last = 0
        self._damaged: dict[int, tuple[Record, str]] = {}

    def damaged(self) -> list[tuple[Record, str]]:
        """Return the attachments that are not as they were made and stay so, each with what is wrong."""
        return list(self._damaged.values())

    def look(self) -> int:
        """Look once and mend what needs it; return how many things are back."""
        try:
            self._read()
            suspects = {(one.container_id, one.ifname) for one in self._repairer.suspects(self._attached)}
            suspects |= self._flushed()
        except RecordsBroken:
            return 0
        except KernelError as error:
            self._counts.log.warning("cannot look for what is missing: %s", error)
            return 0
        mended = 0
        for record in self._records:
            if (record.container_id, record.ifname) in suspects and record.id not in self._lost:
                back, why = self._mend(record)
                mended += back
                if why:
                    self._note(record, why)
        self._looks += 1
        # At the agent's start, perhaps the machine's, there is more urgent work.
        return mended + (self._look_closely() if self._looks > 1 else 0)

    def _look_closely(self) -> int:
        """Look closely at the next attachments in turn; while requests run, at one."""
        until, mended = time.monotonic() + CLOSE_SECONDS, 0
        start = bisect_right(self._records, self._last, key=lambda record: record.id)
        for record in (*self._records[start:], *self._records[:start]):
            self._last = record.id
            busy = self._host.turns.holders()
            if record.id not in self._lost and record.container_id not in busy:
                back, why = self._mend(record)
                mended += back
                found = why or self._check(record)
                if found is not None:
                    self._note(record, found)
            if busy or time.monotonic() >= until:
                break
        return mended

    def _flushed(self) -> set[tuple[str, str]]:
        """The attachments of other lists that have something in our table, if a rule of it is missing."""
        by_rules = [record for record in self._records if self._has_rules(record)]
        if not by_rules or not ruleset.missing(self._host.kernel.nft):
            return set()
        return {(record.container_id, record.ifname) for record in by_rules}

    def _has_rules(self, record: Record) -> bool:
        if record.plugin == "bridge" or (record.plugin == "portmap" and not _has_ports(record.config)):
            return False
        plugin = self._host.plugin(record.plugin)
        return plugin is not None and plugin.mend is not None

    def _read(self) -> None:
        changes = self._host.records.changes
        if changes != self._at:
            self._records = self._host.records.current()
            self._attached = _attached(self._records)
            # Each plugin's CHECK gets what the list's last one told; an IPAM plugin tells of no interface.
            told = (record for record in self._records if b'"interfaces"' in record.result)
            self._results = {_place(record): record.result for record in told}
            known = {record.id for record in self._records}
            self._lost &= known
            self._damaged = {number: found for number, found in self._damaged.items() if number in known}
            self._at = changes

    @contextmanager
    def _turn(self, record: Record) -> Iterator[bool]:
        """Have the container's turn for a block; False if the attachment is another one by then."""
        until = time.monotonic() + _TURN_SECONDS
        with (
            self._host.turns.container(
                record.container_id, record.network, f"repair of {record}", until, Waiter()
            ),
            self._host.view_of(record) as root,
            netns.seen_from(root),
        ):
            yield self._host.records.get(record.id) == record

    def _mend(self, record: Record) -> tuple[int, str]:
        """Have a plugin put back what is missing; return how many things are back, and why that failed."""
        plugin = self._host.plugin(record.plugin)
        if plugin is None or plugin.mend is None:
            return 0, ""
        try:
            with self._turn(record) as there:
                if not there:
                    return 0, ""
                read = self._host.prepared(plugin, record, "CHECK")
                if not isinstance(read, Invocation):
                    # Versions before 0.4.0 have no CHECK, and so no request to mend by.
                    self._lost.add(record.id)
                    self._counts.log.debug("%s: cannot be mended: %s", record, read.error)
                    return 0, ""
                back = plugin.mend(read.request, self._host.kernel)
        except UnknownContainer as error:
            self._lost.add(record.id)
            return 0, f"beyond repair: {error.msg}"
        except (CNIError, KernelError) as error:
            return 0, f"cannot be mended: {error}"
        if back:
            self._counts.mended += len(back)
            self._counts.log.warning("%s: put back: %s", record, ", ".join(back))
        return len(back), ""

    def _check(self, record: Record) -> str | None:
        """Have a plugin find what is missing of its attachment, and return that; None if it was not asked.

        An IPAM plugin that is not ours is left out: it may ask a whole cluster.
        """
        plugin = self._host.plugin(record.plugin)
        if plugin is None or plugin.check is None or not self._host.can_see(record):
            return None
        whole = msgspec.structs.replace(record, result=self._results.get(_place(record), record.result))
        try:
            with self._turn(record) as there:
                read = self._host.prepared(plugin, whole, "CHECK")
                # A plugin that came since may have told another result.
                known = there and self._host.records.changes == self._at
                if not known or not isinstance(read, Invocation):
                    return None
                request = msgspec.structs.replace(read.request, registry=self._registry)
                reply = self._host.perform(Invocation(plugin, request))
        except CNIError:
            return None  # the container is busy
        # One whose namespace is gone is the sweep's.
        return "" if reply.error is None or isinstance(reply.error, InvalidNetns) else str(reply.error)

    def _registry(self, type: str) -> Plugin[Any, Any]:
        return self._host.plugin(type) or _SILENT

    def _note(self, record: Record, why: str) -> None:
        """Keep in mind what is wrong with an attachment, or that nothing is, and log it when it is news."""
        known = self._damaged.pop(record.id, None)
        if why:
            self._damaged[record.id] = record, why
        if why and (known is None or known[1] != why):
            self._counts.log.warning("%s: %s", record, why)
        elif known is not None and not why:
            self._counts.log.info("%s: is as it was made again", record)


def _place(record: Record) -> tuple[str, str, str]:
    return record.network, record.container_id, record.ifname


def _attached(records: Iterable[Record]) -> list[Attached]:
    """The attachments that begin with our bridge or podwire, as `Repairer.suspects` wants them."""
    by_place: dict[tuple[str, str, str], list[Record]] = defaultdict(list)
    for record in records:
        by_place[_place(record)].append(record)
    found = []
    for (name, container_id, ifname), of_list in by_place.items():
        first = next((record for record in of_list if record.plugin in {"bridge", "podwire"}), None)
        if first is None:
            continue
        config = msgspec.json.decode(first.config)
        network = msgspec.json.encode(
            {"cniVersion": config.get("cniVersion", ""), "name": name, "plugins": [config]}
        ).decode()
        result = msgspec.json.decode(first.result)
        ips = tuple(str(ip.get("address", "")).partition("/")[0] for ip in result.get("ips", ()))
        mapping = "podwire" if first.plugin == "podwire" else "portmap"
        ports = any(record.plugin == mapping and _has_ports(record.config) for record in of_list)
        found.append(Attached(network, container_id, ifname, ips, host_ports=ports))
    return found


def _has_ports(config: bytes) -> bool:
    decoded: dict[str, Any] = msgspec.json.decode(config)
    return bool((decoded.get("runtimeConfig") or {}).get("portMappings"))
