"""Which server, and as whom: kubeconfig files, or what a pod finds in itself.

As kubectl reads them: KUBECONFIG is a list of files of which the first to set a value wins; paths are
relative to the file that they stand in. Source: k8s.io/client-go/tools/clientcmd.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import SplitResult, urlsplit

import msgspec
import yaml

from podwire.kube.credentials import (
    EXEC_VERSIONS,
    CertificateFiles,
    Credential,
    Credentials,
    Fixed,
    Program,
    ProgramCredentials,
    TokenFile,
    basic,
    bearer,
)
from podwire.kube.errors import ConfigError
from podwire.kube.urls import host_fault, url_fault

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
DEFAULT_FILE = Path("~/.kube/config")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """One server and one user.

    ``server`` is an ``http://`` or ``https://`` URL, which may have a path, or ``unix:///path/to/socket``.
    ``ca`` is PEM; empty for the system's authorities. Raises ConfigError, with the field as in a kubeconfig.
    """

    server: str
    ca: bytes = b""
    insecure: bool = False
    tls_server_name: str = ""
    proxy: str = ""
    namespace: str = "default"
    credentials: Credentials = field(default_factory=Fixed)
    impersonate: Mapping[str, str | list[str]] = field(default_factory=dict)
    """Headers ``Impersonate-...`` and their values."""

    def __post_init__(self) -> None:
        parts = _split(self.server)
        if parts is None or parts.scheme not in ("http", "https", "unix"):
            raise ConfigError(f"an http(s) or unix URL is expected, not {self.server!r}", field="server")
        if parts.scheme == "unix":
            wrong = "" if parts.path.startswith("/") and not parts.netloc else "a path of a socket is needed"
        elif parts.username is not None:
            raise ConfigError("user and password belong to the user, not to the cluster", field="server")
        elif parts.query or parts.fragment:
            wrong = "it ends with its path"
        else:
            wrong = url_fault(self.server)
        if wrong:
            raise ConfigError(f"{self.server!r}: {wrong}", field="server")
        if self.proxy:
            check_proxy(self.proxy)
        if self.tls_server_name and (wrong := host_fault(self.tls_server_name)):
            raise ConfigError(wrong, field="tls-server-name")


def check_proxy(proxy: str) -> None:
    """Raise ConfigError for what is no proxy that is known here."""
    parts = _split(proxy)
    if parts is None or parts.scheme not in ("http", "https"):
        raise ConfigError(f"{proxy!r}: only proxies of HTTP are known", field="proxy-url")
    if wrong := url_fault(proxy):
        raise ConfigError(f"{proxy!r}: {wrong}", field="proxy-url")


def _split(url: str) -> SplitResult | None:
    try:
        return urlsplit(url)
    except ValueError:
        return None


def load(path: Path | str | None = None, *, context: str | None = None) -> Config:
    """The configuration that ``kubectl`` would use here, or a pod in a cluster. Raises ConfigError.

    In this order: ``path``, the environment variable KUBECONFIG, the service account of the pod that this
    process runs in, ``~/.kube/config``.
    """
    if path is not None:
        return from_files([Path(path)], context=context)
    listed = [Path(each) for each in os.environ.get("KUBECONFIG", "").split(os.pathsep) if each]
    if listed:
        there = [each for each in (path.expanduser() for path in listed) if each.exists()]
        if not there:
            raise ConfigError("no such file", file=os.pathsep.join(map(str, listed)), field="KUBECONFIG")
        return from_files(there, context=context)
    if os.environ.get("KUBERNETES_SERVICE_HOST") and (SERVICE_ACCOUNT / "token").exists():
        return in_cluster()
    default = DEFAULT_FILE.expanduser()
    if not default.exists():
        raise ConfigError(
            "no configuration: neither KUBECONFIG, nor a service account, nor this file", file=str(default)
        )
    return from_files([default], context=context)


def in_cluster(directory: Path | None = None) -> Config:
    """The configuration of a pod: its service account, and the API's address from the environment."""
    directory = directory or SERVICE_ACCOUNT
    host, port = (os.environ.get(f"KUBERNETES_SERVICE_{part}", "") for part in ("HOST", "PORT"))
    if not host or not port:
        missing = "KUBERNETES_SERVICE_PORT" if host else "KUBERNETES_SERVICE_HOST"
        raise ConfigError("not set: this process does not run in a pod", field=missing)
    namespace = directory / "namespace"
    server = f"https://{f'[{host}]' if ':' in host else host}:{port}"
    if wrong := url_fault(server):
        raise ConfigError(f"{server!r}: {wrong}", field="KUBERNETES_SERVICE_HOST, KUBERNETES_SERVICE_PORT")
    return Config(
        server=server,
        ca=_read(directory / "ca.crt", "", ""),
        namespace=namespace.read_text().strip() if namespace.exists() else "default",
        credentials=TokenFile(directory / "token"),
    )


class _Entry(NamedTuple):
    """One named cluster, user or context, and where it stands."""

    file: str
    field: str
    value: Mapping[str, Any]

    def text(self, name: str) -> str:
        """A member that is a string; empty if it is not there."""
        value = self.value.get(name)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise ConfigError(f"a string is expected, not {value!r}", file=self.file, field=self.at(name))
        return value

    def flag(self, name: str) -> bool:
        """A member that is true or false; False if it is not there."""
        value = self.value.get(name, False)
        if not isinstance(value, bool):
            raise ConfigError(
                f"true or false is expected, not {value!r}", file=self.file, field=self.at(name)
            )
        return value

    def data(self, name: str) -> bytes:
        """``NAME-data`` in base64, else the file that ``NAME`` names, else nothing."""
        inline = self.text(f"{name}-data")
        if inline:
            try:
                return base64.b64decode(inline, validate=True)
            except (binascii.Error, ValueError) as error:
                raise ConfigError(
                    f"base64: {error}", file=self.file, field=self.at(f"{name}-data")
                ) from error
        path = self.path(name)
        return _read(path, self.file, self.at(name)) if path else b""

    def path(self, name: str) -> Path | None:
        """A member that names a file, relative to the file that it stands in."""
        text = self.text(name)
        return Path(self.file).parent / text if text else None

    def at(self, name: str) -> str:
        return f"{self.field}.{name}"


def from_files(paths: list[Path], *, context: str | None = None) -> Config:
    """The configuration that these kubeconfig files give together. Raises ConfigError."""
    sections: dict[str, dict[str, _Entry]] = {"clusters": {}, "users": {}, "contexts": {}}
    current = context or ""
    for path in paths:
        file = path.expanduser()
        content = _parse(file)
        if not current:
            current = _Entry(str(file), "", content).text("current-context")
        for section, found in sections.items():
            for name, entry in _named(str(file), content, section):
                found.setdefault(name, entry)
    where = os.pathsep.join(map(str, paths))
    if not current:
        raise ConfigError("no context is chosen", file=where, field="current-context")
    chosen = _pick(sections["contexts"], current, where, "contexts")
    cluster = _pick(sections["clusters"], chosen.text("cluster"), chosen.file, chosen.at("cluster"))
    user_name = chosen.text("user")
    user = _pick(sections["users"], user_name, chosen.file, chosen.at("user")) if user_name else None
    return _combine(chosen, cluster, user)


def _combine(context: _Entry, cluster: _Entry, user: _Entry | None) -> Config:
    ca = cluster.data("certificate-authority")
    try:
        return Config(
            server=cluster.text("server").rstrip("/"),
            ca=ca,
            insecure=cluster.flag("insecure-skip-tls-verify"),
            tls_server_name=cluster.text("tls-server-name"),
            proxy=cluster.text("proxy-url"),
            namespace=context.text("namespace") or "default",
            credentials=_credentials(user, cluster, ca) if user is not None else Fixed(),
            impersonate=_impersonation(user) if user is not None else {},
        )
    except ConfigError as error:
        if error.file:
            raise
        raise ConfigError(error.message, file=cluster.file, field=cluster.at(error.field)) from error


def _credentials(user: _Entry, cluster: _Entry, ca: bytes) -> Credentials:
    certificate, key = user.path("client-certificate"), user.path("client-key")
    in_files = (
        certificate and key and not (user.text("client-certificate-data") or user.text("client-key-data"))
    )
    pair = user.data("client-certificate"), user.data("client-key")
    if bool(pair[0]) != bool(pair[1]):
        missing = "client-key" if pair[0] else "client-certificate"
        raise ConfigError("certificate and key belong together", file=user.file, field=user.at(missing))
    if user.value.get("auth-provider") is not None:
        raise ConfigError(
            "was removed from Kubernetes in 1.26: use exec", file=user.file, field=user.at("auth-provider")
        )
    token_file = user.path("tokenFile")
    if token_file is not None:
        return TokenFile(token_file, *pair)
    if user.text("token"):
        return Fixed(bearer(user.text("token"), *pair))
    if user.value.get("exec") is not None:
        return ProgramCredentials(_program(user, cluster, ca))
    if user.text("username"):
        return Fixed(basic(user.text("username"), user.text("password")))
    if in_files and certificate is not None and key is not None:
        return CertificateFiles(certificate, key)
    return Fixed(Credential("", *pair))


def _program(user: _Entry, cluster: _Entry, ca: bytes) -> Program:
    value = user.value["exec"]
    if not isinstance(value, dict):
        raise ConfigError("a mapping is expected", file=user.file, field=user.at("exec"))
    entry = _Entry(user.file, user.at("exec"), value)
    version, command = entry.text("apiVersion"), entry.text("command")
    if version not in EXEC_VERSIONS:
        raise ConfigError(
            f"{version!r} is none of {', '.join(EXEC_VERSIONS)}", file=user.file, field=entry.at("apiVersion")
        )
    if not command:
        raise ConfigError("is needed", file=user.file, field=entry.at("command"))
    if entry.text("interactiveMode") == "Always":
        raise ConfigError(
            "Always: there is no terminal to ask at", file=user.file, field=entry.at("interactiveMode")
        )
    args = value.get("args") or []
    env = value.get("env") or []
    if not isinstance(args, list) or not all(isinstance(each, str) for each in args):
        raise ConfigError("a list of strings is expected", file=user.file, field=entry.at("args"))
    if not isinstance(env, list) or not all(
        isinstance(each, dict) and isinstance(each.get("name"), str) and isinstance(each.get("value"), str)
        for each in env
    ):
        raise ConfigError("a list of name and value is expected", file=user.file, field=entry.at("env"))
    # As a shell: a command with a slash is a path, relative to the file; others are searched for.
    if "/" in command:
        command = str(Path(user.file).parent / command)
    told = b""
    if entry.flag("provideClusterInfo"):
        told = _cluster_info(cluster, ca)
    return Program(
        command,
        version,
        tuple(args),
        tuple((each["name"], each["value"]) for each in env),
        entry.text("installHint"),
        told,
    )


def _cluster_info(cluster: _Entry, ca: bytes) -> bytes:
    info: dict[str, Any] = {"server": cluster.text("server"), "config": None}
    for name, value in (
        ("tls-server-name", cluster.text("tls-server-name")),
        ("insecure-skip-tls-verify", cluster.flag("insecure-skip-tls-verify")),
        ("certificate-authority-data", base64.b64encode(ca).decode()),
        ("proxy-url", cluster.text("proxy-url")),
    ):
        if value:
            info[name] = value
    for each in cluster.value.get("extensions") or []:
        if isinstance(each, dict) and each.get("name") == "client.authentication.k8s.io/exec":
            info["config"] = each.get("extension")
    return msgspec.json.encode(info)


def _impersonation(user: _Entry) -> dict[str, str | list[str]]:
    headers: dict[str, str | list[str]] = {}
    if user.text("as"):
        headers["Impersonate-User"] = user.text("as")
    if user.text("as-uid"):
        headers["Impersonate-Uid"] = user.text("as-uid")
    groups = user.value.get("as-groups")
    if groups:
        headers["Impersonate-Group"] = [str(each) for each in groups]
    for name, values in (user.value.get("as-user-extra") or {}).items():
        headers[f"Impersonate-Extra-{name}"] = [str(each) for each in values]
    return headers


def _parse(file: Path) -> Mapping[str, Any]:
    text = _read(file, "", "")
    try:
        content = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{file}:{mark.line + 1}:{mark.column + 1}" if mark is not None else str(file)
        raise ConfigError(f"not YAML: {getattr(error, 'problem', error)}", file=place) from error
    except ValueError as error:  # a time or a number that is none
        raise ConfigError(f"not YAML: {error}", file=str(file)) from error
    if not isinstance(content, dict):
        raise ConfigError("a mapping with clusters, users and contexts is expected", file=str(file))
    return content


def _named(file: str, content: Mapping[str, Any], section: str) -> list[tuple[str, _Entry]]:
    entries = content.get(section) or []
    if not isinstance(entries, list):
        raise ConfigError("a list is expected", file=file, field=section)
    found = []
    for number, each in enumerate(entries):
        place = f"{section}[{number}]"
        name = each.get("name") if isinstance(each, dict) else None
        if not isinstance(name, str):
            raise ConfigError("a name is needed", file=file, field=f"{place}.name")
        value = each.get(section[:-1])
        if value is None:
            value = {}
        if not isinstance(value, dict):
            raise ConfigError("a mapping is expected", file=file, field=f"{place}.{section[:-1]}")
        found.append((name, _Entry(file, f"{place}.{section[:-1]}", value)))
    return found


def _pick(found: Mapping[str, _Entry], name: str, file: str, where: str) -> _Entry:
    entry = found.get(name)
    if entry is None:
        known = ", ".join(sorted(found)) or "none"
        raise ConfigError(f"{name!r} is not there; known: {known}", file=file, field=where)
    return entry


def _read(path: Path, file: str, where: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        if not file:
            raise ConfigError(error.strerror or str(error), file=str(path)) from error
        raise ConfigError(f"{path}: {error.strerror}", file=file, field=where) from error
