"""What the agent tells of itself, as JSON."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from podwire import __version__
from podwire.agent.counts import Counts
from podwire.agent.host import PluginHost
from podwire.agent.reconcile import Reconciler
from podwire.agent.records import Record
from podwire.agent.repair import Mender
from podwire.agent.server import HANGING_MAX, Page, Server
from podwire.cni.errors import CNIError
from podwire.kernel.errors import KernelError
from podwire.plugins import TYPES

_HARMLESS = "add table inet podwire\n"
"""What is only tried: whether libnftables and the kernel would take a transaction."""


class Problem(msgspec.Struct, frozen=True):
    """Something that is wrong: ``what`` cannot be done, and why."""

    what: str
    why: str


class Pages:
    """The pages beside the plugins."""

    def __init__(self, host: PluginHost, reconciler: Reconciler, counts: Counts) -> None:
        self._host = host
        self._reconciler = reconciler
        self._counts = counts
        self.server: Server | None = None
        self.mender: Mender | None = None

    def table(self) -> Mapping[tuple[str, str], Page]:
        """Return the pages by method and path."""
        return {
            ("GET", "/healthz"): self.health,
            ("GET", "/readyz"): self.ready,
            ("GET", "/v1/status"): self.status,
            ("GET", "/v1/attachments"): self.attachments,
            ("POST", "/v1/gc"): self.collect,
        }

    def health(self, _words: Mapping[str, str]) -> tuple[int, object]:
        """Whether requests are served at all: no, if too many hang."""
        hanging = self.server.guard.hanging() if self.server else 0
        if hanging >= HANGING_MAX:
            return 503, f"{hanging} requests hang"
        return 200, "ok"

    def problems(self) -> list[Problem]:
        """Return what is wrong."""
        found = []
        broken = self._host.records.broken
        if broken is not None:
            found.append(Problem("ADD is refused", str(broken)))
        try:
            self._host.kernel.nft.check(_HARMLESS)
        except KernelError as error:
            found.append(Problem("masquerading and host ports are refused", str(error)))
        return found

    def hanging(self) -> list[Problem]:
        """Return the requests that go on past their deadline: what they hold waits, all else is served."""
        late = [client.subject for client in self._clients() if client.late]
        return [Problem("a request hangs; its container waits", subject) for subject in late]

    def ready(self, _words: Mapping[str, str]) -> tuple[int, object]:
        """Whether everything can be served, and if not, what is wrong."""
        problems = self.problems()
        return (503 if problems else 200), {"ready": not problems, "problems": problems}

    def status(self, _words: Mapping[str, str]) -> tuple[int, object]:
        """Tell what runs, what was done and what is wrong."""
        counts, records = self._counts, self._host.records
        now = time.monotonic()
        return 200, {
            "pid": os.getpid(),
            "version": __version__,
            "uptimeSeconds": round(time.time() - counts.began, 1),
            "plugins": TYPES,
            "attachments": None if records.broken else records.count(),
            "requests": {
                "served": counts.served,
                "failed": counts.failed,
                "refused": counts.refused,
                "abandoned": counts.abandoned,
                "givenUp": counts.given_up,
                "undone": counts.undone,
            },
            "mended": counts.mended,
            "looks": counts.looks,
            "sweeps": counts.sweeps,
            "damaged": [
                {"attachment": str(record), "why": why}
                for record, why in (self.mender.damaged() if self.mender else ())
            ],
            "running": [
                {"request": client.subject, "seconds": round(now - client.began, 3), "late": client.late}
                for client in self._clients()
            ],
            "problems": self.problems() + self.hanging(),
        }

    def attachments(self, _words: Mapping[str, str]) -> tuple[int, object]:
        """List what the records hold."""
        return self._or_failure(lambda: {"attachments": [_shown(r) for r in self._host.records.all()]})

    def collect(self, words: Mapping[str, str]) -> tuple[int, object]:
        """List what nobody needs, and remove it unless ``dry-run=true`` is said."""

        def work() -> object:
            found = self._reconciler.unneeded()
            if words.get("dry-run") == "true":
                return {"found": [{**_shown(record), "reason": reason} for record, reason in found]}
            done = self._reconciler.collect(found)
            return {"found": [{**_shown(r), "reason": why, "error": error} for r, why, error in done]}

        return self._or_failure(work)

    def _clients(self) -> list[Any]:
        return self.server.guard.waiting() if self.server else []

    def _or_failure(self, work: Callable[[], object]) -> tuple[int, object]:
        try:
            return 200, work()
        except CNIError as error:
            return 503, str(error)


def _shown(record: Record) -> dict[str, object]:
    return {
        "network": record.network,
        "containerID": record.container_id,
        "ifname": record.ifname,
        "plugin": record.plugin,
        "netns": record.netns.encode(errors="backslashreplace").decode(),
        "made": record.made,
        "since": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.began)),
        "result": msgspec.Raw(record.result) if record.result else None,
    }
