"""dhcp beside the reference plugin and its daemon, with dnsmasq on the bridge."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from podwire.dhcp import access
from podwire.dhcp.keeper import LeaseKeeper
from tests.differential.harness import ABSENT, GO, Difference, Side, World
from tests.differential.test_bridge import DIFFERENCES as BRIDGE

pytestmark = pytest.mark.kernel

HOME = Path("/run/dhcp-twins")
SOCKET = HOME / "sock"
RELEASE = Difference(
    "dhcp-release",
    "* without one / seen",
    "the lease is given back while its interface is there; Go's bridge deletes that before",
    go=False,
    ours=True,
)
LINK_ROUTES = (
    Difference(
        "dhcp-link-routes",
        "* / result / routes / 1 / scope",
        "a destination on the link itself has the scope of the link, as in the reference from 1.6 on",
        go=ABSENT,
        ours=253,
    ),
    Difference("dhcp-link-routes", "* / routes / unicast 10.1.2.0/24 dev eth0 scope *", "as above"),
    Difference(
        "dhcp-link-routes", "* CHECK * / reply / status", "Go's CHECK does not find its own route", 1, 0
    ),
)
DIFFERENCES: tuple[Difference, ...] = (RELEASE, *LINK_ROUTES)
Twins = Callable[..., None]


def config(**ipam: Any) -> dict[str, Any]:
    return {
        "type": "bridge",
        "bridge": "cni0",
        "ipam": {"type": "dhcp", "daemonSocketPath": str(SOCKET), **ipam},
    }


def client(pod: str) -> str:
    """The client identifier of a pod's eth0, as dnsmasq matches it: the same on both sides, or no address."""
    return "id:" + (b"\0" + f"id-{pod}/net/eth0".encode()).hex(":")


@contextmanager
def lab(world: World, *options: str) -> Iterator[None]:
    """The bridge, a server that knows the pod by its identifier, and a side's daemon."""
    shutil.rmtree(HOME, ignore_errors=True)
    HOME.mkdir()
    world.sh("ip", "link", "add", "cni0", "address", "02:88:00:00:00:01", "type", "bridge")
    world.sh("ip", "address", "add", "10.88.0.1/24", "dev", "cni0")
    world.sh("sysctl", "-qw", "net.ipv6.conf.cni0.accept_ra=0")  # as both have it on a bridge of their own
    world.sh("ip", "link", "set", "cni0", "up")
    command = [
        *("dnsmasq", "--keep-in-foreground", "--port=0", "--conf-file=/dev/null", "--user=root"),
        *("--interface=cni0", "--bind-interfaces", "--dhcp-range=10.88.0.0,static,255.255.255.0,600"),
        *("--no-ping", f"--dhcp-leasefile={HOME}/leases", f"--pid-file={HOME}/pid"),
        f"--dhcp-host={client('one')},10.88.0.11",
        *options,
    ]
    running = [start(*command)]
    keeper = None
    try:
        if world.side is Side.GO:
            running.append(start(str(GO / "dhcp"), "daemon", "-socketpath", str(SOCKET)))
        else:
            keeper = LeaseKeeper(HOME / "leases.sqlite")
            keeper.start()
            access.host(keeper)
            SOCKET.touch()
        assert until(lambda: (HOME / "pid").exists() and SOCKET.exists())
        yield
    finally:
        access.host(None)
        if keeper is not None:
            keeper.close()
        for process in running:
            process.kill()
            process.wait()


def start(*command: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def until(what: Callable[[], object], seconds: float = 5.0) -> bool:
    limit = time.monotonic() + seconds
    while not what():
        if time.monotonic() > limit:
            return False
        time.sleep(0.01)
    return True


def leased() -> list[str]:
    return sorted(line.split()[2] for line in (HOME / "leases").read_text().splitlines())


def test_a_lease_with_static_routes(twins: Twins) -> None:
    def scenario(world: World) -> None:
        with lab(world, "--dhcp-option-force=33,172.16.0.0,10.88.0.7", "--dhcp-option=3,10.88.0.1"):
            net = config()
            world.add(net, world.pod("one"))
            world.check(net, "one")
            world.note("the server", world.reaches("one", "10.88.0.1"))
            world.note("leased", leased())
            world.delete(net, "one")
            world.delete(net, "one")
            world.note("without one", until(lambda: leased() == [], 0.5))

    twins(scenario, *BRIDGE[:2], RELEASE)


def test_options(twins: Twins) -> None:
    def scenario(world: World) -> None:
        routes = "--dhcp-option=121,172.16.0.0/12,10.88.0.7,10.1.2.0/24,0.0.0.0,0.0.0.0/0,10.88.0.8"
        with lab(world, routes):
            net = config(
                provide=[
                    {"option": "host-name", "fromArg": "K8S_POD_NAME"},
                    {"option": "vendor-class-identifier", "value": "podwire"},
                ],
                request=[{"option": "121"}, {"option": "routers"}],
            )
            world.add(net, world.pod("one"), args="IgnoreUnknown=1;K8S_POD_NAME=web")
            world.check(net, "one")
            world.note("the name", "web" in (HOME / "leases").read_text().split())
            world.delete(net, "one")

    twins(scenario, *BRIDGE[:2], *LINK_ROUTES)


def test_refusals(twins: Twins) -> None:
    def scenario(world: World) -> None:
        plain = {"type": "dhcp", "ipam": config()["ipam"]}
        with lab(world):
            world.pod("one")
            world.add(plain, "one")  # without an interface
            world.sh("ip", "link", "add", "v1", "type", "veth", "peer", "name", "eth0", "netns", "one")
            world.add(
                {**plain, "ipam": {**plain["ipam"], "provide": [{"option": "no", "value": "x"}]}}, "one"
            )
            world.add({**plain, "ipam": {**plain["ipam"], "request": [{"option": "300"}]}}, "one")
            world.delete(plain, "one")
        world.add(plain, "one")  # without a daemon
        world.delete(plain, "one")

    twins(scenario)
