"""Pods on nodes in other processes: what the API server asks their kubelets, and what it tells clients."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from podwire.apiserver.files import Files
from podwire.apiserver.http import kubelets
from podwire.apiserver.http.eachnode import EachNode
from podwire.apiserver.http.kubelets import Kubelets
from podwire.serving import status
from podwire.serving.answers import failed
from podwire.serving.status import Failure

POD: dict[str, Any] = {
    "metadata": {"name": "web", "namespace": "default"},
    "spec": {"nodeName": "far", "containers": [{"name": "main"}]},
}


class Kubelet:
    """A kubelet that notes what it is asked, and answers as it is told."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.users: list[str] = []
        self.answer: Callable[[], web.Response] = web.Response
        self.echoes = False
        self.silent = False

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(f"{request.method} {request.rel_url}")
        assert request.transport is not None
        subject = request.transport.get_extra_info("peercert")["subject"]
        self.users += [value for part in subject for key, value in part if key == "commonName"]
        if self.silent:
            await asyncio.Event().wait()
        if not self.echoes:
            return self.answer()
        socket = web.WebSocketResponse(protocols=("v5.channel.k8s.io",))
        await socket.prepare(request)
        async for message in socket:
            await socket.send_bytes(message.data)
            if message.data == b"\x00end":
                break
        await socket.close()
        return socket


class Far:
    """An API server in front of a kubelet."""

    def __init__(self, kubelet: Kubelet, node: dict[str, Any], url: str) -> None:
        self.kubelet = kubelet
        self.node = node
        self.url = url

    async def get(self, path: str) -> tuple[int, Any]:
        async with aiohttp.ClientSession() as session, session.get(f"{self.url}/{path}") as answer:
            text = await answer.text()
            return answer.status, await answer.json() if answer.content_type != "text/plain" else text


@asynccontextmanager
async def far(tmp_path: Path) -> AsyncIterator[Far]:
    files, kubelet = Files(tmp_path), Kubelet()
    tls = files.tls()
    tls.load_verify_locations(files.authority)
    tls.verify_mode = ssl.CERT_REQUIRED
    behind = web.Application()
    behind.router.add_route("*", "/{path:.*}", kubelet.handle)
    node: dict[str, Any] = {}
    backend = EachNode({}, Kubelets(lambda _name: node, files.kubelet_tls))

    async def handle(request: web.Request) -> web.StreamResponse:
        try:
            answered: web.StreamResponse = await getattr(backend, request.path[1:])(request, POD)
            return answered
        except Failure as failure:
            return failed(failure)

    front = web.Application()
    front.router.add_route("*", "/{path:.*}", handle)
    server = TestServer(behind, scheme="https")
    await server.start_server(ssl=tls, shutdown_timeout=0.1)
    try:
        node["status"] = {
            "addresses": [
                {"type": "Hostname", "address": "far.invalid"},
                {"type": "InternalIP", "address": "127.0.0.1"},
                {"type": "InternalIP", "address": "::ffff:192.0.2.1"},
            ],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": server.port}},
        }
        async with TestServer(front) as api:
            yield Far(kubelet, node, str(api.make_url("")).rstrip("/"))
    finally:
        await server.close()


async def test_logs_are_asked_for_with_their_options_and_the_server_s_certificate(tmp_path: Path) -> None:
    async with far(tmp_path) as f:
        f.kubelet.answer = lambda: web.Response(text="one\ntwo\n")
        assert await f.get("log?tailLines=2&follow=true&other=1") == (200, "one\ntwo\n")
        assert f.kubelet.asked == ["GET /containerLogs/default/web/main?follow=true&tailLines=2"]
        assert f.kubelet.users == ["kube-apiserver-kubelet-client"]


async def test_streams_go_on_under_the_kubelet_s_names_byte_for_byte(tmp_path: Path) -> None:
    async with far(tmp_path) as f:
        f.kubelet.echoes = True
        query = "command=sh&command=-c&command=a%20%26%20b&stdin=true&stdout=true&tty=false&container=main"
        async with aiohttp.ClientSession() as session:
            wanted = ("v5.channel.k8s.io", "v4.channel.k8s.io")
            async with session.ws_connect(f"{f.url}/exec?{query}", protocols=wanted) as socket:
                assert socket.protocol == "v5.channel.k8s.io"
                large = bytes(range(256)) * 4000
                await socket.send_bytes(large)
                assert await socket.receive_bytes() == large
                await socket.send_bytes(b"\x00end")
                assert await socket.receive_bytes() == b"\x00end"
                assert (await socket.receive()).type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED)
        (asked,) = f.kubelet.asked
        assert asked.startswith("GET /exec/default/web/main?")
        assert "command=sh&command=-c&command=a+%26+b" in asked
        assert asked.endswith("&input=1&output=1")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("attach?stdout=1&stderr=1", "GET /attach/default/web/main?output=1&error=1"),
        ("port_forward?ports=80&ports=81", "GET /portForward/default/web?port=80&port=81"),
        ("port_forward", "GET /portForward/default/web"),
    ],
)
async def test_paths_of_attach_and_port_forward(tmp_path: Path, path: str, expected: str) -> None:
    async with far(tmp_path) as f:
        f.kubelet.echoes = True
        async with aiohttp.ClientSession() as session, session.ws_connect(f"{f.url}/{path}"):
            pass
        assert f.kubelet.asked == [expected]


def negotiation() -> web.Response:
    answer = failed(status.Failure(403, "Forbidden", "unable to negotiate"))
    answer.headers["X-Accepted-Stream-Protocol-Versions"] = "v4.channel.k8s.io"
    return answer


UPGRADE = {"Connection": "Upgrade", "Upgrade": "SPDY/3.1"}


async def test_what_the_kubelet_refuses_is_told_with_its_words(tmp_path: Path) -> None:
    async with far(tmp_path) as f, aiohttp.ClientSession() as session:
        f.kubelet.answer = lambda: web.Response(status=400, text='container "main" does not run\n')
        code, body = await f.get("log")
        assert (code, body["reason"], body["message"]) == (400, "BadRequest", 'container "main" does not run')
        async with session.post(f"{f.url}/exec?command=a&stdout=1", headers=UPGRADE) as answer:
            assert answer.status == 400
            assert (await answer.json())["message"] == 'container "main" does not run'
        f.kubelet.answer = negotiation
        async with session.post(f"{f.url}/exec?command=a&stdout=1", headers=UPGRADE) as answer:
            assert answer.status == 403
            assert answer.headers["X-Accepted-Stream-Protocol-Versions"] == "v4.channel.k8s.io"
            assert (await answer.json())["message"] == "unable to negotiate"


@pytest.mark.parametrize("path", ["log", "exec?command=a&stdout=1"])
async def test_a_node_that_cannot_be_reached_is_told_with_its_address(tmp_path: Path, path: str) -> None:
    async with far(tmp_path) as f, aiohttp.ClientSession() as session:

        async def told() -> tuple[int, str]:
            async with session.get(f"{f.url}/{path}", headers={} if path == "log" else UPGRADE) as answer:
                return answer.status, (await answer.json())["message"]

        f.node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"] = 1
        code, message = await told()
        assert code == 500
        assert message.startswith("error dialing backend: 127.0.0.1:1: ")
        f.node["status"]["addresses"] = []
        assert await told() == (503, "node far has no address")
        del f.node["status"]["daemonEndpoints"]
        code, message = await told()
        assert (code, message.partition(",")[0]) == (503, "node far has no kubelet port")


@pytest.mark.parametrize("path", ["log", "exec?command=a&stdout=1"])
async def test_a_kubelet_that_says_nothing_is_not_waited_for_for_ever(
    tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubelets, "ANSWERING", 0.05)
    async with far(tmp_path) as f, aiohttp.ClientSession() as session:
        f.kubelet.silent = True
        headers = {} if path == "log" else UPGRADE
        async with session.get(f"{f.url}/{path}", headers=headers) as answer:
            assert answer.status == 500
            assert "TimeoutError" in (await answer.json())["message"]


async def test_no_upgrade_reaches_no_kubelet(tmp_path: Path) -> None:
    async with far(tmp_path) as f:
        assert (await f.get("exec?command=a&stdout=1"))[0] == 400
        assert (await f.get("log?tailLines=-1"))[0] == 422
        assert f.kubelet.asked == []
