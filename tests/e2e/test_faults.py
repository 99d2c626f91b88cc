"""A machine in trouble: the node stays, says what is wrong, and goes on when the trouble is over."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.helpers import SLEEPER, Machine, host, output
from tests.waiting import until

pytestmark = pytest.mark.kernel

PATIENCE = 30.0


@contextmanager
def disk(machine: Machine, options: str) -> Iterator[None]:
    """The machine's root on a file system of its own."""
    machine.root.mkdir()
    output("mount", "-t", "tmpfs", "-o", options, "tmpfs", str(machine.root))
    try:
        yield
    finally:
        machine.podwire("down", "--timeout", "2", status=None)
        output("umount", "-l", str(machine.root))


def running(machine: Machine) -> list[str]:
    items = json.loads(machine.ask("get", "pods", "-o", "json").stdout)["items"]
    return [pod["metadata"]["name"] for pod in items if pod["status"]["phase"] == "Running"]


def told(machine: Machine) -> str:
    return machine.ask("get", "events").stdout


def test_a_disk_that_is_too_small_for_the_pods_and_grows(machine: Machine) -> None:
    before = host()
    names = [f"p{number}" for number in range(12)]
    with disk(machine, "size=192k"):
        for name in names:
            machine.write(f"{name}.yaml", SLEEPER.format(name=name))
        machine.up()
        until(lambda: "No space left on device" in told(machine), "it is told", seconds=PATIENCE)
        output("mount", "-o", "remount,size=64m", str(machine.root))
        machine.wait_for(*(f"{name}=Running" for name in names))
        machine.podwire("down", "--timeout", "2")
        assert not list(machine.root.iterdir())
    assert host() == before


def test_on_a_full_disk_pods_end_and_are_removed(machine: Machine) -> None:
    before = host()
    with disk(machine, "size=8m"):
        for name in ("a", "b"):
            machine.write(f"{name}.yaml", SLEEPER.format(name=name))
        machine.up()
        machine.wait_for("a=Running", "b=Running")
        subprocess.run(["dd", "if=/dev/zero", f"of={machine.root}/ballast", "bs=4k"], capture_output=True)
        with pytest.raises(OSError, match="No space"):
            (machine.root / "more").write_bytes(b"x" * 4096)
        (machine.manifests / "a.yaml").unlink()
        until(lambda: running(machine) == ["b-n1"], "a is gone", seconds=PATIENCE)
        machine.podwire("down", "--timeout", "2")
        assert [path.name for path in machine.root.iterdir() if path.is_dir()] == []
    assert host() == before


def test_the_limit_of_open_files_is_raised_for_the_node_and_kept_for_programs(machine: Machine) -> None:
    names = [f"p{number}" for number in range(24)]
    for name in names:
        machine.write(f"{name}.yaml", SLEEPER.format(name=name))
    prefix = ["sh", "-c", 'ulimit -S -n 48; exec "$@"', "sh"]
    machine.podwire("up", "--detach", str(machine.manifests), "--node-name", "n1", prefix=prefix)
    machine.wait_for(*(f"{name}=Running" for name in names))
    assert machine.ask("exec", "p0", "--", "sh", "-c", "ulimit -n").stdout == "48\n"


def test_without_descriptors_the_node_says_so_and_stays(machine: Machine) -> None:
    before = host()
    for number in range(24):
        machine.write(f"{number}.yaml", SLEEPER.format(name=f"p{number}"))
    prefix = ["prlimit", "--nofile=48:48"]
    machine.podwire("up", "--detach", str(machine.manifests), "--node-name", "n1", prefix=prefix)
    log = machine.root / "lib" / "node.log"
    until(lambda: "Too many open files" in log.read_text(), "it is told", seconds=PATIENCE)
    os.kill(int((machine.root / "run" / "node.lock").read_text()), signal.SIGKILL)
    machine.podwire("down", "--timeout", "2")
    assert host() == before


def test_a_link_that_took_the_name_of_the_bridge_is_left_alone(machine: Machine) -> None:
    machine.write("a.yaml", SLEEPER.format(name="a"))
    machine.up()
    machine.wait_for("a=Running")
    output("ip", "link", "delete", "podwire0")
    output("ip", "link", "add", "podwire0", "type", "veth", "peer", "name", "theirs")
    said = machine.podwire("down", "--timeout", "2").stderr
    assert "podwire0 stays: it is not the bridge that this node made" in said
    assert {"podwire0", "theirs"} <= {link["ifname"] for link in json.loads(output("ip", "-j", "link"))}
    assert not machine.root.exists()


@pytest.mark.parametrize("resolver", ["absent", "dangling"])
def test_a_machine_without_a_resolv_conf(machine: Machine, tmp_path: Path, resolver: str) -> None:
    etc = tmp_path / "etc"
    subprocess.run(["cp", "-a", "/etc", str(etc)], check=True)
    (etc / "resolv.conf").unlink(missing_ok=True)
    if resolver == "dangling":
        (etc / "resolv.conf").symlink_to("/nowhere/stub-resolv.conf")
    output("mount", "--bind", str(etc), "/etc")
    try:
        machine.write("a.yaml", SLEEPER.format(name="a"))
        machine.up()
        machine.wait_for("a=Running")
        machine.podwire("down", "--timeout", "2")
    finally:
        output("umount", "-l", "/etc")
