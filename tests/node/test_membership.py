"""The node on an API server: its own objects, status written back, and pods deleted in the right order."""

from __future__ import annotations

from pathlib import Path

from podwire.kube.resource import NODES, PODS
from podwire.node.clock import SystemClock
from podwire.runtime.api import RuntimeCondition
from podwire.runtime.fake import FakeRuntime, Program
from tests.node.member import RAW_PODS, Cluster, Object, api_pod, cluster, given, member, static


async def test_a_pod_of_the_api_runs_and_its_status_is_written_back(tmp_path: Path) -> None:
    async with cluster() as made, member(tmp_path, made) as m:
        m.mux.merge(given())
        await m.client.create(RAW_PODS, api_pod(), "default")
        await m.check(lambda p: _ready(p) == "True", "web")
        status = made.pod("web")["status"]
        assert status["podIP"] == "10.88.0.1"
        assert status["podIPs"] == [{"ip": "10.88.0.1"}, {"ip": "fd00:88::1"}]
        assert status["phase"] == "Running"
        assert status["containerStatuses"][0]["state"]["running"]
        assert status["qosClass"] == "BestEffort"


def _addresses(made: Cluster, name: str) -> list[str]:
    return [each["ip"] for each in made.pod(name)["status"]["podIPs"]]


def _ready(shown: Object) -> str:
    return str({c["type"]: c["status"] for c in shown["status"].get("conditions", [])}.get("Ready"))


async def test_the_node_and_its_lease_are_there(tmp_path: Path) -> None:
    async with cluster() as made, member(tmp_path, made) as m:
        await m.until(
            lambda: made.object("leases", "node", "kube-node-lease", "coordination.k8s.io") is not None
        )
        node = made.object("nodes", "node", "")
        lease = made.object("leases", "node", "kube-node-lease", "coordination.k8s.io")
    assert node is not None and lease is not None
    (condition,) = node["status"]["conditions"]
    assert (condition["type"], condition["status"], condition["reason"]) == ("Ready", "True", "NodeReady")
    assert condition["lastTransitionTime"]
    assert node["status"]["addresses"][0] == {"type": "InternalIP", "address": "192.0.2.10"}
    assert lease["spec"]["holderIdentity"] == "node" and lease["spec"]["leaseDurationSeconds"] == 40
    assert lease["metadata"]["ownerReferences"][0]["uid"] == node["metadata"]["uid"]


async def test_a_network_that_is_not_ready_makes_the_node_not_ready(tmp_path: Path) -> None:
    def ready() -> tuple[str, str, str]:
        (condition,) = (made.object("nodes", "node", "") or {})["status"]["conditions"]
        return condition["status"], condition["reason"], condition["message"]

    async with cluster() as made:
        runtime = FakeRuntime(SystemClock())
        runtime.network = RuntimeCondition("NetworkReady", False, "NoConfig", "no network is configured")
        async with member(tmp_path, made, runtime=runtime) as m:
            await m.until(lambda: made.object("nodes", "node", "") is not None)
            assert ready() == (
                "False",
                "NetworkPluginNotReady",
                "NetworkReady: NoConfig: no network is configured",
            )
            await m.client.create(RAW_PODS, api_pod(), "default")
            await m.client.create(RAW_PODS, api_pod("host", hostNetwork=True), "default")
            await m.phase_is("host", "Running")
            await m.until(lambda: "NetworkNotReady" in m.reasons("web"))
            runtime.network = RuntimeCondition("NetworkReady", True)
            await m.phase_is("web", "Running")
            await m.until(lambda: ready()[0] == "True")
        await runtime.close()


async def test_a_deleted_pod_goes_when_its_containers_and_network_are_gone(tmp_path: Path) -> None:
    async with cluster() as made, member(tmp_path, made) as m:
        m.mux.merge(given())
        await m.client.create(RAW_PODS, api_pod(), "default")
        await m.phase_is("web", "Running")
        gate = m.runtime.hold("stop_pod_sandbox")
        await m.client.delete(PODS, "web", "default")
        await m.until(lambda: m.runtime.count("stop_pod_sandbox") == 1)
        shown = await m.check(lambda p: "deletionTimestamp" in p["metadata"], "web")
        assert shown["metadata"]["deletionGracePeriodSeconds"] == 30
        await m.caught_up()
        assert made.pod("web"), "the object went before its network"
        assert m.runtime.addresses
        gate.set()
        await m.gone("web")
        assert [one.metadata.name for one in await m.runtime.list_pod_sandbox()] == ["marker-1"]
        assert m.runtime.addresses == _addresses(made, "marker-1")


async def test_a_pod_with_a_finalizer_is_taken_down_and_stays_until_that_goes(tmp_path: Path) -> None:
    async with cluster() as made, member(tmp_path, made) as m:
        m.mux.merge(given())
        body = api_pod(metadata={"finalizers": ["example.org/mine"]})
        await m.client.create(RAW_PODS, body, "default")
        await m.phase_is("web", "Running")
        await m.client.delete(PODS, "web", "default")
        await m.until(lambda: m.runtime.addresses == [])
        await m.phase_is("web", "Failed")
        await m.client.patch(PODS, {"metadata": {"labels": {"a": "b"}}}, "web", "default")
        await m.caught_up()
        assert m.runtime.count("run_pod_sandbox") == 2, "it was started again"
        await m.client.patch(PODS, {"metadata": {"finalizers": None}}, "web", "default")
        await m.gone("web")


async def test_a_pod_that_was_deleted_while_no_node_ran_goes(tmp_path: Path) -> None:
    async with cluster() as made:
        async with member(tmp_path, made) as m:
            await m.client.create(RAW_PODS, api_pod(), "default")
            await m.phase_is("web", "Running")
        async with made.client() as client:
            await client.delete(PODS, "web", "default")
        async with member(tmp_path, made) as m:
            await m.gone("web")
            assert m.runtime.count("run_pod_sandbox") == 0


async def test_a_terminal_phase_is_never_left(tmp_path: Path) -> None:
    async with cluster() as made:
        async with member(tmp_path, made) as m:
            m.runtime.programs["main"] = Program(ends=[(0.01, 3)])
            await m.client.create(RAW_PODS, api_pod("job", restartPolicy="Never"), "default")
            await m.phase_is("job", "Failed")
            before = (await m.check(lambda p: m.runtime.addresses == [], "job"))["status"]
        async with member(tmp_path, made) as m:
            await m.client.create(RAW_PODS, api_pod("other"), "default")
            await m.phase_is("other", "Running")
            assert m.runtime.count("run_pod_sandbox") == 1, "a pod that has failed was run again"
            after = made.pod("job")["status"]
            assert after["phase"] == "Failed"
            assert after["containerStatuses"] == before["containerStatuses"]


async def test_conditions_of_others_stay_and_a_conflict_is_tried_again(tmp_path: Path) -> None:
    async with cluster() as made, member(tmp_path, made) as m:
        gate = m.runtime.hold("start_container")
        await m.client.create(RAW_PODS, api_pod(), "default")
        await m.check(lambda p: p["status"].get("podIP") is not None, "web")
        condition = {"type": "example.org/gate", "status": "True", "lastTransitionTime": None}
        there = made.pod("web")["status"]["conditions"]
        await m.client.patch(
            RAW_PODS, {"status": {"conditions": [condition, *there]}}, "web", "default", subresource="status"
        )
        gate.set()
        shown = await m.check(
            lambda p: any(c["type"] == "Ready" and c["status"] == "True" for c in p["status"]["conditions"]),
            "web",
        )
        assert shown["status"]["conditions"][0]["type"] == "example.org/gate"
        assert len(shown["status"]["conditions"]) == 6


async def test_status_that_somebody_overwrote_is_put_right(tmp_path: Path) -> None:
    async with cluster() as made, member(tmp_path, made) as m:
        await m.client.create(RAW_PODS, api_pod(), "default")
        await m.phase_is("web", "Running")
        wrong = {"status": {"podIP": "192.0.2.99", "message": "hello"}}
        await m.client.patch(RAW_PODS, wrong, "web", "default", subresource="status")
        shown = await m.check(lambda p: p["status"]["podIP"] != "192.0.2.99", "web")
        assert "message" not in shown["status"]


async def test_what_does_not_change_is_not_written(tmp_path: Path) -> None:
    async with cluster() as made, member(tmp_path, made) as m:
        await m.client.create(RAW_PODS, api_pod(), "default")
        await m.phase_is("web", "Running")
        await m.caught_up()
        version = made.pod("web")["metadata"]["resourceVersion"]
        for uid in (made.pod("web")["metadata"]["uid"],) * 3:
            m.node._tell(uid, "default/web")
            await m.caught_up()
        assert made.pod("web")["metadata"]["resourceVersion"] == version


async def test_events_reach_the_server(tmp_path: Path) -> None:
    async with cluster() as made, member(tmp_path, made) as m:
        m.runtime.fail("run_pod_sandbox", "no address left", times=2)
        await m.client.create(RAW_PODS, api_pod(), "default")

        def failures() -> list[int]:
            events = [s.object for s in made.storage.list("", "events", "default").items]
            return [e.get("count", 0) for e in events if e["reason"] == "FailedCreatePodSandBox"]

        await m.until(lambda: failures() == [2])


async def test_a_node_that_was_deleted_registers_again(tmp_path: Path) -> None:
    async with cluster() as made, member(tmp_path, made) as m:
        await m.until(m.member.registration.known.is_set)
        await m.client.delete(NODES, "node")
        m.member.registration._written_at = float("-inf")
        await m.member.registration._refresh()
        assert made.object("nodes", "node", "") is not None


async def test_removal_waits_until_every_source_has_spoken(tmp_path: Path) -> None:
    """SourcesReady: pods of an earlier run stay until file and api have both told what there is."""
    runtime = FakeRuntime(SystemClock())
    async with cluster() as made:
        async with member(tmp_path, made, runtime=runtime) as m:
            m.mux.merge(given(static("web")))
            await m.running("web-node")
        async with member(tmp_path, made, runtime=runtime) as m:
            await m.until(m.member.pods.synced.is_set)
            await m.caught_up()
            names = {one.metadata.name for one in await runtime.list_pod_sandbox()}
            assert names == {"web-node", "marker-1"}
            m.mux.merge(given())
            await m.until(lambda: runtime.addresses == _addresses(made, "marker-1"))
    await runtime.close()
