from __future__ import annotations

import asyncio
import contextlib
from datetime import UTC, datetime, timedelta

import pytest

from podwire.kube.objects import Pod
from podwire.sources.mux import Mode, Mux, UnknownSource, is_mirror, is_static
from podwire.sources.problems import Reason
from podwire.sources.updates import Op, PodUpdate
from tests.sources.helpers import pod, snapshot

SEEN, SOURCE, MIRROR = (f"kubernetes.io/config.{name}" for name in ("seen", "source", "mirror"))


def told(updates: tuple[PodUpdate, ...]) -> list[tuple[Op, list[str]]]:
    return [(u.op, [p.metadata.uid for p in u.pods]) for u in updates]


def test_new_pods_are_added() -> None:
    mux = Mux("file")
    assert told(mux.merge(snapshot("file", pod("a"), pod("b")))) == [(Op.ADD, ["a", "b"])]
    assert told(mux.merge(snapshot("file", pod("a"), pod("b"), pod("c")))) == [(Op.ADD, ["c"])]


def test_pods_that_are_gone_are_removed() -> None:
    mux = Mux("file")
    mux.merge(snapshot("file", pod("a"), pod("b")))
    assert told(mux.merge(snapshot("file", pod("b")))) == [(Op.REMOVE, ["a"])]
    assert [p.metadata.uid for p in mux.pods()] == ["b"]


def test_identical_snapshots_tell_nothing() -> None:
    mux = Mux("file")
    mux.merge(snapshot("file", pod("a")))
    assert mux.merge(snapshot("file", pod("a"))) == ()


@pytest.mark.parametrize(
    "changed",
    [
        pod("a", image="other"),
        pod("a", labels={"x": "y"}),
        pod("a", annotations={"x": "y"}),
        pod("a", grace=5),
    ],
)
def test_what_differs_is_updated(changed: Pod) -> None:
    mux = Mux("file")
    mux.merge(snapshot("file", pod("a")))
    assert told(mux.merge(snapshot("file", changed))) == [(Op.UPDATE, ["a"])]
    assert mux.pods()[0].spec == changed.spec


def test_a_deletion_timestamp_makes_a_delete() -> None:
    mux = Mux("api")
    mux.merge(snapshot("api", pod("a")))
    assert told(mux.merge(snapshot("api", pod("a", deleted="2026-01-01T00:00:00Z")))) == [(Op.DELETE, ["a"])]


def test_a_status_alone_is_reconciled() -> None:
    mux = Mux("api")
    mux.merge(snapshot("api", pod("a", phase="Pending")))
    assert told(mux.merge(snapshot("api", pod("a", phase="Running")))) == [(Op.RECONCILE, ["a"])]
    assert mux.pods()[0].status.phase == "Running"


def test_the_annotations_of_the_kubelet_are_not_compared() -> None:
    mux = Mux("file")
    mux.merge(snapshot("file", pod("a", annotations={SEEN: "1", SOURCE: "x", MIRROR: "1"})))
    again = pod("a", annotations={SEEN: "2", SOURCE: "y", MIRROR: "2"})
    assert mux.merge(snapshot("file", again)) == ()


def test_the_order_is_remove_add_update_delete_reconcile() -> None:
    mux = Mux("api")
    mux.merge(snapshot("api", pod("gone"), pod("changed"), pod("ending"), pod("status")))
    after = [
        pod("status", phase="Running"),
        pod("ending", deleted="2026-01-01T00:00:00Z"),
        pod("changed", image="x"),
        pod("new"),
    ]
    assert told(mux.merge(snapshot("api", *after))) == [
        (Op.REMOVE, ["gone"]),
        (Op.ADD, ["new"]),
        (Op.UPDATE, ["changed"]),
        (Op.DELETE, ["ending"]),
        (Op.RECONCILE, ["status"]),
    ]


def test_a_first_snapshot_without_pods_is_one_empty_add() -> None:
    mux = Mux("file")
    assert mux.merge(snapshot("file")) == (PodUpdate(Op.ADD, (), "file"),)
    assert mux.merge(snapshot("file")) == ()


def test_sources_do_not_touch_each_other() -> None:
    mux = Mux("file", "api")
    mux.merge(snapshot("file", pod("a")))
    assert told(mux.merge(snapshot("api", pod("a"), pod("b")))) == [(Op.ADD, ["a", "b"])]
    assert told(mux.merge(snapshot("file"))) == [(Op.REMOVE, ["a"])]
    assert [p.metadata.uid for p in mux.pods()] == ["a", "b"]


def test_another_pod_of_the_same_name_is_removed_and_added() -> None:
    mux = Mux("file")
    mux.merge(snapshot("file", pod("old", "web")))
    assert told(mux.merge(snapshot("file", pod("new", "web")))) == [(Op.REMOVE, ["old"]), (Op.ADD, ["new"])]


def test_a_pod_that_keeps_its_uid_under_another_name_is_removed_and_added() -> None:
    mux = Mux("file")
    mux.merge(snapshot("file", pod("a", "old")))
    removed, added = mux.merge(snapshot("file", pod("a", "new")))
    assert [(u.op, u.pods[0].metadata.name) for u in (removed, added)] == [
        (Op.REMOVE, "old"),
        (Op.ADD, "new"),
    ]


@pytest.mark.parametrize("second", [pod("b", "web"), pod("a", "other")])
def test_the_later_of_two_with_one_name_or_uid_is_dropped_and_told(second: Pod) -> None:
    mux = Mux("http")
    first = pod("a", "web")
    assert told(mux.merge(snapshot("http", first, second))) == [(Op.ADD, ["a"])]
    (problem,) = mux.problems.current()
    assert (problem.reason, problem.type, problem.pod) == (
        Reason.FAILED_VALIDATION,
        "Warning",
        second.full_name,
    )
    mux.merge(snapshot("http", first))
    assert mux.problems.current() == ()


def test_first_sight_is_kept_on_update() -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    times = iter(start + timedelta(seconds=n) for n in range(10))
    mux = Mux("file", now=lambda: next(times))
    mux.merge(snapshot("file", pod("a")))
    mux.merge(snapshot("file", pod("a", image="x")))
    annotations = mux.pods()[0].metadata.annotations
    assert annotations == {SEEN: "2026-01-01T00:00:00Z", SOURCE: "file"}


def test_static_and_mirror_pods_are_known_by_their_annotations() -> None:
    mux = Mux("file", "api")
    mux.merge(snapshot("file", pod("a")))
    mux.merge(snapshot("api", pod("b", annotations={MIRROR: "hash"})))
    static, mirror = mux.pods()
    assert (is_static(static), is_mirror(static)) == (True, False)
    assert (is_static(mirror), is_mirror(mirror)) == (False, True)
    assert not is_static(pod("c"))


def test_an_unknown_source_is_refused_by_name() -> None:
    with pytest.raises(UnknownSource, match='"http" is not a configured source: file, api'):
        Mux("file", "api").merge(snapshot("http"))


def test_snapshot_mode_tells_all_pods_with_each_change() -> None:
    mux = Mux("file", "api", mode=Mode.SNAPSHOT)
    assert told(mux.merge(snapshot("file", pod("a")))) == [(Op.SET, ["a"])]
    assert told(mux.merge(snapshot("api", pod("b")))) == [(Op.SET, ["a", "b"])]
    assert told(mux.merge(snapshot("api", pod("b", phase="Running")))) == [(Op.SET, ["a", "b"])]
    assert mux.merge(snapshot("api", pod("b", phase="Running"))) == ()


def test_snapshot_and_updates_tells_all_pods_when_one_comes_or_goes() -> None:
    mux = Mux("api", mode=Mode.SNAPSHOT_AND_UPDATES)
    assert told(mux.merge(snapshot("api"))) == [(Op.SET, [])]
    assert told(mux.merge(snapshot("api", pod("a"), pod("b")))) == [(Op.SET, ["a", "b"])]
    changed = pod("a", image="x")
    assert told(mux.merge(snapshot("api", changed, pod("b")))) == [(Op.UPDATE, ["a"])]
    ending = pod("b", deleted="2026-01-01T00:00:00Z")
    assert told(mux.merge(snapshot("api", changed, ending))) == [(Op.DELETE, ["b"])]
    assert told(mux.merge(snapshot("api", changed))) == [(Op.SET, ["a"])]


async def test_a_source_is_seen_when_its_first_state_has_been_handled() -> None:
    mux = Mux("file", "api")
    updates = mux.updates()
    mux.merge(snapshot("file", pod("a")))
    assert not mux.seen_all()
    assert (await anext(updates)).source == "file"
    mux.merge(snapshot("api"))
    assert (await anext(updates)).source == "api"
    assert not mux.seen_all()
    waiting = asyncio.ensure_future(anext(updates))
    await asyncio.wait_for(mux.sources_ready(), 1)
    assert mux.seen_all()
    waiting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await waiting


async def test_H11_only_configured_sources_count() -> None:
    mux = Mux("file")
    updates = mux.updates()
    mux.merge(snapshot("file", pod("a")))
    await anext(updates)
    mux.merge(snapshot("file"))
    assert told((await anext(updates),)) == [(Op.REMOVE, ["a"])]
    assert mux.seen_all()


def test_without_sources_there_is_nothing_to_wait_for() -> None:
    assert Mux().seen_all()


async def test_the_reader_gets_updates_in_the_order_of_merging() -> None:
    mux = Mux("file", "api")
    expected = [*mux.merge(snapshot("file", pod("a"))), *mux.merge(snapshot("api", pod("b")))]
    expected += mux.merge(snapshot("file"))
    updates = mux.updates()
    assert [await anext(updates) for _ in expected] == expected
    await updates.aclose()


async def test_H01_a_pod_taken_away_and_put_back_is_removed_and_added() -> None:
    mux = Mux("file")
    mux.merge(snapshot("file", pod("same-hash")))
    assert told(mux.merge(snapshot("file"))) == [(Op.REMOVE, ["same-hash"])]
    assert told(mux.merge(snapshot("file", pod("same-hash")))) == [(Op.ADD, ["same-hash"])]
