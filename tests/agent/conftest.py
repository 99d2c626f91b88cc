from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.helpers import Forked, Process, Running

Start = Callable[..., Forked]
Pod = Callable[[str], str]


@pytest.fixture
def root() -> Iterator[Path]:
    """A short directory: a socket's path has 107 bytes at most."""
    home = Path(tempfile.mkdtemp(prefix="pw", dir="/run"))
    yield home / "agent"
    shutil.rmtree(home)


@pytest.fixture
def running() -> Iterator[list[Running]]:
    """Agents that are killed when the test is over."""
    agents: list[Running] = []
    yield agents
    for each in agents:
        each.kill()


@pytest.fixture
def start(root: Path, running: list[Running]) -> Start:
    """Start an agent with plugins of the test's own (`Forked`)."""

    def one(**options: Any) -> Forked:
        agent = Forked(root, **options)
        running.append(agent)
        return agent.started()

    return one


@pytest.fixture
def process(root: Path, running: list[Running]) -> Callable[..., Process]:
    """Start ``podwire agent``."""

    def one(*arguments: str, **environ: str) -> Process:
        agent = Process(root, *arguments, **environ)
        running.append(agent)
        return agent.started()

    return one


@pytest.fixture
def pod() -> Iterator[Pod]:
    """Make a network namespace and return its path."""
    made: list[str] = []

    def one(name: str) -> str:
        subprocess.run(["ip", "netns", "add", name], check=True)
        made.append(name)
        return f"/run/netns/{name}"

    yield one
    for name in made:
        subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)
