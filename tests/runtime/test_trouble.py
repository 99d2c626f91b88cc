"""The machine has no room or no descriptors: what runs goes on running."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import NoReturn

import pytest

from podwire.runtime import atomic, contained, shim
from podwire.runtime.api import ContainerState, SandboxState
from podwire.runtime.embedded import EmbeddedRuntime
from podwire.runtime.errors import Code, RuntimeFault
from tests.runtime.helpers import Places, shell, started


def test_a_supervisor_that_cannot_write_its_log_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/full", "w", buffering=1) as full:  # noqa: PTH123
        monkeypatch.setattr("sys.stderr", full)
        contained.complain("no room")
        monkeypatch.undo()
        with pytest.raises(OSError, match="No space"):
            full.flush()
        os.dup2(os.open(os.devnull, os.O_WRONLY), full.fileno())


@pytest.mark.kernel
@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
async def test_without_descriptors_nothing_is_taken_for_dead(
    places: Places, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    runtime = places.runtime()
    sandbox = await runtime.run_pod_sandbox(places.own_network())
    container = await started(runtime, sandbox, shell("sleep 60"))
    pid = (await runtime.container_status(container)).pid
    await runtime.close()

    def refuse(_: Path) -> NoReturn:
        raise OSError(number, os.strerror(number))

    second = places.runtime()
    with monkeypatch.context() as patch:
        patch.setattr(shim, "connect", refuse)
        with pytest.raises(RuntimeFault) as caught:
            await second.open()
        assert caught.value.code is Code.UNAVAILABLE
        assert os.strerror(number) in str(caught.value)
    await second.close()
    third = places.runtime()
    status = await third.container_status(container)
    assert (status.state, status.pid) == (ContainerState.RUNNING, pid)
    await third.remove_pod_sandbox(sandbox)
    await third.close()


@pytest.mark.kernel
async def test_on_a_full_disk_a_sandbox_is_stopped_and_removed(
    runtime: EmbeddedRuntime, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = await runtime.run_pod_sandbox(places.own_network())
    await started(runtime, sandbox, shell("sleep 60"))

    def refuse(path: str, *_: object, **__: object) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    monkeypatch.setattr(atomic, "write", refuse)
    await runtime.stop_pod_sandbox(sandbox)
    assert (await runtime.pod_sandbox_status(sandbox)).state is SandboxState.NOTREADY
    assert places.cni.attached == set()
    with pytest.raises(RuntimeFault, match="No space left"):
        await runtime.run_pod_sandbox(places.own_network("other"))
    assert places.cni.attached == set()
    await runtime.remove_pod_sandbox(sandbox)
    assert not list(places.root.glob("sandboxes/*"))
