"""A stock kubectl with a node's own API server: pods come, show themselves, and go."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest

from tests.cli.helpers import SLEEPER, Machine, host
from tests.e2e.kubectl import Kubectl, versions

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
      command: ["/bin/busybox", "httpd", "-f", "-p", "80", "-h", "/etc"]
"""
MIRROR = "kubernetes.io/config.mirror"


@pytest.fixture(params=versions(), ids=lambda path: path.rpartition("/")[2])
def kubectl(request: pytest.FixtureRequest, machine: Machine) -> Kubectl:
    """Each kubectl in turn."""
    return Kubectl(machine, request.param)


def until(what: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait until something holds."""
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_pod_applied_with_kubectl_runs_and_deleted_frees_its_address(
    machine: Machine, kubectl: Kubectl
) -> None:
    before = host()
    machine.up()
    began = time.time()
    kubectl("apply", "-f", "-", stdin=POD)
    kubectl("wait", "pod/web", "--for=jsonpath={.status.phase}=Running", "--timeout=20s")
    pod = kubectl.json("get", "pod", "web")
    started = pod["status"]["containerStatuses"][0]["state"]["running"]["startedAt"]
    assert time.time() - began < 20 and started
    address = pod["status"]["podIP"]
    assert address.startswith("10.201.")
    assert "Running" in kubectl("get", "pods", "-o", "wide")
    assert machine.pod("web")["status"]["podIP"] == address
    assert "Started" in kubectl("describe", "pod", "web")
    assert "Ready" in kubectl("get", "nodes")
    networks = machine.root / "lib" / "networks" / "podwire"
    assert (networks / address).exists()
    kubectl("delete", "pod", "web", "--timeout=20s")
    assert "NotFound" in kubectl("get", "pod", "web", status=1)
    assert not (networks / address).exists()
    assert machine.ask("get", "pods").stdout == machine.ask("get", "pods", "-A").stdout
    machine.podwire("down", "--timeout", "2")
    assert host() == before
    assert not machine.root.exists()


def test_a_mirror_pod_deleted_with_kubectl_comes_back_and_the_container_goes_on(
    machine: Machine, kubectl: Kubectl
) -> None:
    machine.write("web.yaml", SLEEPER.format(name="web"))
    machine.up()
    machine.wait_for("web=Running")

    def mirror() -> dict[str, object]:
        found = kubectl.json("get", "pods", "-l", "app=web")["items"]
        return found[0] if found else {}

    def uid() -> str:
        return json.dumps(mirror().get("metadata", {}).get("uid"))  # type: ignore[attr-defined]

    until(lambda: bool(mirror()))
    kubectl("wait", "pod/web-n1", "--for=condition=Ready", "--timeout=20s")
    container = machine.pod("web")["status"]["containerStatuses"][0]["containerID"]
    before = uid()
    kubectl("delete", "pod", "web-n1", "--wait=false")
    until(lambda: uid() not in (before, "null"))
    kubectl("wait", "pod/web-n1", "--for=condition=Ready", "--timeout=20s")
    assert kubectl.json("get", "pod", "web-n1")["status"]["containerStatuses"][0]["containerID"] == container
    (machine.manifests / "web.yaml").unlink()
    until(lambda: not mirror())
