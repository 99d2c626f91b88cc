"""`vlan`: a VLAN of a master as the container's interface, addressed by an IPAM plugin.

A master has one link a VLAN in all namespaces: the kernel refuses a second container the same ``vlanId``.
"""

from __future__ import annotations

import msgspec

from podwire.cni.errors import CNIError, InvalidConfig
from podwire.cni.plugin import DNS, Plugin, Request, Result
from podwire.cni.types import NO_DNS
from podwire.kernel import link_kinds
from podwire.kernel.host import Kernel
from podwire.plugins import sublink
from podwire.plugins.failures import KERNEL
from podwire.plugins.sublink import Sublink

_KIND = "vlan"
_LAST = 4094


class Config(msgspec.Struct, frozen=True):
    """The options of a vlan network."""

    master: str = ""
    vlanId: int = 0
    mtu: int = 0
    linkInContainer: bool = False
    dns: DNS = NO_DNS


def _wanted(request: Request[Config]) -> Sublink:
    config = request.config
    if not config.master:
        raise InvalidConfig("master: is missing; it names the interface that the VLAN is on")
    if not 0 <= config.vlanId <= _LAST:
        raise InvalidConfig(f"vlanId {config.vlanId}: is not between 0 and {_LAST}")
    sublink.require_ipam(request)
    return Sublink(
        _KIND,
        lambda name, parent, netns: link_kinds.vlan(
            name, parent=parent, id=config.vlanId, mtu=config.mtu or None, netns=netns
        ),
        config.master,
        inside=config.linkInContainer,
        mtu=config.mtu,
    )


def add(request: Request[Config], kernel: Kernel) -> Result:
    """Give the container the VLAN."""
    return sublink.add(request, kernel, _wanted(request), dns=request.config.dns)


def check(request: Request[Config], kernel: Kernel) -> None:
    """Verify the link, its master and VLAN, its addresses and routes."""
    link = sublink.check(request, kernel, _wanted(request))
    found = link.data.get("id")
    if found != request.config.vlanId:
        raise CNIError(
            f"interface {link.name}: is VLAN {found}, not vlanId {request.config.vlanId}", code=KERNEL
        )


def delete(request: Request[Config], _kernel: Kernel) -> None:
    """Remove the link and free the addresses; what is gone already is fine."""
    sublink.delete(request, _KIND)


def gc(request: Request[Config], _kernel: Kernel) -> None:
    """Remove the links that no valid attachment has, and have the IPAM plugin do so."""
    sublink.gc(request, _KIND)


def status(request: Request[Config], kernel: Kernel) -> None:
    """Raise NotAvailable (50) if an ADD could not succeed."""
    sublink.status(request, kernel, _wanted(request))


PLUGIN = Plugin(
    type="vlan",
    about="Podwire vlan: a VLAN of an interface for a container",
    config=Config,
    add=add,
    check=check,
    delete=delete,
    gc=gc,
    status=status,
    open_kernel=Kernel.open,
)
