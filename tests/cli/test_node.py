"""A node's life as a person sees it: up, get, describe, logs, exec, down."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
from ipaddress import ip_interface
from pathlib import Path

import pytest
import yaml

from podwire.kernel.host import Kernel
from podwire.plugins import masquerade
from podwire.plugins.attachment import Identity
from tests.cli.helpers import SERVER, SLEEPER, Machine, host, lines, output

pytestmark = pytest.mark.kernel

BROKEN = """\
apiVersion: v1
kind: Pod
metadata: {name: bad}
spec:
  containers:
    - name: x
      comand: [a]
"""
JOB = """\
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  restartPolicy: Never
  containers:
    - {{name: c, command: ["/bin/sh", "-c", "exit {code}"]}}
"""


def fetch(address: str, port: int = 80) -> subprocess.CompletedProcess[str]:
    where = f"[{address}]" if ":" in address else address
    command = ["busybox", "timeout", "3", "busybox", "wget", "-qO-", f"http://{where}:{port}/hostname"]
    return subprocess.run(command, capture_output=True, text=True)


def test_from_manifest_to_answer_and_back_without_a_trace(machine: Machine) -> None:
    before = host()
    machine.write("web.yaml", SERVER.format(name="web", port=8080))
    machine.write("client.yaml", SLEEPER.format(name="client"))
    machine.up()
    machine.wait_for("web=Running", "client=Running")
    addresses = [entry["ip"] for entry in machine.pod("web")["status"]["podIPs"]]
    assert [":" in address for address in addresses] == [False, True]
    reached = [fetch(address) for address in addresses]
    assert [answer.stdout for answer in reached] == ["web-n1\n"] * 2, reached
    assert fetch("127.0.0.1", 8080).stdout == "web-n1\n"
    where = f"http://[{addresses[1]}]/hostname"
    inside = machine.ask("exec", "client", "--", "/bin/busybox", "wget", "-qO-", where)
    assert inside.stdout == "web-n1\n"
    machine.podwire("down", "--timeout", "2")
    assert host() == before
    assert not machine.root.exists()
    assert "Nothing to do" in machine.podwire("down").stdout


def test_what_is_asked_about_pods(machine: Machine) -> None:
    machine.write("a.yaml", SLEEPER.format(name="a"))
    machine.write("b.yaml", SLEEPER.format(name="b").replace("name: b\n", "name: b\n  namespace: other\n", 1))
    machine.write("bad.yaml", BROKEN)
    machine.up()
    machine.wait_for("a=Running", "b=Running")
    table = machine.ask("get", "pods").stdout.splitlines()
    assert re.fullmatch(r"NAME +READY +STATUS +RESTARTS +AGE", table[0])
    assert re.fullmatch(r"a-n1 +1/1 +Running +0 +\d+s", table[1])
    assert len(table) == 2
    assert machine.ask("get", "po", "-A", "-o", "name").stdout == "pod/a-n1\npod/b-n1\n"
    assert machine.ask("get", "pods", "-A", "-l", "app=b", "-o", "name").stdout == "pod/b-n1\n"
    listed = json.loads(machine.ask("get", "pods", "-A", "-o", "json").stdout)
    assert (listed["kind"], [pod["metadata"]["name"] for pod in listed["items"]]) == (
        "List",
        ["a-n1", "b-n1"],
    )
    one = yaml.safe_load(machine.ask("get", "pod/a", "-o", "yaml").stdout)
    assert (one["kind"], one["status"]["phase"]) == ("Pod", "Running")
    assert re.search(r"^n1 +Ready ", machine.ask("get", "nodes").stdout, re.MULTILINE)
    missing = machine.ask("get", "pod", "b", status=1).stderr
    assert 'pod "b" not found in namespace "default"' in missing
    assert "-n other" in missing
    told = machine.ask("describe", "pod", "a").stdout
    for line in (
        r"^Name: +a-n1$",
        r"^Status: +Running$",
        r"^  IP:  10\.201\.",
        r"^    State: +Running$",
        r"Started",
    ):
        assert re.search(line, told, re.MULTILINE), told
    events = machine.ask("get", "events", "-A").stdout
    assert f"{machine.manifests}/bad.yaml:7" in events
    assert "comand" in events


def test_logs(machine: Machine) -> None:
    program = "echo one; echo two; echo three >&2; exec /bin/busybox sleep 1000"
    machine.write(
        "a.yaml", SLEEPER.format(name="a").replace("echo hello from a; exec /bin/busybox sleep 1000", program)
    )
    machine.up()
    machine.wait_for("a=Running")
    with machine.start("logs", "-f", "a", stdout=subprocess.PIPE) as following:
        seen = []
        for line in lines(following, 10):
            seen.append(line)
            if len(seen) == 3:
                break
        following.kill()
    assert sorted(seen) == ["one", "three", "two"]
    assert len(machine.ask("logs", "a", "--tail", "1").stdout.splitlines()) == 1
    assert re.match(r"\d{4}-\d\d-\d\dT\S+ one\n", machine.ask("logs", "a", "--timestamps").stdout)
    assert 'container "x" is not in pod' in machine.ask("logs", "a", "-c", "x", status=1).stderr
    assert machine.ask("logs", "a", "-p", status=1).stderr.startswith("error: ")


def test_exec_passes_streams_and_status_on(machine: Machine) -> None:
    machine.write("a.yaml", SLEEPER.format(name="a"))
    machine.up()
    machine.wait_for("a=Running")
    done = machine.ask("exec", "a", "--", "/bin/sh", "-c", "echo out; echo err >&2; exit 7", status=7)
    assert (done.stdout, done.stderr) == ("out\n", "err\n")
    assert machine.podwire("exec", "-i", "a", "--", "cat", stdin="through\n").stdout == "through\n"
    assert machine.ask("exec", "a", "--", "/bin/sh", "-c", "kill -9 $$", status=137).returncode == 137
    assert "no-such-program" in machine.podwire("exec", "a", "--", "no-such-program", status=None).stderr
    assert machine.ask("exec", "a", "--", "hostname").stdout == "a-n1\n"


def test_exec_gives_a_terminal_of_this_size(machine: Machine) -> None:
    machine.write("a.yaml", SLEEPER.format(name="a"))
    machine.up()
    machine.wait_for("a=Running")
    leader, follower = pty.openpty()
    subprocess.run(["stty", "rows", "33", "columns", "99"], stdin=follower, check=True)
    command = [
        "exec",
        "-it",
        "a",
        "--",
        "/bin/sh",
        "-c",
        "stty size; echo ready; read x; stty size; echo got $x",
    ]
    with machine.start(*command, stdin=follower, stdout=follower, stderr=follower) as process:
        os.close(follower)
        said = b""
        while b"ready" not in said and select.select([leader], [], [], 10)[0]:
            said += os.read(leader, 1024)
        os.write(leader, b"word\r")
        while b"got word" not in said and select.select([leader], [], [], 10)[0]:
            said += os.read(leader, 1024)
        assert process.wait(10) == 0
    os.close(leader)
    assert b"33 99\r\n" in said
    assert b"got word\r\n" in said


def test_a_second_node_is_refused_and_names_the_first(machine: Machine) -> None:
    machine.up()
    pid = (machine.root / "run" / "node.lock").read_text().strip()
    for flags in ([], ["--detach"]):
        refused = machine.podwire("up", str(machine.manifests), *flags, status=1)
        assert f"process {pid}" in refused.stderr


def test_ctrl_c_leaves_the_pods_and_the_next_up_takes_them_over(machine: Machine) -> None:
    machine.write("a.yaml", SLEEPER.format(name="a"))
    command = ("up", str(machine.manifests), "--node-name", "n1")
    with machine.start(*command, stdout=subprocess.PIPE) as node:
        for line in lines(node, 20):
            if line.startswith("a-n1 1/1 Running"):
                break
        before = machine.pod("a")
        node.send_signal(signal.SIGINT)
        assert "podwire down" in "\n".join(lines(node, 20))
        assert node.wait(20) == 0
    address = before["status"]["podIP"]
    assert (
        subprocess.run(["busybox", "ping", "-c", "1", "-W", "2", address], capture_output=True).returncode
        == 0
    )
    machine.up()
    machine.wait_for("a=Running")
    after = machine.pod("a")
    for field in ("podIPs", "containerStatuses"):
        assert after["status"][field] == before["status"][field]


def test_down_works_from_the_records_of_a_killed_node(machine: Machine) -> None:
    before = host()
    for number in range(4):
        machine.write(f"{number}.yaml", SLEEPER.format(name=f"p{number}"))
    machine.up()
    machine.wait_for("p0=Running", "p1=Running", "p2=Running", "p3=Running")
    os.kill(int((machine.root / "run" / "node.lock").read_text()), signal.SIGKILL)
    machine.podwire("down", "--timeout", "2")
    assert host() == before
    assert not machine.root.exists()


def test_a_manifest_that_turned_bad_while_no_node_ran_keeps_its_pod(machine: Machine) -> None:
    machine.write("a.yaml", SLEEPER.format(name="a"))
    machine.up()
    machine.wait_for("a=Running")
    before = machine.pod("a")["status"]["containerStatuses"]
    os.kill(int((machine.root / "run" / "node.lock").read_text()), signal.SIGKILL)
    machine.write("a.yaml", BROKEN)
    machine.write("b.yaml", SLEEPER.format(name="b"))
    machine.up()
    machine.wait_for("a=Running", "b=Running")
    assert machine.pod("a")["status"]["containerStatuses"] == before
    told = machine.ask("get", "events").stdout
    assert f"{machine.manifests}/a.yaml:7" in told
    assert "the last good pod is kept" in told


def test_once_waits_for_the_pods_and_tells_by_its_status(machine: Machine) -> None:
    machine.write("a.yaml", SLEEPER.format(name="a"))
    machine.write("job.yaml", JOB.format(name="job", code=0))
    command = ("up", "--once", str(machine.manifests), "--node-name", "n1")
    table = machine.podwire(*command).stdout
    assert re.search(r"^a-n1 +1/1 +Running ", table, re.MULTILINE)
    assert re.search(r"^job-n1 +0/1 +Completed ", table, re.MULTILINE)
    machine.write("fails.yaml", JOB.format(name="fails", code=3))
    failed = machine.podwire(*command, status=1)
    assert "fails-n1" in failed.stderr
    (machine.manifests / "fails.yaml").unlink()
    machine.write("bad.yaml", BROKEN)
    broken = machine.podwire(*command, status=1)
    assert f"{machine.manifests}/bad.yaml:7" in broken.stderr


def test_a_range_or_bridge_that_is_taken_is_refused_before_anything_changes(machine: Machine) -> None:
    output("ip", "link", "add", "e0", "type", "veth", "peer", "name", "e1")
    output("ip", "link", "set", "e0", "up")
    output("ip", "route", "add", "10.201.4.0/24", "dev", "e0")
    output("ip", "address", "add", "10.9.0.1/24", "dev", "e0")
    before = host()
    up = ("up", "--detach", str(machine.manifests))
    refused = machine.podwire(*up, status=1).stderr
    assert "--pod-cidr 10.201.0.0/16 overlaps the route 10.201.4.0/24 on e0" in refused
    refused = machine.podwire(*up, "--pod-cidr", "10.9.0.0/16", status=1).stderr
    assert "--pod-cidr 10.9.0.0/16 overlaps the address 10.9.0.1/24 of e0" in refused
    output("ip", "link", "add", "taken0", "type", "bridge")
    before["links"] = host()["links"]
    refused = machine.podwire(*up, "--bridge", "taken0", "--pod-cidr", "10.8.0.0/16", status=1).stderr
    assert "--bridge taken0" in refused
    assert {**host(), "sysctls": before["sysctls"]} == before
    assert not machine.root.exists()


def test_f19_a_forward_chain_that_drops_is_told_and_left_alone(machine: Machine) -> None:
    chain = "chain ip filter FORWARD { type filter hook forward priority 0; policy drop; }"
    output("nft", f"add table ip filter; add {chain}")
    before = host()
    done = machine.podwire("up", "--detach", str(machine.manifests), "--node-name", "n1")
    assert "notice: chain FORWARD of nftables table ip filter drops what no rule of it accepts" in done.stderr
    assert "nft insert rule ip filter FORWARD oifname podwire0 accept" in done.stderr
    machine.podwire("down")
    assert host() == before


def test_other_pod_cidrs_wait_until_the_pods_are_gone(machine: Machine) -> None:
    machine.write("a.yaml", SLEEPER.format(name="a"))
    machine.up()
    machine.wait_for("a=Running")
    os.kill(int((machine.root / "run" / "node.lock").read_text()), signal.SIGKILL)
    up = ("up", "--detach", str(machine.manifests), "--pod-cidr", "10.77.0.0/16")
    refused = machine.podwire(*up, status=1).stderr
    assert "10.201.0.0/16,fd5a:201::/64" in refused
    machine.podwire("down", "--timeout", "2")
    machine.podwire(*up)


def test_without_ipv6_the_pods_have_ipv4(machine: Machine) -> None:
    Path("/proc/sys/net/ipv6/conf/all/disable_ipv6").write_text("1")
    machine.write("a.yaml", SLEEPER.format(name="a"))
    said = machine.podwire("up", "--detach", str(machine.manifests), "--node-name", "n1").stderr
    assert "IPv6 is switched off" in said
    machine.wait_for("a=Running")
    assert [":" in entry["ip"] for entry in machine.pod("a")["status"]["podIPs"]] == [False]


def test_what_is_not_ours_keeps_the_bridge(machine: Machine) -> None:
    machine.write("a.yaml", SLEEPER.format(name="a"))
    machine.up()
    machine.wait_for("a=Running")
    output("ip", "link", "add", "mine0", "type", "veth", "peer", "name", "mine1")
    output("ip", "link", "set", "mine0", "master", "podwire0")
    said = machine.podwire("down", "--timeout", "2", status=1).stderr
    assert "podwire0 stays" in said
    assert "mine0" in said
    assert "podwire0" in output("ip", "link")
    output("ip", "link", "delete", "mine0")
    assert "Everything is removed." in machine.podwire("down").stdout
    assert "podwire0" not in output("ip", "link")
    assert not machine.root.exists()


def test_what_another_runtime_attached_keeps_the_table(machine: Machine) -> None:
    machine.up()
    with Kernel.open() as kernel:
        other = Identity("other", "c1", "eth0")
        masquerade.add(kernel, other, [ip_interface("10.77.0.2/24")])
        said = machine.podwire("down", status=1).stderr
        assert "table inet podwire stays: still used by other/c1/eth0" in said
        assert "10.77.0.2" in output("nft", "list", "table", "inet", "podwire")
        masquerade.remove(kernel, other)
    assert "Everything is removed." in machine.podwire("down").stdout
    assert output("nft", "list", "ruleset") == ""
    assert not machine.root.exists()


def test_json_output_of_a_table_is_never_mixed_with_words(machine: Machine) -> None:
    machine.up()
    empty = machine.ask("get", "pods", "-o", "json")
    assert json.loads(empty.stdout)["items"] == []
    assert "No pods found" in machine.ask("get", "pods").stderr


def test_a_kill_while_pods_come_up_makes_nothing_twice(machine: Machine) -> None:
    before = host()
    count = 12
    for number in range(count):
        machine.write(f"{number}.yaml", SLEEPER.format(name=f"p{number}"))
    with machine.start("up", str(machine.manifests), "--node-name", "n1", stdout=subprocess.PIPE) as node:
        for line in lines(node, 20):
            if " Running " in line:
                break
        node.kill()
    machine.up()
    machine.wait_for(*(f"p{number}=Running" for number in range(count)))
    pods = json.loads(machine.ask("get", "pods", "-o", "json").stdout)["items"]
    addresses = [entry["ip"] for pod in pods for entry in pod["status"]["podIPs"]]
    assert len(set(addresses)) == len(addresses) == 2 * count
    kept = {path.name for path in (machine.root / "lib" / "networks" / "podwire").iterdir()}
    assert {name for name in kept if "." in name and not name.startswith("last")} == {
        address for address in addresses if "." in address
    }
    ports = json.loads(output("ip", "-j", "link", "show", "master", "podwire0"))
    assert len(ports) == count
    machine.podwire("down", "--timeout", "2")
    assert host() == before


def test_the_directory_is_live(machine: Machine) -> None:
    networks = machine.root / "lib" / "networks" / "podwire"
    with machine.start("up", str(machine.manifests), "--node-name", "n1", stdout=subprocess.PIPE) as node:
        said = lines(node, 30)

        def until(word: str) -> str:
            return next(line for line in said if word in line)

        machine.write("a.yaml", SLEEPER.format(name="a"))
        until("a-n1 1/1 Running")
        machine.write("a.yaml", SLEEPER.format(name="a").replace("hello", "goodbye"))
        until("a-n1 1/1 Running")
        assert machine.ask("logs", "a").stdout == "goodbye from a\n"
        machine.write("a.yaml", "half: [")
        assert f"{machine.manifests}/a.yaml:2" in until("problem:")
        assert machine.pod("a")["status"]["phase"] == "Running"
        (machine.manifests / "a.yaml").unlink()
        until("a-n1 removed")
        assert not [path.name for path in networks.iterdir() if path.name.startswith("10.")]
        machine.write("a.yaml", SLEEPER.format(name="a"))
        until("a-n1 1/1 Running")
        node.terminate()
        until("podwire down")


def test_the_live_table_of_a_terminal(machine: Machine) -> None:
    machine.write("a.yaml", SLEEPER.format(name="a"))
    machine.write("bad.yaml", BROKEN)
    leader, follower = pty.openpty()
    subprocess.run(["stty", "rows", "40", "columns", "160"], stdin=follower, check=True)
    with machine.start(
        "up", str(machine.manifests), "--node-name", "n1", stdin=follower, stdout=follower, stderr=follower
    ) as node:
        os.close(follower)
        said = b""
        while b"Running" not in said and select.select([leader], [], [], 20)[0]:
            said += os.read(leader, 65536)
        node.send_signal(signal.SIGINT)
        while b"podwire down" not in said and select.select([leader], [], [], 20)[0]:
            said += os.read(leader, 65536)
        assert node.wait(20) == 0
    os.close(leader)
    text = re.sub(rb"\x1b\[[0-9;?]*[a-zA-Z]", b"", said).decode()
    for word in (
        "node n1",
        "NAME",
        "a-n1",
        "1/1",
        "10.201.0.2,fd5a:201::2",
        "bad.yaml:7",
        "1 pod goes on running",
    ):
        assert word in text, text
