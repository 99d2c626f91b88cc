"""Random and mutated requests and outputs: always an answer of the protocol, never a traceback."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from podwire.cni import args, convert, invoke
from podwire.cni.errors import CNIError
from podwire.cni.plugin import respond
from podwire.cni.request import COMMANDS
from tests.cni.fuzz_long import run
from tests.cni.helpers import Recorder

words = st.sampled_from(
    [
        "",
        "c1",
        "eth0",
        "/run/netns/x",
        "../x",
        "a=b",
        "A=1;B=2",
        "a/b",
        "\udc80",
        "x" * 300,
        "é",
        "1",
        "0.4.0",
    ]
)
variables = st.dictionaries(
    st.sampled_from(
        ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS", "CNI_PATH", "CNI_NETNS_OVERRIDE"]
    ),
    words,
)
keys = st.sampled_from(
    [
        "cniVersion",
        "name",
        "NAME",
        "type",
        "prevResult",
        "runtimeConfig",
        "mtu",
        "ranges",
        "ips",
        "address",
        "interfaces",
        "cni.dev/valid-attachments",
        "containerID",
        "ifname",
        "dns",
        "ipam",
    ]
)
leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | words
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=10,
)
good = {"cniVersion": "1.1.0", "name": "net"}
configs = st.dictionaries(keys, values, max_size=5).map(lambda more: json.dumps({**good, **more}).encode())


@settings(max_examples=200, deadline=None)
@given(st.sampled_from([*COMMANDS, "VERSION", "add", "\udc80"]), variables, configs | st.binary(max_size=40))
def test_every_request_is_answered_in_the_protocol(command: str, env: dict[str, str], stdin: bytes) -> None:
    reply = respond(Recorder().plugin, {**env, "CNI_COMMAND": command}, stdin)
    if reply.status:
        said = json.loads(reply.stdout)
        assert isinstance(said["code"], int) and said["msg"]
        # The recorder itself never fails: what is refused is refused for a reason that has a code.
        assert said["code"] != 999
    elif reply.stdout:
        assert json.loads(reply.stdout)["cniVersion"]
    assert reply.stderr == ""


@settings(max_examples=100, deadline=None)
@given(values.map(json.dumps).map(str.encode) | st.binary(max_size=60), st.integers(-64, 255))
def test_whatever_a_failing_plugin_prints_becomes_an_error_that_prints(stdout: bytes, status: int) -> None:
    error = invoke._failure("/opt/cni/bin/p", status, invoke.Outcome(stdout, "", 0.1))
    assert json.loads(error.to_json())["msg"] == error.msg


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=30) | words)
def test_cni_args_parse_or_are_refused(text: str) -> None:
    try:
        pairs = args.parse_args(text)
    except CNIError as error:
        assert error.code == 4
        error.to_json()
    else:
        assert args.parse_args(args.format_args(pairs)) == pairs
    args.salvage_args(text)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=60) | values.map(json.dumps))
def test_a_plugins_output_is_a_result_or_a_cni_error(stdout: Any) -> None:
    try:
        convert.decode_result(stdout, "1.1.0")
    except CNIError as error:
        assert error.code in {1, 6}


async def test_a_short_run_of_the_long_fuzz(tmp_path: Path) -> None:
    """The whole of it: ``python -m tests.cni.fuzz_long``."""
    fuzz = await run(600, 20261129, tmp_path)
    assert fuzz.successes > 50 and fuzz.refusals > 50
