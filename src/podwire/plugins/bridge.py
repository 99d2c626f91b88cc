"""`bridge`: a veth pair between the container and a bridge of the host, addressed by an IPAM plugin.

All options of the reference plugin. ``ipMasqBackend`` may name any of its backends: masquerading is nftables
in each case. An ADD is all or nothing; a DEL needs neither the namespace nor the result of the ADD.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import msgspec

from podwire.cni.args import check_ifname
from podwire.cni.errors import (
    AlreadyAttached,
    CNIError,
    InvalidConfig,
    NotAvailable,
    UnknownContainer,
    joined,
)
from podwire.cni.plugin import DNS, Interface, IPConfig, Plugin, Request, Result, Route
from podwire.cni.types import NO_DNS
from podwire.kernel import links
from podwire.kernel.host import Kernel
from podwire.kernel.links import Link
from podwire.kernel.netns import Netns
from podwire.plugins import (
    antispoof,
    attachment,
    bridge_device,
    bridge_vlans,
    leasing,
    parsed,
    sublink,
    verification,
)
from podwire.plugins.attachment import Identity, Plan, PortRequests
from podwire.plugins.bridge_vlans import Trunk, Vlans
from podwire.plugins.failures import KERNEL, attempt, open_netns, told, undone_on_failure
from podwire.plugins.station import Args, MacConfig, requested_mac

_BACKENDS = ("", "nftables", "iptables")
_MTU_MAX = 65535


class Config(msgspec.Struct, frozen=True):
    """The options of a bridge network."""

    bridge: str = "cni0"
    isGateway: bool = False
    isDefaultGateway: bool = False
    forceAddress: bool = False
    ipMasq: bool = False
    ipMasqBackend: str = ""
    hairpinMode: bool = False
    promiscMode: bool = False
    macspoofchk: bool = False
    enabledad: bool = False
    disableContainerInterface: bool = False
    portIsolation: bool = False
    mtu: int = 0
    vlan: int = 0
    vlanTrunk: tuple[Trunk, ...] = ()
    preserveDefaultVlan: bool = True
    dns: DNS = NO_DNS
    runtimeConfig: MacConfig = MacConfig()
    args: Args = Args()

    @property
    def gateway(self) -> bool:
        """Whether the bridge is to have the gateway's address."""
        return self.isGateway or self.isDefaultGateway

    @property
    def name(self) -> str:
        """The bridge's name."""
        return self.bridge or "cni0"


def validate(request: Request[Config]) -> None:
    """Raise InvalidConfig (7) for options that cannot be, or not together."""
    config = request.config
    try:
        check_ifname(config.name)
    except CNIError as error:
        raise InvalidConfig(f"bridge: {error}") from None
    if "%" in config.name:  # the kernel would take it for a pattern and make a link of another name
        raise InvalidConfig(f"bridge: interface name \"{config.name}\" contains '%'")
    sublink.optional_ipam(request)
    if config.hairpinMode and config.promiscMode:
        raise InvalidConfig("hairpinMode and promiscMode: cannot both be true")
    if config.disableContainerInterface and request.ipam_type:
        raise InvalidConfig("disableContainerInterface: cannot be true with an ipam plugin")
    if not 0 <= config.mtu <= _MTU_MAX:
        raise InvalidConfig(f"mtu {config.mtu}: is not between 0 and {_MTU_MAX}")
    if config.ipMasqBackend not in _BACKENDS:
        raise InvalidConfig(f'ipMasqBackend "{config.ipMasqBackend}": is neither nftables nor iptables')
    vlans = _vlans(config)
    if vlans.access and config.gateway:
        bridge_vlans.gateway_name(config.name, vlans.access)


def _vlans(config: Config) -> Vlans:
    return bridge_vlans.read(config.vlan, config.vlanTrunk, config.preserveDefaultVlan)


def _identity(request: Request[Config]) -> Identity:
    return Identity(request.name, request.container_id, request.ifname)


def _wanted(request: Request[Config]) -> bridge_device.Wanted:
    config = request.config
    return bridge_device.Wanted(
        request.name, config.name, config.mtu, config.promiscMode, config.forceAddress
    )


@contextmanager
def _bridge(request: Request[Config], kernel: Kernel, wanted: bridge_device.Wanted) -> Iterator[Link]:
    """Have the bridge there for the length of a block, and filtering where the network has VLANs."""
    with bridge_device.using(kernel, wanted) as bridge:
        yield bridge_vlans.filtering(kernel, bridge) if _vlans(request.config) else bridge


@contextmanager
def _prepared(
    request: Request[Config],
    kernel: Kernel,
    bridge: Link,
    wanted: bridge_device.Wanted,
    ips: Sequence[IPConfig],
) -> Iterator[Link | None]:
    """Have the bridge up, and the gateway of ``ips`` on it or on a link of its own, which is yielded."""
    vlans = _vlans(request.config)
    if not request.config.gateway or not vlans.access:
        bridge_device.prepare(kernel, bridge, wanted, ips if request.config.gateway else ())
        yield None
        return
    bridge_device.prepare(kernel, bridge, wanted)
    with bridge_vlans.gateway(kernel, bridge, vlans) as link:
        on_link = msgspec.structs.replace(wanted, name=link.name, promisc=False)
        bridge_device.prepare(kernel, link, on_link, ips)
        yield link


def _port(config: Config, bridge: Link) -> PortRequests | None:
    vlans = _vlans(config)
    return (lambda index: bridge_vlans.port(bridge, index, vlans)) if vlans else None


@contextmanager
def _paired_before(request: Request[Config], kernel: Kernel, container: Netns, mac: str) -> Iterator[bool]:
    """Have the pair there for an IPAM plugin that works on it (True); it goes again if the block fails."""
    if not leasing.needs_interface(request):
        yield False
        return
    identity = _identity(request)
    with _bridge(request, kernel, _wanted(request)) as bridge, undone_on_failure() as undo:
        bridge_device.prepare(kernel, bridge, _wanted(request), ())
        plan = _plan(request, bridge, mac or attachment.mac_for(identity, ()), (), ())
        attachment.attach(kernel, container, plan)
        undo.append(lambda: attachment.detach(kernel, identity))
        yield True


def _plan(
    request: Request[Config], bridge: Link, mac: str, ips: tuple[IPConfig, ...], routes: tuple[Route, ...]
) -> Plan:
    config = request.config
    return Plan(
        _identity(request),
        bridge,
        mac,
        bool(requested_mac(request.args, config.args, config.runtimeConfig)),
        config.mtu or bridge.mtu,
        ips,
        routes,
        hairpin=config.hairpinMode,
        isolated=config.portIsolation,
        dad=config.enabledad,
        up=not config.disableContainerInterface,
        port=_port(config, bridge),
    )


def add(request: Request[Config], kernel: Kernel) -> Result:
    """Attach the container to the bridge."""
    validate(request)
    config, identity = request.config, _identity(request)
    mac = requested_mac(request.args, config.args, config.runtimeConfig)
    with open_netns(request.netns) as container, told(f'bridge "{config.name}"'):
        if attachment.find(kernel, identity) is not None:
            raise AlreadyAttached(
                f"container {identity.container_id} has {identity.ifname} on network {request.name} already",
                "a DEL must come before a second ADD",
                code=KERNEL,
            )
        with (
            _paired_before(request, kernel, container, mac) as paired,
            sublink.addressed(request) as addressed,
            _bridge(request, kernel, _wanted(request)) as bridge,
            ExitStack() as gateway,
            undone_on_failure() as undo,
        ):
            ips = tuple(_with_gateway(ip, config) for ip in addressed.ips)
            routes = (*addressed.routes, *_default_routes(config, addressed.routes, ips))
            plan = _plan(
                request, bridge, mac or attachment.mac_for(identity, () if paired else ips), ips, routes
            )
            link = gateway.enter_context(_prepared(request, kernel, bridge, _wanted(request), ips))
            if paired:
                leasing.put_on(container, identity.ifname, plan.mac, ips, routes, announce=True)
            else:
                attachment.attach(kernel, container, plan)
                undo.append(lambda: attachment.detach(kernel, identity))
            _protect(kernel, request, plan, undo)
            if config.gateway:
                bridge_device.enable_forwarding(kernel, {ip.family for ip in ips})
    return Result(
        interfaces=(
            Interface(bridge.name, bridge.mac, bridge.mtu),
            Interface(identity.host_end, identity.host_mac, plan.mtu),
            Interface(identity.ifname, plan.mac, plan.mtu, request.netns),
            *(() if link is None else (Interface(link.name, link.mac, link.mtu),)),
        ),
        ips=tuple(IPConfig(ip.address, ip.gateway, 2) for ip in ips),
        routes=routes,
        dns=config.dns or addressed.dns,
    )


def _with_gateway(ip: IPConfig, config: Config) -> IPConfig:
    """Fill in the gateway of an address that has none: the first one of its subnet, if that leaves others."""
    subnet = parsed.interface(ip.address).network
    if ip.gateway or not config.gateway or subnet.num_addresses == 1:
        return ip
    return IPConfig(ip.address, str(subnet[0 if subnet.num_addresses == 2 else 1]))


def _default_routes(config: Config, given: tuple[Route, ...], ips: tuple[IPConfig, ...]) -> list[Route]:
    """Return the default routes by isDefaultGateway; an IPAM plugin's own one of that family stands."""
    if not config.isDefaultGateway:
        return []
    present = {route.family for route in given if route.dst.endswith("/0")}
    gateways = {ip.family: ip.gateway for ip in reversed(ips) if ip.gateway}
    return [
        Route("0.0.0.0/0" if family == 4 else "::/0", gateways[family])
        for family in sorted(gateways)
        if family not in present
    ]


def _protect(kernel: Kernel, request: Request[Config], plan: Plan, undo: list[Callable[[], object]]) -> None:
    """Make what the attachment needs beside its links: the MAC check and the masquerading."""
    config, identity = request.config, plan.identity
    if config.macspoofchk:
        undo.append(lambda: antispoof.remove(kernel, identity.host_end))
        antispoof.add(kernel, identity.host_end, plan.mac)
    if config.ipMasq and plan.ips:
        from podwire.plugins import masquerade

        undo.append(lambda: masquerade.remove(kernel, identity))
        masquerade.add(kernel, identity, [parsed.interface(ip.address) for ip in plan.ips])


def check(request: Request[Config], kernel: Kernel) -> None:
    """Verify the links, addresses, routes, the bridge's membership and address, and the rules."""
    validate(request)
    config, identity = request.config, _identity(request)
    result = request.need_prev_result()
    if request.ipam_type:
        request.delegate(request.ipam_type)
    with told(f'bridge "{config.name}"'), open_netns(request.netns) as container:
        bridge = links.get(kernel.route(), config.name)
        if bridge is None or bridge.kind != "bridge":
            raise CNIError(f"bridge {config.name}: is missing", code=KERNEL)
        verification.bridge_interface(bridge, result, own=identity.ifname)
        host_end = attachment.find(kernel, identity) or _host_end_of(kernel, result)
        verification.host_end(
            host_end, bridge, result, hairpin=config.hairpinMode, isolated=config.portIsolation
        )
        if config.mtu and host_end is not None and host_end.mtu != config.mtu:
            raise CNIError(
                f"host end {host_end.name}: has MTU {host_end.mtu}, mtu says {config.mtu}", code=KERNEL
            )
        verification.container_end(
            container, identity.ifname, result, up=not config.disableContainerInterface
        )
        ips = result.ips_of(identity.ifname)
        vlans = _vlans(config)
        if host_end is not None:
            bridge_vlans.check_port(kernel, bridge, host_end, vlans)
        if config.gateway:
            device = bridge_vlans.find_gateway(kernel, bridge, vlans) if vlans.access else bridge
            verification.gateway(kernel, device, bridge_device.gateway_interfaces(ips))
        if config.macspoofchk and host_end is not None:
            index = result.interface_index(identity.ifname)
            mac = "" if index is None else result.interfaces[index].mac
            if not _guarded(kernel, identity, host_end, mac.lower()):
                raise CNIError(f"macspoofchk: host end {host_end.name} is not guarded for {mac}", code=KERNEL)
        if config.ipMasq and ips:
            from podwire.plugins import masquerade

            faults = masquerade.check(kernel, identity, [parsed.interface(ip.address) for ip in ips])
            if faults:
                raise CNIError(f"ipMasq: {'; '.join(faults)}", code=KERNEL)


def _guarded(kernel: Kernel, identity: Identity, host_end: Link, mac: str) -> bool:
    if antispoof.guarded_mac(kernel, host_end.name) == mac:
        return True
    from podwire.plugins import reference_rules

    return reference_rules.guarded(kernel, identity.container_id, identity.ifname, mac)


def mend(request: Request[Config], kernel: Kernel) -> list[str]:
    """Put back what somebody took from a container's attachment on the host; tell what was missing.

    The bridge with its MAC and addresses, the membership of the host's end, the rules. Raises
    UnknownContainer if the pair is gone: that only a new ADD can make.
    """
    validate(request)
    config, identity = request.config, _identity(request)
    result = request.need_prev_result()
    ips = result.ips_of(identity.ifname)
    mac = next((one.mac for one in result.interfaces if one.name == config.name and not one.sandbox), "")
    mended: list[str] = []
    with told(f'bridge "{config.name}"'):
        link = attachment.find(kernel, identity)
        if link is None:
            raise UnknownContainer(f"{identity.ifname}: its other end, {identity.host_end}, is gone")
        if links.get(kernel.route(), config.name) is None:
            mended.append(f"bridge {config.name}")
        wanted = msgspec.structs.replace(_wanted(request), mac=mac)
        with _bridge(request, kernel, wanted) as bridge, _prepared(request, kernel, bridge, wanted, ips):
            if link.master != bridge.index or not link.up:
                mended.append(f"{link.name} on bridge {config.name}")
                attachment.rejoin(
                    kernel,
                    identity,
                    bridge,
                    hairpin=config.hairpinMode,
                    isolated=config.portIsolation,
                    port=_port(config, bridge),
                )
        index = result.interface_index(identity.ifname)
        own = result.interfaces[index].mac if index is not None else ""
        if config.macspoofchk and antispoof.guarded_mac(kernel, link.name) != own:
            mended.append(f"macspoofchk of {link.name}")
            antispoof.add(kernel, link.name, own)
        if config.ipMasq and ips:
            mended += _masquerade_again(kernel, identity, ips)
    return mended


def _masquerade_again(kernel: Kernel, identity: Identity, ips: Sequence[IPConfig]) -> list[str]:
    from podwire.plugins import masquerade

    owned = [parsed.interface(ip.address) for ip in ips]
    faults = masquerade.check(kernel, identity, owned)
    if faults:
        masquerade.add(kernel, identity, owned)
    return faults


def _host_end_of(kernel: Kernel, result: Result) -> Link | None:
    """Return the host end that another plugin made, by the result: the host's interface that is a veth."""
    for interface in result.interfaces:
        link = None if interface.sandbox else links.get(kernel.route(), interface.name)
        if link is not None and link.kind == "veth":
            return link
    return None


def delete(request: Request[Config], kernel: Kernel) -> None:
    """Remove the pair and the rules, then free the addresses; what is gone already is fine."""
    identity = _identity(request)
    errors: list[CNIError] = []
    leased = leasing.give_back(errors, request, "bridge")
    unlinked = attempt(errors, "bridge", lambda: _unlink(request, kernel, identity))
    attempt(errors, "bridge", lambda: _unprotect(request, kernel, identity))
    # An address whose link is still there must not be given again.
    if unlinked and request.ipam_type and not leased:
        attempt(errors, "bridge", lambda: _delegate(request))
    if errors:
        raise joined(errors)


def _unlink(request: Request[Config], kernel: Kernel, identity: Identity) -> None:
    if attachment.detach(kernel, identity):
        return
    result = request.prev_result
    index = result.interface_index(identity.ifname) if result else None
    if result is not None and index is not None and result.interfaces[index].mac:
        attachment.detach_foreign(request.netns, identity.ifname, result.interfaces[index].mac)
    from podwire.plugins import reference_rules

    reference_rules.remove_guard(kernel, identity.container_id, identity.ifname)


def _unprotect(request: Request[Config], kernel: Kernel, identity: Identity) -> None:
    """Remove the rules whatever the configuration says now: it may have changed since the ADD."""
    from podwire.kernel.nft import NftUnavailable
    from podwire.plugins import masquerade

    try:
        antispoof.remove(kernel, identity.host_end)
        masquerade.remove(kernel, identity)
    except NftUnavailable:
        # Where nftables cannot be reached, nothing was made by it either, unless it was asked for.
        if request.config.macspoofchk or request.config.ipMasq:
            raise


def _delegate(request: Request[Config]) -> None:
    request.delegate(request.ipam_type)


def gc(request: Request[Config], kernel: Kernel) -> None:
    """Remove the pairs and rules of this network that no valid attachment has, and have the IPAM do so."""
    if request.valid_attachments is None:
        return
    valid = {
        Identity(request.name, one.container_id, one.ifname).host_end for one in request.valid_attachments
    }
    errors: list[CNIError] = []

    def collect() -> None:
        stale = [link for link in attachment.host_ends(kernel, request.name) if link.name not in valid]
        if not stale:
            return
        kernel.links.remove(*(link.name for link in stale))
        if request.config.macspoofchk:
            antispoof.remove(kernel, *(link.name for link in stale))

    def unmasquerade() -> None:
        from podwire.plugins import masquerade

        keep = [(one.container_id, one.ifname) for one in request.valid_attachments or ()]
        masquerade.collect(kernel, request.name, keep)

    attempt(errors, "bridge", collect)
    if request.config.ipMasq:
        attempt(errors, "bridge", unmasquerade)
    if request.ipam_type:
        attempt(errors, "bridge", lambda: _delegate(request))
    if errors:
        raise joined(errors)


def status(request: Request[Config], kernel: Kernel) -> None:
    """Raise NotAvailable (50) if an ADD could not succeed."""
    validate(request)
    name = request.config.name
    with told(f'bridge "{name}"'):
        link = links.get(kernel.route(), name)
    if link is not None and link.kind != "bridge":
        raise NotAvailable(f"bridge {name}: exists and is no bridge but a {link.kind or 'device'}")
    if link is not None and _vlans(request.config):
        with told(f'bridge "{name}"'):
            bridge_vlans.require_filter(kernel, link)
    if request.ipam_type:
        request.delegate(request.ipam_type)


PLUGIN = Plugin(
    type="bridge",
    about="Podwire bridge: a pod's veth pair on a bridge of the host",
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
