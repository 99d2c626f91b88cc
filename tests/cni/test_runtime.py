"""Kind E: the life of an attachment, with plugins in process and as programs."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from podwire.cni import config, convert, filelock
from podwire.cni.cache import Cache, Record
from podwire.cni.errors import (
    AlreadyAttached,
    CNIError,
    Failures,
    IncompatibleVersion,
    InvalidConfig,
    InvalidEnvironment,
    NotAvailable,
    PluginFailure,
    PluginMissing,
    TryLater,
    UnknownContainer,
)
from podwire.cni.plugin import IPConfig, Request, Result
from podwire.cni.runtime import Attachment, Runtime, Step, TraceContext
from podwire.cni.types import AttachmentKey
from tests.cni.helpers import RESULT, Options, Recorder, failing, network, script

C1 = Attachment("c1", "/run/netns/x", "eth0", {"IgnoreUnknown": "1"}, {"mac": "02"})


class World:
    """A runtime over recording plugins a, b and c, and programs in ``bin``."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.bin = directory / "bin"
        self.bin.mkdir()
        self.log: list[str] = []
        self.a, self.b, self.c = (Recorder(name, log=self.log) for name in "abc")
        self.steps: list[Step] = []
        self.runtime = self.fresh()

    def fresh(self) -> Runtime:
        """The runtime after a restart of its process."""
        plugins = {each.type: each.plugin for each in (self.a, self.b, self.c)}
        return Runtime(
            plugins,
            path=(str(self.bin),),
            cache_dir=self.directory / "cni",
            timeout=20,
            observe=self.steps.append,
        )

    @property
    def cache(self) -> Cache:
        """Its cache."""
        return self.runtime.chain.cache

    def record(self, attachment: Attachment = C1) -> Record | None:
        """What is recorded of an attachment to the network."""
        return self.cache.read("net", attachment.container_id, attachment.ifname)

    def leftovers(self) -> list[str]:
        """The files in the cache directory, but for the one that locks are ranges of."""
        found = (self.directory / "cni").rglob("*")
        return sorted(str(each) for each in found if each.is_file() and each.name != filelock.NAME)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_add_runs_forward_and_del_backward_with_the_result(world: World) -> None:
    net = network({"type": "a", "capabilities": {"mac": True, "ips": True}}, "b")
    assert await world.runtime.add(net, C1) == RESULT
    await world.runtime.check(net, C1)
    await world.runtime.delete(net, C1)
    assert world.log == ["ADD a c1", "ADD b c1", "CHECK a c1", "CHECK b c1", "DEL b c1", "DEL a c1"]
    add_a, check_a, del_a = world.a.requests
    assert (add_a.prev_result, check_a.prev_result, del_a.prev_result) == (None, RESULT, RESULT)
    assert world.b.requests[0].prev_result == RESULT
    assert add_a.runtime_config == {"mac": "02"} and world.b.requests[0].runtime_config == {}
    assert add_a.args == {"IgnoreUnknown": "1"}
    assert world.record() is None and world.leftovers() == []


async def test_the_final_result_is_kept_in_the_lists_version(world: World) -> None:
    await world.runtime.add(network("a", version="0.4.0"), C1)
    record = world.record()
    assert record is not None
    assert record.result == json.loads(convert.encode_result(RESULT, "0.4.0"))
    assert [each.container_id for each in world.runtime.attachments("c1")] == ["c1"]


async def test_e07_every_plugin_is_found_before_the_first_add(world: World) -> None:
    net = network("a", "dummy", {"type": "b", "ipam": {"type": "nowhere"}})
    with pytest.raises(PluginMissing) as caught:
        await world.runtime.add(net, C1)
    assert caught.value.types == ("dummy", "nowhere")
    assert world.log == [] and world.leftovers() == []


async def test_e07_e08_del_goes_on_past_missing_and_failing_plugins_and_tells_all(world: World) -> None:
    world.b.acts["DEL"] = failing(TryLater("b is stuck"))
    path = script(world.bin, "gone", "echo '{}'")
    net = network("a", "b", "gone")
    await world.runtime.add(net, C1)
    path.unlink()
    with pytest.raises(Failures) as caught:
        await world.runtime.delete(net, C1)
    gone, stuck = caught.value.errors
    assert isinstance(gone, PluginFailure) and isinstance(stuck, PluginFailure)
    assert (gone.plugin, gone.position, stuck.plugin, stuck.code) == ("gone", 3, "b", 11)
    assert world.a.commands == ["ADD", "DEL"]
    record = world.record()
    assert record is not None and record.result is not None
    world.b.acts.clear()
    script(world.bin, "gone", "exit 0")
    await world.runtime.delete(net, C1)
    assert world.record() is None


async def test_e13_a_container_that_a_plugin_does_not_know_is_no_failure(world: World) -> None:
    world.a.acts["DEL"] = failing(UnknownContainer("never seen"))
    await world.runtime.add(network("a"), C1)
    await world.runtime.delete(network("a"), C1)
    assert world.record() is None


@pytest.mark.parametrize("position", [0, 1, 2])
async def test_e10_a_failed_add_leaves_nothing_whichever_plugin_fails(world: World, position: int) -> None:
    """E10, E23: the runtime's own DEL follows, backwards, for those that began."""
    world_plugins = [world.a, world.b, world.c]
    world_plugins[position].acts["ADD"] = failing(TryLater("full"))
    with pytest.raises(PluginFailure) as caught:
        await world.runtime.add(network("a", "b", "c"), C1)
    assert caught.value.position == position + 1
    assert str(caught.value).endswith("failed (add): full") and caught.value.code == 11
    begun = "abc"[: position + 1]
    assert world.log == [f"ADD {name} c1" for name in begun] + [f"DEL {name} c1" for name in reversed(begun)]
    assert world.record() is None and world.leftovers() == []


async def test_a_failed_add_whose_undoing_fails_tells_both_and_keeps_the_record(world: World) -> None:
    world.b.acts["ADD"] = failing(TryLater("full"))
    world.a.acts["DEL"] = failing(CNIError("stuck"))
    with pytest.raises(Failures, match=r"full.*stuck") as caught:
        await world.runtime.add(network("a", "b"), C1)
    assert caught.value.code == 11
    record = world.record()
    assert record is not None and record.result is None
    world.a.acts.clear()
    await world.fresh().delete("net", C1)
    assert world.a.commands == ["ADD", "DEL", "DEL"]
    assert world.record() is None


async def test_a_plugin_that_refuses_add_and_del_alike_keeps_no_record(world: World) -> None:
    world.b.acts = {"ADD": failing(InvalidConfig("no")), "DEL": failing(InvalidConfig("no"))}
    with pytest.raises(PluginFailure, match="no"):
        await world.runtime.add(network("a", "b"), C1)
    assert world.log == ["ADD a c1", "ADD b c1", "DEL b c1", "DEL a c1"]
    assert world.leftovers() == []
    world.a.acts = {"DEL": failing(InvalidConfig("a cannot"))}
    with pytest.raises(Failures, match="a cannot"):
        await world.runtime.add(network("a", "b"), C1)
    assert world.record() is not None


async def test_a_failure_with_code_3_needs_no_del_of_that_plugin(world: World) -> None:
    world.b.acts["ADD"] = failing(UnknownContainer("no such container"))
    with pytest.raises(PluginFailure):
        await world.runtime.add(network("a", "b"), C1)
    assert world.log == ["ADD a c1", "ADD b c1", "DEL a c1"]


async def test_an_unexpected_exception_of_a_plugin_is_undone_too(world: World) -> None:
    world.b.acts["ADD"] = failing(ZeroDivisionError("oops"))
    with pytest.raises(PluginFailure) as caught:
        await world.runtime.add(network("a", "b"), C1)
    assert caught.value.code == 999
    assert world.log[-2:] == ["DEL b c1", "DEL a c1"]


async def test_a_second_add_is_refused_and_touches_nothing(world: World) -> None:
    net = network("a")
    await world.runtime.add(net, C1)
    with pytest.raises(AlreadyAttached, match="delete it first"):
        await world.runtime.add(net, C1)
    assert world.a.commands == ["ADD"]
    await world.runtime.add(net, Attachment("c1", "/run/netns/x", "net1"))
    await world.runtime.delete(net, C1)
    await world.runtime.add(net, C1)


async def test_e09_an_add_cut_off_by_a_crash_is_undone_before_the_next(world: World) -> None:
    net = network("a")
    world.cache.begin(Record("net", "c1", "eth0", "/run/netns/x", net.raw, {"OLD": "1"}))
    await world.runtime.add(net, C1)
    assert world.a.commands == ["DEL", "ADD"]
    assert world.a.requests[0].args == {"OLD": "1"}


async def test_e09_the_intent_is_on_disk_before_the_first_plugin(world: World) -> None:
    seen: list[Record | None] = []

    def look(_request: Request[Options]) -> Result:
        seen.append(world.record())
        return RESULT

    world.a.acts["ADD"] = look
    await world.runtime.add(network("a"), C1)
    assert seen[0] is not None and seen[0].result is None
    assert (seen[0].netns, seen[0].args) == (C1.netns, C1.args)


async def test_b02_c18_a_record_of_an_earlier_boot_is_deleted_before_add_and_by_sweep(world: World) -> None:
    net = network("a")
    await world.runtime.add(net, C1)
    await world.runtime.add(net, Attachment("c2", "/n"))
    restarted = world.fresh()
    await restarted.sweep()
    assert world.a.commands == ["ADD", "ADD"]
    restarted.chain.cache.boot_id = "another boot"
    await restarted.add(net, C1)
    assert world.a.commands == ["ADD", "ADD", "DEL", "ADD"]
    await restarted.sweep()
    assert world.log[4:] == ["DEL a c2"]
    assert [each.container_id for each in restarted.attachments()] == ["c1"]


async def test_e04_del_of_an_old_container_leaves_the_new_one_alone(world: World) -> None:
    net = network("a")
    old, new = Attachment("old", "/n"), Attachment("new", "/n")
    for each in (old, new):
        await world.runtime.add(net, each)
    for _ in range(2):
        await world.runtime.delete(net, old)
    assert world.record(new) is not None
    assert world.log.count("DEL a old") == 2 and "DEL a new" not in world.log


async def test_del_works_from_the_recorded_configuration(world: World) -> None:
    await world.runtime.add(network({"type": "a", "mtu": 9}), C1)
    changed = network({"type": "b", "mtu": 1})
    later = Attachment("c1", "", "eth0", {"NEW": "1"})
    await world.runtime.delete(changed, later)
    request = world.a.requests[-1]
    assert (request.command, request.config.mtu, request.netns, request.args) == ("DEL", 9, "", C1.args)
    assert world.b.requests == []


@pytest.mark.parametrize("text", ["", "{", '{"kind":"cniCacheV1","config":3}'])
async def test_b01_b04_a_damaged_record_does_not_stop_del(world: World, text: str) -> None:
    await world.runtime.add(network("a"), C1)
    Path(world.leftovers()[0]).write_text(text)
    await world.runtime.delete(network("b"), C1)
    assert world.log == ["ADD a c1", "DEL b c1"]
    assert world.b.requests[0].prev_result is None
    assert world.leftovers() == []


async def test_a04_del_of_what_was_never_added_without_any_configuration(world: World) -> None:
    await world.runtime.delete("net", C1)
    assert world.log == []


async def test_b05_an_answer_in_another_version_is_converted_at_add(world: World) -> None:
    said = '{"ip4":{"ip":"10.0.0.5/8"}}'
    script(world.bin, "old", f'echo \'{{"cniVersion":"0.1.0",{said[1:]}\'')
    net = network("old", version="0.4.0")
    assert await world.runtime.add(net, C1) == Result(ips=(IPConfig("10.0.0.5/8"),))
    record = world.record()
    assert record is not None and record.result is not None and record.result["cniVersion"] == "0.4.0"
    await world.runtime.delete(net, C1)


async def test_b05_an_answer_that_the_lists_version_cannot_tell_fails_at_add(world: World) -> None:
    script(world.bin, "new", 'echo "{\\"cniVersion\\":\\"1.0.0\\"}"; echo $CNI_COMMAND >> $0.log')
    with pytest.raises(PluginFailure, match=r'type="new".*no valid IP addresses'):
        await world.runtime.add(network("new", version="0.2.0"), C1)
    assert (world.bin / "new.log").read_text().split() == ["ADD", "DEL"]
    assert world.leftovers() == []


async def test_prev_result_at_del_only_from_040(world: World) -> None:
    for version, given in (("0.3.1", None), ("0.4.0", "a result")):
        net = network("a", version=version)
        await world.runtime.add(net, C1)
        await world.runtime.delete(net, C1)
        assert (world.a.requests[-1].prev_result is None) == (given is None)


async def test_check_rules(world: World) -> None:
    with pytest.raises(IncompatibleVersion, match="does not support the CHECK command"):
        await world.runtime.check(network("a", version="0.3.1"), C1)
    with pytest.raises(UnknownContainer):
        await world.runtime.check(network("a"), C1)
    await world.runtime.add(network("a", "b"), C1)
    await world.runtime.check(network("a", disableCheck="true"), C1)
    assert world.a.commands == ["ADD"]
    world.a.acts["CHECK"] = failing(CNIError("wrong mac"))
    with pytest.raises(PluginFailure, match=r"1 of 2 in the list.* failed \(check\): wrong mac"):
        await world.runtime.check(network("a", "b"), C1)
    assert world.b.commands == ["ADD"]


@pytest.mark.parametrize(
    ("attachment", "kind"),
    [
        (Attachment("", "/n"), UnknownContainer),
        (Attachment("../x", "/n"), InvalidEnvironment),
        (Attachment("c", "/n", "a/b"), InvalidEnvironment),
        (Attachment("c", ""), InvalidEnvironment),
        (Attachment("c", "/n", capability_args={"x": object()}), InvalidConfig),
    ],
)
async def test_bad_attachments_are_refused_before_any_plugin(
    world: World, attachment: Attachment, kind: type[CNIError]
) -> None:
    with pytest.raises(kind):
        await world.runtime.add(network("a"), attachment)
    assert world.log == [] and world.leftovers() == []


async def test_an_unknown_version_is_refused_before_any_plugin(world: World) -> None:
    with pytest.raises(IncompatibleVersion):
        await world.runtime.add(network("a", version="5.0.0"), C1)
    assert world.log == []


async def test_e06_a_deadline_passed_is_undone_in_fresh_time(world: World) -> None:
    script(world.bin, "slow", "echo $CNI_COMMAND >> $0.log; [ $CNI_COMMAND = DEL ] || exec sleep 600")
    began = time.monotonic()
    with pytest.raises(PluginFailure, match=r'type="slow".*not done at its deadline'):
        await world.runtime.add(network("a", "slow"), C1, timeout=0.5)
    assert time.monotonic() - began < 10
    assert (world.bin / "slow.log").read_text().split() == ["ADD", "DEL"]
    assert world.log == ["ADD a c1", "DEL a c1"]
    assert world.leftovers() == []


async def test_one_hanging_plugin_at_del_leaves_time_for_the_others(world: World) -> None:
    script(world.bin, "slow", "[ $CNI_COMMAND = ADD ] && exec echo '{}'; exec sleep 600")
    script(world.bin, "quick", "echo $CNI_COMMAND >> $0.log; echo '{}'")
    net = network("quick", "slow")
    await world.runtime.add(net, C1)
    with pytest.raises(PluginFailure, match='type="slow"'):
        await world.runtime.delete(net, C1, timeout=1)
    assert (world.bin / "quick.log").read_text().split() == ["ADD", "DEL"]


async def test_e05_a_cancelled_add_is_undone_before_the_call_returns(world: World) -> None:
    script(
        world.bin,
        "slow",
        "echo $CNI_COMMAND >> $0.log; [ $CNI_COMMAND = DEL ] && exit; echo up > $0.up; exec sleep 600",
    )
    os.mkfifo(world.bin / "slow.up")
    task = asyncio.create_task(world.runtime.add(network("a", "slow"), C1))
    assert await asyncio.to_thread((world.bin / "slow.up").read_text) == "up\n"
    task.cancel()
    began = time.monotonic()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert time.monotonic() - began < 10
    assert (world.bin / "slow.log").read_text().split() == ["ADD", "DEL"]
    assert world.log == ["ADD a c1", "DEL a c1"]
    assert world.leftovers() == []


async def test_a_plugin_of_ours_past_every_deadline_is_given_up_and_undone_when_it_ends(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("podwire.cni.runtime.CLEANUP_SECONDS", 0.0)
    monkeypatch.setattr("podwire.cni.runtime._GRACE", 0.1)
    release = threading.Event()
    world.a.acts["ADD"] = lambda _: (release.wait(20), RESULT)[1]
    net = network("a")
    with pytest.raises(TryLater, match="ADD to net of container c1 is not done"):
        await world.runtime.add(net, C1, timeout=0.1)
    with pytest.raises(TryLater, match="waited in vain for container c1") as caught:
        await world.runtime.delete(net, C1, timeout=0.05)
    assert "ADD to net" in caught.value.details
    release.set()
    await world.runtime.close()
    assert world.a.commands == ["ADD", "DEL"]
    assert world.leftovers() == []


async def test_requests_for_one_container_run_in_order_and_others_beside_them(world: World) -> None:
    both = threading.Barrier(2, timeout=10)
    running: list[str] = []
    most: dict[str, int] = {}

    def act(request: Request[Options]) -> Result:
        running.append(request.container_id)
        most[request.container_id] = max(
            most.get(request.container_id, 0), running.count(request.container_id)
        )
        if request.command == "ADD":
            both.wait()
        running.remove(request.container_id)
        return RESULT

    world.a.acts = {"ADD": act, "DEL": act}
    net = network("a")
    one, two = Attachment("c1", "/n"), Attachment("c2", "/n")
    await asyncio.gather(
        world.runtime.add(net, one),
        world.runtime.add(net, two),
        world.runtime.delete(net, one),
        world.runtime.delete(net, two),
    )
    assert most == {"c1": 1, "c2": 1}
    assert [line for line in world.log if line.endswith("c1")] == ["ADD a c1", "DEL a c1"]


async def test_gc_excludes_add_and_del_of_its_network(world: World) -> None:
    inside = asyncio.Event()
    loop = asyncio.get_running_loop()
    release = threading.Event()

    def collect(_request: Request[Options]) -> None:
        loop.call_soon_threadsafe(inside.set)
        release.wait(10)

    world.a.acts["GC"] = collect
    net = network("a")
    collecting = asyncio.create_task(world.runtime.gc(net, []))
    await inside.wait()
    with pytest.raises(TryLater, match="network net"):
        await world.runtime.add(net, C1, timeout=0.1)
    release.set()
    await collecting
    await world.runtime.add(net, C1)
    assert world.a.commands == ["GC", "ADD"]


async def test_gc_deletes_what_is_not_valid_and_goes_on_past_failures(world: World) -> None:
    net = network("a", "b")
    for container in ("c1", "c2", "c3"):
        await world.runtime.add(net, Attachment(container, f"/proc/{container}/ns/net"))
    other = network("a", name="other")
    await world.runtime.add(other, Attachment("c9", "/n"))
    world.log.clear()

    def stuck(request: Request[Options]) -> None:
        if request.container_id == "c2":
            raise TryLater("stuck")

    world.b.acts = {"DEL": stuck, "GC": failing(CNIError("b cannot"))}
    with pytest.raises(Failures, match=r"c2 eth0.*stuck.*b cannot"):
        await world.runtime.gc(net, [Attachment("c3", "/n")])
    assert world.log == ["DEL b c1", "DEL a c1", "DEL b c2", "DEL a c2", "GC a ", "GC b "]
    assert world.a.requests[-1].valid_attachments == (AttachmentKey("c3", "eth0"),)
    assert world.a.requests[-1].raw["cni.dev/attachments"] == [{"containerID": "c3", "ifname": "eth0"}]
    assert next(each for each in world.a.requests if each.command == "DEL").netns == ""
    assert [each.key for each in world.runtime.attachments()] == [
        ("net", "c2", "eth0"),
        ("net", "c3", "eth0"),
        ("other", "c9", "eth0"),
    ]


async def test_b10_disable_gc_does_nothing_and_below_110_plugins_are_not_asked(world: World) -> None:
    await world.runtime.add(network("a"), C1)
    await world.runtime.gc(network("a", disableGC=True), [])
    assert world.a.commands == ["ADD"]
    await world.runtime.gc(network("a", version="1.0.0"), [])
    assert world.a.commands == ["ADD", "DEL"]


async def test_status_stops_at_the_first_and_is_silent_below_110(world: World) -> None:
    world.a.acts["STATUS"] = failing(NotAvailable("no daemon"))
    await world.runtime.status(network("a", version="1.0.0"))
    with pytest.raises(PluginFailure) as caught:
        await world.runtime.status(network("a", "b"))
    assert caught.value.code == 50
    assert world.b.requests == []


async def test_versions_and_validation(world: World) -> None:
    script(world.bin, "old", """echo '{"cniVersion":"0.4.0","supportedVersions":["0.3.1","0.4.0"]}'""")
    script(world.bin, "odd", "echo '{}'")
    assert await world.runtime.versions("old") == ("0.3.1", "0.4.0")
    net = network({"type": "a", "capabilities": {"mac": True}}, "old", version="0.4.0")
    assert await world.runtime.validate(net) == ("mac",)
    with pytest.raises(PluginFailure, match=r'type="old".*incompatible CNI versions'):
        await world.runtime.validate(network("a", "old"))
    with pytest.raises(InvalidConfig, match="does not tell its versions"):
        await world.runtime.versions("odd")
    with pytest.raises(PluginMissing):
        await world.runtime.validate(network("nowhere"))


async def test_every_turn_can_be_observed(world: World) -> None:
    world.b.acts["ADD"] = failing(TryLater("full"))
    with pytest.raises(PluginFailure):
        await world.runtime.add(network({"type": "a", "mtu": 9}, "b"), C1)
    told = [(step.plugin, step.command, step.result, step.error is not None) for step in world.steps]
    assert told == [
        ("a", "ADD", RESULT, False),
        ("b", "ADD", None, True),
        ("b", "DEL", None, False),
        ("a", "DEL", None, False),
    ]
    assert world.steps[0].config["mtu"] == 9 and world.steps[0].seconds >= 0


async def test_a_loader_that_breaks_is_a_cni_error(world: World) -> None:
    def load(_type: str) -> Any:
        raise ImportError("no module")

    with pytest.raises(CNIError, match="no module"):
        await Runtime(load, cache_dir=world.directory).add(network("a"), C1)


async def test_a_cache_that_cannot_be_written_fails_the_add_before_it_begins(world: World) -> None:
    (world.directory / "cni").write_text("a file")
    with pytest.raises(CNIError, match="result cache"):
        await world.runtime.add(network("a"), C1)
    assert world.log == []


async def test_the_callers_trace_context_reaches_plugins_of_both_sorts(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACEPARENT", "00-inherited")
    monkeypatch.setenv("TRACESTATE", "inherited=1")
    script(world.bin, "foreign", 'echo "$CNI_COMMAND $TRACEPARENT/$TRACESTATE/$BAGGAGE" >> $0.log; echo "{}"')
    told = TraceContext("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", baggage="pod=x")
    net = network("a", "foreign")
    await world.runtime.add(net, C1, trace=told)
    await world.runtime.check(net, C1, trace=told)
    await world.runtime.status(net, trace=told)
    await world.runtime.gc(net, [C1], trace=told)
    await world.runtime.delete(net, C1, trace=told)
    await world.runtime.delete(net, C1)
    assert [request.trace for request in world.a.requests] == [told] * 5 + [None]
    lines = (world.bin / "foreign.log").read_text().splitlines()
    assert lines[:5] == [f"{verb} {told.parent}//pod=x" for verb in ("ADD", "CHECK", "STATUS", "GC", "DEL")]
    assert lines[5] == "DEL 00-inherited/inherited=1/"


async def test_the_undoing_of_a_traced_add_is_traced(world: World) -> None:
    world.b.acts["ADD"] = failing(TryLater("full"))
    told = TraceContext("00-1-2-01")
    with pytest.raises(PluginFailure):
        await world.runtime.add(network("a", "b"), C1, trace=told)
    assert [(each.command, each.trace) for each in world.a.requests] == [("ADD", told), ("DEL", told)]


def test_a_trace_context_is_read_from_headers_of_any_case() -> None:
    headers = {"Traceparent": "00-1-2-01", "tracestate": "a=1", "BAGGAGE": "k=v", "X": "y"}
    found = TraceContext.from_headers(headers)
    assert found == TraceContext("00-1-2-01", "a=1", "k=v")
    assert found.variables() == {"TRACEPARENT": "00-1-2-01", "TRACESTATE": "a=1", "BAGGAGE": "k=v"}
    assert TraceContext.from_headers({"tracestate": "a=1"}) is None


async def test_a_step_tells_place_program_and_stderr(world: World) -> None:
    path = script(world.bin, "foreign", 'echo "took the slow path" >&2; echo "{}"')
    await world.runtime.add(network("a", "foreign"), C1)
    ours, foreign = world.steps
    assert (ours.executable, ours.position, ours.total, ours.network) == ("", 1, 2, "net")
    assert (foreign.executable, foreign.stderr) == (str(path), "took the slow path")
    assert foreign.attachment == C1
    assert foreign.config["prevResult"]["ips"][0]["address"] == "10.1.0.5/16"


async def test_an_observer_that_fails_leaves_no_add_half_done(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    def observe(_step: Step) -> None:
        raise ZeroDivisionError

    world.runtime.chain.observe = observe
    assert await world.runtime.add(network("a"), C1) == RESULT
    assert "the observer of plugin a failed" in caplog.text
    await world.runtime.delete("net", C1)
    assert world.leftovers() == []


async def test_e15_a_single_configuration_is_deleted_as_it_was_added(world: World) -> None:
    single = config.parse_list('{"cniVersion": "0.4.0", "name": "net", "type": "a", "mtu": 7}')
    await world.runtime.add(single, C1)
    await world.fresh().delete("net", C1)
    assert [(each.command, each.config.mtu) for each in world.a.requests] == [("ADD", 7), ("DEL", 7)]
    assert world.leftovers() == []


async def test_what_a_foreign_delegate_says_on_stderr_is_the_steps(world: World) -> None:
    script(world.bin, "ipam", 'echo "pool is low" >&2; [ $CNI_COMMAND = ADD ] && echo "{}"; exit 0')

    def delegating(request: Request[Options]) -> Result | None:
        return request.delegate("ipam")

    world.a.acts = {"ADD": delegating, "DEL": delegating}
    await world.runtime.add(network("a"), C1)
    await world.runtime.delete("net", C1)
    assert [step.stderr for step in world.steps] == ["pool is low"] * 2


async def test_a_delegates_process_gets_the_trace_context_too(world: World) -> None:
    script(world.bin, "ipam", 'echo "$TRACEPARENT" >> $0.log; [ $CNI_COMMAND = ADD ] && echo "{}"; exit 0')
    world.a.acts["ADD"] = lambda request: request.delegate("ipam")
    await world.runtime.add(network("a"), C1, trace=TraceContext("00-1-2-01"))
    assert (world.bin / "ipam.log").read_text() == "00-1-2-01\n"


@pytest.mark.parametrize("how", ["delegate", "run"])
async def test_e05_what_a_plugin_of_ours_waits_for_is_cancelled_too(world: World, how: str) -> None:
    path = script(world.bin, "slow", '[ "$CNI_COMMAND" = DEL ] && exit; echo up > $0.up; exec sleep 600')
    os.mkfifo(world.bin / "slow.up")

    def add(request: Request[Options]) -> Result | None:
        if how == "run":
            request.run(str(path))
        return request.delegate("slow")

    world.a.acts["ADD"] = add
    task = asyncio.create_task(world.runtime.add(network("a"), C1))
    assert await asyncio.to_thread((world.bin / "slow.up").read_text) == "up\n"
    task.cancel()
    began = time.monotonic()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert time.monotonic() - began < 10
    assert world.log == ["ADD a c1", "DEL a c1"]
    assert world.leftovers() == []
