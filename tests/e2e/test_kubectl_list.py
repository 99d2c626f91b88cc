"""All that a stock kubectl does with ``podwire up``, command by command, as a person would try it.

The oldest and the newest kubectl of the machine; every one with ``PODWIRE_TEST_KUBECTL=all``. What needs no
node is looked at more closely in tests/apiserver/test_kubectl.py.
"""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from contextlib import suppress
from typing import Any

import pytest

from tests.cli.helpers import Machine, host
from tests.kubectl import Kubectl, Stock, plain

pytestmark = pytest.mark.kernel

Object = dict[str, Any]

LOOP = "trap 'exit 0' TERM; n=0; while :; do n=$((n+1)); echo tick $n; sleep 0.1; done"
DEAF = "trap '' TERM; while :; do sleep 0.1; done"
PAGE = "echo ready; exec /bin/busybox httpd -f -p 127.0.0.1:80 -h /etc"


def pod(name: str, script: str = LOOP, *, grace: int = 2, image: str = "none", **spec: Any) -> Object:
    command = ["/bin/busybox", "sh", "-c", script]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name, "set": "all"}},
        "spec": {
            "terminationGracePeriodSeconds": grace,
            "containers": [{"name": "main", "image": image, "command": command}],
            **spec,
        },
    }


def ready(k: Stock, name: str) -> Object:
    """The pod, once it is ready."""
    assert "condition met" in k("wait", f"pod/{name}", "--for=condition=Ready", "--timeout=20s")
    found: Object = k.json("get", "pod", name)
    return found


def applied(k: Stock, wanted: Object) -> Object:
    """The pod, applied and ready."""
    name = wanted["metadata"]["name"]
    assert k("apply", "-f", "-", stdin=wanted) == f"pod/{name} created\n"
    return ready(k, name)


def fetched(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as answer:
        found: str = answer.read().decode()
    return found


@pytest.mark.parametrize("program", plain(), ids=str)
def test_what_kubectl_does_with_a_node(machine: Machine, program: Kubectl) -> None:
    before = host()
    machine.up()
    k = Stock(program, machine.kubeconfig, machine.root.parent)
    for part in (_shown, _told, _changed, _watched, _logs, _inside, _forwarded, _gone, _drained, _not_here):
        part(k, machine)
    machine.podwire("down", "--timeout", "2")
    assert host() == before
    assert not machine.root.exists()


def _shown(k: Stock, machine: Machine) -> None:
    """Get in every form, describe, and what selects."""
    found = applied(k, pod("web", PAGE))
    address = found["status"]["podIP"]
    assert address == machine.pod("web")["status"]["podIP"]
    assert re.search(r"web +1/1 +Running +0 +\d+s\n", k("get", "pods"))
    assert re.search(rf" {address} +n1 +<none> +<none>\n", k("get", "pods", "-o", "wide"))
    assert f"podIP: {address}\n" in k("get", "pod", "web", "-o", "yaml")
    assert k("get", "pod", "web", "-o", "jsonpath={.status.podIP}") == address
    assert k("get", "pods", "-o", "custom-columns=IP:.status.podIP", "--no-headers") == f"{address}\n"
    assert re.search(r"default +web ", k("get", "pods", "-A", "--sort-by=.metadata.name"))
    for field, name in (("status.phase=Running", "pod/web\n"), ("spec.nodeName!=n1", "")):
        assert k("get", "pods", "--field-selector", field, "-o", "name") == name
    assert "app=web,set=all" in k("get", "pods", "-l", "app in (web)", "--show-labels")
    assert 'pods "none" not found' in k("get", "pod", "none", code=1)
    told = k("describe", "pod", "web")
    for words in (r"Node: +n1/", rf"IP: +{address}\n", r"Ready +True", r"Normal +Started .* main\n"):
        assert re.search(words, told), told
    assert re.search(r"n1 +Ready +<none> +\d+s +v1\.\d+\.\d+\+podwire-", k("get", "nodes"))
    told = k("describe", "node", "n1")
    for words in (r"Ready +True", r"HolderIdentity: +n1", r"default +web "):
        assert re.search(words, told), told
    assert json.loads(k("get", "--raw", "/api/v1/namespaces/default/pods/web"))["status"]["podIP"] == address
    assert "readyz check passed" in k("get", "--raw", "/readyz?verbose")


def _told(k: Stock, machine: Machine) -> None:
    """What there is, who one is, and where."""
    assert re.search(r"pods +po +v1 +true +Pod\n", k("api-resources"))
    assert "containers\t<[]Container> -required-" in k("explain", "pod.spec")
    assert "Server Version" in k("version")
    assert "is running at" in k("cluster-info")
    assert "token: REDACTED" in k("config", "view")
    assert k("auth", "can-i", "create", "pods") == "yes\n"
    assert "podwire-admin" in k("auth", "whoami")
    with k.beside("proxy", "--port=0") as proxy:
        port = re.search(r"127\.0\.0\.1:(\d+)\n", proxy.until("Starting to serve on", "\n"))
        assert port
        url = f"http://127.0.0.1:{port[1]}/api/v1/namespaces/default/pods/web"
        assert json.loads(fetched(url))["metadata"]["name"] == "web"


def _changed(k: Stock, machine: Machine) -> None:
    """Create, apply, diff, edit, patch, label, annotate, replace, set image; the container follows."""
    web = pod("web", PAGE)
    assert "AlreadyExists" in k("create", "-f", "-", stdin=web, code=1)
    assert k("apply", "-f", "-", stdin=web) == "pod/web unchanged\n"
    assert k("apply", "--server-side", "-f", "-", stdin=web) == "pod/web serverside-applied\n"
    assert k("label", "pod", "web", "tier=front") == "pod/web labeled\n"
    assert k("annotate", "pod", "web", "note=some words").startswith("pod/web annotate")
    assert k("patch", "pod", "web", "--type=merge", "-p", '{"metadata":{"labels":{"a":"b"}}}') == (
        "pod/web patched\n"
    )
    editor = k.home / "editor"
    editor.write_text("#!/bin/sh\nsed -i 's/tier: front/tier: back/' \"$1\"\n")
    editor.chmod(0o755)
    assert "pod/web edited" in k("edit", "pod", "web", EDITOR=str(editor))
    labels = k.json("get", "pod", "web")["metadata"]["labels"]
    assert labels == {"app": "web", "set": "all", "tier": "back", "a": "b"}
    other = pod("web", PAGE, image="other")
    told = k("diff", "-f", "-", stdin=other, code=1)
    assert "-    image: none\n" in told and "+    image: other\n" in told
    assert k("apply", "-f", "-", stdin=other) == "pod/web configured\n"
    restarted = "--for=jsonpath={.status.containerStatuses[0].restartCount}="
    k("wait", "pod/web", f"{restarted}1", "--timeout=20s")
    assert k("set", "image", "pod/web", "main=third") == "pod/web image updated\n"
    k("wait", "pod/web", f"{restarted}2", "--timeout=20s")
    assert k.json("get", "pod", "web")["status"]["containerStatuses"][0]["image"] == "third"
    told = k("apply", "-f", "-", stdin=pod("web", PAGE, restartPolicy="Never"), code=1)
    assert told.endswith('\n- spec.restartPolicy: "Always"\n+ spec.restartPolicy: "Never"\n'), told
    uid = k.json("get", "pod", "web")["metadata"]["uid"]
    assert "pod/web replaced" in k("replace", "--force", "-f", "-", stdin=web)
    assert ready(k, "web")["metadata"]["uid"] != uid


def _watched(k: Stock, machine: Machine) -> None:
    """A pod's life as ``get -w``, ``events --watch`` and ``wait`` tell it."""
    with (
        k.beside("get", "pods", "-w", "--field-selector", "metadata.namespace=default") as pods,
        k.beside("events", "--watch") as events,
    ):
        events.until("Pod/web")
        pods.until("web")
        applied(k, pod("seen"))
        pods.until("seen", "Pending", "ContainerCreating", "1/1", "Running")
        events.until("Pod/seen", "Successfully assigned default/seen to n1")
        with k.beside("wait", "pod/seen", "--for=delete", "--timeout=20s") as waiting:
            assert k("delete", "pod", "seen") == 'pod "seen" deleted\n'
            waiting.ends()
        pods.until("seen", "Running", "Terminating", "0/1", "Completed")
        events.until("Stopping container main")
    assert re.search(r"Normal +Killing +pod/seen ", k("get", "events", "--sort-by=.lastTimestamp"))


def _logs(k: Stock, machine: Machine) -> None:
    """Logs: of one pod and of several, followed, of the run before."""
    assert k("logs", "web") == "ready\n"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[0-9:.]+Z ready\n", k("logs", "web", "--timestamps", "--since=1h"))
    assert k("logs", "web", "--tail=0") == ""
    assert k("logs", "-l", "app=web", "--prefix") == "[pod/web/main] ready\n"
    assert "previous terminated container" in k("logs", "web", "--previous", code=1)
    assert "not valid for pod web" in k("logs", "web", "-c", "none", code=1)
    applied(k, pod("loop"))
    with k.beside("logs", "-f", "loop") as following:
        following.until("tick 1\n", "tick 5\n")
        k("delete", "pod", "loop", "--wait=false")
        following.ends()
    k("run", "twice", "--image=none", "--command", "--", "/bin/busybox", "sh", "-c", "echo once; sleep 1")
    k("wait", "pod/twice", "--for=jsonpath={.status.containerStatuses[0].restartCount}=1", "--timeout=20s")
    assert k("logs", "twice", "--previous") == "once\n"
    k("delete", "pod", "twice", "--now", "--wait=false")


def _inside(k: Stock, machine: Machine) -> None:
    """Exec, with a terminal and without, cp, attach, run."""
    sh = ("web", "--", "/bin/busybox", "sh", "-c")
    assert k("exec", *sh, "hostname") == "web\n"
    assert k("exec", "-i", *sh, "cat", stdin="in and out") == "in and out"
    assert "exit code 7" in k("exec", *sh, "exit 7", code=7)
    assert "no such file" in k("exec", "web", "--", "/no/such", code=1).lower()
    with k.beside("exec", "-it", "web", "--", "/bin/sh", terminal=(33, 101)) as shell:
        shell.type("stty size\n")
        shell.until("33 101")
        shell.resize(40, 120)
        shell.type("until stty size | grep '40 120'; do :; done\n")
        shell.until("done\r\n", "40 120")
        shell.type("exit 5\n")
        shell.ends(5)
    here, there, back = (k.home / name for name in ("here", "there", "back"))
    here.write_text("carried\n")
    k("cp", str(here), f"web:{there}")
    assert there.read_text() == "carried\n"
    k("cp", f"web:{there}", str(back))
    assert back.read_text() == "carried\n"
    applied(k, pod("loop"))
    with k.beside("attach", "loop") as attached:
        attached.until("tick ", "tick ")
    script = "sleep 0.3; echo it ran"
    told = k(
        *("run", "job", "--image=none", "--restart=Never", "-i", "--rm", "--command", "--"),
        *("/bin/busybox", "sh", "-c", script),
    )
    assert "it ran\n" in told and 'pod "job" deleted' in told
    k("delete", "pod", "loop", "--wait=false")


def _forwarded(k: Stock, machine: Machine) -> None:
    """Port-forward, to a port of the pod's loopback and to one where nobody listens."""
    k("expose", "pod", "web", "--port=80")
    for target in ("pod/web", "service/web"):
        with k.beside("port-forward", target, ":80") as forwarder:
            port = re.search(r":(\d+) ->", forwarder.until("Forwarding from 127.0.0.1:", " -> 80\n"))
            assert port and fetched(f"http://127.0.0.1:{port[1]}/hostname") == "web\n"
    with k.beside("port-forward", "pod/web", ":81") as forwarder:
        port = re.search(r":(\d+) ->", forwarder.until("Forwarding from 127.0.0.1:", " -> 81\n"))
        assert port
        with suppress(OSError):
            fetched(f"http://127.0.0.1:{port[1]}/")
        forwarder.until("cannot connect to localhost:81 inside the pod: Connection refused")


def _gone(k: Stock, machine: Machine) -> None:
    """Delete, with grace and without; the address is free when kubectl says that the pod is gone."""
    networks = machine.root / "lib" / "networks" / "podwire"

    def free(address: str) -> bool:
        return not (networks / address).exists()

    web = k.json("get", "pod", "web")["status"]["podIP"]
    assert not free(web)
    assert k("delete", "pod", "web") == 'pod "web" deleted\n'
    assert free(web)
    assert "NotFound" in k("get", "pod", "web", code=1)
    deaf = applied(k, pod("deaf", DEAF, grace=60))["status"]["podIP"]
    k("delete", "pod", "deaf", "--grace-period=1")
    assert free(deaf)
    applied(k, pod("deaf", DEAF, grace=1))
    told = k("delete", "pod", "deaf", "--grace-period=0", "--force")
    assert 'pod "deaf" force deleted' in told
    assert k("get", "pods", "--ignore-not-found", "-o", "name", "deaf") == ""
    for name in ("one", "two"):
        k("apply", "-f", "-", stdin=pod(name))
    k("wait", "pod", "-l", "set=all", "--for=condition=Ready", "--timeout=20s")
    assert k("delete", "pods", "-l", "set=all") == 'pod "one" deleted\npod "two" deleted\n'


def _drained(k: Stock, machine: Machine) -> None:
    """Cordon, drain, uncordon."""
    assert "cordoned" in k("cordon", "n1")
    assert "Ready,SchedulingDisabled" in k("get", "nodes")
    k("apply", "-f", "-", stdin=pod("late"))
    k("wait", "pod/late", "--for=condition=PodScheduled=False", "--timeout=20s")
    assert "1 node(s) were unschedulable" in k("describe", "pod", "late")
    assert "uncordoned" in k("uncordon", "n1")
    ready(k, "late")
    assert "no controller" in k("drain", "n1", code=1)
    assert "pod/late evicted\nnode/n1 drained\n" in k("drain", "n1", "--force", "--timeout=20s")
    assert k("get", "pods", "-o", "name") == ""
    k("uncordon", "n1")


NOT_HERE: list[tuple[tuple[str, ...], str]] = [
    (("top", "pods"), "Metrics API not available"),
    (("rollout", "status", "deployment/web"), "the server doesn't have a resource type"),
    (("scale", "deployment/web", "--replicas=2"), "the server doesn't have a resource type"),
    (("create", "deployment", "web", "--image=i"), "deployments of apps/v1 are not served here"),
    (("create", "token", "default"), "this server issues no tokens of service accounts"),
]


def _not_here(k: Stock, machine: Machine) -> None:
    """What there is not is told, and nothing hangs."""
    for command, words in NOT_HERE:
        assert words in k(*command, code=1)
    applied(k, pod("last", DEAF))
    told = k("debug", "last", "--image=none", "--", "/bin/sh", code=1)
    assert "ephemeral containers are disabled for this cluster" in told
    assert "pods have no scale here" in k("scale", "pod/last", "--replicas=2", code=1)
