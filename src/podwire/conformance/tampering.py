"""Taking away what an ADD made, as people and programs on a node do; after it a CHECK must fail."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from podwire.conformance.pods import Pod
from podwire.kernel import addresses, links, netns, routes, rules, tc
from podwire.kernel.netlink import RouteSocket
from podwire.kernel.nft import Nft

Tamper = Callable[[Pod], None]


def _change_pod(pod: Pod, change: Callable[[RouteSocket, links.Link], None]) -> None:
    with netns.open(pod.netns) as inside, RouteSocket.open(inside) as sock:
        link = links.get(sock, pod.ifname)
        if link is not None:
            change(sock, link)


def delete_address(pod: Pod) -> None:
    """Delete the addresses of the pod's interface, but the link-local ones."""

    def change(sock: RouteSocket, link: links.Link) -> None:
        for one in addresses.list_addresses(sock, link.index):
            if not one.address.is_link_local:
                sock.send(addresses.delete(link.index, one.address))

    _change_pod(pod, change)


def delete_routes(pod: Pod) -> None:
    """Delete the routes by a gateway, in whichever table a later plugin of a chain has put them."""

    def change(sock: RouteSocket, link: links.Link) -> None:
        for one in routes.list_routes(sock):
            if one.device == link.index and one.gateway is not None:
                sock.send(
                    routes.delete(one.destination, device=link.index, gateway=one.gateway, table=one.table)
                )

    _change_pod(pod, change)


def delete_link(pod: Pod) -> None:
    """Delete the pod's interface."""
    _change_pod(pod, lambda sock, link: sock.send(links.delete(link.index)))


def set_down(pod: Pod) -> None:
    """Set the pod's interface down."""
    _change_pod(pod, lambda sock, link: sock.send(links.configure(link.index, up=False)))


def reset_mtu(pod: Pod) -> None:
    """Set the MTU back to 1500."""
    _change_pod(pod, lambda sock, link: sock.send(links.configure(link.index, mtu=1500)))


def delete_rules(pod: Pod) -> None:
    """Delete the routing rules that a namespace does not have by itself."""

    def change(sock: RouteSocket, _link: links.Link) -> None:
        for one in rules.list_rules(sock):
            if one.priority not in {0, 32766, 32767}:
                sock.send(rules.delete(one))

    _change_pod(pod, change)


def delete_vrfs(pod: Pod) -> None:
    """Delete the pod's VRFs."""

    def change(sock: RouteSocket, _link: links.Link) -> None:
        for one in links.list_links(sock, kind="vrf"):
            sock.send(links.delete(one.index))

    _change_pod(pod, change)


def free_link(pod: Pod) -> None:
    """Take the pod's interface away from its master."""
    _change_pod(pod, lambda sock, link: sock.send(links.configure(link.index, master=0)))


def flush_rules(_pod: Pod) -> None:
    """Flush the host's nftables, which are also those of iptables-nft."""
    with Nft.open() as nft:
        nft.run("flush ruleset")


def delete_ifbs(_pod: Pod) -> None:
    """Delete the host's ifb links."""
    with RouteSocket.open() as sock:
        for link in links.list_links(sock, kind="ifb"):
            sock.send(links.delete(link.index))


def delete_qdiscs(_pod: Pod) -> None:
    """Delete the queueing disciplines of the host's links that hold traffic back."""
    with RouteSocket.open() as sock:
        for qdisc in tc.list_qdiscs(sock):
            if qdisc.parent == tc.ROOT:
                sock.send(tc.delete_qdisc(qdisc.index, qdisc.parent))


def delete_redirects(_pod: Pod) -> None:
    """Delete the filters of what the host's links receive."""
    with RouteSocket.open() as sock:
        for qdisc in tc.list_qdiscs(sock):
            for priority in {each.priority for each in tc.list_filters(sock, qdisc.index, qdisc.handle)}:
                if qdisc.kind == "ingress":
                    sock.send(tc.delete_filters(qdisc.index, qdisc.handle, priority))


def delete_leases(_pod: Pod) -> None:
    """Delete host-local's files of addresses."""
    for path in Path("/var/lib/cni/networks").rglob("10.89.0.*"):
        path.unlink()
