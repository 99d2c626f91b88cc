"""The files of the server: token, certificates and kubeconfig, which only their owner can read."""

from __future__ import annotations

import base64
import json
import secrets
import ssl
from dataclasses import dataclass
from pathlib import Path

from podwire.serving.certificates import Subject
from podwire.serving.keyfiles import KeyFiles, write

NAMES = ("localhost", "127.0.0.1", "::1", "kubernetes.default.svc")
KUBELET_CLIENT = Subject("kube-apiserver-kubelet-client", ("system:masters",))
"""Who the server is to kubelets (kubeadm's name for it)."""


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
        return self.keys.authority

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

    @property
    def keys(self) -> KeyFiles:
        """The certificates: the server's, and the one that it shows to the kubelets of its nodes."""
        return KeyFiles(self.directory, "podwire-apiserver", KUBELET_CLIENT)

    def tls(self, extra: tuple[str, ...] = ()) -> ssl.SSLContext:
        """What the server shows to clients, good for ``extra`` names too."""
        return self.keys.tls(tuple(dict.fromkeys((*NAMES, *extra))))

    def kubelet_tls(self) -> ssl.SSLContext:
        """What the server shows to kubelets, whose own certificates are not verified."""
        if not all(path.exists() for path in self.keys.client_pair):
            self.tls()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.load_cert_chain(*self.keys.client_pair)
        return context

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
