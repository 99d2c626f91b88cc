"""Every kind of broken manifest at once, given to `podwire up --once`: each is told by file, none runs."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.helpers import Machine, host

pytestmark = pytest.mark.kernel

GOOD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "p", "labels": {"a": "b"}, "annotations": {"a": "b"}},
    "spec": {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "hostNetwork": False,
        "shareProcessNamespace": False,
        "dnsPolicy": "None",
        "dnsConfig": {"nameservers": ["10.0.0.1"], "searches": ["a"], "options": [{"name": "ndots"}]},
        "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["a"]}],
        "securityContext": {"runAsUser": 1, "sysctls": [{"name": "net.ipv4.ip_forward", "value": "1"}]},
        "volumes": [{"name": "v", "emptyDir": {}}, {"name": "h", "hostPath": {"path": "/tmp"}}],
        "initContainers": [{"name": "i", "command": ["/bin/true"]}],
        "containers": [
            {
                "name": "c",
                "image": "x",
                "command": ["/bin/true"],
                "args": ["a"],
                "workingDir": "/",
                "env": [{"name": "A", "value": "b"}],
                "ports": [{"name": "w", "containerPort": 80, "hostPort": 8080, "protocol": "TCP"}],
                "volumeMounts": [{"name": "v", "mountPath": "/v", "readOnly": True}],
                "livenessProbe": {"httpGet": {"port": 80, "path": "/"}, "periodSeconds": 3},
                "readinessProbe": {"exec": {"command": ["/bin/true"]}},
                "lifecycle": {"preStop": {"exec": {"command": ["/bin/true"]}}},
                "resources": {"limits": {"cpu": "1"}},
            }
        ],
    },
}
POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  containers:\n"
TEXTS: dict[str, tuple[bytes | str, str]] = {
    "words": ("hello\n", ":1:"),
    "list": ("- a\n- b\n", ":1:"),
    "not-yaml": ("a: b: c\n", ":1:"),
    "tab": (POD + "\t- name: a\n", ":6"),
    "nul": (POD + "  - name: a\0b\n", "NUL byte"),
    "latin1": (POD.encode() + b"  - name: \xe9\n", "UTF-8"),
    "utf16": (POD.encode("utf-16"), "UTF-16"),
    "open-quote": (POD + '  - name: "a\n', ":"),
    "half": (POD[: len(POD) // 2], ":"),
    "duplicate-key": (POD + "  - {name: a, name: b, command: [x]}\n", "name"),
    "deep": ("a: " + "[" * 5000, ":"),
    "deep-json": ('{"a":' * 5000, ":"),
    "bomb": (
        "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n"
        + "".join(f"a{n}: &a{n} [{','.join(10 * [f'*a{n - 1}'])}]\n" for n in range(1, 9)),
        ":",
    ),
    "self-reference": ("a: &a [*a]\n", ":1"),
    "unknown-anchor": ("a: *nobody\n", "nobody"),
    "python-tag": ("!!python/object/apply:os.system ['touch /tmp/x']\n", ":1"),
    "huge": ("#" * (11 << 20), ":"),
    "documents": (POD + "  - {name: a, command: [x]}\n---\n" + POD + "  - {name: b, command: [x]}\n", ":"),
    "pod-list": ("apiVersion: v1\nkind: PodList\nitems: []\n", "PodList"),
    "list-kind": ("apiVersion: v1\nkind: List\nitems: []\n", "List"),
    "deployment": ("apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\n", "Deployment"),
    "lower-kind": ("apiVersion: v1\nkind: pod\nmetadata: {name: d}\n", "kind pod"),
    "other-version": ("apiVersion: v2\nkind: Pod\nmetadata: {name: d}\n", "v2"),
    "no-containers": ("apiVersion: v1\nkind: Pod\nmetadata: {name: d}\nspec: {}\n", "containers"),
    "no-name": ("apiVersion: v1\nkind: Pod\nspec: {containers: [{name: a}]}\n", "name"),
    "unknown-field": (POD + "  - {name: a, command: [x], comand: [y]}\n", "comand"),
    "no-command": (POD + "  - {name: a, image: nginx}\n", "command"),
    "bad-name": (POD.replace("name: p", "name: P_") + "  - {name: a, command: [x]}\n", "P_"),
    "bad-namespace": (
        POD.replace("name: p", "name: p, namespace: ../x") + "  - {name: a, command: [x]}\n",
        "../x",
    ),
    "config-map": (
        POD + "  - {name: a, command: [x]}\n  volumes: [{name: v, configMap: {name: m}}]\n",
        "configMap",
    ),
    "host-sysctl": (
        POD
        + "  - {name: a, command: [x]}\n  securityContext: {sysctls: [{name: vm.swappiness, value: '1'}]}\n",
        "vm.swappiness",
    ),
    "no-such-program": (POD + "  - {name: a, command: [/no/such]}\n  restartPolicy: Never\n", "/no/such"),
}
WRONG: tuple[Any, ...] = ({"wrong": {}}, [[["wrong"]]], "\U0001f600", -7, 3.5, True)


def places(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of everything inside ``node``."""
    inner = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in inner:
        yield (*path, key)
        yield from places(value, (*path, key))


def with_value(path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    changed = copy.deepcopy(GOOD)
    inner: Any = changed
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return changed


def spelled(path: tuple[Any, ...]) -> str:
    keyed = {"labels", "annotations"}
    parts = [
        f"[{key}]" if isinstance(key, int) or before in keyed else f".{key}"
        for before, key in pairwise((None, *path))
    ]
    return "".join(parts).removeprefix(".")


def test_broken_manifests_are_told_one_by_one_and_none_of_them_runs(machine: Machine) -> None:
    for name, (content, _) in TEXTS.items():
        data = content if isinstance(content, bytes) else content.encode()
        data = data.replace(b"name: p}", f"name: {name}}}".encode()) if b"P_" not in data else data
        (machine.manifests / f"{name}.yaml").write_bytes(data)
    before = host()
    done = machine.podwire("up", "--once", "--timeout", "20", str(machine.manifests), status=1)
    said = [line.removeprefix("error: ") for line in done.stderr.splitlines()]
    assert all(line.startswith("error: ") for line in done.stderr.splitlines()), done.stderr
    for name, (_, words) in TEXTS.items():
        about = [line for line in said if f"/{name}.yaml" in line or f"/{name}-" in line]
        assert about, f"{name}: nothing is said\n{done.stderr}"
        assert any(words in line for line in about), about
        assert all(len(line) < 1000 for line in about), about
    assert " Running " not in done.stdout
    machine.podwire("down")
    assert host() == before


def test_a_wrong_type_anywhere_is_told_by_file_and_field(machine: Machine) -> None:
    expected: dict[str, str] = {}
    for number, path in enumerate(places(GOOD)):
        taken = [value for value in WRONG if type(value) is not type(inside(path))]
        wrong = taken[number % 2]  # an object or a list, whatever is expected there
        name = f"{number:03}.yaml"
        (machine.manifests / name).write_text(yaml.safe_dump(with_value(path, wrong)))
        expected[name] = spelled(path)
    done = machine.podwire("up", "--once", "--timeout", "20", str(machine.manifests), status=1)
    said = done.stderr.splitlines()
    assert len(said) >= len(expected) > 80
    for name, field in expected.items():
        about = [line for line in said if f"/{name}:" in line]
        assert about, f"{name} ({field}): nothing is said"
        assert any(field in line for line in about), f"{field}: {about}"


def inside(path: tuple[Any, ...]) -> Any:
    found: Any = GOOD
    for key in path:
        found = found[key]
    return found


def test_a_manifest_that_cannot_be_read_is_told(machine: Machine, tmp_path: Path) -> None:
    (machine.manifests / "loop.yaml").symlink_to("loop.yaml")
    (machine.manifests / "gone.yaml").symlink_to("nowhere")
    (machine.manifests / "directory.yaml").mkdir()
    done = machine.podwire("up", "--once", "--timeout", "20", str(machine.manifests), status=1)
    for name in ("loop.yaml", "gone.yaml"):
        assert f"error: {machine.manifests}/{name}: " in done.stderr
    assert f"problem: {machine.manifests}/directory.yaml: a directory" in done.stdout
