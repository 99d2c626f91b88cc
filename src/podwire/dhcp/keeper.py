"""The keeper: one thread that gets, renews and gives back the leases of all containers of a host.

Leases are on disk before an ADD is answered. A keeper that starts takes up what it finds there: interfaces
that still are have their leases confirmed and renewed, the others' are forgotten, and what was asked for but
told to nobody is given back. Each lease waits for its own server only.
"""

from __future__ import annotations

import errno
import logging
import os
import random
import selectors
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotInTime
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from podwire.dhcp import interface
from podwire.dhcp.errors import (
    ContainerGone,
    DHCPError,
    InterfaceGone,
    KeeperUnavailable,
    LeaseDenied,
    NoLease,
    StoreError,
)
from podwire.dhcp.holding import Holding, boot_id
from podwire.dhcp.interface import Identity, Place
from podwire.dhcp.lease import Lease
from podwire.dhcp.records import Key, Record, Wish
from podwire.dhcp.store import LeaseStore
from podwire.kernel import netns
from podwire.kernel.datagrams import DatagramPort
from podwire.kernel.errors import KernelError

T = TypeVar("T")
_log = logging.getLogger(__name__)

SWEEP_SECONDS = 60.0
"""How often the keeper looks whether containers have gone without a DEL."""
SPREAD_SECONDS = 10.0
"""Over which time the leases of many containers are confirmed after a start, at most."""
_SPREAD_EACH = 0.02
_CANCEL_TICK = 0.2
_FAULT_SECONDS = 60.0
"""When a lease is looked at again after a fault of ours."""


def boot_time() -> float:
    """Seconds since boot, time asleep included: what leases are measured by."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class LeaseKeeper:
    """Keeps the leases in the file at ``store_path``.

    ``host_prefix`` is put before every path of a namespace, for a keeper in a container of its own.
    ``broadcast`` has all servers answer by broadcast. ``clock`` gives seconds that never go back; whoever
    moves it by hand calls `wake`.
    """

    def __init__(
        self,
        store_path: str | os.PathLike[str],
        *,
        host_prefix: str = "",
        broadcast: bool = False,
        clock: Callable[[], float] = boot_time,
        spread: float = SPREAD_SECONDS,
    ) -> None:
        self.store_path = os.fspath(store_path)
        self._prefix = host_prefix
        self._broadcast = broadcast
        self._clock = clock
        self._spread = spread
        self._store: LeaseStore | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._jobs: list[tuple[Callable[[], None], Future[Any]]] = []
        self._wakeup = -1
        self._stopping = False
        self._holdings: dict[Key, Holding] = {}
        self._next_sweep = 0.0
        self._selector = selectors.DefaultSelector()
        self._watched: dict[Key, tuple[DatagramPort, int]] = {}

    def start(self) -> None:
        """Open the file and begin. Raises :class:`KeeperUnavailable`, :class:`StoreError`."""
        self._store = LeaseStore(self.store_path)
        try:
            records, broken = self._store.load()
            for key in broken:
                _log.error("%s: the record of %s cannot be read, and is dropped", self.store_path, key)
                self._store.delete(key)
        except BaseException:
            self._store.close()
            raise
        self._wakeup = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._selector.register(self._wakeup, selectors.EVENT_READ)
        self._next_sweep = self._clock() + SWEEP_SECONDS
        self._post(lambda: self._take_up(records), Future())
        self._thread = threading.Thread(target=self._run, name="dhcp-keeper", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop. The leases stay, for the next keeper; whoever waits gets :class:`KeeperUnavailable`."""
        with self._lock:
            if self._stopping or self._thread is None:
                return
            self._stopping = True
        self.wake()
        self._thread.join()

    def wake(self) -> None:
        """Have the keeper look at its clock now."""
        with self._lock:  # at its end the keeper closes the descriptor, whose number may then be another's
            if self._wakeup >= 0:
                os.eventfd_write(self._wakeup, 1)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def acquire(
        self, key: Key, wish: Wish, deadline: float, cancelled: Callable[[], bool] | None = None
    ) -> Lease:
        """Get a lease for an interface, or return the one that it has.

        Waits until ``deadline`` (`time.monotonic`), or ``cancelled`` says that nobody wants the answer: then
        what was asked for is given back. Raises :class:`LeaseDenied`, :class:`ContainerGone`,
        :class:`StoreError`, :class:`KeeperUnavailable`, :class:`KernelError`.
        """
        began = time.monotonic()
        future: Future[Lease] = Future()
        seen_from = netns.view()
        place = Place(self._prefix + wish.netns, None if seen_from is None else os.dup(seen_from))
        self._post(lambda: self._begin(key, wish, place, future), future)
        while True:
            left = deadline - time.monotonic()
            try:
                return future.result(timeout=max(0.0, min(left, _CANCEL_TICK) if cancelled else left))
            except NotInTime:
                if left > _CANCEL_TICK and not (cancelled and cancelled()):
                    continue
            why = self._call(lambda: self._give_up(key, future))
            if not future.cancelled():  # it was answered at the last moment
                return future.result()
            waited = time.monotonic() - began
            raise LeaseDenied(f"{key}: no DHCP lease after {waited:.0f} s: {why}")

    def check(self, key: Key) -> Lease:
        """Return the attachment's lease.

        Raises :class:`NoLease` if it has none (any more), or :class:`ContainerGone` if its interface changed.
        """
        return self._call(lambda: self._checked(key))

    def release(self, key: Key) -> bool:
        """Give the attachment's lease back; False if it had none. Raises :class:`StoreError`."""
        return self._call(lambda: self._released(key))

    def gc(self, network: str, keep: Collection[tuple[str, str]]) -> list[Key]:
        """Give back a network's leases but those of (container ID, ifname) in ``keep``; return their keys."""
        wanted = set(keep)
        return self._call(lambda: self._collected(network, wanted))

    def leases(self) -> dict[Key, Lease | None]:
        """Return what is kept; None for attachments whose lease is being asked for."""
        return self._call(lambda: {key: one.lease for key, one in self._holdings.items()})

    def _post(self, job: Callable[[], None], future: Future[Any]) -> None:
        with self._lock:
            if self._stopping or self._store is None:
                raise self._stopped()
            self._jobs.append((job, future))
        self.wake()

    def _stopped(self) -> KeeperUnavailable:
        return KeeperUnavailable(self.store_path, "the keeper of these leases has stopped")

    def _call(self, function: Callable[[], T]) -> T:
        """Run a function in the keeper's thread and return what it returns; none of them waits."""
        future: Future[T] = Future()

        def job() -> None:
            try:
                future.set_result(function())
            except (DHCPError, KernelError) as error:
                future.set_exception(error)
            except BaseException as error:
                future.set_exception(error)
                raise

        self._post(job, future)
        return future.result()

    def _run(self) -> None:
        try:
            while True:
                with self._lock:
                    jobs, self._jobs = self._jobs, []
                    stopping = self._stopping
                for job, _ in jobs:
                    self._safely("a request", job)
                if stopping:
                    return
                self._safely("timers", self._tick)
                self._watch()
                self._wait()
        finally:
            self._stop()

    def _wait(self) -> None:
        now = self._clock()
        due = min((one.due for one in self._holdings.values()), default=self._next_sweep)
        # A descriptor's events come at once, and a clock that is moved by hand has its own wake-up.
        events = self._selector.select(max(0.0, min(due, self._next_sweep) - now))
        for entry, _ in events:
            if entry.data is None:
                try:
                    os.eventfd_read(self._wakeup)
                except BlockingIOError:
                    pass
                continue
            holding = self._holdings.get(entry.data)
            if holding is not None:
                self._safely(str(holding.key), partial(holding.readable, self._clock()))

    def _tick(self) -> None:
        now = self._clock()
        for holding in list(self._holdings.values()):
            if holding.due <= now and not self._safely(str(holding.key), partial(holding.tick, now)):
                holding.client.due = now + _FAULT_SECONDS
        if now >= self._next_sweep:
            self._next_sweep = now + SWEEP_SECONDS
            self._sweep()
        for key in [key for key, one in self._holdings.items() if one.over]:
            del self._holdings[key]

    def _watch(self) -> None:
        """Bring what is polled up to date with the open ports; a closed one's number may be used again."""
        ports = {key: one.port for key, one in self._holdings.items() if one.port is not None}
        for key, (port, fd) in list(self._watched.items()):
            if ports.get(key) is not port:
                del self._watched[key]
                self._selector.unregister(fd)
        for key, port in ports.items():
            if key not in self._watched:
                self._watched[key] = port, port.fileno()
                self._selector.register(port.fileno(), selectors.EVENT_READ, key)

    def _safely(self, what: str, function: Callable[[], object]) -> bool:
        """Keep one lease's trouble from all the others; False if there was any."""
        try:
            function()
        except Exception:  # noqa: BLE001 - told, and the others go on
            _log.exception("%s failed", what)
            return False
        return True

    def _stop(self) -> None:
        with self._lock:
            self._stopping = True
            jobs, self._jobs = self._jobs, []
        for holding in self._holdings.values():
            holding.end(self._stopped())
        for _, future in jobs:
            future.set_exception(self._stopped())
        self._holdings.clear()
        self._selector.close()
        with self._lock:
            os.close(self._wakeup)
            self._wakeup = -1
        if self._store is not None:
            self._store.close()

    def _take_up(self, records: dict[Key, Record]) -> None:
        now = self._clock()
        boot = boot_id()
        spread = min(self._spread, _SPREAD_EACH * len(records))
        for key, record in records.items():
            self._safely(str(key), partial(self._resume, key, record, boot, spread=spread, now=now))

    def _resume(self, key: Key, record: Record, boot: str, *, spread: float, now: float) -> None:
        assert self._store is not None
        place = Place(self._prefix + record.wish.netns, _host_root() if record.foreign else None)
        try:
            if record.boot != boot:
                raise ContainerGone("the host was started again since")
            found = interface.identify(place, key.ifname)
            if (found.netns_id, found.mac) != (record.netns_id, record.mac):
                raise InterfaceGone(f"{record.wish.netns} holds another interface {key.ifname} by now")
        except (ContainerGone, KernelError) as error:
            _log.info("%s: lease of %s is forgotten: %s", key, record.lease.address, error)
            if place.root is not None:
                os.close(place.root)
            self._store.delete(key)
            return
        holding = self._holding(key, record.wish, place, found)
        if record.pending:
            holding.give_back(record)
            return
        self._holdings[key] = holding
        holding.resume(record, now, random.uniform(0.0, spread))

    def _holding(self, key: Key, wish: Wish, place: Place, identity: Identity) -> Holding:
        assert self._store is not None
        return Holding(key, wish, place, identity, self._store, broadcast=self._broadcast)

    def _begin(self, key: Key, wish: Wish, place: Place, future: Future[Lease]) -> None:
        used = False
        try:
            held = self._holdings.get(key)
            if held is not None and not held.over:
                if self._is_same(held, wish):
                    lease = held.lease
                    if lease is None:
                        held.waiters.append(future)
                    else:
                        future.set_result(lease)
                    return
                held.release()
                del self._holdings[key]
            holding = self._holding(key, wish, place, interface.identify(place, key.ifname))
            self._holdings[key] = holding
            used = True
            holding.waiters.append(future)
            holding.begin(self._clock())
        except (DHCPError, KernelError) as error:
            self._not_begun(key, error, future)
        except BaseException as error:
            self._not_begun(key, error, future)
            raise
        finally:
            if not used and place.root is not None:
                os.close(place.root)

    def _not_begun(self, key: Key, error: BaseException, future: Future[Lease]) -> None:
        holding = self._holdings.get(key)
        if holding is not None and future in holding.waiters:
            holding.waiters.clear()
            holding.end(LeaseDenied(str(error)))
            del self._holdings[key]
        future.set_exception(error)

    @staticmethod
    def _is_same(held: Holding, wish: Wish) -> bool:
        if held.wish.netns != wish.netns:
            return False
        try:
            held.verify()
        except (ContainerGone, KernelError):
            return False
        return True

    def _give_up(self, key: Key, future: Future[Lease]) -> str:
        """Stop waiting; return what was asked and answered. A lease that came meanwhile is the caller's."""
        holding = self._holdings.get(key)
        if future.done():
            return "it came at the last moment"
        future.cancel()
        if holding is None:
            return "the interface is gone"
        offer = holding.client.lease
        trouble = holding.client.trouble or (
            f"server {offer.server} offered {offer.address}, and then was silent"
            if offer
            else "no server answered on its link"
        )
        holding.waiters = [one for one in holding.waiters if one is not future]
        if not holding.waiters and holding.lease is None:
            holding.release()
            del self._holdings[key]
        return trouble

    def _checked(self, key: Key) -> Lease:
        holding = self._holdings.get(key)
        lease = holding.lease if holding is not None else None
        if holding is None or lease is None or self._clock() >= lease.expires:
            raise NoLease(f"{key}: no DHCP lease is held")
        holding.verify()
        return lease

    def _released(self, key: Key) -> bool:
        assert self._store is not None
        holding = self._holdings.get(key)
        if holding is None:
            self._store.delete(key)
            return False
        try:
            holding.release()
        finally:
            if holding.over:
                del self._holdings[key]
        return True

    def _collected(self, network: str, keep: Collection[tuple[str, str]]) -> list[Key]:
        stale = [
            key
            for key in self._holdings
            if key.network == network and (key.container_id, key.ifname) not in keep
        ]
        for key in stale:
            self._released(key)
        return stale

    def _sweep(self) -> None:
        """Forget the leases of containers that are gone: nobody can renew or release them any more."""
        assert self._store is not None
        for key, holding in list(self._holdings.items()):
            try:
                holding.verify()
            except ContainerGone as error:
                _log.info("%s: its container is gone, the lease is forgotten: %s", key, error)
                holding.end(error)
                del self._holdings[key]
                try:
                    self._store.delete(key)
                except StoreError as trouble:
                    _log.error("%s: %s", key, trouble)
            except KernelError as error:
                if error.errno != errno.EAGAIN:
                    _log.warning("%s: %s", key, error)


def _host_root() -> int | None:
    """Open the host's root directory: that of its first process, where callers of other views live."""
    try:
        return os.open("/proc/1/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
