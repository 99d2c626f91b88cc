"""The state machine as a script of what happens and what is done: no sockets, no clock."""

from __future__ import annotations

import itertools
import random
from ipaddress import IPv4Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.dhcp.client import (
    REQUEST_TRIES,
    WINDOW_SECONDS,
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
from podwire.dhcp.lease import FOREVER, Lease
from podwire.dhcp.packet import Kind, Option, Packet

MAC = bytes.fromhex("028800000101")
SERVER = IPv4Address("10.0.0.1")
ADDRESS = IPv4Address("10.0.0.5")
PROFILE = Profile(MAC, b"\0id/net/eth0")


def client(profile: Profile = PROFILE) -> Client:
    return Client(profile, random.Random(1))


def kinds(actions: list[Action]) -> list[str]:
    """The actions, by the message types of what is sent; unicasts end with an exclamation mark."""
    told = []
    for action in actions:
        if isinstance(action, Send):
            kind = action.packet.kind
            assert kind is not None
            told.append(kind.name + ("!" if action.server else ""))
        else:
            told.append(type(action).__name__)
    return told


def reply(
    asked: Packet, kind: Kind, *, server: IPv4Address = SERVER, seconds: int = 1000, **more: bytes
) -> Packet:
    options: dict[int, bytes] = {53: bytes((kind,)), 54: server.packed, 51: seconds.to_bytes(4)}
    return Packet(
        asked.xid, asked.mac, {1: b"\xff\xff\xff\0", **options, **{int(k[1:]): v for k, v in more.items()}},
        reply=True, yours=ADDRESS,
    )  # fmt: skip


def sent(actions: list[Action]) -> Packet:
    return next(one.packet for one in actions if isinstance(one, Send))


def bound(machine: Client, now: float = 0.0, seconds: int = 1000) -> Lease:
    discover = sent(machine.begin(now))
    request = sent(machine.received(reply(discover, Kind.OFFER, seconds=seconds), now))
    actions = machine.received(reply(request, Kind.ACK, seconds=seconds), now)
    assert kinds(actions) == ["Bound"]
    assert machine.state is State.BOUND
    assert machine.lease is not None
    return machine.lease


def at_due(machine: Client) -> tuple[float, list[Action]]:
    assert machine.due is not None
    now = machine.due
    return now, machine.tick(now)


def test_from_discover_to_bound() -> None:
    machine = client()
    discover = sent(machine.begin(0))
    assert discover.options[Option.CLIENT_ID] == b"\0id/net/eth0"
    actions = machine.received(reply(discover, Kind.OFFER), 0.1)
    assert kinds(actions) == ["Chosen", "REQUEST"]
    request = sent(actions)
    assert request.xid == discover.xid
    assert request.options[50] == ADDRESS.packed
    assert request.options[54] == SERVER.packed
    (action,) = machine.received(reply(request, Kind.ACK), 0.2)
    assert isinstance(action, Bound) and not action.renewed
    # The term counts from the request, not from the answer.
    assert action.lease.acquired == 0.1
    assert machine.due == pytest.approx(500.1)


def test_discovers_are_repeated_with_growing_pauses() -> None:
    machine = client()
    machine.begin(0)
    times = [0.0]
    xids = set()
    for _ in range(9):
        now, actions = at_due(machine)
        assert kinds(actions) == ["DISCOVER"]
        xids.add(sent(actions).xid)
        times.append(now)
    pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
    for pause, middle in zip(pauses, (0.5, 1, 2, 4, 8, 16, 32, 64, 64), strict=True):
        assert middle * 0.9 <= pause <= middle * 1.1
    assert len(xids) == 1


def test_the_seconds_since_the_start_are_told() -> None:
    machine = client()
    machine.begin(0)
    while (machine.due or 0) < 5:
        now, actions = at_due(machine)
        assert sent(actions).seconds == int(now)


def test_an_offer_whose_server_falls_silent_is_given_up() -> None:
    machine = client()
    first = sent(machine.begin(0))
    machine.received(reply(first, Kind.OFFER), 0)
    for _ in range(REQUEST_TRIES - 1):
        assert kinds(at_due(machine)[1]) == ["REQUEST"]
    _, actions = at_due(machine)
    assert kinds(actions) == ["DISCOVER"]
    assert sent(actions).xid != first.xid
    assert machine.lease is None


def test_renewing_goes_to_the_server_and_halves_the_time_left() -> None:
    machine = client()
    bound(machine)
    now, actions = at_due(machine)
    assert now == 500
    assert kinds(actions) == ["REQUEST!"]
    packet = sent(actions)
    assert packet.client == ADDRESS
    assert not packet.options.keys() & {50, 54}
    times = [now]
    while times[-1] < 850:
        now, actions = at_due(machine)
        times.append(now)
    assert times == [500, 675, 762.5, 822.5, 850]
    assert kinds(actions) == ["REQUEST"]
    assert machine.state is State.REBINDING


def test_renewed_in_time_it_is_bound_for_another_term() -> None:
    machine = client()
    bound(machine)
    now, actions = at_due(machine)
    (action,) = machine.received(reply(sent(actions), Kind.ACK), now + 1)
    assert isinstance(action, Bound) and action.renewed
    assert action.lease.expires == 1500
    assert machine.due == 1000


def test_a_renewal_that_answers_with_another_address_is_none() -> None:
    machine = client()
    bound(machine)
    now, actions = at_due(machine)
    answer = reply(sent(actions), Kind.ACK)
    other = Packet(answer.xid, MAC, answer.options, reply=True, yours=IPv4Address("10.0.0.6"))
    assert machine.received(other, now) == []
    assert "10.0.0.6 where 10.0.0.5 was to be renewed" in machine.trouble
    assert machine.state is State.RENEWING


def test_expired_it_is_lost_and_asked_for_again_in_windows() -> None:
    machine = client()
    lease = bound(machine)
    seen: list[str] = []
    now, actions = 0.0, list[Action]()
    while "Lost" not in seen:
        now, actions = at_due(machine)
        seen += kinds(actions)
    assert now == 1000
    assert seen[-3:] == ["Lost", "Resumed", "DISCOVER"]
    pauses: list[float] = []
    for _ in range(7):
        began, words = now, []
        while "Paused" not in words:
            now, actions = at_due(machine)
            words += kinds(actions)
        assert WINDOW_SECONDS - 0.01 <= now - began <= WINDOW_SECONDS + 0.01
        assert machine.state is State.PAUSED
        pauses += [one.seconds for one in actions if isinstance(one, Paused)]
        now, actions = at_due(machine)
        assert kinds(actions) == ["Resumed", "DISCOVER"]
    for pause, middle in zip(pauses, (15, 30, 60, 120, 300, 300, 300), strict=True):
        assert middle * 0.9 <= pause <= middle * 1.1
    request = sent(machine.received(reply(sent(actions), Kind.OFFER), now))
    (action,) = machine.received(reply(request, Kind.ACK), now)
    assert isinstance(action, Bound) and not action.renewed
    assert action.lease.ip == lease.ip


def test_a_nak_of_its_server_ends_a_lease_at_once() -> None:
    machine = client()
    bound(machine)
    now, actions = at_due(machine)
    answer = machine.received(reply(sent(actions), Kind.NAK, o56=b"not yours"), now)
    assert kinds(answer) == ["Lost", "Resumed", "DISCOVER"]
    assert isinstance(answer[0], Lost)
    assert answer[0].reason == 'server 10.0.0.1 took it away: "not yours"'


@pytest.mark.parametrize("ticks", [1, 5], ids=["renewing", "rebinding"])
def test_a_nak_of_another_server_ends_nothing(ticks: int) -> None:
    machine = client()
    lease = bound(machine)
    now, actions = 0.0, list[Action]()
    for _ in range(ticks):
        now, actions = at_due(machine)
    assert machine.received(reply(sent(actions), Kind.NAK, server=IPv4Address("10.0.0.9")), now) == []
    assert machine.lease == lease


def test_rebinding_takes_another_server() -> None:
    machine = client()
    bound(machine)
    now, actions = 0.0, list[Action]()
    while machine.state is not State.REBINDING:
        now, actions = at_due(machine)
    (action,) = machine.received(reply(sent(actions), Kind.ACK, server=IPv4Address("10.0.0.9")), now)
    assert isinstance(action, Bound)
    assert action.lease.server == "10.0.0.9"


def test_init_reboot_asks_for_the_remembered_address() -> None:
    lease = bound(client())
    machine = client()
    actions = machine.resume(lease, 100)
    assert kinds(actions) == ["REQUEST"]
    request = sent(actions)
    assert request.options[50] == ADDRESS.packed
    assert 54 not in request.options
    assert request.client == IPv4Address(0)
    (action,) = machine.received(reply(request, Kind.ACK), 101)
    assert isinstance(action, Bound) and action.renewed
    assert action.lease.acquired == 100


def test_init_reboot_can_wait_for_its_turn() -> None:
    machine = client()
    assert machine.resume(bound(client()), 100, delay=5) == []
    assert machine.due == 105
    assert kinds(at_due(machine)[1]) == ["REQUEST"]


@pytest.mark.parametrize(
    ("now", "state"), [(100, State.BOUND), (600, State.RENEWING), (900, State.REBINDING)]
)
def test_an_unanswered_init_reboot_leaves_the_lease_as_it_was(now: float, state: State) -> None:
    lease = bound(client())
    machine = client()
    machine.resume(lease, now)
    while machine.state is State.REBOOTING:
        at_due(machine)
    assert machine.state is state
    assert machine.lease == lease


def test_what_ended_meanwhile_is_lost() -> None:
    actions = client().resume(bound(client()), 1000)
    assert kinds(actions) == ["Lost", "Resumed", "DISCOVER"]


def test_a_lease_for_ever_needs_no_timer() -> None:
    machine = client()
    bound(machine, seconds=FOREVER)
    assert machine.due is None


@pytest.mark.parametrize("state", ["init", "selecting", "requesting", "bound", "renewing", "lost"])
def test_release_in_every_state(state: str) -> None:
    machine = client()
    if state in {"bound", "renewing", "lost"}:
        bound(machine)
        if state == "renewing":
            at_due(machine)
        while state == "lost" and machine.state is not State.SELECTING:
            at_due(machine)
    elif state != "init":
        discover = sent(machine.begin(0))
        if state == "requesting":
            machine.received(reply(discover, Kind.OFFER), 0)
    actions = machine.release()
    held = state in {"requesting", "bound", "renewing"}
    assert kinds(actions) == (["RELEASE!"] if held else [])
    if held:
        packet = sent(actions)
        assert packet.client == ADDRESS
        assert packet.options.keys() == {53, 54, 61}
    assert machine.due is None
    assert machine.tick(10**9) == []


def test_given_options_go_along_and_the_client_id_may_be_one_of_them() -> None:
    profile = Profile(MAC, b"\0x", provide={12: b"web", 61: b"mine"}, parameters=(6,), broadcast=True)
    machine = client(profile)
    discover = sent(machine.begin(0))
    assert discover.options[12] == b"web"
    assert discover.options[61] == b"mine"
    assert discover.options[55] == b"\6"
    assert discover.broadcast
    sent(machine.received(reply(discover, Kind.OFFER), 0))
    assert sent(machine.release()).options[61] == b"mine"


def test_without_parameters_none_are_asked_for() -> None:
    assert 55 not in sent(client(Profile(MAC, b"\0x", parameters=())).begin(0)).options


EVENTS = st.lists(
    st.one_of(
        st.just(("tick", Kind.ACK, 0)),
        st.tuples(st.just("answer"), st.sampled_from(list(Kind)), st.integers(0, 3)),
        st.tuples(st.just("pass"), st.just(Kind.ACK), st.integers(1, 2000)),
    ),
    max_size=60,
)


@given(EVENTS, st.integers(0, 2**16))
def test_whatever_happens_the_client_never_holds_what_was_not_acknowledged(
    events: list[tuple[str, Kind, int]], seed: int
) -> None:
    """A model beside it: bound only by an ACK that fits, lost only at the end or by the server's NAK."""
    machine = Client(PROFILE, random.Random(seed))
    now = 0.0
    last = sent(machine.begin(now))
    held: Lease | None = None
    for what, kind, number in events:
        if what == "pass":
            now += number
            continue
        if what == "tick":
            actions = machine.tick(now)
        else:
            server = SERVER if number % 2 == 0 else IPv4Address("10.0.0.9")
            answer = reply(last, kind, server=server)
            if number >= 2:
                answer = Packet(answer.xid ^ 1, MAC, answer.options, reply=True, yours=ADDRESS)
            actions = machine.received(answer, now)
            if number >= 2:
                assert actions == []
        for action in actions:
            match action:
                case Send(packet=packet):
                    last = packet
                case Bound(lease=lease):
                    assert what == "answer" and kind is Kind.ACK
                    assert lease.expires > now
                    held = lease
                case Lost(lease=lease):
                    assert held == lease
                    assert now >= lease.expires or kind is Kind.NAK
                    held = None
                case Chosen():
                    assert kind is Kind.OFFER
                case Paused() | Resumed():
                    assert held is None
        assert machine.due is not None
        if machine.state in {State.BOUND, State.RENEWING, State.REBINDING}:
            assert machine.lease == held
