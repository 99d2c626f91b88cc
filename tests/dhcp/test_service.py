"""The keeper behind its socket: the same calls, the same errors, for root only."""

from __future__ import annotations

import os
import socket
import stat
import threading
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.dhcp import errors, wire
from podwire.dhcp.errors import DHCPError, KeeperUnavailable
from podwire.dhcp.lease import Lease
from podwire.dhcp.records import Key, Wish
from podwire.dhcp.remote import RemoteKeeper
from podwire.dhcp.service import KeeperService, listen
from podwire.kernel.errors import KernelError
from tests.waiting import until

KEY = Key("net", "id", "eth0")
LEASE = Lease("10.0.0.5/24", "10.0.0.1", 1.0, 600, 300.0, 510.0)


class Scripted:
    """A keeper that answers as it is told."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.asked: list[object] = []
        self.cancelled = threading.Event()
        self.block = False

    def _answer(self, *asked: object) -> None:
        self.asked.append(asked)
        if self.error is not None:
            raise self.error

    def acquire(
        self, key: Key, wish: Wish, deadline: float, cancelled: Callable[[], bool] | None = None
    ) -> Lease:
        self._answer("acquire", key, wish, round(deadline - time.monotonic()))
        assert cancelled is not None
        while self.block and not cancelled():
            time.sleep(0.01)
        if self.block:
            self.cancelled.set()
        return LEASE

    def check(self, key: Key) -> Lease:
        self._answer("check", key)
        return LEASE

    def release(self, key: Key) -> bool:
        self._answer("release", key)
        return True

    def gc(self, network: str, keep: Collection[tuple[str, str]]) -> list[Key]:
        self._answer("gc", network, tuple(keep))
        return [KEY]


@pytest.fixture
def keeper() -> Scripted:
    return Scripted()


@pytest.fixture
def path(tmp_path: Path, keeper: Scripted) -> Iterator[str]:
    place = str(tmp_path / "made" / "sock")
    with KeeperService(keeper, listen(place), longest=100):
        yield place


def test_every_call_goes_through(keeper: Scripted, path: str) -> None:
    remote = RemoteKeeper(path)
    wish = Wish("/run/netns/x", {12: b"\xff"}, (1, 3), metric=7, no_gateway=True)
    assert remote.acquire(KEY, wish, time.monotonic() + 60) == LEASE
    assert remote.check(KEY) == LEASE
    assert remote.release(KEY)
    assert remote.gc("net", [("id", "eth0")]) == [KEY]
    remote.status()
    assert keeper.asked == [
        ("acquire", KEY, wish, 58),  # the keeper's own error comes before the caller's deadline
        ("check", KEY),
        ("release", KEY),
        ("gc", "net", (("id", "eth0"),)),
    ]


@pytest.mark.parametrize(
    "error",
    [
        errors.LeaseDenied("no server"),
        errors.NoLease("none"),
        errors.ContainerGone("gone"),
        errors.InterfaceGone("gone too"),
        errors.StoreError("write", "/x", "disk full", 28),
        errors.KeeperUnavailable("/x", "stopped"),
        KernelError(19, "look up link", "eth0", "detail"),
    ],
)
def test_every_error_comes_back_as_it_was(keeper: Scripted, path: str, error: Exception) -> None:
    keeper.error = error
    with pytest.raises(type(error)) as caught:
        RemoteKeeper(path).check(KEY)
    assert type(caught.value) is type(error)
    assert str(error) in str(caught.value)


def test_it_is_roots_alone(path: str) -> None:
    assert stat.S_IMODE(Path(path).stat().st_mode) == 0o600
    assert stat.S_IMODE(Path(path).parent.stat().st_mode) == 0o700


def test_a_caller_that_goes_away_cancels(keeper: Scripted, path: str) -> None:
    keeper.block = True
    with pytest.raises(errors.LeaseDenied):
        RemoteKeeper(path).acquire(KEY, Wish("/x"), time.monotonic() + 60, lambda: bool(keeper.asked))
    assert keeper.cancelled.wait(5)


def test_a_deadline_is_kept_whatever_the_keeper_does(keeper: Scripted, path: str) -> None:
    keeper.block = True
    began = time.monotonic()
    with pytest.raises(errors.LeaseDenied, match="no answer to acquire in time"):
        RemoteKeeper(path).acquire(KEY, Wish("/x"), time.monotonic() + 0.3)
    assert time.monotonic() - began < 2
    assert keeper.cancelled.wait(5)


def test_nobody_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(KeeperUnavailable, match="No such file"):
        RemoteKeeper(str(tmp_path / "nothing")).check(KEY)
    dead = tmp_path / "dead"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(dead))
    with pytest.raises(KeeperUnavailable, match="Connection refused"):
        RemoteKeeper(str(dead)).check(KEY)


@pytest.mark.parametrize("said", [b"HTTP/1.1 405 Method Not Allowed\r\n\r\n\n", b"", b"{\n", b"[]\n"])
def test_another_daemon_at_the_socket_is_told(tmp_path: Path, said: bytes) -> None:
    place = str(tmp_path / "sock")
    listener = listen(place)

    def answer() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(said)

    other = threading.Thread(target=answer)
    other.start()
    with pytest.raises(KeeperUnavailable, match=r"no keeper of Podwire's"):
        RemoteKeeper(place).check(KEY)
    other.join()
    listener.close()


def test_a_dead_socket_is_replaced_and_a_living_one_is_not(path: str, tmp_path: Path) -> None:
    with pytest.raises(KeeperUnavailable, match="another daemon listens there"):
        listen(path)
    dead = str(tmp_path / "dead")
    listen(dead).close()
    listen(dead).close()


def test_a_plain_file_in_its_place_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(KeeperUnavailable, match="Address already in use"):
        listen(str(tmp_path / "file"))
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize(
    "said", [b"\n", b"{}\n", b"\xff\xfe\n", b'{"operation":"nosuch"}\n', b"GET / HTTP/1.1\n"]
)
def test_what_is_no_call_gets_an_error(path: str, said: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as caller:
        caller.connect(path)
        caller.sendall(said)
        assert b'"failure":{"kind":"DHCPError","text":"not a call of this keeper' in caller.recv(65536)


def test_a_caller_that_says_nothing_holds_nobody_up(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect(path)
        RemoteKeeper(path).status()


def test_another_user_is_not_served(keeper: Scripted, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "peer_uid", lambda _connection: 1000)
    with pytest.raises(KeeperUnavailable, match="user 1000 listens there"):
        RemoteKeeper(path).check(KEY)
    with socket.socket(socket.AF_UNIX) as caller:
        caller.connect(path)
        try:
            caller.sendall(b'{"operation":"status"}\n')
            said = caller.recv(10)
        except ConnectionError:  # it did not even read
            said = b""
    assert said == b""
    assert keeper.asked == []


@given(st.text(max_size=40), st.integers(0, 200))
def test_any_text_survives_the_way(text: str, number: int) -> None:
    for error in (
        DHCPError(text),
        errors.StoreError("op", text, text, number),
        KeeperUnavailable(text, text),
    ):
        assert str(wire.error_of(wire.failure_of(error))).endswith(str(error))


def test_the_service_leaves_no_thread_and_no_descriptor(keeper: Scripted, tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    service = KeeperService(keeper, listen(str(tmp_path / "sock")))
    service.start()
    RemoteKeeper(str(tmp_path / "sock")).status()
    service.close()
    service.close()
    assert [one.name for one in threading.enumerate() if one.name == "dhcp-socket"] == []
    until(lambda: len(os.listdir("/proc/self/fd")) == before)  # noqa: PTH208
