"""A stock kubectl with a node's own API server: pods come, show themselves, and go."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from podwire.kube.client import Client
from podwire.kube.config import load
from podwire.kube.resource import PODS, unstructured
from tests.cli.helpers import SLEEPER, Machine
from tests.kubectl import Stock, every

pytestmark = pytest.mark.kernel

POD = """\
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  terminationGracePeriodSeconds: 1
  containers:
    - name: main
      image: example.org/web
      command: ["/bin/busybox", "sh", "-c", "echo ready; exec /bin/busybox httpd -f -p 127.0.0.1:80 -h /etc"]
"""
RAW = unstructured("", "v1", "pods", "Pod")
MIRROR = "kubernetes.io/config.mirror"


def until(what: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait until something holds."""
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_pod_made_through_the_api_has_an_address_in_under_a_second(machine: Machine) -> None:
    """From the answer to its creation to Running with an address, as a watch tells it; the best of three."""
    machine.up()

    async def measure() -> float:
        async with Client(load(machine.kubeconfig)) as client:
            took = []
            for number in range(3):
                body = yaml.safe_load(POD.replace("name: web}", f"name: web{number}}}"))
                began = time.monotonic()
                made = await client.create(RAW, body, "default")
                watch = client.watch(PODS, "default", since=made["metadata"]["resourceVersion"])
                async with watch, asyncio.timeout(20):
                    async for event in watch:
                        pod = event.object
                        if pod is None or pod.metadata.name != f"web{number}":
                            continue
                        if pod.status.phase == "Running" and pod.status.pod_ip:
                            break
                took.append(time.monotonic() - began)
            return min(took)

    assert asyncio.run(measure()) < 1


def test_a_mirror_pod_deleted_with_kubectl_comes_back_and_the_container_goes_on(machine: Machine) -> None:
    kubectl = Stock(every()[-1], machine.kubeconfig, machine.root.parent)
    machine.write("web.yaml", SLEEPER.format(name="web"))
    machine.up()
    machine.wait_for("web=Running")

    def mirrors() -> list[Any]:
        found: list[Any] = kubectl.json("get", "pods", "-l", "app=web")["items"]
        return found

    until(lambda: bool(mirrors()))
    kubectl("wait", "pod/web-n1", "--for=condition=Ready", "--timeout=20s")
    (before,) = mirrors()
    assert MIRROR in before["metadata"]["annotations"]
    assert kubectl("logs", "web-n1") == "hello from web\n"
    kubectl("delete", "pod", "web-n1", "--wait=false")
    until(lambda: any(each["metadata"]["uid"] != before["metadata"]["uid"] for each in mirrors()))
    kubectl("wait", "pod/web-n1", "--for=condition=Ready", "--timeout=20s")
    (after,) = mirrors()
    same = [pod["status"]["containerStatuses"][0]["containerID"] for pod in (before, after)]
    assert same[0] == same[1]
    machine.write("web.yaml", SLEEPER.format(name="web").replace("hello from", "good morning"))
    until(lambda: any(MIRROR in m["metadata"]["annotations"] and _hash(m) != _hash(after) for m in mirrors()))
    (machine.manifests / "web.yaml").unlink()
    until(lambda: not mirrors())


def test_a_node_joins_an_api_server_by_its_kubeconfig_and_takes_pods_from_a_url(machine: Machine) -> None:
    """The server is a process of its own; files, a URL and the API feed one node."""
    api = ("apiserver", "--listen", "127.0.0.1:0")
    pages = machine.manifests.parent / "pages"
    pages.mkdir()
    (pages / "pods").write_text(SLEEPER.format(name="paged"))
    (machine.manifests / "filed.yaml").write_text(SLEEPER.format(name="filed"))
    web = subprocess.Popen(["/bin/busybox", "httpd", "-f", "-p", "127.0.0.1:8099", "-h", str(pages)])
    try:
        with machine.start(*api, stdout=subprocess.PIPE) as server:
            assert server.stdout is not None
            assert server.stdout.readline().startswith("The API server answers on")
            kubectl = Stock(every()[-1], machine.kubeconfig, machine.root.parent)
            machine.podwire(
                *(
                    "up",
                    "--detach",
                    str(machine.manifests),
                    "http://127.0.0.1:8099/pods",
                    "--node-name",
                    "n1",
                ),
                *("--kubeconfig", str(kubectl.kubeconfig)),
            )
            kubectl("apply", "-f", "-", stdin=POD)
            for name in ("web", "filed-n1", "paged-n1"):
                until(lambda name=name: name in kubectl("get", "pods", "-o", "name"))  # type: ignore[misc]
                kubectl("wait", f"pod/{name}", "--for=condition=Ready", "--timeout=20s")
            assert machine.ask("get", "pods", "-o", "name").stdout.split() == [
                "pod/filed-n1",
                "pod/paged-n1",
                "pod/web",
            ]
            kubectl("delete", "pod", "web", "--timeout=20s")
            server.terminate()
            server.wait(10)
            until(lambda: "FailedRead" in machine.ask("get", "events", "-A").stdout)
            assert machine.pod("paged")["status"]["phase"] == "Running"
    finally:
        web.kill()
        web.wait()


def _hash(mirror: Any) -> str:
    return str(mirror["metadata"]["annotations"][MIRROR])
