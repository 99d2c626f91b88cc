"""The controllers: namespaces, the garbage collector, the scheduler, and the age of events."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from podwire.apiserver.controllers.expiry import Expiry
from podwire.apiserver.controllers.nodes import GRACE, Nodes
from tests.apiserver.lab import MAPS, PODS, Answer, Lab, config_map, node, pod

NAMESPACES = "/api/v1/namespaces"
EVENTS = "/api/v1/namespaces/default/events"


def gone(answer: Answer) -> bool:
    return answer.code == 404


def owned(name: str, *owners: Any, block: bool = False) -> Any:
    references = [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"],
            "blockOwnerDeletion": block,
        }
        for owner in owners
    ]
    return {"metadata": {"name": name, "ownerReferences": references}}


async def test_the_first_namespaces_have_accounts(lab: Lab) -> None:
    for name in ("default", "kube-system", "kube-public", "kube-node-lease"):
        await lab.until(f"{NAMESPACES}/{name}/serviceaccounts/default", lambda answer: answer.code == 200)


async def test_an_account_that_is_deleted_comes_back(lab: Lab) -> None:
    path = f"{NAMESPACES}/default/serviceaccounts/default"
    first = await lab.until(path, lambda answer: answer.code == 200)
    await lab.ok("DELETE", path)
    await lab.until(
        path, lambda a: a.code == 200 and a.body["metadata"]["uid"] != first.body["metadata"]["uid"]
    )


async def test_a_namespace_is_emptied_before_it_goes(lab: Lab) -> None:
    """What holds an object holds the namespace; meanwhile nothing new gets in."""
    await lab.ok("POST", NAMESPACES, {"metadata": {"name": "x"}})
    maps = f"{NAMESPACES}/x/configmaps"
    await lab.ok("POST", maps, {"metadata": {"name": "free"}})
    await lab.ok("POST", maps, {"metadata": {"name": "held", "finalizers": ["example.com/hold"]}})
    deleted = await lab.ok("DELETE", f"{NAMESPACES}/x")
    assert deleted["status"]["phase"] == "Terminating"
    await lab.until(f"{maps}/free", gone)
    await lab.until(f"{maps}/held", lambda answer: "deletionTimestamp" in answer.body["metadata"])
    refused = await lab.ask("POST", maps, {"metadata": {"name": "late"}})
    assert (refused.code, refused.body["details"]["causes"][0]["reason"]) == (403, "NamespaceTerminating")
    held = await lab.ok("GET", f"{maps}/held")
    held["metadata"]["finalizers"] = []
    await lab.ok("PUT", f"{maps}/held", held)
    await lab.until(f"{NAMESPACES}/x", gone)


async def test_dependents_go_when_the_last_owner_is_gone(lab: Lab) -> None:
    one = await lab.ok("POST", MAPS, config_map("one"))
    two = await lab.ok("POST", MAPS, config_map("two"))
    await lab.ok("POST", MAPS, owned("of-one", one))
    await lab.ok("POST", MAPS, owned("of-both", one, two))
    await lab.ok("DELETE", f"{MAPS}/one")
    await lab.until(f"{MAPS}/of-one", gone)
    left = await lab.until(
        f"{MAPS}/of-both", lambda a: len(a.body["metadata"].get("ownerReferences", [])) == 1
    )
    assert left.body["metadata"]["ownerReferences"][0]["name"] == "two"
    await lab.ok("DELETE", f"{MAPS}/two")
    await lab.until(f"{MAPS}/of-both", gone)


async def test_an_owner_of_the_same_name_is_another(lab: Lab) -> None:
    one = await lab.ok("POST", MAPS, config_map("one"))
    await lab.ok("DELETE", f"{MAPS}/one")
    await lab.ok("POST", MAPS, config_map("one"))
    await lab.ok("POST", MAPS, owned("orphan", one))
    await lab.until(f"{MAPS}/orphan", gone)
    assert (await lab.ask("GET", f"{MAPS}/one")).code == 200


async def test_an_owner_that_is_named_wrongly_is_no_owner(lab: Lab) -> None:
    one = await lab.ok("POST", MAPS, config_map("one"))
    below = owned("below", one)
    below["metadata"]["ownerReferences"][0]["name"] = "another"
    await lab.ok("POST", MAPS, below)
    await lab.until(f"{MAPS}/below", gone)


async def test_in_the_foreground_the_owner_goes_last(lab: Lab) -> None:
    one = await lab.ok("POST", MAPS, config_map("one"))
    below = owned("below", one, block=True)
    below["metadata"]["finalizers"] = ["example.com/hold"]
    await lab.ok("POST", MAPS, below)
    await lab.ok("DELETE", f"{MAPS}/one", {"propagationPolicy": "Foreground"})
    held = await lab.until(f"{MAPS}/below", lambda a: "deletionTimestamp" in a.body["metadata"])
    waiting = await lab.ok("GET", f"{MAPS}/one")
    assert waiting["metadata"]["finalizers"] == ["foregroundDeletion"]
    held.body["metadata"]["finalizers"] = []
    await lab.ok("PUT", f"{MAPS}/below", held.body)
    await lab.until(f"{MAPS}/one", gone)


async def test_orphans_stay(lab: Lab) -> None:
    one = await lab.ok("POST", MAPS, config_map("one"))
    await lab.ok("POST", MAPS, owned("below", one))
    await lab.ok("DELETE", f"{MAPS}/one", {"propagationPolicy": "Orphan"})
    await lab.until(f"{MAPS}/one", gone)
    left = await lab.ok("GET", f"{MAPS}/below")
    assert "ownerReferences" not in left["metadata"]


async def test_a_pod_waits_for_a_node_that_is_ready(lab: Lab) -> None:
    await lab.ok("POST", PODS, pod("a"))

    def refused(answer: Answer) -> bool:
        conditions = answer.body["status"].get("conditions", [])
        return any(c["type"] == "PodScheduled" and c["status"] == "False" for c in conditions)

    waiting = await lab.until(f"{PODS}/a", refused)
    assert waiting.body["status"]["conditions"][0]["reason"] == "Unschedulable"
    await lab.until(EVENTS, lambda a: any(e["reason"] == "FailedScheduling" for e in a.body["items"]))
    await lab.ok("POST", "/api/v1/nodes", node("n1", ready="False"))
    broken = await lab.ok("GET", "/api/v1/nodes/n1")
    broken["status"]["conditions"][0]["status"] = "True"
    await lab.ok("PUT", "/api/v1/nodes/n1/status", broken)
    await lab.until(f"{PODS}/a", lambda a: a.body["spec"].get("nodeName") == "n1")
    told = await lab.until(EVENTS, lambda a: any(e["reason"] == "Scheduled" for e in a.body["items"]))
    # A list is by name, and so in the order of time.
    reasons = [event["reason"] for event in told.body["items"]]
    assert (reasons[0], reasons[-1]) == ("FailedScheduling", "Scheduled")


async def test_two_pods_do_not_share_a_host_port(lab: Lab) -> None:
    """The second waits until the first has ended."""
    await lab.ok("POST", "/api/v1/nodes", node("n1"))
    ports = [{"name": "m", "image": "i:1", "ports": [{"containerPort": 80, "hostPort": 8080}]}]
    await lab.ok("POST", PODS, pod("first", containers=ports))
    await lab.until(f"{PODS}/first", lambda a: bool(a.body["spec"].get("nodeName")))
    await lab.ok("POST", PODS, pod("second", containers=ports))
    told = await lab.until(EVENTS, lambda a: any(e["reason"] == "FailedScheduling" for e in a.body["items"]))
    (event,) = [e for e in told.body["items"] if e["reason"] == "FailedScheduling"]
    assert event["type"] == "Warning"
    assert "didn't have free ports for the requested pod ports" in event["message"]
    first = await lab.ok("GET", f"{PODS}/first")
    first["status"]["phase"] = "Succeeded"
    await lab.ok("PUT", f"{PODS}/first/status", first)
    await lab.until(f"{PODS}/second", lambda a: a.body["spec"].get("nodeName") == "n1")


async def test_selectors_and_taints(lab: Lab) -> None:
    await lab.ok("POST", "/api/v1/nodes", node("tainted", taints=[{"key": "k", "effect": "NoSchedule"}]))
    await lab.ok("POST", "/api/v1/nodes", node("plain"))
    wants = {"nodeSelector": {"kubernetes.io/hostname": "tainted"}}
    await lab.ok("POST", PODS, pod("no", **wants))
    await lab.until(EVENTS, lambda a: any("untolerated taint" in e["message"] for e in a.body["items"]))
    tolerations = [{"key": "k", "operator": "Exists"}]
    await lab.ok("POST", PODS, pod("yes", tolerations=tolerations, **wants))
    await lab.until(f"{PODS}/yes", lambda a: a.body["spec"].get("nodeName") == "tainted")
    await lab.ok("POST", PODS, pod("any"))
    await lab.until(f"{PODS}/any", lambda a: a.body["spec"].get("nodeName") == "plain")
    assert "nodeName" not in (await lab.ok("GET", f"{PODS}/no"))["spec"]


async def test_a_pod_that_names_its_node_passes_by(lab: Lab) -> None:
    made = await lab.ok("POST", PODS, pod("a", nodeName="nobody"))
    assert made["spec"]["nodeName"] == "nobody"


async def test_old_events_go(bare: Lab) -> None:
    now = datetime.now(UTC)
    for name, age in (("old", 61), ("new", 59)):
        await bare.ok(
            "POST",
            EVENTS,
            {
                "metadata": {"name": name},
                "involvedObject": {"namespace": "default"},
                "lastTimestamp": (now - timedelta(minutes=age)).strftime("%Y-%m-%dT%H:%M:%SZ"),
            },
        )
    await Expiry(bare.api.registry).sweep(now)
    assert [e["metadata"]["name"] for e in (await bare.ok("GET", EVENTS))["items"]] == ["new"]


async def test_a_node_that_does_not_renew_its_lease_is_not_ready(bare: Lab) -> None:
    """Not before the grace has passed here, and not while renewals come, whatever time they name."""
    await bare.ok("POST", NAMESPACES, {"metadata": {"name": "kube-node-lease"}})
    leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
    await bare.ok("POST", "/api/v1/nodes", node("n1"))
    await bare.ok("POST", "/api/v1/nodes", node("leaseless"))
    spec = {"holderIdentity": "n1", "renewTime": "2001-01-01T00:00:00.000000Z"}
    lease = await bare.ok("POST", leases, {"metadata": {"name": "n1"}, "spec": spec})
    now = 0.0
    nodes = Nodes(bare.api.registry, lambda: now)

    async def ready(name: str) -> str:
        await nodes.look()
        found = await bare.ok("GET", f"/api/v1/nodes/{name}")
        return str(found["status"]["conditions"][0]["status"])

    assert await ready("n1") == "True"
    now = GRACE
    assert await ready("n1") == "True"
    lease["spec"]["renewTime"] = "2001-01-01T00:00:10.000000Z"
    await bare.ok("PUT", f"{leases}/n1", lease)
    now = 2 * GRACE
    assert await ready("n1") == "True"
    now = 2 * GRACE + 1
    assert await ready("n1") == "True"
    now = 3 * GRACE + 1
    assert await ready("n1") == "Unknown"
    assert await ready("leaseless") == "True"
