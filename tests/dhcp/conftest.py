from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from podwire.dhcp.records import Wish
from tests.dhcp import helpers


@pytest.fixture
def pod() -> Iterator[Wish]:
    """The bridge, and the pod "pod" on it. For tests marked ``kernel``."""
    helpers.make_bridge()
    yield helpers.make_pod()
    names = [one["name"] for one in helpers.ip("netns", "list")]
    for name in names:
        subprocess.run(["ip", "netns", "delete", name], check=False)


@pytest.fixture
def clock() -> helpers.Clock:
    return helpers.Clock()
