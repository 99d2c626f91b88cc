"""What the kernel holds in one network namespace, as `ip`, `tc` and /proc/sys tell it, fit to be compared.

Dropped: indexes, statistics, timers, and states that settle by themselves (carrier, a port's state). Random
names and MACs become placeholders that say whose they are; routes, rules and addresses become lines of text.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from ipaddress import IPv6Address
from pathlib import Path
from typing import Any

JSON = dict[str, Any]

_FLAGS = {"UP", "NOARP", "PROMISC", "ALLMULTI", "BROADCAST", "MULTICAST", "POINTOPOINT"}
_LINK_FIELDS = (
    "mtu",
    "link_type",
    "group",
    "promiscuity",
    "allmulti",
    "ifalias",
    "inet6_addr_gen_mode",
    "num_tx_queues",
)
_RUNNING = re.compile(
    r"_timer$|_id$|_port$|_cost$|^no$|^id$|^state$|^topology|root_|bridge_|config_pending|change_ack"
    r"|^hello|^forward_delay|^max_age|^ageing|^priority$|^macaddr|^port|^gc_|fdb_|_designated"
)
"""Those keys of a link's details that tell what it does, not what it is."""
_SYSCTLS = {
    "ipv4": ("forwarding", "proxy_arp", "rp_filter", "route_localnet", "arp_notify", "arp_ignore"),
    "ipv6": (
        "accept_ra",
        "autoconf",
        "accept_dad",
        "disable_ipv6",
        "forwarding",
        "keep_addr_on_down",
        "ndisc_notify",
        "proxy_ndp",
    ),
}
_GLOBAL_SYSCTLS = ("ipv4/ip_forward", "ipv6/conf/all/forwarding")
_ADDRESS_FLAGS = ("nodad", "dynamic", "noprefixroute", "dadfailed", "deprecated")
_FOREVER = 4294967295
_SETTLE_SECONDS = 5.0
_LINK_LOCAL = re.compile(r"fe80::[0-9a-f:]+")


class Namespace:
    """The raw answers about one namespace, asked for by a thread that is in it."""

    def __init__(self, links: list[JSON], routes: list[JSON], rules: list[JSON], addresses: list[JSON]):
        self.links = {link["ifname"]: link for link in links}
        self.routes = routes
        self.rules = rules
        self.addresses = addresses
        self.neighbours: list[JSON] = []
        self.qdiscs: list[JSON] = []
        self.filters: dict[str, list[JSON]] = {}
        self.sysctls: dict[str, dict[str, str]] = {}


def _batch(*commands: str, family: str = "") -> list[list[JSON]]:
    done = subprocess.run(
        ["ip", *([family] if family else []), "-d", "-j", "-batch", "-"],
        input="".join(f"{command}\n" for command in commands),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return _documents(done.stdout)


def _documents(text: str) -> list[list[JSON]]:
    decoder, found, at = json.JSONDecoder(), [], 0
    while at < len(text.rstrip()):
        document, at = decoder.raw_decode(text, at)
        found.append([one for one in document if one])
        while at < len(text) and text[at].isspace():
            at += 1
    return found


def observe() -> Namespace:
    """Look at the calling thread's namespace, once no address there is tentative any more."""
    limit = time.monotonic() + _SETTLE_SECONDS
    while True:
        links, addresses, neighbours = _batch("link show", "addr show", "neigh show nud permanent")
        waiting = any(
            one.get("tentative") and not one.get("dadfailed")
            for link in addresses
            for one in link.get("addr_info", ())
        )
        if not waiting or time.monotonic() > limit:
            break
        time.sleep(0.02)
    routes4, rules4 = _batch("route show table all", "rule show", family="-4")
    routes6, rules6 = _batch("route show table all", "rule show", family="-6")
    space = Namespace(links, [*routes4, *routes6], [*rules4, *rules6], addresses)
    space.neighbours = neighbours
    space.qdiscs = _tc("qdisc", "show")
    for name in {one["dev"] for one in space.qdiscs if one["kind"] in {"ingress", "clsact"}}:
        for place in ("ingress", "egress"):
            if found := _tc("filter", "show", "dev", name, place):
                space.filters[f"{name} {place}"] = found
    space.sysctls["all"] = {key: _sysctl(f"net/{key}") for key in _GLOBAL_SYSCTLS}
    for name in space.links:
        space.sysctls[name] = {
            f"{family}/{key}": _sysctl(f"net/{family}/conf/{name}/{key}")
            for family, keys in _SYSCTLS.items()
            for key in keys
        }
    return space


def _tc(*arguments: str) -> list[JSON]:
    done = subprocess.run(["tc", "-j", *arguments], capture_output=True, text=True)
    if done.returncode:
        return []
    found: list[JSON] = json.loads(done.stdout or "[]")
    return found


def _sysctl(key: str) -> str:
    try:
        return Path("/proc/sys", key).read_text().strip()
    except OSError:
        return "(none)"


class Placeholders:
    """Stands in for what is random: the host's ends of pairs, MACs, link-local addresses.

    What the scenario itself has named (``fixed``, texts) is compared as it is.
    """

    def __init__(self, renames: Iterable[tuple[str, str]] = ()) -> None:
        self.fixed: set[str] = set()
        self._names: dict[str, str] = {}
        self._macs: dict[str, str] = {}
        self._locals: dict[str, str] = {}
        self._renames = [(re.compile(pattern), to) for pattern, to in renames]

    def learn(self, host: Namespace, pods: Mapping[str, Namespace]) -> None:
        for pod, space in pods.items():
            for name, link in space.links.items():
                peer = link.get("link_index")
                for other, end in host.links.items():
                    if (
                        peer == end["ifindex"]
                        and end.get("link_index") == link["ifindex"]
                        and _kind(link) == "veth" == _kind(end)
                    ):
                        self._names[other] = f"<host end of {pod} {name}>"
        for where, space in [("host", host), *pods.items()]:
            for name, link in space.links.items():
                mac = link.get("address", "")
                if not re.fullmatch(r"(..:){5}..", mac) or mac == "00:00:00:00:00:00":
                    continue
                self._locals.setdefault(_eui64(mac), "<link-local of its MAC>")
                if mac not in self.fixed:
                    self._macs.setdefault(mac, f"<MAC of {where} {self.name(name)}>")

    def name(self, text: str) -> str:
        """Return a link's name, or its placeholder."""
        if text in self._names:
            return self._names[text]
        for pattern, to in self._renames:
            if pattern.fullmatch(text):
                return to
        return text

    def text(self, text: str) -> str:
        """Return any text with the random parts replaced."""
        if text in self.fixed:
            return text
        if text in self._names:
            return self._names[text]
        if text in self._macs:
            return self._macs[text]
        text = _LINK_LOCAL.sub(lambda found: self._local(found[0]), text)
        for name, placeholder in self._names.items():
            text = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w.-])", placeholder, text)
        return self.name(text)

    def _local(self, address: str) -> str:
        if address in self.fixed:
            return address
        # A bridge keeps the one of the MAC that it had before its first port.
        return self._locals.get(address, "<link-local of its MAC>" if "ff:fe" in address else address)

    def mac(self, text: str) -> str:
        return text if text in self.fixed or text == "00:00:00:00:00:00" else "<random MAC>"

    def value(self, value: Any) -> Any:
        """Return JSON with the random parts replaced, keys included."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.value(one) for one in value]
        if isinstance(value, dict):
            return {self.text(key): self.value(one) for key, one in value.items()}
        return value


def _eui64(mac: str) -> str:
    raw = bytes.fromhex(mac.replace(":", ""))
    packed = b"\xfe\x80" + bytes(6) + bytes((raw[0] ^ 2, *raw[1:3], 0xFF, 0xFE, *raw[3:]))
    return str(IPv6Address(packed))


def _kind(link: JSON) -> str:
    kind: str = link.get("linkinfo", {}).get("info_kind", "")
    return kind


def comparable(space: Namespace, hide: Placeholders) -> JSON:
    """Return a namespace as nested JSON whose leaves can be compared one by one."""
    by_index = {link["ifindex"]: name for name, link in space.links.items()}
    return {
        "links": {hide.name(name): _link(link, by_index, hide) for name, link in space.links.items()},
        "addresses": {
            hide.text(line): flags for link in space.addresses for line, flags in _address_lines(link)
        },
        "routes": {
            hide.text(line): route.get("protocol") for route in space.routes for line in _route_lines(route)
        },
        "rules": _lines(space.rules, lambda rule: [_words(rule, ())], hide),
        "neighbours": _lines(
            space.neighbours, lambda one: [_words({**one, "state": " ".join(one["state"])}, ())], hide
        ),
        "qdiscs": _lines(
            space.qdiscs, lambda one: [_words(one, ("refcnt", "handle"))] if _shapes(one) else [], hide
        ),
        "filters": {hide.text(where): hide.value(found) for where, found in space.filters.items()},
        "sysctls": {
            hide.name(of): {key: value for key, value in values.items() if value != "(none)"}
            for of, values in space.sysctls.items()
        },
    }


def _shapes(qdisc: JSON) -> bool:
    return qdisc["kind"] not in {"noqueue", "noop", "pfifo_fast", "fq_codel", "mq"}


def _lines(found: Iterable[JSON], lines: Callable[[JSON], Iterable[str]], hide: Placeholders) -> JSON:
    return {hide.text(line): True for one in found for line in lines(one)}


def _link(link: JSON, by_index: Mapping[int, str], hide: Placeholders) -> JSON:
    info = link.get("linkinfo", {})
    shown: JSON = {key: hide.value(link[key]) for key in _LINK_FIELDS if key in link}
    shown["txqlen"] = link.get("txqlen", 0)
    shown["address"] = hide.mac(link.get("address", ""))
    shown["flags"] = " ".join(sorted(_FLAGS & set(link["flags"])))
    shown["kind"] = info.get("info_kind", "")
    if "master" in link:
        shown["master"] = hide.name(link["master"])
    if "link" in link:
        shown["parent"] = hide.name(link["link"])
    elif "link_index" in link and "link_netnsid" not in link:
        shown["parent"] = hide.name(by_index.get(link["link_index"], ""))
    for part in ("info_data", "info_slave_data"):
        shown[part] = {
            key: hide.value(value) for key, value in info.get(part, {}).items() if not _RUNNING.search(key)
        }
    return shown


def _address_lines(link: JSON) -> Iterable[tuple[str, str]]:
    """Each address as a line, and its flags."""
    for one in link.get("addr_info", ()):
        words = [f"{one['local']}/{one['prefixlen']}", "dev", link["ifname"]]
        for key in ("address", "broadcast", "scope", "label"):
            if key in one and not (key == "label" and one[key] == link["ifname"]):
                words += ["peer" if key == "address" else key, one[key]]
        if one.get("valid_life_time", _FOREVER) != _FOREVER:
            words.append("limited")
        yield " ".join(words), " ".join(flag for flag in _ADDRESS_FLAGS if one.get(flag))


def _route_lines(route: JSON) -> Iterable[str]:
    if route.get("table") == "local" or route.get("type") in {"local", "broadcast", "multicast", "anycast"}:
        return
    words = [route.get("type", "unicast"), route["dst"]]
    if route.get("flags"):
        words += sorted(set(route["flags"]) - {"linkdown", "dead"})
    for key in sorted(route):
        if key in {"type", "dst", "flags", "pref", "cache", "protocol"}:
            continue
        words += [key, json.dumps(route[key]) if isinstance(route[key], list | dict) else str(route[key])]
    yield " ".join(words)


def _words(one: JSON, without: Iterable[str]) -> str:
    return " ".join(
        f"{key} {json.dumps(value) if isinstance(value, list | dict) else value}".strip()
        for key, value in sorted(one.items())
        if key not in without
    )
