"""static, tuning and sbr before the tester, each alone, and all together in one list."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from podwire.cni.config import NetworkConfigList, parse_list
from podwire.cni.errors import CNIError
from podwire.cni.runtime import Attachment, Runtime
from podwire.conformance import subject, tester
from podwire.kernel.host import Kernel
from podwire.plugins import load
from tests.conformance import helpers

pytestmark = pytest.mark.kernel
ROOT = Path(__file__).parents[2]
CHECKS = "field-type prev-result-passed side-by-side check-damage del-netns-gone gc"
LOOK = """
for inside in "" "-n pod"; do
  ip $inside -br link | cut -d' ' -f1 | sort
  ip $inside address | grep -E 'inet|mtu|link/' | sed 's/ state.*//; s/<.*>//'
  for family in -4 -6; do
    ip $inside $family rule; ip $inside $family route show table all | sed 's/ linkdown//' | grep -v ff00
  done
done
ls -R $DATA; nft list ruleset | grep -c elements
"""


def executable(directory: Path, type: str) -> Path:
    path = directory / type
    command = [sys.executable, "-m", "podwire.plugins", type]
    path.write_text(f"#!/bin/sh\nPYTHONPATH={shlex.quote(str(ROOT / 'src'))} exec {shlex.join(command)}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("plugin", ["static", "tuning", "sbr"])
def test_each_alone_has_no_finding(tmp_path: Path, plugin: str) -> None:
    place = executable(tmp_path, plugin)
    found = tester.prepare(subject.resolve(str(place), [str(tmp_path)]))
    outcomes = tester.run(found, CHECKS.split())
    assert helpers.told(outcomes) == ""
    assert len(helpers.passed(outcomes)) >= 3


def seen(directory: Path) -> list[str]:
    done = subprocess.run(["sh", "-c", f"DATA={directory}\n{LOOK}"], capture_output=True, text=True)
    return done.stdout.splitlines()


def chain(directory: Path, **last: Any) -> NetworkConfigList:
    addresses = [{"address": "10.89.0.5/24", "gateway": "10.89.0.1"}, {"address": "fd89::5/64"}]
    ipam = {"type": "static", "addresses": addresses, "routes": [{"dst": "192.0.2.0/24"}]}
    plugins = [
        {"type": "bridge", "bridge": "all0", "isDefaultGateway": True, "ipMasq": True, "ipam": ipam},
        {"type": "portmap", "capabilities": {"portMappings": True}},
        {"type": "sbr"},
        {
            "type": "tuning",
            "dataDir": str(directory / "tuning"),
            "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"},
            "mac": "02:00:00:00:00:77",
            "mtu": 1400,
            **last,
        },
    ]
    text = json.dumps({"cniVersion": "1.1.0", "name": "all", "plugins": plugins})
    return parse_list(text)


async def test_all_of_them_in_one_list(tmp_path: Path) -> None:
    mapping = {"hostPort": 18080, "containerPort": 80, "protocol": "tcp"}
    pod = Attachment("c1", "/run/netns/pod", capability_args={"portMappings": [mapping]})
    subprocess.run(["ip", "netns", "add", "pod"], check=True)
    with Kernel.open() as kernel:
        async with Runtime(load, kernel, cache_dir=tmp_path / "cache", timeout=20) as runtime:
            await runtime.add(chain(tmp_path), pod)
            await runtime.delete(chain(tmp_path), pod)
            clean = seen(tmp_path / "tuning")
            result = await runtime.add(chain(tmp_path), pod)
            assert result.interfaces[2].mac == "02:00:00:00:00:77"
            await runtime.check(chain(tmp_path), pod)
            assert seen(tmp_path / "tuning") != clean
            await runtime.delete(chain(tmp_path), pod)
            assert seen(tmp_path / "tuning") == clean
            with pytest.raises(CNIError, match="EINVAL"):
                await runtime.add(chain(tmp_path, mtu=10), pod)
            await runtime.delete(chain(tmp_path, mtu=10), pod)
            assert seen(tmp_path / "tuning") == clean
    subprocess.run(["ip", "netns", "delete", "pod"], check=True)
