"""The reflector and what comes in a watch: errors, lies, noise, silence, and histories with gaps.

Each scenario is checked as those of ``test_reflector_scenarios``.
"""

from __future__ import annotations

import pytest

from podwire.kube.testing import event_line
from podwire.kube.testing import misbehaviour as does
from tests.kube.reflecting import Bench
from tests.kube.scenarios import Scenario, Scenarios, end_watch, line, name, run

scenario = Scenarios()


# ERROR events


@scenario("Expired", lists=1, watches=2, seconds=2)
async def error_event_410_inside_a_200(b: Bench) -> None:
    """I02: the version is dropped, everything is listed, deletions that were missed are found."""
    b.server.script.add("watch", does.stream(does.error(410, "Expired"), then="stall"))
    await end_watch(b)
    b.world.delete("b")
    b.world.compact()


@scenario("Expired", "Expired", "Expired", lists=3, watches=4, seconds=12)
async def error_event_410_again_and_again(b: Bench) -> None:
    """I02: no loop on the old version; each list is of the newest state."""
    b.server.script.add("watch", *[does.stream(does.error(410, "Gone"))] * 3)
    await end_watch(b)
    assert b.server.script.by_verb["watch"]


@scenario("TooManyRequests", lists=0, watches=2, seconds=2)
async def error_event_429(b: Bench) -> None:
    b.server.script.add("watch", does.stream(does.error(429, "TooManyRequests")))
    await end_watch(b)


@scenario("InternalError", lists=1, watches=2, seconds=2)
async def error_event_500(b: Bench) -> None:
    b.server.script.add("watch", does.stream(does.error(500, "InternalError")))
    await end_watch(b)


@scenario("Timeout", lists=1, watches=2, seconds=2)
async def error_event_version_too_large(b: Bench) -> None:
    b.server.script.add("watch", does.stream(does.error(504, "Timeout", causes=("ResourceVersionTooLarge",))))
    await end_watch(b)


@scenario("Expired", lists=1, watches=2, seconds=2)
async def error_event_after_good_events(b: Bench) -> None:
    b.world.update("a", x="1")
    b.server.script.add("watch", does.stream(line(b, "MODIFIED", "a") + does.error(410, "Expired")))
    await end_watch(b)


@scenario("ApiError", lists=1, watches=2, seconds=2)
async def error_event_that_says_nothing(b: Bench) -> None:
    b.server.script.add("watch", does.stream(b'{"type":"ERROR","object":{"kind":"Status","code":599}}\n'))
    await end_watch(b)


# Noise


@scenario("BadAnswer", lists=0, watches=0, seconds=0)
async def object_of_another_type(b: Bench) -> None:
    other = {**b.world.objects["default/a"], "kind": "Service"}
    await b.say(event_line("MODIFIED", does.changed(other, resourceVersion="999")))


@scenario("BadAnswer", lists=0, watches=0, seconds=0)
async def event_of_an_unknown_type(b: Bench) -> None:
    await b.say(line(b, "RENAMED", "a", resourceVersion="999"))


@scenario("BadAnswer", lists=0, watches=0, seconds=0)
async def object_that_cannot_be_decoded(b: Bench) -> None:
    await b.say(event_line("MODIFIED", {**b.world.objects["default/a"], "spec": []}))
    b.world.update("a", mended="yes")


@scenario("BadAnswer", lists=0, watches=0, seconds=0)
async def object_that_cannot_be_decoded_is_deleted(b: Bench) -> None:
    b.server.mute = True
    gone = b.world.delete("a")
    await b.say(event_line("DELETED", {**gone, "spec": []}))
    b.server.mute = False
    assert [(each.type, each.key) for each in b.changes[3:]] == [("delete", "default/a")]
    b.world.create("a")


@scenario("BadAnswer", "BadAnswer", lists=1, watches=1, seconds=2)
async def item_that_can_be_decoded_no_longer_stays_as_it_was(b: Bench) -> None:
    items = b.server.page(b.world.version)["items"]
    bad = [{**each, "spec": []} if each["metadata"]["name"] == "b" else each for each in items]
    b.server.script.add("list", does.page(b.server, items=bad))
    await b.say(b"garbage\n")
    await b.until(lambda: b.server.count("list") == 2 and b.server.open_watches == 1)
    assert "default/b" in b.informer.store
    b.world.update("b", mended="yes")
    await b.settled()
    assert [(each.type, each.key) for each in b.changes[3:]] == [("update", "default/b")]


@scenario("BadAnswer", lists=1, watches=1, seconds=2)
async def line_that_is_not_json(b: Bench) -> None:
    await b.say(b"<html>\n")
    b.world.delete("a")
    b.world.create("a")


@scenario(lists=0, watches=1, seconds=0)
async def line_that_is_cut_off_at_the_end(b: Bench) -> None:
    b.world.update("b", x="1")
    await b.clock.settle()
    await b.say(line(b, "MODIFIED", "a", resourceVersion="999")[:50])
    await end_watch(b)


@scenario(lists=0, watches=0, seconds=0)
async def empty_lines(b: Bench) -> None:
    b.world.update("a", x="1")
    await b.say(b"\n\r\n" + line(b, "MODIFIED", "a").strip() + b"\r\n\n")


@scenario(lists=0, watches=0, seconds=0)
async def line_of_some_megabytes(b: Bench) -> None:
    b.world.update("a", x="y" * 5_000_000)


@scenario(lists=0, watches=2, seconds=0)
async def lines_in_pieces(b: Bench) -> None:
    b.world.update("a", x="1")
    both = line(b, "MODIFIED", "a") + event_line("BOOKMARK", b.server.bookmark(b.world.version))
    b.server.script.add("watch", does.lasting(b.server, 2, *does.split(both, 7)))
    await end_watch(b)
    await b.clock.advance(3)


@scenario(lists=0, watches=0, seconds=0)
async def fields_of_the_future(b: Bench) -> None:
    b.world.update("a", x="1")
    found = b.world.objects["default/a"]
    found["spec"]["future"] = {"deep": [1, None]}
    found["status"] = {"conditions": None, "future": True}


# Bookmarks


@scenario(lists=0, watches=1, seconds=0)
async def bookmark_moves_the_version_on(b: Bench) -> None:
    b.world.version = 500
    await b.clock.advance(61)
    b.world.compact()
    await end_watch(b)
    await b.until(lambda: b.server.open_watches == 1)
    assert b.server.of("watch")[-1].params["resourceVersion"] == "500"


@scenario(lists=0, watches=2, seconds=0)
async def bookmark_that_moves_on_and_a_close(b: Bench) -> None:
    await b.clock.settle()
    b.world.version += 5
    b.server.script.add("watch", does.stream(event_line("BOOKMARK", b.server.bookmark(b.world.version))))
    await end_watch(b)


@scenario(lists=0, watches=1, seconds=0)
async def bookmark_from_the_past(b: Bench) -> None:
    await b.say(event_line("BOOKMARK", b.server.bookmark(7)))
    await end_watch(b)
    await b.until(lambda: b.server.open_watches == 1)
    assert b.server.of("watch")[-1].params["resourceVersion"] == str(b.world.version)


@scenario("ShortWatch", lists=1, watches=2, seconds=2)
async def bookmarks_that_tell_nothing_and_a_close(b: Bench) -> None:
    same = event_line("BOOKMARK", b.server.bookmark(b.world.version))
    b.server.script.add("watch", does.stream(same, same))
    await end_watch(b)


# Versions


@scenario(lists=0, watches=0, seconds=0)
async def events_twice(b: Bench) -> None:
    b.world.update("a", x="1")
    b.world.delete("b")
    again = b"".join(event_line(each.type, each.object) for each in b.world.log[3:])
    await b.clock.settle()
    await b.say(again)
    assert b.informer.reflector.counts.stale == 2


@scenario("WentBack", lists=1, watches=1, seconds=2)
async def object_comes_back_from_the_dead(b: Bench) -> None:
    was = line(b, "MODIFIED", "b")
    b.world.delete("b")
    await b.clock.settle()
    await b.say(was)


@scenario("WentBack", lists=1, watches=1, seconds=2)
async def event_of_an_object_that_was_never_heard_of_is_old(b: Bench) -> None:
    await b.say(line(b, "ADDED", "a", name="ghost", uid="ghost", resourceVersion="50"))


@scenario(lists=0, watches=0, seconds=0)
async def deletion_has_the_version_of_the_last_state(b: Bench) -> None:
    gone = line(b, "DELETED", "a")
    b.world.update("b", x="1")
    await b.clock.settle()
    await b.say(gone)
    del b.world.objects["default/a"]
    b.world.create("a")


@scenario(lists=0, watches=0, seconds=0)
async def deletion_of_what_is_not_there(b: Bench) -> None:
    b.world.version += 5
    await b.say(line(b, "DELETED", "a", name="ghost", uid="ghost", resourceVersion=str(b.world.version)))


@scenario("BadAnswer", "WentBack", lists=2, watches=1, seconds=5)
async def list_after_an_error_is_behind(b: Bench) -> None:
    """I01: two servers, one behind; what it has is not taken, and the next list is of the newest state."""
    b.world.update("a", x="1")
    await b.clock.settle()
    old = does.page(b.server, metadata={"resourceVersion": "50"})
    b.server.script.add("list", old)
    await b.say(b"garbage\n")


@scenario("BadAnswer", lists=2, watches=1, seconds=2)
async def server_that_is_behind_says_so(b: Bench) -> None:
    """I01: listed at the last version seen; on "too large" the newest state is asked for, at once."""
    too_large = does.status(504, "Timeout", causes=("ResourceVersionTooLarge",))
    b.server.script.add("list", too_large)
    await b.say(b"garbage\n")
    await b.until(lambda: b.server.count("list") == 3)
    assert [each.params.get("resourceVersion", "") for each in b.server.of("list")] == ["0", "103", ""]


@scenario("BadAnswer", "WentBack", "WentBack", lists=3, watches=1, seconds=12)
async def list_has_an_object_in_an_older_state(b: Bench) -> None:
    """I01."""
    b.world.update("a", x="1")
    await b.clock.settle()
    items = [
        {**each, "metadata": {**each["metadata"], "resourceVersion": "60"}}
        for each in b.server.page(b.world.version)["items"]
    ]
    b.server.script.add("list", *[does.page(b.server, items=items)] * 2)
    await b.say(b"garbage\n")


@scenario(
    "ConnectionFailed", "ConnectionRefused", "Expired", "WentBack", "WentBack", lists=3, watches=2, seconds=14
)
async def server_was_restored_from_a_backup(b: Bench) -> None:
    """Only then may versions be lower: the newest state that there is is older, again and again."""
    b.set_back = True
    for number in range(5):
        b.world.update("a", number=str(number))
    await b.clock.advance(2)
    await b.server.stop()
    b.world.restore(80, ["a", "b"])
    b.world.create("c")
    b.server.script.add("watch", does.stream(does.error(410, "Expired")))
    await b.server.start()


# Gaps


@scenario("BadAnswer", lists=1, watches=1, seconds=2)
async def deletion_is_never_told(b: Bench) -> None:
    """I05: the next list is compared with the store, and the deletion is told with a tombstone."""
    b.server.mute = True
    b.world.delete("b")
    await b.clock.settle()
    assert "default/b" in b.informer.store
    b.server.mute = False
    await b.say(b"garbage\n")
    await b.settled()
    assert [(each.type, each.key, each.tombstone) for each in b.changes[3:]] == [
        ("delete", "default/b", True)
    ]


@scenario("BadAnswer", lists=1, watches=1, seconds=2)
async def object_is_deleted_and_made_again_in_a_gap(b: Bench) -> None:
    """One update, with another UID."""
    b.server.mute = True
    b.world.delete("b")
    b.world.create("b")
    await b.clock.settle()
    b.server.mute = False
    await b.say(b"garbage\n")
    await b.settled()
    assert [each.type for each in b.changes[3:]] == ["update"]
    assert b.changes[3].old is not None
    assert b.changes[3].new is not None
    assert (b.changes[3].old.metadata.uid, b.changes[3].new.metadata.uid) == ("uid-2", "uid-4")


@scenario("ConnectionFailed", *["ConnectionRefused"] * 5, "Expired", lists=1, watches=2, seconds=60)
async def server_is_away_and_has_forgotten(b: Bench) -> None:
    await b.clock.advance(5)
    await b.server.stop()
    b.world.delete("b")
    b.world.create("d")
    b.world.compact()
    b.later(20, b.server.start)


# Silence


@scenario("ConnectionDead", lists=0, watches=1, seconds=45)
async def connection_is_dead(b: Bench) -> None:
    """I04: nobody answers, not even a ping; found within 45 s, and nothing is listed."""
    b.server.freeze()
    b.world.update("a", x="1")
    b.later(41, b.server.thaw)


@scenario(lists=0, watches=1, seconds=125)
async def stream_is_dead_and_the_server_is_not(b: Bench) -> None:
    """I04: a proxy between answers for a server that is gone; without bookmarks it is asked anew."""
    b.server.freeze_watches()
    b.world.update("a", x="1")


@scenario("ConnectionDead", "DeadlinePassed", lists=1, watches=2, seconds=120)
async def server_is_stopped_for_a_while(b: Bench) -> None:
    """I04: as after SIGSTOP, connections are taken and not answered."""
    b.server.freeze()
    b.world.delete("b")
    b.later(75, b.server.thaw)


@pytest.mark.parametrize("each", scenario.all, ids=name)
async def test_scenario(each: Scenario) -> None:
    await run(each)
