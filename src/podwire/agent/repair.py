"""Puts back what others took from attachments that the agent made: flushed rules, the bridge, its addresses.

One cheap look at all attachments tells which seem to be short of something; only those are looked at closely,
each with its container's turn, by the `mend` of their plugins.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import msgspec

from podwire.agent.counts import Counts
from podwire.agent.host import PluginHost
from podwire.agent.records import Record, RecordsBroken
from podwire.agent.turns import Waiter
from podwire.cni.errors import CNIError, UnknownContainer
from podwire.cni.process import Invocation
from podwire.kernel.errors import KernelError
from podwire.plugins import ruleset
from podwire.plugins.repair import Attached, Repairer

_TURN_SECONDS = 5.0


class Mender:
    """Looks after the attachments in the records."""

    def __init__(self, host: PluginHost, counts: Counts) -> None:
        self._host = host
        self._counts = counts
        self._repairer = Repairer(host.kernel)
        self._lost: set[int] = set()
        self._at = -1
        self._records: list[Record] = []
        self._attached: list[Attached] = []

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
        self._lost &= {record.id for record in self._records}
        return sum(
            self._mend(record)
            for record in self._records
            if (record.container_id, record.ifname) in suspects and record.id not in self._lost
        )

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
            self._at = changes

    def _mend(self, record: Record) -> int:
        plugin = self._host.plugin(record.plugin)
        if plugin is None or plugin.mend is None:
            return 0
        try:
            with self._host.turns.container(
                record.container_id,
                record.network,
                f"repair of {record}",
                time.monotonic() + _TURN_SECONDS,
                Waiter(),
            ):
                if self._host.records.get(record.id) != record:
                    return 0
                read = self._host.prepared(plugin, record, "CHECK")
                if not isinstance(read, Invocation):
                    # Versions before 0.4.0 have no CHECK, and so no request to mend by.
                    self._lost.add(record.id)
                    self._counts.log.debug("%s: cannot be mended: %s", record, read.error)
                    return 0
                back = plugin.mend(read.request, self._host.kernel)
        except UnknownContainer as error:
            self._lost.add(record.id)
            self._counts.log.warning("%s: beyond repair: %s", record, error.msg)
            return 0
        except (CNIError, KernelError) as error:
            self._counts.log.warning("%s: cannot be mended: %s", record, error)
            return 0
        if back:
            self._counts.mended += len(back)
            self._counts.log.warning("%s: put back: %s", record, ", ".join(back))
        return len(back)


def _attached(records: Iterable[Record]) -> list[Attached]:
    """The attachments that begin with our bridge or podwire, as `Repairer.suspects` wants them."""
    by_place: dict[tuple[str, str, str], dict[str, Record]] = defaultdict(dict)
    for record in records:
        by_place[record.network, record.container_id, record.ifname][record.plugin] = record
    found = []
    for (name, container_id, ifname), plugins in by_place.items():
        first = plugins.get("bridge") or plugins.get("podwire")
        if first is None:
            continue
        config = msgspec.json.decode(first.config)
        network = msgspec.json.encode(
            {"cniVersion": config.get("cniVersion", ""), "name": name, "plugins": [config]}
        ).decode()
        result = msgspec.json.decode(first.result)
        ips = tuple(str(ip.get("address", "")).partition("/")[0] for ip in result.get("ips", ()))
        mapping = first if first.plugin == "podwire" else plugins.get("portmap")
        ports = mapping is not None and _has_ports(mapping.config)
        found.append(Attached(network, container_id, ifname, ips, host_ports=ports))
    return found


def _has_ports(config: bytes) -> bool:
    decoded: dict[str, Any] = msgspec.json.decode(config)
    return bool((decoded.get("runtimeConfig") or {}).get("portMappings"))
