"""What others take away from running pods comes back by itself."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.helpers import SERVER, Machine, output
from tests.waiting import until

pytestmark = pytest.mark.kernel

PATIENCE = 20.0
PORT = 8080


def fetched(address: str, port: int) -> bool:
    where = f"[{address}]" if ":" in address else address
    command = ["busybox", "timeout", "1", "busybox", "wget", "-qO-", f"http://{where}:{port}/hostname"]
    return subprocess.run(command, capture_output=True, text=True).stdout == "web-n1\n"


def table() -> list[str]:
    """The lines of our table, in any order: chains that are made again come last."""
    command = ["nft", "list", "table", "inet", "podwire"]
    return sorted(subprocess.run(command, capture_output=True, text=True).stdout.splitlines())


@contextmanager
def web(machine: Machine) -> Iterator[dict[str, Any]]:
    """A pod with a host port; it must still be the same one afterwards."""
    machine.write("web.yaml", SERVER.format(name="web", port=PORT))
    machine.up()
    machine.wait_for("web=Running")
    before = machine.pod("web")["status"]
    assert fetched("127.0.0.1", PORT)
    yield before
    after = machine.pod("web")["status"]
    assert after["podIPs"] == before["podIPs"]
    assert after["containerStatuses"] == before["containerStatuses"]


@pytest.mark.parametrize(
    "flush", ["ruleset", "chain inet podwire postrouting", "map inet podwire target_any4"]
)
def test_rules_that_were_flushed(machine: Machine, flush: str) -> None:
    with web(machine):
        whole = table()
        assert any("masquerade" in line for line in whole)
        output("nft", "flush", *flush.split())
        assert table() != whole
        until(lambda: table() == whole, "the rules are back", seconds=PATIENCE)
        assert fetched("127.0.0.1", PORT)
    assert "is mended" in (machine.root / "lib" / "node.log").read_text()


def bridge() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(output("ip", "-j", "address", "show", "dev", "podwire0"))[0]
    return found


def test_a_bridge_that_was_deleted(machine: Machine) -> None:
    with web(machine) as before:
        mac = bridge()["address"]
        output("ip", "link", "delete", "podwire0")
        addresses = [entry["ip"] for entry in before["podIPs"]]
        until(lambda: all(fetched(address, 80) for address in addresses), "pods answer", seconds=PATIENCE)
        until(lambda: fetched("127.0.0.1", PORT), "the host port answers", seconds=PATIENCE)
        assert bridge()["address"] == mac


def test_a_bridge_that_lost_its_addresses_and_was_set_down(machine: Machine) -> None:
    with web(machine) as before:
        output("ip", "address", "flush", "dev", "podwire0", "scope", "global")
        addresses = [entry["ip"] for entry in before["podIPs"]]
        until(lambda: all(fetched(address, 80) for address in addresses), "pods answer", seconds=PATIENCE)
        output("ip", "link", "set", "podwire0", "down")
        until(
            lambda: all(fetched(address, 80) for address in addresses), "pods answer again", seconds=PATIENCE
        )


def test_a_pod_whose_link_was_deleted_gets_another_sandbox(machine: Machine) -> None:
    machine.write("web.yaml", SERVER.format(name="web", port=PORT))
    machine.up()
    machine.wait_for("web=Running")
    listed = json.loads(output("ip", "-j", "link", "show", "master", "podwire0"))
    output("ip", "link", "delete", listed[0]["ifname"])
    until(lambda: fetched("127.0.0.1", PORT), "the host port answers again", seconds=PATIENCE)
    status = machine.pod("web")["status"]["containerStatuses"][0]
    assert status["restartCount"] == 1
    events = json.loads(machine.ask("get", "events", "-o", "json").stdout)["items"]
    told = [event["message"] for event in events if event["reason"] == "SandboxChanged"]
    assert len(told) == 1
    assert listed[0]["ifname"] in told[0]
    kept = [path.name for path in Path(machine.root, "lib", "networks", "podwire").iterdir()]
    assert len([name for name in kept if name.startswith("10.")]) == 1
