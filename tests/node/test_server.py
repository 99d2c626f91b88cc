from __future__ import annotations

import asyncio
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from msgspec.structs import replace

from podwire.node.client import ApiError, NodeClient, NotRunning
from podwire.node.server import Server, SocketInUse
from podwire.runtime.api import ExecResult
from tests.node.helpers import Bench, bench, container, pod


@asynccontextmanager
async def served(tmp_path: Path) -> AsyncIterator[tuple[Bench, NodeClient]]:
    path = tmp_path / "run" / "node.sock"
    async with (
        bench(tmp_path / "lib") as b,
        Server(b.node, path),
        NodeClient(path) as client,
    ):
        yield b, client


def write_log(b: Bench, name: str, text: str, *, attempt: int = 0, mode: str = "a") -> Path:
    shown = b.shown(name).metadata
    path = b.node.root / "logs" / f"default_{name}_{shown.uid}" / "main" / f"{attempt}.log"
    with path.open(mode) as file:
        file.write(text)
    return path


async def test_lists_gets_and_errors_are_kubernetes_objects(tmp_path: Path) -> None:
    async with served(tmp_path) as (b, client):
        b.give(pod("web"), pod("other", namespace="prod"))
        await b.until(
            lambda: all(p.status.phase == "Running" for p in b.node.pods()) and len(b.node.pods()) == 2
        )
        assert [p.full_name for p in await client.pods()] == ["default/web", "prod/other"]
        assert [p.metadata.name for p in await client.pods("prod")] == ["other"]
        assert (await client.pod("default", "web")).status.pod_ip.startswith("10.88.")
        assert {"Created", "Started"} <= {e.reason for e in await client.events("default")}
        (node,) = await client.nodes()
        assert node["metadata"]["name"] == "node"
        assert node["status"]["conditions"][0]["status"] == "True"
        assert (await client.info())["runtime"] == {"name": "fake", "version": "1"}
        with pytest.raises(ApiError) as refused:
            await client.pod("default", "nobody")
        assert (refused.value.code, refused.value.reason) == (404, "NotFound")
        assert str(refused.value) == 'pods "nobody" not found in namespace "default"'


async def test_socket_is_private_and_never_taken_from_a_living_node(tmp_path: Path) -> None:
    async with served(tmp_path) as (b, client):
        path = tmp_path / "run" / "node.sock"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with pytest.raises(SocketInUse):
            await Server(b.node, path).__aenter__()
        assert await client.pods() == []
    assert not path.exists()


async def test_no_node_is_a_typed_error(tmp_path: Path) -> None:
    dead = tmp_path / "node.sock"
    async with NodeClient(dead) as client:
        with pytest.raises(NotRunning):
            await client.pods()
    dead.touch()
    async with NodeClient(dead) as client:
        with pytest.raises(NotRunning):
            await client.pods()


async def test_watch_tells_what_is_there_and_each_change(tmp_path: Path) -> None:
    async with served(tmp_path) as (b, client):
        b.give(pod("web"))
        await b.running("web")
        seen: list[tuple[str, str, str]] = []
        async for kind, shown in client.watch_pods("default"):
            seen.append((kind, shown.metadata.name, shown.status.phase))
            if len(seen) == 1:
                b.give()
            if kind == "DELETED":
                break
        assert seen[0] == ("ADDED", "web", "Running")
        assert seen[-1][:2] == ("DELETED", "web")


async def test_watch_from_a_version_misses_nothing_and_says_when_it_is_too_old(tmp_path: Path) -> None:
    async with served(tmp_path) as (b, _):
        b.give(pod("web"))
        await b.running("web")
        connector = aiohttp.UnixConnector(str(tmp_path / "run" / "node.sock"))
        async with aiohttp.ClientSession("http://node", connector=connector) as session:
            async with session.get("/api/v1/pods") as response:
                version = (await response.json())["metadata"]["resourceVersion"]
            b.give()
            await b.until(lambda: not b.node.pods())
            query = {"watch": "1", "resourceVersion": version}
            async with session.get("/api/v1/pods", params=query) as response:
                first = await response.content.readline()
            assert b'"deletionTimestamp"' in first and b'"MODIFIED"' in first
            async with session.get("/api/v1/pods", params={**query, "resourceVersion": "999999"}) as response:
                assert response.status == 410
                assert (await response.json())["reason"] == "Expired"
            async with session.get("/api/v1/pods", params={"watch": "maybe"}) as response:
                assert response.status == 400
                assert (await response.json())["message"] == "watch: 'maybe' is neither true nor false"


async def test_logs_tail_and_follow_over_rotation_until_the_container_ends(tmp_path: Path) -> None:
    async with served(tmp_path) as (b, client):
        b.give(pod("web", restartPolicy="Never"))
        await b.running("web")
        stamp = "2026-01-02T03:04:05.000000001Z"
        write_log(
            b,
            "web",
            f"{stamp} stdout F one\n{stamp} stdout P tw\n{stamp} stdout F o\n{stamp} stderr F three\n",
        )
        assert b"".join([c async for c in client.log("default", "web")]) == b"one\ntwo\nthree\n"
        assert b"".join([c async for c in client.log("default", "web", tail=2)]) == b"two\nthree\n"
        assert b"".join([c async for c in client.log("default", "web", tail=0)]) == b""
        stamped = b"".join([c async for c in client.log("default", "web", tail=1, timestamps=True)])
        assert stamped == f"{stamp} three\n".encode()

        got = bytearray()

        async def follow() -> None:
            async for chunk in client.log("default", "web", follow=True, tail=1):
                got.extend(chunk)

        following = asyncio.create_task(follow())
        await b.until(lambda: bytes(got) == b"three\n")
        path = write_log(b, "web", f"{stamp} stdout F four\n")
        path.rename(path.with_name("0.log.1"))
        write_log(b, "web", f"{stamp} stdout F five\n")
        await b.until(lambda: bytes(got) == b"three\nfour\nfive\n")
        b.runtime.exit("main")
        await following
        assert bytes(got) == b"three\nfour\nfive\n"


async def test_log_of_a_pod_that_waits_says_why(tmp_path: Path) -> None:
    async with served(tmp_path) as (b, client):
        b.runtime.fail("run_pod_sandbox", "no address", times=None)
        b.give(pod("web"))
        await b.until(lambda: "FailedCreatePodSandBox" in b.reasons("web"))
        with pytest.raises(
            ApiError, match='container "main" in pod "web" is waiting to start: ContainerCreating'
        ):
            await anext(client.log("default", "web"))


async def test_exec_carries_streams_size_and_exit_code(tmp_path: Path) -> None:
    async with served(tmp_path) as (b, client):
        b.runtime.on_exec = lambda _name, _command: ExecResult(b"out", b"err", 7)
        b.give(pod("web"))
        await b.running("web")
        session = await client.exec("default", "web", ("cat", "a b"), stdin=True, tty=True, size=(80, 24))
        await session.resize(120, 40)
        await session.write_stdin(b"hello")
        await session.write_stdin(b"")
        got = [item async for item in session.output()]
        assert got == [(1, b"out"), (2, b"err"), (1, b"hello")]
        assert await session.wait() == 7
        await session.close()
        assert b.runtime.count("exec", "main cat a b") == 1
        (inside,) = b.runtime.sessions
        assert inside.sizes == [(80, 24), (120, 40)]
        await b.until(lambda: inside.closed)


async def test_exec_ends_the_program_when_the_client_goes(tmp_path: Path) -> None:
    async with served(tmp_path) as (b, client):
        b.give(pod("web"))
        await b.running("web")
        session = await client.exec("default", "web", ("sleep",), stdin=True)
        await session.close()
        await b.until(lambda: b.runtime.sessions[0].closed)


async def test_exec_that_cannot_start_is_the_runtimes_error(tmp_path: Path) -> None:
    async with served(tmp_path) as (b, client):
        b.give(pod("web"), pod("two", containers=[container("a"), container("b")]))
        await b.running("web", "two")
        b.runtime.fail("exec", "/bin/nope: no such file or directory")
        with pytest.raises(ApiError) as refused:
            await client.exec("default", "web", ("/bin/nope",))
        assert (refused.value.reason, str(refused.value)) == (
            "Unavailable",
            "/bin/nope: no such file or directory",
        )
        with pytest.raises(
            ApiError, match="a container name must be specified for pod two, choose one of: a b"
        ):
            await client.exec("default", "two", ("true",))


async def test_shutdown_tells_what_is_left_and_ends_the_node(tmp_path: Path) -> None:
    async with served(tmp_path) as (b, client):
        b.give(pod("a"), pod("b"))
        await b.running("a", "b")
        told = [left async for left in client.shutdown(remove=True)]
        assert told[0] == ("default/a", "default/b")
        assert told[-1] == ()
        assert await b.runtime.list_pod_sandbox() == []


async def test_h05_problems_of_sources_are_listed_and_become_events(tmp_path: Path) -> None:
    from podwire.sources.problems import Reason, SourceProblem
    from podwire.sources.updates import Snapshot

    async with served(tmp_path) as (b, client):
        shadow = SourceProblem(
            "file", "a.yaml.bak", None, Reason.DUPLICATE_NAME, "same pod as a.yaml", "default/a"
        )
        broken = SourceProblem("file", "b.yaml", 3, Reason.FAILED_PARSE, "spec.containers: is needed")
        b.mux.merge(Snapshot("file", (), (shadow, broken)))
        assert [p["text"] for p in await client.problems()] == [
            "a.yaml.bak: same pod as a.yaml",
            "b.yaml:3: spec.containers: is needed",
        ]
        events = {e.reason: e for e in await client.events()}
        assert events["DuplicateName"].involved_object.name == "a"
        assert events["DuplicateName"].type == "Warning"
        assert events["FailedParse"].involved_object.kind == "Node"
        b.mux.merge(Snapshot("file", ()))
        assert await client.problems() == []


async def test_a_client_that_goes_away_is_not_kept(tmp_path: Path) -> None:
    async with served(tmp_path) as (b, _):
        b.give(pod("web"))
        await b.running("web")
        async with NodeClient(tmp_path / "run" / "node.sock") as other:
            async for _kind, _pod in other.watch_pods():
                assert len(b.node.board.feed.watches) == 1
                break
        await b.until(lambda: not b.node.board.feed.watches)


async def test_watcher_that_falls_behind_is_told_to_list_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("podwire.node.board.QUEUE_LIMIT", 3)
    async with served(tmp_path) as (b, client):
        b.give(pod("web"))
        await b.running("web")
        with pytest.raises(ApiError) as refused:
            async for _kind, shown in client.watch_pods():
                for number in range(8):
                    status = replace(shown.status, message=str(number))
                    b.node.board.publish(replace(shown, status=status))
        assert (refused.value.code, refused.value.reason) == (410, "Expired")
