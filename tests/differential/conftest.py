from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import etc
from tests.differential.harness import Difference, World, compare


@pytest.fixture
def twins(tmp_path: Path) -> Callable[..., None]:
    """`compare` in the test's own directory. For tests marked ``kernel``."""

    def both(scenario: Callable[[World], None], *declared: Difference, **options: Any) -> None:
        compare(scenario, tmp_path, *declared, **options)

    return both


@pytest.fixture
def own_etc(tmp_path: Path) -> Iterator[Path]:
    """``/etc``, to write in. For tests marked ``kernel``."""
    with etc.over(tmp_path) as place:
        yield place
