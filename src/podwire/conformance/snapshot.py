"""The state of a namespace or a directory as a bag of lines, so that two can be compared.

What changes by itself is left out: indexes, counters, handles, operational states, link-local addresses, and
what the kernel derives from an address (local and connected routes).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import msgspec

from podwire.conformance.invocation import shorten
from podwire.kernel import addresses, links, netns, routes, rules, tc
from podwire.kernel.errors import KernelError
from podwire.kernel.netlink import RouteSocket
from podwire.kernel.nft import Nft, NftUnavailable

Snapshot = Counter[str]

_SHOWN = 120

_PASSING = ("lock", "*.lock", "last_reserved_ip*")
"""Names of files that a plugin may write at any time and that hold nobody's resources."""
_VOLATILE = frozenset({"handle", "packets", "bytes", "index"})
_KERNEL_ROUTES = (routes.PROTOCOL_KERNEL, 9)
_MULTICAST = ip_network("ff00::/8")


def network(path: str = "") -> Snapshot:
    """Take the state of the namespace at ``path``, or of the calling thread's."""
    if path:
        with netns.open(path) as inside:
            return inside.run(lambda: Counter(_network()))
    return Counter(_network())


def files(directories: Iterable[Path], *, without: Iterable[Path] = ()) -> Snapshot:
    """Take the files below ``directories`` with the sizes of their contents."""
    left_out = tuple(without)
    found: Snapshot = Counter()
    for directory in directories:
        for path in directory.rglob("*"):
            if any(one == path or one in path.parents for one in left_out):
                continue
            if path.is_dir() or any(path.match(pattern) for pattern in _PASSING):
                continue
            found[f"file {path}"] += 1
    return found


def difference(before: Snapshot, after: Snapshot) -> tuple[str, ...]:
    """Tell what was added (``+``) and what is missing (``-``)."""
    added = sorted((after - before).elements())
    missing = sorted((before - after).elements())
    return tuple(f"+ {shorten(one, _SHOWN)}" for one in added) + tuple(
        f"- {shorten(one, _SHOWN)}" for one in missing
    )


def _network() -> Iterator[str]:
    with RouteSocket.open() as sock:
        names = {link.index: link for link in links.list_links(sock)}
        for link in names.values():
            master = names[link.master].name if link.master in names else "none"
            state = "up" if link.up else "down"
            yield f"link {link.name}: {link.kind or 'plain'}, {state}, mtu {link.mtu}, master {master}"
        for one in addresses.list_addresses(sock):
            if not one.address.is_link_local and one.index in names:
                yield f"address {one.address} on {names[one.index].name}"
        for route in routes.list_routes(sock):
            to = route.destination
            derived = route.table == routes.TABLE_LOCAL or route.protocol in _KERNEL_ROUTES
            if derived or to.is_link_local or to == _MULTICAST:
                continue
            device = names[route.device].name if route.device in names else "none"
            yield f"route to {to} by {route.gateway} on {device}, table {route.table}, metric {route.metric}"
        for rule in rules.list_rules(sock):
            if rule.by_master:  # the kernel makes it with a namespace's first VRF, and keeps it
                continue
            yield f"rule {rule.priority}: from {rule.source} to {rule.destination} table {rule.table}"
        yield from _shaping(sock, {index: link.name for index, link in names.items()})
    yield from _ruleset()


def _shaping(sock: RouteSocket, names: Mapping[int, str]) -> Iterator[str]:
    for qdisc in tc.list_qdiscs(sock):
        if qdisc.index not in names:
            continue
        on = names[qdisc.index]
        setting = f", {qdisc.tbf.rate} bytes/s" if qdisc.tbf is not None else ""
        yield f"qdisc {qdisc.kind} on {on}, handle {qdisc.handle:08x}{setting}"
        for each in tc.list_classes(sock, qdisc.index) if qdisc.kind == "htb" else ():
            yield f"class {each.classid:08x} on {on}, {each.rate} bytes/s"
        parents = {"clsact": (tc.CLSACT_INGRESS, tc.CLSACT_EGRESS)}.get(qdisc.kind, (qdisc.handle,))
        for parent in parents:
            for rule in tc.list_filters(sock, qdisc.index, parent):
                # A u32 filter comes with tables of its own; other kinds are one entry each.
                if rule.keys or (rule.kind != "u32" and rule.handle):
                    to = "" if rule.redirect is None else f", to {names.get(rule.redirect, 'nothing')}"
                    yield f"filter {rule.kind} on {on}, parent {parent:08x}, {rule.priority}{to}"


def _ruleset() -> Iterator[str]:
    with Nft.open() as nft:
        try:
            objects = nft.query("list ruleset")
        except NftUnavailable:
            return
        except KernelError as error:
            yield f"nftables ruleset that cannot be listed ({error.errno})"
            return
    for entry in objects:
        for kind, value in entry.items():
            yield from _nft_object(kind, value)


def _nft_object(kind: str, value: Mapping[str, Any]) -> Iterator[str]:
    place = " ".join(str(value[key]) for key in ("family", "table", "chain", "name") if key in value)
    if kind == "rule":
        yield f"nft rule in {place}: {_plain(value.get('expr', []))} {value.get('comment', '')}".rstrip()
        return
    if kind != "table":  # an empty one holds nothing
        yield f"nft {kind} {place}"
    for element in value.get("elem", ()):
        yield f"nft element of {place}: {_plain(element)}"


def _plain(value: Any) -> str:
    return msgspec.json.encode(_steady(value)).decode()


def _steady(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _steady(each) for key, each in value.items() if key not in _VOLATILE}
    return [_steady(each) for each in value] if isinstance(value, list) else value
