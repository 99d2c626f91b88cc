"""`ptp`: a veth pair between the container and the host, which routes each address over it.

All options of the reference plugin. The container reaches everything, its own subnet too, through the
gateway, whose address the host's end has; the host has a route to each address. Masquerading is nftables
whatever ``ipMasqBackend`` names. An ADD is all or nothing; a DEL needs neither the namespace nor its result.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from podwire.cni.errors import AlreadyAttached, CNIError, InvalidConfig, UnknownContainer, joined
from podwire.cni.plugin import DNS, Interface, IPConfig, Plugin, Request, Result, delegate_ipam
from podwire.cni.types import NO_DNS
from podwire.kernel import links
from podwire.kernel.host import Kernel
from podwire.kernel.links import Link
from podwire.kernel.netlink import RouteSocket
from podwire.plugins import attachment, bridge_device, parsed, routed, sublink, verification
from podwire.plugins.attachment import Identity
from podwire.plugins.failures import KERNEL, attempt, open_netns, told, undone_on_failure

_BACKENDS = ("", "nftables", "iptables")
_MTU_MAX = 65535


class Config(msgspec.Struct, frozen=True):
    """The options of a point-to-point network."""

    ipMasq: bool = False
    ipMasqBackend: str = ""
    mtu: int = 0
    dns: DNS = NO_DNS


def validate(request: Request[Config]) -> None:
    """Raise InvalidConfig (7) for options that cannot be."""
    config = request.config
    sublink.require_ipam(request)
    if not 0 <= config.mtu <= _MTU_MAX:
        raise InvalidConfig(f"mtu {config.mtu}: is not between 0 and {_MTU_MAX}")
    if config.ipMasqBackend not in _BACKENDS:
        raise InvalidConfig(f'ipMasqBackend "{config.ipMasqBackend}": is neither nftables nor iptables')


def add(request: Request[Config], kernel: Kernel) -> Result:
    """Attach the container to the host."""
    validate(request)
    config, identity = request.config, sublink.identity_of(request)
    with open_netns(request.netns) as container, told("ptp"):
        if attachment.find(kernel, identity) is not None:
            raise AlreadyAttached(
                f"container {identity.container_id} has {identity.ifname} on network {request.name} already",
                "a DEL must come before a second ADD",
                code=KERNEL,
            )
        with sublink.addressed(request) as addressed, undone_on_failure() as undo:
            ips = tuple(routed.with_gateway(ip) for ip in addressed.ips)
            mac = attachment.mac_for(identity, ips)
            routed.make(kernel, container, routed.Pair(identity, mac, config.mtu, ips, addressed.routes))
            undo.append(lambda: attachment.detach(kernel, identity))
            if config.ipMasq:
                undo.append(lambda: _unmasquerade(request, kernel))
                _masquerade(kernel, identity, ips)
            bridge_device.enable_forwarding(kernel, {ip.family for ip in ips})
    mtu = config.mtu or routed.MTU
    return Result(
        interfaces=(
            Interface(identity.host_end, identity.host_mac, mtu),
            Interface(identity.ifname, mac, mtu, request.netns),
        ),
        ips=tuple(IPConfig(ip.address, ip.gateway, 1) for ip in ips),
        routes=addressed.routes,
        dns=config.dns or addressed.dns,
    )


def _masquerade(kernel: Kernel, identity: Identity, ips: Sequence[IPConfig]) -> None:
    from podwire.plugins import masquerade

    masquerade.add(kernel, identity, [parsed.interface(ip.address) for ip in ips])


def _unmasquerade(request: Request[Config], kernel: Kernel) -> None:
    """Stop masquerading whatever the configuration says now: it may have changed since the ADD."""
    from podwire.kernel.nft import NftUnavailable
    from podwire.plugins import masquerade

    try:
        masquerade.remove(kernel, sublink.identity_of(request))
    except NftUnavailable:
        # Where nftables cannot be reached, nothing was made by it either, unless it was asked for.
        if request.config.ipMasq:
            raise


def _unmasqueraded(kernel: Kernel, identity: Identity, ips: Sequence[IPConfig]) -> list[str]:
    """Return what is missing of the masquerading, in words."""
    from podwire.plugins import masquerade

    return masquerade.check(kernel, identity, [parsed.interface(ip.address) for ip in ips])


def check(request: Request[Config], kernel: Kernel) -> None:
    """Verify both ends with their addresses and routes, and the rules."""
    validate(request)
    identity = sublink.identity_of(request)
    result = request.need_prev_result()
    request.delegate(request.ipam_type)
    with told("ptp"), open_netns(request.netns) as container:
        inner = verification.container_end(container, identity.ifname, result)
        ips = result.ips_of(identity.ifname)
        gated = tuple(routed.with_gateway(ip) for ip in ips)
        with RouteSocket.open(container) as inside:
            routed.verify_inside(inside, inner.index, gated)
        link = attachment.find(kernel, identity) or _other_end(kernel, result)
        if link is None:
            raise CNIError("the host's end of the pair is missing", code=KERNEL)
        routed.verify_host_end(kernel, link, gated)
        if request.config.ipMasq:
            faults = _unmasqueraded(kernel, identity, ips)
            if faults:
                raise CNIError(f"ipMasq: {'; '.join(faults)}", code=KERNEL)


def _other_end(kernel: Kernel, result: Result) -> Link | None:
    """Return the host's end that another plugin made, by the result: the host's interface that is a veth."""
    for interface in result.interfaces:
        link = None if interface.sandbox else links.get(kernel.route(), interface.name)
        if link is not None and link.kind == "veth":
            return link
    return None


def mend(request: Request[Config], kernel: Kernel) -> list[str]:
    """Put back what somebody took of the host's end: addresses, routes, rules; tell what was missing.

    Raises UnknownContainer if the pair is gone: that only a new ADD can make.
    """
    validate(request)
    identity = sublink.identity_of(request)
    ips = tuple(routed.with_gateway(ip) for ip in request.need_prev_result().ips_of(identity.ifname))
    mended: list[str] = []
    with told("ptp"):
        link = attachment.find(kernel, identity)
        if link is None:
            raise UnknownContainer(f"{identity.ifname}: its other end, {identity.host_end}, is gone")
        try:
            routed.verify_host_end(kernel, link, ips)
        except CNIError as error:
            mended.append(error.msg)
            routed.dress(kernel, identity, ips)
        bridge_device.enable_forwarding(kernel, {ip.family for ip in ips})
        if request.config.ipMasq and (faults := _unmasqueraded(kernel, identity, ips)):
            _masquerade(kernel, identity, ips)
            mended += faults
    return mended


def delete(request: Request[Config], kernel: Kernel) -> None:
    """Remove the pair and the rules, then free the addresses; what is gone already is fine."""
    errors: list[CNIError] = []
    unlinked = attempt(errors, "ptp", lambda: _unlink(request, kernel))
    attempt(errors, "ptp", lambda: _unmasquerade(request, kernel))
    if unlinked and request.ipam_type:  # an address whose link is still there must not be given again
        attempt(errors, "ptp", lambda: request.delegate(request.ipam_type))
    if errors:
        raise joined(errors)


def _unlink(request: Request[Config], kernel: Kernel) -> None:
    if attachment.detach(kernel, sublink.identity_of(request)):
        return
    result = request.prev_result
    index = result.interface_index(request.ifname) if result else None
    if result is not None and index is not None and result.interfaces[index].mac:
        attachment.detach_foreign(request.netns, request.ifname, result.interfaces[index].mac)


def gc(request: Request[Config], kernel: Kernel) -> None:
    """Remove the pairs and rules of this network that no valid attachment has, and have the IPAM do so."""
    if request.valid_attachments is None:
        return
    valid = [(one.container_id, one.ifname) for one in request.valid_attachments]
    keep = {Identity(request.name, *each).host_end for each in valid}
    errors: list[CNIError] = []

    def collect() -> None:
        stale = [link for link in attachment.host_ends(kernel, request.name) if link.name not in keep]
        if stale:
            kernel.links.remove(*stale)

    def unmasquerade() -> None:
        from podwire.plugins import masquerade

        masquerade.collect(kernel, request.name, valid)

    collected = attempt(errors, "ptp", collect)
    if request.config.ipMasq:
        attempt(errors, "ptp", unmasquerade)
    if collected and request.ipam_type:
        attempt(errors, "ptp", lambda: request.delegate(request.ipam_type))
    if errors:
        raise joined(errors)


def status(request: Request[Config], kernel: Kernel) -> None:
    """Raise NotAvailable (50) if an ADD could not succeed."""
    validate(request)
    delegate_ipam(request, kernel)


PLUGIN = Plugin(
    type="ptp",
    about="Podwire ptp: a pod's veth pair that the host routes",
    config=Config,
    add=add,
    check=check,
    delete=delete,
    gc=gc,
    status=status,
    mend=mend,
    open_kernel=Kernel.open,
    known_args=frozenset({"IP", "MAC", "GATEWAY"}),
)
