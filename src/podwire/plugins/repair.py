"""What others take away from running pods' attachments, found cheaply and put back where that is possible.

`Repairer.suspects` looks at many attachments with a constant number of questions to the kernel.
`Repairer.mend` looks closely at one and makes again what is missing: the
bridge, its addresses, the port on it, the rules. Only a link that is gone cannot be had back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

from podwire.cni import config
from podwire.cni.cache import Record
from podwire.cni.errors import UnknownContainer
from podwire.cni.request import make_request
from podwire.kernel import addresses, links, routes
from podwire.kernel.host import Kernel
from podwire.kernel.nft import Nft, NftUnavailable
from podwire.plugins import load, ruleset, spoofing
from podwire.plugins.attachment import Identity
from podwire.plugins.pod_ends import PodIdentity
from podwire.plugins.ruleset import (
    MASQUERADE,
    PODS,
    PORTMAP_ANY,
    PORTMAP_AT,
    PORTMAP_INDEX,
    TABLE,
    TARGET_ANY,
    TARGET_AT,
    Owner,
)


@dataclass(frozen=True, slots=True)
class Attached:
    """An attachment as its runtime knows it. ``network``: the list's JSON; ``ips``: without lengths."""

    network: str
    container_id: str
    ifname: str
    ips: tuple[str, ...]
    host_ports: bool = False


@dataclass(frozen=True, slots=True)
class Mended:
    """What was missing and is back, in words; ``lost`` says why the attachment is beyond repair, or \"\"."""

    back: tuple[str, ...] = ()
    lost: str = ""


@dataclass(frozen=True, slots=True)
class _Network:
    name: str
    bridge: str
    gateway: bool
    masquerade: bool
    mode: str = ""  # of a network of podwire


class Repairer:
    """Looks after attachments to networks of our plugins `bridge`, `portmap` and `podwire`; thread-safe.

    No ADD or DEL of an attachment may run while it is mended.
    """

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._networks: dict[str, _Network | None] = {}

    def suspects(self, attached: Iterable[Attached]) -> list[Attached]:
        """Those of which something seems to be missing. Raises KernelError."""
        known = [(one, network) for one in attached if (network := self._network(one.network)) is not None]
        if not known:
            return []
        there = {link.name: link for link in links.list_links(self._kernel.route())}
        sound = {network.bridge: self._bridge_families(there.get(network.bridge)) for _, network in known}
        routed = {network for _, network in known if network.mode == "routed"}
        ways = self._ways() if routed else set()
        rules = self._rules()
        return [
            one
            for one, network in known
            if not (
                _routed(one, network, there, ways)
                if network in routed
                else _linked(one, network, there, sound[network.bridge])
            )
            or not rules.hold(one, network)
        ]

    def _ways(self) -> set[tuple[int, str]]:
        """The host's routes to single addresses: the interface and the address."""
        found = routes.list_routes(self._kernel.route(), table=routes.TABLE_MAIN)
        return {
            (each.device, str(each.destination.network_address))
            for each in found
            if each.destination.prefixlen == each.destination.max_prefixlen
        }

    def _bridge_families(self, link: links.Link | None) -> set[int]:
        """Of which families the bridge has addresses; empty if it is missing or down."""
        if link is None or not link.up:
            return set()
        held = addresses.list_addresses(self._kernel.route(), link.index)
        return {one.address.version for one in held if not one.address.is_link_local}

    def _rules(self) -> _Rules:
        try:
            nft = self._kernel.nft
            elements = {
                element.key[0]: element for where in MASQUERADE.values() for element in nft.elements(where)
            }
            return _Rules(
                whole=not ruleset.missing(nft),
                chains={rule.chain for rule in nft.rules(TABLE)},
                masquerade={str(key): (ruleset.place_of(e.comment), e.value) for key, e in elements.items()},
                pods={
                    str(element.key[0]): ruleset.place_of(element.comment)
                    for where in PODS.values()
                    for element in nft.elements(where)
                },
                sources={
                    (ruleset.place_of(element.comment), str(element.key[2]))
                    for where in spoofing.SOURCES.values()
                    for element in nft.elements(where)
                },
                guarded=not spoofing.prepare(nft),
                ports=_whole_ports(nft),
            )
        except NftUnavailable:
            return _Rules(
                whole=False, chains=set(), masquerade={}, ports=set(), pods={}, sources=set(), guarded=False
            )

    def _network(self, text: str) -> _Network | None:
        """What matters of a network; None if its first plugin is neither our bridge nor podwire."""
        if text not in self._networks:
            parsed = config.parse_list(text)
            first = parsed.plugins[0].raw if parsed.plugins else {}
            self._networks[text] = _read(parsed.name, first)
        return self._networks[text]

    def mend(self, record: Record) -> Mended:
        """Put back what is missing of the attachment. Raises CNIError where the host refuses that."""
        result = record.typed_result()
        if result is None:
            return Mended()
        network = config.parse_list(record.config)
        back: list[str] = []
        for plugin in network.plugins:
            ours = load(plugin.type)
            if ours is None or ours.mend is None:
                continue
            made: Mapping[str, Any] = plugin.execution(
                network.name, network.cni_version, result, record.capability_args
            )
            request = make_request(
                ours,
                "CHECK",
                made,
                container_id=record.container_id,
                netns=record.netns,
                ifname=record.ifname,
                args=record.args,
                prev_result=result,
            )
            try:
                back += ours.mend(request, self._kernel)
            except UnknownContainer as error:
                return Mended(tuple(back), error.msg)
        return Mended(tuple(back))


def _read(name: str, first: Mapping[str, Any]) -> _Network | None:
    if first.get("type") == "bridge":
        gateway = bool(first.get("isGateway") or first.get("isDefaultGateway"))
        return _Network(name, str(first.get("bridge") or "cni0"), gateway, bool(first.get("ipMasq")))
    if first.get("type") == "podwire":
        mode = str(first.get("mode") or "routed")
        device = str(first.get("bridge") or "podwire0")
        return _Network(name, device, True, first.get("masquerade") is not False, mode)
    return None


def _whole_ports(nft: Nft) -> set[str]:
    """The attachments of which each host port is in all its maps, by the count that the index keeps."""
    counts = {
        ruleset.place_of(element.comment): element.value[3]
        for element in nft.elements(PORTMAP_INDEX)
        if isinstance(element.value, tuple)
    }
    for maps in ((PORTMAP_ANY, PORTMAP_AT), (TARGET_ANY, TARGET_AT)):
        held = Counter(
            ruleset.place_of(element.comment)
            for each in maps
            for where in each.values()
            for element in nft.elements(where)
        )
        counts = {place: count for place, count in counts.items() if held[place] == count}
    return set(counts)


@dataclass(frozen=True, slots=True)
class _Rules:
    whole: bool
    chains: set[str]
    masquerade: dict[str, tuple[str, Any]]
    ports: set[str]
    pods: dict[str, str]
    sources: set[tuple[str, str]]
    guarded: bool

    def hold(self, one: Attached, network: _Network) -> bool:
        place = Owner(network.name, one.container_id, one.ifname).place
        if (network.masquerade or one.host_ports or network.mode) and not self.whole:
            return False
        own = [str(ip_address(ip)) for ip in one.ips]
        if network.mode == "bridge" and not (
            self.guarded and all((place, each) in self.sources for each in own)
        ):
            return False
        if one.host_ports and place not in self.ports:
            return False
        if not network.masquerade:
            return True
        if network.mode:
            return all(self.pods.get(each) == place for each in own)
        found = [self.masquerade.get(each, ("", None)) for each in own]
        return all(owner == place and chain in self.chains for owner, chain in found)


def _linked(one: Attached, network: _Network, there: Mapping[str, links.Link], families: set[int]) -> bool:
    place = network.name, one.container_id, one.ifname
    identity = PodIdentity(*place, routed=False) if network.mode else Identity(*place)
    link, device = there.get(identity.host_end), there.get(network.bridge)
    if link is None or device is None or not device.up or link.master != device.index or not link.up:
        return False
    return not network.gateway or {ip_address(ip).version for ip in one.ips} <= families


def _routed(
    one: Attached, network: _Network, there: Mapping[str, links.Link], ways: set[tuple[int, str]]
) -> bool:
    link = there.get(PodIdentity(network.name, one.container_id, one.ifname).host_end)
    return link is not None and link.up and all((link.index, str(ip_address(ip))) in ways for ip in one.ips)
