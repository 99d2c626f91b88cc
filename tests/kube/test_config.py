"""Kubeconfig files, pods' own configuration, programs that print credentials; faults name file and field."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import stat
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from podwire.kube import config
from podwire.kube.clock import VirtualClock
from podwire.kube.credentials import CertificateFiles, Credential, Credentials, ProgramCredentials, TokenFile
from podwire.kube.errors import ConfigError, CredentialError

CLOCK = VirtualClock()


def kubeconfig(
    user: dict[str, Any] | None = None, cluster: dict[str, Any] | None = None, **top: Any
) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "team"}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://10.0.0.1:6443/", **(cluster or {})}}],
        "users": [{"name": "u", "user": user or {}}],
        **top,
    }


def write(directory: Path, content: Any, name: str = "config") -> Path:
    file = directory / name
    file.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return file


async def credential(given: Credentials) -> Credential:
    return await given.get(CLOCK)


async def test_server_namespace_and_token(tmp_path: Path) -> None:
    file = write(
        tmp_path, kubeconfig({"token": "abc"}, {"tls-server-name": "api", "proxy-url": "http://proxy:3128"})
    )
    found = config.load(file)
    assert (found.server, found.namespace) == ("https://10.0.0.1:6443", "team")
    assert (found.tls_server_name, found.proxy, found.insecure) == ("api", "http://proxy:3128", False)
    assert await credential(found.credentials) == Credential("Bearer abc")


async def test_files_are_relative_to_the_file_that_names_them(tmp_path: Path) -> None:
    (tmp_path / "pki").mkdir()
    for name in ("ca", "crt", "key"):
        (tmp_path / "pki" / name).write_text(f"pem of {name}")
    user = {"client-certificate": "pki/crt", "client-key": "pki/key"}
    found = config.load(write(tmp_path, kubeconfig(user, {"certificate-authority": "pki/ca"})))
    assert found.ca == b"pem of ca"
    assert isinstance(found.credentials, CertificateFiles)
    assert await credential(found.credentials) == Credential("", b"pem of crt", b"pem of key")
    (tmp_path / "pki" / "crt").write_text("a new certificate")
    assert (await credential(found.credentials)).certificate == b"a new certificate"


async def test_data_goes_before_files(tmp_path: Path) -> None:
    data = base64.b64encode(b"inline").decode()
    user = {"client-certificate-data": data, "client-certificate": "missing", "client-key-data": data}
    found = config.load(write(tmp_path, kubeconfig(user, {"certificate-authority-data": data})))
    assert found.ca == b"inline"
    assert await credential(found.credentials) == Credential("", b"inline", b"inline")


async def test_token_file_and_password(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(" secret \n")
    found = config.load(write(tmp_path, kubeconfig({"tokenFile": "token", "token": "ignored"})))
    assert isinstance(found.credentials, TokenFile)
    assert (await credential(found.credentials)).authorization == "Bearer secret"
    found = config.load(write(tmp_path, kubeconfig({"username": "jane", "password": "x:y"})))
    assert (await credential(found.credentials)).authorization == "Basic " + base64.b64encode(
        b"jane:x:y"
    ).decode()


def test_impersonation(tmp_path: Path) -> None:
    user = {"as": "jane", "as-groups": ["a", "b"], "as-uid": "7", "as-user-extra": {"scope": ["x"]}}
    assert config.load(write(tmp_path, kubeconfig(user))).impersonate == {
        "Impersonate-User": "jane",
        "Impersonate-Uid": "7",
        "Impersonate-Group": ["a", "b"],
        "Impersonate-Extra-scope": ["x"],
    }


def test_of_several_files_the_first_to_say_something_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = write(
        tmp_path, {"current-context": "there", "users": [{"name": "u", "user": {"as": "first"}}]}, "one"
    )
    context = [{"name": "there", "context": {"cluster": "c", "user": "u"}}]
    second = write(tmp_path, {**kubeconfig({"as": "second"}), "contexts": context}, "two")
    monkeypatch.setenv(
        "KUBECONFIG", os.pathsep.join([str(first), str(tmp_path / "missing"), "", str(second)])
    )
    found = config.load()
    assert found.impersonate == {"Impersonate-User": "first"}
    assert (found.server, found.namespace) == ("https://10.0.0.1:6443", "default")


def test_another_context_can_be_chosen(tmp_path: Path) -> None:
    content = kubeconfig()
    content["contexts"].append({"name": "other", "context": {"cluster": "c"}})
    assert config.load(write(tmp_path, content), context="other").namespace == "default"


async def test_in_a_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("token", "ca.crt", "namespace"):
        (tmp_path / name).write_text(f"{name} of the pod")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    found = config.in_cluster(tmp_path)
    assert (found.server, found.ca, found.namespace) == (
        "https://[fd00::1]:443",
        b"ca.crt of the pod",
        "namespace of the pod",
    )
    assert (await credential(found.credentials)).authorization == "Bearer token of the pod"
    monkeypatch.setattr(config, "SERVICE_ACCOUNT", tmp_path)
    monkeypatch.delenv("KUBECONFIG", raising=False)
    assert config.load().server == "https://[fd00::1]:443"
    monkeypatch.delenv("KUBERNETES_SERVICE_PORT")
    with pytest.raises(ConfigError, match="KUBERNETES_SERVICE_PORT"):
        config.in_cluster(tmp_path)


def test_nothing_is_configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ConfigError, match=r"\.kube/config: no configuration"):
        config.load()
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    with pytest.raises(ConfigError, match="/nowhere: KUBECONFIG: no such file"):
        config.load()


FAULTS: dict[str, tuple[Any, str, str]] = {
    "not yaml": ("a: [", "", "not YAML"),
    "no mapping": ("- a", "", "mapping"),
    "no context chosen": ({**kubeconfig(), "current-context": ""}, "current-context", "no context"),
    "unknown context": (
        {**kubeconfig(), "current-context": "x"},
        "contexts",
        "'x' is not there; known: here",
    ),
    "unknown cluster": (
        kubeconfig(clusters=[]),
        "contexts[0].context.cluster",
        "'c' is not there; known: none",
    ),
    "unknown user": (kubeconfig(users=None), "contexts[0].context.user", "'u' is not there"),
    "clusters no list": (kubeconfig(clusters={"c": {}}), "clusters", "a list"),
    "cluster without a name": (kubeconfig(clusters=[{"cluster": {}}]), "clusters[0].name", "name is needed"),
    "cluster no mapping": (
        kubeconfig(clusters=[{"name": "c", "cluster": "x"}]),
        "clusters[0].cluster",
        "mapping",
    ),
    "no server": (kubeconfig(cluster={"server": ""}), "clusters[0].cluster.server", "URL"),
    "server no text": (kubeconfig(cluster={"server": 7}), "clusters[0].cluster.server", "string"),
    "server without a host": (
        kubeconfig(cluster={"server": "https:///path"}),
        "clusters[0].cluster.server",
        "no host",
    ),
    "server of no host": (
        kubeconfig(cluster={"server": "https://a..b"}),
        "clusters[0].cluster.server",
        "'a..b' is no name",
    ),
    "server of no port": (
        kubeconfig(cluster={"server": "https://a:99999"}),
        "clusters[0].cluster.server",
        "Port",
    ),
    "server of half an address": (
        kubeconfig(cluster={"server": "https://[::1"}),
        "clusters[0].cluster.server",
        "URL is expected",
    ),
    "server with a query": (
        kubeconfig(cluster={"server": "https://a/path?x=y"}),
        "clusters[0].cluster.server",
        "ends with its path",
    ),
    "server with a space": (
        kubeconfig(cluster={"server": "https://a b"}),
        "clusters[0].cluster.server",
        "a character",
    ),
    "server with a password": (
        kubeconfig(cluster={"server": "https://me:secret@a"}),
        "clusters[0].cluster.server",
        "belong to the user",
    ),
    "socket without a path": (
        kubeconfig(cluster={"server": "unix://run/socket"}),
        "clusters[0].cluster.server",
        "path of a socket",
    ),
    "proxy of no host": (
        kubeconfig(cluster={"proxy-url": "http://a..b:3128"}),
        "clusters[0].cluster.proxy-url",
        "no name",
    ),
    "proxy of another kind": (
        kubeconfig(cluster={"proxy-url": "socks5://a"}),
        "clusters[0].cluster.proxy-url",
        "only proxies of HTTP",
    ),
    "server name that is none": (
        kubeconfig(cluster={"tls-server-name": "a..b"}),
        "clusters[0].cluster.tls-server-name",
        "no name",
    ),
    "flag no flag": (
        kubeconfig(cluster={"insecure-skip-tls-verify": "yes"}),
        "clusters[0].cluster.insecure-skip-tls-verify",
        "true or false",
    ),
    "no base64": (
        kubeconfig(cluster={"certificate-authority-data": "%"}),
        "clusters[0].cluster.certificate-authority-data",
        "base64",
    ),
    "no such file": (
        kubeconfig(cluster={"certificate-authority": "gone"}),
        "clusters[0].cluster.certificate-authority",
        "No such file",
    ),
    "certificate alone": (
        kubeconfig({"client-certificate-data": "eA=="}),
        "users[0].user.client-key",
        "belong together",
    ),
    "auth-provider": (
        kubeconfig({"auth-provider": {"name": "gcp"}}),
        "users[0].user.auth-provider",
        "use exec",
    ),
    "exec no mapping": (kubeconfig({"exec": "x"}), "users[0].user.exec", "mapping"),
    "exec of old": (
        kubeconfig({"exec": {"command": "x", "apiVersion": "client.authentication.k8s.io/v1alpha1"}}),
        "users[0].user.exec.apiVersion",
        "is none of",
    ),
    "exec without command": (
        kubeconfig({"exec": {"apiVersion": "client.authentication.k8s.io/v1"}}),
        "users[0].user.exec.command",
        "needed",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_name_file_and_field(fault: str, tmp_path: Path) -> None:
    content, where, what = FAULTS[fault]
    file = write(tmp_path, content)
    with pytest.raises(ConfigError) as caught:
        config.load(file)
    assert caught.value.file.startswith(str(file))
    assert caught.value.field == where
    assert what in caught.value.message
    assert "secret" not in str(caught.value)


def test_a_configuration_made_by_hand_is_looked_at_too() -> None:
    with pytest.raises(ConfigError) as caught:
        config.Config(server="https://a..b")
    assert caught.value.field == "server"


def test_a_pods_environment_of_no_use_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "tcp")
    with pytest.raises(ConfigError, match=r"KUBERNETES_SERVICE_PORT: 'https://10\.0\.0\.1:tcp'"):
        config.in_cluster(tmp_path)


def program(directory: Path, text: str) -> dict[str, Any]:
    file = directory / "login"
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return {"command": "./login", "apiVersion": "client.authentication.k8s.io/v1"}


def printed(**status: str) -> str:
    return json.dumps(
        {"kind": "ExecCredential", "apiVersion": "client.authentication.k8s.io/v1", "status": status}
    )


async def test_a_program_prints_a_token_that_is_kept_until_it_ends(tmp_path: Path) -> None:
    clock = VirtualClock(1_750_000_000)
    token = printed(token="t", expirationTimestamp="2025-06-15T15:16:40Z")
    text = f"echo run >> runs; cat > told <<END\n$KUBERNETES_EXEC_INFO\nEND\necho '{token}'"
    run = program(tmp_path, f"cd {tmp_path}\n[ \"$1 $EXTRA\" = 'arg value' ] || exit 9\n{text}")
    run |= {"args": ["arg"], "env": [{"name": "EXTRA", "value": "value"}], "provideClusterInfo": True}
    data = base64.b64encode(b"pem").decode()
    found = config.load(write(tmp_path, kubeconfig({"exec": run}, {"certificate-authority-data": data})))
    assert isinstance(found.credentials, ProgramCredentials)
    got = await asyncio.gather(*(found.credentials.get(clock) for _ in range(3)))
    assert {each.authorization for each in got} == {"Bearer t"}
    assert (tmp_path / "runs").read_text() == "run\n"
    spec = json.loads((tmp_path / "told").read_text())["spec"]
    assert spec == {
        "interactive": False,
        "cluster": {"server": "https://10.0.0.1:6443/", "certificate-authority-data": data, "config": None},
    }
    await clock.advance(569)
    await found.credentials.get(clock)
    assert (tmp_path / "runs").read_text() == "run\n"
    await clock.advance(2)
    await found.credentials.get(clock)
    assert (tmp_path / "runs").read_text() == "run\n" * 2
    await found.credentials.get(clock, refused=True)
    assert (tmp_path / "runs").read_text() == "run\n" * 3


async def test_a_program_prints_a_certificate(tmp_path: Path) -> None:
    run = program(tmp_path, f"echo '{printed(clientCertificateData='crt', clientKeyData='key')}'")
    found = config.load(write(tmp_path, kubeconfig({"exec": run})))
    assert await credential(found.credentials) == Credential("", b"crt", b"key")


PROGRAMS = {
    "fails": ("echo no luck >&2; exit 3", "exit code 3: no luck"),
    "prints nothing": ("", "no ExecCredential"),
    "prints another kind": ('echo \'{"kind":"Other"}\'', "was expected, it printed Other"),
    "prints no credential": (f"echo '{printed()}'", "neither a token nor a certificate"),
    "prints half a pair": (f"echo '{printed(token='t', clientKeyData='k')}'", "belong together"),
    "prints a wrong time": (
        f"echo '{printed(token='t', expirationTimestamp='soon')}'",
        "expirationTimestamp",
    ),
}


@pytest.mark.parametrize("how", PROGRAMS)
async def test_programs_that_fail(how: str, tmp_path: Path) -> None:
    text, what = PROGRAMS[how]
    found = config.load(write(tmp_path, kubeconfig({"exec": program(tmp_path, text)})))
    with pytest.raises(CredentialError, match="login: ") as caught:
        await credential(found.credentials)
    assert what in str(caught.value)


async def test_a_program_that_is_not_there_has_a_hint(tmp_path: Path) -> None:
    run = {
        "command": "no-such-program",
        "apiVersion": "client.authentication.k8s.io/v1beta1",
        "installHint": "get it",
    }
    found = config.load(write(tmp_path, kubeconfig({"exec": run})))
    with pytest.raises(CredentialError, match="no-such-program: No such file or directory; get it"):
        await credential(found.credentials)


async def test_an_empty_token_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("\n")
    with pytest.raises(CredentialError, match="empty"):
        await credential(TokenFile(tmp_path / "token"))


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=5)
    | st.sampled_from(["c", "u", "here", "https://h"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "name",
                    "cluster",
                    "user",
                    "context",
                    "server",
                    "token",
                    "exec",
                    "command",
                    "args",
                    "env",
                    "as-groups",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["current-context", "contexts", "clusters", "users"]), anything))
def test_any_content_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, change: dict[str, Any]
) -> None:
    file = tmp_path_factory.getbasetemp() / "any-kubeconfig"
    file.write_bytes(msgspec.json.encode({**kubeconfig(), **change}))
    try:
        config.load(file)
    except ConfigError as error:
        assert error.file.startswith(str(file))
