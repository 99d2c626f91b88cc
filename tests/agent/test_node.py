"""The agent with the real plugins on a host, as `ip`, `nft` and connections see it."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from podwire.agent.reconcile import Reconciler
from podwire.agent.settings import Settings
from podwire.cli.__main__ import main
from tests.agent import lab
from tests.agent.conftest import Pod, Start
from tests.agent.helpers import ROOT, Forked, Process, ask, cni
from tests.plugins.helpers import links, settled
from tests.waiting import until

pytestmark = pytest.mark.kernel

QUICK = Settings(drain_seconds=5, repair_seconds=0.05, sweep_seconds=0.05)


def attach(agent: Forked | Process, data: Path, name: str, netns: str, port: int = 0) -> dict[str, Any]:
    """Attach as a runtime does a list of bridge and portmap; the result."""
    made = agent.add(lab.bridge(data), name, netns)
    assert made.exit == 0, made.body
    if not port:
        return dict(made.json)
    mapped = agent.add({**lab.portmap(port), "prevResult": made.json}, name, netns)
    assert mapped.exit == 0, mapped.body
    return dict(mapped.json)


def detach(agent: Forked | Process, data: Path, name: str, netns: str, port: int = 0) -> None:
    if port:
        assert agent.delete(lab.portmap(port), name, netns).exit == 0
    assert agent.delete(lab.bridge(data), name, netns).exit == 0


def test_a_chain_is_made_and_taken_away(start: Start, pod: Pod, tmp_path: Path) -> None:
    agent, netns = start(), pod("one")
    result = attach(agent, tmp_path, "one", netns, 8080)
    assert [interface.get("sandbox", "") for interface in result["interfaces"]] == ["", "", netns]
    inside = json.loads(lab.run("ip", "-n", "one", "-j", "address", "show", "dev", "eth0"))
    held = {f"{one['local']}/{one['prefixlen']}" for one in inside[0]["addr_info"]}
    assert {ip["address"] for ip in result["ips"]} <= held
    assert lab.held(tmp_path) == {ip["address"].partition("/")[0]: "one" for ip in result["ips"]}
    assert any("portmap_any4" in each and "8080" in each for each in lab.elements())
    check = {**lab.portmap(8080), "prevResult": result}
    assert cni(agent.socket, "CHECK", check, "one", netns).exit == 0
    detach(agent, tmp_path, "one", netns, 8080)
    assert (lab.held(tmp_path), lab.elements(), list(lab.links())) == ({}, [], ["lo", "pw0"])


def test_many_at_once_get_different_addresses(start: Start, pod: Pod, tmp_path: Path) -> None:
    agent = start()
    paths = {f"c{number}": pod(f"c{number}") for number in range(24)}
    with ThreadPoolExecutor(12) as pool:
        results = list(pool.map(lambda name: attach(agent, tmp_path, name, paths[name]), paths))
    addresses = [ip["address"] for result in results for ip in result["ips"]]
    assert len(set(addresses)) == 48
    assert len(agent.attachments()) == 24
    with ThreadPoolExecutor(12) as pool:
        list(pool.map(lambda name: detach(agent, tmp_path, name, paths[name]), paths))
    assert (lab.held(tmp_path), lab.elements(), agent.attachments()) == ({}, [], [])


def test_a_restart_interrupts_no_connection_and_changes_no_rule(
    process: Callable[..., Process], pod: Pod, tmp_path: Path
) -> None:
    settings = tmp_path / "settings.yaml"
    settings.write_text("repairSeconds: 0.05\nsweepSeconds: 0.05\n")
    agent, netns = process("--config", str(settings)), pod("one")
    result = attach(agent, tmp_path / "data", "one", netns, 8080)
    address = next(ip["address"].partition("/")[0] for ip in result["ips"] if "." in ip["address"])
    echo = subprocess.Popen(["ip", "netns", "exec", "one", "busybox", "nc", "-l", "-p", "80", "-e", "cat"])
    for name in links():  # the kernel tells of a carrier in its own time
        settled(name)
    monitor = subprocess.Popen(["nft", "monitor"], stdout=subprocess.PIPE, text=True)
    watch = subprocess.Popen(
        ["ip", "-o", "monitor", "link", "address", "route"], stdout=subprocess.PIPE, text=True
    )
    try:
        connection = connected(address)
        before = lab.everything(tmp_path / "data")
        exchanged(connection, b"before")
        agent.kill()
        exchanged(connection, b"without an agent")
        agent = process("--config", str(settings))
        exchanged(connection, b"with the next")
        until(lambda: lab.everything(tmp_path / "data") == before)
        assert agent.end() == 0
        agent = process("--config", str(settings), "-v")
        agent.until(lambda found: found["looks"] >= 5 and found["sweeps"] >= 5)
        exchanged(connection, b"after a quiet end")
        connection.close()
        assert agent.status()["mended"] == 0
        assert lab.everything(tmp_path / "data") == before
    finally:
        for each in (monitor, watch, echo):
            each.terminate()
    told = [monitor.communicate()[0], *filter(_is_news, watch.communicate()[0].splitlines())]
    echo.wait()
    assert told == [""]
    detach(agent, tmp_path / "data", "one", netns, 8080)


def _is_news(line: str) -> bool:
    """A bridge announces each port once more, without its qdisc, when its forward delay is over (15 s)."""
    return " qdisc " in line or not re.search(r" master pw0 state UP *\\", line)


def connected(address: str) -> socket.socket:
    end = time.monotonic() + 5
    while True:
        try:
            return socket.create_connection((address, 80), 5)
        except ConnectionRefusedError:
            assert time.monotonic() < end
            time.sleep(0.01)


def exchanged(connection: socket.socket, text: bytes) -> None:
    connection.sendall(text)
    assert connection.recv(100) == text


def test_what_others_flush_comes_back(start: Start, pod: Pod, tmp_path: Path) -> None:
    agent = start(settings=QUICK)
    for number, name in enumerate(("one", "two")):
        attach(agent, tmp_path, name, pod(name), 8080 + number)
    before = lab.everything(tmp_path)
    for harm in (
        ["nft", "flush", "ruleset"],
        ["ip", "link", "set", "pw0", "down"],
        ["ip", "address", "flush", "dev", "pw0", "scope", "global"],
        ["ip", "link", "delete", "pw0"],
    ):
        subprocess.run(harm, check=True)
        until(lambda: lab.everything(tmp_path) == before)
    assert agent.status()["mended"] > 0


def test_a_pod_s_firewall_and_limits_come_back_with_its_bridge(
    start: Start, pod: Pod, tmp_path: Path
) -> None:
    agent, netns = start(settings=QUICK), pod("one")
    result = attach(agent, tmp_path, "one", netns)
    chained(agent, result, netns, type="bandwidth", runtimeConfig={"bandwidth": RATES})
    chained(agent, result, netns, type="firewall")
    before, limits = lab.everything(tmp_path), qdiscs()
    assert len(limits) == 2
    (end,) = [name for name, what in lab.links().items() if what[0] == "veth"]
    lab.run("tc", "qdisc", "delete", "dev", end, "root")
    lab.run("nft", "flush", "ruleset")
    until(lambda: lab.everything(tmp_path) == before and qdiscs() == limits)


def qdiscs() -> list[str]:
    return sorted(line for line in lab.run("tc", "qdisc", "show").splitlines() if "tbf" in line.split())


def test_flushed_host_ports_come_back_behind_any_plugin(start: Start, pod: Pod, tmp_path: Path) -> None:
    agent, netns = start(settings=QUICK), pod("one")
    config = {**lab.bridge(tmp_path), "type": "ptp", "ipMasq": False}
    made = agent.add(config, "one", netns)
    assert made.exit == 0, made.body
    assert agent.add({**lab.portmap(8080), "prevResult": made.json}, "one", netns).exit == 0
    before = lab.everything(tmp_path)
    lab.run("nft", "flush", "ruleset")
    until(lambda: lab.everything(tmp_path) == before)


def chained(agent: Forked, made: dict[str, Any], netns: str, **options: Any) -> dict[str, Any]:
    """Attach "one" to a chained plugin of the network, and return the result."""
    config = {"cniVersion": "1.1.0", "name": "net", **options, "prevResult": made}
    answer = agent.add(config, "one", netns)
    assert answer.exit == 0, answer.body
    return dict(answer.json)


RATES = {f"{way}{what}": 10_000_000 for way in ("ingress", "egress") for what in ("Rate", "Burst")}


@pytest.mark.parametrize(
    "harm",
    [
        "ip route delete 10.77.0.2",
        "ip address flush dev {end} scope global",
        "tc qdisc delete dev {end} root",
        "nft delete element inet podwire firewall4 {{ 10.77.0.2 }}",
    ],
)
def test_what_no_cheap_look_sees_comes_back_too(start: Start, pod: Pod, tmp_path: Path, harm: str) -> None:
    agent, netns = start(settings=QUICK), pod("one")
    answer = agent.add({**lab.bridge(tmp_path), "type": "ptp"}, "one", netns)
    assert answer.exit == 0, answer.body
    limited = chained(agent, answer.json, netns, type="bandwidth", runtimeConfig={"bandwidth": RATES})
    chained(agent, limited, netns, type="firewall")

    def state() -> Any:
        return lab.everything(tmp_path), qdiscs(), lab.run("ip", "route", "show")

    before = state()
    (end,) = [name for name, what in lab.links().items() if what[0] == "veth"]
    mended = agent.status()["mended"]
    lab.run(*harm.format(end=end).split())
    agent.until(lambda found: found["mended"] > mended)
    until(lambda: state() == before)


@pytest.mark.parametrize("harm", ["-F FORWARD", "-F PODWIRE-FORWARD"])
def test_f19_what_others_flush_of_iptables_comes_back(
    start: Start, pod: Pod, tmp_path: Path, harm: str
) -> None:
    """No forwarding: a container engine has set the policy DROP, and the one rule past it is gone."""
    lab.run("iptables-nft", "-P", "FORWARD", "DROP")
    agent, netns = start(settings=QUICK), pod("one")
    chained(agent, attach(agent, tmp_path, "one", netns), netns, type="firewall")
    before = lab.run("iptables-nft", "-S")
    assert "-j PODWIRE-FORWARD" in before
    lab.run("iptables-nft", *harm.split())
    until(lambda: lab.run("iptables-nft", "-S") == before)


def test_the_guard_of_a_bridge_port_comes_back(start: Start, pod: Pod, tmp_path: Path) -> None:
    agent = start(settings=QUICK)
    config = {**lab.bridge(tmp_path), "macspoofchk": True}
    assert agent.add(config, "one", pod("one")).exit == 0
    lab.run("nft", "delete", "table", "bridge", "podwire")
    until(lambda: "ether saddr" in lab.run("nft", "list", "ruleset"))


@pytest.mark.parametrize(
    ("options", "harm", "undo", "why"),
    [
        ({"type": "loopback"}, "link set lo down", "link set lo up", "lo is not up"),
        (
            {"type": "macvlan", "master": "pw0", "ipMasq": False},
            "link set eth0 down",
            "link set eth0 up",
            "eth0: is down",
        ),
        (
            {"type": "tuning", "mtu": 1400},
            "link set eth0 mtu 1300",
            "link set eth0 mtu 1400",
            "mtu of eth0 is 1300, not 1400",
        ),
    ],
    ids=["loopback", "macvlan", "tuning"],
)
def test_what_is_wrong_inside_a_pod_is_told(
    start: Start,
    pod: Pod,
    root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: dict[str, Any],
    harm: str,
    undo: str,
    why: str,
) -> None:
    agent, netns = start(settings=QUICK), pod("one")
    if options["type"] == "macvlan":
        lab.run("ip", "link", "add", "pw0", "up", "type", "bridge")
        answer = agent.add({**lab.bridge(tmp_path), **options}, "one", netns)
        assert answer.exit == 0, answer.body
    else:
        made = attach(agent, tmp_path, "one", netns)
        chained(agent, made, netns, **options)
    agent.until(lambda found: found["damaged"] == [])
    lab.run("ip", "-n", "one", *harm.split())
    found = agent.until(lambda found: why in str(found["damaged"]))
    assert [each["attachment"].split()[0] for each in found["damaged"]][-1] == options["type"]
    monkeypatch.setenv("PODWIRE_ROOT", str(root))
    assert main(["agent", "status"]) == 0
    shown = re.findall(
        r"^damaged +(\w+) eth0 of container one on network net: .*", capsys.readouterr().out, re.M
    )
    assert shown[-1] == options["type"]
    lab.run("ip", "-n", "one", *undo.split())
    agent.until(lambda found: found["damaged"] == [])


def test_a_check_has_what_the_last_plugin_told(start: Start, pod: Pod, tmp_path: Path) -> None:
    agent, netns = start(settings=QUICK), pod("one")
    made = attach(agent, tmp_path, "one", netns)
    tuned = chained(agent, made, netns, type="tuning", mac="02:00:00:00:00:07")
    chained(agent, tuned, netns, type="loopback")  # something is to be found, so that a round of looks shows
    lab.run("ip", "-n", "one", "link", "set", "lo", "down")
    found = agent.until(lambda found: bool(found["damaged"]))
    assert ["lo is not up" in each["why"] for each in found["damaged"]] == [True]


def test_a_check_bothers_no_ipam_plugin_of_others(start: Start, pod: Pod, tmp_path: Path) -> None:
    agent, netns = start(settings=QUICK), pod("one")
    foreign = tmp_path / "foreign"
    foreign.write_text(
        f"#!/bin/sh\necho $CNI_COMMAND >> {tmp_path}/log\n"
        'echo \'{"cniVersion": "1.1.0", "ips": [{"address": "10.77.0.2/24"}]}\'\n'
    )
    foreign.chmod(0o755)
    config = {**lab.bridge(tmp_path), "ipMasq": False, "ipam": {"type": "foreign"}}
    assert agent.add(config, "one", netns, CNI_PATH=str(tmp_path)).exit == 0
    lab.run("ip", "-n", "one", "address", "flush", "dev", "eth0")
    agent.until(lambda found: "10.77.0.2/24 is missing" in str(found["damaged"]))
    assert (tmp_path / "log").read_text() == "ADD\n"


def test_what_a_boot_took_away_is_freed(start: Start, pod: Pod, tmp_path: Path) -> None:
    agent = start()
    attach(agent, tmp_path, "old", pod("old"))
    agent.kill()
    reboot(agent, "old")
    assert lab.held(tmp_path) != {}
    start(settings=QUICK).until(lambda found: found["attachments"] == 0)
    assert lab.held(tmp_path) == {}


@pytest.mark.parametrize("swept", [True, False])
def test_c18_a_container_that_starts_again_after_a_boot_gets_its_address(
    start: Start, pod: Pod, tmp_path: Path, swept: bool
) -> None:
    """Row C18: `10.4.0.4 has been allocated to default-X, duplicate allocation is not allowed`."""
    agent = start()
    attach(agent, tmp_path, "same", pod("same"))
    agent.kill()
    reboot(agent, "same")
    lab.run("ip", "netns", "delete", "same")
    netns = pod("same")
    # Whether the sweep is before, after or never: the ADD must succeed, and its address stay.
    agent = start(settings=QUICK, prepare=None if swept else _never_sweep)
    result = attach(agent, tmp_path, "same", netns)
    await_sweeps(agent)
    assert lab.held(tmp_path) == {ip["address"].partition("/")[0]: "same" for ip in result["ips"]}
    assert len(agent.attachments()) == 1


def await_sweeps(agent: Forked) -> None:
    """Wait for three whole looks for what nobody needs: what is found without namespace twice goes."""
    begun = agent.status()["sweeps"] + 1
    agent.until(lambda found: found["sweeps"] >= begun + 3)


def _never_sweep() -> None:
    pytest.MonkeyPatch().setattr(Reconciler, "sweep", lambda _self: None)


def reboot(agent: Forked, *names: str) -> None:
    """Make the records those of an earlier boot, of which no link is left."""
    import sqlite3

    with sqlite3.connect(agent.socket.parents[1] / "lib" / "agent.db") as connection:
        connection.execute("UPDATE attachment SET boot_id = 'an earlier one'")
    connection.close()
    for name in [name for name, what in lab.links().items() if what[0] == "veth"]:
        lab.run("ip", "link", "delete", name)
    assert names


def test_what_lost_its_namespace_without_a_del_is_freed(start: Start, pod: Pod, tmp_path: Path) -> None:
    """E05, E20: from the record alone; nobody else knows of the pod any more."""
    agent = start(settings=QUICK)
    attach(agent, tmp_path, "gone", pod("gone"), 8080)
    attach(agent, tmp_path, "stays", pod("stays"))
    lab.run("ip", "netns", "delete", "gone")
    agent.until(lambda found: found["attachments"] == 1)
    assert set(lab.held(tmp_path).values()) == {"stays"}
    assert not any("8080" in each for each in lab.elements())


def test_a_namespace_that_only_lost_its_name_keeps_its_network(
    start: Start, pod: Pod, tmp_path: Path
) -> None:
    agent = start(settings=QUICK)
    attach(agent, tmp_path, "hidden", pod("hidden"))
    holder = subprocess.Popen(["ip", "netns", "exec", "hidden", "sleep", "60"])
    try:
        until(lambda: Path(f"/proc/{holder.pid}/comm").read_text() == "sleep\n")
        lab.run("ip", "netns", "delete", "hidden")
        await_sweeps(agent)
        assert (len(agent.attachments()), set(lab.held(tmp_path).values())) == (1, {"hidden"})
    finally:
        holder.kill()
        holder.wait()


def test_gc_lists_and_then_removes(
    process: Callable[..., Process],
    pod: Pod,
    root: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    agent = process()
    attach(agent, tmp_path, "gone", pod("gone"), 8080)
    attach(agent, tmp_path, "stays", pod("stays"))
    lab.run("ip", "netns", "delete", "gone")

    def podwire(*words: str) -> tuple[int, str, str]:
        capfd.readouterr()
        return main([*words, "--root", str(root)]), *capfd.readouterr()

    status, listed, _ = podwire("gc", "--dry-run")
    assert status == 0
    assert [line.split()[1:4] + line.split()[-2:] for line in listed.splitlines()[1:]] == [
        ["gone", "eth0", "portmap", "would", "go"],
        ["gone", "eth0", "bridge", "would", "go"],
    ]
    assert len(agent.attachments()) == 3
    done = json.loads(podwire("gc", "-o", "json")[1])
    assert [(one["plugin"], one["error"]) for one in done] == [("portmap", ""), ("bridge", "")]
    assert [one["containerID"] for one in agent.attachments()] == ["stays"]
    assert podwire("gc")[2] == "nothing to remove\n"
    told = podwire("agent", "status")[1]
    assert f"agent, process {agent.pid}" in told
    assert "attachments  1\n" in told
    status, _, said = podwire("agent")
    assert status == 1
    assert said.startswith(f"error: an agent runs already, as process {agent.pid}\n")
    assert agent.end() == 0
    assert "no agent answers on" in podwire("agent", "status")[2]


def test_systemd_is_told_when_it_can_serve(process: Callable[..., Process], tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        path = tmp_path / "notify"
        manager.bind(str(path))
        manager.settimeout(10)
        agent = process(NOTIFY_SOCKET=str(path))
        assert manager.recv(1000).startswith(b"READY=1\nSTATUS=serving on ")
        os.kill(agent.pid, signal.SIGTERM)
        assert manager.recv(1000) == b"STOPPING=1"
        assert agent.wait() == 0


def test_a_setting_that_cannot_be_is_named(process: Callable[..., Process], tmp_path: Path) -> None:
    settings = tmp_path / "settings.yaml"
    settings.write_text("drainSeconds: -1\n")
    with pytest.raises(AssertionError, match=r"settings.yaml: Expected `float` > 0.* - at `\$.drainSeconds`"):
        process("--config", str(settings))


@pytest.mark.parametrize("harm", ["missing", "damaged", "full"])
def test_without_records_add_is_refused_and_del_works(
    start: Start, pod: Pod, root: Path, tmp_path: Path, harm: str
) -> None:
    agent, netns = start(), pod("one")
    attach(agent, tmp_path, "one", netns)
    store = root / "lib" / "agent.db"
    if harm == "missing":
        store.unlink()
    elif harm == "damaged":
        agent.end()
        store.write_bytes(b"x" * 10000)
        agent = start()
    else:
        agent.end()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", root / "lib"], check=True)
        agent = start()
        with pytest.raises(OSError, match="No space"), (root / "lib" / "filler").open("wb", 0) as filler:
            while True:
                filler.write(b"x" * 4096)
    try:
        clean = lab.everything(tmp_path)
        answer = agent.add(lab.bridge(tmp_path), "two", pod("two"))
        assert (answer.exit, answer.json["code"]) == (1, 5)
        assert f"records in {store}: " in answer.json["msg"]
        assert answer.json["details"] in {
            "restart podwire agent",
            "make room on the disk",
            "move it away and restart podwire agent; what it held is freed by the runtime's DEL or GC of the"
            " network",
        }
        assert lab.everything(tmp_path) == clean
        assert (ask(agent.socket, "/readyz").status, ask(agent.socket, "/healthz").status) == (
            503 if harm == "damaged" else 200,
            200,
        )
        detach(agent, tmp_path, "one", netns)
        assert lab.held(tmp_path) == {}
    finally:
        agent.kill()
        if harm == "full":
            subprocess.run(["umount", root / "lib"], check=True)


def test_a_namespace_is_found_where_its_caller_sees_it(start: Start, tmp_path: Path) -> None:
    """The agent in a container: the caller's mount namespace, and its symbolic links, are not the agent's."""
    agent = start()
    work = tmp_path / "work.py"
    work.write_text(
        "import json, subprocess, sys; from pathlib import Path\n"
        "from tests.agent import lab; from tests.agent.helpers import cni\n"
        "path, data = Path(sys.argv[1]), Path(sys.argv[2])\n"
        "lab.run('mount', '--make-rprivate', '/')\n"
        f"lab.run('mount', '--bind', {str(agent.socket.parent)!r}, '/mnt')\n"
        "lab.run('mount', '-t', 'tmpfs', 'tmpfs', '/run')\n"
        "Path('/run/link').symlink_to('/run/netns')\n"
        "lab.run('ip', 'netns', 'add', 'secret')\n"
        "netns = '/run/link/secret'\n"
        "def call(command, **more):\n"
        "    return cni(path, command, {**lab.bridge(data), **more}, 'c', netns)\n"
        "made = call('ADD')\n"
        "inside = json.loads(lab.run('ip', '-n', 'secret', '-j', 'address', 'show', 'dev', 'eth0'))\n"
        "own = cni(path, 'ADD', lab.bridge(data), 'd', '/run/link/nothing')\n"
        "check = call('CHECK', prevResult=made.json).exit\n"
        "ended = call('DEL').exit\n"
        "left = len(json.loads(lab.run('ip', '-n', 'secret', '-j', 'link')))\n"
        "print(json.dumps([made.json, inside, own.json, check, ended, left]))\n"
    )
    done = subprocess.run(
        ["unshare", "-m", sys.executable, str(work), "/mnt/agent.sock", str(tmp_path / "data")],
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    made, inside, missing, check, ended, left = json.loads(done.stdout)
    assert made["interfaces"][2]["sandbox"] == "/run/link/secret"
    held = {f"{one['local']}/{one['prefixlen']}" for one in inside[0]["addr_info"]}
    assert {ip["address"] for ip in made["ips"]} <= held
    assert (missing["code"], "/run/link/nothing" in missing["msg"]) == (8, True)
    assert (check, ended, left) == (0, 0, 1)
    assert not Path("/run/netns/secret").exists()


def test_the_host_s_own_namespace_is_refused_also_from_another_mount_namespace(
    start: Start, tmp_path: Path
) -> None:
    agent = start()
    code = (
        "from pathlib import Path; from tests.agent import lab; from tests.agent.helpers import cni\n"
        "lab.run('mount', '--make-rprivate', '/')\n"
        f"lab.run('mount', '--bind', {str(agent.socket.parent)!r}, '/mnt')\n"
        "lab.run('mount', '-t', 'tmpfs', 'tmpfs', '/run')\n"
        "Path('/run/host').touch(); lab.run('mount', '--bind', '/proc/self/ns/net', '/run/host')\n"
        f"config = lab.bridge(Path({str(tmp_path)!r}))\n"
        "print(cni(Path('/mnt/agent.sock'), 'ADD', config, 'c', '/run/host').json)\n"
    )
    done = subprocess.run(
        ["unshare", "-m", sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "'code': 8" in done.stdout
    assert "should not be the same" in done.stdout


def test_dhcp_leases_are_kept_by_the_agent(start: Start, root: Path) -> None:
    agent = start()
    config = {"cniVersion": "1.1.0", "name": "net", "type": "dhcp", "ipam": {"type": "dhcp"}}
    answer = cni(agent.socket, "STATUS", config, "")
    assert answer.exit == 0, answer.body
    assert (root / "lib" / "dhcp.sqlite").exists()
