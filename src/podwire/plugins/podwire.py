"""`podwire`: a whole pod network in one plugin: addresses, pods routed or bridged, host ports, limits.

Options: see docs/plugins/podwire.md, and `pod_network.Settings`. Addresses are remembered in the directory of
the reference host-local, so a node can move from bridge + host-local to this plugin and back with its leases.
What a pod sends must come from its own address. An ADD is all or nothing; a DEL needs neither the namespace
nor the result of the ADD, and knows pods that our bridge and portmap made as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import msgspec

from podwire.cni.errors import (
    AlreadyAttached,
    CNIError,
    InvalidConfig,
    NotAvailable,
    UnknownContainer,
    joined,
)
from podwire.cni.plugin import Interface, IPConfig, Plugin, Request, Result
from podwire.kernel import devices, links, sysctl
from podwire.kernel.addresses import list_addresses
from podwire.kernel.errors import KernelError
from podwire.kernel.host import Kernel
from podwire.kernel.links import Link
from podwire.plugins import (
    addressing,
    attachment,
    bridge_device,
    hostports,
    parsed,
    pod_ends,
    pod_leases,
    pod_network,
    pod_rules,
    portmap,
    ruleset,
    shaping,
    uplink,
    verification,
)
from podwire.plugins.attachment import Identity
from podwire.plugins.failures import KERNEL, open_netns, told, undone_on_failure
from podwire.plugins.hostports import HostPort
from podwire.plugins.pod_ends import Ends, PodIdentity
from podwire.plugins.pod_network import Anything, Network
from podwire.plugins.pod_rules import PodRules
from podwire.plugins.ruleset import Owner
from podwire.plugins.spoofing import Source

if TYPE_CHECKING:
    from podwire.kernel.removal import Candidate

_WHAT = "podwire"


def _identity(request: Request[Anything], *, routed: bool) -> PodIdentity:
    return PodIdentity(request.name, request.container_id, request.ifname, routed)


def _identities(request: Request[Anything]) -> tuple[Identity, ...]:
    """The names under which an attachment can be: in either mode, and as our bridge names its own."""
    place = request.name, request.container_id, request.ifname
    return PodIdentity(*place, routed=True), PodIdentity(*place, routed=False), Identity(*place)


def _owner(request: Request[Anything]) -> Owner:
    return Owner(request.name, request.container_id, request.ifname)


def _ports(request: Request[Anything], ips: Sequence[IPConfig]) -> tuple[HostPort, ...]:
    if not request.runtime_config:
        return ()
    pod: hostports.Pod = {}
    for ip in ips:
        pod.setdefault(ip.family, parsed.interface(ip.address))
    return hostports.wanted(request.runtime_config, pod)


def _mtu(kernel: Kernel, network: Network) -> int:
    """The pods' MTU: the configured one, else the uplink's less the overhead. Raises NotAvailable (50)."""
    settings = network.settings
    if settings.mtu:
        return settings.mtu
    found = uplink.find(kernel.route(), settings.uplink)
    if found is None:
        if settings.uplink:
            raise NotAvailable(f"uplink {settings.uplink}: is missing")
        return uplink.MTU - settings.mtuOverhead
    return min(found.mtu, _LONGEST_FRAME) - settings.mtuOverhead


_LONGEST_FRAME = 65535


def _rules(request: Request[Anything], network: Network, ends: Ends, ports: tuple[HostPort, ...]) -> PodRules:
    owned = [parsed.interface(ip.address).ip for ip in ends.ips]
    masqueraded = tuple(owned) if network.settings.masquerade else ()
    source = None
    if ends.bridge is not None:
        local = [addressing.link_local(ends.mac).ip] if any(one.version == 6 for one in owned) else []
        source = Source(ends.identity.host_end, ends.mac, (*owned, *local))
    localnet = ""
    if any(each.loopback for each in ports):
        localnet = ends.identity.host_end if ends.bridge is None else ends.bridge.name
    return PodRules(
        _owner(request),
        masqueraded,
        network.outward if masqueraded else None,
        ports,
        _leading(network, ports),
        source,
        localnet,
    )


def _leading(network: Network, ports: tuple[HostPort, ...]) -> dict[int, ruleset.Chain]:
    """The chains of the host ports. The sources that get an address of the host are the pods' subnets."""
    if not ports:
        return {}
    pod = {
        each.version: parsed.interface(f"{each.target}/{network.subnet_of(each.target).prefixlen}")
        for each in ports
    }
    return portmap.chains_for(portmap.Settings(markMasqBit=network.settings.markMasqBit), pod, ports)


@contextmanager
def _bridge(kernel: Kernel, request: Request[Anything], network: Network, mtu: int) -> Iterator[Link | None]:
    if network.routed:
        yield None
        return
    wanted = bridge_device.Wanted(request.name, network.settings.bridge, mtu)
    with bridge_device.using(kernel, wanted) as bridge:
        if bridge.mtu != mtu and bridge_device.is_ours(bridge):
            kernel.route().send(links.configure(bridge.index, mtu=mtu))
        yield bridge


def _wanted_bridge(request: Request[Anything], network: Network, mtu: int) -> bridge_device.Wanted:
    return bridge_device.Wanted(request.name, network.settings.bridge, mtu)


def add(request: Request[Anything], kernel: Kernel) -> Result:
    """Attach the container to the network."""
    network = pod_network.network(request)
    mac = pod_network.requested_mac(request)
    limits = pod_network.limits(request, network)
    dns = pod_network.dns(request, network)
    identity = _identity(request, routed=network.routed)
    with ExitStack() as stack:
        container = stack.enter_context(open_netns(request.netns))
        stack.enter_context(told(_WHAT))
        if pod_ends.find(kernel, _identities(request)) is not None:
            raise AlreadyAttached(
                f"container {identity.container_id} has {identity.ifname} on network {request.name} already",
                "a DEL must come before a second ADD",
                code=KERNEL,
            )
        mtu = _mtu(kernel, network)
        ips = network.ips(stack.enter_context(pod_leases.leased(request, network)))
        ports = _ports(request, ips)
        bridge = stack.enter_context(_bridge(kernel, request, network, mtu))
        ends = Ends(
            identity,
            mac or attachment.mac_for(identity, ips),
            mtu,
            ips,
            network.routes(ips),
            bridge,
            network.settings.hairpin,
            any(each.loopback for each in ports),
        )
        undo = stack.enter_context(undone_on_failure())
        if bridge is not None:
            bridge_device.prepare(kernel, bridge, _wanted_bridge(request, network, mtu), ips)
        rules = _rules(request, network, ends, ports)
        undo.append(lambda: pod_rules.remove(kernel, rules.owner, _own_localnet(rules), math.inf))
        pod_rules.make(kernel, rules, request.deadline)
        ifbs: list[Link] = []

        def limit(link: Link) -> None:
            ifb = shaping.make(kernel, identity, link, limits, fresh=True)
            if ifb is not None:
                undo.append(lambda: shaping.remove(kernel, identity, [identity.host_end]))
                ifbs.append(ifb)

        pod_ends.make(kernel, container, ends, limit if limits else None)
        undo.append(lambda: attachment.detach(kernel, identity))
        bridge_device.enable_forwarding(kernel, {ip.family for ip in ips})
        portmap.forget_flows(kernel, ports)
    interfaces = (
        *((Interface(bridge.name, bridge.mac, mtu),) if bridge is not None else ()),
        Interface(identity.host_end, identity.host_mac, mtu),
        Interface(identity.ifname, ends.mac, mtu, request.netns),
        *(Interface(ifb.name, ifb.mac) for ifb in ifbs),
    )
    return Result(interfaces, ips, ends.routes, dns)


def _own_localnet(rules: PodRules) -> tuple[str, ...]:
    """The interface in the set ``localnet`` that goes with the attachment: not a bridge."""
    return (rules.localnet,) if rules.localnet and rules.source is None else ()


def _made(
    request: Request[Anything], network: Network, result: Result, bridge: Link | None, mtu: int
) -> tuple[Ends, PodRules]:
    """What ADD made, by its result."""
    index = result.interface_index(request.ifname)
    mac = "" if index is None else result.interfaces[index].mac.lower()
    ips = result.ips_of(request.ifname)
    ports = _ports(request, ips)
    ends = Ends(
        _identity(request, routed=network.routed),
        mac,
        mtu,
        ips,
        result.routes,
        bridge,
        network.settings.hairpin,
        any(each.loopback for each in ports),
    )
    return ends, _rules(request, network, ends, ports)


def check(request: Request[Anything], kernel: Kernel) -> None:
    """Verify the lease, the links, addresses, routes, neighbours, MTU, limits and every rule and element."""
    network = pod_network.network(request)
    result = request.need_prev_result()
    pod_leases.verify(request, network, result)
    with told(_WHAT), open_netns(request.netns) as container:
        mtu = _mtu(kernel, network)
        bridge = _check_bridge(kernel, network, result, request.ifname)
        ends, rules = _made(request, network, result, bridge, mtu)
        link = attachment.find(kernel, ends.identity)
        if link is None:
            raise CNIError(f"host end {ends.identity.host_end}: is missing", code=KERNEL)
        pod_ends.verify_host_end(kernel, link, ends)
        inside = verification.container_end(container, request.ifname, result)
        if bridge is None:
            pod_ends.verify_gateways(container, ends)
        _check_mtu(kernel, network, inside.mtu, request.ifname)
        faults = pod_rules.faults(kernel, rules)
        faults += shaping.check(kernel, ends.identity, link, pod_network.limits(request, network))
        faults += _sysctl_faults(kernel, ends, rules)
    if faults:
        raise CNIError(f"{_WHAT}: {'; '.join(faults)}", code=KERNEL)


def _check_mtu(kernel: Kernel, network: Network, mtu: int, ifname: str) -> None:
    settings = network.settings
    wanted = _mtu(kernel, network)
    if mtu != wanted:
        found = None if settings.mtu else uplink.find(kernel.route(), settings.uplink)
        why = "mtu says" if settings.mtu else f"uplink {found.name} allows" if found else "want"
        raise CNIError(f"interface {ifname}: has MTU {mtu}, {why} {wanted}", code=KERNEL)


def _check_bridge(kernel: Kernel, network: Network, result: Result, ifname: str) -> Link | None:
    if network.routed:
        return None
    name = network.settings.bridge
    bridge = links.get(kernel.route(), name)
    if bridge is None or bridge.kind != "bridge":
        raise CNIError(f"bridge {name}: is missing", code=KERNEL)
    verification.bridge_interface(bridge, result, own=ifname)
    verification.gateway(kernel, bridge, bridge_device.gateway_interfaces(result.ips_of(ifname)))
    return bridge


def _sysctl_faults(kernel: Kernel, ends: Ends, rules: PodRules) -> list[str]:
    keys = [bridge_device.FORWARDING[family] for family in sorted({ip.family for ip in ends.ips})]
    if rules.localnet:
        keys.append(f"net/ipv4/conf/{rules.localnet}/route_localnet")
    return [f"{key} is off" for key in keys if sysctl.read(key, kernel.away).strip() == "0"]


def mend(request: Request[Anything], kernel: Kernel) -> list[str]:
    """Put back what somebody took from an attachment on the host; tell what was missing.

    The bridge with its addresses, the host's end as port or with its routes and neighbours, the rules and
    elements, the limits. Raises UnknownContainer if the pair is gone: that only a new ADD can make.
    """
    network = pod_network.network(request)
    result = request.need_prev_result()
    mended: list[str] = []
    with told(_WHAT):
        identity = _identity(request, routed=network.routed)
        link = attachment.find(kernel, identity)
        if link is None:
            raise UnknownContainer(f"{identity.ifname}: its other end, {identity.host_end}, is gone")
        mtu = next((one.mtu for one in result.interfaces if one.name == identity.host_end), 0)
        if not network.routed and links.get(kernel.route(), network.settings.bridge) is None:
            mended.append(f"bridge {network.settings.bridge}")
        with _mended_bridge(kernel, request, network, result, mtu) as bridge:
            ends, rules = _made(request, network, result, bridge, mtu)
            if bridge is not None:
                mended += _bridge_faults(kernel, bridge, ends)
                bridge_device.prepare(kernel, bridge, _wanted_bridge(request, network, mtu), ends.ips)
            faults = pod_ends.host_faults(kernel, link, ends)
            if faults:
                pod_ends.mend(kernel, ends)
                mended += faults
        found = pod_rules.faults(kernel, rules)
        if found:
            pod_rules.make(kernel, rules, request.deadline)
            mended += found
        limits = pod_network.limits(request, network)
        short = shaping.check(kernel, identity, link, limits)
        if short:
            shaping.remove(kernel, identity, [link.name])
            shaping.make(kernel, identity, link, limits)
            mended += short
        mended += bridge_device.enable_forwarding(kernel, {ip.family for ip in ends.ips})
        if bridge is not None and rules.localnet:
            portmap.open_localnet(kernel, bridge.name)
    return mended


def _bridge_faults(kernel: Kernel, bridge: Link, ends: Ends) -> list[str]:
    faults = [] if bridge.up else [f"bridge {bridge.name} is down"]
    held = {one.address for one in list_addresses(kernel.route(), bridge.index)}
    needed = bridge_device.gateway_interfaces(ends.ips)
    return faults + [f"bridge {bridge.name}: the address {one}" for one in needed if one not in held]


@contextmanager
def _mended_bridge(
    kernel: Kernel, request: Request[Anything], network: Network, result: Result, mtu: int
) -> Iterator[Link | None]:
    if network.routed:
        yield None
        return
    name = network.settings.bridge
    mac = next((one.mac for one in result.interfaces if one.name == name and not one.sandbox), "")
    wanted = msgspec.structs.replace(_wanted_bridge(request, network, mtu), mac=mac)
    with bridge_device.using(kernel, wanted) as bridge:
        yield bridge


def delete(request: Request[Anything], kernel: Kernel) -> None:
    """Remove the pair, the rules and the limits, and release the addresses; what is gone already is fine."""
    errors: list[CNIError] = []
    unlinked = _attempt(errors, lambda: _unlink(request, kernel))
    _attempt(errors, lambda: _unrule(request, kernel))
    if unlinked:  # an address whose link is still there must not be given again
        _attempt(errors, lambda: pod_leases.release(request))
    if errors:
        raise joined(errors)


def _unlink(request: Request[Anything], kernel: Kernel) -> None:
    from podwire.kernel.removal import Candidate

    host = kernel.route()
    doomed: list[Candidate | Link] = []
    for identity in _identities(request):
        index = devices.find(host, identity.host_end)
        if index:
            doomed.append(Candidate(index, identity.host_end, identity.left))
    ifb = shaping.find(kernel, _identity(request, routed=True))
    if ifb is not None:
        doomed.append(ifb)
    if doomed:
        kernel.links.remove(*doomed)


def _unrule(request: Request[Anything], kernel: Kernel) -> None:
    from podwire.kernel.nft import NftUnavailable

    try:
        ends = (_identity(request, routed=True).host_end,)
        held = pod_rules.remove(kernel, _owner(request), ends, request.deadline)
        portmap.forget_answers(kernel, held)
    except NftUnavailable:
        return  # then no ADD could make anything either


def _attempt(errors: list[CNIError], action: Callable[[], None]) -> bool:
    try:
        with told(_WHAT):
            action()
    except CNIError as error:
        errors.append(error)
        return False
    return True


def gc(request: Request[Anything], kernel: Kernel) -> None:
    """Remove the pairs, limits, rules and leases of this network that no valid attachment has."""
    if request.valid_attachments is None:
        return
    valid = [(one.container_id, one.ifname) for one in request.valid_attachments]
    places = [(request.name, *each) for each in valid]
    names = {
        identity.host_end
        for place in places
        for identity in (
            PodIdentity(*place, routed=True),
            PodIdentity(*place, routed=False),
            Identity(*place),
        )
    }
    errors: list[CNIError] = []
    stale = [link for link in attachment.host_ends(kernel, request.name) if link.name not in names]

    def unlink() -> None:
        shaping.collect(kernel, request.name, (PodIdentity(*place) for place in places))
        if stale:
            kernel.links.remove(*stale)

    def unrule() -> None:
        kept = {Owner(*place).place for place in places}
        gone = [link.name for link in stale]
        pod_rules.collect(kernel, request.name, kept, gone, request.deadline)

    unlinked = _attempt(errors, unlink)
    _attempt(errors, unrule)
    if unlinked:
        _attempt(errors, lambda: pod_leases.retain(request, set(valid)))
    if errors:
        raise joined(errors)


def status(request: Request[Anything], kernel: Kernel) -> None:
    """Raise NotAvailable (50) if an ADD could not succeed, or would make an MTU that is too big."""
    try:
        network = pod_network.network(request)
        _mtu(kernel, network)
    except InvalidConfig as error:
        raise NotAvailable(f"{_WHAT}: {error}") from error
    settings = network.settings
    with told(_WHAT):
        found = uplink.find(kernel.route(), settings.uplink)
        bridge = None if network.routed else links.get(kernel.route(), settings.bridge)
    if settings.uplink and found is None:
        raise NotAvailable(f"{_WHAT}: uplink {settings.uplink}: is missing")
    if found is not None and settings.mtu > found.mtu - settings.mtuOverhead:
        less = f" less {settings.mtuOverhead} of overhead" if settings.mtuOverhead else ""
        raise NotAvailable(f"{_WHAT}: mtu {settings.mtu}: the uplink {found.name} has {found.mtu}{less}")
    if bridge is not None and bridge.kind != "bridge":
        raise NotAvailable(
            f"{_WHAT}: bridge {settings.bridge}: exists and is no bridge but a {bridge.kind or 'device'}"
        )
    try:
        ruleset.judge(kernel.nft)
    except KernelError as error:
        raise NotAvailable(f"{_WHAT}: nftables does not take our table: {error}") from error
    pod_leases.status(request, network)


PLUGIN = Plugin(
    type="podwire",
    about="Podwire podwire: a whole pod network in one plugin",
    config=Anything,
    add=add,
    check=check,
    delete=delete,
    gc=gc,
    status=status,
    mend=mend,
    open_kernel=Kernel.open,
    known_args=frozenset({"IP", "MAC", "GATEWAY"}),
)
