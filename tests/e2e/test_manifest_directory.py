"""What a person sees who drops, edits, breaks and removes manifests while a node runs."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import os
import select
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from podwire.kube.objects import Pod
from podwire.node.client import NodeClient
from tests.cli.helpers import SLEEPER, Machine, host, output

pytestmark = pytest.mark.kernel

MANY = 200
COMING_UP = 50
PATIENCE = 60.0

Pods = dict[str, Pod]


async def until(machine: Machine, what: str, holds: Callable[[Pods], bool]) -> Pods:
    """Return the pods (by their names in the manifests) at the first change after which ``holds``."""
    pods: Pods = {}

    async def follow() -> Pods:
        async with NodeClient(machine.root / "run" / "node.sock") as client:
            async for change, pod in client.watch_pods():
                name = pod.metadata.name.removesuffix("-n1")
                if change == "DELETED":
                    pods.pop(name, None)
                else:
                    pods[name] = pod
                if holds(pods):
                    return pods
            raise AssertionError("the watch ended")

    try:
        return await asyncio.wait_for(follow(), PATIENCE)
    except TimeoutError:
        raise AssertionError(
            f"{what}: not after {PATIENCE} s; {machine.podwire('get', 'pods').stdout}"
        ) from None


async def until_gone(machine: Machine, name: str) -> None:
    """Return when the pod is not there any more."""
    async with NodeClient(machine.root / "run" / "node.sock") as client:
        watch = client.watch_pods()
        if all(pod.metadata.name != f"{name}-n1" for pod in await client.pods()):
            return
        async with asyncio.timeout(PATIENCE):
            async for change, pod in watch:
                if change == "DELETED" and pod.metadata.name == f"{name}-n1":
                    return
                if all(pod.metadata.name != f"{name}-n1" for pod in await client.pods()):
                    return


def running(*names: str) -> Callable[[Pods], bool]:
    """Whether all of the pods run and are ready."""

    def holds(pods: Pods) -> bool:
        return all(
            name in pods
            and pods[name].status.phase == "Running"
            and all(status.ready for status in pods[name].status.container_statuses)
            for name in names
        )

    return holds


def addresses(pods: Pods) -> list[str]:
    """The addresses of all pods by their status."""
    return sorted(entry.ip for pod in pods.values() for entry in pod.status.pod_ips)


def leases(machine: Machine) -> list[str]:
    """The addresses that the IPAM directory holds."""
    found = []
    for path in (machine.root / "lib" / "networks").rglob("*"):
        try:
            found.append(str(ipaddress.ip_address(path.name)))
        except ValueError:
            continue
    return sorted(found)


def rules() -> int:
    """How many rules there are in all of nftables."""
    listing = json.loads(output("nft", "-j", "list", "ruleset"))["nftables"]
    return sum("rule" in entry for entry in listing)


def bridge_ports() -> list[str]:
    """The interfaces on the node's bridge."""
    listed = json.loads(output("ip", "-j", "link", "show", "master", "podwire0"))
    return [link["ifname"] for link in listed]


async def test_dropped_edited_removed_and_put_back(machine: Machine) -> None:
    machine.up()
    text = SLEEPER.format(name="a")
    machine.write("a.yaml", text)
    first = await until(machine, "dropped", running("a"))
    assert leases(machine) == addresses(first)

    machine.write("a.yaml", text.replace("hello from a", "hello again"))
    uid = first["a"].metadata.uid
    await until(machine, "edited", lambda pods: running("a")(pods) and pods["a"].metadata.uid != uid)
    assert "hello again" in machine.podwire("logs", "a").stdout

    (machine.manifests / "a.yaml").unlink()
    await until_gone(machine, "a")
    assert leases(machine) == []
    assert bridge_ports() == []

    machine.write("a.yaml", text)
    await until(machine, "dropped again", running("a"))


async def test_removed_and_put_back_while_it_ends_the_pod_starts_again(machine: Machine) -> None:
    machine.up()
    stubborn = SLEEPER.format(name="a").replace("exec /bin/busybox sleep", "trap '' TERM; /bin/busybox sleep")
    machine.write("a.yaml", stubborn)
    before = await until(machine, "dropped", running("a"))
    kept = machine.manifests.parent / "kept.yaml"
    shutil.copy(machine.manifests / "a.yaml", kept)
    (machine.manifests / "a.yaml").unlink()
    await until(machine, "ending", lambda pods: pods["a"].metadata.deletion_timestamp is not None)
    shutil.copy(kept, machine.manifests / "a.yaml")
    old = before["a"].status.container_statuses[0].container_id

    def is_back(pods: Pods) -> bool:
        return running("a")(pods) and pods["a"].status.container_statuses[0].container_id != old

    after = await until(machine, "put back", is_back)
    assert after["a"].metadata.uid == before["a"].metadata.uid
    assert len(bridge_ports()) == 1
    assert leases(machine) == addresses(after)


async def test_a_file_taken_away_and_put_back_at_once_disturbs_nothing(machine: Machine) -> None:
    machine.up()
    machine.write("a.yaml", SLEEPER.format(name="a"))
    before = await until(machine, "dropped", running("a"))
    kept = machine.manifests.parent / "kept.yaml"
    shutil.copy(machine.manifests / "a.yaml", kept)
    (machine.manifests / "a.yaml").unlink()
    shutil.copy(kept, machine.manifests / "a.yaml")
    machine.write("b.yaml", SLEEPER.format(name="b"))
    after = await until(machine, "another dropped", running("b"))
    assert after["a"].status.container_statuses == before["a"].status.container_statuses


async def test_a_half_written_file_keeps_the_last_good_pod_and_says_so(machine: Machine) -> None:
    machine.up()
    text = SLEEPER.format(name="a")
    machine.write("a.yaml", text)
    before = await until(machine, "dropped", running("a"))
    path = machine.manifests / "a.yaml"
    path.write_text(text[: text.index("command") + 14])
    async with NodeClient(machine.root / "run" / "node.sock") as client, asyncio.timeout(PATIENCE):
        async for _, event in client.watch_events():
            if event.reason == "FailedParse":
                break
        assert f"{path}:" in event.message
        assert event.type == "Warning"
        after = await client.pod("default", "a-n1")
        assert after.metadata.uid == before["a"].metadata.uid
        assert after.status.container_statuses == before["a"].status.container_statuses
    path.write_text(text.replace("hello from a", "cured"))
    uid = before["a"].metadata.uid
    await until(machine, "cured", lambda pods: running("a")(pods) and pods["a"].metadata.uid != uid)


async def test_200_at_once_all_run_and_the_rules_do_not_grow(machine: Machine) -> None:
    before = host()
    machine.up()
    machine.write("first.yaml", SLEEPER.format(name="first"))
    await until(machine, "dropped", running("first"))
    few = rules()
    begin = time.monotonic()
    for number in range(MANY):
        machine.write(f"p{number}.yaml", SLEEPER.format(name=f"p{number}"))
    pods = await until(machine, "200 dropped", running("first", *(f"p{number}" for number in range(MANY))))
    print(f"{MANY} pods Running after {time.monotonic() - begin:.1f} s")
    assert rules() == few
    given = addresses(pods)
    assert len(given) == len(set(given)) == 2 * (MANY + 1)
    assert len(bridge_ports()) == MANY + 1
    machine.podwire("down", "--timeout", "2")
    assert host() == before


def processes(marker: str) -> int:
    """How many programs of the pods run, by the words of their command line."""
    found = 0
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += path.read_bytes().replace(b"\0", b" ").endswith(f"{marker} ".encode())
        except OSError:
            continue
    return found


def kill_node(machine: Machine) -> None:
    """Kill -9 the node itself and wait until it is gone."""
    pid = int((machine.root / "run" / "node.lock").read_text().split()[0])
    fd = os.pidfd_open(pid)
    try:
        os.kill(pid, signal.SIGKILL)
        assert select.select([fd], [], [], 10)[0]
    finally:
        os.close(fd)


@pytest.mark.parametrize("seen", [1, 20, 45])
async def test_killed_while_50_come_up_no_pod_or_address_is_there_twice(machine: Machine, seen: int) -> None:
    before = host()
    machine.up()
    marker = f"sleep 7{os.getpid() % 1000:03}{seen:02}"
    names = [f"p{number}" for number in range(COMING_UP)]
    for name in names:
        machine.write(f"{name}.yaml", SLEEPER.format(name=name).replace("sleep 1000", marker))
    await until(machine, "some run", lambda pods: sum(running(name)(pods) for name in pods) >= seen)
    kill_node(machine)
    machine.up()
    pods = await until(machine, "all run after the kill", running(*names))
    given = addresses(pods)
    assert len(given) == len(set(given)) == 2 * COMING_UP
    assert leases(machine) == given
    assert len(bridge_ports()) == COMING_UP
    assert processes(marker) == COMING_UP
    machine.podwire("down", "--timeout", "2")
    assert processes(marker) == 0
    assert host() == before
    assert not machine.root.exists()


async def test_a_dropped_manifest_is_live_at_once(machine: Machine) -> None:
    machine.up()
    begin = time.monotonic()
    machine.write("a.yaml", SLEEPER.format(name="a"))
    pods = await until(machine, "dropped", running("a"))
    print(f"Running after {time.monotonic() - begin:.3f} s")
    assert len(addresses(pods)) == 2
