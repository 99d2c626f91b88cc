"""Each test gets a runtime of its own, and the machine must be as before when it has ended."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from podwire.runtime.embedded import EmbeddedRuntime
from tests.runtime import helpers


@pytest.fixture
def places(tmp_path: Path) -> helpers.Places:
    return helpers.Places(tmp_path, helpers.FakeCni())


@pytest.fixture
async def runtime(places: helpers.Places) -> AsyncIterator[EmbeddedRuntime]:
    """A runtime with a fake network. After the test nothing of it may be left."""
    etc = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in map(Path, _ETC) if path.exists()}
    mounts, fds = helpers.mounts(), len(helpers.fds())
    made = places.runtime()
    await made.open()
    yield made
    sandboxes = [sandbox.id for sandbox in await made.list_pod_sandbox()]
    processes = helpers.processes_of(sandboxes)
    places.cni.delete_error = None
    for sandbox in sandboxes:
        await made.remove_pod_sandbox(sandbox)
    await made.close()
    # A supervisor whose spawner was killed is init's to reap.
    await helpers.until("no process is left", lambda: not any(map(helpers.alive, processes)))
    assert helpers.processes_of(sandboxes) == {}
    assert helpers.mounts() == mounts
    assert len(helpers.fds()) == fds, helpers.fds()
    assert not places.root.exists() and not places.run_dir.exists(), list(places.base.rglob("*"))
    assert places.cni.attached == set()
    assert {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in etc} == etc
    assert helpers.zombies_under(os.getpid()) == []


_ETC = ("/etc/hosts", "/etc/resolv.conf", "/etc/hostname", "/etc/passwd")
