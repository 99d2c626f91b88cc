"""One attachment's lease at work: the client's wishes done on its interface, and written down in time."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path

from podwire.dhcp import interface
from podwire.dhcp.client import (
    Action,
    Bound,
    Chosen,
    Client,
    Lost,
    Paused,
    Profile,
    Resumed,
    Send,
    State,
)
from podwire.dhcp.errors import (
    ContainerGone,
    DHCPError,
    InterfaceGone,
    LeaseDenied,
    MalformedPacket,
    StoreError,
)
from podwire.dhcp.interface import Identity, Place
from podwire.dhcp.lease import Lease, LeaseRoute
from podwire.dhcp.packet import CLIENT_PORT, SERVER_PORT, decode, encode
from podwire.dhcp.records import Key, Record, Wish
from podwire.dhcp.store import LeaseStore
from podwire.kernel.datagrams import BROADCAST, BROADCAST_STATION, DatagramPort
from podwire.kernel.errors import KernelError
from podwire.kernel.routes import Route

_log = logging.getLogger(__name__)

ANSWER_SECONDS = 10.0
"""How long an answer is listened for where the next try is much later."""
_CLIENT_ID_MAX = 254


def client_id(key: Key) -> bytes:
    """Return the client identifier: type 0 and the reference's text (RFC 2132 section 9.14)."""
    text = f"{key.container_id}/{key.network}/{key.ifname}"
    return b"\0" + text.encode(errors="surrogateescape")[:_CLIENT_ID_MAX]


def given_routes(wish: Wish, lease: Lease) -> tuple[LeaseRoute, ...]:
    """Return the routes of a lease that the attachment wants."""
    return tuple(
        route for route in lease.routes if not (wish.no_gateway and route.destination == "0.0.0.0/0")
    )


class Holding:
    """One attachment. All of it runs in the keeper's thread; ``now`` is the keeper's clock."""

    def __init__(
        self, key: Key, wish: Wish, place: Place, identity: Identity, store: LeaseStore, *, broadcast: bool
    ) -> None:
        self.key = key
        self.wish = wish
        self.place = place
        """Its namespace as this process reaches it; the root directory in it is closed at the end."""
        self.identity = identity
        self.waiters: list[Future[Lease]] = []
        self.port: DatagramPort | None = None
        self.over = False
        """Whether it has ended: its container is gone, or nobody wants it any more."""
        self.client = Client(
            Profile(
                identity.mac,
                client_id(key),
                wish.provide,
                wish.parameters,
                broadcast or identity.shares_mac,
            )
        )
        self._store = store
        self._station = BROADCAST_STATION
        self._quiet: float | None = None  # when nothing is listened for any more
        self._stripped: tuple[Lease, list[Route]] | None = None

    @property
    def due(self) -> float:
        """When `tick` is to be called next; infinity if not before something comes."""
        times = [one for one in (self.client.due, self._quiet) if one is not None]
        return min(times, default=float("inf"))

    @property
    def lease(self) -> Lease | None:
        """The lease that is held now, None while none is."""
        held = {State.REBOOTING, State.BOUND, State.RENEWING, State.REBINDING}
        return self.client.lease if self.client.state in held else None

    def begin(self, now: float) -> None:
        """Ask for a lease."""
        interface.bring_up(self.place, self.key.ifname)
        self._perform(self.client.begin(now), now)

    def resume(self, record: Record, now: float, delay: float) -> None:
        """Take up what is remembered."""
        self._station = record.station
        self._guarded(lambda: self.client.resume(record.lease, now, delay, lost=record.lost), now)

    def give_back(self, record: Record) -> None:
        """Release what an earlier keeper had asked for and told nobody of."""
        self._station = record.station
        self.client.assume(record.lease)
        self.release()

    def tick(self, now: float) -> None:
        """Do what is due."""
        if self._quiet is not None and now >= self._quiet:
            self._close_port()
        self._guarded(lambda: self.client.tick(now), now)

    def readable(self, now: float) -> None:
        """Read what has come."""
        while self.port is not None:
            try:
                datagram = self.port.receive()
            except KernelError:  # the link went down; a lost packet at worst
                return
            if datagram is None:
                return
            if datagram.source_port != SERVER_PORT:
                continue
            try:
                packet = decode(datagram.payload)
            except MalformedPacket as error:
                _log.debug("%s: %s sent: %s", self.key, datagram.source, error)
                continue
            before, self._station = self._station, datagram.station
            actions = self.client.received(packet, now)
            if not any(isinstance(one, Chosen | Bound) for one in actions):
                self._station = before
            self._guarded(partial(list, actions), now)

    def release(self) -> None:
        """Tell the server, as far as the interface still can, and forget the lease."""
        lease = self.client.lease
        for action in self.client.release():
            try:
                if isinstance(action, Send):
                    self._send(action)
            except (KernelError, DHCPError) as error:
                left = "" if lease is None else f"; it ends at server {lease.server} by itself"
                _log.warning("%s: lease cannot be released: %s%s", self.key, error, left)
        self.end(LeaseDenied(f"{self.key}: released"))
        self._store.delete(self.key)

    def end(self, error: DHCPError) -> None:
        """Stop: whoever waits gets ``error``. What is remembered stays."""
        if not self.over and self.place.root is not None:
            os.close(self.place.root)
        self.over = True
        self._close_port()
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_exception(error)
        self.waiters.clear()

    def verify(self) -> None:
        """Raise :class:`ContainerGone` if the interface is not the one that the lease is for."""
        now = interface.identify(self.place, self.key.ifname)
        if (now.netns_id, now.mac) != (self.identity.netns_id, self.identity.mac):
            raise InterfaceGone(f"{self.place} holds another interface {self.key.ifname} by now")

    def _guarded(self, step: Callable[[], list[Action]], now: float) -> None:
        """Do a step that no call waits for: what fails is told to the log, and ends what cannot go on."""
        try:
            self._perform(step(), now)
        except ContainerGone as error:
            _log.info("%s: its container is gone, the lease is forgotten: %s", self.key, error)
            self.end(error)
            self._forget()
        except StoreError as error:
            _log.error("%s: %s", self.key, error)
            if self.waiters:
                self._refuse(error)
        except KernelError as error:
            _log.warning("%s: %s", self.key, error)

    def _refuse(self, error: DHCPError) -> None:
        """Give back a lease that cannot be written down: it would be forgotten at the next start."""
        waiters, self.waiters = self.waiters, []
        try:
            self.release()
        except StoreError:
            pass
        for waiter in waiters:
            if not waiter.done():
                waiter.set_exception(error)

    def _forget(self) -> None:
        try:
            self._store.delete(self.key)
        except StoreError as error:
            _log.error("%s: %s", self.key, error)

    def _perform(self, actions: list[Action], now: float) -> None:
        for action in actions:
            match action:
                case Send():
                    self._try_to_send(action, now)
                case Chosen(lease=lease):
                    # Once it was asked for, the server may count it as given.
                    if self._stripped is None:
                        self._write(lease, pending=True)
                case Bound(lease=lease, renewed=renewed):
                    self._bound(lease, renewed)
                case Lost(lease=lease, reason=reason):
                    _log.warning("%s: lost %s: %s; the interface goes down", self.key, lease.address, reason)
                    self._stripped = lease, []
                    self._write(lease, lost=True)
                    self._stripped = lease, interface.strip(self.place, self.key.ifname, lease)
                case Resumed():
                    self.verify()
                    interface.bring_up(self.place, self.key.ifname)
                case Paused():
                    self._close_port()
                    interface.take_down(self.place, self.key.ifname)

    def _bound(self, lease: Lease, renewed: bool) -> None:
        self._write(lease)
        self._close_port()
        _log.info(
            "%s: %s %s for %d s", self.key, "renewed" if renewed else "got", lease.address, lease.seconds
        )
        if self._stripped is not None:
            (lost, earlier), self._stripped = self._stripped, None
            same = (lost.address, lost.router) == (lease.address, lease.router)
            given = given_routes(self.wish, lease)
            interface.dress(
                self.place,
                self.key.ifname,
                lease,
                earlier=earlier if same else (),
                given=given,
                metric=self.wish.metric,
            )
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(lease)
        self.waiters.clear()

    def _write(self, lease: Lease, *, pending: bool = False, lost: bool = False) -> None:
        self._store.put(
            self.key,
            Record(
                self.wish,
                self.identity.netns_id,
                self.identity.mac,
                boot_id(),
                lease,
                self._station,
                pending=pending,
                lost=lost,
                foreign=self.place.root is not None,
            ),
        )

    def _try_to_send(self, action: Send, now: float) -> None:
        """Send; what cannot be sent now counts as lost on the way, and is tried again at its time."""
        try:
            self._send(action)
        except KernelError as error:
            self._close_port()
            _log.info("%s: %s", self.key, error)
            self.verify()
        waits = self.client.state in {State.RENEWING, State.REBINDING}
        self._quiet = now + ANSWER_SECONDS if waits and self.port is not None else None

    def _send(self, action: Send) -> None:
        if self.port is None:
            with interface.open_netns(self.place) as container:
                if container.identity != self.identity.netns_id:
                    raise ContainerGone(f"{self.place} is another namespace by now")
                self.port = DatagramPort(container, self.key.ifname, CLIENT_PORT)
        packet = action.packet
        self.port.send(
            encode(packet),
            SERVER_PORT,
            source=packet.client,
            destination=action.server or BROADCAST,
            station=self._station if action.server else BROADCAST_STATION,
        )

    def _close_port(self) -> None:
        port, self.port = self.port, None
        self._quiet = None
        if port is not None:
            port.close()


def boot_id() -> str:
    """The kernel's ID of this boot: namespaces of an earlier one are gone."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
