"""Informers and stores: handlers in order, late and failing ones, resync, indexes (kuryr K1, K2, K3, K6)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.kube.decode import decode_object, decoder, encode, lenient, sealing
from podwire.kube.errors import BadAnswer
from podwire.kube.informer import Change, handler
from podwire.kube.objects import Pod
from podwire.kube.reflector import Reflector
from podwire.kube.resource import CONFIG_MAPS, PODS
from podwire.kube.sealed import Sealed
from podwire.kube.store import OPENED, Store, UndeltaStore
from tests.kube.reflecting import bench


def pod(name: str, *, node: str = "", version: str = "1") -> Sealed[Pod]:
    found = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}", "resourceVersion": version},
        "spec": {"containers": [{"name": "c", "image": "i"}], "nodeName": node},
    }
    return decode_object(sealing(PODS), encode(found))


async def test_k1_one_stream_resumes_at_the_last_version_for_ever() -> None:
    async with bench("a") as b:
        await b.watching()
        for number in range(6):
            b.world.update("a", number=str(number))
            await b.clock.advance(20)
            b.server.reset_watches()
        await b.watching()
        assert [each.params["resourceVersion"] for each in b.server.of("watch")] == [
            str(101 + each) for each in range(7)
        ]
        assert b.server.count("list") == 1


async def test_k2_failing_is_told_in_seconds_for_a_liveness_probe() -> None:
    async with bench("a") as b:
        await b.watching()
        assert b.informer.reflector.failing_for == 0
        await b.server.stop()
        await b.clock.advance(70)
        assert 60 < b.informer.reflector.failing_for <= 70
        await b.server.start()
        await b.watching()
        await b.clock.advance(2)
        b.world.update("a", x="1")
        await b.settled()
        assert b.informer.reflector.failing_for == 0


async def test_k2_a_stream_that_lasts_is_well_though_it_has_nothing_to_tell() -> None:
    async with bench("a") as b:
        well: list[float] = []
        b.informer.reflector._when_well = lambda: well.append(b.clock.monotonic())
        await b.watching()
        assert well == []
        await b.server.stop()
        await b.clock.advance(20)
        await b.server.start()
        await b.watching()
        assert b.informer.reflector.failing_for >= 20
        await b.clock.advance(1)
        assert b.informer.reflector.failing_for == 0
        assert well == [b.clock.monotonic()]
        await b.clock.advance(100)
        assert len(well) == 1
        assert b.server.count("list") == 1


async def test_k3_resync_says_everything_again_to_who_asked_at_a_moment_of_his_own() -> None:
    async with bench("a", "b") as b:
        told: dict[str, list[float]] = {"one": [], "two": [], "never": []}
        for name, period in (("one", 120.0), ("two", 120.0), ("never", 0.0)):

            def note(change: Change[Pod], name: str = name) -> None:
                if change.resync:
                    assert change.old == change.new
                    assert change.type == "update"
                    told[name].append(b.clock.monotonic())

            b.informer.add_handler(note, resync=period)
        await b.watching()
        before = b.server.count("list")
        await b.clock.advance(260)
        assert [len(each) for each in told.values()] == [4, 4, 0]
        assert 120 <= told["one"][0] <= 133
        assert told["one"][0] != told["two"][0]
        assert b.server.count("list") == before


async def test_k3_a_handler_that_is_slower_than_its_resyncs_is_not_buried_under_them() -> None:
    async with bench("a", "b") as b:
        resynced: list[str] = []

        async def slow(change: Change[Pod]) -> None:
            if change.resync:
                await b.clock.sleep(300)
                resynced.append(change.key)

        b.informer.add_handler(slow, resync=60)
        await b.watching()
        await b.clock.advance(1000)
        assert resynced == ["default/a", "default/b", "default/a"]
        assert len(b.informer._pending) <= 2


async def test_k3_a_resync_that_is_asked_for_late_comes_in_its_time() -> None:
    async with bench("a") as b:
        await b.watching()
        await b.clock.advance(5000)
        told: list[float] = []
        b.informer.add_handler(
            lambda change: told.append(b.clock.monotonic()) if change.resync else None, resync=60
        )
        await b.clock.advance(70)
        assert len(told) == 1


async def test_k6_handlers_are_told_in_order_and_one_failing_does_not_stop_the_others() -> None:
    async with bench(start=False) as b:
        order: list[str] = []

        async def first(change: Change[Pod]) -> None:
            await asyncio.sleep(0)
            assert change.key in b.informer.store, "the store is first"
            order.append(f"first {change.key}")

        def second(change: Change[Pod]) -> None:
            order.append(f"second {change.key}")
            raise ArithmeticError("a fault of the handler")

        def third(change: Change[Pod]) -> None:
            order.append(f"third {change.key}")

        registrations = [b.informer.add_handler(each) for each in (first, second, third)]
        b.start()
        await b.watching()
        b.world.create("x")
        b.world.create("y")
        await b.settled()
        expected = [f"{who} default/{name}" for name in "xy" for who in ("first", "second", "third")]
        assert order == expected
        assert [each.failures for each in registrations] == [0, 2, 0]
        registrations[1].failures = 0


async def test_a_late_handler_is_told_what_is_there() -> None:
    async with bench("a", "b") as b:
        await b.watching()
        changes: list[Change[Pod]] = []
        registration = b.informer.add_handler(changes.append)
        assert registration.synced is False
        b.world.update("a", x="1")
        await b.settled()
        assert bool(registration.synced)
        assert [(each.type, each.key, each.initial) for each in changes] == [
            ("add", "default/a", True),
            ("add", "default/b", True),
            ("update", "default/a", False),
        ]
        registration.remove()
        b.world.update("a", x="2")
        await b.settled()
        assert len(changes) == 3


async def test_a_handler_is_synced_after_all_initial_adds() -> None:
    async with bench("a", "b", start=False) as b:
        seen: list[bool] = []
        registration = b.informer.add_handler(lambda change: seen.append(registration.synced))
        b.start()
        await b.informer.wait_synced()
        await b.informer.wait_told()
        assert seen == [False, False]
        await b.clock.settle()
        assert registration.synced


async def test_what_a_handler_is_being_told_is_not_told_yet() -> None:
    async with bench("a") as b:
        await b.watching()
        told = asyncio.Event()

        async def slow(change: Change[Pod]) -> None:
            await b.clock.sleep(5)
            told.set()

        b.informer.add_handler(slow)
        await b.clock.advance(1)
        waiting = asyncio.create_task(b.informer.wait_told())
        await b.clock.advance(3)
        assert not waiting.done()
        await b.clock.advance(1)
        assert told.is_set()
        assert waiting.done()
        async with asyncio.timeout(1):
            await b.informer.wait_told()


async def test_slow_handlers_hold_the_stream_back_and_nothing_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("podwire.kube.informer.MOST_PENDING", 10)
    async with bench("a") as b:
        await b.watching()

        async def slow(change: Change[Pod]) -> None:
            await b.clock.sleep(1)

        b.informer.add_handler(slow)
        for number in range(50):
            b.world.update("a", number=str(number))
        await b.clock.settle()
        assert len(b.informer._pending) < 20
        await b.settled()
        assert b.seen["default/a"][1] == str(b.world.version)


async def test_a_handler_of_functions() -> None:
    async with bench("a") as b:
        told: list[tuple[str, str]] = []

        async def updated(old: Pod, new: Pod) -> None:
            told.append((old.metadata.resource_version, new.metadata.resource_version))

        b.informer.add_handler(
            handler(
                add=lambda found: told.append(("add", found.metadata.name)),
                update=updated,
                delete=lambda found: told.append(("delete", found.metadata.name)),
            )
        )
        await b.watching()
        b.world.update("a", x="1")
        b.world.delete("a")
        await b.settled()
        assert told == [("add", "a"), ("101", "102"), ("delete", "a")]


def by_node(found: Pod) -> Iterable[str]:
    return [found.spec.node_name] if found.spec.node_name else []


def test_indexes_follow_the_objects() -> None:
    store: Store[Pod] = Store({"node": by_node})
    for name, node in (("b", "n1"), ("a", "n1"), ("c", "n2"), ("d", "")):
        store.put(pod(name, node=node))
    assert [each.metadata.name for each in store.by_index("node", "n1")] == ["a", "b"]
    assert store.index_values("node") == ["n1", "n2"]
    store.put(pod("a", node="n2", version="2"))
    store.remove("default/b")
    assert store.by_index("node", "n1") == []
    assert [each.metadata.name for each in store.by_index("node", "n2")] == ["a", "c"]
    assert store.index_values("node") == ["n2"]


def test_an_indexer_that_fails_changes_nothing() -> None:
    def broken(found: Pod) -> Iterable[str]:
        if found.metadata.name == "bad":
            raise ArithmeticError
        return ["x"]

    store: Store[Pod] = Store({"broken": broken})
    store.put(pod("good"))
    with pytest.raises(ArithmeticError):
        store.put(pod("bad"))
    assert store.keys() == ["default/good"]
    assert len(store.by_index("broken", "x")) == 1


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["put", "remove"]), st.sampled_from("abc"), st.sampled_from(["", "n1", "n2"])
        )
    )
)
def test_indexes_equal_a_search(steps: list[tuple[str, str, str]]) -> None:
    store: Store[Pod] = Store({"node": by_node})
    for step, name, node in steps:
        if step == "put":
            store.put(pod(name, node=node))
        else:
            store.remove(f"default/{name}")
    for node in ("n1", "n2"):
        wanted = sorted(each.metadata.name for each in store.values() if each.spec.node_name == node)
        assert [each.metadata.name for each in store.by_index("node", node)] == wanted


def test_objects_are_packed_and_those_looked_at_stay_decoded() -> None:
    store: Store[Pod] = Store()
    for number in range(OPENED + 10):
        store.put(pod(f"p{number}", node="n" * 1000))
    first = store.get("default/p0")
    assert first is not None
    assert first is store.get("default/p0")
    assert first.spec.node_name == "n" * 1000
    for number in range(1, OPENED + 10):
        store.get(f"default/p{number}")
    assert store.get("default/p0") is not first
    assert store.get("default/p0") == first
    store.put(pod("p0", version="2"))
    changed = store.get("default/p0")
    assert changed is not None
    assert changed.metadata.resource_version == "2"
    assert store.get("default/none") is None


def test_a_pod_of_3_kb_takes_less_than_1_kb() -> None:
    from bench.kubelist_server import encode as as_json
    from bench.kubelist_server import pod as typical

    read = sealing(PODS).reader
    assert read is not None
    sizes = []
    for number in range(200):
        data = as_json({"kind": "Pod", "apiVersion": "v1", **typical(number, number)})
        sealed = read(data)
        assert len(data) > 3000
        assert encode(sealed.open()) == encode(decoder(Pod)(data))
        sizes.append(len(sealed._packed))
    assert sorted(sizes[1:])[len(sizes) // 2] < 700


async def test_undelta_store_pushes_the_complete_list_at_each_change() -> None:
    async with bench("a", "b", start=False) as b:
        pushed: list[list[str]] = []
        store: UndeltaStore[Pod] = UndeltaStore(
            lambda items: pushed.append(sorted(each.metadata.name for each in items))
        )
        reflector = Reflector(b.client, PODS, store, watch_list=False)
        running = asyncio.create_task(reflector.run())
        await b.clock.settle()
        b.world.create("c")
        b.world.delete("a")
        await b.clock.settle()
        b.world.delete("b")
        b.world.compact()
        await b.server.say(b"garbage\n")
        await b.clock.advance(5)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert pushed[0] == ["a", "b"]
        assert pushed[1:3] == [["a", "b", "c"], ["b", "c"]]
        assert pushed[-1] == ["c"]


def test_what_a_server_sends_is_read_leniently_and_what_a_person_writes_is_not() -> None:
    text = b"""{"apiVersion":"v1","kind":"Pod",
        "metadata":{"name":"a","labels":null,"managedFields":[{"x":1}],"new":1},
        "spec":{"containers":[{"name":"c","image":"i","ports":null,"future":{}}],"volumes":null},"future":[]}"""
    found = decode_object(PODS, text)
    assert isinstance(found, Pod)
    assert found.metadata.labels == {}
    assert found.spec.containers[0].ports == []
    assert b"managedFields" not in encode(found)
    assert lenient(Pod) is lenient(Pod)
    with pytest.raises(BadAnswer, match="Pod of v1 was expected, ConfigMap of 'v1' came"):
        decode_object(PODS, b'{"apiVersion":"v1","kind":"ConfigMap"}')
    assert decode_object(CONFIG_MAPS, b'{"apiVersion":"v1","kind":"ConfigMap"}') == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
    }


async def test_an_unstructured_informer() -> None:
    from podwire.kube.informer import Informer
    from podwire.kube.resource import unstructured

    async with bench("a", start=False) as b:
        things = unstructured("", "v1", "pods", "Pod")
        informer = Informer(b.client, things, watch_list=False)
        running = asyncio.create_task(informer.run())
        await informer.wait_synced()
        found = informer.store.get("default/a")
        assert found is not None
        assert (found["kind"], found["apiVersion"], found["metadata"]["name"]) == ("Pod", "v1", "a")
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_k1_who_wants_the_same_shares_one_stream() -> None:
    from podwire.kube.informers import Informers

    async with bench("a", start=False) as b:
        informers = Informers(b.client)
        one = informers.get(PODS, fields="spec.nodeName=n1")
        assert informers.get(PODS, fields="spec.nodeName=n1") is one
        assert informers.get(PODS) is not one
        running = asyncio.create_task(informers.run())
        await informers.wait_synced()
        late = informers.get(PODS, namespace="default")
        await informers.wait_synced()
        assert late.store.keys() == ["default/a"]
        await b.clock.settle()
        assert b.tally == {"list": 0, "watch": 3, "ping": 0}
        assert informers.failing_for == 0
        await b.server.stop()
        await b.clock.advance(90)
        assert informers.failing_for > 60
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_k3_a_resync_passes_over_what_is_being_worked_on() -> None:
    """The key is in the queue already: what comes again is the newest state, once."""
    from podwire.kube.workqueue import WorkQueue

    async with bench("a", "b") as b:
        queue: WorkQueue[str, Change[Pod]] = WorkQueue(clock=b.clock)

        def put(change: Change[Pod]) -> None:
            if not (change.resync and change.key in queue):
                queue.add(change.key, change)

        b.informer.add_handler(put, resync=120)
        await b.watching()
        key, first = await queue.get()
        assert (key, first.type) == ("default/a", "add")
        await b.clock.advance(140)
        queue.done(key)
        assert "default/a" not in queue
        assert (await queue.get())[1].type == "add"
        assert len(queue) == 0
