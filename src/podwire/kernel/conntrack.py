"""Connection tracking entries: list and delete those that match (linux/netfilter/nfnetlink_conntrack.h)."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from podwire.kernel.attributes import BE16, IP, NESTED, NESTED_BYTES, U8, U32, IPAddress, Table, attribute
from podwire.kernel.errors import KernelError
from podwire.kernel.message import Message
from podwire.kernel.nft import NetfilterSocket

if TYPE_CHECKING:
    from podwire.kernel.netns import Netns

_GET = (1 << 8) | 1
_DELETE = (1 << 8) | 2
_HEADER = 4
_FAMILY = {4: socket.AF_INET, 6: socket.AF_INET6}

_TUPLE_ORIGINAL = 1
_IDENTITY = 12
_ZONE = 18
_ADDRESSES = Table(
    "conntrack addresses", source4=(1, IP), destination4=(2, IP), source6=(3, IP), destination6=(4, IP)
)
_PORTS = Table("conntrack ports", protocol=(1, U8), source=(2, BE16), destination=(3, BE16))
_TUPLE = Table("conntrack tuple", addresses=(1, _ADDRESSES), ports=(2, _PORTS))
_FILTER = Table("conntrack filter", original=(1, U32), reply=(2, U32))
_ENTRY = Table(
    "conntrack entry",
    original=(_TUPLE_ORIGINAL, NESTED_BYTES),
    reply=(2, NESTED_BYTES),
    identity=(_IDENTITY, NESTED_BYTES),
    zone=(_ZONE, NESTED_BYTES),
)
_QUESTION = Table(
    "conntrack filter", original=(_TUPLE_ORIGINAL, _TUPLE), reply=(2, _TUPLE), filter=(25, _FILTER)
)

# Which fields of a tuple CTA_FILTER compares (net/netfilter/nf_internals.h, Linux 5.8 and newer).
_FILTER_SOURCE = 1 << 0
_FILTER_DESTINATION = 1 << 1
_FILTER_PROTOCOL = 1 << 3
_FILTER_SOURCE_PORT = 1 << 4
_FILTER_DESTINATION_PORT = 1 << 5


_COUNT = Path("/proc/sys/net/netfilter/nf_conntrack_count")
_LIST = Path("/proc/thread-self/net/nf_conntrack")
_LIST_MAX = 5000


class Flow(NamedTuple):
    """One tracked connection: its first packet, and the answer that is expected to it.

    ``reply_source`` differs from ``destination`` where the destination was translated (DNAT), and
    ``reply_destination`` from ``source`` where the source was. Ports are 0 for protocols without them.
    """

    protocol: int
    source: IPAddress
    destination: IPAddress
    source_port: int
    destination_port: int
    reply_source: IPAddress
    reply_destination: IPAddress
    reply_source_port: int
    reply_destination_port: int


def list_flows(
    netns: Netns | None = None, *, protocol: int | None = None, family: int | None = None
) -> list[Flow]:
    """List the connections of IP version ``family`` (4, 6, None: both), of one protocol number or of all."""
    with NetfilterSocket.open(netns) as sock:
        versions = (family,) if family else (4, 6)
        return [flow for each in versions for flow, _ in _matching(sock, each, {"protocol": protocol})]


def delete(
    *,
    protocol: int,
    family: int | None = None,
    original_destination: IPv4Address | IPv6Address | None = None,
    original_port: int | None = None,
    reply_source: IPv4Address | IPv6Address | None = None,
    reply_port: int | None = None,
    where: Callable[[Flow], bool] | None = None,
    netns: Netns | None = None,
) -> int:
    """Delete the connections that match everything that is given; return how many.

    ``original_*`` are the destination that the client used, ``reply_source`` and ``reply_port`` who answers
    after translation; ``where`` judges what is left. The addresses, if any, set the IP version; otherwise it
    is ``family`` (4, 6, None: both). To find an entry by netlink the kernel locks each bucket of its table in
    turn, for each version (15 ms where it has 262,144); so that is done only where the list in /proc, a
    fiftieth of the cost, has an entry that may be meant, or cannot be had. Works in ``netns``, or in the
    calling thread's namespace. Entries that end meanwhile are no error. Raises :class:`KernelError`.
    """
    address = original_destination or reply_source
    wanted = {
        "protocol": protocol,
        "destination": original_destination,
        "destination_port": original_port,
        "reply_source": reply_source,
        "reply_source_port": reply_port,
    }
    version = address.version if address else family
    if not _may_match(protocol, version, original_port, reply_port, netns):
        return 0
    with NetfilterSocket.open(netns) as sock:
        doomed = [
            removal
            for each in ((version,) if version else (4, 6))
            for flow, removal in _matching(sock, each, wanted)
            if where is None or where(flow)
        ]
        try:
            sock.send(*doomed)
        except KernelError as error:
            if error.errno != errno.ENOENT:
                raise
    return len(doomed)


def _may_match(
    protocol: int, version: int | None, original_port: int | None, reply_port: int | None, netns: Netns | None
) -> bool:
    """Whether a connection may be there; False is certain."""

    def look() -> bool:
        try:
            count = int(_COUNT.read_text())
            if count > _LIST_MAX:
                return True  # as text it would cost more
            entries = _LIST.read_text(errors="replace").splitlines() if count else []
        except (OSError, ValueError):
            return True  # no procfs, or a kernel without that list in it
        # "ipv4     2 udp      17 29 src=... dst=... sport=... dport=... [UNREPLIED] src=..."
        ports = [
            f" {name}={port} " for name, port in (("dport", original_port), ("sport", reply_port)) if port
        ]
        families = [f"ipv{each}" for each in ((version,) if version else (4, 6))]
        return any(
            (words := entry.split(None, 4))[0] in families
            and words[3] == str(protocol)
            and all(port in entry for port in ports)
            for entry in entries
        )

    return look() if netns is None else netns.run(look)


def _matching(sock: NetfilterSocket, version: int, wanted: dict[str, Any]) -> list[tuple[Flow, Message]]:
    """The flows that match, each with the request that deletes it."""
    wanted = {name: value for name, value in wanted.items() if value is not None}
    header = bytes((_FAMILY[version], 0, 0, 0))
    message = Message(_GET, 0, header + _question(version, wanted), "list", "connections")
    found = []
    for _, entry in sock.dump(message):
        values = _ENTRY.decode(entry, _HEADER)
        original, reply = _TUPLE.decode(values["original"]), _TUPLE.decode(values["reply"])
        flow = _flow(version, original, reply)
        # A kernel that does not know the filter lists everything.
        if all(getattr(flow, name) == value for name, value in wanted.items()):
            found.append((flow, _removal(header, values, flow)))
    return found


def _question(version: int, wanted: dict[str, Any]) -> bytes:
    """Let the kernel leave out what does not match: a busy host tracks hundreds of thousands of flows."""
    if not wanted:
        return b""
    original: dict[str, Any] = {"addresses": {}, "ports": {}}
    reply: dict[str, Any] = {"addresses": {}, "ports": {}}
    original_flags = reply_flags = 0
    if "protocol" in wanted:
        original["ports"]["protocol"] = wanted["protocol"]
        original_flags |= _FILTER_PROTOCOL
        reply["ports"]["protocol"] = wanted["protocol"]
        reply_flags |= _FILTER_PROTOCOL
    # Not IPv6 addresses: up to Linux 6.18 the kernel's comparison of them is the wrong way round.
    if "destination" in wanted and version == 4:
        original["addresses"]["destination4"] = wanted["destination"]
        original_flags |= _FILTER_DESTINATION
    if "destination_port" in wanted:
        original["ports"]["destination"] = wanted["destination_port"]
        original_flags |= _FILTER_DESTINATION_PORT
    if "reply_source" in wanted and version == 4:
        reply["addresses"]["source4"] = wanted["reply_source"]
        reply_flags |= _FILTER_SOURCE
    if "reply_source_port" in wanted:
        reply["ports"]["source"] = wanted["reply_source_port"]
        reply_flags |= _FILTER_SOURCE_PORT
    return _QUESTION.encode(
        {
            "original": original,
            "reply": reply,
            "filter": {"original": original_flags, "reply": reply_flags},
        }
    )


def _removal(header: bytes, values: dict[str, Any], flow: Flow) -> Message:
    body = header + attribute(_TUPLE_ORIGINAL | NESTED, values["original"])
    if "identity" in values:
        body += attribute(_IDENTITY, values["identity"])
    if "zone" in values:
        body += attribute(_ZONE, values["zone"])
    subject = f"connection {flow.source}.{flow.source_port} to {flow.destination}.{flow.destination_port}"
    return Message(_DELETE, 0, body, "delete", subject)


def _flow(version: int, original: dict[str, Any], reply: dict[str, Any]) -> Flow:
    asked, answered = original["ports"], reply["ports"]
    source, destination = f"source{version}", f"destination{version}"
    return Flow(
        asked.get("protocol", 0),
        original["addresses"][source],
        original["addresses"][destination],
        asked.get("source", 0),
        asked.get("destination", 0),
        reply["addresses"][source],
        reply["addresses"][destination],
        answered.get("source", 0),
        answered.get("destination", 0),
    )
