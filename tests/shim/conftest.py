"""Every test of the shim runs on it as it is shipped, and on one built with sanitizers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.shim.helpers import Agent, Shim, build


@pytest.fixture(scope="session", params=["shipped", "sanitized"])
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program."""
    return build(tmp_path_factory.mktemp(request.param), sanitize=request.param == "sanitized")


@pytest.fixture
def agent(tmp_path: Path) -> Agent:
    """An agent that is not started."""
    return Agent(tmp_path / "agent.sock")


@pytest.fixture
def shim(program: Path, tmp_path: Path, agent: Agent) -> Shim:
    """The program, told of that agent's socket."""
    return Shim(program, tmp_path, agent.path)
