"""A scripted server that also keeps single objects: create, get, replace, merge patch, delete."""

from __future__ import annotations

from typing import Any

import msgspec

from podwire.kube.clock import Clock
from podwire.kube.testing.server import Exchange, ScriptedServer
from podwire.kube.testing.world import World


def merged(found: Any, change: Any) -> Any:
    """RFC 7396."""
    if not isinstance(change, dict):
        return change
    result = dict(found) if isinstance(found, dict) else {}
    for name, value in change.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result


class ObjectServer(ScriptedServer):
    """Objects by path."""

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(World(), clock)
        self.kept: dict[str, dict[str, Any]] = {}
        self.version = 0

    async def honest(self, exchange: Exchange) -> None:
        """What a server should do, of single objects too."""
        request = exchange.request
        body = msgspec.json.decode(request.body) if request.body else {}
        found = self.kept.get(request.path)
        if request.method == "POST":
            path = f"{request.path}/{body['metadata']['name']}"
            if path in self.kept:
                await exchange.status(409, "AlreadyExists")
            else:
                body["metadata"]["uid"] = f"uid-{self.version}"
                await self._keep(exchange, path, body, 201)
        elif request.path == "/version" or request.verb in ("list", "watch"):
            await super().honest(exchange)
        elif found is None:
            await exchange.status(404, "NotFound")
        elif request.method == "GET":
            await exchange.answer(200, found)
        elif request.method == "PUT":
            wanted = body["metadata"].get("resourceVersion")
            if wanted and wanted != found["metadata"]["resourceVersion"]:
                await exchange.status(409, "Conflict")
            else:
                await self._keep(exchange, request.path, body)
        elif request.method == "PATCH":
            await self._keep(exchange, request.path, merged(found, body))
        elif request.method == "DELETE":
            uid = body.get("preconditions", {}).get("uid", found["metadata"]["uid"])
            if uid != found["metadata"]["uid"]:
                await exchange.status(409, "Conflict")
            else:
                del self.kept[request.path]
                await exchange.answer(200, {"kind": "Status", "apiVersion": "v1", "status": "Success"})

    async def _keep(self, exchange: Exchange, path: str, found: dict[str, Any], code: int = 200) -> None:
        self.version += 1
        found["metadata"]["resourceVersion"] = str(self.version)
        self.kept[path] = found
        await exchange.answer(code, found)
