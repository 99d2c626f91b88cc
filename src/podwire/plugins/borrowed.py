"""A device of the host that a container has for a while: moved in, found again, given back under its name.

While the container has it, the device's alias is its name on the host, as the reference plugin keeps it, and
an alternative name, a digest of the attachment, says whose it is. Both stay with the device whatever it is
called, and when the kernel throws it out of a namespace that ends: so it is found and restored from anywhere.
"""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from ipaddress import IPv4Address

import msgspec

from podwire.cni.args import check_ifname
from podwire.cni.errors import CNIError
from podwire.kernel import addresses, altnames, links
from podwire.kernel.addresses import Address
from podwire.kernel.errors import KernelError
from podwire.kernel.host import Kernel
from podwire.kernel.links import Link
from podwire.kernel.netlink import RouteSocket
from podwire.kernel.netns import Netns
from podwire.plugins import attachment, sublink
from podwire.plugins.attachment import Identity
from podwire.plugins.failures import KERNEL, attempt, undone_on_failure

_NO_SUCH_THING = frozenset({errno.EOPNOTSUPP, errno.EINVAL})


def network_mark(network: str) -> str:
    """Return what the marks of a network's devices begin with."""
    return f"{attachment.MARK}-{_digest(network)[:16]}-"


def mark(identity: Identity) -> str:
    """Return the alternative name of an attachment's device."""
    return network_mark(identity.network) + _digest(f"{identity.container_id} {identity.ifname}")[:32]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()


class _Before(msgspec.Struct, frozen=True):
    """What moving a device loses, to be put back when an ADD fails."""

    link: Link
    addresses: tuple[Address, ...]


@contextmanager
def lent(
    kernel: Kernel, container: Netns, identity: Identity, device: Link
) -> Iterator[tuple[RouteSocket, Link]]:
    """Have the device in the container under its interface's name, down; it goes back if the block fails.

    Yields a socket there and the device as it is there. Raises :class:`KernelError`.
    """
    host = kernel.route()
    held = addresses.list_addresses(host, device.index)
    before = _Before(device, tuple(one for one in held if one.flags & addresses.PERMANENT))
    with RouteSocket.open(container) as inside, undone_on_failure() as undo:
        undo.append(lambda: _undo(kernel, inside, identity, before))
        _write_mark(host, identity, device)
        # One message moves and renames: where the container has a link of the device's name, the kernel takes
        # the new one at once.
        host.send(links.configure(device.index, netns=container, name=identity.ifname))
        link = links.get(inside, identity.ifname, details=False)
        if link is None:
            raise KernelError(errno.ENODEV, "look up link", identity.ifname, "it is gone again")
        yield inside, link


def _write_mark(host: RouteSocket, identity: Identity, device: Link) -> None:
    # The alias first: a marked device's alias must be its name.
    host.send(links.configure(device.index, alias=device.name))
    try:
        host.send(altnames.add(device.index, mark(identity)))
    except KernelError as error:
        if error.errno not in _NO_SUCH_THING:
            raise


def _undo(kernel: Kernel, inside: RouteSocket, identity: Identity, before: _Before) -> None:
    link = find_inside(inside, identity) or _named(inside, identity.ifname, before.link)
    if link is not None:
        give_back(kernel, inside, link, before.link.name, mark(identity))
    else:
        restore(kernel, identity)
    host, was = kernel.route(), before.link
    link = links.get(host, was.name, details=False)
    if link is None:
        return
    host.send(links.configure(link.index, alias=was.alias, master=was.master, up=was.up))
    for one in before.addresses:
        wide = one.broadcast if isinstance(one.broadcast, IPv4Address) else None
        again = addresses.add(
            link.index, one.address, replace=True, scope=one.scope, broadcast=wide, peer=one.peer
        )
        with suppress(KernelError):  # some are the kernel's own doing
            host.send(again)


def _named(sock: RouteSocket, name: str, device: Link) -> Link | None:
    """Return the device by the container's name for it, where a kernel has no alternative names."""
    link = links.get(sock, name, details=False)
    return link if link is not None and link.mac == device.mac and link.alias == device.name else None


def find_inside(inside: RouteSocket, identity: Identity) -> Link | None:
    """Return an attachment's device in a container, whatever it is called there, or None."""
    return altnames.find(inside, mark(identity))


def foreign(inside: RouteSocket, ifname: str, mac: str, device: str) -> Link | None:
    """Return a device that the reference plugin moved in, or None: its alias is its name on the host.

    ``mac``, or ``device`` (that name), must fit it: it could be somebody else's.
    """
    link = links.get(inside, ifname, details=False)
    if link is None or not _is_name(link.alias):
        return None
    if any(marked.index == link.index for _, marked in altnames.beginning(inside, f"{attachment.MARK}-")):
        return None  # another attachment's of ours
    return link if mac.lower() == link.mac or (not mac and device == link.alias) else None


def _is_name(text: str) -> bool:
    try:
        check_ifname(text)
    except CNIError:
        return False
    return True


def give_back(kernel: Kernel, inside: RouteSocket, link: Link, name: str, marked: str) -> None:
    """Move a device from its container to the host under ``name``, and take its mark and alias away.

    CNIError (100) if the host has another link of that name: then nothing was changed, and a later try may
    succeed. Raises :class:`KernelError`.
    """
    _require_free(kernel, name, link.name)
    inside.send(links.configure(link.index, netns=kernel.netns, name=name))
    there = links.get(kernel.route(), name, details=False)
    if there is not None:
        _unmark(kernel.route(), there, marked)


def restore(kernel: Kernel, identity: Identity, fallback: str = "") -> bool:
    """Give a device that is on the host already its name back, as after the end of its container's namespace.

    False if the host has none of this attachment. CNIError (100) if another link has its name by now.
    """
    link = altnames.find(kernel.route(), mark(identity))
    if link is None:
        return False
    _rename(kernel, link, original_name(link, fallback), mark(identity))
    return True


def original_name(link: Link, fallback: str = "") -> str:
    """Return a borrowed device's name on the host: its alias, or, if somebody changed that, the fallback."""
    return link.alias if _is_name(link.alias) else fallback or link.name


def _rename(kernel: Kernel, link: Link, name: str, marked: str) -> None:
    host = kernel.route()
    if link.name != name:
        _require_free(kernel, name, link.name)
        if link.up:  # older kernels rename what is down only
            host.send(links.configure(link.index, up=False))
        host.send(links.configure(link.index, name=name))
        if link.up:
            host.send(links.configure(link.index, up=True))
    _unmark(host, link, marked)


def _unmark(host: RouteSocket, link: Link, marked: str) -> None:
    host.send(links.configure(link.index, alias=""))
    try:
        host.send(altnames.delete(link.index, marked))
    except KernelError as error:
        if error.errno not in {*_NO_SUCH_THING, errno.ENOENT}:
            raise


def _require_free(kernel: Kernel, name: str, now: str) -> None:
    if links.get(kernel.route(), name, details=False) is not None:
        raise CNIError(
            f"device {now}: cannot have its name {name} back, which another interface of the host has",
            "rename or remove that one",
            code=KERNEL,
        )


def stray(kernel: Kernel, name: str) -> Link | None:
    """Return a device of the host that bears a mark and was called ``name``, its name restored; or None."""
    prefix = f"{attachment.MARK}-"
    for marked, link in altnames.beginning(kernel.route(), prefix):
        if link.alias == name:
            _rename(kernel, link, name, marked)
            return links.get(kernel.route(), name, details=False)
    return None


def collect(kernel: Kernel, network: str, valid: set[str], errors: list[CNIError]) -> None:
    """Give back every device of a network whose mark is not among ``valid``, wherever it is.

    One that cannot have its name back is told in ``errors`` and keeps none of the others.
    """
    prefix = network_mark(network)
    for marked, link in altnames.beginning(kernel.route(), prefix):
        if marked not in valid:
            attempt(errors, "host-device", partial(_rename, kernel, link, original_name(link), marked))
    for container in sublink.containers():
        with container:
            if container.identity == kernel.netns.identity:
                continue
            with RouteSocket.open(container) as inside:
                for marked, link in altnames.beginning(inside, prefix):
                    if marked not in valid:
                        home = partial(give_back, kernel, inside, link, original_name(link), marked)
                        attempt(errors, "host-device", home)
