from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from podwire.apiserver.patch.merge import merge
from podwire.kube.objects import Pod, PodCondition, PodIP, PodStatus
from podwire.kube.printing import to_builtins
from podwire.node.statuspatch import status_patch
from tests.node.helpers import pod

conditions = st.lists(
    st.builds(
        PodCondition,
        type=st.sampled_from(("Ready", "Initialized")),
        status=st.sampled_from(("True", "False")),
    ),
    max_size=2,
    unique_by=lambda condition: condition.type,
)
statuses = st.builds(
    PodStatus,
    phase=st.sampled_from(("Pending", "Running", "Succeeded")),
    message=st.sampled_from(("", "words")),
    pod_ip=st.sampled_from(("", "10.0.0.1")),
    pod_ips=st.lists(st.builds(PodIP, ip=st.sampled_from(("10.0.0.1", "fd00::1"))), max_size=2),
    conditions=conditions,
)


def there(status: PodStatus, version: str = "7") -> Pod:
    made = pod()
    return replace(made, status=status, metadata=replace(made.metadata, resource_version=version))


def patched(before: Pod, wanted: PodStatus) -> dict[str, Any]:
    """The status that a server has after the patch."""
    patch = status_patch(before, wanted)
    status = to_builtins(before.status)
    return status if patch is None else merge(status, patch["status"])


@given(statuses, statuses)
def test_the_patch_leads_to_what_is_wanted_and_a_second_one_has_nothing_to_do(
    before: PodStatus, wanted: PodStatus
) -> None:
    other = PodCondition(type="example.org/gate", status="True")
    server = there(replace(before, conditions=[*before.conditions, other], nominated_node_name="n"))
    after = msgspec.convert(patched(server, wanted), PodStatus)
    kept = before.phase == "Succeeded"
    assert after.phase == (before.phase if kept else wanted.phase)
    assert (after.message, after.pod_ip, after.pod_ips) == (wanted.message, wanted.pod_ip, wanted.pod_ips)
    assert after.nominated_node_name == "n", "a field of others was touched"
    ours = {c.type: c.status for c in after.conditions}
    assert ours.pop("example.org/gate") == "True"
    assert {c.type: c.status for c in wanted.conditions}.items() <= ours.items()
    assert status_patch(replace(server, status=after), wanted) is None


def test_only_what_changed_is_sent_with_the_uid() -> None:
    before = there(PodStatus(phase="Pending", pod_ip="10.0.0.1"))
    patch = status_patch(before, PodStatus(phase="Running", pod_ip="10.0.0.1"))
    assert patch == {"metadata": {"uid": "uid-web"}, "status": {"phase": "Running"}}


def test_a_patch_of_conditions_holds_for_one_version_only() -> None:
    patch = status_patch(
        there(PodStatus()), PodStatus(conditions=[PodCondition(type="Ready", status="True")])
    )
    assert patch is not None and patch["metadata"] == {"uid": "uid-web", "resourceVersion": "7"}
