"""kill -9 before every step of ADD and DEL: the next agent leaves nothing of it, and touches nothing else.

The state after a step is that before the next one, so dying after the last is the only other case.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.agent import lab
from tests.agent.conftest import Pod, Start
from tests.agent.deaths import Death
from tests.agent.helpers import Answer, Forked, cni, exchange, request, variables

pytestmark = pytest.mark.kernel


def ask(agent: Forked, command: str, config: dict[str, Any], container: str, netns: str) -> Answer | None:
    environ = variables(command, container, netns)
    try:
        return exchange(agent.socket, request(config["type"], environ, json.dumps(config).encode()))
    except ConnectionError:
        return None


def reached(path: Path) -> int:
    return int(path.read_text().split()[0])


def counted(path: Path) -> str:
    return path.read_text().partition(" ")[2]


@pytest.mark.parametrize("which", ["bridge", "portmap"])
def test_an_add_that_is_killed_is_undone(start: Start, pod: Pod, tmp_path: Path, which: str) -> None:
    data, steps = tmp_path / "data", tmp_path / "steps"
    bridge, ports, other = lab.bridge(data), lab.portmap(8080), lab.portmap(8081)
    agent = start(prepare=Death(1, steps).arm)
    neighbour, netns = pod("neighbour"), pod("one")
    kept = agent.add(bridge, "neighbour", neighbour)
    assert agent.add({**other, "prevResult": kept.json}, "neighbour", neighbour).exit == 0
    config = bridge
    if which == "portmap":
        made = agent.add(bridge, "one", netns)
        config = {**ports, "prevResult": made.json}
    clean, records = lab.everything(data), agent.attachments()
    (tmp_path / "armed").touch()
    died: set[str] = set()
    for step in range(2, 100):
        answer = ask(agent, "ADD", config, "one", netns)
        if reached(steps) < step - 1:
            assert answer is not None
            assert answer.exit == 0
            break
        assert agent.wait() == -9
        died.add(counted(steps))
        agent = start(prepare=Death(step, steps).arm)
        if counted(steps) == "Client.send":
            # It was done and written down, and its caller heard nothing: a runtime runs DEL.
            (tmp_path / "armed").unlink()
            assert agent.delete(config, "one", netns).exit == 0
            (tmp_path / "armed").touch()
        assert lab.everything(data) == clean, counted(steps)
        assert agent.attachments() == records
    else:
        pytest.fail("it never succeeded")
    assert {"Records.begin", "Records.complete", "Client.send", "Nft.write"} <= died
    assert which != "bridge" or {"Leases.reserve", "NetlinkSocket.send"} <= died


def test_a_del_that_is_killed_can_be_repeated(start: Start, pod: Pod, tmp_path: Path) -> None:
    data, steps = tmp_path / "data", tmp_path / "steps"
    bridge = lab.bridge(data)
    agent = start(prepare=Death(1, steps).arm)
    neighbour, netns = pod("neighbour"), pod("one")
    assert agent.add(bridge, "neighbour", neighbour).exit == 0
    clean, records = lab.everything(data), agent.attachments()
    died: set[str] = set()
    for step in range(2, 100):
        assert agent.add(bridge, "one", netns).exit == 0
        (tmp_path / "armed").touch()
        answer = ask(agent, "DEL", bridge, "one", netns)
        (tmp_path / "armed").unlink()
        if reached(steps) < step - 1:
            assert answer is not None
            assert answer.exit == 0
            break
        assert agent.wait() == -9
        died.add(counted(steps))
        agent = start(prepare=Death(step, steps).arm)
        assert agent.delete(bridge, "one", netns).exit == 0
        assert lab.everything(data) == clean, counted(steps)
        assert agent.attachments() == records
    assert {"LinkRemover.remove", "Leases.release", "Records.remove", "Client.send"} <= died


def test_an_add_whose_answer_was_given_stands(start: Start, pod: Pod, tmp_path: Path) -> None:
    data, steps = tmp_path / "data", tmp_path / "steps"
    netns = pod("one")
    agent = start()
    assert agent.add(lab.bridge(data), "one", netns).exit == 0
    assert agent.delete(lab.bridge(data), "one", netns).exit == 0
    (tmp_path / "armed").touch()
    agent.end()
    agent = start(prepare=Death(10**6, steps).arm)
    assert agent.add(lab.bridge(data), "one", netns).exit == 0
    last = reached(steps)
    assert agent.delete(lab.bridge(data), "one", netns).exit == 0
    agent.end()
    agent = start(prepare=Death(last, steps, after=True).arm)
    answer = ask(agent, "ADD", lab.bridge(data), "one", netns)
    assert answer is not None
    assert (agent.wait(), answer.exit, counted(steps)) == (-9, 0, "Client.send")
    before = lab.everything(data)
    agent = start()
    assert [one["result"] for one in agent.attachments()] == [answer.json]
    assert lab.everything(data) == before
    check = {**lab.bridge(data), "prevResult": answer.json}
    assert cni(agent.socket, "CHECK", check, "one", netns).exit == 0
