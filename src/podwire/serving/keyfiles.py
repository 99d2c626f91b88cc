"""A server's certificates as files, which only their owner can read."""

from __future__ import annotations

import json
import os
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from podwire.serving import certificates

_RENEWED_BEFORE = 30 * 86400.0
"""Seconds before its end at which a certificate is replaced."""


@dataclass(frozen=True)
class KeyFiles:
    """Certificates of ``owner`` below a directory, among them one for ``client``, if that is given."""

    directory: Path
    owner: str
    client: certificates.Subject | None = None

    @property
    def authority(self) -> Path:
        """The certificate of the authority."""
        return self.directory / "ca.crt"

    @property
    def client_pair(self) -> tuple[Path, Path]:
        """The client's certificate and key."""
        return self.directory / "client.crt", self.directory / "client.key"

    def tls(self, names: tuple[str, ...]) -> ssl.SSLContext:
        """What the server shows to clients; made anew when it is missing, ends soon, or lacks a name."""
        certificate, key = self.directory / "server.crt", self.directory / "server.key"
        wanted = [certificate, key, self.authority, *(self.client_pair if self.client else ())]
        if not (all(path.exists() for path in wanted) and self._good_for(names)):
            bundle = certificates.make(self.owner, names, client=self.client)
            write(self.authority, bundle.authority)
            write(certificate, bundle.server.certificate)
            write(key, bundle.server.key)
            if bundle.client is not None:
                for path, text in zip(self.client_pair, bundle.client, strict=True):
                    write(path, text)
            made = {"names": names, "made": datetime.now(UTC).isoformat()}
            write(self.directory / "names", json.dumps(made) + "\n")
        return server_context(certificate, key)

    def _good_for(self, names: tuple[str, ...]) -> bool:
        try:
            held = json.loads((self.directory / "names").read_text())
            age = datetime.now(UTC) - datetime.fromisoformat(held["made"])
            return set(names) <= set(held["names"]) and age.total_seconds() < (
                certificates.LIFETIME.total_seconds() - _RENEWED_BEFORE
            )
        except (OSError, ValueError, KeyError, TypeError):
            return False


def server_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """A server's side of TLS with this certificate. Raise OSError (ssl.SSLError among it)."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate, key)
    return context


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
