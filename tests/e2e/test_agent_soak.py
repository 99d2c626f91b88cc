"""A short version of `tests.e2e.agent_soak`."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e import agent_soak

pytestmark = pytest.mark.kernel


@pytest.fixture
def home() -> Iterator[Path]:
    """A short path: a socket's has 107 bytes at most."""
    made = Path(tempfile.mkdtemp(prefix="pw", dir="/run"))
    yield made
    shutil.rmtree(made)


def test_nothing_is_lost_when_the_agent_is_killed_at_random(home: Path) -> None:
    done = agent_soak.soak(home, pairs=24, callers=4, seed=4)
    assert done["done"] == 24
    assert done["kills"] >= 3
    assert done["retries"] >= 1
