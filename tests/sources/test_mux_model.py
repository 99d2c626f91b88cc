"""The mux against a model: a reader that applies the updates has what the last snapshots say."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from podwire.kube.objects import Pod
from podwire.sources.mux import Mode, Mux
from podwire.sources.updates import Op, PodUpdate, Snapshot
from tests.sources.helpers import pod

SOURCES = ("file", "http", "api")

pods = st.builds(
    pod,
    uid=st.sampled_from("abcdef"),
    name=st.sampled_from(("one", "two", "three", "four", "five", "six")),
    image=st.sampled_from(("", "x")),
    phase=st.sampled_from(("Pending", "Running")),
    labels=st.sampled_from(({}, {"k": "v"})),
    deleted=st.sampled_from((None, None, "2026-01-01T00:00:00Z")),
)
snapshots = st.builds(Snapshot, st.sampled_from(SOURCES), st.lists(pods, max_size=6).map(tuple))
ORDER = [Op.REMOVE, Op.ADD, Op.UPDATE, Op.DELETE, Op.RECONCILE]


def expected(snapshot: Snapshot) -> dict[str, Pod]:
    """The first pod of each name and UID."""
    kept: list[Pod] = []
    for one in snapshot.pods:
        if all(one.full_name != k.full_name and one.metadata.uid != k.metadata.uid for k in kept):
            kept.append(one)
    return {k.metadata.uid: k for k in kept}


def apply(state: dict[str, dict[str, Pod]], update: PodUpdate) -> None:
    known = state[update.source]
    for one in update.pods:
        uid = one.metadata.uid
        assert (uid in known) == (update.op is not Op.ADD)
        if update.op is Op.REMOVE:
            del known[uid]
        else:
            known[uid] = one


def plain(given: Pod) -> tuple[object, ...]:
    return (
        given.metadata.uid,
        given.spec,
        given.metadata.labels,
        given.metadata.deletion_timestamp,
        given.status,
    )


@given(st.lists(snapshots, max_size=12))
@settings(max_examples=250, deadline=None)
def test_the_updates_rebuild_the_snapshots(sequence: list[Snapshot]) -> None:
    mux = Mux(*SOURCES)
    state: dict[str, dict[str, Pod]] = {name: {} for name in SOURCES}
    wanted: dict[str, dict[str, Pod]] = {name: {} for name in SOURCES}
    seen = set()
    for snapshot in sequence:
        first = snapshot.source not in seen
        seen.add(snapshot.source)
        updates = mux.merge(snapshot)
        wanted[snapshot.source] = expected(snapshot)
        positions = [ORDER.index(update.op) for update in updates]
        assert positions == sorted(set(positions))
        assert all(update.pods for update in updates) or (first and not wanted[snapshot.source])
        for update in updates:
            apply(state, update)
        for name in SOURCES:
            assert [plain(p) for p in sorted(state[name].values(), key=uid)] == [
                plain(p) for p in sorted(wanted[name].values(), key=uid)
            ]
        assert sorted(map(uid, mux.pods())) == sorted(uid(p) for ps in wanted.values() for p in ps.values())
        assert mux.merge(snapshot) == ()


@given(st.lists(snapshots, max_size=8))
@settings(max_examples=80, deadline=None)
def test_the_last_set_is_the_whole(sequence: list[Snapshot]) -> None:
    mux = Mux(*SOURCES, mode=Mode.SNAPSHOT)
    last: tuple[Pod, ...] = ()
    for snapshot in sequence:
        for update in mux.merge(snapshot):
            assert update.op is Op.SET
            last = update.pods
        assert last == mux.pods()


def uid(given: Pod) -> str:
    return given.metadata.uid
