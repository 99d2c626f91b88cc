"""macspoofchk: a pod's frames leave its host end only with the pod's own MAC.

The rule is constant; a pod is one element in each of two sets of the nft table ``bridge podwire``. What is
missing of the table comes back with the next ADD.
"""

from __future__ import annotations

from podwire.kernel.host import Kernel
from podwire.kernel.nftset import INTERFACE, Element, Kind, NamedSet

FAMILY, TABLE = "bridge", "podwire"
_ETHER = Kind(
    "ether_addr", 6, lambda value: bytes.fromhex(value.replace(":", "")), lambda data: bytes(data).hex(":")
)
GUARDED = NamedSet("guarded", (INTERFACE,), table=TABLE, family=FAMILY)
"""Host ends whose frames are checked; the comment of each is the MAC that it may send from."""
ALLOWED = NamedSet("allowed", (INTERFACE, _ETHER), table=TABLE, family=FAMILY)
_RULE = "podwire macspoofchk"
_SKELETON = f"""
add table {FAMILY} {TABLE}
add set {FAMILY} {TABLE} guarded {{ type ifname; }}
add set {FAMILY} {TABLE} allowed {{ type ifname . ether_addr; }}
add chain {FAMILY} {TABLE} antispoof {{ type filter hook prerouting priority -300; policy accept; }}
flush chain {FAMILY} {TABLE} antispoof
add rule {FAMILY} {TABLE} antispoof iifname @guarded iifname . ether saddr != @allowed drop comment "{_RULE}"
"""


def add(kernel: Kernel, host_end: str, mac: str) -> None:
    """Let ``host_end`` send from ``mac`` alone; the table is made if it, or its rule, is missing."""
    text = "" if _has_rule(kernel) else _SKELETON
    text += _removal(kernel, host_end)
    text += ALLOWED.add(Element((host_end, mac)))
    text += GUARDED.add(Element((host_end,), comment=mac))
    kernel.nft.run(text)


def guarded_mac(kernel: Kernel, host_end: str) -> str:
    """Return the one MAC that ``host_end`` may send from, or ``""`` if it is not held to any."""
    element = kernel.nft.get(GUARDED, (host_end,))
    if element is None or not _has_rule(kernel):
        return ""
    return element.comment if kernel.nft.get(ALLOWED, (host_end, element.comment)) else ""


def remove(kernel: Kernel, *host_ends: str) -> None:
    """Forget host ends; those that are not known are fine."""
    text = "".join(_removal(kernel, name) for name in host_ends)
    if text:
        kernel.nft.run(text)


def _removal(kernel: Kernel, host_end: str) -> str:
    element = kernel.nft.get(GUARDED, (host_end,))
    if element is None:
        return ""
    text = GUARDED.delete((host_end,))
    if kernel.nft.get(ALLOWED, (host_end, element.comment)) is not None:
        text += ALLOWED.delete((host_end, element.comment))
    return text


def _has_rule(kernel: Kernel) -> bool:
    return any(rule.comment == _RULE for rule in kernel.nft.rules(TABLE, FAMILY))
