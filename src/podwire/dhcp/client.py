"""The DHCP client of one interface as a pure state machine (RFC 2131 figure 5).

It is told what happens (`begin`, `resume`, `received`, `tick`, `release`) with the time, and answers with
what is to be done (`Action`); it sends nothing and looks at no clock. Times are seconds of any clock that
goes on.

What goes beyond the figure: a lost lease is asked for again, in windows with growing pauses between them; and
only the server that gave a lease can take it away before it ends.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Mapping
from ipaddress import IPv4Address
from typing import TypeAlias

import msgspec

from podwire.dhcp.errors import Unusable
from podwire.dhcp.lease import Lease, lease_of
from podwire.dhcp.packet import LARGEST, UNSPECIFIED, Kind, Option, Packet

REQUEST_TRIES = 4
"""How often an offer, or a remembered lease, is asked for before the server counts as gone."""
WINDOW_SECONDS = 15.0
"""How long a lost lease is asked for before the next pause."""
PAUSES = (15.0, 30.0, 60.0, 120.0, 300.0)
"""The pauses between these windows; the last one stays."""
NAK_PAUSE = 2.0
"""The pause after a server refused what it had offered."""
_LONGEST_WAIT = 64.0
_SHORTEST_RETRY = 60.0


class State(enum.StrEnum):
    """Where the client stands."""

    INIT = "init"
    SELECTING = "selecting"
    REQUESTING = "requesting"
    REBOOTING = "rebooting"
    BOUND = "bound"
    RENEWING = "renewing"
    REBINDING = "rebinding"
    PAUSED = "paused"
    ENDED = "ended"


class Profile(msgspec.Struct, frozen=True):
    """Who asks and what for. ``provide`` are options that go along, ``parameters`` those that are asked for.

    ``broadcast`` has servers answer by broadcast, for interfaces that get no packet before they have an
    address.
    """

    mac: bytes
    client_id: bytes
    provide: Mapping[int, bytes] = {}
    parameters: tuple[int, ...] = (Option.SUBNET_MASK, Option.ROUTERS)
    broadcast: bool = False


class Send(msgspec.Struct, frozen=True):
    """Send a packet: to ``server`` from the leased address, or to everybody where it is None."""

    packet: Packet
    server: IPv4Address | None = None


class Chosen(msgspec.Struct, frozen=True):
    """An offer is about to be taken: from here on the server may think that the address is ours."""

    lease: Lease


class Bound(msgspec.Struct, frozen=True):
    """There is a lease: a first one, the same for another term (``renewed``), or one after a lost one."""

    lease: Lease
    renewed: bool = False


class Lost(msgspec.Struct, frozen=True):
    """The lease has ended, or its server took it away: its address must not be used any more."""

    lease: Lease
    reason: str


class Paused(msgspec.Struct, frozen=True):
    """No server answered for a lost lease; nothing is sent until the next window."""

    seconds: float


class Resumed(msgspec.Struct, frozen=True):
    """The next window for a lost lease begins: the interface must be able to send."""


Action: TypeAlias = Send | Chosen | Bound | Lost | Paused | Resumed


class Client:
    """One client. ``due`` is when `tick` is to be called next (None: not before something comes)."""

    def __init__(self, profile: Profile, chance: random.Random | None = None) -> None:
        self.profile = profile
        self.state = State.INIT
        self.lease: Lease | None = None
        self.due: float | None = None
        self.trouble: str = ""
        """The last answer that no lease could be made of; empty if there was none."""
        self._chance = chance or random.SystemRandom()
        self._xid = 0
        self._tries = 0
        self._sent = 0.0
        self._started = 0.0
        self._window: float | None = None  # when asking for a lost lease pauses
        self._pauses = 0

    def begin(self, now: float) -> list[Action]:
        """Ask for a lease."""
        return self._select(now)

    def resume(self, lease: Lease, now: float, delay: float = 0.0, *, lost: bool = False) -> list[Action]:
        """Take up a remembered lease (INIT-REBOOT), after ``delay`` seconds; one that has ended is lost.

        Of one that was ``lost`` before only the asking goes on.
        """
        self.lease = lease
        if lost or now >= lease.expires:
            return self._lose(now, "it was lost before" if lost else "it ended while nobody kept it")
        self.state = State.REBOOTING
        self._transaction(now)
        self.due = now + delay
        return self.tick(now) if delay <= 0 else []

    def assume(self, lease: Lease) -> None:
        """Count a lease as held, without asking anybody."""
        self.state, self.lease, self.due = State.BOUND, lease, _finite(lease.renews)

    def release(self) -> list[Action]:
        """Give back what is leased, or was asked for; the client is at its end."""
        lease, self.due = self.lease, None
        held = self.state in {State.REQUESTING, State.REBOOTING, State.BOUND, State.RENEWING, State.REBINDING}
        self.state = State.ENDED
        if lease is None or not held:
            return []
        self._xid = self._chance.getrandbits(32)
        server = IPv4Address(lease.server)
        options: dict[int, bytes] = {
            Option.MESSAGE_TYPE: bytes((Kind.RELEASE,)),
            Option.SERVER: server.packed,
            Option.CLIENT_ID: self._client_id,
        }
        packet = Packet(self._xid, self.profile.mac, options, client=lease.ip)
        return [Send(packet, server)]

    def tick(self, now: float) -> list[Action]:
        """Do what is due by now."""
        if self.due is None or now < self.due:
            return []
        lease = self.lease
        match self.state:
            case State.SELECTING:
                if self._window is not None and now >= self._window:
                    return self._pause(now)
                return self._discover(now)
            case State.REQUESTING:
                return self._request(now) if self._tries < REQUEST_TRIES else self._select(now)
            case State.PAUSED:
                self._window = now + WINDOW_SECONDS
                return [Resumed(), *self._select(now)]
            case State.REBOOTING | State.BOUND | State.RENEWING | State.REBINDING if lease is not None:
                return self._keep(lease, now)
            case _:
                self.due = None
                return []

    def received(self, packet: Packet, now: float) -> list[Action]:
        """Take a message; what is not for this client, or comes at the wrong time, is nothing."""
        if not packet.reply or packet.xid != self._xid or packet.mac != self.profile.mac:
            return []
        match self.state, packet.kind:
            case State.SELECTING, Kind.OFFER:
                return self._choose(packet, now)
            case State.REQUESTING, Kind.ACK:
                return self._take(packet, now)
            case State.REQUESTING, Kind.NAK:
                if self.lease is None or str(packet.server_id) != self.lease.server:
                    return []
                return self._refused(packet, now)
            case ((State.REBOOTING | State.RENEWING | State.REBINDING), Kind.ACK):
                return self._take(packet, now)
            case ((State.REBOOTING | State.RENEWING | State.REBINDING), Kind.NAK):
                if self.lease is None or str(packet.server_id) != self.lease.server:
                    self.trouble = f"server {packet.server_id}, which did not give the lease, refused it"
                    return []
                return self._lose(now, f"server {packet.server_id} took it away{_said(packet)}")
            case _:
                return []

    def _select(self, now: float) -> list[Action]:
        self.state = State.SELECTING
        self.lease = None
        self._transaction(now)
        return self._discover(now)

    def _transaction(self, now: float) -> None:
        self._xid = self._chance.getrandbits(32)
        self._tries = 0
        self._started = now

    def _discover(self, now: float) -> list[Action]:
        return [self._broadcast(Kind.DISCOVER, {}, now)]

    def _choose(self, offer: Packet, now: float) -> list[Action]:
        server = offer.server_id
        try:
            if server is None:
                raise Unusable(f"an offer of {offer.yours} names no server (option 54)")
            self.lease = lease_of(offer, server, now)
        except Unusable as error:
            self.trouble = str(error)
            return []
        self.state = State.REQUESTING
        self._tries = 0
        return [Chosen(self.lease), *self._request(now)]

    def _request(self, now: float) -> list[Action]:
        assert self.lease is not None
        wanted: dict[int, bytes] = {Option.REQUESTED_ADDRESS: self.lease.ip.packed}
        if self.state is State.REQUESTING:
            wanted[Option.SERVER] = IPv4Address(self.lease.server).packed
        return [self._broadcast(Kind.REQUEST, wanted, now)]

    def _take(self, ack: Packet, now: float) -> list[Action]:
        held = self.lease
        assert held is not None
        server = ack.server_id or IPv4Address(held.server)
        if self.state in {State.REQUESTING, State.RENEWING} and str(server) != held.server:
            return []
        try:
            # The term began when it was asked for, not when the answer came (RFC 2131 section 4.4.5).
            lease = lease_of(ack, server, self._sent)
        except Unusable as error:
            self.trouble = str(error)
            return []
        if now >= lease.expires:
            return []
        renewed = self.state is not State.REQUESTING
        if renewed and lease.ip != held.ip:
            self.trouble = f"server {server} answered with {lease.ip} where {held.ip} was to be renewed"
            return []
        self._bind(lease)
        return [Bound(lease, renewed)]

    def _bind(self, lease: Lease) -> None:
        self.lease = lease
        self.state = State.BOUND
        self.trouble = ""
        self._window = None
        self._pauses = 0
        self.due = _finite(lease.renews)

    def _refused(self, nak: Packet, now: float) -> list[Action]:
        self.trouble = f"server {nak.server_id} refused what it had offered{_said(nak)}"
        self.state = State.SELECTING
        self.lease = None
        self._transaction(now)
        self.due = now + NAK_PAUSE
        return []

    def _keep(self, lease: Lease, now: float) -> list[Action]:
        """Renew, rebind or lose what is held, as the time demands."""
        if now >= lease.expires:
            return self._lose(now, "it ended before a server renewed it")
        if self.state is State.REBOOTING and self._tries < REQUEST_TRIES:
            actions = self._request(now)
            self.due = min(now + self._wait(), lease.expires)
            return actions
        stage = (
            State.REBINDING
            if now >= lease.rebinds
            else State.RENEWING
            if now >= lease.renews
            else State.BOUND  # nobody answered about a remembered lease: it holds as long as it was given
        )
        if stage is State.BOUND:
            self.state = stage
            self.due = _finite(lease.renews)
            return []
        if stage is not self.state:
            self.state = stage
            self._transaction(now)
        end = lease.rebinds if stage is State.RENEWING else lease.expires
        least = min(_SHORTEST_RETRY, lease.seconds / 16)
        self.due = min(now + max((end - now) / 2, least), end)
        packet = self._packet(Kind.REQUEST, {}, now, client=lease.ip)
        return [Send(packet, IPv4Address(lease.server) if stage is State.RENEWING else None)]

    def _lose(self, now: float, reason: str) -> list[Action]:
        lease = self.lease
        assert lease is not None
        self._window = now + WINDOW_SECONDS
        self._pauses = 0
        return [Lost(lease, reason), Resumed(), *self._select(now)]

    def _pause(self, now: float) -> list[Action]:
        seconds = PAUSES[min(self._pauses, len(PAUSES) - 1)] * self._chance.uniform(0.9, 1.1)
        self._pauses += 1
        self.state = State.PAUSED
        self.due = now + seconds
        return [Paused(seconds)]

    def _wait(self) -> float:
        """The time until the next try: 0.5, 1, 2, 4 ... 64 s, a tenth more or less (RFC 2131 section 4.1).

        The first packet of a new interface is the one that is lost, where its switch does not forward yet.
        """
        return min(2.0 ** (self._tries - 2), _LONGEST_WAIT) * self._chance.uniform(0.9, 1.1)

    def _broadcast(self, kind: Kind, more: Mapping[int, bytes], now: float) -> Send:
        packet = self._packet(kind, more, now)
        self.due = now + self._wait()
        if self._window is not None and self.state is State.SELECTING:
            self.due = min(self.due, max(self._window, now))
        return Send(packet)

    def _packet(
        self, kind: Kind, more: Mapping[int, bytes], now: float, *, client: IPv4Address = UNSPECIFIED
    ) -> Packet:
        self._tries += 1
        self._sent = now
        options: dict[int, bytes] = {
            Option.LARGEST_MESSAGE: LARGEST.to_bytes(2),
            Option.CLIENT_ID: self._client_id,
            **self.profile.provide,
            **more,
            Option.MESSAGE_TYPE: bytes((kind,)),
        }
        if self.profile.parameters:
            options[Option.PARAMETERS] = bytes(self.profile.parameters)
        return Packet(
            self._xid,
            self.profile.mac,
            options,
            seconds=int(max(0.0, now - self._started)),
            broadcast=self.profile.broadcast and client == UNSPECIFIED,
            client=client,
        )

    @property
    def _client_id(self) -> bytes:
        return self.profile.provide.get(Option.CLIENT_ID) or self.profile.client_id


def _finite(time: float) -> float | None:
    return None if time == float("inf") else time


def _said(packet: Packet) -> str:
    text = packet.options.get(Option.MESSAGE, b"").decode(errors="replace").strip("\0")
    return f': "{text}"' if text.isprintable() and text else ""
