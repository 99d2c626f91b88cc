"""Who a client is, to a server: tokens, token files, programs that print credentials, client certificates.

Sources: k8s.io/client-go/transport, client.authentication.k8s.io/v1 (ExecCredential).
"""

from __future__ import annotations

import asyncio
import base64
import os
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

import msgspec

from podwire.kube.apistatus import Lenient
from podwire.kube.clock import SECOND, Clock, deadline
from podwire.kube.errors import CredentialError

TOKEN_FILE_PERIOD = 60.0
"""Seconds after which a token file is read again: the kubelet renews projected tokens in place."""
EXPIRY_MARGIN = 30.0
"""Seconds before its end at which a credential is no longer used."""
EXEC_TIMEOUT = 60.0
EXEC_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")


@dataclass(frozen=True, slots=True)
class Credential:
    """What is shown to a server: an Authorization header, a certificate with key (PEM), both, or neither."""

    authorization: str = ""
    certificate: bytes = b""
    key: bytes = b""


class Credentials(Protocol):
    """Where a credential comes from."""

    async def get(self, clock: Clock, *, refused: bool = False) -> Credential:
        """The credential to use now; ``refused``: the server answered 401 to the last one.

        Raises CredentialError.
        """


class Fixed:
    """A credential that never changes."""

    def __init__(self, credential: Credential = Credential()) -> None:
        self.credential = credential

    async def get(self, clock: Clock, *, refused: bool = False) -> Credential:
        """See :class:`Credentials`."""
        return self.credential


def bearer(token: str, certificate: bytes = b"", key: bytes = b"") -> Credential:
    """A bearer token, with a certificate beside it if there is one."""
    return Credential(f"Bearer {token}", certificate, key)


def basic(user: str, password: str) -> Credential:
    """A name and a password, as proxies in front of a server may ask for."""
    return Credential("Basic " + base64.b64encode(f"{user}:{password}".encode()).decode())


class TokenFile:
    """A token in a file, read again every minute and when the server refuses it."""

    def __init__(self, path: Path, certificate: bytes = b"", key: bytes = b"") -> None:
        self.path = path
        self._pair = certificate, key
        self._read_at: float | None = None
        self._token = ""

    async def get(self, clock: Clock, *, refused: bool = False) -> Credential:
        """See :class:`Credentials`. A file that has become unreadable leaves the last token in use."""
        now = clock.monotonic()
        if self._read_at is None or refused or now - self._read_at >= TOKEN_FILE_PERIOD:
            try:
                token = self.path.read_text().strip()
            except (OSError, UnicodeDecodeError) as error:
                if not self._token:
                    raise CredentialError(f"{self.path}: {error}") from error
                token = self._token
            if not token:
                raise CredentialError(f"{self.path}: the token file is empty")
            self._token, self._read_at = token, now
        return bearer(self._token, *self._pair)


class CertificateFiles:
    """A client certificate and its key in files, read again when they change."""

    def __init__(self, certificate: Path, key: Path, authorization: str = "") -> None:
        self._paths = certificate, key
        self._authorization = authorization
        self._stamp: tuple[int, ...] = ()
        self._credential = Credential()

    async def get(self, clock: Clock, *, refused: bool = False) -> Credential:
        """See :class:`Credentials`."""
        try:
            stats = [path.stat() for path in self._paths]
            stamp = tuple(
                number for each in stats for number in (each.st_mtime_ns, each.st_ino, each.st_size)
            )
            if stamp != self._stamp:
                certificate, key = (path.read_bytes() for path in self._paths)
                self._credential = Credential(self._authorization, certificate, key)
                self._stamp = stamp
        except OSError as error:
            if not self._stamp:
                raise CredentialError(f"client certificate: {error}") from error
        return self._credential


class _ExecStatus(Lenient, frozen=True, kw_only=True):
    expiration_timestamp: str | None = None
    token: str | None = None
    client_certificate_data: str | None = None
    client_key_data: str | None = None


class _ExecCredential(Lenient, frozen=True, kw_only=True):
    api_version: str = ""
    kind: str = ""
    status: _ExecStatus | None = None


@dataclass(frozen=True, slots=True)
class Program:
    """A credential plug-in as a kubeconfig describes it (ExecConfig)."""

    command: str
    api_version: str
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    install_hint: str = ""
    cluster: bytes = b""
    """JSON of spec.cluster, for ``provideClusterInfo``; empty for none."""


class ProgramCredentials:
    """Credentials that a program prints; kept until they end or the server refuses them."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._credential: Credential | None = None
        self._ends: int | None = None
        self._lock = asyncio.Lock()

    async def get(self, clock: Clock, *, refused: bool = False) -> Credential:
        """See :class:`Credentials`. Callers that come while the program runs share its result."""
        before = self._credential
        async with self._lock:
            ended = self._ends is not None and clock.wall() >= self._ends - int(EXPIRY_MARGIN * SECOND)
            if self._credential is None or ended or (refused and self._credential is before):
                self._credential, self._ends = await self._run(clock)
            return self._credential

    async def _run(self, clock: Clock) -> tuple[Credential, int | None]:
        program = self.program
        spec = msgspec.Raw(program.cluster) if program.cluster else None
        info = {
            "apiVersion": program.api_version,
            "kind": "ExecCredential",
            "spec": {"interactive": False, **({"cluster": spec} if spec is not None else {})},
        }
        environment = {
            **os.environ,
            **dict(program.env),
            "KUBERNETES_EXEC_INFO": msgspec.json.encode(info).decode(),
        }
        try:
            process = await asyncio.create_subprocess_exec(
                program.command,
                *program.args,
                env=environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
        except OSError as error:
            hint = f"; {program.install_hint.strip()}" if program.install_hint else ""
            raise CredentialError(f"{program.command}: {error.strerror}{hint}") from error
        try:
            async with deadline(clock, EXEC_TIMEOUT):
                out, err = await process.communicate()
        except BaseException as error:
            if process.returncode is None:
                process.kill()
                await process.wait()
            if isinstance(error, TimeoutError):
                raise CredentialError(f"{program.command}: no answer in {EXEC_TIMEOUT:g} s") from error
            raise
        if process.returncode != 0:
            said = err.decode(errors="replace").strip()[-500:]
            raise CredentialError(f"{program.command}: exit code {process.returncode}: {said}")
        return self._read(out)

    def _read(self, out: bytes) -> tuple[Credential, int | None]:
        command = self.program.command
        try:
            printed = msgspec.json.decode(out, type=_ExecCredential)
        except msgspec.MsgspecError as error:
            raise CredentialError(f"{command}: what it printed is no ExecCredential: {error}") from error
        if printed.kind != "ExecCredential" or printed.api_version != self.program.api_version:
            raise CredentialError(
                f"{command}: ExecCredential of {self.program.api_version} was expected, it printed "
                f"{printed.kind or 'nothing'} of {printed.api_version!r}"
            )
        status = printed.status or _ExecStatus()
        if bool(status.client_certificate_data) != bool(status.client_key_data):
            raise CredentialError(f"{command}: clientCertificateData and clientKeyData belong together")
        if not (status.token or status.client_certificate_data):
            raise CredentialError(f"{command}: neither a token nor a certificate is in its status")
        ends = None
        if status.expiration_timestamp:
            try:
                ends = int(datetime.fromisoformat(status.expiration_timestamp).timestamp()) * SECOND
            except ValueError as error:
                raise CredentialError(f"{command}: expirationTimestamp: {error}") from error
        credential = Credential(
            f"Bearer {status.token}" if status.token else "",
            (status.client_certificate_data or "").encode(),
            (status.client_key_data or "").encode(),
        )
        return credential, ends
