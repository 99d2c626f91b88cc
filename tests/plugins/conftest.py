from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from podwire.kernel.host import Kernel
from tests.plugins.helpers import Host


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    """The test's namespace as a node. For tests marked ``kernel``."""
    with Kernel.open() as kernel:
        node = Host(tmp_path, kernel)
        yield node
        node.remove_pods()
