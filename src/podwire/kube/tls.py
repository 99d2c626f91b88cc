"""The TLS side of a client: what a server must prove, and the certificate that is shown to it."""

from __future__ import annotations

import os
import ssl

from podwire.kube.config import Config
from podwire.kube.credentials import Credential
from podwire.kube.errors import ConfigError, CredentialError


def context(config: Config, credential: Credential) -> ssl.SSLContext:
    """The context for a server's connections. Raises ConfigError, CredentialError."""
    made = ssl.create_default_context()
    if config.ca:
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            made.load_verify_locations(cadata=config.ca.decode())
        except (ssl.SSLError, ValueError) as error:
            raise ConfigError(f"not a PEM certificate: {error}", field="certificate-authority") from error
    if config.insecure:
        made.check_hostname = False
        made.verify_mode = ssl.CERT_NONE
    if credential.certificate:
        try:
            _load_pair(made, credential)
        except (ssl.SSLError, ValueError) as error:
            raise CredentialError(f"client certificate and key: {error}") from error
    return made


def _load_pair(made: ssl.SSLContext, credential: Credential) -> None:
    # OpenSSL's call takes files only; a file in memory keeps the key off the disk.
    with os.fdopen(os.memfd_create("client"), "wb") as file:
        file.write(credential.certificate.rstrip() + b"\n" + credential.key)
        file.flush()
        made.load_cert_chain(f"/proc/self/fd/{file.fileno()}", password=_no_password)


def _no_password() -> str:
    raise ValueError("the key is encrypted: a key without a password is needed")
