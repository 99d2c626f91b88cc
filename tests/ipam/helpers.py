"""The reference plugin, run as a runtime runs it, and short ways to make sets."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from podwire.ipam.allocation import Allocation, allocate
from podwire.ipam.directory import AddressDirectory
from podwire.ipam.errors import Holder
from podwire.ipam.ranges import Range, RangeSet

GO_PLUGINS = Path("/usr/lib/cni")


def pool(*subnets: str, **bounds: str) -> RangeSet:
    return RangeSet([Range.parse(subnet, **bounds) for subnet in subnets])


def add(
    directory: AddressDirectory,
    sets: Sequence[RangeSet],
    container_id: str,
    *requested: str,
    ifname: str = "eth0",
    deadline: float | None = None,
) -> tuple[Allocation, ...]:
    with directory.locked(deadline) as leases:
        return allocate(leases, sets, Holder(container_id, ifname), [ip_address(one) for one in requested])


def given(allocations: Sequence[Allocation]) -> list[str]:
    return [str(one.address) for one in allocations]


def release(directory: AddressDirectory, container_id: str, ifname: str = "eth0") -> list[str]:
    with directory.locked() as leases:
        return [str(address) for address in leases.release(container_id, ifname)]


def files(directory: AddressDirectory) -> dict[str, str]:
    """What lies on the disk, by the file's name: no code of ours reads it."""
    root = Path(directory.path)
    return {path.name: path.read_bytes().decode() for path in root.iterdir() if path.name != "lock"}


def addresses(directory: AddressDirectory) -> dict[str, str]:
    return {name: text for name, text in files(directory).items() if not name.startswith("last_reserved_ip.")}


def run_go(
    command: str,
    container_id: str,
    data_dir: Path,
    ipam: dict[str, Any],
    *,
    ifname: str = "eth0",
    args: str = "",
) -> dict[str, Any]:
    """Run the reference plugin on network ``net``; its error is raised with its words."""
    config = {
        "cniVersion": "1.0.0",
        "name": "net",
        "ipam": {"type": "host-local", "dataDir": str(data_dir), **ipam},
    }
    done = subprocess.run(
        [str(GO_PLUGINS / "host-local")],
        input=json.dumps(config).encode(),
        env={
            **os.environ,
            "CNI_COMMAND": command,
            "CNI_CONTAINERID": container_id,
            "CNI_NETNS": "/proc/1/ns/net",
            "CNI_IFNAME": ifname,
            "CNI_PATH": str(GO_PLUGINS),
            "CNI_ARGS": args,
        },
        capture_output=True,
        check=False,
    )
    answer: dict[str, Any] = json.loads(done.stdout) if done.stdout.strip() else {}
    if done.returncode:
        raise RuntimeError(answer.get("msg"))
    return answer
