"""HTTP to one API server: connections, credentials, deadlines, and errors as typed values."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
import urllib.request
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from aiohttp.connector import Connection

from podwire import __version__
from podwire.kube import tls
from podwire.kube.clock import SECOND, Clock, deadline
from podwire.kube.config import Config, check_proxy
from podwire.kube.credentials import Credential
from podwire.kube.errors import (
    ConnectFailed,
    ConnectionFailed,
    ConnectionRefused,
    DeadlinePassed,
    KubeError,
)

USER_AGENT = f"podwire/{__version__}"
MAX_RETRY_AFTER = 300.0
"""A server's wish to be left alone is heeded up to here, in seconds."""
_NOT_THERE = (errno.ECONNREFUSED, errno.ENOENT)
_KEPT = 25.0
"""Seconds for which an idle connection is kept for the next request."""
_NO_LIMIT = aiohttp.ClientTimeout(
    total=None, connect=None, sock_read=None, sock_connect=None, ceil_threshold=1e9
)
# The kernel finds out in 35 s that the other end of a silent connection is gone.
_KEEPALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 35_000),
)


class _Response(aiohttp.ClientResponse):
    """One that knows its transport still when its connection is given back, as at the end of an answer."""

    channel: asyncio.Transport | None = None

    async def start(self, connection: Connection) -> _Response:
        self.channel = connection.transport
        await super().start(connection)
        return self


class Transport:
    """Connections to one server. Those of watches are apart: they are long, and never used again."""

    def __init__(
        self, config: Config, clock: Clock, *, user_agent: str = USER_AGENT, connections: int = 32
    ) -> None:
        parts = urlsplit(config.server)
        self._socket = parts.path if parts.scheme == "unix" else ""
        self._base = "http://localhost" if self._socket else config.server.rstrip("/")
        self._secure = parts.scheme == "https"
        self._proxy = _proxy(config)
        self._config = config
        self._clock = clock
        self._user_agent = user_agent
        self._connections = connections
        self._sessions: dict[bool, aiohttp.ClientSession] = {}
        self._tls: tuple[Credential, ssl.SSLContext] | None = None
        self._closed = False

    async def close(self) -> None:
        """Close all connections; requests that run end with ConnectionFailed."""
        self._closed = True
        for session in self._sessions.values():
            await session.close()
        self._sessions.clear()

    @asynccontextmanager
    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        timeout: float | None = None,
        watch: bool = False,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """One exchange, whatever its status. ``timeout`` is for the whole block, in seconds.

        An answer of 401 leads to one more try with renewed credentials. Raises ConnectionFailed and its
        subclasses, CredentialError, ConfigError.
        """
        try:
            async with deadline(self._clock, timeout):
                response = await self._send(method, path, params, headers, body, watch=watch, refused=False)
                if response.status == 401:
                    _leave(response, kept=False)
                    response = await self._send(
                        method, path, params, headers, body, watch=watch, refused=True
                    )
                try:
                    yield response
                finally:
                    # A connection whose answer was read to its end is released, any other closed.
                    _leave(response, kept=not watch and response.content.at_eof())
        except TimeoutError as error:
            raise DeadlinePassed(f"{method} {path}: not done in {timeout:g} s", error) from error
        except (aiohttp.ClientError, OSError) as error:
            raise connection_error(error, f"{method} {path}") from error

    async def _send(
        self,
        method: str,
        path: str,
        params: Mapping[str, str] | None,
        headers: Mapping[str, str] | None,
        body: bytes | None,
        *,
        watch: bool,
        refused: bool,
    ) -> _Response:
        credential = await self._config.credentials.get(self._clock, refused=refused)
        sent = list({"Accept": "application/json", **(headers or {})}.items())
        if credential.authorization:
            sent.append(("Authorization", credential.authorization))
        for name, value in self._config.impersonate.items():
            sent += [(name, each) for each in ([value] if isinstance(value, str) else value)]
        options: dict[str, Any] = {}
        if self._secure:
            options["ssl"] = self._context(credential)
            if self._config.tls_server_name:
                options["server_hostname"] = self._config.tls_server_name
        if self._proxy:
            options["proxy"] = self._proxy
        response = await self._session(watch).request(
            method,
            self._base + path,
            params=dict(params or {}),
            headers=sent,
            data=body,
            allow_redirects=False,
            **options,
        )
        assert isinstance(response, _Response)
        return response

    def _context(self, credential: Credential) -> ssl.SSLContext:
        known = self._tls
        if known is None or (known[0].certificate, known[0].key) != (credential.certificate, credential.key):
            known = self._tls = credential, tls.context(self._config, credential)
        return known[1]

    def _session(self, watch: bool) -> aiohttp.ClientSession:
        if self._closed:
            raise ConnectFailed("the client is closed")
        session = self._sessions.get(watch)
        if session is None:
            limit = 0 if watch else self._connections
            connector: aiohttp.BaseConnector
            if self._socket:
                connector = aiohttp.UnixConnector(self._socket, limit=limit, force_close=watch)
            else:
                connector = aiohttp.TCPConnector(
                    limit=limit,
                    force_close=watch,
                    keepalive_timeout=None if watch else _KEPT,
                    socket_factory=_socket,
                )
            session = self._sessions[watch] = aiohttp.ClientSession(
                connector=connector,
                timeout=_NO_LIMIT,
                headers={"User-Agent": self._user_agent},
                cookie_jar=aiohttp.DummyCookieJar(),
                response_class=_Response,
                skip_auto_headers=() if not watch else ("Accept-Encoding",),
            )
            # aiohttp would repeat what was lost with its connection, writes as well; `Client` decides that.
            session._retry_connection = False
        return session

    def retry_after(self, response: aiohttp.ClientResponse) -> float | None:
        """Seconds that the header Retry-After asks for, a number or a date (RFC 9110, 10.2.3)."""
        value = response.headers.get("Retry-After", "").strip()
        if not value:
            return None
        if value.isascii() and value.isdigit():
            return min(float(value), MAX_RETRY_AFTER)
        try:
            at = parsedate_to_datetime(value)
        except ValueError:
            return None
        at = at if at.tzinfo else at.replace(tzinfo=UTC)
        return min(max(0.0, at.timestamp() - self._clock.wall() / SECOND), MAX_RETRY_AFTER)


def _leave(response: _Response, *, kept: bool) -> None:
    response.release() if kept else response.close()
    if response.channel is not None and (not kept or response.channel.is_closing()):
        # TLS would wait for the other end to take its leave, with a socket nobody owns.
        response.channel.abort()


def connection_error(error: BaseException, what: str) -> KubeError:
    """The typed error for one of aiohttp or the system."""
    if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ClientConnectionResetError):
        number = getattr(getattr(error, "os_error", None), "errno", None)
        if number in _NOT_THERE:
            return ConnectionRefused(f"{what}: {os.strerror(number)}", error)
        if isinstance(error, aiohttp.ClientConnectorError):
            return ConnectFailed(f"{what}: {error}", error)
    if isinstance(error, aiohttp.ClientPayloadError):
        return ConnectionFailed(f"{what}: the connection ended in the middle of the answer", error)
    if isinstance(error, aiohttp.ClientHttpProxyError | aiohttp.ClientSSLError):
        return ConnectFailed(f"{what}: {error}", error)
    return ConnectionFailed(f"{what}: {str(error) or type(error).__name__}", error)


def _socket(address: Any) -> socket.socket:
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    for level, option, value in _KEEPALIVE:
        made.setsockopt(level, option, value)
    return made


def _proxy(config: Config) -> str:
    parts = urlsplit(config.server)
    if parts.scheme == "unix":
        return ""
    proxy = config.proxy
    if not proxy and not urllib.request.proxy_bypass_environment(parts.netloc):  # type: ignore[attr-defined]
        proxy = urllib.request.getproxies_environment().get(parts.scheme, "")
    if proxy and not config.proxy:
        check_proxy(proxy)
    return proxy
