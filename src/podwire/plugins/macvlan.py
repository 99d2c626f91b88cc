"""`macvlan`: an interface of the container over one of the host, with a MAC of its own on the same wire.

All options of the reference plugin: ``master`` (default: the interface of the default route), ``mode``,
``mtu``, ``linkInContainer``, ``bcqueuelen``, and a MAC by CNI_ARGS, ``args.cni.mac`` or
``runtimeConfig.mac``. Without ``ipam`` the interface is up and has no addresses.
"""

from __future__ import annotations

import msgspec

from podwire.cni.args import check_ifname
from podwire.cni.errors import CNIError, InvalidConfig, NotAvailable
from podwire.cni.plugin import DNS, Plugin, Request, Result
from podwire.cni.types import NO_DNS
from podwire.kernel import links
from podwire.kernel.host import Kernel
from podwire.kernel.links import MacvlanMode
from podwire.kernel.message import Message
from podwire.kernel.netns import Netns
from podwire.plugins import sublink
from podwire.plugins.failures import KERNEL, open_netns, told
from podwire.plugins.station import Args, MacConfig, requested_mac
from podwire.plugins.sublink import Sublink

_U32_MAX = 0xFFFFFFFF
_MODES = {mode.name.lower(): mode for mode in MacvlanMode}


class Config(msgspec.Struct, frozen=True):
    """The options of a macvlan network."""

    master: str = ""
    mode: str = ""
    mtu: int = 0
    linkInContainer: bool = False
    bcqueuelen: int = 0
    dns: DNS = NO_DNS
    runtimeConfig: MacConfig = MacConfig()
    args: Args = Args()


def validate(request: Request[Config]) -> MacvlanMode:
    """Return the mode; InvalidConfig (7) for options that cannot be."""
    config = request.config
    sublink.optional_ipam(request)
    if config.master:
        try:
            check_ifname(config.master)
        except CNIError as error:
            raise InvalidConfig(f"master: {error}") from None
    if config.mtu < 0:
        raise InvalidConfig(f"mtu {config.mtu}: is negative")
    if not 0 <= config.bcqueuelen <= _U32_MAX:
        raise InvalidConfig(f"bcqueuelen {config.bcqueuelen}: is not between 0 and {_U32_MAX}")
    mode = _MODES.get(config.mode or "bridge")
    if mode is None:
        raise InvalidConfig(f'mode "{config.mode}": is none of {", ".join(_MODES)}')
    return mode


def _wanted(request: Request[Config], master: str) -> Sublink:
    config = request.config
    mode = validate(request)
    mac = requested_mac(request.args, config.args, config.runtimeConfig)

    def build(name: str, parent: int, netns: Netns | None) -> Message:
        return links.macvlan(
            name,
            parent=parent,
            mode=mode,
            mac=mac or None,
            mtu=config.mtu or None,
            netns=netns,
            bc_queue_len=config.bcqueuelen or None,
        )

    return Sublink("macvlan", build, master, config.linkInContainer, config.mtu, announce=True)


def add(request: Request[Config], kernel: Kernel) -> Result:
    """Make the container's interface over its master."""
    validate(request)
    master = request.config.master
    if not master:
        with (
            told("macvlan"),
            open_netns(request.netns) as container,
            sublink.source(kernel, container, request.config.linkInContainer) as sock,
        ):
            master = sublink.default_master(sock)
    return sublink.add(request, kernel, _wanted(request, master), dns=request.config.dns)


def check(request: Request[Config], kernel: Kernel) -> None:
    """Verify the interface, its mode, its master if one is named, its addresses and routes.

    The default route may lead elsewhere by now.
    """
    link = sublink.check(request, kernel, _wanted(request, request.config.master))
    mode = validate(request)
    if link.data.get("mode") != mode:
        raise CNIError(f"interface {link.name}: its mode is not {mode.name.lower()}", code=KERNEL)


def delete(request: Request[Config], _kernel: Kernel) -> None:
    """Remove the interface, then free the addresses; what is gone already is fine."""
    sublink.delete(request, "macvlan")


def gc(request: Request[Config], _kernel: Kernel) -> None:
    """Remove the interfaces of this network that no valid attachment has, and have the IPAM do so."""
    sublink.gc(request, "macvlan")


def status(request: Request[Config], kernel: Kernel) -> None:
    """Raise NotAvailable (50) if an ADD could not succeed: no master, or one that is a bridge's port."""
    validate(request)
    master, inside = request.config.master, request.config.linkInContainer
    if not master and not inside:
        try:
            with told("macvlan"):
                master = sublink.default_master(kernel.route())
        except InvalidConfig as error:
            raise NotAvailable(error.msg) from error
    sublink.status(request, kernel, _wanted(request, master))
    if not inside:
        with told("macvlan"):
            link = links.get(kernel.route(), master, details=False)
        if link is not None and link.master:
            raise NotAvailable(f'master "{master}": belongs to a bridge or bond')


PLUGIN = Plugin(
    type="macvlan",
    about="Podwire macvlan: an interface of a pod over one of the host",
    config=Config,
    add=add,
    check=check,
    delete=delete,
    gc=gc,
    status=status,
    open_kernel=Kernel.open,
    known_args=frozenset({"IP", "MAC", "GATEWAY"}),
)
