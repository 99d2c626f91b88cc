"""Links are gone when their caller hears so, together where they can be, and nobody else's with them."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from ipaddress import ip_interface

import pytest

from podwire.kernel import addresses, links, netns
from podwire.kernel.errors import KernelError
from podwire.kernel.message import Message
from podwire.kernel.netlink import RouteSocket
from podwire.kernel.netns import Netns
from podwire.kernel.notifications import GoneLinks
from podwire.kernel.removal import Candidate, LinkRemover
from tests.kernel import helpers

pytestmark = pytest.mark.kernel


@pytest.fixture
def remover() -> Iterator[LinkRemover]:
    with LinkRemover() as opened:
        yield opened


def side_by_side(*jobs: object) -> list[BaseException]:
    """Run all at one moment; what they raised."""
    start = threading.Barrier(len(jobs))
    raised: list[BaseException] = []

    def work(job: object) -> None:
        assert callable(job)
        start.wait()
        try:
            job()
        except KernelError as error:
            raised.append(error)

    workers = [threading.Thread(target=work, args=(job,)) for job in jobs]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return raised


def test_one_link_by_name_and_one_by_index(sock: RouteSocket, remover: LinkRemover, pod: Netns) -> None:
    sock.send(links.veth("a", "eth0", peer_netns=pod), links.veth("c", "d", index=50))
    remover.remove("a")
    assert helpers.link_names("pod") == {"lo"}
    assert helpers.link_names() == {"lo", "c", "d"}
    remover.remove(50)
    assert helpers.link_names() == {"lo"}


def test_a_link_as_it_was_read_is_that_one_whoever_has_its_name_now(
    sock: RouteSocket, remover: LinkRemover
) -> None:
    sock.send(links.veth("a", "b"), links.veth("c", "d"))
    first, second = links.get(sock, "a"), links.get(sock, "c")
    assert first is not None
    assert second is not None
    remover.remove(first)
    assert helpers.link_names() == {"lo", "c", "d"}
    sock.send(links.delete("c"), links.veth("c", "e", index=60))
    remover.remove(second, first)
    assert helpers.link_names() == {"lo", "c", "e"}


def test_a_hundred_by_concurrent_callers_each_gone_when_told(sock: RouteSocket, remover: LinkRemover) -> None:
    sock.send(*(links.veth(f"v{number}", f"p{number}") for number in range(100)))
    sock.send(links.veth("foreign", "other"), links.configure("foreign", group=7))
    still_there: list[str] = []

    def one(number: int) -> None:
        remover.remove(f"v{number}")
        with RouteSocket.open() as own:
            still_there.extend(
                name for name in (f"v{number}", f"p{number}") if links.get(own, name) is not None
            )

    assert side_by_side(*(lambda number=number: one(number) for number in range(100))) == []
    assert still_there == []
    assert helpers.link_names() == {"lo", "foreign", "other"}
    assert helpers.link("foreign")["group"] == "7"


def test_many_in_one_call_with_some_gone_already_and_some_named_twice(
    sock: RouteSocket, remover: LinkRemover
) -> None:
    sock.send(*(links.veth(f"v{number}", f"p{number}") for number in range(20)))
    index = helpers.link("v0")["ifindex"]
    remover.remove(*(f"v{number}" for number in range(20)), "v0", "p0", index, "never", 987_654)
    assert helpers.link_names() == {"lo"}


def test_callers_that_come_during_a_deletion_share_the_next(
    sock: RouteSocket, remover: LinkRemover, monkeypatch: pytest.MonkeyPatch
) -> None:
    sock.send(*(links.veth(f"v{number}", f"p{number}") for number in range(21)))
    sent: list[str] = []
    held, go = threading.Event(), threading.Event()
    real = RouteSocket.send

    def recording(self: RouteSocket, *messages: Message) -> None:
        sent.extend(message.operation for message in messages)
        held.set()
        go.wait(10)
        real(self, *messages)

    queued = threading.Semaphore(0)
    start = remover._start_threads

    def counting() -> None:
        start()
        queued.release()

    monkeypatch.setattr(RouteSocket, "send", recording)
    first = threading.Thread(target=lambda: remover.remove("v0"))
    first.start()
    held.wait(10)
    monkeypatch.setattr(remover, "_start_threads", counting)
    others = [threading.Thread(target=remover.remove, args=(f"v{number}",)) for number in range(1, 21)]
    for other in others:
        other.start()
    for _ in others:
        assert queued.acquire(timeout=10)
    assert sent == ["delete link"]
    go.set()
    for thread in (first, *others):
        thread.join()
    assert sent.count("delete link group") == 1
    assert sent.count("change link") == len(others)
    assert helpers.link_names() == {"lo"}


def test_what_is_gone_already_is_success(sock: RouteSocket, remover: LinkRemover) -> None:
    remover.remove("never", 4711)
    remover.remove()
    sock.send(links.veth("a", "b"))
    sock.send(links.delete("a"))
    remover.remove("a", "b")
    assert helpers.link_names() == {"lo"}


def test_two_callers_for_one_link(sock: RouteSocket, remover: LinkRemover) -> None:
    sock.send(links.veth("a", "b"))
    assert side_by_side(*[lambda: remover.remove("a"), lambda: remover.remove("b")] * 3) == []
    assert helpers.link_names() == {"lo"}


def test_a_candidate_goes_if_it_is_what_was_meant(sock: RouteSocket, remover: LinkRemover) -> None:
    sock.send(*(links.veth(f"v{number}", f"p{number}", index=40 + number) for number in range(4)))
    sock.send(links.configure("v0", alias="mine"), links.configure("v1", alias="theirs"))
    seen: list[str] = []

    def mine(link: links.Link) -> bool:
        seen.append(link.name)
        return link.alias == "mine"

    remover.remove(
        *(Candidate(40 + number, f"v{number}", mine) for number in range(3)), Candidate(4711, "x", mine)
    )
    assert sorted(seen) == ["v0", "v1", "v2"]
    assert helpers.link_names() == {"lo", "v1", "p1", "v2", "p2", "v3", "p3"}
    assert helpers.link("v1")["group"] == "default"
    remover.remove(Candidate(41, "v1", mine))
    assert "v1" in helpers.link_names()


def test_one_caller_that_means_it_is_enough(sock: RouteSocket, remover: LinkRemover) -> None:
    for _ in range(20):
        sock.send(links.veth("a", "b", index=40))
        jobs = [
            lambda: remover.remove(Candidate(40, "a", lambda link: False)),
            lambda: remover.remove(Candidate(40, "a", lambda link: True)),
            lambda: remover.remove(Candidate(40, "a", lambda link: False)),
        ]
        assert side_by_side(*jobs) == []
        assert helpers.link_names() == {"lo"}


def test_a_name_can_be_used_again_at_once(sock: RouteSocket, remover: LinkRemover) -> None:
    for _ in range(10):
        sock.send(links.veth("a", "b"))
        old = helpers.link("a")["ifindex"]
        remover.remove("a")
        sock.send(links.veth("a", "b"))
        assert helpers.link("a")["ifindex"] != old
        remover.remove("b")


def test_a_link_that_cannot_be_deleted_spoils_it_for_nobody(sock: RouteSocket, remover: LinkRemover) -> None:
    sock.send(*(links.veth(f"v{number}", f"p{number}") for number in range(5)))
    sock.send(links.configure("lo", group=9))
    with pytest.raises(KernelError) as caught:
        remover.remove("v0", "v1", "lo", "v2")
    assert caught.value.errno == errno.EOPNOTSUPP
    assert (caught.value.operation, caught.value.subject) == ("delete link", "lo")
    assert helpers.link_names() == {"lo", "v3", "p3", "v4", "p4"}
    assert helpers.link("lo")["group"] == "9"
    with pytest.raises(KernelError):
        remover.remove("lo")
    remover.remove("v3", "v4")
    assert helpers.link_names() == {"lo"}


def test_every_caller_hears_of_the_refusal(remover: LinkRemover) -> None:
    raised = side_by_side(*[lambda: remover.remove("lo")] * 4)
    told = [(error.errno, error.subject) for error in raised if isinstance(error, KernelError)]
    assert told == [(errno.EOPNOTSUPP, "lo")] * 4
    assert "lo" in helpers.link_names()


def test_a_bridge_with_ports_and_addresses(sock: RouteSocket, remover: LinkRemover) -> None:
    sock.send(
        links.bridge("br0", up=True, index=30),
        links.veth("a", "b"),
        links.configure("a", master=30, up=True),
        addresses.add(30, ip_interface("10.1.0.1/16")),
    )
    # Taking a port from its bridge is announced as a deletion too, in the family of bridges.
    sock.send(links.configure("a", master=0), links.configure("a", master=30))
    remover.remove("br0")
    assert helpers.link_names() == {"lo", "a", "b"}
    assert "master" not in helpers.link("a")


def test_only_deletions_are_announced(sock: RouteSocket, host: Netns) -> None:
    gone = GoneLinks(host)
    try:
        sock.send(links.bridge("br0", index=30), links.veth("a", "b", index=31, peer_index=32, up=True))
        sock.send(
            links.configure("a", master=30), links.configure("a", master=0), links.configure("b", up=True)
        )
        sock.send(links.delete("br0"))
        assert gone.read() == [30]
        sock.send(links.delete("a"))
        assert set(gone.read()) == {31, 32}
    finally:
        gone.close()


def test_lost_announcements_are_made_up_for(sock: RouteSocket, monkeypatch: pytest.MonkeyPatch) -> None:
    real = GoneLinks.read

    def lossy(self: GoneLinks) -> list[int]:
        real(self)
        raise KernelError(errno.ENOBUFS, "read", "link announcements")

    sock.send(*(links.veth(f"v{number}", f"p{number}") for number in range(5)))
    monkeypatch.setattr(GoneLinks, "read", lossy)
    with LinkRemover() as remover:
        remover.remove("v0")
        remover.remove("v1", "v2")
        assert helpers.link_names() == {"lo", "v3", "p3", "v4", "p4"}


def test_without_any_announcement_the_answer_ends_it(
    sock: RouteSocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = GoneLinks.read

    def deaf(self: GoneLinks) -> list[int]:
        real(self)
        return []

    sock.send(*(links.veth(f"v{number}", f"p{number}") for number in range(3)))
    monkeypatch.setattr(GoneLinks, "read", deaf)
    with LinkRemover() as remover:
        remover.remove("v0")
        remover.remove("v1", "v2")
    assert helpers.link_names() == {"lo"}


def test_a_deadline(sock: RouteSocket, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    real = RouteSocket.send

    def stuck(self: RouteSocket, *messages: Message) -> None:
        release.wait(10)
        real(self, *messages)

    sock.send(links.veth("a", "b"))
    with LinkRemover() as remover, monkeypatch.context() as patched:
        patched.setattr(RouteSocket, "send", stuck)
        with pytest.raises(KernelError) as caught:
            remover.remove("a", timeout=0.05)
        assert caught.value.errno == errno.ETIMEDOUT
        assert str(caught.value) == "delete link a: Connection timed out (ETIMEDOUT): not gone after 0.05 s"
        release.set()
    assert helpers.link_names() == {"lo"}


def test_close_ends_the_threads_and_refuses_more(sock: RouteSocket) -> None:
    before = helpers.descriptors()
    names = {thread.name for thread in threading.enumerate()}
    sock.send(*(links.veth(f"v{number}", f"p{number}") for number in range(10)))
    remover = LinkRemover()
    remover.remove("v0")
    remover.remove(*(f"v{number}" for number in range(1, 10)))
    remover.close()
    remover.close()
    assert {thread.name for thread in threading.enumerate()} == names
    assert helpers.descriptors() == before
    with pytest.raises(KernelError) as caught:
        remover.remove("lo")
    assert caught.value.errno in {errno.ESHUTDOWN, errno.EBADF}


def test_the_namespace_is_the_removers_and_not_the_callers(pod: Netns, pod_sock: RouteSocket) -> None:
    pod_sock.send(links.veth("a", "b"))
    with RouteSocket.open() as sock, LinkRemover(pod) as remover:
        sock.send(links.veth("a", "b"))
        remover.remove("a")
    assert helpers.link_names("pod") == {"lo"}
    assert helpers.link_names() == {"lo", "a", "b"}


def test_links_that_leave_with_their_namespace(sock: RouteSocket, remover: LinkRemover) -> None:
    for number in range(10):
        netns.create(f"/run/netns/n{number}")
        with netns.open(f"/run/netns/n{number}") as pod:
            sock.send(links.veth(f"v{number}", "eth0", peer_netns=pod))
    jobs = [lambda number=number: netns.remove(f"/run/netns/n{number}") for number in range(10)]
    jobs += [lambda number=number: remover.remove(f"v{number}") for number in range(10)]
    assert side_by_side(*jobs) == []
    assert helpers.link_names() == {"lo"}
