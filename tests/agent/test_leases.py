"""DHCP leases kept by the agent: got in its process, there after its restart, given back by a DEL."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from podwire.dhcp.packet import Kind
from podwire.dhcp.store import LeaseStore
from tests.agent import lab
from tests.agent.conftest import Pod, Start
from tests.agent.helpers import ROOT, Process
from tests.dhcp.helpers import Server, make_bridge

pytestmark = pytest.mark.kernel

CONFIG: dict[str, Any] = {
    "cniVersion": "1.1.0",
    "name": "net",
    "type": "bridge",
    "bridge": "dh0",
    "ipam": {"type": "dhcp"},
}


@pytest.fixture
def server() -> Iterator[Server]:
    make_bridge()
    with Server() as made:
        yield made


def test_a_killed_agent_s_leases_are_taken_up_by_the_next(
    process: Callable[..., Process], pod: Pod, server: Server, root: Path
) -> None:
    agent, netns = process(), pod("one")
    made = agent.add(CONFIG, "one", netns)
    assert made.exit == 0, made.body
    assert made.json["ips"][0]["address"] == "10.88.0.50/24"
    agent.kill()
    agent = process()
    server.wait_for(Kind.REQUEST, 2)  # confirmed
    assert server.count(Kind.DISCOVER) == 1
    again = {**CONFIG, "prevResult": made.json}
    checked = agent.add({**again, "ipam": {"type": "dhcp"}, "type": "dhcp"}, "one", netns)
    assert checked.json["ips"][0]["address"] == "10.88.0.50/24"
    assert agent.delete(again, "one", netns).exit == 0
    server.wait_for(Kind.RELEASE)
    assert agent.end() == 0
    store = LeaseStore(root / "lib" / "dhcp.sqlite")
    assert store.load() == ({}, [])
    store.close()


def test_the_namespace_is_the_one_that_the_caller_sees(start: Start, server: Server, tmp_path: Path) -> None:
    """The agent in a container of its own: the keeper's thread opens what the caller named, later too."""
    agent = start()
    work = tmp_path / "work.py"
    work.write_text(
        "import json, sys; from pathlib import Path\n"
        "from tests.agent import lab; from tests.agent.helpers import cni\n"
        "lab.run('mount', '--make-rprivate', '/')\n"
        f"lab.run('mount', '--bind', {str(agent.socket.parent)!r}, '/mnt')\n"
        "lab.run('mount', '-t', 'tmpfs', 'tmpfs', '/run')\n"
        "lab.run('ip', 'netns', 'add', 'secret')\n"
        "config = json.loads(sys.argv[1])\n"
        "path = Path('/mnt/agent.sock')\n"
        "made = cni(path, 'ADD', config, 'c', '/run/netns/secret')\n"
        "after = {**config, 'prevResult': made.json}\n"
        "check = cni(path, 'CHECK', after, 'c', '/run/netns/secret')\n"
        "ended = cni(path, 'DEL', after, 'c', '/run/netns/secret')\n"
        "print(json.dumps([made.json, check.body.decode(), check.exit, ended.exit]))\n"
    )
    done = subprocess.run(
        ["unshare", "-m", sys.executable, str(work), json.dumps(CONFIG)],
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    made, said, check, ended = json.loads(done.stdout)
    assert made.get("ips", made)[0]["address"] == "10.88.0.50/24"
    assert (check, ended) == (0, 0), said
    server.wait_for(Kind.RELEASE)
    assert lab.links().keys() == {"lo", "dh0"}
