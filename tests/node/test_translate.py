from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from podwire.kube.objects import Pod
from podwire.node import hashes, translate
from podwire.node.environment import Place, expand
from podwire.node.errors import ContainerConfigError, MountFailed, PodRefused
from podwire.node.support import findings
from podwire.node.volumes import Volumes
from podwire.runtime.api import (
    ContainerConfig,
    ContainerUser,
    HostAlias,
    Mount,
    NetworkMode,
    PidMode,
    PortMapping,
    PortProtocol,
    SandboxConfig,
)
from tests.node.helpers import HOST_IPS, container, pod

PLACE = Place(("10.88.0.2", "fd00::2"), HOST_IPS)


def boxed(made: Pod, root: Path = Path("/state")) -> SandboxConfig:
    return translate.sandbox_config(made, 2, root=root, dns=None, cluster_domain="cluster.local")


def made(
    volumes: dict[str, Path] | None = None, pod_spec: dict[str, Any] | None = None, **fields: Any
) -> ContainerConfig:
    whole = pod(containers=[container("main", **fields)], **(pod_spec or {}))
    return translate.container_config(whole, whole.spec.containers[0], 4, place=PLACE, volumes=volumes or {})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$(A)", "1"),
        ("x$(A)y$(B)z", "x1y2z"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$(NOT)", "$(NOT)"),
        ("$A ${A} $", "$A ${A} $"),
        ("$(A", "$(A"),
        ("$()", "$()"),
        ("$$$$", "$$"),
    ],
)
def test_expansion(text: str, expected: str) -> None:
    assert expand(text, {"A": "1", "B": "2"}) == expected


def test_environment_in_order_and_used_in_command_and_args() -> None:
    config = made(
        pod_spec={
            "metadata": {"labels": {"app": "shop"}, "annotations": {"a/b": "note"}},
            "serviceAccountName": "sa",
        },
        command=["/bin/run", "--ip=$(IP)", "$$(IP)"],
        args=["$(BOTH)"],
        env=[
            {"name": "LATER", "value": "$(IP)"},
            *(
                {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
                for name, path in {
                    "IP": "status.podIP",
                    "IPS": "status.podIPs",
                    "HOST": "status.hostIP",
                    "HOSTS": "status.hostIPs",
                    "NAME": "metadata.name",
                    "NS": "metadata.namespace",
                    "UID": "metadata.uid",
                    "APP": "metadata.labels['app']",
                    "NOTE": "metadata.annotations['a/b']",
                    "NODE": "spec.nodeName",
                    "SA": "spec.serviceAccountName",
                }.items()
            ),
            {"name": "BOTH", "value": "$(NAME)@$(NODE)"},
        ],
    )
    assert dict(config.envs) == {
        "LATER": "$(IP)",
        "IP": "10.88.0.2",
        "IPS": "10.88.0.2,fd00::2",
        "HOST": "192.0.2.10",
        "HOSTS": "192.0.2.10,2001:db8::10",
        "NAME": "web",
        "NS": "default",
        "UID": "uid-web",
        "APP": "shop",
        "NOTE": "note",
        "NODE": "node",
        "SA": "sa",
        "BOTH": "web@node",
    }
    assert config.command == ("/bin/run", "--ip=10.88.0.2", "$(IP)")
    assert config.args == ("web@node",)
    assert config.log_path == "main/4.log"


@pytest.mark.parametrize(
    ("spec", "hostname", "domain"),
    [
        ({}, "web", ""),
        ({"hostname": "h"}, "h", ""),
        ({"hostname": "h", "subdomain": "s"}, "h", "s.default.svc.cluster.local"),
        (
            {"subdomain": "s", "setHostnameAsFQDN": True},
            "web.s.default.svc.cluster.local",
            "s.default.svc.cluster.local",
        ),
        ({"hostnameOverride": "other", "subdomain": "s"}, "other", ""),
        ({"hostNetwork": True}, "", ""),
    ],
)
def test_host_name(spec: dict[str, Any], hostname: str, domain: str) -> None:
    config = boxed(pod(**spec))
    assert (config.hostname, config.domain) == (hostname, domain)


def test_long_pod_name_is_cut_to_a_host_name() -> None:
    assert boxed(pod("a" * 62 + "-bc")).hostname == "a" * 62
    with pytest.raises(PodRefused, match=r"spec\.setHostnameAsFQDN"):
        boxed(pod("a" * 60, subdomain="s", setHostnameAsFQDN=True))


def test_sandbox_of_a_pod() -> None:
    port = {"containerPort": 53, "hostPort": 5353, "protocol": "UDP", "hostIP": "::1"}
    config = boxed(
        pod(
            metadata={"labels": {"app": "x"}, "annotations": {"kubernetes.io/ingress-bandwidth": "1M"}},
            containers=[container("main", ports=[port, {"containerPort": 80}])],
            hostAliases=[{"ip": "10.0.0.1", "hostnames": ["db"]}],
            shareProcessNamespace=True,
            securityContext={"sysctls": [{"name": "net.ipv4.ip_forward", "value": "1"}]},
            terminationGracePeriodSeconds=7,
        )
    )
    assert config.metadata.attempt == 2
    assert config.log_directory == "/state/logs/default_web_uid-web"
    assert config.port_mappings == (PortMapping(PortProtocol.UDP, 53, 5353, "::1"),)
    assert config.labels == {
        "app": "x",
        "io.kubernetes.pod.name": "web",
        "io.kubernetes.pod.namespace": "default",
        "io.kubernetes.pod.uid": "uid-web",
    }
    assert config.annotations["kubernetes.io/ingress-bandwidth"] == "1M"
    assert config.annotations[hashes.GRACE_PERIOD] == "7"
    assert config.host_aliases == (HostAlias("10.0.0.1", ("db",)),)
    assert config.sysctls == {"net.ipv4.ip_forward": "1"}
    assert (config.network, config.pid) == (NetworkMode.POD, PidMode.POD)


def test_host_network_pod_maps_no_ports() -> None:
    config = boxed(
        pod(
            hostNetwork=True,
            hostPID=True,
            containers=[container("main", ports=[{"containerPort": 80, "hostPort": 80}])],
        )
    )
    assert (config.network, config.pid, config.port_mappings) == (NetworkMode.NODE, PidMode.NODE, ())


@pytest.mark.parametrize(
    ("shared", "own", "expected"),
    [
        (None, None, ContainerUser()),
        ({"runAsUser": 1, "runAsGroup": 2}, None, ContainerUser(1, 2)),
        ({"runAsUser": 1, "runAsGroup": 2}, {"runAsUser": 3}, ContainerUser(3, 2)),
        (
            {"supplementalGroups": [5, 6], "fsGroup": 7},
            {"runAsUser": 0},
            ContainerUser(0, supplemental_groups=(5, 6, 7)),
        ),
        ({"runAsNonRoot": True}, {"runAsUser": 9}, ContainerUser(9)),
        ({"runAsNonRoot": True}, {"runAsNonRoot": False}, ContainerUser()),
    ],
)
def test_user(shared: Any, own: Any, expected: ContainerUser) -> None:
    assert made(pod_spec={"securityContext": shared}, securityContext=own).user == expected


@pytest.mark.parametrize("own", [None, {"runAsUser": 0}])
def test_run_as_non_root_is_checked(own: Any) -> None:
    with pytest.raises(ContainerConfigError, match="runAsNonRoot is true and the program would run as root"):
        made(pod_spec={"securityContext": {"runAsNonRoot": True}}, securityContext=own)


def test_empty_dir_lives_below_the_root_and_goes_with_the_pod(tmp_path: Path) -> None:
    volumes = Volumes(tmp_path)
    paths = volumes.set_up(pod(volumes=[{"name": "v", "emptyDir": {}}], securityContext={"fsGroup": 1234}))
    assert paths == {"v": tmp_path / "pods/uid-web/volumes/kubernetes.io~empty-dir/v"}
    found = paths["v"].stat()
    assert (found.st_mode & 0o7777, found.st_gid) == (0o2777, 1234)
    (paths["v"] / "file").write_text("x")
    assert volumes.set_up(pod(volumes=[{"name": "v", "emptyDir": {}}])) == paths
    assert (paths["v"] / "file").read_text() == "x"
    assert volumes.left() == {"uid-web"}
    volumes.remove("uid-web")
    assert volumes.left() == set()


@pytest.mark.parametrize(
    ("kind", "path", "problem"),
    [
        ("", "made", ""),
        ("DirectoryOrCreate", "made", ""),
        ("FileOrCreate", "made", ""),
        ("Directory", "dir", ""),
        ("File", "file", ""),
        ("Directory", "file", "is not a directory"),
        ("File", "dir", "is not a file"),
        ("Directory", "missing", "does not exist"),
        ("File", "missing", "does not exist"),
        ("Socket", "file", "is not a socket"),
        ("CharDevice", "file", "is not a character device"),
        ("BlockDevice", "file", "is not a block device"),
        ("Nonsense", "dir", "is none of"),
        ("DirectoryOrCreate", "file/below", "Not a directory"),
    ],
)
def test_host_path_types(tmp_path: Path, kind: str, path: str, problem: str) -> None:
    (tmp_path / "dir").mkdir()
    (tmp_path / "file").touch()
    given = pod(volumes=[{"name": "v", "hostPath": {"path": str(tmp_path / path), "type": kind}}])
    if problem:
        with pytest.raises(MountFailed, match=problem) as failed:
            Volumes(tmp_path / "root").set_up(given)
        assert str(tmp_path) in str(failed.value) and '"v"' in str(failed.value)
    else:
        assert Volumes(tmp_path / "root").set_up(given)["v"].exists()


def test_mounts_and_sub_paths_stay_inside_their_volume(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc")
    config = made(
        {"v": tmp_path},
        env=[{"name": "POD", "value": "p0"}],
        volumeMounts=[
            {"name": "v", "mountPath": "/data", "readOnly": True},
            {"name": "v", "mountPath": "/sub", "subPath": "a/b"},
            {"name": "v", "mountPath": "/expr", "subPathExpr": "$(POD)"},
        ],
    )
    assert config.mounts == (
        Mount("/data", str(tmp_path), readonly=True),
        Mount("/sub", str(tmp_path / "a/b")),
        Mount("/expr", str(tmp_path / "p0")),
    )
    assert (tmp_path / "a/b").is_dir()
    for bad in ("../x", "/etc", "link/x"):
        with pytest.raises(ContainerConfigError, match="leads out of volume 'v'"):
            made({"v": tmp_path}, volumeMounts=[{"name": "v", "mountPath": "/d", "subPath": bad}])
    with pytest.raises(ContainerConfigError, match="no volume is named 'w'"):
        made({"v": tmp_path}, volumeMounts=[{"name": "w", "mountPath": "/d"}])


def from_source(**source: Any) -> Pod:
    return pod(containers=[container("c", env=[{"name": "E", "valueFrom": source}])])


IGNORED = [
    (pod(containers=[container("c", resources={"limits": {"cpu": 1}})]), "spec.containers[0].resources"),
    (
        pod(containers=[container("c", securityContext={"capabilities": {"drop": ["ALL"]}})]),
        "spec.containers[0].securityContext.capabilities",
    ),
    (
        pod(initContainers=[container("c", securityContext={"readOnlyRootFilesystem": True})]),
        "spec.initContainers[0].securityContext.readOnlyRootFilesystem",
    ),
    (
        pod(securityContext={"seccompProfile": {"type": "RuntimeDefault"}}),
        "spec.securityContext.seccompProfile",
    ),
    (pod(volumes=[{"name": "v", "emptyDir": {"medium": "Memory"}}]), "spec.volumes[0].emptyDir.medium"),
    (
        pod(
            containers=[
                container(
                    "c",
                    env=[
                        {
                            "name": "E",
                            "valueFrom": {"secretKeyRef": {"name": "s", "key": "k", "optional": True}},
                        }
                    ],
                )
            ]
        ),
        "spec.containers[0].env[0].valueFrom",
    ),
]
REFUSED = [
    (
        from_source(secretKeyRef={"name": "s", "key": "k"}),
        "spec.containers[0].env[0].valueFrom",
    ),
    (
        pod(containers=[container("c", envFrom=[{"configMapRef": {"name": "x"}}])]),
        "spec.containers[0].envFrom",
    ),
    (
        pod(
            containers=[
                container("c", env=[{"name": "E", "valueFrom": {"fieldRef": {"fieldPath": "spec.x"}}}])
            ]
        ),
        "spec.containers[0].env[0].valueFrom.fieldRef.fieldPath",
    ),
    (pod(volumes=[{"name": "v", "secret": {"secretName": "s"}}]), "spec.volumes[0].secret"),
    (
        pod(volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "s"}}]),
        "spec.volumes[0].persistentVolumeClaim",
    ),
    (pod(runtimeClassName="gvisor"), "spec.runtimeClassName"),
    (
        pod(securityContext={"sysctls": [{"name": "vm.swappiness", "value": "1"}]}),
        "spec.securityContext.sysctls[0].name",
    ),
    (
        pod(hostNetwork=True, securityContext={"sysctls": [{"name": "net.ipv4.ip_forward", "value": "1"}]}),
        "spec.securityContext.sysctls[0].name",
    ),
]


@pytest.mark.parametrize(("given", "field"), IGNORED, ids=lambda v: v if isinstance(v, str) else "")
def test_what_is_not_enforced_is_said(given: Pod, field: str) -> None:
    assert [(f.field, f.fatal) for f in findings(given)] == [(field, False)]


@pytest.mark.parametrize(("given", "field"), REFUSED, ids=lambda v: v if isinstance(v, str) else "")
def test_what_must_not_be_ignored_is_refused(given: Pod, field: str) -> None:
    assert [(f.field, f.fatal) for f in findings(given)] == [(field, True)]


def test_an_ordinary_pod_has_no_findings() -> None:
    assert (
        findings(pod(containers=[container("c", securityContext={"privileged": False}, resources={})])) == []
    )
