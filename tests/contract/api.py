"""Raw HTTP to the server under test: nothing of Podwire's client is between a test and the bytes."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

from tests.contract.cluster import Cluster

Object = dict[str, Any]

MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
PARTIAL = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
PARTIAL_LIST = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
WAIT = 10.0
"""Seconds for what the server does by itself."""


@dataclass(frozen=True)
class Answer:
    """What a request was answered with."""

    code: int
    headers: Mapping[str, str]
    body: Any
    warnings: tuple[str, ...] = ()

    def ok(self, code: int = 0) -> Any:
        """The body of a success, of any code or this one."""
        assert self.code == code if code else 200 <= self.code < 300, self.told
        return self.body

    def fails(self, code: int, reason: str, *words: str, causes: tuple[tuple[str, str], ...] = ()) -> Object:
        """The Status of a failure: its code and reason, words of its message, and causes (reason, field)."""
        assert (self.code, isinstance(self.body, dict)) == (code, True), self.told
        body: Object = self.body
        assert {name: body[name] for name in ("kind", "apiVersion", "status", "code")} == {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "code": code,
        }, self.told
        assert body.get("reason", "") == reason, self.told
        for word in words:
            assert word in body["message"], self.told
        found = {(c.get("reason"), c.get("field")) for c in body.get("details", {}).get("causes", [])}
        assert set(causes) <= found, self.told
        return body

    @property
    def told(self) -> str:
        """The answer in short, for a failed test."""
        return f"{self.code} {json.dumps(self.body)[:1500]}"


@dataclass(frozen=True)
class Event:
    """A line of a watch."""

    type: str
    object: Object

    @property
    def name(self) -> str:
        """The object's name."""
        return str(self.object.get("metadata", {}).get("name", ""))

    @property
    def revision(self) -> str:
        """The object's resourceVersion."""
        return str(self.object["metadata"]["resourceVersion"])

    @property
    def initial_end(self) -> bool:
        """Whether it is the bookmark behind the initial events."""
        annotations = self.object.get("metadata", {}).get("annotations") or {}
        return self.type == "BOOKMARK" and annotations.get("k8s.io/initial-events-end") == "true"


class Watch:
    """A watch that is open."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response
        self.code = response.status

    async def next(self, *, bookmarks: bool = False) -> Event | None:
        """The next event, without bookmarks unless they are wanted; None at the end."""
        async with asyncio.timeout(WAIT):
            while line := await self.response.content.readline():
                value = json.loads(line)
                if bookmarks or value["type"] != "BOOKMARK":
                    return Event(value["type"], value["object"])
        return None

    async def take(self, count: int) -> list[tuple[str, str]]:
        """Type and name of the next events."""
        found: list[tuple[str, str]] = []
        for _ in range(count):
            event = await self.next()
            assert event is not None, f"the watch ended behind {found}"
            found.append((event.type, event.name))
        return found

    async def rest(self, *, bookmarks: bool = False) -> list[Event]:
        """All that comes until the server ends the watch."""
        found = []
        while (event := await self.next(bookmarks=bookmarks)) is not None:
            found.append(event)
        return found

    def close(self) -> None:
        """Go away, without the farewells of TLS, which would outlast the test."""
        connection = self.response.connection
        if connection is not None and connection.transport is not None:
            connection.transport.abort()
        self.response.close()


class Api:
    """Requests to the server; ``namespace`` is the test's own."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.namespace = ""
        self._session = aiohttp.ClientSession(headers=cluster.headers)
        self._watches: list[Watch] = []

    async def close(self) -> None:
        """End the watches and the connections."""
        for watch in self._watches:
            watch.close()
        connector = self._session.connector
        assert connector is not None
        await connector.close(abort_ssl=True)
        await self._session.close()
        for _ in range(3):
            await asyncio.sleep(0)

    def at(self, plural: str, name: str = "", part: str = "") -> str:
        """The path of objects in the test's namespace: ``pods``, ``networking.k8s.io/v1/ingresses``."""
        group, _, plural = plural.rpartition("/")
        return join(
            f"/apis/{group}" if group else "/api/v1", "namespaces", self.namespace, plural, name, part
        )

    async def send(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        accept: str = "application/json",
        content: str = "application/json",
        headers: Mapping[str, str] | None = None,
        query: Mapping[str, str] | None = None,
        **more: str,
    ) -> Answer:
        """One request. The body is sent as it is if it is text, else as JSON."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        sent = {
            "Accept": accept,
            **({"Content-Type": content} if data is not None else {}),
            **(headers or {}),
        }
        async with (
            asyncio.timeout(30),
            self._session.request(
                method,
                self.cluster.url + path,
                params={**(query or {}), **more},
                data=None if data is None else io.BytesIO(data),
                headers={name: value for name, value in sent.items() if value},
                ssl=self.cluster.tls,
                allow_redirects=False,
            ) as response,
        ):
            raw = await response.read()
            media = response.content_type
            value = json.loads(raw) if media == "application/json" and raw else raw.decode()
            warnings = tuple(response.headers.getall("Warning", ()))
            return Answer(response.status, response.headers, value, warnings)

    async def get(self, path: str, **query: str) -> Answer:
        """GET."""
        return await self.send("GET", path, query=query)

    async def create(self, path: str, body: Object, **query: str) -> Answer:
        """POST."""
        return await self.send("POST", path, body, query=query)

    async def replace(self, path: str, body: Object, **query: str) -> Answer:
        """PUT."""
        return await self.send("PUT", path, body, query=query)

    async def patch(self, path: str, body: Any, kind: str = MERGE, **query: str) -> Answer:
        """PATCH."""
        return await self.send("PATCH", path, body, content=kind, query=query)

    async def delete(self, path: str, options: Object | None = None, **query: str) -> Answer:
        """DELETE."""
        return await self.send("DELETE", path, options, query=query)

    async def watch(self, path: str, *, accept: str = "application/json", **query: str) -> Watch:
        """A watch; it is closed with the test."""
        query.setdefault("timeoutSeconds", "20")
        response = await self._session.get(
            self.cluster.url + path,
            params={"watch": "true", **query},
            headers={"Accept": accept},
            ssl=self.cluster.tls,
            timeout=aiohttp.ClientTimeout(total=None),
        )
        watch = Watch(response)
        self._watches.append(watch)
        return watch

    async def until(self, path: str, want: Any) -> Answer:
        """Wait, by a watch, until ``want(answer)`` of a GET is true."""
        collection, _, name = path.rpartition("/")
        async with asyncio.timeout(WAIT):
            watch = await self.watch(collection, fieldSelector=f"metadata.name={name}", resourceVersion="0")
            try:
                while not want(answer := await self.get(path)):
                    await watch.next()
                return answer
            finally:
                watch.close()

    async def gone(self, path: str) -> None:
        """Wait until there is no such object."""
        await self.until(path, lambda answer: answer.code == 404)


def join(*parts: str) -> str:
    """A path of the parts that are not empty."""
    return "/".join(part for part in parts if part)


def config_map(name: str, **data: str) -> Object:
    """A ConfigMap."""
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def pod(name: str, **spec: Any) -> Object:
    """A pod that no scheduler takes, so it stays as it is."""
    container = {"name": "main", "image": "registry.invalid/none:1"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "containers": [container],
            "schedulerName": "nobody",
            "automountServiceAccountToken": False,
            **spec,
        },
    }


def with_meta(obj: Object, **meta: Any) -> Object:
    """The object with more metadata."""
    return {**obj, "metadata": {**obj["metadata"], **meta}}
