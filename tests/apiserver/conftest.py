"""Servers for tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.apiserver.lab import Lab


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    """A whole server."""
    made = Lab(tmp_path)
    await made.start()
    yield made
    await made.close()


@pytest.fixture
async def bare(tmp_path: Path) -> AsyncIterator[Lab]:
    """A server without controllers, with the namespace ``default``."""
    made = Lab(tmp_path, controllers=False)
    await made.start()
    yield made
    await made.close()
