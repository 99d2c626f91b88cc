"""The agent's process: records and kernel opened, reconciled, served, and closed again in the right order."""

from __future__ import annotations

import gc
import importlib
import logging
import os
import pkgutil
import signal
import sys
from pathlib import Path
from types import FrameType

import podwire.cni
import podwire.dhcp
import podwire.ipam
import podwire.kernel
import podwire.plugins
from podwire.agent import leases, listener, systemd
from podwire.agent.counts import Counts
from podwire.agent.host import Load, PluginHost
from podwire.agent.pages import Pages
from podwire.agent.periodic import Periodic
from podwire.agent.reconcile import Reconciler
from podwire.agent.records import Records
from podwire.agent.repair import Mender
from podwire.agent.server import Server
from podwire.agent.settings import Settings
from podwire.kernel.errors import KernelError
from podwire.kernel.host import Kernel
from podwire.plugins import TYPES, load

SWITCH_SECONDS = 0.0005
"""How long a thread may keep the interpreter: the threads are mostly in system calls."""


class Agent:
    """The agent of one place. `run` returns when it is told to end (SIGTERM, SIGINT)."""

    def __init__(self, socket: Path, state: Path, settings: Settings, load: Load = load) -> None:
        self._load = load
        self._path = socket
        self._settings = settings
        self._counts = Counts()
        self._log = self._counts.log
        self._state = state

    def run(self) -> int:
        """Serve until the end and return how many requests were not done by then."""
        ending = os.eventfd(0, os.EFD_CLOEXEC)

        def end(_number: int, _frame: FrameType | None) -> None:
            os.eventfd_write(ending, 1)

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, end)
        for type in TYPES:
            try:
                self._load(type)
            except ImportError as error:
                self._log.error("plugin %s cannot be loaded: %s", type, error)
        records = Records(self._state / "agent.db")
        if records.broken is not None:
            self._log.error("ADD is refused: %s", records.broken)
        with Kernel.open() as kernel:
            with leases.kept(self._state / "dhcp.sqlite", self._log):
                unfinished = self._serve(kernel, records, ending)
            records.close()
            if unfinished:
                # Their threads hold what closing would wait for; the records tell the next agent of them.
                self._log.warning("%d requests were not done at the end", unfinished)
                logging.shutdown()
                os._exit(1)
        os.close(ending)
        return 0

    def _serve(self, kernel: Kernel, records: Records, ending: int) -> int:
        host = PluginHost(kernel, self._load, records, self._counts)
        reconciler = Reconciler(host, self._counts)
        _warm(kernel, self._log)
        reconciler.undo_interrupted()
        pages = Pages(host, reconciler, self._counts)
        sock = listener.listen(self._path)
        inode = self._path.lstat().st_ino
        server = pages.server = Server(sock, host, self._counts, pages.table())
        mender = pages.mender = Mender(host, self._counts)
        settings = self._settings
        counts = self._counts
        sweep = [reconciler.sweep, records.tidy, counts.swept]
        periodic = (
            Periodic("agent-repair", settings.repair_seconds, [mender.look, counts.looked], counts),
            Periodic("agent-sweep", settings.sweep_seconds, sweep, counts),
        )
        sys.setswitchinterval(SWITCH_SECONDS)
        gc.collect()
        gc.freeze()
        server.start()
        for each in periodic:
            each.start()
        self._log.info("serving on %s as process %d", self._path, os.getpid())
        systemd.notify("READY=1", f"STATUS=serving on {self._path}")
        import_everything(self._log)
        os.read(ending, 8)  # goes on after a signal's handler, as os.eventfd_read does not
        self._log.info("ending")
        systemd.notify("STOPPING=1")
        listener.remove(self._path, inode)
        unfinished = server.stop(settings.drain_seconds)
        for each in periodic:
            each.close()
        return unfinished


def import_everything(log: logging.Logger) -> None:
    """Import what plugins import when they need it: its files may be another version's by then.

    A module that cannot be imported costs the requests that need it.
    """
    for package in (podwire.kernel, podwire.cni, podwire.ipam, podwire.dhcp, podwire.plugins):
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            if module.name.endswith("__main__"):
                continue
            try:
                importlib.import_module(module.name)
            except ImportError as error:
                log.error("%s cannot be loaded: %s", module.name, error)


def _warm(kernel: Kernel, log: logging.Logger) -> None:
    """Do once what costs the first request milliseconds: libnftables and the sockets are opened."""
    from podwire.plugins import ruleset

    try:
        kernel.route()
        _ = kernel.links
        ruleset.missing(kernel.nft)
        kernel.nft.check("add table inet podwire\n")
    except KernelError as error:
        log.warning("nftables: %s", error)
