"""Mirror pods (kubelet.md section 3, H16) on an embedded API server."""

from __future__ import annotations

from pathlib import Path

from podwire.kube.defaults import CONFIG_HASH, CONFIG_MIRROR
from podwire.kube.resource import NODES, PODS
from podwire.node.clock import SystemClock
from podwire.runtime.fake import FakeRuntime, Program
from tests.node.helpers import container
from tests.node.member import RAW_PODS, Member, Object, api_pod, cluster, given, member, static


def uid(pod: Object) -> str:
    return str(pod.get("metadata", {}).get("uid", ""))


async def mirrored(m: Member, name: str = "web-node") -> Object:
    """The mirror pod once it shows the pod Running."""
    return await m.check(lambda p: p["status"].get("phase") == "Running", name)


async def test_a_static_pod_has_a_mirror_with_its_status(tmp_path: Path) -> None:
    async with cluster() as made, member(tmp_path, made) as m:
        pod = static()
        m.mux.merge(given(pod))
        mirror = await mirrored(m)
        node = made.object("nodes", "node", "")
    assert mirror["metadata"]["annotations"][CONFIG_MIRROR] == pod.metadata.annotations[CONFIG_HASH]
    assert mirror["metadata"]["ownerReferences"] == [
        {"apiVersion": "v1", "kind": "Node", "name": "node", "uid": uid(node or {}), "controller": True}
    ]
    assert uid(mirror) != pod.metadata.uid
    assert mirror["status"]["podIP"] == "10.88.0.1"
    assert m.runtime.count("run_pod_sandbox") == 1, "the mirror pod was run as well"


async def test_h16_a_mirror_that_is_deleted_comes_back_and_the_containers_are_not_touched(
    tmp_path: Path,
) -> None:
    """H16: with a grace period it would hang with its deletionTimestamp; it is forced out and made again."""
    async with cluster() as made, member(tmp_path, made) as m:
        m.mux.merge(given(static()))
        for grace in (30, 0, None):
            before = await mirrored(m)
            await m.client.delete(PODS, "web-node", "default", grace=grace)
            await m.check(lambda p, old=before: uid(p) != uid(old), "web-node")  # type: ignore[misc]
        after = await mirrored(m)
        assert "deletionTimestamp" not in after["metadata"]
        assert m.runtime.count("run_pod_sandbox") == 1
        assert m.runtime.count("stop_container") == m.runtime.count("stop_pod_sandbox") == 0


async def test_h16_a_mirror_comes_back_also_when_the_static_pod_has_ended(tmp_path: Path) -> None:
    async with cluster() as made, member(tmp_path, made) as m:
        m.runtime.programs["main"] = Program(ends=[(0.01, 0)])
        m.mux.merge(given(static("job", restartPolicy="Never")))
        before = await m.check(lambda p: p["status"]["phase"] == "Succeeded", "job-node")
        await m.client.delete(PODS, "job-node", "default", grace=30)
        after = await m.check(
            lambda p: uid(p) != uid(before) and p["status"]["phase"] == "Succeeded", "job-node"
        )
        assert after["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 0


async def test_a_changed_manifest_makes_the_mirror_again(tmp_path: Path) -> None:
    async with cluster() as made, member(tmp_path, made) as m:
        m.mux.merge(given(static()))
        before = await mirrored(m)
        changed = static(containers=[container("main", args=["x"])])
        m.mux.merge(given(changed))
        after = await m.check(lambda p: uid(p) != uid(before), "web-node")
        assert after["metadata"]["annotations"][CONFIG_MIRROR] == changed.metadata.uid
        assert after["spec"]["containers"][0]["args"] == ["x"]
        await mirrored(m)


async def test_a_changed_manifest_with_a_fixed_uid_too(tmp_path: Path) -> None:
    """The hash of such a pod is its UID: it stays, and with it the mirror pod, as upstream."""
    async with cluster() as made, member(tmp_path, made) as m:
        m.mux.merge(given(static(metadata={"uid": "fixed"})))
        before = await mirrored(m)
        m.mux.merge(given(static(metadata={"uid": "fixed"}, containers=[container("main", args=["x"])])))
        await m.until(lambda: m.runtime.count("start_container") == 2)
        assert uid(made.pod("web-node")) == uid(before)


async def test_a_mirror_of_another_hash_is_made_again_without_touching_the_containers(tmp_path: Path) -> None:
    async with cluster() as made, member(tmp_path, made) as m:
        m.mux.merge(given(static()))
        before = await mirrored(m)
        await m.client.patch(PODS, {"metadata": {"annotations": {CONFIG_MIRROR: "x"}}}, "web-node", "default")
        await m.check(lambda p: uid(p) != uid(before), "web-node")
        await mirrored(m)
        assert m.runtime.count("stop_container") == 0


async def test_the_mirror_goes_with_the_static_pod_after_its_containers(tmp_path: Path) -> None:
    async with cluster() as made, member(tmp_path, made) as m:
        m.mux.merge(given(static()))
        await mirrored(m)
        gate = m.runtime.hold("stop_pod_sandbox")
        m.mux.merge(given())
        await m.until(lambda: m.runtime.count("stop_pod_sandbox") == 1)
        assert made.pod("web-node")
        gate.set()
        await m.gone("web-node")


async def test_orphans_are_removed_at_start_but_not_before_all_sources_have_spoken(tmp_path: Path) -> None:
    runtime = FakeRuntime(SystemClock())
    async with cluster() as made:
        async with member(tmp_path, made, runtime=runtime) as m:
            m.mux.merge(given(static("one"), static("two")))
            await mirrored(m, "one-node")
            kept = await mirrored(m, "two-node")
        async with member(tmp_path, made, runtime=runtime) as m:
            await m.until(lambda: m.member.pods.synced.is_set() and m.member.registration.known.is_set())
            assert made.pod("one-node")
            m.mux.merge(given(static("two")))
            await m.gone("one-node")
            assert uid(made.pod("two-node")) == uid(kept)
    await runtime.close()


async def test_a_mirror_pod_from_the_api_is_never_run(tmp_path: Path) -> None:
    async with cluster() as made, member(tmp_path, made) as m:
        body = api_pod("alien", metadata={"annotations": {CONFIG_MIRROR: "x"}})
        await m.client.create(RAW_PODS, body, "default")
        m.mux.merge(given())
        await m.gone("alien")
        assert m.runtime.count("run_pod_sandbox") == 0


async def test_a_manifest_that_says_it_is_a_mirror_is_run_as_a_static_pod(tmp_path: Path) -> None:
    """What ``kubectl get -o yaml`` printed of a mirror pod is a manifest like any other."""
    async with cluster() as made, member(tmp_path, made) as m:
        m.mux.merge(given(static(metadata={"uid": "", "annotations": {CONFIG_MIRROR: "old"}})))
        await mirrored(m)


async def test_another_pod_of_the_name_is_left_alone(tmp_path: Path) -> None:
    async with cluster() as made, member(tmp_path, made) as m:
        await m.client.create(RAW_PODS, api_pod("web-node"), "default")
        await m.phase_is("web-node", "Running")
        before = made.pod("web-node")
        m.mux.merge(given(static()))
        await m.until(lambda: "FailedMirrorPod" in m.reasons("web-node"))
        assert uid(made.pod("web-node")) == uid(before)
        assert m.runtime.count("run_pod_sandbox") == 1, "two pods of one name run"
        await m.client.delete(PODS, "web-node", "default")
        after = await m.check(lambda p: CONFIG_MIRROR in p["metadata"].get("annotations", {}), "web-node")
        assert uid(after) != uid(before)
        await mirrored(m)
        assert m.runtime.count("run_pod_sandbox") == 2


async def test_a_new_node_object_becomes_the_owner(tmp_path: Path) -> None:
    async with cluster() as made, member(tmp_path, made) as m:
        m.mux.merge(given(static()))
        before = await mirrored(m)
        await m.client.delete(NODES, "node")
        m.member.registration._written_at = float("-inf")
        await m.member.registration._refresh()
        after = await m.check(lambda p: uid(p) != uid(before), "web-node")
        owner = after["metadata"]["ownerReferences"][0]["uid"]
        assert owner == uid(made.object("nodes", "node", "") or {})


async def test_a_server_that_refuses_is_tried_again(tmp_path: Path) -> None:
    """A namespace that is not there yet: the pod runs, its mirror follows when it can."""
    async with cluster() as made, member(tmp_path, made) as m:
        m.mux.merge(given(static("web", namespace="shop")))
        await m.until(lambda: m.node.board.find("shop", "web-node") is not None)
        space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}}
        from podwire.kube.resource import NAMESPACES

        await m.client.create(NAMESPACES, space)
        await m.until(lambda: made.object("pods", "web-node", "shop") is not None)
