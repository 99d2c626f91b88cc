"""The HTTP source against a server that answers as it is told."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from podwire.kube.defaults import CONFIG_HASH
from podwire.kube.testing import ScriptedServer, World
from podwire.kube.testing import misbehaviour as does
from podwire.sources.http import HTTPSource, shown_url
from podwire.sources.mux import Mux
from podwire.sources.problems import Reason
from podwire.sources.updates import HTTP, Op, Snapshot
from tests.sources.helpers import Watched, manifest


class Site:
    """One page; each answer is what it is set to, each request is kept."""

    def __init__(self) -> None:
        self.status, self.body, self.tag = 200, b"", ""
        self.root = ""
        self.requests: list[web.BaseRequest] = []
        self.arrived = asyncio.Semaphore(0)
        self.gate = asyncio.Event()
        self.gate.set()
        self.server = TestServer(web.Application())
        self.server.app.router.add_get("/{path:.*}", self._answer)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        self.arrived.release()
        await self.gate.wait()
        headers = {"ETag": self.tag} if self.tag else {}
        if self.tag and request.headers.get("If-None-Match") == self.tag:
            return web.Response(status=304, headers=headers)
        return web.Response(status=self.status, body=self.body, headers=headers)

    def text(self, text: str) -> None:
        self.status, self.body = 200, text.encode()

    def url(self, path: str = "pods") -> str:
        return f"{self.root}/{path}"


@contextlib.asynccontextmanager
async def site() -> AsyncIterator[Site]:
    made = Site()
    async with made.server:
        made.root = str(made.server.make_url("")).rstrip("/")
        yield made


async def polled(source: HTTPSource, times: int = 1) -> Snapshot:
    async with source.session() as session:
        return [await source.poll(session) for _ in range(times)][-1]


def names(snapshot: Snapshot) -> list[str]:
    return [pod.metadata.name for pod in snapshot.pods]


def pod_list(*pods: str) -> str:
    items = [
        {"metadata": {"name": name}, "spec": {"containers": [{"name": "main", "command": ["true"]}]}}
        for name in pods
    ]
    return json.dumps({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items})


async def test_a_pod_gets_its_static_identity_without_the_toleration_of_files() -> None:
    async with site() as s:
        s.text(manifest("web"))
        (pod,) = (await polled(HTTPSource(s.url(), "Node"))).pods
    assert pod.full_name == "default/web-node"
    assert pod.spec.node_name == "Node"
    assert pod.spec.tolerations == []
    assert pod.metadata.uid == pod.metadata.annotations[CONFIG_HASH] and len(pod.metadata.uid) == 32


async def test_the_uid_depends_on_the_url() -> None:
    async with site() as s:
        s.text(manifest("web"))
        one = await polled(HTTPSource(s.url("a"), "node"))
        two = await polled(HTTPSource(s.url("b"), "node"))
    assert one.pods[0].metadata.uid != two.pods[0].metadata.uid


async def test_a_pod_list_in_json_and_in_yaml() -> None:
    async with site() as s:
        s.text(pod_list("a", "b"))
        source = HTTPSource(s.url(), "n")
        assert names(await polled(source)) == ["a-n", "b-n"]
        s.text(
            "kind: PodList\napiVersion: v1\nitems:\n"
            "- metadata: {name: c}\n  spec: {containers: [{name: m, command: [x]}]}\n"
        )
        assert names(await polled(source)) == ["c-n"]


@pytest.mark.parametrize(
    "body", ["", " \n", "# nothing\n", "[]", pod_list(), '{"kind":"PodList","apiVersion":"v1","items":null}']
)
async def test_h14_an_empty_answer_means_no_pods(body: str) -> None:
    """H14: ``[]`` and its like are no pods, not an error."""
    async with site() as s:
        s.text(manifest("web"))
        source = HTTPSource(s.url(), "n")
        assert names(await polled(source)) == ["web-n"]
        s.text(body)
        snapshot = await polled(source)
    assert (snapshot.pods, snapshot.problems, snapshot.complete) == ((), (), True)


async def test_a_bare_list_of_pods() -> None:
    async with site() as s:
        s.text("- " + manifest("web").replace("\n", "\n  ").rstrip())
        assert names(await polled(HTTPSource(s.url(), "n"))) == ["web-n"]


@pytest.mark.parametrize("status", [404, 410])
async def test_h12_a_missing_manifest_marks_the_source_seen(status: int) -> None:
    """H12: the answer that there is nothing is an answer."""
    async with site() as s:
        s.status = status
        mux = Mux(HTTP)
        (update,) = mux.merge(await polled(HTTPSource(s.url(), "n")))
    assert (update.op, update.pods) == (Op.ADD, ())
    assert [p.reason for p in mux.problems.current()] == [Reason.MISSING_PATH]


async def test_a_missing_manifest_keeps_the_last_good_pods() -> None:
    async with site() as s:
        s.text(manifest("web"))
        source = HTTPSource(s.url(), "n")
        await polled(source)
        s.status = 404
        snapshot = await polled(source)
    assert names(snapshot) == ["web-n"]
    assert str(snapshot.problems[0]) == f"{s.url()}: the answer is 404 Not Found (the last good pod is kept)"


@pytest.mark.parametrize("status", [204, 301, 401, 403, 429, 500, 503])
async def test_another_answer_keeps_the_pods_and_does_not_mark_the_source_seen(status: int) -> None:
    async with site() as s:
        s.status = status
        source = HTTPSource(s.url(), "n")
        mux = Mux(HTTP)
        assert mux.merge(await polled(source)) == ()
        (problem,) = mux.problems.current()
        assert f"the answer is {status}" in problem.message
        s.text(manifest("web"))
        mux.merge(await polled(source))
        assert mux.problems.current() == ()
        s.status = status
        assert mux.merge(await polled(source)) == ()
        assert [p.full_name for p in mux.pods()] == ["default/web-n"]
        assert mux.problems.current()[0].kept


async def test_a_server_that_is_not_there_or_does_not_answer_in_time() -> None:
    async with site() as s:
        s.text(manifest("web"))
        source = HTTPSource(s.url(), "n", timeout=0.2)
        await polled(source)
        s.gate.clear()
        snapshot = await polled(source)
        assert names(snapshot) == ["web-n"]
        assert snapshot.problems[0].message == "no whole answer within 0.2 s"
        s.gate.set()
    snapshot = await polled(source)
    assert names(snapshot) == ["web-n"]
    assert snapshot.problems[0].message == "Connection refused"
    assert not (await polled(HTTPSource(s.url(), "n"))).complete


async def test_an_answer_that_is_cut_off_is_told_in_plain_words() -> None:
    whole = manifest("web").encode()
    async with ScriptedServer(World()) as server:
        server.script.add("any", does.answers(whole, "text/yaml"), does.cut_off(whole))
        snapshot = await polled(HTTPSource(f"http://127.0.0.1:{server.port}/pod", "n"), 2)
    assert names(snapshot) == ["web-n"]
    assert [p.message for p in snapshot.problems] == ["the connection ended in the middle of the answer"]


async def test_one_bad_item_rejects_all_and_the_last_good_pods_stay() -> None:
    async with site() as s:
        s.text(manifest("web"))
        source = HTTPSource(s.url(), "n")
        await polled(source)
        bad = json.loads(pod_list("a", "b"))
        bad["items"][1]["spec"]["containers"][0]["imag"] = "x"
        s.text(json.dumps(bad))
        snapshot = await polled(source)
    assert names(snapshot) == ["web-n"]
    assert 'items[1].spec.containers[0].imag: unknown field: did you mean "image"?' in str(
        snapshot.problems[0]
    )
    assert snapshot.problems[0].kept and snapshot.complete


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("kind: Deployment\napiVersion: apps/v1\n", "kind Deployment is not supported here"),
        ("kind: PodList\napiVersion: v1\nitem: []\n", "items: this field is required"),
        ("kind: PodList\napiVersion: v1\nitems: {}\n", "items: a mapping: a list is expected here"),
        (
            "kind: PodList\napiVersion: v1\nitems: [{kind: Service, apiVersion: v1}]\n",
            "items[0]: kind Service",
        ),
        ("<html>404</html>", "this is not a Pod"),
        (": : :", "mapping"),
        (manifest("web") + "---\n" + manifest("two"), "a second document begins here"),
    ],
)
async def test_bodies_that_are_no_pods(body: str, message: str) -> None:
    async with site() as s:
        s.text(body)
        snapshot = await polled(HTTPSource(s.url(), "n"))
    assert snapshot.pods == () and snapshot.complete
    assert message in "\n".join(map(str, snapshot.problems))


async def test_the_same_bad_bytes_stay_a_problem() -> None:
    """Upstream remembers the bytes before it parses them: the second time they read as success."""
    async with site() as s:
        s.text("kind: Nope")
        source = HTTPSource(s.url(), "n")
        first = await polled(source)
        assert first.problems and first == await polled(source, times=2)
        s.status = 500
        assert (await polled(source)).problems != first.problems
        s.status = 200
        assert await polled(source) == first


async def test_a_trouble_that_ends_is_cured_though_the_bytes_are_the_same() -> None:
    async with site() as s:
        s.text(manifest("web"))
        source = HTTPSource(s.url(), "n")
        first = await polled(source)
        s.status = 500
        assert (await polled(source)).problems
        s.status = 200
        assert await polled(source) == first


async def test_failures_are_logged_loudly_three_times_then_quietly(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "podwire.sources.http")
    async with site() as s:
        s.text("kind: Nope")
        source = HTTPSource(s.url(), "n")
        await polled(source, times=5)
        assert [r.levelno for r in caplog.records] == [logging.WARNING] * 3 + [logging.DEBUG] * 2
        s.text(manifest("web"))
        await polled(source)
        caplog.clear()
        s.status = 500
        await polled(source)
        assert [r.levelno for r in caplog.records] == [logging.WARNING]


async def test_an_etag_saves_the_transfer_until_the_page_changes() -> None:
    async with site() as s:
        s.text(manifest("web"))
        s.tag = '"1"'
        source = HTTPSource(s.url(), "n")
        assert names(await polled(source, times=2)) == ["web-n"]
        assert [r.headers.get("If-None-Match") for r in s.requests] == [None, '"1"']
        s.text(manifest("other"))
        s.tag = '"2"'
        assert names(await polled(source)) == ["other-n"]


async def test_configured_headers_with_several_values_of_one_name() -> None:
    async with site() as s:
        headers = (("Metadata-Flavor", "Google"), ("X-Key", "1"), ("X-Key", "2"), ("User-Agent", "mine"))
        await polled(HTTPSource(s.url(), "n", headers=headers))
        sent = s.requests[0].headers
    assert sent.getall("Metadata-Flavor") == ["Google"]
    assert sent.getall("X-Key") == ["1", "2"]
    assert sent.getall("User-Agent") == ["mine"]


@pytest.mark.parametrize(
    "where", ["http://a..b/pods", "http://127.0.0.1:99999/", "ftp://127.0.0.1/", "http://"]
)
async def test_a_server_that_leads_astray_is_a_failure_and_no_end_of_the_source(where: str) -> None:
    async with ScriptedServer(World()) as server:
        server.script.add("any", does.status(302, "Found", Location=where))
        snapshot = await polled(HTTPSource(f"http://127.0.0.1:{server.port}/pod", "n"))
    assert [p.reason for p in snapshot.problems] == [Reason.FAILED_READ]
    assert not snapshot.complete


@pytest.mark.parametrize(
    "url", ["http://a..b/", "http://a:99999/", "http:///x", "ftp://a/x", "http://[::1", "x"]
)
def test_what_is_no_url_of_pods_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="is not a URL of pods"):
        HTTPSource(url, "n")


async def test_too_much_is_refused() -> None:
    async with site() as s:
        s.text("#" * ((10 << 20) + 1))
        snapshot = await polled(HTTPSource(s.url(), "n"))
    assert snapshot.problems[0].message == "the answer has more than 10485760 bytes (10 MiB)"
    assert not snapshot.complete


async def test_a_restart_keeps_the_last_good_pods(tmp_path: Path) -> None:
    async with site() as s:
        s.text(manifest("web"))
        assert (await polled(HTTPSource(s.url(), "n", keep=tmp_path))).complete
        s.status = 500
        snapshot = await polled(HTTPSource(s.url(), "n", keep=tmp_path))
        assert names(snapshot) == ["web-n"] and not snapshot.complete
        s.text("kind: Nope")
        snapshot = await polled(HTTPSource(s.url(), "n", keep=tmp_path))
        assert names(snapshot) == ["web-n"] and snapshot.complete
        s.text("")
        await polled(HTTPSource(s.url(), "n", keep=tmp_path))
        s.status = 500
        assert names(await polled(HTTPSource(s.url(), "n", keep=tmp_path))) == []


async def test_of_two_urls_with_the_same_pod_the_first_counts_and_all_must_answer() -> None:
    async with site() as one, site() as two:
        one.text(manifest("web", 1))
        two.text(manifest("web", 2))
        source = HTTPSource([one.url(), two.url()], "n")
        snapshot = await polled(source)
        assert [p.spec.containers[0].command for p in snapshot.pods] == [["sleep", "1"]]
        assert snapshot.problems[0].reason is Reason.DUPLICATE_NAME
        two.status = 500
        snapshot = await polled(HTTPSource([one.url(), two.url()], "n"))
        assert names(snapshot) == ["web-n"] and not snapshot.complete


async def test_by_itself_it_asks_each_20_s_for_10_s_at_most() -> None:
    source = HTTPSource("http://example.org/pods", "n")
    assert source.poll_interval == 20.0
    async with source.session() as session:
        assert session.timeout.total == 10.0


async def test_it_polls_at_once_and_again_and_tells_only_changes() -> None:
    async with site() as s:
        s.text(manifest("web"))
        watched = Watched()
        task = asyncio.create_task(HTTPSource(s.url(), "n", poll_interval=0.01).run(watched.emit))
        await watched.until_names("web-n")
        for _ in range(4):
            await s.arrived.acquire()
        assert len(watched.snapshots) == 1
        s.text(manifest("other"))
        await watched.until_names("other-n")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_credentials_in_the_url_are_not_shown() -> None:
    assert shown_url("https://me:secret@host:8443/pods?x=1") == "https://host:8443/pods?x=1"
