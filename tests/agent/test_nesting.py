"""An IPAM plugin that is not ours, and that has ours do its work through the shim."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.agent import lab
from tests.agent.conftest import Pod, Start
from tests.agent.helpers import Forked, cni, connect, read_answer, request, variables
from tests.agent.plugins import WATCHED, log, wait_for
from tests.agent.plugins import config as watched
from tests.agent.test_node import QUICK
from tests.shim.helpers import build
from tests.waiting import until

pytestmark = pytest.mark.kernel

SECONDS = 10.0
"""The time of each request: whoever waits for itself fails at its end."""


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("shim"), sanitize=False)


@pytest.fixture(params=["net", "other"])
def network(request: pytest.FixtureRequest) -> str:
    """The name of the network under which the wrapper asks: its own, or another one."""
    return str(request.param)


@pytest.fixture
def wrapper(program: Path, root: Path, tmp_path: Path, network: str) -> Path:
    """A directory with the plugin `wrapper`, which passes everything on to `host-local`, the shim."""
    home = tmp_path / "bin"
    home.mkdir()
    (home / "host-local").symlink_to(program)
    script = home / "wrapper"
    script.write_text(
        "#!/bin/sh\n"
        f"export PODWIRE_SOCKET={root}/run/agent.sock\n"
        f"""sed 's/"name":"net"/"name":"{network}"/' | {home}/host-local\n"""
    )
    script.chmod(0o755)
    return home


def config(data: Path, **more: Any) -> dict[str, Any]:
    made = lab.bridge(data, **more)
    made["ipam"]["type"] = "wrapper"
    return made


def ask(agent: Forked, wrapper: Path, command: str, conf: dict[str, Any], netns: str = "") -> Any:
    name = "" if command == "GC" else "one"
    answer = cni(agent.socket, command, conf, name, netns, timeout=SECONDS, CNI_PATH=str(wrapper))
    assert answer.exit == 0, answer.body
    return answer.json if command == "ADD" else None


def test_each_command_has_the_turn_of_the_one_that_it_serves(
    start: Start, pod: Pod, tmp_path: Path, wrapper: Path, network: str
) -> None:
    agent, netns = start(), pod("one")
    conf = config(tmp_path)
    made = ask(agent, wrapper, "ADD", conf, netns)
    held = lab.held(tmp_path, network)
    assert set(held) == {ip["address"].partition("/")[0] for ip in made["ips"]}
    ask(agent, wrapper, "CHECK", {**conf, "prevResult": made}, netns)
    ask(
        agent,
        wrapper,
        "GC",
        {**conf, "cni.dev/valid-attachments": [{"containerID": "one", "ifname": "eth0"}]},
    )
    assert lab.held(tmp_path, network) == held
    ask(agent, wrapper, "DEL", {**conf, "prevResult": made}, netns)
    assert (lab.held(tmp_path, network), agent.attachments()) == ({}, [])


def test_the_agents_own_del_has_it_too(
    start: Start, pod: Pod, tmp_path: Path, wrapper: Path, network: str
) -> None:
    agent = start(settings=QUICK)
    ask(agent, wrapper, "ADD", config(tmp_path), pod("one"))
    subprocess.run(["ip", "-n", "one", "address", "flush", "dev", "eth0"], check=True)
    agent.until(lambda found: "the address 10.77.0.2/24 is missing" in str(found["damaged"]))
    subprocess.run(["ip", "netns", "delete", "one"], check=True)
    until(lambda: agent.attachments() == [])
    assert lab.held(tmp_path, network) == {}


def test_what_serves_nothing_that_runs_waits_as_any_other(start: Start, tmp_path: Path) -> None:
    agent = start(plugins=[WATCHED])
    environ = variables("ADD", "one", "/run/x")
    with connect(agent.socket) as running:
        running.sendall(request("watched", environ, json.dumps(watched(tmp_path, wait="go")).encode()))
        wait_for(tmp_path, "ADD one begin")
        late = cni(
            agent.socket, "DEL", watched(tmp_path), "one", timeout=0.5, PODWIRE_WITHIN="0123456789abcdef" * 2
        )
        assert (late.exit, late.json["code"], log(tmp_path)) == (1, 11, ["ADD one begin"])
        (tmp_path / "go").touch()
        assert read_answer(running) is not None
