"""`ipvlan`: the container's interface shares the master's MAC; what tells them apart are their addresses.

They come from an IPAM plugin or, after another plugin in a chain, from its result, whose one interface is
then the master unless the configuration names another.
"""

from __future__ import annotations

from contextlib import ExitStack

import msgspec

from podwire.cni import fields
from podwire.cni.errors import CNIError, InvalidConfig
from podwire.cni.plugin import DNS, Plugin, Request, Result
from podwire.cni.types import NO_DNS
from podwire.kernel import link_kinds
from podwire.kernel.host import Kernel
from podwire.kernel.link_kinds import IpvlanMode
from podwire.plugins import addressing, attachment, sublink
from podwire.plugins.failures import KERNEL, open_netns, told
from podwire.plugins.sublink import Sublink

_KIND = "ipvlan"
_MODES = {"": IpvlanMode.L2, "l2": IpvlanMode.L2, "l3": IpvlanMode.L3, "l3s": IpvlanMode.L3S}


class Config(msgspec.Struct, frozen=True):
    """The options of an ipvlan network."""

    master: str = ""
    mode: str = ""
    mtu: int = 0
    linkInContainer: bool = False
    dns: DNS = NO_DNS


def _mode(config: Config) -> IpvlanMode:
    if config.mode not in _MODES:
        raise InvalidConfig(f'mode "{config.mode}": is none of l2, l3 and l3s')
    return _MODES[config.mode]


def _wanted(request: Request[Config], master: str) -> Sublink:
    config, mode = request.config, _mode(request.config)
    if config.mtu < 0:
        raise InvalidConfig(f"mtu {config.mtu}: is negative")
    return Sublink(
        _KIND,
        lambda name, parent, netns: link_kinds.ipvlan(
            name, parent=parent, mode=mode, mtu=config.mtu or None, netns=netns
        ),
        master,
        inside=config.linkInContainer,
        mtu=config.mtu,
        # All links of a master have one MAC, and the kernel refuses them the same address.
        local=addressing.link_local(attachment.mac_for(sublink.identity_of(request), ())),
        announce=True,
    )


def _given(request: Request[Config]) -> Result | None:
    """Return the result whose addresses the link takes over, if any; else an IPAM plugin must be named."""
    previous = request.prev_result
    if previous is not None and previous.ips and not fields.lookup(request.raw, "ipam"):
        return previous
    sublink.require_ipam(request)
    return None


def _default_master(request: Request[Config], kernel: Kernel) -> str:
    previous = request.prev_result
    if previous is not None and request.command == "ADD":
        if len(previous.interfaces) == 1 and previous.interfaces[0].name:
            return previous.interfaces[0].name
        raise InvalidConfig("master: is missing, and prevResult has not the one interface that it could be")
    with ExitStack() as stack, told("master"):
        if not request.config.linkInContainer:
            return sublink.default_master(kernel.route())
        container = stack.enter_context(open_netns(request.netns))
        return sublink.default_master(stack.enter_context(sublink.source(kernel, container, True)))


def add(request: Request[Config], kernel: Kernel) -> Result:
    """Give the container its interface over the master."""
    given = _given(request)
    _mode(request.config)
    master = request.config.master or _default_master(request, kernel)
    return sublink.add(request, kernel, _wanted(request, master), given=given, dns=request.config.dns)


def check(request: Request[Config], kernel: Kernel) -> None:
    """Verify the link, its mode, its master where one is named, its addresses and routes."""
    link = sublink.check(request, kernel, _wanted(request, request.config.master))
    wanted = _mode(request.config)
    found = link.data.get("mode")
    if found != wanted:
        told_mode = IpvlanMode(found).name.lower() if found in set(IpvlanMode) else found
        raise CNIError(f"interface {link.name}: has mode {told_mode}, not {wanted.name.lower()}", code=KERNEL)


def delete(request: Request[Config], _kernel: Kernel) -> None:
    """Remove the link and free the addresses; what is gone already is fine."""
    sublink.delete(request, _KIND)


def gc(request: Request[Config], _kernel: Kernel) -> None:
    """Remove the links that no valid attachment has, and have the IPAM plugin do so."""
    sublink.gc(request, _KIND)


def status(request: Request[Config], kernel: Kernel) -> None:
    """Raise NotAvailable (50) if an ADD could not succeed."""
    sublink.status(request, kernel, _wanted(request, request.config.master))


PLUGIN = Plugin(
    type="ipvlan",
    about="Podwire ipvlan: an interface that shares its master's MAC",
    config=Config,
    add=add,
    check=check,
    delete=delete,
    gc=gc,
    status=status,
    open_kernel=Kernel.open,
)
