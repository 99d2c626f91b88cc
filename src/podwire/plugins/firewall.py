"""`firewall`: lets a pod's traffic through the host (chained after the plugin that made its interface).

Options: ``backend``, ``iptablesAdminChainName`` (CNI-ADMIN), ``firewalldZone`` (trusted), ``ingressPolicy``
(open, same-bridge, isolated). All is nftables, whether ``backend`` says iptables or nftables; with firewalld,
or where that runs and no backend is named, the pod's addresses are put into its zone as well.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address

import msgspec

from podwire.cni import fields
from podwire.cni.errors import CNIError, InvalidConfig, NotAvailable
from podwire.cni.plugin import Plugin, Request, Result
from podwire.kernel.errors import KernelError
from podwire.kernel.host import Kernel
from podwire.plugins import firewall_elements as elements
from podwire.plugins import forwarding, parsed, ruleset
from podwire.plugins.failures import KERNEL, mended, told, undone_on_failure
from podwire.plugins.firewall_elements import Policy
from podwire.plugins.ruleset import Owner

Address = IPv4Address | IPv6Address

_BACKENDS = ("", "iptables", "nftables", "firewalld")
_POLICIES = ("", "open", "same-bridge", "isolated")
_ZONE = "trusted"
_CHAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,27}")
"""What iptables and nft both take for a chain's name."""


class Anything(msgspec.Struct, frozen=True):
    """What is decoded for every command: nothing, because no configuration may stop a DEL."""


class Settings(msgspec.Struct, frozen=True):
    """firewall's options, as ADD and CHECK read them."""

    backend: str = ""
    iptablesAdminChainName: str = ""
    firewalldZone: str = ""
    ingressPolicy: str = ""

    @property
    def admin(self) -> str:
        """The administrator's chain in the table filter of iptables, which comes before our accept."""
        return self.iptablesAdminChainName or "CNI-ADMIN"

    @property
    def zone(self) -> str:
        """The zone of firewalld."""
        return self.firewalldZone or _ZONE


def settings(request: Request[Anything]) -> Settings:
    """Decode and check the options. Raises InvalidConfig (7) naming the field and the value."""
    try:
        found = fields.convert(request.raw, Settings)
    except fields.FieldError as error:
        raise InvalidConfig(f'plugin "firewall": {error}') from None
    for field, value, known in (
        ("backend", found.backend, _BACKENDS),
        ("ingressPolicy", found.ingressPolicy, _POLICIES),
    ):
        if value not in known:
            raise InvalidConfig(f'{field} "{value}": is none of {", ".join(filter(None, known))}')
    if not _CHAIN.fullmatch(found.admin):
        raise InvalidConfig(f'iptablesAdminChainName "{found.admin}": is no name of a chain')
    if found.zone.startswith("-"):
        raise InvalidConfig(f'firewalldZone "{found.zone}": is no name of a zone')
    return found


def _owner(request: Request[Anything]) -> Owner:
    return Owner(request.name, request.container_id, request.ifname)


def _addresses(result: Result) -> list[Address]:
    return list(dict.fromkeys(parsed.interface(ip.address).ip for ip in result.ips))


def _policy(options: Settings, result: Result) -> Policy | None:
    """The bridge of a policy, the first of the host's interfaces of the chain; the others are its ports."""
    if options.ingressPolicy not in {"same-bridge", "isolated"}:
        return None
    bridge, *ports = [*_host_interfaces(result), ""]
    if not bridge:
        raise InvalidConfig(
            f'ingressPolicy "{options.ingressPolicy}": prevResult.interfaces has no bridge of the host',
            "firewall must come after bridge in the list",
        )
    return Policy(bridge, tuple(ports[:-1]) if options.ingressPolicy == "isolated" else None)


def _host_interfaces(result: Result | None) -> list[str]:
    if result is None:
        return []
    return list(dict.fromkeys(one.name for one in result.interfaces if one.name and not one.sandbox))


def _uses_firewalld(kernel: Kernel, backend: str) -> bool:
    """Tell whether firewalld is asked for, or runs where nobody says: then it has a table of its own."""
    return backend == "firewalld" or (not backend and kernel.nft.has_table("firewalld"))


def add(request: Request[Anything], kernel: Kernel) -> Result:
    """Let the pod's addresses through; the result is the chain's, unchanged."""
    options = settings(request)
    result = request.need_prev_result()
    addresses, policy = _addresses(result), _policy(options, result)
    owner = _owner(request)
    with told("firewall"), undone_on_failure() as undo:
        versions = sorted({each.version for each in addresses})
        forwarding.ensure(kernel.nft, versions, options.admin, request.deadline)
        undo.append(lambda: elements.remove(kernel, owner, _host_interfaces(result)))
        elements.add(kernel, owner, addresses, policy)
        if _uses_firewalld(kernel, options.backend):
            undo.append(lambda: _leave_zone(request, options.zone, addresses))
            for each in addresses:
                request.run("firewall-cmd", f"--zone={options.zone}", f"--change-source={_source(each)}")
    return result


def check(request: Request[Anything], kernel: Kernel) -> None:
    """Find every element and rule of ADD as it was made; the error names all that is missing."""
    options = settings(request)
    result = request.need_prev_result()
    addresses, policy = _addresses(result), _policy(options, result)
    with told("firewall"):
        faults = elements.check(kernel, _owner(request), addresses, policy)
        versions = sorted({each.version for each in addresses})
        faults += forwarding.faults(kernel.nft, versions, options.admin)
        if _uses_firewalld(kernel, options.backend):
            faults += [
                f"{each} is not in firewalld's zone {options.zone}"
                for each in addresses
                if not _in_zone(request, options.zone, each)
            ]
        if faults and policy is None and _is_references(request, kernel, addresses):
            return
    if faults:
        raise CNIError(f"firewall: {'; '.join(faults)}", code=KERNEL)


def _is_references(request: Request[Anything], kernel: Kernel, addresses: Sequence[Address]) -> bool:
    """Tell whether nothing of the attachment is ours, and the reference plugin has let its addresses pass."""
    from podwire.plugins import reference_rules

    return not elements.held(kernel, _owner(request)) and reference_rules.let_pass(kernel, addresses)


def mend(request: Request[Anything], kernel: Kernel) -> list[str]:
    """Make again what somebody took away; tell what was missing."""
    return mended(lambda: check(request, kernel), lambda: add(request, kernel), KERNEL)


def delete(request: Request[Anything], kernel: Kernel) -> None:
    """Take away what the attachment has, by its own name: an address may be somebody else's by now."""
    from podwire.kernel.nft import NftUnavailable

    owner = _owner(request)
    with told("firewall"):
        try:
            addresses = elements.held(kernel, owner)
            if not addresses:
                addresses = _of_the_reference(request, kernel)
            if addresses and _uses_firewalld(kernel, _text(request, "backend")):
                _leave_zone(request, _text(request, "firewalldZone") or _ZONE, addresses)
            elements.remove(kernel, owner, _host_interfaces(request.prev_result))
        except NftUnavailable:
            return  # then nothing was made by it either


def _of_the_reference(request: Request[Anything], kernel: Kernel) -> list[Address]:
    """The addresses that the reference plugin let pass, without its rules by now; no pod of ours has them."""
    from podwire.plugins import reference_rules

    listed = _addresses(request.prev_result) if request.prev_result is not None else []
    addresses = elements.free(kernel, listed)
    if addresses:
        reference_rules.remove_passes(kernel, addresses)
    return addresses


def gc(request: Request[Anything], kernel: Kernel) -> None:
    """Take away what this network's attachments have that are not valid any more."""
    valid = [(each.container_id, each.ifname) for each in request.valid_attachments or ()]
    with told("firewall"):
        freed = elements.collect(kernel, request.name, valid)
        if freed and _uses_firewalld(kernel, _text(request, "backend")):
            _leave_zone(request, _text(request, "firewalldZone") or _ZONE, freed)
        if not any(kernel.nft.elements(where) for where in elements.FIREWALL.values()):
            forwarding.remove(kernel.nft)


def status(request: Request[Anything], kernel: Kernel) -> None:
    """Have the kernel judge the whole table without making it, and ask for firewalld if it is wanted."""
    options = settings(request)
    try:
        ruleset.judge(kernel.nft)
    except KernelError as error:
        raise NotAvailable(f"firewall: nftables does not take our table: {error}") from error
    if options.backend == "firewalld":
        try:
            request.run("firewall-cmd", "--state")
        except CNIError as error:
            raise NotAvailable(f'backend "firewalld": {error.msg}') from error


def _text(request: Request[Anything], key: str) -> str:
    """An option for a DEL, which no wrong configuration may stop."""
    value = fields.lookup(request.raw, key, "")
    return value if isinstance(value, str) and not value.startswith("-") else ""


def _source(address: Address) -> str:
    return f"{address}/{address.max_prefixlen}"


def _in_zone(request: Request[Anything], zone: str, address: Address) -> bool:
    try:
        request.run("firewall-cmd", f"--zone={zone}", f"--query-source={_source(address)}")
    except CNIError:
        return False
    return True


def _leave_zone(request: Request[Anything], zone: str, addresses: Sequence[Address]) -> None:
    """Take addresses out of a zone. A firewalld that was restarted since, or is gone, has them no more."""
    for each in addresses:
        try:
            request.run("firewall-cmd", f"--zone={zone}", f"--remove-source={_source(each)}")
        except CNIError:
            continue


PLUGIN = Plugin(
    type="firewall",
    about="podwire firewall: lets a pod's traffic through the host, by nftables",
    config=Anything,
    add=add,
    check=check,
    delete=delete,
    gc=gc,
    status=status,
    mend=mend,
    open_kernel=Kernel.open,
)
