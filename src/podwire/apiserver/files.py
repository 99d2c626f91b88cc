"""The files of the server: token, certificates and kubeconfig, which only their owner can read."""

from __future__ import annotations

import base64
import json
import os
import secrets
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from podwire.apiserver import certificates

NAMES = ("localhost", "127.0.0.1", "::1", "kubernetes.default.svc")
_RENEWED_BEFORE = 30 * 86400.0
"""Seconds before its end at which a certificate is replaced."""


@dataclass(frozen=True)
class Files:
    """Where things are below the state directory of the server."""

    directory: Path

    @property
    def database(self) -> Path:
        """The objects."""
        return self.directory / "objects.db"

    @property
    def kubeconfig(self) -> Path:
        """For clients: address, authority and token."""
        return self.directory / "kubeconfig"

    @property
    def authority(self) -> Path:
        """The certificate of the authority."""
        return self.directory / "ca.crt"

    def prepare(self) -> None:
        """Make the directory, for its owner alone."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.directory.chmod(0o700)

    def token(self) -> str:
        """The token; made when there is none."""
        path = self.directory / "token"
        try:
            found = path.read_text().strip()
        except FileNotFoundError:
            found = ""
        if not found:
            found = secrets.token_urlsafe(32)
            write(path, found + "\n")
        return found

    def tls(self, extra: tuple[str, ...] = ()) -> ssl.SSLContext:
        """What the server shows to clients; made anew when it is missing, ends soon, or lacks a name."""
        paths = [self.directory / name for name in ("server.crt", "server.key", "names")]
        names = tuple(dict.fromkeys((*NAMES, *extra)))
        if not self._usable(paths, names):
            bundle = certificates.make(names)
            write(self.authority, bundle.authority)
            write(paths[0], bundle.certificate)
            write(paths[1], bundle.key)
            made = {"names": names, "made": datetime.now(UTC).isoformat()}
            write(paths[2], json.dumps(made) + "\n")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(paths[0], paths[1])
        return context

    def _usable(self, paths: list[Path], names: tuple[str, ...]) -> bool:
        if not all(path.exists() for path in (*paths, self.authority)):
            return False
        try:
            held = json.loads(paths[2].read_text())
            age = datetime.now(UTC) - datetime.fromisoformat(held["made"])
            return set(names) <= set(held["names"]) and age.total_seconds() < (
                certificates.LIFETIME.total_seconds() - _RENEWED_BEFORE
            )
        except (ValueError, KeyError, TypeError):
            return False

    def write_kubeconfig(self, url: str, token: str) -> None:
        """Tell clients where the server is now."""
        cluster = {
            "server": url,
            "certificate-authority-data": base64.b64encode(self.authority.read_bytes()).decode(),
        }
        context = {"cluster": "podwire", "user": "podwire", "namespace": "default"}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "podwire", "cluster": cluster}],
            "users": [{"name": "podwire", "user": {"token": token}}],
            "contexts": [{"name": "podwire", "context": context}],
            "current-context": "podwire",
        }
        # JSON is YAML too.
        write(self.kubeconfig, json.dumps(config, indent=2) + "\n")


def write(path: Path, text: str) -> None:
    """Put a file of mode 0600 in place at once."""
    made = path.with_name(f".{path.name}.{os.getpid()}")
    fd = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        made.replace(path)
    except BaseException:
        made.unlink(missing_ok=True)
        raise
