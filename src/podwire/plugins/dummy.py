"""`dummy`: an interface that leads nowhere, for addresses that the container is to have by an IPAM plugin."""

from __future__ import annotations

import msgspec

from podwire.cni.plugin import Plugin, Request, Result
from podwire.kernel import link_kinds
from podwire.kernel.host import Kernel
from podwire.plugins import sublink
from podwire.plugins.sublink import Sublink

_KIND = "dummy"


class Config(msgspec.Struct, frozen=True):
    """dummy takes no options of its own."""


def _wanted(request: Request[Config]) -> Sublink:
    sublink.require_ipam(request)
    return Sublink(_KIND, lambda name, _parent, netns: link_kinds.dummy(name, netns=netns))


def add(request: Request[Config], kernel: Kernel) -> Result:
    """Give the container the interface."""
    return sublink.add(request, kernel, _wanted(request))


def check(request: Request[Config], kernel: Kernel) -> None:
    """Verify the link, its addresses and routes."""
    sublink.check(request, kernel, _wanted(request))


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
    type="dummy",
    about="Podwire dummy: an interface that leads nowhere",
    config=Config,
    add=add,
    check=check,
    delete=delete,
    gc=gc,
    status=status,
    open_kernel=Kernel.open,
)
