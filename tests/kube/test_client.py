"""The client: verbs on the wire, errors by reason, what is repeated and what not, deadlines, connections."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import ssl
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from podwire.kube import errors
from podwire.kube.apistatus import Status
from podwire.kube.client import Client
from podwire.kube.config import Config
from podwire.kube.credentials import CertificateFiles, Credential, Fixed, TokenFile, bearer
from podwire.kube.ratelimit import Priority
from podwire.kube.resource import CONFIG_MAPS, NODES, PODS, Resource, unstructured
from podwire.kube.testing import Exchange, ObjectServer, failure
from podwire.kube.testing import misbehaviour as does
from tests.kube.reflecting import QuickClock

CERTIFICATES = Path(__file__).parent / "certificates"
WEB = {
    "kind": "ConfigMap",
    "apiVersion": "v1",
    "metadata": {"name": "web", "namespace": "default"},
    "data": {"a": "1"},
}


@contextlib.asynccontextmanager
async def connected(**options: Any) -> AsyncIterator[tuple[QuickClock, ObjectServer, Client]]:
    clock = QuickClock()
    async with ObjectServer(clock) as server, Client(server.config, clock=clock, **options) as client:
        yield clock, server, client


async def passing(clock: QuickClock, doing: Any) -> Any:
    """The result of a coroutine, with time passing as it needs."""
    task = asyncio.ensure_future(doing)
    await clock.settle()
    while not task.done():
        step = clock.next_due()
        assert step is not None
        await clock.advance(step)
    return await task


async def test_an_object_through_its_life() -> None:
    async with connected() as (_, server, client):
        made = await client.create(CONFIG_MAPS, WEB, "default", field_manager="me", field_validation="Strict")
        assert made["metadata"]["resourceVersion"] == "1"
        assert server.requests[-1].params == {"fieldManager": "me", "fieldValidation": "Strict"}
        with pytest.raises(errors.AlreadyExists):
            await client.create(CONFIG_MAPS, WEB, "default")
        found = await client.get(CONFIG_MAPS, "web", "default", version="0")
        assert found == made
        assert server.requests[-1].params == {"resourceVersion": "0"}
        changed = await client.replace(
            CONFIG_MAPS, {**found, "data": {"a": "2"}}, "web", "default", dry_run=True
        )
        assert changed["data"] == {"a": "2"}
        assert server.requests[-1].params == {"dryRun": "All"}
        with pytest.raises(errors.Conflict):
            await client.replace(CONFIG_MAPS, found, "web", "default")
        patched = await client.patch(CONFIG_MAPS, {"data": {"b": "3"}}, "web", "default")
        assert patched["data"] == {"a": "2", "b": "3"}
        with pytest.raises(errors.Conflict):
            await client.delete(CONFIG_MAPS, "web", "default", uid="another")
        uid = found["metadata"]["uid"]
        assert (
            await client.delete(CONFIG_MAPS, "web", "default", uid=uid, grace=0, propagation="Orphan") is None
        )
        assert json.loads(server.requests[-1].body) == {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": uid},
            "gracePeriodSeconds": 0,
            "propagationPolicy": "Orphan",
        }
        with pytest.raises(errors.NotFound) as caught:
            await client.get(CONFIG_MAPS, "web", "default")
        assert (caught.value.code, caught.value.reason) == (404, "NotFound")


@pytest.mark.parametrize(
    ("kind", "content_type"),
    [
        ("merge", "application/merge-patch+json"),
        ("strategic", "application/strategic-merge-patch+json"),
        ("json", "application/json-patch+json"),
        ("apply", "application/apply-patch+yaml"),
    ],
)
async def test_patches_name_their_kind(kind: Any, content_type: str) -> None:
    async with connected() as (_, server, client):
        server.script.add("patch", does.answers(json.dumps(WEB).encode()))
        await client.patch(
            CONFIG_MAPS,
            {"data": {}},
            "web",
            "default",
            kind=kind,
            field_manager="me",
            force=kind == "apply",
            subresource="status",
        )
        request = server.requests[-1]
        assert request.headers["content-type"] == content_type
        assert request.path == "/api/v1/namespaces/default/configmaps/web/status"
        assert request.params.get("force") == ("true" if kind == "apply" else None)


async def test_patches_that_make_no_sense() -> None:
    async with connected() as (_, _, client):
        with pytest.raises(ValueError, match="field_manager"):
            await client.patch(CONFIG_MAPS, {}, "web", "default", kind="apply")
        with pytest.raises(ValueError, match="force"):
            await client.patch(CONFIG_MAPS, {}, "web", "default", force=True)


async def test_a_deletion_that_goes_on_gives_the_object() -> None:
    async with connected() as (_, server, client):
        ending = {
            **WEB,
            "metadata": {"name": "web", "namespace": "default", "deletionTimestamp": "2026-01-01T00:00:00Z"},
        }
        server.script.add("delete", does.answers(json.dumps(ending).encode()))
        found = await client.delete(CONFIG_MAPS, "web", "default")
        assert found is not None
        assert found["metadata"]["deletionTimestamp"]


REASONS = {
    "BadRequest": (400, errors.BadRequest),
    "Unauthorized": (401, errors.Unauthorized),
    "Forbidden": (403, errors.Forbidden),
    "NotFound": (404, errors.NotFound),
    "MethodNotAllowed": (405, errors.MethodNotAllowed),
    "NotAcceptable": (406, errors.NotAcceptable),
    "AlreadyExists": (409, errors.AlreadyExists),
    "Conflict": (409, errors.Conflict),
    "Gone": (410, errors.Expired),
    "Expired": (410, errors.Expired),
    "UnsupportedMediaType": (415, errors.UnsupportedMediaType),
    "Invalid": (422, errors.Invalid),
    "TooManyRequests": (429, errors.TooManyRequests),
    "InternalError": (500, errors.InternalError),
    "ServiceUnavailable": (503, errors.ServiceUnavailable),
    "Timeout": (504, errors.Timeout),
    "ServerTimeout": (500, errors.ServerTimeout),
    "StorageReadError": (500, errors.InternalError),
    "": (418, errors.ApiError),
}


@pytest.mark.parametrize("reason", REASONS)
async def test_errors_are_typed_by_reason_and_else_by_code(reason: str) -> None:
    code, kind = REASONS[reason]
    async with connected() as (_, server, client):
        server.script.add("any", *[does.status(code, reason, causes=("FieldValueInvalid",))] * 2)
        with pytest.raises(errors.ApiError) as caught:
            await client.raw("POST", "/api/v1/things", body={"x": 1}, repeat=False)
        assert type(caught.value) is kind
        assert (caught.value.code, caught.value.reason) == (code, reason)
        assert caught.value.details is not None
        assert caught.value.details.causes is not None
        assert caught.value.details.causes[0].reason == "FieldValueInvalid"


def test_the_reason_counts_and_the_text_does_not() -> None:
    misleading = Status(code=500, reason="InternalError", message="too old resource version: Expired")
    assert type(errors.api_error(misleading)) is errors.InternalError
    by_text = Status(code=504, reason="Timeout", message="Too large resource version")
    assert not errors.api_error(by_text).version_too_large


async def test_reading_is_repeated() -> None:
    async with connected() as (clock, server, client):
        await client.create(CONFIG_MAPS, WEB, "default")
        server.script.add("get", does.resets, does.closes, does.status(503, "ServiceUnavailable"))
        began = clock.monotonic()
        assert await passing(clock, client.get(CONFIG_MAPS, "web", "default"))
        assert server.count("get") == 4
        assert 0.2 + 0.4 + 0.8 <= clock.monotonic() - began <= 2 * (0.2 + 0.4 + 0.8)


async def test_retry_after_is_heeded_for_writing_too() -> None:
    async with connected() as (clock, server, client):
        server.script.add("post", does.status(429, "TooManyRequests", Retry_After="7"))
        await passing(clock, client.create(CONFIG_MAPS, WEB, "default"))
        assert clock.monotonic() == 7
        assert server.count("post") == 2
        at = "Sun, 15 Jun 2025 15:06:57 GMT"  # ten seconds from now
        server.script.add("get", does.status(503, "ServiceUnavailable", Retry_After=at))
        await passing(clock, client.get(CONFIG_MAPS, "web", "default"))
        assert clock.monotonic() == 17


@pytest.mark.parametrize(
    "trouble",
    [does.resets, does.closes, does.status(500, "InternalError"), does.status(503, "ServiceUnavailable")],
)
@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
async def test_writing_is_not_repeated_when_it_may_have_been_done(method: str, trouble: Any) -> None:
    async with connected() as (clock, server, client):
        server.script.add("any", trouble)
        with pytest.raises(errors.KubeError):
            await passing(clock, client.raw(method, "/api/v1/namespaces/default/configmaps/web", body={}))
        assert server.count() == 1


async def test_writing_is_repeated_when_nobody_was_there() -> None:
    async with connected() as (clock, server, client):
        await server.stop()
        task = asyncio.create_task(client.create(CONFIG_MAPS, WEB, "default"))
        await clock.advance(0.5)
        await server.start()
        await passing(clock, task)
        assert server.count("post") == 1


async def test_an_error_that_stays_is_raised_when_the_tries_or_the_time_are_over() -> None:
    async with connected() as (clock, server, client):
        server.script.add("get", *[does.status(503, "ServiceUnavailable")] * 9)
        with pytest.raises(errors.ServiceUnavailable):
            await passing(clock, client.get(CONFIG_MAPS, "web", "default"))
        assert server.count("get") == 5
        server.script.by_verb.clear()
        server.script.add("get", does.status(429, "TooManyRequests", Retry_After="60"))
        began = clock.monotonic()
        with pytest.raises(errors.TooManyRequests) as caught:
            await passing(clock, client.get(CONFIG_MAPS, "web", "default", timeout=10))
        assert caught.value.retry_after == 60
        assert clock.monotonic() - began == 10


async def test_i04_a_call_has_a_deadline_and_its_connection_is_not_used_again() -> None:
    async with connected() as (clock, server, client):
        await client.create(CONFIG_MAPS, WEB, "default")
        server.freeze()
        with pytest.raises(errors.DeadlinePassed):
            await passing(clock, client.get(CONFIG_MAPS, "web", "default", timeout=5))
        assert clock.monotonic() == 5
        server.thaw()
        assert (await client.get(CONFIG_MAPS, "web", "default"))["data"] == {"a": "1"}
        assert server.connections == 2


async def test_i04_the_kernel_looks_after_silent_connections() -> None:
    async with connected() as (_, _, client):
        client._transport._session(watch=True)
        for watch in (False, True):
            factory = client._transport._session(watch).connector._socket_factory  # type: ignore[union-attr]
            with factory((socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", 1))) as made:
                options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
                idle, interval, count = (made.getsockopt(socket.IPPROTO_TCP, each) for each in options)
                assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
                assert 30 <= idle + interval * count <= 45
                assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) <= 45_000


async def test_refused_is_told_apart() -> None:
    async with connected() as (clock, server, client):
        await server.stop()
        with pytest.raises(errors.ConnectionRefused) as caught:
            await passing(clock, client.get(CONFIG_MAPS, "web", "default"))
        assert not caught.value.sent
        gone = Client(replace(server.config, server="unix:///nowhere/api.sock"), clock=clock)
        with pytest.raises(errors.ConnectionRefused):
            await passing(clock, gone.get(CONFIG_MAPS, "web", "default"))
        await gone.close()


async def test_answers_that_are_none() -> None:
    async with connected() as (_, server, client):
        other = does.answers(json.dumps({**WEB, "kind": "Secret"}).encode())
        for trouble in (does.answers(b"<html>", "text/html"), does.answers(b"{"), other):
            server.script.add("get", trouble)
            with pytest.raises(errors.BadAnswer):
                await client.get(CONFIG_MAPS, "web", "default")


async def test_pages_are_put_together_and_an_expired_one_is_replaced_by_all() -> None:
    async with connected() as (_, server, client):
        for name in "abcde":
            server.world.create(name)
        found = await client.list_all(PODS, page=2, labels="x=y", fields="spec.nodeName=n")
        assert [each.metadata.name for each in found.items] == list("abcde")
        first, second, _ = server.of("list")
        assert first.params == {"limit": "2", "labelSelector": "x=y", "fieldSelector": "spec.nodeName=n"}
        assert second.params["continue"] == "105:2"
        assert "resourceVersion" not in second.params
        server.script.add("list", server.honest, does.status(410, "Expired"))
        found = await client.list_all(PODS, page=2)
        assert [each.metadata.name for each in found.items] == list("abcde")
        assert "limit" not in server.of("list")[-1].params


async def test_a_token_goes_without_a_version() -> None:
    """A token carries its version; servers refuse both (API concepts, "Retrieving large results sets")."""
    async with connected() as (_, server, client):
        server.script.add("list", does.answers(b'{"kind":"ConfigMapList","apiVersion":"v1","items":[]}'))
        await client.list(CONFIG_MAPS, limit=2, token="more", version="5", match="Exact")
        assert server.requests[-1].params == {"limit": "2", "continue": "more"}


async def test_watch_gives_events_and_ends_with_the_stream() -> None:
    async with connected() as (_, server, client):
        server.world.create("a")
        async with client.watch(PODS, since="100", seconds=60) as events:
            first = await anext(events)
            assert (first.type, first.version) == ("ADDED", "101")
            assert first.object is not None
            assert first.object.metadata.name == "a"
            server.end_watches()
            assert [event async for event in events] == []
        assert server.requests[-1].params == {
            "watch": "1",
            "resourceVersion": "100",
            "timeoutSeconds": "60",
            "allowWatchBookmarks": "true",
        }


async def test_urgent_calls_go_before_bulk_ones() -> None:
    async with connected(qps=1, burst=1) as (clock, server, client):
        await client.raw("GET", "/version")
        calls = [
            client.raw(
                "GET", "/api/v1/namespaces/default/configmaps/bulk", priority=Priority.BULK, repeat=False
            ),
            client.raw(
                "GET", "/api/v1/namespaces/default/configmaps/urgent", priority=Priority.URGENT, repeat=False
            ),
        ]
        await passing(clock, asyncio.gather(*calls, return_exceptions=True))
        assert [each.path.rsplit("/", 1)[1] for each in server.requests[1:]] == ["urgent", "bulk"]


async def test_who_asks_is_said() -> None:
    async with connected() as (clock, server, _):
        config = replace(
            server.config,
            credentials=Fixed(bearer("secret")),
            impersonate={"Impersonate-User": "jane", "Impersonate-Group": ["dev", "ops"]},
        )
        async with Client(config, clock=clock) as client:
            await client.raw("GET", "/version")
        headers = server.requests[-1].headers
        assert headers["authorization"] == "Bearer secret"
        assert headers["impersonate-user"] == "jane"
        assert headers["user-agent"].startswith("podwire/")


async def test_a_token_file_is_read_again_when_it_is_refused_and_every_minute(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("old\n")
    async with connected() as (clock, server, _):

        async def picky(exchange: Exchange) -> None:
            if exchange.request.headers["authorization"] == "Bearer old":
                await exchange.answer(401, failure(401, "Unauthorized"))
            else:
                await exchange.answer(200, {})

        async with Client(replace(server.config, credentials=TokenFile(file)), clock=clock) as client:
            await client.raw("GET", "/version")
            file.write_text("new")
            server.script.add("any", picky, picky)
            await client.raw("GET", "/version")
            assert [each.headers["authorization"] for each in server.requests] == [
                "Bearer old",
                "Bearer old",
                "Bearer new",
            ]
            file.write_text("newest")
            await client.raw("GET", "/version")
            await clock.advance(61)
            await client.raw("GET", "/version")
            assert [each.headers["authorization"] for each in server.requests[3:]] == [
                "Bearer new",
                "Bearer newest",
            ]
            file.unlink()
            await clock.advance(61)
            await client.raw("GET", "/version")
            assert server.requests[-1].headers["authorization"] == "Bearer newest"


def server_context() -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.load_cert_chain(CERTIFICATES / "server.crt", CERTIFICATES / "server.key")
    made.load_verify_locations(CERTIFICATES / "ca.crt")
    made.verify_mode = ssl.CERT_REQUIRED
    return made


async def test_certificates_of_both_sides() -> None:
    clock = QuickClock()
    ca = (CERTIFICATES / "ca.crt").read_bytes()
    pair = [(CERTIFICATES / name).read_bytes() for name in ("client.crt", "client.key")]
    async with ObjectServer(clock) as server:
        server.tls = server_context()
        await server.stop()
        await server.start()
        url = f"https://127.0.0.1:{server.port}"
        config = Config(server=url, ca=ca, credentials=Fixed(Credential("", *pair)))
        in_files = CertificateFiles(CERTIFICATES / "client.crt", CERTIFICATES / "client.key")
        named = replace(config, tls_server_name="kubernetes.default")
        for good in (
            config,
            replace(config, credentials=in_files),
            named,
            replace(config, ca=b"", insecure=True),
        ):
            async with Client(good) as client:
                assert (await client.raw("GET", "/version")).code == 200
        no_certificate = replace(config, credentials=Fixed())
        for bad in (
            replace(config, ca=b""),
            replace(config, tls_server_name="other.example"),
            no_certificate,
        ):
            async with Client(bad) as client:
                with pytest.raises(errors.ConnectionFailed):
                    await client.raw("GET", "/version", repeat=False)
        async with Client(replace(config, ca=b"nonsense")) as client:
            with pytest.raises(errors.ConfigError, match="certificate-authority"):
                await client.raw("GET", "/version")
        async with Client(replace(config, credentials=Fixed(Credential("", pair[0], b"nonsense")))) as client:
            with pytest.raises(errors.CredentialError, match="key"):
                await client.raw("GET", "/version")


def connections_to(port: int) -> int:
    """How many sockets this process has that are connected to a port of loopback."""
    found = 0
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(entry.name))) as each:
            found += each.getpeername() == ("127.0.0.1", port)
    return found


@pytest.mark.parametrize(
    ("last", "refused"),
    [(b"", False), (b"0\r\n\r\n", False), (b"", True)],
    ids=["broken off", "ended by the server", "refused at first"],
)
async def test_a_watch_over_tls_leaves_no_socket_when_the_server_does_not_take_leave(
    last: bytes, refused: bool
) -> None:
    """The server never answers a close_notify."""
    over = threading.Event()
    event = b'{"type":"BOOKMARK","object":{"kind":"ConfigMap","metadata":{"resourceVersion":"1"}}}\n'
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    good = head + b"%x\r\n%s\r\n" % (len(event), event) + last
    unauthorized = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 1\r\n\r\n"

    def serve() -> None:
        with contextlib.ExitStack() as stack:
            for answer in [unauthorized, good] if refused else [good]:
                accepted, _ = listener.accept()
                secured = stack.enter_context(server_context().wrap_socket(accepted, server_side=True))
                secured.recv(65536)
                secured.sendall(answer)
            over.wait(20)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        thread = threading.Thread(target=serve)
        thread.start()
        in_files = CertificateFiles(CERTIFICATES / "client.crt", CERTIFICATES / "client.key")
        ca = (CERTIFICATES / "ca.crt").read_bytes()
        config = Config(server=f"https://127.0.0.1:{port}", ca=ca, credentials=in_files)
        try:
            async with Client(config) as client, client.watch(CONFIG_MAPS, "default") as watch:
                async for seen in watch:
                    assert seen.type == "BOOKMARK"
                    assert connections_to(port) == 1
                    if not last:
                        break
            assert connections_to(port) == 0
        finally:
            over.set()
            thread.join()


async def test_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "api.sock"
    async with connected() as (_, server, _):
        listening = await asyncio.start_unix_server(server._connected, path)
        try:
            async with Client(Config(server=f"unix://{path}")) as client:
                await client.create(CONFIG_MAPS, WEB, "default")
                assert (await client.get(CONFIG_MAPS, "web", "default"))["data"] == {"a": "1"}
        finally:
            listening.close()


async def test_a_client_that_is_closed() -> None:
    async with connected() as (_, server, client):
        await client.raw("GET", "/version")
        await client.close()
        with pytest.raises(errors.ConnectFailed, match="closed"):
            await client.raw("GET", "/version", repeat=False)
        assert server.count() == 1


PATHS = [
    (PODS, ("", "", ""), "/api/v1/pods"),
    (PODS, ("default", "", ""), "/api/v1/namespaces/default/pods"),
    (PODS, ("default", "web", "status"), "/api/v1/namespaces/default/pods/web/status"),
    (NODES, ("", "n1", ""), "/api/v1/nodes/n1"),
    (
        unstructured("example.org", "v1", "things", "Thing"),
        ("a", "b/../c", ""),
        "/apis/example.org/v1/namespaces/a/things/b%2F..%2Fc",
    ),
    (
        unstructured("example.org", "v1", "things", "Thing", namespaced=False),
        ("", "x", "scale"),
        "/apis/example.org/v1/things/x/scale",
    ),
]


@pytest.mark.parametrize(("resource", "parts", "path"), PATHS, ids=lambda each: str(each)[:40])
def test_paths(resource: Resource[Any], parts: tuple[str, str, str], path: str) -> None:
    assert resource.path(*parts) == path


def test_paths_that_do_not_exist() -> None:
    with pytest.raises(ValueError, match="namespace is needed"):
        PODS.path("", "web")
    with pytest.raises(ValueError, match="have no namespace"):
        NODES.path("default", "n1")
