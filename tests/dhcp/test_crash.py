"""kill -9 of the daemon at random points: no lease is lost, none is held twice."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from podwire.dhcp.errors import DHCPError, KeeperUnavailable
from podwire.dhcp.lease import Lease
from podwire.dhcp.records import Key, Wish
from podwire.dhcp.remote import RemoteKeeper
from podwire.dhcp.store import LeaseStore
from podwire.kernel.errors import KernelError
from tests.dhcp.helpers import key, make_bridge, make_pod, sh
from tests.dhcp.test_servers import dnsmasq, leased
from tests.waiting import until

pytestmark = pytest.mark.kernel
T = TypeVar("T")
ROOT = Path(__file__).parents[2]
SOCKET = "/run/dhcp-crash/sock"
PODS = 8
KILLS = 5


class Daemon:
    """`dhcp daemon` as a process, started again whenever it is killed."""

    def __init__(self, store: Path) -> None:
        self.store = store
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "podwire.plugins", "dhcp", "daemon"),
                *("-socketpath", SOCKET, "--store", str(self.store)),
            ],
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def ready(self) -> bool:
        assert self.process.poll() is None
        try:
            RemoteKeeper(SOCKET).status()
        except KeeperUnavailable:
            return False
        return True


@contextmanager
def running(store: Path) -> Iterator[Daemon]:
    daemon = Daemon(store)
    try:
        until(daemon.ready)
        yield daemon
    finally:
        daemon.process.kill()
        daemon.process.wait()


class Runtime(threading.Thread):
    """Adds and deletes one pod again and again, and repeats what failed, as a runtime does."""

    def __init__(self, pod: str, wish: Wish, seed: int, ended: threading.Event) -> None:
        super().__init__()
        self.pod = pod
        self.wish = wish
        self.chance = random.Random(seed)
        self.ended = ended
        self.held = ""
        self.done = 0
        self.trouble: Exception | None = None

    def run(self) -> None:
        try:
            while not self.ended.is_set() or self.done < 2:
                self._add()
                self.ended.wait(self.chance.uniform(0, 0.05))
                if self.chance.random() < 0.7:
                    self._repeat(lambda: RemoteKeeper(SOCKET).release(self.key()))
                    self.held = ""
                self.done += 1
        except Exception as error:  # noqa: BLE001 - told by the test
            self.trouble = error

    def key(self) -> Key:
        return key(self.pod)

    def _add(self) -> None:
        """ADD; after a failure either again, or after a DEL, as runtimes do."""
        lease: Lease | None = None
        while lease is None:
            try:
                lease = RemoteKeeper(SOCKET).acquire(self.key(), self.wish, time.monotonic() + 5)
            except (DHCPError, KernelError):
                time.sleep(0.02)
                if self.chance.random() < 0.5:
                    self._repeat(lambda: RemoteKeeper(SOCKET).release(self.key()))
                    self.held = ""
                    if self.ended.is_set():
                        return
        assert self.held in ("", lease.address), f"{self.pod} had {self.held}, and got {lease.address}"
        self.held = lease.address

    def _repeat(self, call: Callable[[], T]) -> T:
        limit = time.monotonic() + 30
        while True:
            try:
                return call()
            except (DHCPError, KernelError):
                assert time.monotonic() < limit
                time.sleep(0.02)


def test_no_lease_is_lost_or_doubled(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    make_bridge()
    names = [f"p{number}" for number in range(PODS)]
    wishes = {name: make_pod(name, f"02:88:00:00:03:{n:02x}") for n, name in enumerate(names)}
    ended = threading.Event()
    with dnsmasq(tmp_path / "server"), running(tmp_path / "leases.sqlite") as daemon:
        runtimes = [Runtime(name, wishes[name], chance.randrange(2**32), ended) for name in names]
        for runtime in runtimes:
            runtime.start()
        for _ in range(KILLS):
            time.sleep(chance.uniform(0.0, 0.25))
            daemon.kill()
            daemon.start()
            until(daemon.ready)
        ended.set()
        for runtime in runtimes:
            runtime.join(60)
        assert [one.trouble for one in runtimes if one.trouble] == []
        held = {one.pod: one.held for one in runtimes if one.held}
        for pod, address in held.items():
            assert RemoteKeeper(SOCKET).check(key(pod)).address == address
        assert len(set(held.values())) == len(held)
        # The server knows of these leases, and of no others.
        wanted = {address.partition("/")[0]: f"\0id-{pod}/net/eth0" for pod, address in held.items()}
        until(lambda: leased(tmp_path / "server") == wanted)
        daemon.process.terminate()
        assert daemon.process.wait(5) == 0
    store = LeaseStore(tmp_path / "leases.sqlite")
    records, broken = store.load()
    store.close()
    assert broken == []
    assert {which.container_id: record.lease.address for which, record in records.items()} == {
        f"id-{pod}": address for pod, address in held.items()
    }
    for name in names:
        sh("ip", "netns", "delete", name)
