"""A server in the test's own loop, and how tests ask it."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp

from podwire.apiserver.kind import WriteOptions
from podwire.apiserver.server import ApiServer, Settings

Object = dict[str, Any]
PODS = "/api/v1/namespaces/default/pods"
MAPS = "/api/v1/namespaces/default/configmaps"


class Answer:
    """An answer: code, headers and the JSON in it."""

    def __init__(self, code: int, headers: Any, body: Any) -> None:
        self.code, self.headers, self.body = code, headers, body


class Lab:
    """The server, asked over its unix socket."""

    def __init__(self, directory: Path, *, controllers: bool = True, port: bool = False) -> None:
        self.socket = directory / "api.sock"
        listen = (f"unix:{self.socket}", *(("127.0.0.1:0",) if port else ()))
        self.api = ApiServer(Settings(directory=directory / "state", listen=listen, controllers=controllers))
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        await self.api.start()
        if not self.api._settings.controllers:
            kind = self.api.registry.lookup("", "v1", "namespaces")
            assert kind is not None
            await self.api.registry.create(kind, "", {"metadata": {"name": "default"}}, WriteOptions())
        self._session = aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(self.socket)))

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
        await self.api.close()

    async def ask(
        self, method: str, path: str, body: Any = None, *, raw: bytes | None = None, **headers: str
    ) -> Answer:
        assert self._session is not None
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        data: dict[str, Any] = {"data": raw} if raw is not None else {}
        if body is not None:
            sent.setdefault("Content-Type", "application/json")
            data = {"data": io.BytesIO(json.dumps(body).encode())}
        async with self._session.request(method, f"http://x{path}", headers=sent, **data) as answer:
            text = await answer.read()
            if text and "json" in answer.headers.get("Content-Type", ""):
                return Answer(answer.status, answer.headers, json.loads(text))
            return Answer(answer.status, answer.headers, text)

    async def ok(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        answer = await self.ask(method, path, body, raw=None, **headers)
        assert answer.code < 300, answer.body
        return answer.body

    async def until(self, path: str, check: Callable[[Answer], bool], seconds: float = 10) -> Answer:
        """Ask again at every change of anything, until the answer is right."""
        changed = asyncio.Event()
        self.api.storage.listen(lambda change: changed.set())
        async with asyncio.timeout(seconds):
            while True:
                changed.clear()
                answer = await self.ask("GET", path)
                if check(answer):
                    return answer
                await changed.wait()


def pod(name: str, **spec: Any) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [{"name": "main", "image": "example/app:1"}], **spec},
    }


def node(name: str, *, ready: str = "True", **spec: Any) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "spec": spec,
        "status": {"conditions": [{"type": "Ready", "status": ready}]},
    }


def config_map(name: str, **data: str) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}
