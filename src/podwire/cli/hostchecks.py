"""What a node needs of the host's network: its bridge and its address ranges to itself."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Sequence

from podwire.cli import checks
from podwire.cli.errors import CommandError
from podwire.cli.locations import Locations
from podwire.kernel import addresses, links, routes
from podwire.kernel.host import Kernel
from podwire.node import hoststate
from podwire.plugins import ruleset


def host_is_free(kernel: Kernel, places: Locations, bridge: str, pod_cidrs: Sequence[checks.Network]) -> None:
    """Nobody else has the bridge or uses the ranges; a node that was here before is no stranger."""
    sock = kernel.route()
    link = links.get(sock, bridge)
    if link is not None:
        known = hoststate.load(places.ledger)
        _same_network(places, known, bridge, pod_cidrs)
    names = {entry.index: entry.name for entry in links.list_links(sock)}
    own = link.index if link is not None else 0
    checks.overlaps(pod_cidrs, (entry for entry in _taken(kernel, names, own)))


def forwarding_drops(kernel: Kernel, bridge: str) -> list[str]:
    """Notices of chains that drop what is forwarded unless a rule accepts it, as container engines set up.

    They are somebody else's and nothing in a table of ours can overrule them, so a person has to be told.
    """
    notices = []
    for item in kernel.nft.query("list chains"):
        chain = item.get("chain", {})
        place = (chain.get("family"), chain.get("table"), chain.get("name"))
        if chain.get("hook") != "forward" or chain.get("policy") != "drop" or place[1] == ruleset.TABLE:
            continue
        family, table, name = place
        rule = f"nft insert rule {family} {table} {name}"
        notices.append(
            f"chain {name} of nftables table {family} {table} drops what no rule of it accepts: pods may not"
            f" reach other networks, nor host ports from outside reach them. To let them through:"
            f" {rule} iifname {bridge} accept; {rule} oifname {bridge} accept"
        )
    return notices


def _same_network(
    places: Locations, known: hoststate.HostState | None, bridge: str, pod_cidrs: Sequence[checks.Network]
) -> None:
    """The bridge that is there is this node's, with the addresses that are wanted now."""
    if known is None or known.bridge != bridge:
        raise CommandError(
            f"--bridge {bridge}: a link of that name exists, and this node did not make it",
            hint="Choose another name, or remove that link if nothing needs it.",
        )
    wanted = tuple(str(network) for network in pod_cidrs)
    if known.pod_cidrs != wanted:
        raise CommandError(
            f"--pod-cidr {','.join(wanted)}: this node's pods have addresses of {','.join(known.pod_cidrs)}",
            hint=f"Remove them first: podwire down{places.flags}",
        )


def _taken(kernel: Kernel, names: dict[int, str], own: int) -> Iterator[tuple[checks.Network, str]]:
    """The ranges that addresses and routes of the host use, but for those of the link ``own``."""
    sock = kernel.route()
    for address in addresses.list_addresses(sock):
        if address.index != own:
            network = ipaddress.ip_interface(address.address).network
            yield network, f"the address {address.address} of {names.get(address.index, '?')}"
    for route in routes.list_routes(sock, table=routes.TABLE_MAIN):
        if route.device == own and own:
            continue
        device = f" on {names[route.device]}" if route.device in names else ""
        yield route.destination, f"the route {route.destination}{device}"
