"""From records to the truth: what no caller learnt of, what a boot took away, what nobody needs any more.

An ADD that was under way when the agent died is undone: its caller saw the connection break and has no
result, and a runtime runs DEL after a failed ADD in any case. What was made before the machine was booted is
deleted so that its addresses are free. What is there and right is not touched.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable

from podwire.agent.counts import Counts
from podwire.agent.host import PluginHost
from podwire.agent.records import Record, RecordsBroken
from podwire.agent.turns import Waiter
from podwire.cni.errors import CNIError
from podwire.kernel import links
from podwire.kernel.errors import KernelError
from podwire.plugins.attachment import MARK

_TURN_SECONDS = 30.0
_INTERRUPTED = "its ADD was interrupted"
_BOOTED = "made before the machine was booted"
_GONE = "its network namespace is gone"


class Reconciler:
    """Brings records and host together. Thread-safe."""

    def __init__(self, host: PluginHost, counts: Counts) -> None:
        self._host = host
        self._log = counts.log
        self._earlier: set[str] = set()
        self._seen_gone: set[int] = set()
        host.before_add = self._settle

    def undo_interrupted(self) -> int:
        """Undo every ADD that never came to an end, the last first; before anything is served."""
        try:
            left = sum(not self._delete(record, _INTERRUPTED) for record in self._interrupted())
            self._earlier = {record.container_id for record in self._host.records.earlier()}
        except RecordsBroken:
            return 0
        return left

    def sweep(self) -> None:
        """Delete what earlier boots left, and what was found without namespace twice in a row."""
        try:
            running = self._host.turns.holders()
            for record in self._host.records.interrupted():
                if record.container_id not in running:
                    self._in_turn(record, _INTERRUPTED)
            for record in self._host.records.earlier():
                self._in_turn(record, _BOOTED)
            self._earlier.clear()
            gone = {record.id: record for record, _ in self._without_namespace()}
            for number in sorted(gone.keys() & self._seen_gone, reverse=True):
                self._in_turn(gone[number], _GONE)
            self._seen_gone = set(gone)
        except (RecordsBroken, KernelError) as error:
            self._log.warning("cannot look after what is left: %s", error)

    def unneeded(self) -> list[tuple[Record, str]]:
        """Return what no live namespace needs, the last first, each with the reason."""
        records = self._host.records
        found = [(record, _INTERRUPTED) for record in records.interrupted() if not self._runs(record)]
        found += [(record, _BOOTED) for record in records.earlier()]
        return found + self._without_namespace()

    def collect(self, found: Iterable[tuple[Record, str]]) -> list[tuple[Record, str, str]]:
        """Delete what `unneeded` found, and return each with its reason and what failed (or nothing)."""
        return [(record, reason, self._in_turn(record, reason)) for record, reason in found]

    def _interrupted(self) -> list[Record]:
        made: dict[tuple[str, ...], list[Record]] = defaultdict(list)
        for record in self._host.records.all():
            if record.made:
                made[_key(record)].append(record)
        found = []
        for record in self._host.records.interrupted():
            if any(record.entry == other.entry for other in made[_key(record)]):
                # It was a second ADD: the plugin had refused it, and what is there is the first one's.
                self._host.records.drop(record.id)
            else:
                found.append(record)
        return found

    def _without_namespace(self) -> list[tuple[Record, str]]:
        gone = [r for r in reversed(self._host.records.current()) if self._host.is_gone(r)]
        if not gone:
            return []
        # A veth pair ends with the namespace that holds one of its ends: the other end proves that it lives.
        aliases = [
            link.alias.split(" ") for link in links.list_links(self._host.kernel.route()) if link.alias
        ]
        alive = {(words[-2], words[-1]) for words in aliases if words[0] == MARK and len(words) == 4}
        return [(record, _GONE) for record in gone if (record.container_id, record.ifname) not in alive]

    def _runs(self, record: Record) -> bool:
        return record.container_id in self._host.turns.holders()

    def _settle(self, container_id: str) -> None:
        """Free what a container of the same ID held before the boot: in its turn, before its new ADD."""
        if container_id not in self._earlier:
            return
        self._earlier.discard(container_id)
        for record in self._host.records.earlier():
            if record.container_id == container_id:
                self._delete(record, _BOOTED)

    def _in_turn(self, record: Record, reason: str) -> str:
        """Delete one with its container's turn, if it still is there; return what failed."""
        subject = f"clean-up of {record}"
        try:
            with self._host.turns.container(
                record.container_id, record.network, subject, time.monotonic() + _TURN_SECONDS, Waiter()
            ):
                if self._host.records.get(record.id) != record:
                    return ""
                return "" if self._delete(record, reason) else "DEL failed: see the log"
        except CNIError as error:
            return str(error)

    def _delete(self, record: Record, reason: str) -> bool:
        reply = self._host.delete(record)
        if reply.status:
            self._log.warning("%s: %s; its DEL failed: %s", record, reason, reply.error)
            return False
        self._log.info("%s: %s: deleted", record, reason)
        return True


def _key(record: Record) -> tuple[str, str, str, str]:
    return record.network, record.container_id, record.ifname, record.plugin
