"""The SDK: what every plugin does before and after its own work (reference sections 1, 2 and 4)."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from podwire.cni import versions
from podwire.cni.errors import (
    AlreadyAttached,
    CNIError,
    IncompatibleVersion,
    InvalidConfig,
    InvalidEnvironment,
    InvalidNetns,
    TryLater,
    UnknownContainer,
)
from podwire.cni.plugin import (
    AttachmentKey,
    IPConfig,
    Plugin,
    Reply,
    Request,
    Result,
    call,
    delegate_ipam,
    main,
    make_request,
    respond,
)
from tests.cni.helpers import RESULT, Options, Recorder, failing, script

ENV = {
    "CNI_CONTAINERID": "c1",
    "CNI_NETNS": "/run/netns/x",
    "CNI_IFNAME": "eth0",
    "CNI_PATH": "/opt/cni/bin",
}
CONF = {"cniVersion": "1.1.0", "name": "net", "type": "rec"}


def answer(recorder: Recorder, command: str, conf: Any = CONF, **env: str) -> tuple[int, Any]:
    stdin = conf if isinstance(conf, bytes) else json.dumps(conf).encode()
    reply = respond(recorder.plugin, {**ENV, **env, "CNI_COMMAND": command}, stdin)
    return reply.status, json.loads(reply.stdout) if reply.stdout else None


def conf(**more: Any) -> bytes:
    return json.dumps({**CONF, **more}).encode()


def test_no_command_tells_about_and_versions_on_stderr() -> None:
    out, err = io.BytesIO(), io.StringIO()
    assert main(Recorder().plugin, {}, io.BytesIO(), out, err) == 0
    assert out.getvalue() == b""
    assert err.getvalue() == (
        "CNI rec plugin\nCNI protocol versions supported: 0.1.0, 0.2.0, 0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0\n"
    )


def test_version_ignores_stdin() -> None:
    class Unread(io.BytesIO):
        def read(self, _size: int | None = -1) -> bytes:
            raise AssertionError("stdin was read")

    out = io.BytesIO()
    assert main(Recorder().plugin, {"CNI_COMMAND": "VERSION"}, Unread(), out, io.StringIO()) == 0
    listed = ",".join(f'"{each}"' for each in versions.SUPPORTED)
    assert out.getvalue().decode() == f'{{"cniVersion":"1.1.0","supportedVersions":[{listed}]}}\n'


@pytest.mark.parametrize(
    ("command", "missing"),
    [
        ("ADD", "CNI_CONTAINERID,CNI_NETNS,CNI_IFNAME"),
        ("CHECK", "CNI_CONTAINERID,CNI_NETNS,CNI_IFNAME"),
        ("DEL", "CNI_CONTAINERID,CNI_IFNAME"),
        ("GC", "CNI_PATH"),
    ],
)
def test_all_missing_variables_are_listed(command: str, missing: str) -> None:
    out = io.BytesIO()
    assert main(Recorder().plugin, {"CNI_COMMAND": command}, io.BytesIO(b""), out, io.StringIO()) == 1
    said = json.loads(out.getvalue())
    assert (said["code"], said["msg"]) == (4, f"required env variables [{missing}] missing")


def test_an_unknown_command() -> None:
    assert answer(Recorder(), "add") == (
        1,
        {"cniVersion": "1.1.0", "code": 4, "msg": "unknown CNI_COMMAND: add"},
    )


@pytest.mark.parametrize(
    ("conf", "code"),
    [
        (b"", 6),
        (b"{", 6),
        (b"[]", 6),
        (b'{"cniVersion":"1.0.0"}', 7),
        ({**CONF, "name": "a/b"}, 7),
        ({**CONF, "cniVersion": 1}, 7),
        ({**CONF, "mtu": "x"}, 7),
        ({**CONF, "runtimeConfig": 1}, 7),
        ({**CONF, "prevResult": {"ips": [{"address": "x"}]}}, 6),
        ({**CONF, "prevResult": 3}, 6),
    ],
)
def test_bad_configurations_have_the_right_code_and_reach_no_plugin(conf: Any, code: int) -> None:
    recorder = Recorder()
    status, said = answer(recorder, "ADD", conf)
    assert (status, said["code"], recorder.requests) == (1, code, [])


@pytest.mark.parametrize(
    "env", [{"CNI_CONTAINERID": "../x"}, {"CNI_IFNAME": "a/b"}, {"CNI_IFNAME": "a" * 16}, {"CNI_ARGS": "bad"}]
)
def test_a09_bad_variables_are_code_4(env: dict[str, str]) -> None:
    recorder = Recorder()
    assert answer(recorder, "ADD", **env)[1]["code"] == 4
    assert recorder.requests == []


def test_a_version_that_the_plugin_does_not_speak() -> None:
    status, said = answer(Recorder(), "ADD", {**CONF, "cniVersion": "3.0.0"})
    assert (status, said["code"], said["msg"]) == (1, 1, "incompatible CNI versions")
    assert said["details"].startswith('config is "3.0.0", plugin supports ["0.1.0" "0.2.0"')


@pytest.mark.parametrize(("command", "version"), [("CHECK", "0.3.1"), ("GC", "1.0.0"), ("STATUS", "1.0.0")])
def test_commands_below_their_version(command: str, version: str) -> None:
    recorder = Recorder()
    status, said = answer(recorder, command, {**CONF, "cniVersion": version})
    assert (status, said["code"], said["msg"]) == (1, 1, f"config version does not allow {command}")
    assert recorder.requests == []


@pytest.mark.parametrize("command", ["ADD", "DEL"])
def test_the_plugins_own_netns_is_refused_before_any_work(command: str) -> None:
    recorder = Recorder()
    own = f"/proc/{os.getpid()}/ns/net"
    assert answer(recorder, command, CNI_NETNS=own)[1]["code"] == 8
    assert recorder.requests == []
    assert answer(recorder, command, CNI_NETNS=own, CNI_NETNS_OVERRIDE="1")[0] == 0
    assert recorder.commands == [command]


def test_e03_an_empty_netns_at_del_is_fine() -> None:
    recorder = Recorder()
    assert answer(recorder, "DEL", CNI_NETNS="") == (0, None)
    assert recorder.requests[0].netns == ""


def test_e14_del_forgives_what_broke_the_add() -> None:
    recorder = Recorder()
    conf = {**CONF, "prevResult": {"ips": [{"address": "x"}]}}
    assert answer(recorder, "DEL", conf, CNI_ARGS="A=1;bad") == (0, None)
    assert (recorder.requests[0].prev_result, recorder.requests[0].args) == (None, {"A": "1"})


@pytest.mark.parametrize("command", ["CHECK", "DEL", "GC", "STATUS"])
def test_b14_success_is_silent(command: str) -> None:
    conf = {**CONF, "prevResult": {"cniVersion": "1.1.0"}, "cni.dev/valid-attachments": []}
    recorder = Recorder()
    reply = respond(recorder.plugin, {**ENV, "CNI_COMMAND": command}, json.dumps(conf).encode())
    assert (reply.status, reply.stdout, reply.stderr, recorder.commands) == (0, b"", "", [command])


def test_the_request_is_typed_and_keys_match_whatever_their_case() -> None:
    recorder = Recorder()
    conf = {
        "CNIVERSION": "1.0.0",
        "Name": "net",
        "bandwidth": 7,
        "MTU": 9,
        "other": {"Kept": 1},
        "runtimeConfig": {"mac": "02"},
        "prevResult": {"ips": [{"address": "10.0.0.9/8"}]},
    }
    assert answer(recorder, "ADD", conf, CNI_ARGS="A=1", CNI_PATH="/a:/b")[0] == 0
    request = recorder.requests[0]
    assert (request.config.bandWidth, request.config.mtu) == (7, 9)
    assert (request.cni_version, request.name, request.args) == ("1.0.0", "net", {"A": "1"})
    assert (request.path, request.runtime_config) == (("/a", "/b"), {"mac": "02"})
    assert request.raw["other"] == {"Kept": 1}
    assert request.prev_result == Result(ips=(IPConfig("10.0.0.9/8"),))
    assert 0 < request.remaining() < 240


def test_a_field_error_names_path_and_value() -> None:
    conf = {**CONF, "RANGES": [[{"subnet": "10.0.0.0/8"}, {"subnet": 5}]]}
    said = answer(Recorder(), "ADD", conf)[1]
    assert said["msg"].startswith('plugin "rec": ranges[0][1][...]')
    said = answer(Recorder(), "ADD", {**CONF, "BANDWIDTH": "fast"})[1]
    assert said["msg"] == 'plugin "rec": bandWidth: Expected `int`, got `str` (it is "fast")'


def test_unknown_fields_are_refused_where_the_plugin_asks_for_it() -> None:
    class Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        mtu: int = 0

    plugin: Plugin[Strict, None] = Plugin("s", "s", Strict, lambda r, k: RESULT, lambda r, k: None)
    reserved: dict[str, Any] = {
        **CONF,
        "ipam": {},
        "dns": {},
        "args": {},
        "prevResult": None,
        "cni.dev/x": 1,
        "ipMasq": True,
    }
    assert make_request(plugin, "DEL", {**reserved, "mtu": 3}, container_id="c", ifname="e").config.mtu == 3
    with pytest.raises(InvalidConfig, match="unknown field `mut`"):
        make_request(plugin, "DEL", {**reserved, "mut": 3}, container_id="c", ifname="e")


def test_a12_known_args_are_checked_for_plugins_that_list_theirs() -> None:
    base = Recorder().plugin
    plugin: Plugin[Options, None] = Plugin(
        "r", "r", Options, base.add, base.delete, known_args=frozenset({"IP"})
    )
    pod = "IP=10.0.0.1;K8S_POD_NAME=x"
    with pytest.raises(InvalidEnvironment, match="K8S_POD_NAME"):
        make_request(plugin, "ADD", CONF, container_id="c", ifname="e", args=pod)
    make_request(plugin, "ADD", CONF, container_id="c", ifname="e", args=pod + ";IgnoreUnknown=1")
    make_request(plugin, "DEL", CONF, container_id="c", ifname="e", args=pod)


def test_check_needs_prev_result() -> None:
    said = answer(Recorder(), "CHECK")[1]
    assert (said["code"], "CHECK needs prevResult" in said["msg"]) == (7, True)


def test_b19_a_chained_plugin_says_what_is_wrong() -> None:
    request = make_request(
        Recorder().plugin, "ADD", {**CONF, "cniVersion": "0.2.0"}, container_id="c", ifname="e"
    )
    with pytest.raises(InvalidConfig, match=r'"rec": missing prevResult.*0\.3\.0 or newer and has "0\.2\.0"'):
        request.need_prev_result()


@pytest.mark.parametrize(
    ("extra", "valid"),
    [
        ({"cni.dev/valid-attachments": [{"containerID": "a", "ifname": "eth0"}]}, [("a", "eth0")]),
        ({"cni.dev/attachments": [{"containerid": "a", "ifName": "eth0"}]}, [("a", "eth0")]),
        ({"cni.dev/attachments": []}, []),
        (
            {
                "cni.dev/attachments": [{"containerID": "b", "ifname": "eth0"}],
                "cni.dev/valid-attachments": [{"containerID": "a", "ifname": "eth0"}],
            },
            [("a", "eth0"), ("b", "eth0")],
        ),
    ],
)
def test_b09_gc_accepts_either_key(extra: dict[str, Any], valid: list[tuple[str, str]]) -> None:
    recorder = Recorder()
    assert answer(recorder, "GC", {**CONF, **extra}) == (0, None)
    given = recorder.requests[0].valid_attachments
    assert given is not None
    assert [(each.container_id, each.ifname) for each in given] == valid


def test_b09_gc_without_any_list_deletes_nothing() -> None:
    recorder = Recorder()
    assert answer(recorder, "GC") == (0, None)
    assert recorder.requests == []


def test_gc_with_a_malformed_list_is_refused() -> None:
    recorder = Recorder()
    bads: tuple[Any, ...] = ([{"ifname": "eth0"}], {}, "all", [1])
    for bad in bads:
        assert answer(recorder, "GC", {**CONF, "cni.dev/valid-attachments": bad})[1]["code"] == 7
    assert recorder.requests == []


def test_errors_keep_their_code_and_surprises_become_999() -> None:
    recorder = Recorder(acts={"ADD": failing(TryLater("busy", "soon"))})
    assert answer(recorder, "ADD") == (
        1,
        {"cniVersion": "1.1.0", "code": 11, "msg": "busy", "details": "soon"},
    )
    for surprise in (KeyError("x"), RecursionError("deep"), OSError(5, "bad disk"), AssertionError()):
        status, said = answer(Recorder(acts={"ADD": failing(surprise)}), "ADD")
        assert (status, said["code"]) == (1, 999)
        assert type(surprise).__name__ in said["details"]
        assert "helpers.py:" in said["details"]
        assert "Traceback" not in json.dumps(said)


def test_an_add_that_returns_no_result_is_an_error() -> None:
    plugin: Plugin[Options, None] = Plugin("r", "r", Options, lambda r, k: None, lambda r, k: None)  # type: ignore[arg-type, return-value]
    reply = respond(plugin, {**ENV, "CNI_COMMAND": "ADD"}, json.dumps(CONF).encode())
    assert json.loads(reply.stdout)["code"] == 999


def test_a_result_that_the_version_cannot_tell_is_an_error_of_the_protocol() -> None:
    recorder = Recorder(acts={"ADD": lambda _: Result()})
    status, said = answer(recorder, "ADD", {**CONF, "cniVersion": "0.2.0"})
    assert (status, said["msg"]) == (1, "cannot convert: no valid IP addresses")


def test_the_kernel_is_opened_for_the_call_only() -> None:
    from contextlib import contextmanager

    events: list[str] = []

    @contextmanager
    def opened() -> Any:
        events.append("open")
        try:
            yield "the kernel"
        finally:
            events.append("close")

    def add(_request: Request[Options], kernel: str) -> Result:
        events.append(kernel)
        raise TryLater("no")

    plugin: Plugin[Options, str] = Plugin("r", "r", Options, add, lambda r, k: None, open_kernel=opened)
    respond(plugin, {**ENV, "CNI_COMMAND": "ADD"}, b"{}")
    assert events == []
    respond(plugin, {**ENV, "CNI_COMMAND": "ADD"}, json.dumps(CONF).encode())
    assert events == ["open", "the kernel", "close"]


PROGRAM = """
import sys
from podwire.cni.plugin import *
import msgspec
class Options(msgspec.Struct):
    how: str = ""
def add(request, kernel):
    print("noise on stdout")
    if request.config.how == "exit": raise ValueError("surprise")
    return Result(ips=(IPConfig("10.0.0.2/24"),))
sys.exit(main(Plugin("t", "CNI t plugin", Options, add, lambda request, kernel: None)))
"""


@pytest.mark.parametrize("how", ["", "exit"])
def test_as_a_process_stdout_holds_the_protocol_alone(tmp_path: Path, how: str) -> None:
    (tmp_path / "t.py").write_text(PROGRAM)
    env = {**ENV, "CNI_COMMAND": "ADD", "PYTHONPATH": ":".join(sys.path)}
    ran = subprocess.run(
        [sys.executable, str(tmp_path / "t.py")],
        input=json.dumps({**CONF, "how": how}).encode(),
        capture_output=True,
        env=env,
    )
    said = json.loads(ran.stdout)
    assert ran.returncode == (1 if how else 0)
    assert said.get("msg", said.get("ips")) == ("surprise" if how else [{"address": "10.0.0.2/24"}])
    assert ran.stderr == b"noise on stdout\n"


# Delegation.


def delegating(ipam: Recorder | None, path: tuple[str, ...] = (), command: str = "ADD") -> Request[Options]:
    main_plugin = Recorder("main").plugin
    plugins = {"main": main_plugin, **({ipam.type: ipam.plugin} if ipam else {})}
    conf = {**CONF, "ipam": {"type": "ipam"}, "mtu": 5}
    return make_request(
        main_plugin,
        command,
        conf,
        container_id="c1",
        netns="/n",
        ifname="eth0",
        args="A=1",
        path=path,
        registry=plugins,
    )


def test_a_delegate_of_ours_gets_the_whole_request_in_process() -> None:
    ipam = Recorder("ipam")
    request = delegating(ipam)
    assert request.ipam_type == "ipam"
    assert request.delegate(request.ipam_type) == RESULT
    got = ipam.requests[0]
    assert (got.command, got.container_id, got.netns, got.ifname, got.args) == (
        "ADD",
        "c1",
        "/n",
        "eth0",
        {"A": "1"},
    )
    assert (got.raw, got.config.mtu, got.deadline) == (request.raw, 5, request.deadline)


def test_a_failed_delegate_add_is_followed_by_its_del_and_both_errors_are_told() -> None:
    ipam = Recorder("ipam", acts={"ADD": failing(TryLater("full"))})
    with pytest.raises(TryLater, match="full"):
        delegating(ipam).delegate("ipam")
    assert ipam.commands == ["ADD", "DEL"]
    ipam = Recorder("ipam", acts={"ADD": failing(TryLater("full")), "DEL": failing(CNIError("stuck"))})
    with pytest.raises(CNIError, match="full; stuck") as caught:
        delegating(ipam).delegate("ipam")
    assert caught.value.code == 11


def test_what_was_there_already_is_not_undone() -> None:
    ipam = Recorder("ipam", acts={"ADD": failing(AlreadyAttached("duplicate"))})
    with pytest.raises(AlreadyAttached):
        delegating(ipam).delegate("ipam")
    assert ipam.commands == ["ADD"]


def test_e23_an_error_after_the_delegates_add_runs_its_del_in_fresh_time() -> None:
    ipam = Recorder("ipam")
    with pytest.raises(TryLater, match="link"), delegating(ipam).delegated("ipam") as result:
        assert result == RESULT
        raise TryLater("link")
    assert ipam.commands == ["ADD", "DEL"]
    assert ipam.requests[1].deadline <= time.monotonic() + 30
    with delegating(ipam).delegated("ipam"):
        pass
    assert ipam.commands == ["ADD", "DEL", "ADD"]
    ipam.acts["DEL"] = failing(CNIError("stuck"))
    with pytest.raises(KeyError) as caught, delegating(ipam).delegated("ipam"):
        raise KeyError("x")
    assert caught.value.__notes__ == ["stuck"]


def test_a14_a_delegate_of_the_own_type_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="itself"):
        delegating(None).delegate("main")
    with pytest.raises(InvalidConfig, match="without a path"):
        delegating(None).delegate("../x")


def test_a_foreign_delegate_runs_as_a_process_with_the_same_stdin(tmp_path: Path) -> None:
    said = '{"ips":[{"address":"10.0.0.7/8"}]}'
    script(tmp_path, "ipam", f"cat > {tmp_path}/in; echo $CNI_COMMAND >> {tmp_path}/log; echo '{said}'")
    request = delegating(None, (str(tmp_path),))
    assert request.delegate("ipam") == Result(ips=(IPConfig("10.0.0.7/8"),))
    assert json.loads((tmp_path / "in").read_text()) == request.raw
    assert request.delegate("ipam", "DEL") is None
    assert (tmp_path / "log").read_text().split() == ["ADD", "DEL"]


def test_call_passes_cni_errors_through() -> None:
    recorder = Recorder(acts={"DEL": failing(UnknownContainer("c"))})
    request = make_request(recorder.plugin, "DEL", CONF, container_id="c1", ifname="eth0")
    with pytest.raises(UnknownContainer):
        call(recorder.plugin, request, None)


def test_in_process_requests_are_checked_like_a_processs() -> None:
    plugin = Recorder().plugin
    with pytest.raises(UnknownContainer):
        make_request(plugin, "ADD", CONF, ifname="eth0")
    with pytest.raises(InvalidNetns):
        make_request(plugin, "ADD", CONF, container_id="c", ifname="e", netns="/proc/thread-self/ns/net")
    with pytest.raises(IncompatibleVersion):
        make_request(plugin, "STATUS", {"name": "n"})
    with pytest.raises(InvalidEnvironment):
        make_request(plugin, "VERSION", CONF)


@pytest.mark.parametrize("status", [0, 3])
def test_a_foreign_delegates_stderr_is_the_plugins(tmp_path: Path, status: int) -> None:
    answer = "{}" if status == 0 else '{"code": 11, "msg": "full"}'
    script(tmp_path, "ipam", f"echo $CNI_COMMAND is slow >&2; echo '{answer}'; exit {status}")
    outer = Recorder(acts={"ADD": lambda request: request.delegate("ipam")})
    reply = respond(outer.plugin, {**ENV, "CNI_COMMAND": "ADD", "CNI_PATH": str(tmp_path)}, conf())
    assert reply.status == (1 if status else 0)
    assert reply.stderr.splitlines() == ["ADD is slow"] if not status else ["ADD is slow", "DEL is slow"]


@pytest.mark.parametrize("command", ["GC", "STATUS"])
def test_gc_and_status_are_delegated(command: str) -> None:
    ipam = Recorder("ipam")
    plugin = Plugin(
        "p", "p", Options, lambda _request, _kernel: RESULT, gc=delegate_ipam, status=delegate_ipam
    )
    keep = [{"containerID": "c", "ifname": "eth0"}]
    said = conf(ipam={"type": "ipam"}, **{"cni.dev/valid-attachments": keep})
    env = {"CNI_COMMAND": command, "CNI_PATH": "/none"}
    assert respond(plugin, env, said, registry={"ipam": ipam.plugin}) == Reply(0)
    assert ipam.commands == [command]
    assert ipam.requests[0].valid_attachments == ((AttachmentKey("c", "eth0"),) if command == "GC" else None)
    assert respond(plugin, env, conf(), registry={"ipam": ipam.plugin}) == Reply(0)
    assert ipam.commands == [command]


def test_a_plugin_without_delete_has_nothing_to_undo() -> None:
    plugin: Plugin[Options, None] = Plugin("p", "p", Options, lambda _request, _kernel: RESULT)
    assert respond(plugin, {**ENV, "CNI_COMMAND": "DEL"}, conf()) == Reply(0)


def undoing(*, add: Exception, delete: Exception | None = None) -> tuple[Recorder, Plugin[Options, None]]:
    recorder = Recorder(acts={"ADD": failing(add)})
    if delete is not None:
        recorder.acts["DEL"] = failing(delete)
    return recorder, msgspec.structs.replace(recorder.plugin, undo=True)


@pytest.mark.parametrize("error", [CNIError("no link", code=100), ValueError("no link")])
def test_e23_a_plugin_that_undoes_gets_its_del_at_once(error: Exception) -> None:
    recorder, plugin = undoing(add=error)
    env = {**ENV, "CNI_COMMAND": "ADD", "CNI_ARGS": "A=1"}
    said = json.loads(respond(plugin, env, conf()).stdout)
    assert said["msg"] == "no link"
    assert recorder.commands == ["ADD", "DEL"]
    added, deleted = recorder.requests
    assert (deleted.container_id, deleted.args) == (added.container_id, {"A": "1"})
    assert deleted.deadline != added.deadline


def test_what_undoing_meets_is_told_and_what_was_there_is_not_undone() -> None:
    recorder, plugin = undoing(add=CNIError("no link"), delete=TryLater("stuck"))
    said = json.loads(respond(plugin, {**ENV, "CNI_COMMAND": "ADD"}, conf()).stdout)
    assert said["msg"] == "no link; stuck"
    recorder, plugin = undoing(add=AlreadyAttached("here"))
    assert json.loads(respond(plugin, {**ENV, "CNI_COMMAND": "ADD"}, conf()).stdout)["msg"] == "here"
    assert recorder.commands == ["ADD"]


def test_a_program_is_run_to_the_requests_deadline() -> None:
    request = make_request(
        Recorder().plugin,
        "ADD",
        CONF,
        container_id="c1",
        netns="/n",
        ifname="eth0",
        deadline=time.monotonic() + 20,
    )
    assert request.run("echo", "a b") == "a b\n"
    with pytest.raises(CNIError, match=r"^sh -c echo no >&2; exit 3: no$") as caught:
        request.run("sh", "-c", "echo no >&2; exit 3")
    assert caught.value.code == 100
    with pytest.raises(CNIError, match="false: exit status 1"):
        request.run("false")
    with pytest.raises(CNIError, match="no-such-program"):
        request.run("no-such-program")
    late = msgspec.structs.replace(request, deadline=time.monotonic() + 0.05)
    with pytest.raises(TryLater, match="sleep 600: not done at the deadline"):
        late.run("sleep", "600")
    late = msgspec.structs.replace(request, deadline=time.monotonic() + 0.05)
    began = time.monotonic()
    with pytest.raises(TryLater):
        late.run("sh", "-c", "sleep 600; true")
    assert time.monotonic() - began < 10


def test_a_name_on_the_host_is_of_the_attachment() -> None:
    def name(network: str = "net", container: str = "c1", ifname: str = "eth0") -> str:
        said = {**CONF, "name": network}
        return make_request(
            Recorder().plugin, "ADD", said, container_id=container, netns="/n", ifname=ifname
        ).link_name("p2p")

    names = {name(), name(network="other"), name(container="c2"), name(ifname="net1")}
    assert name() in names and len(names) == 4
    assert all(each.startswith("p2p") and len(each) == 15 for each in names)
