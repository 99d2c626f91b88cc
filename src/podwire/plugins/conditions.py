"""portmap's ``conditionsV4`` and ``conditionsV6``: further matches for a network's host ports, as nft text.

They come as the arguments of an iptables rule (``["!", "-d", "192.0.2.0/24"]``) or as words of nft(8)
(``["ip", "daddr", "!=", "192.0.2.0/24"]``); what begins with ``-`` after any ``!`` is iptables'.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from ipaddress import ip_network

from podwire.cni.errors import InvalidConfig

_PORT = r"[0-9]{1,5}"
_PORTS = re.compile(rf"({_PORT})(?::({_PORT}))?")
_MARK = re.compile(r"(0x[0-9a-fA-F]{1,8}|[0-9]{1,10})(?:/(0x[0-9a-fA-F]{1,8}|[0-9]{1,10}))?")
_INTERFACE = re.compile(r"[\w.:@-]{1,15}|[\w.:@-]{1,14}\+", re.ASCII)
_PROTOCOLS = ("tcp", "udp", "sctp")
_ADDRESS_TYPES = (
    "UNICAST",
    "LOCAL",
    "BROADCAST",
    "ANYCAST",
    "MULTICAST",
    "BLACKHOLE",
    "UNREACHABLE",
    "PROHIBIT",
)
_MODULES = ("tcp", "udp", "sctp", "multiport", "mark", "addrtype")
# Words that decide or do something, where only matches belong.
_STATEMENTS = re.compile(
    r"\b(accept|drop|reject|queue|jump|goto|return|continue|dnat|snat|masquerade|redirect|tproxy|log|counter|set|"
    r"limit|quota|notrack|dup|fwd|add|update|delete|flush|vmap|map|flow|synproxy|comment)\b"
)
_NFT_WORD = re.compile(r'[\w.:/,{}!=<>&|^"@*~+-]+')


def translate(value: object, version: int, field: str) -> str:
    """Return the conditions as nft matches for IP version 4 or 6, joined by blanks; empty if there are none.

    Raises InvalidConfig (7) naming ``field`` and what of it cannot be translated.
    """
    if value is None:
        return ""
    if not isinstance(value, list | tuple) or not all(isinstance(word, str) for word in value):
        raise InvalidConfig(f"{field}: want a list of strings (it is {value!r})")
    words = [word.strip() for word in value]
    first = next((word for word in words if word != "!"), "")
    if not first:
        if words:
            raise InvalidConfig(f'{field}: "!" without a condition (it is {value!r})')
        return ""
    if first.startswith("-"):
        return " ".join(_iptables(words, version, field))
    return _nft(" ".join(words), field)


def _nft(text: str, field: str) -> str:
    statement = _STATEMENTS.search(re.sub(r'"[^"]*"', '""', text))
    if statement:
        raise InvalidConfig(
            f'{field}: "{statement[0]}" is a statement, only matches belong here (it is "{text}")'
        )
    for word in text.split(" "):
        if word and not _NFT_WORD.fullmatch(word):
            raise InvalidConfig(f'{field}: {word!r} is not a word of an nftables match (it is "{text}")')
    if text.count('"') % 2 or text.count("{") != text.count("}"):
        raise InvalidConfig(f'{field}: quotes or braces are not closed (it is "{text}")')
    return text


def _iptables(words: Sequence[str], version: int, field: str) -> list[str]:
    matches = []
    rest = list(words)
    while rest:
        negated = rest[0] == "!"
        option = rest[1] if negated and len(rest) > 1 else rest[0]
        del rest[: 2 if negated else 1]
        if option in {"-m", "--match"}:
            module = rest.pop(0) if rest else ""
            if negated or module not in _MODULES:
                raise InvalidConfig(
                    f'{field}: the iptables match "{module}" cannot be translated to nftables',
                    f"these can: {', '.join(_MODULES)}; or write nftables matches",
                )
            continue
        # iptables takes the "!" also between the option and its value, as it did long ago.
        if len(rest) > 1 and rest[0] == "!" and not negated:
            negated = True
            del rest[0]
        if option not in _OPTIONS:
            raise InvalidConfig(
                f'{field}: the iptables argument "{option}" cannot be translated to nftables',
                "write nftables matches instead, or leave it out",
            )
        if not rest:
            raise InvalidConfig(f'{field}: "{option}" without a value')
        text = rest.pop(0)
        try:
            matches.append(_OPTIONS[option](text, "!= " if negated else "", version))
        except ValueError as error:
            raise InvalidConfig(f'{field}: {option} "{text}": {error}') from None
    return matches


def _address(direction: str) -> Callable[[str, str, int], str]:
    def match(text: str, no: str, version: int) -> str:
        networks = [ip_network(part, strict=False) for part in text.split(",")]
        if any(network.version != version for network in networks):
            raise ValueError(f"is not IPv{version}")
        joined = ", ".join(map(str, networks))
        right = f"{{ {joined} }}" if len(networks) > 1 else joined
        return f"{'ip' if version == 4 else 'ip6'} {direction} {no}{right}"

    return match


def _ports(direction: str) -> Callable[[str, str, int], str]:
    def match(text: str, no: str, version: int) -> str:
        ranges = []
        for part in text.split(","):
            found = _PORTS.fullmatch(part)
            if not found or any(bound and int(bound) > 65535 for bound in found.groups()):
                raise ValueError("is not a port or a range of ports (first:last)")
            if found[2] and int(found[1]) > int(found[2]):
                raise ValueError("the range's first port is above its last")
            ranges.append(part.replace(":", "-"))
        right = f"{{ {', '.join(ranges)} }}" if len(ranges) > 1 else ranges[0]
        return f"th {direction} {no}{right}"

    return match


def _interface(text: str, no: str, version: int) -> str:
    if not _INTERFACE.fullmatch(text):
        raise ValueError("is not an interface name")
    name = text[:-1] + "*" if text.endswith("+") else text
    return f'iifname {no}"{name}"'


def _protocol(text: str, no: str, version: int) -> str:
    if text.lower() not in _PROTOCOLS:
        raise ValueError("is not tcp, udp or sctp")
    return f"meta l4proto {no}{text.lower()}"


def _mark(text: str, no: str, version: int) -> str:
    found = _MARK.fullmatch(text)
    if not found or any(part and int(part, 0) > 0xFFFFFFFF for part in found.groups()):
        raise ValueError("is not a mark (value or value/mask)")
    value = int(found[1], 0)
    mask = int(found[2], 0) if found[2] else 0xFFFFFFFF
    return f"meta mark & {mask:#x} {no or '== '}{value:#x}"


def _address_type(direction: str) -> Callable[[str, str, int], str]:
    def match(text: str, no: str, version: int) -> str:
        if text.upper() not in _ADDRESS_TYPES:
            raise ValueError(f"is none of {', '.join(_ADDRESS_TYPES)}")
        return f"fib {direction} type {no}{text.lower()}"

    return match


_OPTIONS: dict[str, Callable[[str, str, int], str]] = {
    **dict.fromkeys(("-s", "--src", "--source"), _address("saddr")),
    **dict.fromkeys(("-d", "--dst", "--destination"), _address("daddr")),
    **dict.fromkeys(("-i", "--in-interface"), _interface),
    **dict.fromkeys(("-p", "--protocol"), _protocol),
    **dict.fromkeys(("--sport", "--source-port", "--sports", "--source-ports"), _ports("sport")),
    **dict.fromkeys(("--dport", "--destination-port", "--dports", "--destination-ports"), _ports("dport")),
    "--mark": _mark,
    "--src-type": _address_type("saddr"),
    "--dst-type": _address_type("daddr"),
}
