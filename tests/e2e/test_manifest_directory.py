"""What a person sees who drops, edits, breaks and removes manifests while a node runs."""

from __future__ import annotations

import ipaddress
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.helpers import SLEEPER, Machine, host, lines, output

pytestmark = pytest.mark.kernel

MANY = 200
COMING_UP = 50
PATIENCE = 60.0


def pods(machine: Machine) -> dict[str, dict[str, Any]]:
    """Every pod by its name in the manifest."""
    listed = json.loads(machine.podwire("get", "pods", "-A", "-o", "json").stdout)
    return {pod["metadata"]["name"].removesuffix("-n1"): pod for pod in listed["items"]}


def until_gone(machine: Machine, *names: str) -> None:
    """Return when none of the pods is there, as the watch tells it."""
    with machine.watching() as watch:
        left = set(names) & set(pods(machine))
        for line in lines(watch, PATIENCE):
            name = line.split()[1].removesuffix("-n1")
            if name in left and name not in pods(machine):
                left.discard(name)
            if not left:
                return
    assert not set(names) & set(pods(machine))


def until_running(machine: Machine, names: set[str]) -> None:
    """Return when all the pods run, as the watch tells it."""
    with machine.watching() as watch:
        for line in lines(watch, PATIENCE):
            _, name, _, status, *_ = line.split()
            if status == "Running":
                names.discard(name.removesuffix("-n1"))
            if not names:
                return
    raise AssertionError(f"never ran: {sorted(names)}\n{machine.podwire('get', 'pods', '-A').stdout}")


def addresses(machine: Machine) -> list[str]:
    """The addresses of all pods by their status."""
    return [entry["ip"] for pod in pods(machine).values() for entry in pod["status"].get("podIPs", [])]


def leases(machine: Machine) -> list[str]:
    """The addresses that the IPAM directory holds."""
    found = []
    for path in (machine.root / "lib" / "networks").rglob("*"):
        try:
            found.append(str(ipaddress.ip_address(path.name)))
        except ValueError:
            continue
    return found


def rules() -> int:
    """How many rules there are in all of nftables."""
    listing = json.loads(output("nft", "-j", "list", "ruleset"))["nftables"]
    return sum("rule" in entry for entry in listing)


def bridge_ports() -> list[str]:
    """The interfaces on the node's bridge."""
    listed = json.loads(output("ip", "-j", "link", "show", "master", "podwire0"))
    return [link["ifname"] for link in listed]


def test_dropped_edited_removed_and_put_back(machine: Machine) -> None:
    machine.up()
    text = SLEEPER.format(name="a")
    machine.write("a.yaml", text)
    machine.wait_for("a=Running")
    first = machine.pod("a")
    assert sorted(leases(machine)) == sorted(addresses(machine))

    machine.write("a.yaml", text.replace("hello from a", "hello again"))
    with machine.watching() as watch:
        for _ in lines(watch, PATIENCE):
            pod = pods(machine).get("a")
            if pod and pod["metadata"]["uid"] != first["metadata"]["uid"]:
                break
    machine.wait_for("a=Running")
    assert "hello again" in machine.podwire("logs", "a").stdout

    (machine.manifests / "a.yaml").unlink()
    until_gone(machine, "a")
    assert leases(machine) == []
    assert bridge_ports() == []

    machine.write("a.yaml", text)
    machine.wait_for("a=Running")
    kept = machine.manifests.parent / "kept.yaml"
    shutil.copy(machine.manifests / "a.yaml", kept)
    started = machine.pod("a")["status"]["containerStatuses"][0]["containerID"]
    (machine.manifests / "a.yaml").unlink()
    shutil.copy(kept, machine.manifests / "a.yaml")
    machine.wait_for("a=Running")
    now = machine.pod("a")["status"]
    assert now["phase"] == "Running"
    assert len(bridge_ports()) == 1
    assert sorted(leases(machine)) == sorted(entry["ip"] for entry in now["podIPs"])
    assert started.startswith("podwire://") or started


def test_a_half_written_file_keeps_the_last_good_pod_and_says_so(machine: Machine) -> None:
    machine.up()
    text = SLEEPER.format(name="a")
    machine.write("a.yaml", text)
    machine.wait_for("a=Running")
    before = machine.pod("a")
    path = machine.manifests / "a.yaml"
    with machine.start("get", "events", "-A", "-w", stdout=subprocess.PIPE) as watch:
        path.write_text(text[: text.index("command") + 14])
        told = next(line for line in lines(watch, PATIENCE) if "a.yaml" in line and "FailedParse" in line)
        watch.kill()
    assert f"{path}:" in told
    after = machine.pod("a")
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["status"]["containerStatuses"] == before["status"]["containerStatuses"]
    path.write_text(text)
    assert machine.pod("a")["status"]["phase"] == "Running"


def test_200_at_once_all_run_and_the_rules_do_not_grow(machine: Machine) -> None:
    before = host()
    machine.up()
    machine.write("first.yaml", SLEEPER.format(name="first"))
    machine.wait_for("first=Running")
    few = rules()
    for number in range(MANY):
        machine.write(f"p{number}.yaml", SLEEPER.format(name=f"p{number}"))
    until_running(machine, {f"p{number}" for number in range(MANY)})
    assert rules() == few
    given = addresses(machine)
    assert len(given) == len(set(given)) == 2 * (MANY + 1)
    assert len(bridge_ports()) == MANY + 1
    machine.podwire("down", "--timeout", "2")
    assert host() == before


def processes(marker: str) -> int:
    """How many programs of the pods run, by a word of their command line."""
    found = 0
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += marker.encode() in path.read_bytes().replace(b"\0", b" ")
        except OSError:
            continue
    return found


def kill_node(machine: Machine) -> None:
    """Kill -9 the node itself and wait until it is gone."""
    pid = int((machine.root / "run" / "node.lock").read_text().split()[0])
    fd = os.pidfd_open(pid)
    try:
        os.kill(pid, signal.SIGKILL)
        import select

        assert select.select([fd], [], [], 10)[0]
    finally:
        os.close(fd)


@pytest.mark.parametrize("seen", [1, 20])
def test_killed_while_50_come_up_no_pod_or_address_is_there_twice(machine: Machine, seen: int) -> None:
    before = host()
    machine.up()
    marker = f"sleep 7{os.getpid() % 1000:03}{seen:02}"
    with machine.watching() as watch:
        for number in range(COMING_UP):
            text = SLEEPER.format(name=f"p{number}").replace("sleep 1000", marker)
            machine.write(f"p{number}.yaml", text)
        running: set[str] = set()
        for line in lines(watch, PATIENCE):
            if line.split()[3] == "Running":
                running.add(line.split()[1])
            if len(running) >= seen:
                break
        kill_node(machine)
    machine.up()
    until_running(machine, {f"p{number}" for number in range(COMING_UP)})
    given = addresses(machine)
    assert len(given) == len(set(given)) == 2 * COMING_UP
    assert sorted(leases(machine)) == sorted(given)
    assert len(bridge_ports()) == COMING_UP
    assert processes(marker) == COMING_UP
    machine.podwire("down", "--timeout", "2")
    assert processes(marker) == 0
    assert host() == before
    assert not machine.root.exists()


def test_a_dropped_manifest_runs_at_once(machine: Machine, record_property: Any) -> None:
    machine.up()
    with machine.watching() as watch:
        begin = time.monotonic()
        machine.write("a.yaml", SLEEPER.format(name="a"))
        for line in lines(watch, PATIENCE):
            if line.split()[3] == "Running":
                break
        took = time.monotonic() - begin
    record_property("seconds_to_running", took)
    print(f"Running after {took:.3f} s")
    assert machine.pod("a")["status"]["phase"] == "Running"
