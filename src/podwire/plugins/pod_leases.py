"""The addresses of a `podwire` network's pods: held in the directory of the reference host-local plugin."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from podwire.cni import fields
from podwire.cni.errors import AlreadyAttached, CNIError, NotAvailable
from podwire.cni.plugin import Request, Result
from podwire.ipam.allocation import Allocation, allocate, exhausted
from podwire.ipam.directory import AddressDirectory
from podwire.ipam.errors import Address, Holder, IPAMError
from podwire.plugins import host_local, parsed, pod_network
from podwire.plugins.failures import KERNEL, undoing
from podwire.plugins.pod_network import Anything, Network


@contextmanager
def leased(request: Request[Anything], network: Network) -> Iterator[tuple[Allocation, ...]]:
    """Have an address of each set for the length of a block; they are given back if it fails."""
    wishes = pod_network.requested_addresses(request)
    directory = AddressDirectory(network.settings.dataDir, request.name)
    holder = _holder(request)
    try:
        with host_local.told(), directory.locked(request.deadline) as leases:
            # The same container after a reboot, from a runtime that sends no DEL for what that ended.
            if leases.held_by(*holder) and leases.all_older_than(host_local.booted(), *holder):
                leases.release(*holder)
            given = allocate(leases, network.sets, holder, wishes)
        yield given
    except AlreadyAttached:  # what it has stays
        raise
    except BaseException as error:
        with undoing(error):
            _release(directory, request)
        raise


def _holder(request: Request[Anything]) -> Holder:
    return Holder(request.container_id, request.ifname)


def _release(directory: AddressDirectory, request: Request[Anything]) -> None:
    with host_local.told(), directory.locked() as leases:
        leases.release(request.container_id, request.ifname)


def release(request: Request[Anything]) -> None:
    """Free the attachment's addresses; having none is success."""
    directory = AddressDirectory(_data_dir(request), request.name)
    if directory.exists():
        _release(directory, request)


def retain(request: Request[Anything], valid: Collection[tuple[str, str]]) -> None:
    """Free the addresses that no valid attachment holds."""
    directory = AddressDirectory(_data_dir(request), request.name)
    if directory.exists():
        with host_local.told(), directory.locked(request.deadline) as leases:
            leases.retain(valid)


def _data_dir(request: Request[Anything]) -> str:
    """Where the addresses are, whatever else the configuration says."""
    found = fields.lookup(request.raw, "dataDir")
    if isinstance(found, str) and found:
        return found
    # A network that was bridge + host-local has its pods' addresses where that says.
    ipam = fields.lookup(request.raw, "ipam")
    inner = fields.lookup(ipam, "dataDir") if isinstance(ipam, dict) else None
    return inner if isinstance(inner, str) and inner else host_local.DATA_DIR


def verify(request: Request[Anything], network: Network, result: Result) -> None:
    """Verify that the attachment holds the addresses of its result. Raises CNIError (100)."""
    directory = AddressDirectory(network.settings.dataDir, request.name)
    holder = _holder(request)
    held: tuple[Address, ...] = ()
    if directory.exists():
        with host_local.told(), directory.locked(request.deadline) as leases:
            held = leases.confirmed(*holder)
    for ip in result.ips_of(request.ifname):
        if parsed.interface(ip.address).ip not in held:
            raise CNIError(f"address {ip.address} is not held by container {holder}", code=KERNEL)


def status(request: Request[Anything], network: Network) -> None:
    """Raise NotAvailable (50) if no address is free, or none could be written down."""
    directory = AddressDirectory(network.settings.dataDir, request.name)
    if not directory.exists():
        home = next(path for path in Path(directory.path).parents if path.exists())
        if not (home.is_dir() and os.access(home, os.W_OK)):
            raise NotAvailable(f"podwire: {directory.path} cannot be made below {home}")
        return
    try:
        with directory.locked(request.deadline) as leases:
            full = exhausted(leases, network.sets)
    except IPAMError as error:
        raise NotAvailable(f"podwire: {error}") from error
    if full is not None:
        raise NotAvailable(f"podwire: no free address in {full} of network {request.name}")
