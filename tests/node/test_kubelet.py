"""The kubelet's port: who may ask, and what is answered at each path."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from podwire.kube.client import Client
from podwire.kube.config import Config
from podwire.node.clock import VirtualClock
from podwire.node.kubelet.callers import ALLOWED_SECONDS, DENIED_SECONDS, TOKEN_SECONDS, Callers
from podwire.node.kubelet.server import Kubelet, listen
from podwire.node.nodestreams import NodeStreams
from podwire.serving.certificates import Subject
from podwire.serving.keyfiles import KeyFiles, server_context
from podwire.serving.streaming.service import Streaming
from tests.node.helpers import Bench, bench, container, pod

NAME = "kubelet.test"
GATE = Subject("gate", ("system:masters", "keepers"))


class Reviewer:
    """As much of an API server as says who somebody is and what he may do."""

    def __init__(self) -> None:
        self.users: dict[str, dict[str, Any]] = {"good": {"username": "good", "groups": ["g"], "uid": "7"}}
        self.allowed: set[tuple[str, str, str]] = {("good", "get", "proxy"), ("gate", "get", "proxy")}
        self.asked: list[dict[str, Any]] = []
        self.broken = False

    async def handle(self, request: web.Request) -> web.Response:
        if self.broken:
            return web.Response(status=403)
        body = await request.json()
        self.asked.append(body)
        spec = body["spec"]
        if body["kind"] == "TokenReview":
            user = self.users.get(spec["token"])
            told: dict[str, Any] = {"authenticated": bool(user), **({"user": user} if user else {})}
        else:
            what = spec["resourceAttributes"]
            assert (what["resource"], what["name"]) == ("nodes", "node")
            told = {"allowed": (spec["user"], what["verb"], what["subresource"]) in self.allowed}
        return web.json_response({**body, "status": told}, status=201)

    def count(self, kind: str) -> int:
        return sum(body["kind"] == kind for body in self.asked)


class Port:
    """A node with its kubelet's port, and clients of that."""

    def __init__(
        self, node: Bench, reviewer: Reviewer, clock: VirtualClock, keys: KeyFiles, port: int
    ) -> None:
        self.node = node
        self.reviewer = reviewer
        self.clock = clock
        self.keys = keys
        self.port = port

    async def ask(
        self, path: str, *, token: str = "", tls: ssl.SSLContext | None = None, method: str = "GET"
    ) -> tuple[int, str]:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        connector = aiohttp.TCPConnector(ssl=tls or self.tls())
        async with aiohttp.ClientSession(connector=connector) as session:
            url = f"https://127.0.0.1:{self.port}{path}"
            async with session.request(method, url, headers=headers, server_hostname=NAME) as answer:
                return answer.status, await answer.text()

    def tls(self, pair: tuple[Path, Path] | None = None) -> ssl.SSLContext:
        made = ssl.create_default_context(cafile=str(self.keys.authority))
        if pair is not None:
            made.load_cert_chain(*pair)
        return made


@asynccontextmanager
async def served(tmp_path: Path) -> AsyncIterator[Port]:
    clock, reviewer = VirtualClock(), Reviewer()
    keys = KeyFiles(tmp_path, "test", GATE)
    tls = keys.tls((NAME,))
    tls.load_verify_locations(keys.authority)
    tls.verify_mode = ssl.CERT_OPTIONAL
    app = web.Application()
    app.router.add_post("/{path:.*}", reviewer.handle)
    async with (
        TestServer(app) as api,
        Client(Config(server=str(api.make_url("")).rstrip("/"))) as client,
        bench(tmp_path / "node", clock=clock) as b,
    ):
        streaming = Streaming(NodeStreams(b.node))
        kubelet = Kubelet(b.node, streaming, Callers(client, "node", clock))
        listeners = listen(0)
        await kubelet.start(listeners, tls)
        try:
            yield Port(b, reviewer, clock, keys, listeners[0].getsockname()[1])
        finally:
            await streaming.close()
            await kubelet.close()


async def test_a_token_is_whose_the_api_server_says(tmp_path: Path) -> None:
    async with served(tmp_path) as port:
        assert await port.ask("/healthz") == (401, "Unauthorized")
        assert await port.ask("/healthz", token="bad") == (401, "Unauthorized")
        assert await port.ask("/healthz", token="good") == (200, "ok")
        spec = next(body["spec"] for body in port.reviewer.asked if body["kind"] == "SubjectAccessReview")
        assert (spec["user"], spec["uid"]) == ("good", "7")
        assert spec["groups"] == ["g", "system:authenticated"]


async def test_a_client_s_certificate_names_user_and_groups(tmp_path: Path) -> None:
    async with served(tmp_path) as port:
        assert await port.ask("/healthz", tls=port.tls(port.keys.client_pair)) == (200, "ok")
        assert port.reviewer.count("TokenReview") == 0
        spec = port.reviewer.asked[-1]["spec"]
        assert spec["user"] == "gate"
        assert spec["groups"] == ["system:masters", "keepers", "system:authenticated"]


async def test_a_certificate_of_another_authority_or_of_a_server_opens_nothing(tmp_path: Path) -> None:
    other = KeyFiles(tmp_path / "other", "test", GATE)
    other.directory.mkdir()
    other.tls((NAME,))
    async with served(tmp_path) as port:
        servers = (tmp_path / "server.crt", tmp_path / "server.key")
        for pair in (other.client_pair, servers):
            with pytest.raises(aiohttp.ClientError):
                await port.ask("/healthz", tls=port.tls(pair))
        assert port.reviewer.asked == []


async def test_what_may_be_done_is_the_api_server_s_to_say(tmp_path: Path) -> None:
    async with served(tmp_path) as port:
        status, text = await port.ask("/exec/default/web/main", token="good", method="POST")
        assert (status, text.partition(" ")[0]) == (403, "Forbidden")
        assert "user=good, method=POST, resource=nodes, path=/exec/default/web/main" in text
        port.reviewer.allowed = {("good", "get", "pods")}
        await port.clock.advance(ALLOWED_SECONDS)
        assert (await port.ask("/pods", token="good"))[0] == 200
        assert (await port.ask("/containerLogs/default/web/main", token="good"))[0] == 403


async def test_answers_are_kept_for_a_while_the_good_ones_longer(tmp_path: Path) -> None:
    async with served(tmp_path) as port:
        reviewer = port.reviewer
        for _ in range(3):
            assert (await port.ask("/containerLogs/a/b/c", token="good"))[0] == 404
            assert (await port.ask("/containerLogs/a/b/c", token="good", method="DELETE"))[0] in (403, 405)
        assert (reviewer.count("TokenReview"), reviewer.count("SubjectAccessReview")) == (1, 2)
        reviewer.allowed.add(("good", "delete", "proxy"))
        await port.clock.advance(DENIED_SECONDS)
        assert (await port.ask("/pods", token="good", method="DELETE"))[0] == 405
        await port.clock.advance(TOKEN_SECONDS - DENIED_SECONDS)
        del reviewer.users["good"]
        assert (await port.ask("/healthz", token="good"))[0] == 401


async def test_without_the_api_server_nobody_is_let_in(tmp_path: Path) -> None:
    async with served(tmp_path) as port:
        port.reviewer.broken = True
        assert await port.ask("/healthz", token="good") == (401, "Unauthorized")
        status, text = await port.ask("/healthz", tls=port.tls(port.keys.client_pair))
        assert (status, text.partition(" (")[0]) == (500, "Authorization error")


async def test_pods_and_containers_are_found_by_the_path(tmp_path: Path) -> None:
    async with served(tmp_path) as port:
        port.node.give(pod("web", containers=[container("main"), container("other")]))
        await port.node.running("web")
        status, text = await port.ask("/pods", token="good")
        assert status == 200
        assert '"name":"web"' in text
        assert '"phase":"Running"' in text
        for path, code, said in (
            ("containerLogs/default/web/none", 404, 'container "none" not found in pod "web"'),
            ("containerLogs/default/none/main", 404, 'pod "default/none" does not exist'),
            ("containerLogs/default/web/uid-other/main", 404, 'pod "default/web" does not exist'),
            ("containerLogs/default/web/main?tailLines=x", 400, "strconv.ParseInt"),
            ("exec/default/web/main?output=1", 400, "you must specify a command"),
            ("exec/default/web/main?command=a", 400, "you must specify at least 1 of stdin"),
            ("exec/default/web/uid-web/main?command=a&output=1", 400, "unable to upgrade"),
            ("attach/default/web/main?output=1", 400, "unable to upgrade"),
            ("portForward/default/web", 400, "unable to upgrade"),
            ("portForward/default/web/uid-web", 400, "unable to upgrade"),
        ):
            status, text = await port.ask(f"/{path}", token="good")
            assert status == code, f"{path}: {status} {text}"
            assert said in text


def test_a_key_that_is_none_is_an_error_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("no certificate")
    with pytest.raises(OSError, match="PEM"):
        server_context(tmp_path / "a", tmp_path / "a")
