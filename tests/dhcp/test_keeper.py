"""The keeper on real interfaces, with a server that does as it is told and a clock that is moved by hand."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from ipaddress import IPv4Address
from pathlib import Path

import msgspec
import pytest

from podwire.dhcp.errors import ContainerGone, InterfaceGone, KeeperUnavailable, LeaseDenied, NoLease
from podwire.dhcp.keeper import SWEEP_SECONDS, LeaseKeeper
from podwire.dhcp.lease import Lease
from podwire.dhcp.packet import Kind, Option, Packet, encode
from podwire.dhcp.records import Key, Record, Wish
from podwire.dhcp.store import LeaseStore
from tests.dhcp.helpers import (
    BRIDGE,
    SERVER,
    Clock,
    Server,
    addresses,
    is_up,
    key,
    make_pod,
    running,
    sh,
    soon,
)
from tests.waiting import until

pytestmark = pytest.mark.kernel


def keeper_at(path: Path, clock: Clock) -> LeaseKeeper:
    return LeaseKeeper(path / "leases.sqlite", clock=clock, spread=0.0)


def written(path: Path) -> dict[Key, Record]:
    """What is on disk once no keeper has it."""
    store = LeaseStore(path / "leases.sqlite")
    try:
        return store.load()[0]
    finally:
        store.close()


def put_on(lease: Lease, pod: str = "pod") -> None:
    """What the main plugin does with it."""
    sh("ip", "-n", pod, "address", "add", lease.address, "broadcast", "+", "dev", "eth0")
    sh("ip", "-n", pod, "route", "add", "default", "via", str(SERVER))


def test_a_lease_is_got_renewed_and_given_back(pod: Wish, clock: Clock, tmp_path: Path) -> None:
    with Server() as server, keeper_at(tmp_path, clock) as keeper:
        lease = keeper.acquire(key(), pod, soon())
        assert (lease.address, lease.server, lease.router) == ("10.88.0.50/24", str(SERVER), str(SERVER))
        assert server.kinds() == [Kind.DISCOVER, Kind.REQUEST]
        discover, request = server.seen
        assert discover.options[Option.CLIENT_ID] == b"\0id-pod/net/eth0"
        assert discover.options[Option.PARAMETERS] == bytes((3, 1, 58, 59))
        assert request.options[Option.REQUESTED_ADDRESS] == IPv4Address("10.88.0.50").packed
        assert keeper.check(key()) == lease
        put_on(lease)
        clock.advance(299, keeper)
        assert keeper.check(key()).acquired == lease.acquired
        clock.advance(2, keeper)
        renewal = server.wait_for(Kind.REQUEST, 2)
        # RFC 2131 section 4.3.2: unicast from the address itself, without server and requested address.
        assert renewal.client == IPv4Address("10.88.0.50")
        assert not renewal.options.keys() & {Option.SERVER, Option.REQUESTED_ADDRESS}
        until(lambda: keeper.check(key()).acquired == clock.now)
        assert keeper.release(key())
        release = server.wait_for(Kind.RELEASE)
        assert release.client == IPv4Address("10.88.0.50")
        assert release.options[Option.CLIENT_ID] == b"\0id-pod/net/eth0"
        with pytest.raises(NoLease):
            keeper.check(key())
        assert not keeper.release(key())
    assert written(tmp_path) == {}


def test_no_socket_stays_open_while_a_lease_is_bound(pod: Wish, clock: Clock, tmp_path: Path) -> None:
    def sockets() -> int:
        return sum("socket:" in str(each.readlink()) for each in _descriptors())

    with Server(), keeper_at(tmp_path, clock) as keeper:
        before = sockets()
        keeper.acquire(key(), pod, soon())
        until(lambda: sockets() == before)


def _descriptors() -> list[Path]:
    return [each for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]


def test_the_lease_is_on_disk_before_it_is_answered(pod: Wish, clock: Clock, tmp_path: Path) -> None:
    with Server(), keeper_at(tmp_path, clock) as keeper:
        lease = keeper.acquire(key(), pod, soon())
    (record,) = written(tmp_path).values()
    assert record.lease == lease
    assert not record.pending
    assert record.mac == bytes.fromhex("028800000101")


def test_a_second_add_gets_the_same_lease(pod: Wish, clock: Clock, tmp_path: Path) -> None:
    with Server() as server, keeper_at(tmp_path, clock) as keeper:
        lease = keeper.acquire(key(), pod, soon())
        assert keeper.acquire(key(), pod, soon()) == lease
        assert server.kinds() == [Kind.DISCOVER, Kind.REQUEST]


def test_an_interface_made_again_gets_a_lease_of_its_own(pod: Wish, clock: Clock, tmp_path: Path) -> None:
    with Server() as server, keeper_at(tmp_path, clock) as keeper:
        keeper.acquire(key(), pod, soon())
        sh("ip", "link", "delete", "v-pod")
        sh("ip", "netns", "delete", "pod")
        again = make_pod(mac="02:88:00:00:01:02")
        keeper.acquire(key(), again, soon())
        assert [packet.mac[-1] for packet in server.seen if packet.kind is Kind.REQUEST] == [1, 2]


def test_plugins_235_a_restarted_keeper_goes_on_with_its_leases(
    pod: Wish, clock: Clock, tmp_path: Path
) -> None:
    with Server() as server:
        with keeper_at(tmp_path, clock) as keeper:
            lease = keeper.acquire(key(), pod, soon())
        put_on(lease)
        clock.now += 100
        with keeper_at(tmp_path, clock) as keeper:
            # INIT-REBOOT: the address as an option, no server, and nobody's address as the sender's.
            confirmed = server.wait_for(Kind.REQUEST, 2)
            assert confirmed.options[Option.REQUESTED_ADDRESS] == IPv4Address("10.88.0.50").packed
            assert Option.SERVER not in confirmed.options
            assert confirmed.client == IPv4Address(0)
            until(lambda: keeper.check(key()).acquired == clock.now)
            clock.advance(301, keeper)
            server.wait_for(Kind.REQUEST, 3)
        assert server.count(Kind.DISCOVER) == 1
        assert server.count(Kind.RELEASE) == 0


def test_a_restarted_keeper_keeps_a_lease_that_no_server_confirms(
    pod: Wish, clock: Clock, tmp_path: Path
) -> None:
    with Server() as server:
        with keeper_at(tmp_path, clock) as keeper:
            lease = keeper.acquire(key(), pod, soon())
        server.silent = True
        with keeper_at(tmp_path, clock) as keeper:
            for number in range(2, 6):
                server.wait_for(Kind.REQUEST, number)
                clock.advance(10, keeper)
            assert keeper.check(key()) == lease
            server.silent = False
            clock.advance(300, keeper)
            until(lambda: keeper.check(key()).acquired == clock.now)


def test_plugins_767_leases_of_containers_that_are_gone_are_forgotten_at_the_start(
    pod: Wish, clock: Clock, tmp_path: Path
) -> None:
    with Server() as server:
        with keeper_at(tmp_path, clock) as keeper:
            keeper.acquire(key(), pod, soon())
            keeper.acquire(key("other"), make_pod("other", "02:88:00:00:01:02"), soon())
        sh("ip", "netns", "delete", "pod")
        with keeper_at(tmp_path, clock) as keeper:
            until(lambda: list(keeper.leases()) == [key("other")])
        assert list(written(tmp_path)) == [key("other")]
        assert server.count(Kind.DISCOVER) == 2


def test_leases_of_an_earlier_boot_are_forgotten(
    pod: Wish, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Server():
        with keeper_at(tmp_path, clock) as keeper:
            keeper.acquire(key(), pod, soon())
        monkeypatch.setattr("podwire.dhcp.keeper.boot_id", lambda: "another boot")
        with keeper_at(tmp_path, clock) as keeper:
            assert keeper.leases() == {}


def test_what_was_asked_for_but_told_to_nobody_is_given_back_at_the_start(
    pod: Wish, clock: Clock, tmp_path: Path
) -> None:
    with Server() as server:
        with keeper_at(tmp_path, clock) as keeper:
            keeper.acquire(key(), pod, soon())
        store = LeaseStore(tmp_path / "leases.sqlite")
        ((which, record),) = store.load()[0].items()
        store.put(which, msgspec.structs.replace(record, pending=True))
        store.close()
        with keeper_at(tmp_path, clock) as keeper:
            assert server.wait_for(Kind.RELEASE).client == IPv4Address("10.88.0.50")
            assert keeper.leases() == {}
    assert written(tmp_path) == {}


def test_a_record_that_cannot_be_read_costs_nobody_else_a_lease(
    pod: Wish, clock: Clock, tmp_path: Path
) -> None:
    import sqlite3

    with Server():
        with keeper_at(tmp_path, clock) as keeper:
            keeper.acquire(key(), pod, soon())
        database = sqlite3.connect(tmp_path / "leases.sqlite")
        database.execute("INSERT INTO lease VALUES ('net', 'broken', 'eth0', '{')")
        database.commit()
        database.close()
        with keeper_at(tmp_path, clock) as keeper:
            assert list(keeper.leases()) == [key()]
    assert list(written(tmp_path)) == [key()]


def test_rebinding_takes_any_server(pod: Wish, clock: Clock, tmp_path: Path) -> None:
    with Server() as server, keeper_at(tmp_path, clock) as keeper:
        put_on(keeper.acquire(key(), pod, soon()))
        server.silent = True
        clock.advance(301, keeper)
        server.wait_for(Kind.REQUEST, 2)
        server.identifier = IPv4Address("10.88.0.2")  # another server has taken over
        server.silent = False
        clock.advance(220, keeper)
        asked = server.wait_for(Kind.REQUEST, 3)
        assert asked.client == IPv4Address("10.88.0.50")
        until(lambda: keeper.check(key()).server == "10.88.0.2")


def test_an_expired_lease_takes_the_link_down_and_the_next_one_up(
    pod: Wish, clock: Clock, tmp_path: Path
) -> None:
    with Server() as server, keeper_at(tmp_path, clock) as keeper:
        put_on(keeper.acquire(key(), pod, soon()))
        sh("ip", "-n", "pod", "route", "add", "10.99.0.0/16", "via", str(SERVER), "metric", "7")
        server.silent = True
        clock.advance(601, keeper)
        with running(clock, keeper, pace=30):
            server.wait_for(Kind.DISCOVER, 2)
            assert addresses() == []
            with pytest.raises(NoLease):
                keeper.check(key())
            until(lambda: not is_up())  # at the end of the window
            server.silent = False
            until(lambda: addresses() == ["10.88.0.50/24"])
        assert is_up()
        assert keeper.check(key()).acquired > 1615
        routes = sh("ip", "-n", "pod", "route")
        assert f"default via {SERVER}" in routes
        assert f"10.99.0.0/16 via {SERVER} dev eth0 metric 7" in routes


def test_a_new_address_after_a_lost_one_comes_with_the_leases_routes(
    pod: Wish, clock: Clock, tmp_path: Path
) -> None:
    wish = Wish(pod.netns, {}, pod.parameters, metric=42)
    with Server() as server, keeper_at(tmp_path, clock) as keeper:
        put_on(keeper.acquire(key(), wish, soon()))
        server.address = IPv4Address("10.88.0.60")
        server.refuse = True
        clock.advance(301, keeper)
        server.wait_for(Kind.REQUEST, 2)
        server.refuse = False
        with running(clock, keeper):
            until(lambda: addresses() == ["10.88.0.60/24"])
        assert keeper.check(key()).address == "10.88.0.60/24"
        assert f"default via {SERVER} dev eth0 proto static metric 42" in sh("ip", "-n", "pod", "route")


def test_a_lease_that_was_lost_before_the_restart_is_asked_for_again(
    pod: Wish, clock: Clock, tmp_path: Path
) -> None:
    with Server() as server:
        with keeper_at(tmp_path, clock) as keeper:
            put_on(keeper.acquire(key(), pod, soon()))
            server.silent = True
            clock.advance(601, keeper)
            with running(clock, keeper):
                server.wait_for(Kind.DISCOVER, 2)
        server.silent = False
        with keeper_at(tmp_path, clock) as keeper:
            with running(clock, keeper):
                until(lambda: addresses() == ["10.88.0.50/24"])
            assert keeper.check(key()).address == "10.88.0.50/24"


def test_another_servers_nak_takes_nothing_away(pod: Wish, clock: Clock, tmp_path: Path) -> None:
    with Server() as server, keeper_at(tmp_path, clock) as keeper:
        lease = keeper.acquire(key(), pod, soon())
        put_on(lease)
        server.answer = lambda asked: [
            encode(server.reply(asked, Kind.NAK, options={Option.SERVER: b"\x0a\x58\0\x09"})),
            *server.proper(asked),
        ]
        clock.advance(301, keeper)
        until(lambda: keeper.check(key()).acquired == clock.now)
        assert addresses() == [lease.address]


Answer = Callable[[Server, Packet], list[bytes]]
MISBEHAVIOUR: dict[str, Answer] = {
    "another xid first": lambda server, asked: [
        *map(encode, (server.reply(asked, kind, xid=asked.xid ^ 1) for kind in (Kind.OFFER, Kind.ACK))),
        *server.proper(asked),
    ],
    "another MAC first": lambda server, asked: [
        encode(server.reply(asked, Kind.OFFER, mac=b"\2\2\2\2\2\2", yours=IPv4Address("10.88.0.9"))),
        *server.proper(asked),
    ],
    "all twice": lambda server, asked: server.proper(asked) * 2,
    "garbage first": lambda server, asked: [
        b"",
        b"\2\1\6\0",
        bytes(300),
        os.urandom(400),
        *server.proper(asked),
    ],
    "an ACK without a REQUEST": lambda server, asked: [
        encode(server.reply(asked, Kind.ACK, yours=IPv4Address("10.88.0.9")))
        if asked.kind is Kind.DISCOVER
        else b"",
        *server.proper(asked),
    ],
    "an offer without a mask first": lambda server, asked: [
        *(
            [encode(server.reply(asked, Kind.OFFER, options={Option.SUBNET_MASK: b""}))]
            if asked.kind is Kind.DISCOVER
            else []
        ),
        *server.proper(asked),
    ],
    "an offer that names no server first": lambda server, asked: [
        *(
            [encode(server.reply(asked, Kind.OFFER, options={Option.SERVER: b"\0"}))]
            if asked.kind is Kind.DISCOVER
            else []
        ),
        *server.proper(asked),
    ],
    "a later offer of another server": lambda server, asked: [
        *server.proper(asked),
        encode(
            server.reply(
                asked, Kind.OFFER, yours=IPv4Address("10.88.0.9"), options={Option.SERVER: b"\x0a\x58\0\x09"}
            )
        ),
    ],
    "another server's NAK": lambda server, asked: [
        encode(server.reply(asked, Kind.NAK, options={Option.SERVER: b"\x0a\x58\0\x09"})),
        *server.proper(asked),
    ],
    "a message type that nobody knows": lambda server, asked: [
        encode(server.reply(asked, Kind.OFFER, options={Option.MESSAGE_TYPE: b"\x63"})),
        *server.proper(asked),
    ],
}


@pytest.mark.parametrize("how", MISBEHAVIOUR)
def test_a_misbehaving_server_costs_nothing(pod: Wish, clock: Clock, tmp_path: Path, how: str) -> None:
    with Server() as server, keeper_at(tmp_path, clock) as keeper:
        server.answer = lambda asked: MISBEHAVIOUR[how](server, asked)
        assert keeper.acquire(key(), pod, soon()).address == "10.88.0.50/24"
        assert server.count(Kind.DISCOVER) == 1


def test_a_late_offer_is_answered_still(pod: Wish, clock: Clock, tmp_path: Path) -> None:
    held: list[bytes] = []
    with Server() as server, keeper_at(tmp_path, clock) as keeper:

        def hold(asked: Packet) -> list[bytes]:
            held.extend(server.proper(asked))
            return []

        server.answer = hold
        done: list[Lease] = []
        caller = threading.Thread(target=lambda: done.append(keeper.acquire(key(), pod, soon())))
        caller.start()
        server.wait_for(Kind.DISCOVER)
        for number in range(2, 4):
            clock.advance(3, keeper)
            server.wait_for(Kind.DISCOVER, number)
        server.answer = server.proper
        server.send(held[0])
        caller.join(5)
        assert [lease.address for lease in done] == ["10.88.0.50/24"]


def test_a_server_that_refuses_its_own_offer_is_asked_again_later(
    pod: Wish, clock: Clock, tmp_path: Path
) -> None:
    with Server() as server, keeper_at(tmp_path, clock) as keeper:
        server.refuse = True
        done: list[Lease] = []
        caller = threading.Thread(target=lambda: done.append(keeper.acquire(key(), pod, soon())))
        caller.start()
        server.wait_for(Kind.REQUEST)
        server.refuse = False
        with running(clock, keeper):
            caller.join(5)
        assert done[0].address == "10.88.0.50/24"
        assert server.count(Kind.DISCOVER) == 2


def test_a_call_beside_the_keepers_end_writes_to_no_descriptor_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = LeaseKeeper(tmp_path / "leases.sqlite")
    keeper.start()
    ending = threading.Thread(target=keeper.close)
    write = os.eventfd_write

    def overtaken(descriptor: int, value: int) -> None:
        monkeypatch.undo()
        ending.start()
        ending.join(0.2)  # as long as the descriptor is in use, the keeper does not end
        write(descriptor, value)

    monkeypatch.setattr(os, "eventfd_write", overtaken)
    keeper.wake()
    ending.join()
    with pytest.raises(KeeperUnavailable):
        keeper.leases()


def test_the_deadline_ends_the_wait_and_gives_back_what_was_asked_for(
    pod: Wish, clock: Clock, tmp_path: Path
) -> None:
    with Server() as server, keeper_at(tmp_path, clock) as keeper:
        server.answer = lambda asked: server.proper(asked) if asked.kind is Kind.DISCOVER else []
        with pytest.raises(LeaseDenied, match=r"10\.88\.0\.1 offered 10\.88\.0\.50/24, and then was silent"):
            keeper.acquire(key(), pod, time.monotonic() + 0.3)
        assert server.wait_for(Kind.RELEASE).client == IPv4Address("10.88.0.50")
        assert keeper.leases() == {}
    assert written(tmp_path) == {}


def test_what_was_wrong_with_the_offers_is_told(pod: Wish, clock: Clock, tmp_path: Path) -> None:
    with Server() as server, keeper_at(tmp_path, clock) as keeper:
        server.more[Option.SUBNET_MASK] = b"\xff\0\xff\0"
        with pytest.raises(LeaseDenied, match="without a proper subnet mask"):
            keeper.acquire(key(), pod, time.monotonic() + 0.3)


def test_a_caller_that_goes_away_stops_the_asking(pod: Wish, clock: Clock, tmp_path: Path) -> None:
    with Server() as server, keeper_at(tmp_path, clock) as keeper:
        server.silent = True
        with pytest.raises(LeaseDenied, match="no server answered"):
            keeper.acquire(key(), pod, soon() + 60, lambda: server.count(Kind.DISCOVER) > 0)
        assert keeper.leases() == {}


def test_a_slow_server_delays_only_its_own_pod(pod: Wish, clock: Clock, tmp_path: Path) -> None:
    other = make_pod("other", "02:88:00:00:01:02")
    with Server() as server, keeper_at(tmp_path, clock) as keeper:
        server.answer = lambda asked: server.proper(asked) if asked.mac[-1] == 2 else []

        def wait() -> None:
            with pytest.raises(LeaseDenied):
                keeper.acquire(key(), pod, time.monotonic() + 1)

        waiting = threading.Thread(target=wait)
        waiting.start()
        server.wait_for(Kind.DISCOVER)
        began = time.monotonic()
        keeper.acquire(key("other"), other, soon())
        assert time.monotonic() - began < 0.5
        assert waiting.is_alive()
        waiting.join()


def test_a_del_while_an_add_waits_ends_it(pod: Wish, clock: Clock, tmp_path: Path) -> None:
    with Server() as server, keeper_at(tmp_path, clock) as keeper:
        server.silent = True
        told: list[Exception] = []

        def wait() -> None:
            try:
                keeper.acquire(key(), pod, soon())
            except LeaseDenied as error:
                told.append(error)

        caller = threading.Thread(target=wait)
        caller.start()
        server.wait_for(Kind.DISCOVER)
        assert keeper.release(key())
        caller.join(2)
        assert len(told) == 1


def test_gc_gives_back_what_is_not_valid_on_that_network_only(
    pod: Wish, clock: Clock, tmp_path: Path
) -> None:
    with Server() as server, keeper_at(tmp_path, clock) as keeper:
        wishes = {name: make_pod(name, f"02:88:00:00:01:0{n}") for n, name in enumerate(("a", "b", "c"), 2)}
        for number, (name, network) in enumerate((("a", "net"), ("b", "net"), ("c", "other")), 60):
            server.address = IPv4Address(f"10.88.0.{number}")
            keeper.acquire(key(name, network), wishes[name], soon())
        assert keeper.gc("net", [("id-b", "eth0")]) == [key("a")]
        assert server.wait_for(Kind.RELEASE).client == IPv4Address("10.88.0.60")
        assert set(keeper.leases()) == {key("b"), key("c", "other")}
    assert set(written(tmp_path)) == {key("b"), key("c", "other")}


def test_a_container_that_vanishes_is_noticed(pod: Wish, clock: Clock, tmp_path: Path) -> None:
    with Server(), keeper_at(tmp_path, clock) as keeper:
        keeper.acquire(key(), pod, soon())
        sh("ip", "netns", "delete", "pod")
        clock.advance(SWEEP_SECONDS + 1, keeper)
        until(lambda: keeper.leases() == {})
    assert written(tmp_path) == {}


def test_an_add_without_namespace_or_interface_is_refused(pod: Wish, clock: Clock, tmp_path: Path) -> None:
    with keeper_at(tmp_path, clock) as keeper:
        with pytest.raises(ContainerGone):
            keeper.acquire(key(), Wish("/run/netns/nosuch"), soon())
        with pytest.raises(InterfaceGone):
            keeper.acquire(Key("net", "id", "eth9"), pod, soon())


def test_an_interface_that_is_down_is_set_up(pod: Wish, clock: Clock, tmp_path: Path) -> None:
    sh("ip", "-n", "pod", "link", "set", "eth0", "down")
    with Server(), keeper_at(tmp_path, clock) as keeper:
        with running(clock, keeper):
            assert keeper.acquire(key(), pod, soon()).address == "10.88.0.50/24"
        assert is_up()


def test_an_address_pool_on_a_full_disk_gives_the_lease_back(
    pod: Wish, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from podwire.dhcp.errors import StoreError

    real = LeaseStore.put

    def put(self: LeaseStore, which: Key, record: Record) -> None:
        if not record.pending:
            raise StoreError("write", self.path, "", 28)
        real(self, which, record)

    monkeypatch.setattr(LeaseStore, "put", put)
    with Server() as server, keeper_at(tmp_path, clock) as keeper:
        with pytest.raises(StoreError, match="No space left"):
            keeper.acquire(key(), pod, soon())
        server.wait_for(Kind.RELEASE)
        assert keeper.leases() == {}
    assert written(tmp_path) == {}


def test_a_fault_in_one_lease_costs_no_other_and_no_loop(
    pod: Wish, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from podwire.dhcp.holding import Holding

    ticks: list[Key] = []
    real = Holding.tick

    def tick(self: Holding, now: float) -> None:
        ticks.append(self.key)
        if self.key == key():
            raise ZeroDivisionError
        real(self, now)

    with Server() as server, keeper_at(tmp_path, clock) as keeper:
        keeper.acquire(key(), pod, soon())
        server.address = IPv4Address("10.88.0.60")
        keeper.acquire(key("other"), make_pod("other", "02:88:00:00:01:02"), soon())
        monkeypatch.setattr(Holding, "tick", tick)
        clock.advance(301, keeper)
        until(lambda: keeper.check(key("other")).acquired == clock.now)
        assert keeper.check(key()).address == "10.88.0.50/24"
        assert ticks.count(key()) == 1


def test_one_keeper_at_a_time_has_the_leases(clock: Clock, tmp_path: Path) -> None:
    refused = pytest.raises(KeeperUnavailable, match="another process keeps these leases")
    with keeper_at(tmp_path, clock), refused:
        keeper_at(tmp_path, clock).start()


def test_a_stopped_keeper_says_so(pod: Wish, clock: Clock, tmp_path: Path) -> None:
    keeper = keeper_at(tmp_path, clock)
    with pytest.raises(KeeperUnavailable):
        keeper.check(key())
    with Server() as server, keeper:
        server.silent = True
        told: list[Exception] = []

        def wait() -> None:
            try:
                keeper.acquire(key(), pod, soon() + 60)
            except KeeperUnavailable as error:
                told.append(error)

        caller = threading.Thread(target=wait)
        caller.start()
        server.wait_for(Kind.DISCOVER)
        keeper.close()
        caller.join(2)
        assert len(told) == 1
    with pytest.raises(KeeperUnavailable):
        keeper.release(key())


def test_two_servers_give_one_lease(pod: Wish, clock: Clock, tmp_path: Path) -> None:
    with Server() as server, keeper_at(tmp_path, clock) as keeper:
        second = Server(address="10.88.0.70", identifier=IPv4Address("10.88.0.2"))
        server.answer = lambda asked: [*server.proper(asked), *second.proper(asked)]
        assert keeper.acquire(key(), pod, soon()).server == str(SERVER)
        (chosen,) = [packet for packet in server.seen if packet.kind is Kind.REQUEST]
        assert chosen.options[Option.SERVER] == SERVER.packed


def test_the_bridge_is_where_it_was(pod: Wish) -> None:
    """The lab itself: what the tests above take for granted."""
    assert sh("ip", "-br", "link", "show", "master", BRIDGE).startswith("v-pod")
