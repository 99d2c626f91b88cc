"""The host's bridge of a network: made once with a MAC of its own, adopted if it fits, refused if not.

A bridge that we make carries our alias. One that others made is used as it is, as long as its addresses fit
the network; nothing of it is taken away unless the configuration says ``forceAddress``.
"""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import msgspec

from podwire.cni.errors import InvalidConfig
from podwire.cni.plugin import IPConfig
from podwire.kernel import addresses, links, routes, sysctl
from podwire.kernel.addresses import Address
from podwire.kernel.errors import KernelError
from podwire.kernel.host import Kernel
from podwire.kernel.links import AddrGenMode, Link
from podwire.kernel.message import Message
from podwire.plugins import parsed
from podwire.plugins.addressing import broadcast, link_local
from podwire.plugins.attachment import MARK
from podwire.plugins.failures import undoing, undone_on_failure
from podwire.plugins.parsed import IPInterface

_lock = threading.Lock()
_VERIFIED_MAX = 256
_verified: set[tuple[object, ...]] = set()
_users: dict[tuple[tuple[int, int], str], int] = {}


class Wanted(msgspec.Struct, frozen=True):
    """What the configuration says of the bridge; ``mac`` is the one to make it with, empty for a new one."""

    network: str
    name: str
    mtu: int = 0
    promisc: bool = False
    force_address: bool = False
    mac: str = ""


@contextmanager
def using(kernel: Kernel, wanted: Wanted) -> Iterator[Link]:
    """Have the bridge there and up for the length of a block.

    If it was made here and the block fails, it goes again, unless others use it by then.
    """
    with shared(
        kernel, wanted.name, lambda: _ensure(kernel, wanted), lambda: _remove_unused(kernel, wanted.name)
    ) as bridge:
        yield bridge


@contextmanager
def shared(
    kernel: Kernel,
    name: str,
    ensure: Callable[[], tuple[Link, bool]],
    remove_unused: Callable[[], object],
) -> Iterator[Link]:
    """Have a link of the host that many attachments use for the length of a block.

    ``ensure`` returns it and whether it was made; then ``remove_unused`` is called if the block fails and no
    other block uses the link.
    """
    key = (kernel.netns.identity, name)
    with _lock:
        _users[key] = _users.get(key, 0) + 1
    made = False
    try:
        link, made = ensure()
        yield link
    except BaseException as error:
        with _lock, undoing(error):
            if made and _users[key] == 1:
                remove_unused()
        raise
    finally:
        with _lock:
            _users[key] -= 1
            if not _users[key]:
                del _users[key]


def _ensure(kernel: Kernel, wanted: Wanted) -> tuple[Link, bool]:
    host = kernel.route()
    made = False
    link = links.get(host, wanted.name, details=False)
    if link is None:
        mac = wanted.mac or _new_mac()
        try:
            host.send(links.bridge(wanted.name, mac=mac, mtu=wanted.mtu or None))
            made = True
            link = _finish(kernel, wanted)
        except KernelError as error:
            if not made and error.errno == errno.EEXIST:
                link = links.get(host, wanted.name, details=False)
            else:
                with _lock, undoing(error):
                    _remove_unused(kernel, wanted.name, mac)
                raise
    if link is None:
        raise KernelError(errno.ENODEV, "look up link", wanted.name, "the bridge is gone again")
    if link.kind != "bridge":
        kind = link.kind or "device"
        raise InvalidConfig(f"bridge {wanted.name}: exists already and is no bridge but a {kind}")
    if not made and not is_ours(link):
        refuse_advertisements(kernel, link.name)
    # What the bridge's network says by now; of a network that only uses it, nobody is heard.
    if wanted.mtu not in {0, link.mtu} and link.alias == _alias(wanted.network):
        host.send(links.configure(link.index, mtu=wanted.mtu))
        link = msgspec.structs.replace(link, mtu=wanted.mtu)
    return link, made


def _alias(network: str) -> str:
    return f"{MARK} bridge {network}"


def _finish(kernel: Kernel, wanted: Wanted) -> Link | None:
    """Set what a new bridge cannot be born with, before it is up."""
    host = kernel.route()
    refuse_advertisements(kernel, wanted.name)
    host.send(
        links.configure(wanted.name, addr_gen_mode=AddrGenMode.NONE),
        links.configure(wanted.name, alias=_alias(wanted.network), promisc=wanted.promisc or None, up=True),
    )
    return links.get(host, wanted.name, details=False)


def refuse_advertisements(kernel: Kernel, name: str) -> None:
    """A container must not become the host's router (CVE-2020-10749)."""
    try:
        sysctl.write(f"net/ipv6/conf/{name}/accept_ra", 0, kernel.netns)
    except KernelError as error:
        if error.errno != errno.ENOENT:  # a kernel without IPv6
            raise


def _new_mac() -> str:
    raw = bytearray(hashlib.sha256(os.urandom(16)).digest()[:6])
    raw[0] = raw[0] & 0xFC | 0x02
    return raw.hex(":")


def _remove_unused(kernel: Kernel, name: str, mac: str = "") -> bool:
    link = links.get(kernel.route(), name, details=False)
    if link is None or link.kind != "bridge" or (mac and link.mac != mac):
        return False
    if links.list_links(kernel.route(), master=link.index):
        return False
    kernel.links.remove(name)
    return True


def is_ours(link: Link) -> bool:
    """Tell whether a bridge carries our alias."""
    return link.alias.startswith(_alias(""))


def gateway_interfaces(ips: Sequence[IPConfig]) -> list[IPInterface]:
    """Return the addresses that the bridge needs to be the gateway of ``ips``.

    A gateway outside of its subnet stands alone (its whole length), a link-local one in fe80::/64.
    """
    result: list[IPInterface] = []
    for ip in ips:
        if not ip.gateway:
            continue
        subnet = parsed.interface(ip.address).network
        gateway = parsed.address(ip.gateway)
        if gateway in subnet:
            length = subnet.prefixlen
        else:
            length = 64 if gateway.is_link_local else gateway.max_prefixlen
        one: IPInterface = parsed.interface(f"{gateway}/{length}")
        if one not in result:
            result.append(one)
    return result


def prepare(kernel: Kernel, bridge: Link, wanted: Wanted, ips: Sequence[IPConfig] = ()) -> None:
    """Have the bridge up, and give it the gateway addresses of ``ips`` and routes to their subnets.

    Another IPv4 address, or one of an overlapping IPv6 subnet, is an error (the pods on it would lose their
    gateway), unless the bridge is ours and empty, or forceAddress is set; and then nothing was changed.
    """
    needed = gateway_interfaces(ips)
    subnets = [
        subnet
        for subnet in dict.fromkeys(parsed.interface(ip.address).network for ip in ips if ip.gateway)
        if not any(subnet == one.network for one in needed)
    ]
    adoption = _adoption(bridge, wanted)
    if not needed:
        if adoption:
            kernel.route().send(*adoption)
        return
    key = (kernel.netns.identity, bridge.index, bridge.mac, *needed, *subnets)
    with _lock:
        if key in _verified and not adoption and not _restored(kernel, bridge, needed):
            return
        _verified.discard(key)
        host = kernel.route()
        held = addresses.list_addresses(host, bridge.index)
        present = {one.address for one in held}
        missing = [one for one in needed if one not in present]
        messages = [addresses.delete(bridge.index, one.address) for one in _in_the_way(held, needed, missing)]
        if messages and not wanted.force_address:
            _allow_replacement(kernel, bridge, wanted, held, missing)
        messages = [*adoption, *messages, *_additions(kernel, bridge, held, missing)]
        messages += [routes.add(subnet, device=bridge.index, replace=True) for subnet in subnets]
        host.send(*messages)
        if len(_verified) >= _VERIFIED_MAX:
            _verified.clear()
        _verified.add(key)


def _adoption(bridge: Link, wanted: Wanted) -> list[Message]:
    promisc = wanted.promisc and not bridge.promisc
    if bridge.up and not promisc:
        return []
    return [links.configure(bridge.index, up=True, promisc=promisc or None)]


def _restored(kernel: Kernel, bridge: Link, needed: Sequence[IPInterface]) -> bool:
    """Tell whether a bridge that had its addresses has lost one; adding them again is cheaper than a list."""
    for one in needed:
        try:
            kernel.route().send(addresses.add(bridge.index, one, broadcast=broadcast(one)))
        except KernelError as error:
            if error.errno != errno.EEXIST:
                raise
        else:
            return True
    return False


def _in_the_way(
    held: Sequence[Address], needed: Sequence[IPInterface], missing: Sequence[IPInterface]
) -> list[Address]:
    return [
        one
        for one in held
        if one.address not in needed
        and not (one.address.version == 6 and one.address.is_link_local)
        and any(
            one.address.version == new.version
            and (new.version == 4 or one.address.network.overlaps(new.network))
            for new in missing
        )
    ]


def _allow_replacement(
    kernel: Kernel, bridge: Link, wanted: Wanted, held: Sequence[Address], missing: Sequence[IPInterface]
) -> None:
    ours = is_ours(bridge)
    if ours and not links.list_links(kernel.route(), master=bridge.index):
        return
    has = ", ".join(str(one.address) for one in held if not one.address.is_link_local)
    raise InvalidConfig(
        f"bridge {wanted.name}: has {has}, but the gateway of network {wanted.network} is"
        f" {', '.join(map(str, missing))}",
        "give the network a bridge of its own, or set forceAddress to replace the address",
    )


def _additions(
    kernel: Kernel, bridge: Link, held: Sequence[Address], missing: Sequence[IPInterface]
) -> list[Message]:
    messages: list[Message] = []
    ours = is_ours(bridge)
    if not ours and missing:
        # Of others' making: it would take its lowest port's MAC, and lose every connection with a new port.
        messages.append(links.configure(bridge.index, mac=bridge.mac))
    if any(one.version == 6 for one in missing):
        sysctl.write(f"net/ipv6/conf/{bridge.name}/disable_ipv6", 0, kernel.netns)
        if not any(one.address.is_link_local and one.address.version == 6 for one in held):
            local = link_local(bridge.mac)
            messages.append(addresses.add(bridge.index, local, replace=True, scope=addresses.SCOPE_LINK))
    messages += [
        addresses.add(
            bridge.index,
            one,
            replace=True,
            broadcast=broadcast(one),
            scope=addresses.SCOPE_LINK if one.version == 6 and one.is_link_local else None,
        )
        for one in missing
    ]
    return messages


def enable_forwarding(kernel: Kernel, families: set[int]) -> list[str]:
    """Have the host forward these families (4, 6), all or none; return the sysctls that were changed."""
    keys = [key for family, key in FORWARDING.items() if family in families]
    before = {key: value for key in keys if (value := kernel.parameters.read(key)) != "1"}
    if before:
        with undone_on_failure() as undo:
            undo.append(lambda: sysctl.write_all(before, kernel.netns))
            sysctl.write_all(dict.fromkeys(before, 1), kernel.netns)
    return list(before)


FORWARDING = {4: "net/ipv4/ip_forward", 6: "net/ipv6/conf/all/forwarding"}
"""The sysctls that make the host a router, by family."""
