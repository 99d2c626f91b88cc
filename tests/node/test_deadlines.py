from __future__ import annotations

import pytest

from podwire.node.clock import VirtualClock
from podwire.node.deadlines import Deadlines
from podwire.runtime.api import SandboxConfig, SandboxMetadata
from podwire.runtime.errors import Code, RuntimeFault
from podwire.runtime.fake import FakeRuntime

CONFIG = SandboxConfig(SandboxMetadata("web", "uid", "default"), "web", "/logs")


async def test_a_runtime_that_hangs_is_an_error_that_names_what_was_waited_for() -> None:
    inner = FakeRuntime(VirtualClock())
    inner.hold("run_pod_sandbox")
    inner.hold("list_containers")
    limited = Deadlines(inner, answer=0.01, sandbox=0.02)
    with pytest.raises(RuntimeFault) as failed:
        await limited.run_pod_sandbox(CONFIG)
    assert failed.value.code is Code.DEADLINE_EXCEEDED
    assert str(failed.value) == "sandbox of pod default/web: the runtime did not answer within 0.02 s"
    with pytest.raises(RuntimeFault, match=r"list of containers: .* within 0\.01 s"):
        await limited.list_containers()


async def test_what_the_runtime_answers_passes_through() -> None:
    inner = FakeRuntime(VirtualClock())
    limited = Deadlines(inner)
    identity = await limited.run_pod_sandbox(CONFIG)
    assert (await limited.pod_sandbox_status(identity)).metadata == CONFIG.metadata
    inner.fail("stop_pod_sandbox", "no")
    with pytest.raises(RuntimeFault, match="no"):
        await limited.stop_pod_sandbox(identity)
