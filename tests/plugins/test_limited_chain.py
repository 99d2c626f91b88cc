"""bridge, portmap, bandwidth and firewall in one list, as a runtime runs it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from podwire.cni.config import NetworkConfigList, parse_list
from podwire.cni.errors import CNIError
from podwire.cni.runtime import Attachment, Runtime
from podwire.kernel.host import Kernel
from podwire.plugins import load
from tests.plugins.helpers import run

pytestmark = pytest.mark.kernel
LOOK = """
ip -br link | cut -d' ' -f1 | sort; tc qdisc
nft list ruleset | grep -v counter; find $1 -name '10.*' -o -name 'fd*'
"""
LIMITS = {"ingressRate": 8_000_000, "ingressBurst": 800_000, "egressRate": 8_000_000, "egressBurst": 800_000}


def chain(directory: Path, **last: Any) -> NetworkConfigList:
    ipam = {
        "type": "host-local",
        "dataDir": str(directory / "leases"),
        "ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00:1::/64"}]],
    }
    plugins = [
        {"type": "bridge", "bridge": "pw0", "isDefaultGateway": True, "ipMasq": True, "ipam": ipam},
        {"type": "portmap", "capabilities": {"portMappings": True}},
        {"type": "bandwidth", "capabilities": {"bandwidth": True}},
        {"type": "firewall", "ingressPolicy": "isolated", **last},
    ]
    return parse_list(json.dumps({"cniVersion": "1.1.0", "name": "net", "plugins": plugins}))


def attachment(number: int) -> Attachment:
    mapping = {"hostPort": 18080 + number, "containerPort": 80, "protocol": "sctp"}
    path = f"/run/netns/pod{number}"
    return Attachment(f"c{number}", path, capability_args={"portMappings": [mapping], "bandwidth": LIMITS})


async def test_a_list_of_all_of_them(tmp_path: Path) -> None:
    run("iptables", "-P", "FORWARD", "DROP")
    for number in range(3):
        run("ip", "netns", "add", f"pod{number}")

    def seen() -> list[str]:
        return run("sh", "-c", LOOK, "sh", str(tmp_path)).splitlines()

    with Kernel.open() as kernel:
        async with Runtime(load, kernel, cache_dir=tmp_path / "cache", timeout=20) as runtime:
            await runtime.add(chain(tmp_path), attachment(0))
            clean = seen()
            for number in (1, 2):
                result = await runtime.add(chain(tmp_path), attachment(number))
                assert [one.name[:3] for one in result.interfaces] == ["pw0", "vet", "eth", "bwp"]
            for number in (0, 1, 2):
                await runtime.check(chain(tmp_path), attachment(number))
            await runtime.delete(chain(tmp_path), attachment(1))
            await runtime.delete(chain(tmp_path), attachment(1))
            await runtime.gc(chain(tmp_path), [attachment(0)])
            assert seen() == clean
            with pytest.raises(CNIError, match="ingressPolicy"):
                await runtime.add(chain(tmp_path, ingressPolicy="none"), attachment(1))
            await runtime.delete(chain(tmp_path, ingressPolicy="none"), attachment(1))
            assert seen() == clean
            await runtime.check(chain(tmp_path), attachment(0))
    for number in range(3):
        subprocess.run(["ip", "netns", "delete", f"pod{number}"], check=True)
