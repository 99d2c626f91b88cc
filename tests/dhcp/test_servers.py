"""The keeper beside real servers: busybox's and dnsmasq."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from podwire.dhcp.errors import DHCPError, NoLease
from podwire.dhcp.keeper import LeaseKeeper
from podwire.dhcp.lease import LeaseRoute
from podwire.dhcp.records import Wish
from tests.dhcp.helpers import BRIDGE, Clock, addresses, key, make_pod, running, sh, soon, udhcpd
from tests.waiting import until

pytestmark = pytest.mark.kernel
RANGE = "10.88.0.100,10.88.0.250,255.255.255.0,600"


@contextmanager
def dnsmasq(home: Path, *more: str, addresses: str = RANGE) -> Iterator[None]:
    home.mkdir(exist_ok=True)
    process = subprocess.Popen(
        [
            *("dnsmasq", "--keep-in-foreground", "--port=0", "--conf-file=/dev/null", "--user=root"),
            *(f"--interface={BRIDGE}", "--bind-interfaces", f"--dhcp-range={addresses}", "--no-ping"),
            *("--dhcp-authoritative", f"--dhcp-leasefile={home}/leases", f"--pid-file={home}/pid", *more),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until((home / "pid").exists)
        yield
    finally:
        process.terminate()
        process.wait()
        (home / "pid").unlink(missing_ok=True)


def leased(home: Path) -> dict[str, str]:
    """What dnsmasq has written down: addresses and client identifiers."""
    rows = [line.split() for line in (home / "leases").read_text().splitlines()]
    return {row[2]: bytes.fromhex(row[4].replace(":", "")).decode() for row in rows}


Start = Callable[[Path], AbstractContextManager[None]]
SERVERS = pytest.mark.parametrize("start", [udhcpd, dnsmasq])


def keeper_at(path: Path, clock: Clock) -> LeaseKeeper:
    return LeaseKeeper(path / "leases.sqlite", clock=clock, spread=0.0)


def put_on(address: str) -> None:
    sh("ip", "-n", "pod", "address", "add", address, "dev", "eth0")


@SERVERS
def test_a_lease_lives_through_restarts_of_both_sides(
    pod: Wish, clock: Clock, tmp_path: Path, start: Start
) -> None:
    home = tmp_path / "server"
    with start(home):
        with keeper_at(tmp_path, clock) as keeper:
            lease = keeper.acquire(key(), pod, soon())
            assert lease.address.startswith("10.88.0.")
            assert (lease.seconds, lease.server, lease.router) == (600, "10.88.0.1", "10.88.0.1")
            assert lease.routes == (LeaseRoute("0.0.0.0/0", "10.88.0.1"),)
            put_on(lease.address)
            clock.advance(lease.renew_after + 1, keeper)  # RENEWING
            until(lambda: keeper.check(key()).acquired == clock.now)
        with keeper_at(tmp_path, clock) as keeper:
            clock.now += 1
            until(lambda: keeper.check(key()).acquired >= clock.now - 1)  # INIT-REBOOT
    # The keeper starts while the server is away.
    with keeper_at(tmp_path, clock) as keeper, start(home):
        renewed = keeper.check(key())
        clock.advance(renewed.rebind_after + 1, keeper)  # REBINDING
        with running(clock, keeper):
            until(lambda: keeper.check(key()).acquired > renewed.acquired + renewed.rebind_after)
        assert keeper.check(key()).address == lease.address
        assert addresses() == [lease.address]
        assert keeper.release(key())


@SERVERS
def test_a_server_that_forgot_its_leases_gives_the_next_one(
    pod: Wish, clock: Clock, tmp_path: Path, start: Start
) -> None:
    """Renewal is refused (NAK) or goes unanswered: the address is lost, another one taken."""
    with keeper_at(tmp_path, clock) as keeper:
        with start(tmp_path / "first"):
            lease = keeper.acquire(key(), pod, soon())
            put_on(lease.address)
        renumbered: AbstractContextManager[None] = (
            udhcpd(tmp_path / "second", start="10.88.0.10", end="10.88.0.19")
            if start is udhcpd
            else dnsmasq(tmp_path / "second", addresses="10.88.0.10,10.88.0.19,255.255.255.0,600")
        )
        with renumbered:
            clock.advance(601, keeper)
            # The clock runs faster than a busy machine answers: the new lease may end too, and be had again.
            with running(clock, keeper):
                until(lambda: _held(keeper) == addresses() and _last_octets() == [10])


def _last_octets() -> list[int]:
    """Of the interface's addresses; the tens."""
    return [int(each.partition("/")[0].rpartition(".")[2]) // 10 * 10 for each in addresses()]


def _held(keeper: LeaseKeeper) -> list[str]:
    try:
        return [keeper.check(key()).address]
    except DHCPError:
        return []


@SERVERS
def test_many_pods_at_once_get_addresses_of_their_own(
    pod: Wish, clock: Clock, tmp_path: Path, start: Start
) -> None:
    from concurrent.futures import ThreadPoolExecutor

    names = [f"p{number}" for number in range(12)]
    wishes = {name: make_pod(name, f"02:88:00:00:02:{n:02x}") for n, name in enumerate(names)}
    with start(tmp_path / "server"), keeper_at(tmp_path, clock) as keeper, ThreadPoolExecutor(12) as pool:
        with running(clock, keeper, pace=1):
            held = list(pool.map(lambda name: keeper.acquire(key(name), wishes[name], soon()).address, names))
        assert len(set(held)) == 12


def test_release_frees_the_address_at_the_server(pod: Wish, clock: Clock, tmp_path: Path) -> None:
    home = tmp_path / "server"
    with dnsmasq(home), keeper_at(tmp_path, clock) as keeper:
        lease = keeper.acquire(key(), pod, soon())
        # The client identifier is the reference's.
        until(lambda: leased(home) == {str(lease.ip): "\0id-pod/net/eth0"})
        keeper.release(key())
        until(lambda: leased(home) == {})


def test_times_and_routes_are_those_that_the_server_says(pod: Wish, clock: Clock, tmp_path: Path) -> None:
    options = (
        "--dhcp-option=option:T1,60",
        "--dhcp-option=option:T2,120",
        "--dhcp-option=121,172.16.0.0/12,10.88.0.7,0.0.0.0/0,10.88.0.8",
        "--dhcp-option=option:dns-server,10.88.0.53",
        "--dhcp-option=option:domain-search,one.example,two.example",
        "--domain=example.org",
    )
    wish = Wish(pod.netns, {12: b"web"}, (121, 6, 15, 119, 3, 1, 58, 59))
    with dnsmasq(tmp_path / "server", *options), keeper_at(tmp_path, clock) as keeper:
        lease = keeper.acquire(key(), wish, soon())
        assert (lease.renew_after, lease.rebind_after) == (60, 120)
        assert lease.routes == (
            LeaseRoute("172.16.0.0/12", "10.88.0.7"),
            LeaseRoute("0.0.0.0/0", "10.88.0.8"),
        )
        assert lease.nameservers == ("10.88.0.53",)
        assert lease.domain == "example.org"
        assert lease.search == ("one.example", "two.example")
        put_on(lease.address)
        clock.advance(61, keeper)
        until(lambda: keeper.check(key()).acquired == clock.now)
        assert "web" in (tmp_path / "server" / "leases").read_text().split()


def test_a_lease_of_two_seconds_is_kept_by_the_real_clock(pod: Wish, tmp_path: Path) -> None:
    """No clock by hand here: renewed at T1, lost when the server goes, got again when it is back."""
    more = "option subnet 255.255.255.0\noption lease 2"
    with LeaseKeeper(tmp_path / "leases.sqlite", spread=0.0) as keeper:
        with udhcpd(tmp_path / "server", more):
            lease = keeper.acquire(key(), pod, soon())
            put_on(lease.address)
            until(lambda: keeper.check(key()).acquired > lease.acquired)
        until(lambda: addresses() == [])
        with pytest.raises(NoLease):
            keeper.check(key())
        with udhcpd(tmp_path / "server", more):
            until(lambda: addresses() == [lease.address])
