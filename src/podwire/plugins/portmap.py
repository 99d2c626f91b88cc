"""portmap: ports of the host lead to the pod (chained after the plugin that made its interface).

Options: ``snat`` (true), ``masqAll``, ``markMasqBit`` (13), ``externalSetMarkChain``, ``conditionsV4``,
``conditionsV6``, ``backend``; the ports come as capability ``portMappings``. All is nftables, whatever
``backend`` says. With snat, connections from the host's 127.0.0.0/8 and from the pod's own subnets get an
address of the host as source, so that the answers come back through it; with masqAll all connections do.
The mark bit tells these from prerouting to postrouting. ``externalSetMarkChain`` names a chain of iptables
that sets a mark for somebody else's masquerade; ours needs none, so it is accepted and not called.

A pod reaches itself by its host port; where the host has br_netfilter on, its bridge port must be in hairpin
mode for that (option hairpinMode of bridge), because the translated frame leaves by the port it came from.
"""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from ipaddress import IPv4Address, IPv6Address
from typing import TYPE_CHECKING, Any

import msgspec

from podwire.cni import fields
from podwire.cni.errors import CNIError, InvalidConfig, NotAvailable
from podwire.cni.plugin import Plugin, Request, Result
from podwire.kernel import conntrack, nftwrite, outgoing
from podwire.kernel.errors import KernelError
from podwire.kernel.host import Kernel
from podwire.kernel.nft import NftError
from podwire.kernel.nftset import Element
from podwire.plugins import conditions, hostports, localnet, parsed, reference_rules, ruleset
from podwire.plugins import portmap_elements as elements
from podwire.plugins.failures import mended, told
from podwire.plugins.hostports import HostPort, Pod
from podwire.plugins.localnet import away
from podwire.plugins.portmap_elements import Held
from podwire.plugins.reference_rules import Whose
from podwire.plugins.ruleset import LOCALNET, PORTMAP_INDEX, TARGET_ANY, TARGET_AT, Chain, Owner

if TYPE_CHECKING:
    from podwire.kernel.conntrack import Flow

HOST_PORT_WRONG = 102
_UDP = 17
_TRIES = 3
_BACKENDS = ("", "iptables", "nftables")


class Anything(msgspec.Struct, frozen=True):
    """What is decoded for every command: nothing, because no configuration may stop a DEL."""


class Settings(msgspec.Struct, frozen=True):
    """portmap's options, as ADD and CHECK read them."""

    snat: bool = True
    masqAll: bool = False
    markMasqBit: int | None = None
    externalSetMarkChain: str | None = None
    conditionsV4: Any = None
    conditionsV6: Any = None
    backend: str = ""


def settings(request: Request[Anything]) -> Settings:
    """Decode and check the options. Raises InvalidConfig (7) naming the field and the value."""
    try:
        found = fields.convert(request.raw, Settings)
    except fields.FieldError as error:
        raise InvalidConfig(f'plugin "portmap": {error}') from None
    if found.markMasqBit is not None and not 0 <= found.markMasqBit <= 31:
        raise InvalidConfig(f"markMasqBit: want a bit from 0 to 31 (it is {found.markMasqBit})")
    if found.markMasqBit is not None and found.externalSetMarkChain is not None:
        raise InvalidConfig(
            "markMasqBit and externalSetMarkChain exclude each other",
            f"they are {found.markMasqBit} and {found.externalSetMarkChain!r}",
        )
    if found.backend not in _BACKENDS:
        raise InvalidConfig(f'backend: want "iptables" or "nftables" (it is {found.backend!r})')
    return found


def add(request: Request[Anything], kernel: Kernel) -> Result:
    """Make the host ports in one transaction, or none of them; the result is the chain's, unchanged."""
    options = settings(request)
    result = request.need_prev_result()
    pod = hostports.addresses(result, request.ifname)
    ports = hostports.wanted(request.runtime_config, pod)
    owner = Owner(request.name, request.container_id, request.ifname)
    chains = chains_for(options, pod, ports)
    if not ports:
        return result
    with told("portmap"):
        device = _localnet(kernel, options, ports)
        _make(request, kernel, owner, ports, chains, device=device)
        try:
            if device:
                localnet.let_out(kernel, device)
            forget_flows(kernel, ports)
        except KernelError:
            _release(request, kernel, owner)
            raise
    return result


def check(request: Request[Anything], kernel: Kernel) -> None:
    """Find every element, rule and chain of ADD as it was made; the error names all that is missing."""
    pod = hostports.addresses(request.need_prev_result(), request.ifname)
    ports = hostports.wanted(request.runtime_config, pod)
    if not ports:
        return
    owner = Owner(request.name, request.container_id, request.ifname)
    options = settings(request)
    chains = chains_for(options, pod, ports)
    with told("portmap"):
        faults = [
            f"rules of chain {name} of table inet {ruleset.TABLE} are missing"
            for name in ruleset.missing(kernel.nft, *chains.values())
        ]
        for each in ports:
            faults += elements.faults(kernel, owner, each, chains[each.version])
        if kernel.nft.get(PORTMAP_INDEX, (owner.key, 0)) is None:
            faults.append(f"the host ports are not in {PORTMAP_INDEX.name}")
        device = _localnet(kernel, options, ports)
        if device and not localnet.is_open(kernel, device):
            faults.append(f"route_localnet of {device} is off")
        if faults and reference_rules.there(kernel, reference_rules.HOST_PORTS, _reference(request)):
            return
    if faults:
        raise CNIError(f"portmap: {'; '.join(faults)}", code=HOST_PORT_WRONG)


def _reference(request: Request[Anything]) -> Whose:
    """The attachment as the reference plugin knows it, which may have made its host ports."""
    return reference_rules.Whose(request.name, request.container_id, request.ifname)


def mend(request: Request[Anything], kernel: Kernel) -> list[str]:
    """Make host ports again whose elements or rules somebody took away; tell what was missing."""
    return mended(lambda: check(request, kernel), lambda: add(request, kernel), HOST_PORT_WRONG)


def delete(request: Request[Anything], kernel: Kernel) -> None:
    """Remove the attachment's host ports and the UDP flows through them, whatever the configuration says."""
    with told("portmap"):
        owner = Owner(request.name, request.container_id, request.ifname)
        if _release(request, kernel, owner):
            return
        if reference_rules.remove(kernel, reference_rules.HOST_PORTS, _reference(request)):
            _forget_translated(kernel, request)


def _forget_translated(kernel: Kernel, request: Request[Anything]) -> None:
    """Delete the UDP flows to the pod that came by host ports, whichever these were."""
    for ip in request.prev_result.ips_of(request.ifname) if request.prev_result else ():
        conntrack.delete(
            protocol=_UDP,
            reply_source=parsed.interface(ip.address).ip,
            where=lambda flow: flow.destination != flow.reply_source,
            netns=away(kernel),
        )


def gc(request: Request[Anything], kernel: Kernel) -> None:
    """Remove the host ports of this network's attachments that are not valid any more."""
    valid = request.valid_attachments or ()
    kept = {Owner(request.name, each.container_id, each.ifname).place for each in valid}
    part = ruleset.network_part(request.name)

    def doomed(element: Element) -> bool:
        comment = element.comment
        return ruleset.network_of(comment) == part and ruleset.place_of(comment) not in kept

    with told("portmap"):
        with ruleset.exclusive(request.deadline):
            held, changes = elements.scan(kernel, doomed)
            if changes:
                ruleset.run(kernel.nft, "", changes + elements.unmark(kernel, held))
        forget_answers(kernel, held)
        localnet.sweep(kernel)
        ruleset.sweep(kernel.nft)
        containers = {each.container_id for each in valid}
        reference_rules.collect(kernel, reference_rules.HOST_PORTS, request.name, containers)


def status(request: Request[Anything], kernel: Kernel) -> None:
    """Have the kernel judge the whole table without making it."""
    try:
        ruleset.judge(kernel.nft)
    except KernelError as error:
        raise NotAvailable(f"portmap: nftables does not take our table: {error}") from error


PLUGIN = Plugin(
    type="portmap",
    about="podwire portmap: ports of the host lead to the pod, by nftables",
    config=Anything,
    add=add,
    check=check,
    delete=delete,
    gc=gc,
    status=status,
    mend=mend,
    open_kernel=Kernel.open,
)


def chains_for(options: Settings, pod: Pod, ports: Iterable[HostPort]) -> dict[int, Chain]:
    """The chain of these settings for each IP version: the further matches, the mark, the DNAT."""
    mark = 1 << (13 if options.markMasqBit is None else options.markMasqBit)
    versions = {each.version for each in ports}
    chains = {}
    for version, field in ((4, "conditionsV4"), (6, "conditionsV6")):
        matches = conditions.translate(getattr(options, field), version, field)
        if version not in versions:
            continue
        protocol = "ip" if version == 4 else "ip6"
        sources = [str(pod[version].network), *(["127.0.0.0/8"] if version == 4 else [])]
        rules = []
        if options.masqAll:
            rules.append(f"{matches} meta mark set meta mark | {mark:#x}")
        elif options.snat:
            rules += [
                f"{matches} {protocol} saddr {each} meta mark set meta mark | {mark:#x}" for each in sources
            ]
        key = "meta l4proto . th dport"
        rules.append(f"{matches} dnat {protocol} to {protocol} daddr . {key} map @{TARGET_AT[version].name}")
        rules.append(f"{matches} dnat {protocol} to {key} map @{TARGET_ANY[version].name}")
        rules = [rule.strip() for rule in rules]
        name = hashlib.sha256("\n".join(rules).encode()).hexdigest()[:16]
        chains[version] = Chain(f"portmap-{version}-{name}", tuple(rules))
    if options.masqAll or options.snat:
        chains[0] = Chain("hairpin", (f"meta mark & {mark:#x} == {mark:#x} masquerade",), shared=True)
    return chains


def _localnet(kernel: Kernel, options: Settings, ports: Iterable[HostPort]) -> str:
    """The interface towards the pod that must let 127.0.0.0/8 out; empty if none must."""
    if not (options.snat or options.masqAll):
        return ""
    target = next((each.target for each in ports if each.loopback), None)
    link = localnet.towards(kernel, target) if target is not None else None
    return link.name if link else ""


def _make(
    request: Request[Anything],
    kernel: Kernel,
    owner: Owner,
    ports: tuple[HostPort, ...],
    chains: dict[int, Chain],
    *,
    device: str,
) -> None:
    cluttered = False
    alone = any(each.address is not None for each in ports)
    for attempt in range(_TRIES):
        held = elements.held_by(kernel, owner)
        # Only one at a time makes rules: two would make the one of the mark bit twice.
        alone = (
            alone or any(each.address for each in held) or bool(ruleset.prepare(kernel.nft, *chains.values()))
        )
        lock: AbstractContextManager[None] = ruleset.exclusive(request.deadline) if alone else nullcontext()
        with lock:
            preparation = ruleset.prepare(kernel.nft, *chains.values()) if alone else ""
            old = elements.leftovers(kernel, owner) if cluttered else elements.removal(kernel, owner, held)
            changes = old + elements.creation(owner, ports, chains)
            if device:
                changes += nftwrite.add(LOCALNET, Element((device,)))
            try:
                ruleset.run(kernel.nft, preparation, changes)
            except NftError as error:
                exists = error.errno == errno.EEXIST
                taken = elements.taken(kernel, owner, ports) if exists else None
                if taken is not None:
                    raise taken from error
                if attempt < _TRIES - 1:
                    # What was read has changed since, or stands in the way though nobody has it.
                    cluttered = exists
                    alone = alone or exists
                    continue
                if error.errno == errno.EINVAL:
                    _blame_conditions(request, error)
                raise
        forget_answers(kernel, held)
        return


def _blame_conditions(request: Request[Anything], error: NftError) -> None:
    """Conditions in nft's own words are judged by nft alone."""
    for field in ("conditionsV4", "conditionsV6"):
        value = fields.lookup(request.raw, field)
        if value:
            raise InvalidConfig(f"{field}: nftables refuses it (it is {value!r})", error.detail) from error


def _release(request: Request[Anything], kernel: Kernel, owner: Owner) -> bool:
    """Remove what the attachment has; False if it had nothing."""
    for attempt in range(_TRIES):
        held = elements.held_by(kernel, owner)
        if not held:
            return attempt > 0
        partly = any(each.address is not None for each in held)
        lock: AbstractContextManager[None] = ruleset.exclusive(request.deadline) if partly else nullcontext()
        with lock:
            try:
                ruleset.run(kernel.nft, "", elements.removal(kernel, owner, held))
            except NftError as error:
                # Somebody flushed the table meanwhile.
                if attempt == _TRIES - 1 or error.errno not in {errno.ENOENT, errno.EINVAL}:
                    raise
                continue
        forget_answers(kernel, held)
        localnet.close_own(kernel, request, held)
        break
    return True


def forget_flows(kernel: Kernel, ports: Iterable[HostPort]) -> None:
    """Delete the UDP flows to new host ports: a client that keeps its socket would stay with the old pod."""
    known: dict[IPv4Address | IPv6Address, bool] = {}

    def here(flow: Flow) -> bool:
        destination = flow.destination
        if destination not in known:
            try:
                known[destination] = outgoing.lookup(kernel.route(), destination).local
            except KernelError:
                known[destination] = False
        return known[destination]

    for each in ports:
        if each.protocol == _UDP:
            conntrack.delete(
                protocol=_UDP,
                family=each.version,
                original_destination=each.address,
                original_port=each.port,
                where=here,
                netns=away(kernel),
            )


def forget_answers(kernel: Kernel, held: Iterable[Held]) -> None:
    """Delete the UDP flows through host ports that are gone."""
    for each in held:
        if each.protocol == _UDP and each.target is not None:
            address, port = each.target

            def through(flow: Flow, port: int = each.port) -> bool:
                return flow.destination_port == port and flow.destination != flow.reply_source

            conntrack.delete(
                protocol=_UDP, reply_source=address, reply_port=port, where=through, netns=away(kernel)
            )
