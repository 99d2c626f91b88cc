"""Namespaces: what is opened is one, what is entered is left, and no descriptor stays behind."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from podwire.kernel import links, netns
from podwire.kernel.errors import KernelError, NetnsError, NetnsMissing, NotANetns
from podwire.kernel.netlink import RouteSocket
from podwire.kernel.netns import Netns
from podwire.kernel.notifications import GoneLinks
from tests.kernel import helpers

kernel = pytest.mark.kernel
HERE = "/proc/thread-self/ns/net"


def here() -> int:
    return Path(HERE).stat().st_ino


def threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


@pytest.mark.parametrize(
    "path", ["/run/netns/no-such", "/etc/passwd/x", "/proc/999999999/ns/net", "", "a\0b"]
)
def test_nothing_there(path: str) -> None:
    with pytest.raises(NetnsMissing) as caught:
        netns.open(path)
    assert caught.value.errno in {errno.ENOENT, errno.ENOTDIR}


def test_something_else_there(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("")
    os.mkfifo(tmp_path / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
    before = helpers.descriptors()
    for path in (
        plain,
        tmp_path,
        tmp_path / "fifo",
        tmp_path / "socket",
        Path("/dev/null"),
        Path("/proc/self/stat"),
    ):
        with pytest.raises(NotANetns) as caught:
            netns.open(path)
        assert caught.value.subject == str(path)
    assert helpers.descriptors() == before


def test_a_namespace_of_another_kind() -> None:
    with pytest.raises(NotANetns, match="another kind"):
        netns.open("/proc/self/ns/mnt")


def test_a_path_that_may_not_be_opened_is_neither_missing_nor_else(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(NetnsError) as caught:
        netns.open(loop)
    assert caught.value.errno == errno.ELOOP
    assert not isinstance(caught.value, NetnsMissing | NotANetns)


@kernel
def test_a_new_namespace_has_its_loopback_up_and_parents_are_made() -> None:
    before = here()
    netns.create("/run/deep/er/pod")
    assert here() == before
    done = subprocess.run(
        ["nsenter", "--net=/run/deep/er/pod", "ip", "-br", "address"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["lo", "UNKNOWN", "127.0.0.1/8", "::1/128"]
    with netns.open("/run/deep/er/pod") as pod:
        assert pod.identity[1] != before
        assert pod.run(here) == pod.identity[1]
    netns.remove("/run/deep/er/pod")
    assert not Path("/run/deep/er/pod").exists()


@kernel
def test_a_path_that_is_taken_is_left_alone(pod: Netns, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("mine")
    for path in (pod.path, str(plain)):
        with pytest.raises(NetnsError) as caught:
            netns.create(path)
        assert caught.value.errno == errno.EEXIST
    assert plain.read_text() == "mine"
    assert "lo" in helpers.link_names("pod")


@kernel
def test_a_failed_creation_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> RouteSocket:
        raise KernelError(errno.EMFILE, "open", "socket")

    before = helpers.descriptors()
    with monkeypatch.context() as patched:
        patched.setattr(RouteSocket, "open", refuse)
        with pytest.raises(KernelError):
            netns.create("/run/netns/x")
    assert not Path("/run/netns/x").exists()
    assert helpers.descriptors() == before


@kernel
def test_removal_is_idempotent_and_lets_go_of_links(sock: RouteSocket) -> None:
    netns.create("/run/netns/x")
    with netns.open("/run/netns/x") as pod:
        sock.send(links.veth("a", "b", peer_netns=pod))
    subprocess.run(["mount", "--bind", "/run/netns/x", "/run/netns/x"], check=True)
    for _ in range(3):
        netns.remove("/run/netns/x")
    netns.remove("/run/no/such/folder/x")
    assert not Path("/run/netns/x").exists()
    assert "/run/netns/x" not in Path("/proc/self/mounts").read_text()


@kernel
def test_removal_spares_what_is_no_leftover(tmp_path: Path) -> None:
    empty, full = tmp_path / "empty", tmp_path / "full"
    empty.touch()
    full.write_text("precious")
    target = tmp_path / "link"
    target.symlink_to(empty)
    for path in (full, tmp_path, target):
        with pytest.raises(NotANetns):
            netns.remove(path)
    assert full.read_text() == "precious"
    assert empty.exists()
    netns.remove(empty)
    assert not empty.exists()


@kernel
def test_a_mount_that_lost_its_namespace_is_no_namespace(pod: Netns) -> None:
    subprocess.run(["umount", "--lazy", pod.path], check=True)
    with pytest.raises(NotANetns):
        netns.open(pod.path)


@kernel
def test_run_returns_raises_and_leaves_the_caller_where_it_was(pod: Netns) -> None:
    before = here()
    assert pod.run(here) == pod.identity[1]
    assert here() == before
    with netns.current() as home:
        nested = pod.run(lambda: (pod.run(here), home.run(here), here()))
    assert nested == (pod.identity[1], before, pod.identity[1])

    def fail() -> None:
        raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        pod.run(fail)
    assert here() == before


@kernel
def test_a_thread_that_is_settled_looks_its_namespace_up_once(
    pod: Netns, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = here()
    looked: list[Netns] = []
    real = netns.current

    def current() -> Netns:
        looked.append(real())
        return looked[-1]

    monkeypatch.setattr(netns, "current", current)
    with real() as home, netns.settled():
        for _ in range(3):
            assert pod.run(here) == pod.identity[1]
            nested = pod.run(lambda: (pod.run(here), home.run(here), here()))
            assert nested == (pod.identity[1], before, pod.identity[1])
            assert (home.run(here), here()) == (before, before)
    assert len(looked) == 1
    pod.run(here)
    assert len(looked) == 2
    assert {one.fd for one in looked} == {-1}


@kernel
def test_a_socket_opened_inside_stays_inside(pod: Netns, pod_sock: RouteSocket) -> None:
    listener = pod.run(socket.socket)
    with listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(listener.getsockname(), timeout=2).close()
        client = pod.run(lambda: socket.create_connection(listener.getsockname(), timeout=2))
        client.close()


@kernel
def test_nothing_leaks_over_many_rounds(pod: Netns) -> None:
    """Field case F22: descriptors closed twice or never, under threads."""

    def round_trip() -> None:
        for _ in range(50):
            with netns.open(pod.path) as one, RouteSocket.open(one) as sock:
                assert one.run(here) == pod.identity[1]
                assert links.get(sock, "lo") is not None
            one.close()

    round_trip()
    before, running = helpers.descriptors(), threads()
    workers = [threading.Thread(target=round_trip) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert helpers.descriptors() == before
    limit = time.monotonic() + 10
    while (
        threads() > running and time.monotonic() < limit
    ):  # joined, but the kernel may not have ended them yet
        os.sched_yield()
    assert threads() <= running


@kernel
def test_a_closed_namespace_cannot_be_entered_by_accident(pod: Netns) -> None:
    """Its descriptor's number may belong to another file by then."""
    one = netns.open(pod.path)
    number = one.fd
    one.close()
    with Path("/dev/null").open() as other:
        assert other.fileno() == number
        one.close()
        assert os.fstat(other.fileno())
        with pytest.raises(NetnsError) as caught:
            one.run(here)
    assert caught.value.errno == errno.EBADF


@kernel
def test_two_paths_to_one_namespace_are_equal(pod: Netns) -> None:
    Path("/run/netns/again").touch()
    subprocess.run(["mount", "--bind", pod.path, "/run/netns/again"], check=True)
    with netns.open("/run/netns/again") as again, netns.current() as current:
        assert again.identity == pod.identity
        assert current.identity != pod.identity
    netns.remove("/run/netns/again")
    assert helpers.link_names("pod") == {"lo"}


@kernel
def test_removal_frees_a_namespace_that_another_mount_namespace_copied(
    sock: RouteSocket, host: Netns
) -> None:
    netns.create("/run/netns/x")
    with netns.open("/run/netns/x") as pod:
        sock.send(links.veth("a", "b", index=40, peer_netns=pod))
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", "echo in; read end"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as container:
        assert container.stdin is not None
        assert container.stdout is not None
        container.stdout.readline()
        gone = GoneLinks(host)
        try:
            netns.remove("/run/netns/x")
            assert gone.read() == [40]
        finally:
            gone.close()
            container.stdin.close()
    assert helpers.link_names() == {"lo"}


@kernel
def test_a_thread_that_cannot_return_ends_the_process(pod: Netns) -> None:
    program = (
        "from podwire.kernel import netns; import os\n"
        "home = netns.current\n"
        "def broken():\n"
        "    found = home(); os.dup2(os.open('/dev/null', os.O_RDONLY), found.fd); return found\n"
        "netns.current = broken\n"
        f"netns.open({pod.path!r}).run(lambda: print('inside', flush=True)); print('after', flush=True)"
    )
    source = Path(netns.__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=source)
    assert done.returncode == -signal.SIGABRT
    assert done.stdout == "inside\n"
    assert "cannot return to network namespace" in done.stderr
