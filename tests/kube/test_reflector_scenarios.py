"""The reflector beside a server that misbehaves: each scenario ends with the store equal to the server.

Checked in each: nothing that handlers are told goes back in time (see ``reflecting``); how many lists and
watches were asked for, exactly; how much time it took at most; which problems were reported; and that ten
quiet minutes after it cost no list, and no more than the watches that time out and one ping a minute.
"""

from __future__ import annotations

import asyncio

import pytest

from podwire.kube.informer import Informer
from podwire.kube.resource import PODS
from podwire.kube.testing import Object, event_line
from podwire.kube.testing import misbehaviour as does
from tests.kube.reflecting import Bench, bench
from tests.kube.scenarios import Scenario, Scenarios, end_watch, line, name, run

scenario = Scenarios()


# Lists


@scenario(
    "ConnectionRefused", "ConnectionRefused", "ConnectionRefused", lists=1, watches=1, seconds=12, early=True
)
async def server_is_not_there_yet(b: Bench) -> None:
    await b.server.stop()
    b.later(4, b.server.start)


@scenario("TooManyRequests", lists=2, watches=1, at_least=20, seconds=22, early=True)
async def list_is_too_many_requests_with_retry_after(b: Bench) -> None:
    b.server.script.add("list", does.status(429, "TooManyRequests", Retry_After="20"))


@scenario("ServiceUnavailable", "ServiceUnavailable", lists=3, watches=1, seconds=5, early=True)
async def list_is_unavailable(b: Bench) -> None:
    b.server.script.add("list", *[does.status(503, "ServiceUnavailable")] * 2)


@scenario("InternalError", lists=2, watches=1, seconds=2, early=True)
async def list_is_an_internal_error(b: Bench) -> None:
    b.server.script.add("list", does.status(500, "InternalError"))


@scenario("Forbidden", "Forbidden", "Forbidden", lists=4, watches=1, seconds=12, early=True)
async def list_is_forbidden_until_a_role_is_bound(b: Bench) -> None:
    b.server.script.add("list", *[does.status(403, "Forbidden")] * 3)


@scenario("NotFound", lists=2, watches=1, seconds=2, early=True)
async def resource_is_not_installed_yet(b: Bench) -> None:
    b.server.script.add("list", does.status(404, "NotFound"))


@scenario(lists=2, watches=1, seconds=0, early=True)
async def credentials_are_refused_once(b: Bench) -> None:
    b.server.script.add("list", does.status(401, "Unauthorized"))


@scenario("ServiceUnavailable", lists=2, watches=1, seconds=2, early=True)
async def proxy_answers_a_page_for_people(b: Bench) -> None:
    b.server.script.add("list", does.answers(b"<html>Bad gateway</html>", "text/html", 503))


@scenario("DeadlinePassed", lists=2, watches=1, seconds=62, early=True)
async def list_is_never_answered(b: Bench) -> None:
    b.server.script.add("list", does.stalls)


@scenario("ConnectionFailed", lists=2, watches=1, seconds=2, early=True)
async def list_is_reset(b: Bench) -> None:
    b.server.script.add("list", does.resets)


@scenario("ConnectionFailed", lists=2, watches=1, seconds=2, early=True)
async def list_is_cut_off(b: Bench) -> None:
    b.server.script.add(
        "list", does.cut_off(b'{"kind":"PodList","metadata":{"resourceVersion":"1"},"items":[]}')
    )


@scenario("BadAnswer", lists=2, watches=1, seconds=2, early=True)
async def list_is_of_another_content_type(b: Bench) -> None:
    b.server.script.add("list", does.answers(b"<html>Log in</html>", "text/html"))


@scenario("BadAnswer", lists=2, watches=1, seconds=2, early=True)
async def list_is_not_json(b: Bench) -> None:
    b.server.script.add("list", does.answers(b'{"kind":"PodList","items":[{]}'))


@scenario("BadAnswer", lists=2, watches=1, seconds=2, early=True)
async def list_is_of_another_kind(b: Bench) -> None:
    b.server.script.add("list", does.page(b.server, kind="ServiceList"))


@scenario("BadAnswer", lists=2, watches=1, seconds=2, early=True)
async def list_has_no_version(b: Bench) -> None:
    b.server.script.add("list", does.page(b.server, metadata={"resourceVersion": ""}))


@scenario(lists=2, watches=1, seconds=0, early=True)
async def list_is_expired(b: Bench) -> None:
    b.server.script.add("list", does.status(410, "Expired"))


@scenario(lists=2, watches=1, seconds=0, early=True)
async def list_is_gone_without_a_status(b: Bench) -> None:
    b.server.script.add("list", does.answers(b"", "text/plain", 410))


@scenario("Expired", "Expired", "Expired", lists=5, watches=1, seconds=12, early=True)
async def list_is_expired_again_and_again(b: Bench) -> None:
    b.server.script.add("list", *[does.status(410, "Expired")] * 3, does.status(410, "Gone"))


@scenario(lists=2, watches=1, seconds=0, early=True)
async def list_version_is_too_large(b: Bench) -> None:
    b.server.script.add("list", does.status(504, "Timeout", causes=("ResourceVersionTooLarge",)))


@scenario(lists=3, watches=1, seconds=0, early=True, page=1)
async def second_page_is_expired(b: Bench) -> None:
    b.server.script.add("list", b.server.honest, does.status(410, "Expired"))


@scenario("ServiceUnavailable", lists=5, watches=1, seconds=2, early=True, page=1)
async def second_page_is_unavailable(b: Bench) -> None:
    b.server.script.add("list", b.server.honest, does.status(503, "ServiceUnavailable"))


@scenario("BadAnswer", lists=3, watches=1, seconds=2, early=True)
async def pages_do_not_end(b: Bench) -> None:
    b.server.script.add("list", *[does.page(b.server, metadata={"continue": "always-the-same"})] * 2)


@scenario("BadAnswer", lists=2, watches=1, seconds=2, early=True)
async def page_is_empty_and_has_a_token(b: Bench) -> None:
    b.server.script.add("list", does.page(b.server, metadata={"continue": "more"}, items=[]))


@scenario(lists=2, watches=1, seconds=0, early=True)
async def pages_overlap(b: Bench) -> None:
    b.server.script.add("list", does.page(b.server, metadata={"continue": "0:0"}), does.page(b.server))


@scenario("BadAnswer", lists=1, watches=1, seconds=2, early=True)
async def item_cannot_be_decoded(b: Bench) -> None:
    whole: list[Object] = b.server.page(b.world.version)["items"]
    bad = {**whole[1], "spec": {"containers": "none"}}
    b.server.script.add("list", does.page(b.server, items=[whole[0], bad, whole[2]]))
    b.later(1, lambda: b.world.update("b", mended="yes"))


@scenario(lists=1, watches=1, seconds=0, early=True)
async def items_have_nulls_and_fields_of_the_future(b: Bench) -> None:
    found = [
        {**each, "metadata": {**each["metadata"], "labels": None, "future": {"x": []}}, "status": None}
        for each in b.server.page(b.world.version)["items"]
    ]
    b.server.script.add("list", does.page(b.server, items=found))


@scenario(lists=1, watches=1, seconds=1, early=True)
async def list_of_nothing_is_null(b: Bench) -> None:
    for each in "abc":
        b.world.delete(each)
    b.server.script.add("list", does.page(b.server, items=None))
    b.later(1, lambda: [b.world.create(each) for each in "abc"])


# Lists by a watch with initial events


@scenario(lists=0, watches=1, seconds=0, early=True, watch_list=True)
async def initial_events_end_and_the_stream_goes_on(b: Bench) -> None:
    b.later(0, lambda: b.world.update("a", x="y"))


@scenario(lists=1, watches=2, seconds=0, early=True, watch_list=True)
async def initial_events_are_refused(b: Bench) -> None:
    b.server.abilities.watch_list = False


@scenario(lists=1, watches=2, seconds=10, early=True, watch_list=True)
async def initial_events_are_not_known_to_the_server(b: Bench) -> None:
    b.server.abilities.ignores_initial_events = True


@scenario("BadAnswer", lists=1, watches=2, seconds=0, early=True, watch_list=True)
async def initial_events_do_not_end_before_the_stream(b: Bench) -> None:
    b.server.script.add("watch", does.stream(line(b, "ADDED", "a")))


@scenario(lists=1, watches=2, seconds=10, early=True, watch_list=True)
async def initial_events_stall(b: Bench) -> None:
    b.server.script.add("watch", does.stream(line(b, "ADDED", "a"), then="stall"))


@scenario("ConnectionFailed", lists=0, watches=2, seconds=2, early=True, watch_list=True)
async def initial_events_are_reset(b: Bench) -> None:
    b.server.script.add("watch", does.stream(line(b, "ADDED", "a"), then="reset"))


@scenario("TooManyRequests", lists=0, watches=2, at_least=7, seconds=8, early=True, watch_list=True)
async def initial_events_are_for_later(b: Bench) -> None:
    b.server.script.add("watch", does.status(429, "TooManyRequests", Retry_After="7"))


@scenario(lists=0, watches=1, seconds=1, early=True, watch_list=True)
async def object_is_deleted_among_the_initial_events(b: Bench) -> None:
    found = [line(b, "ADDED", each) for each in "abc"]
    b.world.delete("a")
    gone = event_line("DELETED", b.world.log[-1].object)
    b.server.script.add("watch", does.initial(b.server, *found, gone))
    b.later(0.5, lambda: b.world.create("a"))


@scenario("Expired", "Expired", lists=0, watches=3, seconds=5, watch_list=True)
async def initial_events_are_expired_after_an_expired_watch(b: Bench) -> None:
    b.server.script.add(
        "watch", does.stream(does.error(410, "Expired")), does.stream(does.error(410, "Expired"))
    )
    await end_watch(b)


@scenario("BadAnswer", "WentBack", lists=0, watches=3, seconds=5, watch_list=True)
async def initial_events_are_of_an_older_state(b: Bench) -> None:
    b.server.script.add("watch", does.stream(b"garbage\n"))
    old = [line(b, "ADDED", each) for each in "ab"]
    b.server.script.add(
        "watch", does.stream(*old, event_line("BOOKMARK", b.server.bookmark(102, end=True)), then="stall")
    )
    await end_watch(b)


@scenario(*["BadAnswer"] * 4, lists=0, watches=1, seconds=3, watch_list=True)
async def object_that_cannot_be_decoded_is_among_the_initial_events(b: Bench) -> None:
    bad = [event_line("ADDED", {**b.world.objects[f"default/{each}"], "spec": []}) for each in "ab"]
    gone = event_line("DELETED", {**b.world.objects["default/b"], "spec": []})
    b.server.script.add("watch", does.initial(b.server, *bad, gone, line(b, "ADDED", "c")))
    b.world.delete("b")
    await b.say(b"garbage\n")
    await b.until(lambda: b.server.script.done and b.server.open_watches == 1)
    assert "default/a" in b.informer.store


# Watches that are not opened


@scenario("ConnectionFailed", lists=1, watches=2, seconds=2)
async def watch_is_closed_without_an_answer(b: Bench) -> None:
    b.server.script.add("watch", does.closes)
    await end_watch(b)


@scenario("ConnectionFailed", "ConnectionRefused", "ConnectionRefused", lists=0, watches=1, seconds=6)
async def watch_is_refused_for_some_seconds(b: Bench) -> None:
    await b.server.stop()
    b.world.update("a", while_="away")
    b.later(3, b.server.start)


@scenario("TooManyRequests", lists=0, watches=2, at_least=15, seconds=16)
async def watch_is_too_many_requests(b: Bench) -> None:
    b.server.script.add("watch", does.status(429, "TooManyRequests", Retry_After="15"))
    await end_watch(b)


@scenario("InternalError", lists=1, watches=2, seconds=2)
async def watch_is_an_internal_error(b: Bench) -> None:
    b.server.script.add("watch", does.status(500, "InternalError"))
    await end_watch(b)


@scenario("Expired", lists=1, watches=2, seconds=2)
async def watch_is_answered_410(b: Bench) -> None:
    b.server.script.add("watch", does.status(410, "Expired"))
    b.world.delete("b")
    b.world.create("b")
    await end_watch(b)


@scenario("DeadlinePassed", lists=1, watches=2, seconds=32)
async def watch_is_never_answered(b: Bench) -> None:
    b.server.script.add("watch", does.stalls)
    await end_watch(b)
    b.world.update("a", x="1")


@scenario("BadAnswer", lists=1, watches=2, seconds=2)
async def watch_is_of_another_content_type(b: Bench) -> None:
    b.server.script.add("watch", does.answers(b"<html></html>", "text/html"))
    await end_watch(b)


@scenario("ShortWatch", lists=1, watches=2, seconds=2)
async def watch_is_an_empty_answer(b: Bench) -> None:
    b.server.script.add("watch", does.answers(b""))
    await end_watch(b)


# Watches that end


@scenario(lists=0, watches=1, seconds=0)
async def watch_is_closed(b: Bench) -> None:
    b.world.update("b", last="word")
    await end_watch(b)


@scenario("ShortWatch", "ShortWatch", lists=2, watches=3, seconds=5)
async def watch_is_closed_at_once(b: Bench) -> None:
    b.server.script.add("watch", does.stream(), does.stream())
    await end_watch(b)


@scenario("ShortWatch", "ShortWatch", lists=0, watches=6, seconds=5)
async def watch_is_closed_after_each_event(b: Bench) -> None:
    b.server.mute = True
    for number in range(5):
        b.world.update("a", number=str(number))
        b.server.script.add("watch", does.stream(line(b, "MODIFIED", "a")))
    await end_watch(b)
    b.server.mute = False


@scenario("ShortWatch", lists=1, watches=2, seconds=2)
async def watch_repeats_an_old_event_and_closes(b: Bench) -> None:
    b.server.script.add("watch", does.stream(line(b, "MODIFIED", "a")))
    await end_watch(b)


@scenario("ConnectionFailed", lists=0, watches=1, seconds=0)
async def watch_is_reset_after_a_while(b: Bench) -> None:
    await b.clock.advance(20)
    b.server.reset_watches()


@scenario("ConnectionFailed", "ConnectionFailed", "ConnectionFailed", lists=0, watches=4, seconds=12)
async def watch_is_reset_at_once(b: Bench) -> None:
    b.server.script.add("watch", *[does.stream(then="reset")] * 3)
    await end_watch(b)


@scenario("ConnectionFailed", lists=0, watches=2, seconds=2)
async def watch_loses_its_last_chunk(b: Bench) -> None:
    b.world.update("a", x="1")
    b.server.script.add("watch", does.stream(line(b, "MODIFIED", "a"), then="close"))
    await end_watch(b)


@scenario("ConnectionFailed", lists=0, watches=2, seconds=2)
async def watch_is_half_closed(b: Bench) -> None:
    b.world.update("a", x="1")
    b.server.script.add("watch", does.stream(line(b, "MODIFIED", "a"), then="half-close"))
    await end_watch(b)


@scenario(lists=0, watches=2, seconds=0)
async def watch_is_not_closed_by_the_server(b: Bench) -> None:
    b.server.abilities.watch_seconds = 10_000
    await end_watch(b)
    before = b.server.count("watch")
    took = await b.until(lambda: b.server.count("watch") == before + 1)
    asked = int(b.server.of("watch")[-2].params["timeoutSeconds"])
    assert asked < took <= asked + 20


@pytest.mark.parametrize("each", scenario.all, ids=name)
async def test_scenario(each: Scenario) -> None:
    await run(each)


@pytest.mark.parametrize("ability", ["watch_list", "ignores_initial_events"])
async def test_initial_events_are_asked_for_once_where_the_server_has_none(ability: str) -> None:
    async with bench("a", watch_list=True, start=False) as b:
        setattr(b.server.abilities, ability, ability != "watch_list")
        b.start()
        await b.watching()
        for _ in range(2):
            await b.say(b"garbage\n")
            await b.clock.advance(10)
        assert b.equal
        assert b.server.count("list") == 3
        assert sum("sendInitialEvents" in each.params for each in b.server.of("watch")) == 1


async def test_initial_events_are_asked_for_not_older_than_what_is_known() -> None:
    """I01; and the newest state once that version is too old."""
    async with bench("a", watch_list=True) as b:
        await b.watching()
        b.world.update("a", x="1")
        await b.clock.settle()
        for trouble in (b"garbage\n", does.error(410, "Expired")):
            await b.say(trouble)
            await b.clock.advance(5)
            await b.watching()
        asked = [each.params for each in b.server.of("watch") if "sendInitialEvents" in each.params]
        assert [each.get("resourceVersion", "") for each in asked] == ["", "102", ""]
        assert {each["resourceVersionMatch"] for each in asked} == {"NotOlderThan"}
        assert b.server.count("list") == 0


async def test_lists_come_in_pages_of_500() -> None:
    async with bench("a", start=False) as b:
        informer = Informer(b.client, PODS, watch_list=False)
        running = asyncio.create_task(informer.run())
        await informer.wait_synced()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert [each.params["limit"] for each in b.server.of("list")] == ["500"]


async def test_lists_ask_for_0_first_and_then_for_the_last_version() -> None:
    """I01: never for a state that may be older than what is known."""
    async with bench("a") as b:
        await b.watching()
        b.world.update("a", x="1")
        await b.clock.settle()
        await b.say(b"garbage\n")
        await b.settled()
        await b.clock.advance(5)
        lists = [each.params for each in b.server.of("list")]
        assert [(each["resourceVersion"], each["limit"]) for each in lists] == [("0", "500"), ("102", "500")]
        watch = b.server.of("watch")[-1].params
        assert 300 <= int(watch["timeoutSeconds"]) <= 600
        assert watch["allowWatchBookmarks"] == "true"
