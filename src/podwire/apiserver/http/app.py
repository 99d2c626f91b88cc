"""The API server as an aiohttp application."""

from __future__ import annotations

import asyncio
import hmac
import logging
import platform
import socket
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from podwire.apiserver.http import request as asked
from podwire.apiserver.http.answers import answer
from podwire.apiserver.http.backend import NodeBackend
from podwire.apiserver.http.discovery import Discovery
from podwire.apiserver.http.openapi import OpenApi
from podwire.apiserver.http.paths import parse
from podwire.apiserver.http.resources import Resources
from podwire.apiserver.registry import Registry
from podwire.kube import release
from podwire.serving import status
from podwire.serving.answers import failed
from podwire.serving.status import Failure

log = logging.getLogger(__name__)

USER = "podwire-admin"
GROUPS = ("system:masters", "system:authenticated")
WRITE_TIMEOUT = 60.0
_OPEN = ("healthz", "livez", "readyz", "version")
"""First parts of paths that need no token."""

Extra = Callable[[web.Request, list[str]], Awaitable[web.StreamResponse | None]]


@dataclass(frozen=True)
class Access:
    """Who may ask: holders of ``token``, and whoever can connect to a unix socket; all if it is empty."""

    token: str = ""

    def allows(self, request: web.Request) -> bool:
        """Whether the request carries the token, or needs none."""
        if not self.token or _local(request):
            return True
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), self.token.encode())


def _local(request: web.Request) -> bool:
    transport = request.transport
    connection = None if transport is None else transport.get_extra_info("socket")
    return connection is not None and connection.family == socket.AF_UNIX


class Server:
    """Answers all requests; ``extra`` are asked for paths that nobody else knows."""

    def __init__(
        self,
        registry: Registry,
        *,
        access: Access = Access(),
        backend: NodeBackend | None = None,
    ) -> None:
        self.registry = registry
        self.access = access
        self.extra: list[Extra] = [OpenApi(registry).serve]
        self.ready: Callable[[], bool] = lambda: True
        self._resources = Resources(registry, backend)
        self._discovery = Discovery(registry)

    def application(self) -> web.Application:
        """The application to be served."""
        app = web.Application(client_max_size=asked.BODY_AT_MOST)
        app.router.add_route("*", "/{path:.*}", self.handle)
        return app

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one request; failures become Status objects."""
        started = time.monotonic()
        code = 0
        try:
            response = await self._answer(request)
            code = response.status
        except Failure as failure:
            response = failed(failure)
            code = failure.code
        except TimeoutError:
            code = 504
            response = failed(
                Failure(504, "Timeout", "Timeout: request did not complete within the allotted timeout")
            )
        except (web.HTTPException, ConnectionError, asyncio.CancelledError):
            raise
        except Exception as error:
            log.exception("%s %s", request.method, request.rel_url)
            code = 500
            response = failed(status.internal_error(f"{type(error).__name__}: {error}"))
        finally:
            if log.isEnabledFor(logging.INFO):
                took = 1000 * (time.monotonic() - started)
                agent = request.headers.get("User-Agent", "-").split(" ")[0]
                log.info("%s %s %s %.1fms %s", request.method, request.rel_url, code or "-", took, agent)
        if not response.prepared:
            response.headers["Audit-Id"] = str(uuid.UUID(int=time.time_ns()))
        return response

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        parts = [part for part in request.path.split("/") if part]
        first = parts[0] if parts else ""
        if first not in _OPEN and not self.access.allows(request):
            raise status.unauthorized()
        target = parse(request.rel_url.raw_path)
        if target is not None:
            if request.method == "GET":
                return await self._resources.serve(request, target, USER)
            async with asyncio.timeout(None if target.subresource else WRITE_TIMEOUT):
                return await self._resources.serve(request, target, USER)
        if request.method not in ("GET", "HEAD"):
            raise status.no_such_path()
        for extra in self.extra:
            answered = await extra(request, parts)
            if answered is not None:
                return answered
        found = self._discovery.serve(request, parts) or self._other(request, parts)
        if found is None:
            raise status.no_such_path()
        return found

    def _other(self, request: web.Request, parts: list[str]) -> web.Response | None:
        match parts:
            case []:
                return answer({"paths": self._paths()})
            case ["version"]:
                return answer(version())
            case ["healthz" | "livez" | "readyz" as endpoint, *only]:
                return self._health(request, endpoint, only)
        return None

    def _health(self, request: web.Request, endpoint: str, only: list[str]) -> web.Response | None:
        """As k8s.io/apiserver/pkg/server/healthz answers: ``ok``, or with ``verbose`` each check by name."""
        checks = {"ping": True}
        if endpoint == "readyz":
            checks["storage"] = self.ready()
        if only:
            checks = {name: good for name, good in checks.items() if [name] == only}
            if not checks:
                return None
        well = all(checks.values())
        if well and "verbose" not in request.query:
            return web.Response(text="ok")
        lines = [f"[+]{name} ok" if good else f"[-]{name} failed" for name, good in checks.items()]
        lines.append(f"{endpoint} check {'passed' if well else 'failed'}")
        return web.Response(status=200 if well else 500, text="\n".join(lines) + "\n")

    def _paths(self) -> list[str]:
        groups = [f"/apis/{group}" for group in self._discovery.groups()]
        versions = sorted({f"/apis/{k.api_version}" for k in self.registry.kinds if k.group})
        rest = ["/healthz", "/livez", "/openapi/v2", "/openapi/v3", "/readyz", "/version"]
        return ["/api", "/api/v1", "/apis", *sorted([*groups, *versions]), *rest]


def version() -> dict[str, Any]:
    """The answer to ``/version``."""
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    return {
        "major": release.MAJOR,
        "minor": release.MINOR,
        "gitVersion": release.VERSION,
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": "cpython",
        "platform": f"linux/{machine}",
    }
