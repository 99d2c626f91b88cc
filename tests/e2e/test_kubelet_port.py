"""kubectl with an API server in one process and the node in another: all goes through the kubelet's port."""

from __future__ import annotations

import json
import re
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.helpers import Machine
from tests.e2e.kubectl import Kubectl, versions

pytestmark = pytest.mark.kernel

PORT = 10257
POD = """\
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  terminationGracePeriodSeconds: 1
  containers:
    - name: main
      image: example.org/web
      command:
        - /bin/busybox
        - sh
        - -c
        - >-
          echo ready; while true; do echo tick; /bin/busybox sleep 0.1; done &
          exec /bin/busybox httpd -f -p 127.0.0.1:80 -h /etc
"""


@contextmanager
def cluster(machine: Machine, *arguments: str) -> Iterator[Kubectl]:
    """An API server, and a node that joins it with these arguments and runs the pod."""
    with machine.start("apiserver", "--listen", "127.0.0.1:0", stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        assert server.stdout.readline().startswith("The API server answers on")
        kubectl = Kubectl(machine, versions()[-1])
        machine.podwire(
            *("up", "--detach", "--node-name", "n1", "--kubeconfig", str(kubectl.kubeconfig)), *arguments
        )
        kubectl("apply", "-f", "-", stdin=POD)
        kubectl("wait", "pod/web", "--for=condition=Ready", "--timeout=20s")
        yield kubectl


def authority(machine: Machine) -> Path:
    return machine.root / "lib" / "apiserver" / "ca.crt"


def test_kubectl_reaches_a_pod_of_another_process(machine: Machine) -> None:
    with cluster(machine, "--kubelet-port", str(PORT), "--client-ca-file", str(authority(machine))) as newest:
        assert newest.json("get", "node", "n1")["status"]["daemonEndpoints"] == {
            "kubeletEndpoint": {"Port": PORT}
        }
        for program in versions():
            kubectl = Kubectl(machine, program)
            assert kubectl("logs", "web").startswith("ready\ntick\n")
            assert len(kubectl("logs", "web", "--tail=2").splitlines()) == 2
            assert kubectl("exec", "web", "--", "/bin/busybox", "hostname") == "web\n"
            said = kubectl("exec", "-i", "web", "--", "/bin/busybox", "cat", stdin="there and back")
            assert said == "there and back"
            assert "exit code 7" in kubectl(
                "exec", "web", "--", "/bin/busybox", "sh", "-c", "exit 7", status=7
            )
            followed = kubectl.start("logs", "-f", "--tail=0", "web", stdout=subprocess.PIPE)
            attached = kubectl.start("attach", "web", stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            for each in (followed, attached):
                assert each.stdout is not None
                assert each.stdout.readline() == "tick\n"
                each.terminate()
                each.wait(10)
                each.stdout.close()
            forwarded(kubectl)
            assert "container none is not valid for pod web" in kubectl("logs", "web", "-c", "none", status=1)


def forwarded(kubectl: Kubectl) -> None:
    forward = kubectl.start("port-forward", "pod/web", ":80", stdout=subprocess.PIPE)
    try:
        assert forward.stdout is not None
        port = re.findall(r"127\.0\.0\.1:(\d+)", forward.stdout.readline())[0]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/hostname", timeout=10) as page:
            assert page.read().strip()
    finally:
        forward.terminate()
        forward.wait(10)
        if forward.stdout is not None:
            forward.stdout.close()


def ask(path: str, token: str = "") -> tuple[int, str]:
    """What the kubelet's port answers to HTTPS of another program."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(f"https://127.0.0.1:{PORT}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=10, context=context) as page:
            return page.status, page.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_the_port_is_open_to_holders_of_a_token_of_the_server_and_to_nobody_else(machine: Machine) -> None:
    with cluster(machine, "--kubelet-port", str(PORT)) as kubectl:
        token = (machine.root / "lib" / "apiserver" / "token").read_text().strip()
        assert ask("/healthz", token) == (200, "ok")
        pods: dict[str, Any] = json.loads(ask("/pods", token)[1])
        assert [pod["metadata"]["name"] for pod in pods["items"]] == ["web"]
        assert ask("/containerLogs/default/web/main?tailLines=1", token) == (200, "tick\n")
        assert ask("/pods") == (401, "Unauthorized")
        assert ask("/pods", "stolen") == (401, "Unauthorized")
        # The server's certificate is not one that this node knows.
        assert "Unauthorized" in kubectl("logs", "web", status=1)


def test_without_the_port_kubectl_is_told_so(machine: Machine) -> None:
    with cluster(machine, "--kubelet-port", "0") as kubectl:
        assert "node n1 has no kubelet port" in kubectl("logs", "web", status=1)
        assert "node n1 has no kubelet port" in kubectl("exec", "web", "--", "true", status=1)
        kubectl("delete", "pod", "web", "--wait=false")
        end = time.monotonic() + 20
        while kubectl("get", "pods", "-o", "name"):
            assert time.monotonic() < end
