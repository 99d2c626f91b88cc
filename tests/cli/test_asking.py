"""What a person asks a node with kubectl's habits: watches, logs of several, the node itself, no node."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from podwire.cli import nodelog
from tests.cli.helpers import SLEEPER, Machine, lines, output

TWO = """\
apiVersion: v1
kind: Pod
metadata: {name: two, labels: {app: two}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
    - {name: left, command: ["/bin/sh", "-c", "echo one; echo two; exec /bin/busybox sleep 1000"]}
    - {name: right, command: ["/bin/sh", "-c", "echo three; exec /bin/busybox sleep 1000"]}
"""


@contextmanager
def asking(machine: Machine, *arguments: str) -> Iterator[Iterator[str]]:
    """The lines of a command that goes on."""
    with machine.start(*arguments, stdout=subprocess.PIPE) as process:
        yield lines(process, 20)


def until(told: Iterator[str], *words: str) -> str:
    """The first line that holds all ``words``."""
    seen = []
    for line in told:
        seen.append(line)
        if all(word in line for word in words):
            return line
    raise AssertionError(f"{words} not in {seen}")


@pytest.mark.kernel
def test_watches_tell_what_comes_changes_and_goes(machine: Machine) -> None:
    machine.up()
    with (
        asking(machine, "get", "pods", "-w", "--output-watch-events") as pods,
        asking(machine, "get", "pods", "-w", "-o", "name") as names,
        asking(machine, "get", "events", "-w", "--no-headers") as events,
        asking(machine, "get", "nodes", "-w") as nodes,
    ):
        until(nodes, "n1", "Ready")
        machine.write("first.yaml", SLEEPER.format(name="first"))
        until(pods, "first-n1")
        until(names, "first-n1")
        machine.write("a.yaml", SLEEPER.format(name="a"))
        assert until(pods, "a-n1").startswith("ADDED ")
        assert until(pods, "a-n1", "Running").startswith("MODIFIED ")
        until(events, "Started", "pod/a-n1")
        machine.write("bad.yaml", "apiVersion: v1\nkind: Podd\n")
        until(events, "Warning", "node/n1", "bad.yaml:2")
        (machine.manifests / "a.yaml").unlink()
        assert until(pods, "a-n1", "Deleted").startswith("DELETED ")
        until(names, "pod/a-n1 deleted")
    assert "bad.yaml:2" in machine.ask("get", "events").stdout
    assert "bad.yaml:2" in machine.ask("describe", "node").stdout


@pytest.mark.kernel
def test_logs_of_several_containers(machine: Machine) -> None:
    machine.write("two.yaml", TWO)
    machine.write("a.yaml", SLEEPER.format(name="a"))
    machine.up()
    machine.wait_for("two=Running", "a=Running")
    both = machine.ask("logs", "two", "--all-containers", "--prefix").stdout
    assert both == ("[pod/two-n1/left] one\n[pod/two-n1/left] two\n[pod/two-n1/right] three\n")
    assert machine.ask("logs", "-l", "app=two", "--tail", "1", "--all-containers").stdout == "two\nthree\n"
    first = machine.ask("logs", "two")
    assert first.stdout == "one\ntwo\n"
    assert "container left of: left, right" in first.stderr
    assert machine.ask("logs", "two", "--since", "1h").stdout == "one\ntwo\n"
    assert "No pods found" in machine.ask("logs", "-l", "app=none").stderr
    with asking(machine, "logs", "-f", "-l", "app=two", "--all-containers", "--prefix") as followed:
        seen = {next(followed) for _ in range(3)}
    assert seen == set(both.splitlines())


@pytest.mark.kernel
def test_the_node_told(machine: Machine) -> None:
    machine.write("a.yaml", SLEEPER.format(name="a"))
    machine.up()
    machine.wait_for("a=Running")
    told = machine.ask("describe", "node").stdout
    for word in ("n1", "Ready", "Capacity:", "Pods: (1 in total)", "a-n1", "10.201.", "Events:"):
        assert word in told
    assert machine.ask("describe", "node", "n1").stdout.splitlines()[0] == told.splitlines()[0]
    assert 'node "n2" not found' in machine.ask("describe", "node", "n2", status=1).stderr
    assert "MissingClusterDNS" not in machine.ask("get", "events", "-A").stdout


@pytest.mark.kernel
def test_without_a_node_the_pods_of_an_earlier_one_are_told(machine: Machine) -> None:
    machine.write("a.yaml", SLEEPER.format(name="a"))
    machine.up()
    machine.wait_for("a=Running")
    node = os.pidfd_open(int((machine.root / "run" / "node.lock").read_text()))
    signal.pidfd_send_signal(node, signal.SIGKILL)
    wait_for_end(node)
    for command in (["get", "pods"], ["exec", "a", "--", "true"]):
        said = machine.podwire(*command, status=1).stderr
        assert "1 pod of an earlier node is still there" in said
        assert f"podwire up --root {machine.root}" in said
        assert f"podwire down --root {machine.root}" in said
    machine.up()
    assert "a-n1" in machine.ask("get", "pods").stdout


def wait_for_end(process: int) -> None:
    """Wait until the process behind a descriptor has ended, and close that."""
    try:
        assert select.select([process], [], [], 20)[0]
    finally:
        os.close(process)


def test_a_nodes_log_does_not_grow_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodelog, "LIMIT", 10)
    log = tmp_path / "node.log"
    assert not nodelog.set_aside(log)
    log.write_text("short")
    assert not nodelog.set_aside(log)
    log.write_text("long enough")
    assert nodelog.set_aside(log)
    assert (tmp_path / "node.log.1").read_text() == "long enough"
    assert not log.exists()


@pytest.mark.kernel
def test_json_of_a_watch_is_one_object_after_another(machine: Machine) -> None:
    machine.write("a.yaml", SLEEPER.format(name="a"))
    machine.up()
    machine.wait_for("a=Running")
    with machine.start("get", "pods", "-w", "-o", "json", stdout=subprocess.PIPE) as watch:
        text = ""
        for line in lines(watch, 20):
            text += line + "\n"
            if line == "}":
                break
    assert json.loads(text)["kind"] == "Pod"


@pytest.mark.kernel
def test_down_without_a_readable_record_says_what_stays(machine: Machine) -> None:
    machine.write("a.yaml", SLEEPER.format(name="a"))
    machine.up()
    machine.wait_for("a=Running")
    ledger = machine.root / "lib" / "host.json"
    whole = ledger.read_bytes()
    ledger.write_bytes(whole[:20])
    done = machine.podwire("down", "--timeout", "1", status=1)
    assert f"{ledger}: " in done.stderr
    assert "the bridge, sysctls and directories stay" in done.stderr
    assert "Everything" not in done.stdout
    assert "podwire0" in output("ip", "link")
    (machine.root / "lib").mkdir(parents=True, exist_ok=True)
    ledger.write_bytes(whole)
    assert "Everything is removed." in machine.podwire("down").stdout
    assert "podwire0" not in output("ip", "link")
