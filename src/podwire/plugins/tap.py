"""`tap`: a tap device in the container, for a program that speaks Ethernet itself (a virtual machine).

All options of the reference plugin: ``multiQueue``, ``mtu``, ``owner`` and ``group`` (IDs that may open it),
``selinuxContext``, ``bridge`` (one of the container, whose port it becomes), and a MAC by ``mac``, CNI_ARGS,
``args.cni.mac`` or ``runtimeConfig.mac``. Without ``ipam`` it is up and has no addresses.
"""

from __future__ import annotations

import errno
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from podwire.cni.args import check_ifname
from podwire.cni.errors import CNIError, InvalidConfig, NotAvailable
from podwire.cni.plugin import DNS, Plugin, Request, Result, delegate_ipam
from podwire.cni.types import NO_DNS
from podwire.kernel import links
from podwire.kernel import tap as taps
from podwire.kernel.errors import KernelError
from podwire.kernel.host import Kernel
from podwire.kernel.netlink import RouteSocket
from podwire.kernel.netns import Netns
from podwire.plugins import sublink
from podwire.plugins.failures import KERNEL, open_netns, told
from podwire.plugins.station import Args, MacConfig, requested_mac, station_mac
from podwire.plugins.sublink import Sublink

DEVICE = Path("/dev/net/tun")
SELINUX = Path("/sys/fs/selinux/enforce")
EXEC_LABEL = Path("/proc/thread-self/attr/exec")
_KIND = "tun"  # what the kernel calls taps as well
_ID_MAX = 0xFFFFFFFE
_MTU_MAX = 65521  # MAX_MTU of a tap in drivers/net/tun.c


class Config(msgspec.Struct, frozen=True):
    """The options of a network of taps."""

    multiQueue: bool = False
    mtu: int = 0
    mac: str = ""
    owner: int | None = None
    group: int | None = None
    selinuxContext: str = ""
    bridge: str = ""
    dns: DNS = NO_DNS
    runtimeConfig: MacConfig = MacConfig()
    args: Args = Args()


def validate(request: Request[Config]) -> str:
    """Return the MAC that is asked for, or ``""``; InvalidConfig (7) for options that cannot be."""
    config = request.config
    sublink.optional_ipam(request)
    if not 0 <= config.mtu <= _MTU_MAX:
        raise InvalidConfig(f"mtu {config.mtu}: is not between 0 and {_MTU_MAX}")
    for field, value in (("owner", config.owner), ("group", config.group)):
        if value is not None and not 0 <= value <= _ID_MAX:
            raise InvalidConfig(f"{field} {value}: is not between 0 and {_ID_MAX}")
    if config.bridge:
        try:
            check_ifname(config.bridge)
        except CNIError as error:
            raise InvalidConfig(f"bridge: {error}") from None
    own = station_mac("mac", config.mac) if config.mac else ""
    return requested_mac(request.args, config.args, config.runtimeConfig) or own


def _wanted(request: Request[Config]) -> Sublink:
    config = request.config
    mac = validate(request)

    def build(name: str, _parent: int, container: Netns | None) -> None:
        if container is None:
            raise CNIError(f"tap {name}: is made in its container")
        with RouteSocket.open(container) as inside:
            bridge = _bridge(inside, config.bridge)
            _create(config, name, container)
            inside.send(links.configure(name, mac=mac or None, mtu=config.mtu or None, master=bridge or None))

    return Sublink(_KIND, build, announce=True)


def _bridge(inside: RouteSocket, name: str) -> int:
    """Return the index of the container's bridge, 0 for no name. InvalidConfig (7) if it is missing."""
    if not name:
        return 0
    link = links.get(inside, name, details=False)
    if link is None or link.kind != "bridge":
        raise InvalidConfig(f'bridge "{name}": the container has no such bridge')
    return link.index


def _create(config: Config, name: str, container: Netns) -> None:
    if config.selinuxContext and SELINUX.exists():
        container.run(lambda: _create_labelled(config, name))
        return
    taps.create(name, netns=container, owner=config.owner, group=config.group, multi_queue=config.multiQueue)


def _create_labelled(config: Config, name: str) -> None:
    """Make the tap in another domain: SELinux labels it after the process that makes it."""
    command = ["ip", "tuntap", "add", "mode", "tap", "name", name]
    command += ["multi_queue"] if config.multiQueue else []
    command += [] if config.owner is None else ["user", str(config.owner)]
    command += [] if config.group is None else ["group", str(config.group)]
    with _labelled(config.selinuxContext):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise KernelError(errno.EPERM, "create tap", name, done.stderr.strip())


@contextmanager
def _labelled(context: str) -> Iterator[None]:
    """Have what this thread executes run in an SELinux context."""
    try:
        EXEC_LABEL.write_text(context)
    except OSError as error:
        raise InvalidConfig(f'selinuxContext "{context}": {error.strerror}') from error
    try:
        yield
    finally:
        EXEC_LABEL.write_text("")


def add(request: Request[Config], kernel: Kernel) -> Result:
    """Make the container's tap."""
    return sublink.add(request, kernel, _wanted(request), dns=request.config.dns)


def check(request: Request[Config], kernel: Kernel) -> None:
    """Verify the tap, its bridge, its addresses and routes."""
    link = sublink.check(request, kernel, _wanted(request))
    name = request.config.bridge
    with told("tap"), open_netns(request.netns) as container, RouteSocket.open(container) as inside:
        bridge = links.get(inside, name, details=False) if name else None
    if name and (bridge is None or link.master != bridge.index):
        raise CNIError(f"interface {link.name}: is no port of bridge {name}", code=KERNEL)


def delete(request: Request[Config], _kernel: Kernel) -> None:
    """Remove the tap, then free the addresses; what is gone already is fine."""
    sublink.delete(request, _KIND)


def gc(request: Request[Config], _kernel: Kernel) -> None:
    """Remove the taps of this network that no valid attachment has, and have the IPAM do so."""
    sublink.gc(request, _KIND)


def status(request: Request[Config], kernel: Kernel) -> None:
    """Raise NotAvailable (50) if the host makes no taps, or what the IPAM plugin's STATUS raises."""
    validate(request)
    if not DEVICE.exists():
        raise NotAvailable(f"tap: {DEVICE} is missing; load the module tun")
    delegate_ipam(request, kernel)


PLUGIN = Plugin(
    type="tap",
    about="Podwire tap: a tap device of a pod",
    config=Config,
    add=add,
    check=check,
    delete=delete,
    gc=gc,
    status=status,
    open_kernel=Kernel.open,
    known_args=frozenset({"IP", "MAC", "GATEWAY"}),
)
