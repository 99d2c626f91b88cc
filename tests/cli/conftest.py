"""Fixtures of the command's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.helpers import Machine


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """A machine; whatever node is on it at the end of the test is taken down."""
    found = Machine(tmp_path)
    yield found
    found.podwire("down", "--timeout", "2", status=None)
