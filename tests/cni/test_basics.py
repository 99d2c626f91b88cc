"""Errors, versions, identifiers and CNI_ARGS (reference sections 1 and 2)."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from podwire.cni import args, errors, versions
from podwire.cni.errors import CNIError, InvalidConfig, InvalidEnvironment, UnknownContainer
from podwire.cni.types import Interface, IPConfig, Result


def test_an_error_prints_as_the_protocol_tells_it() -> None:
    printed = InvalidConfig("no <good>", "see 7").to_json("0.4.0").decode()
    assert printed == (
        '{\n    "cniVersion": "0.4.0",\n    "code": 7,\n    "msg": "no \\u003cgood\\u003e",\n'
        '    "details": "see 7"\n}'
    )
    assert "details" not in json.loads(CNIError("x").to_json())


@pytest.mark.parametrize("code", [1, 2, 3, 4, 5, 6, 7, 8, 11, 50, 51, 100, 999])
def test_an_error_read_by_its_code_is_of_the_codes_class(code: int) -> None:
    error = errors.from_code(code, "msg", "details")
    assert (error.code, error.msg, error.details) == (code, "msg", "details")
    assert type(error) is errors.BY_CODE.get(code, CNIError)


def test_errors_compare_and_survive_pickling() -> None:
    failure = errors.PluginFailure(InvalidConfig("a", "b"), "bridge", "DEL", 2, 3)
    assert str(failure) == 'plugin type="bridge" (2 of 3 in the list) failed (delete): a; b'
    again = pickle.loads(pickle.dumps(failure))
    assert (again, again.plugin, again.position) == (failure, "bridge", 2)
    both = pickle.loads(pickle.dumps(errors.joined([failure, UnknownContainer("c")])))
    assert [each.code for each in both.errors] == [7, 3]
    assert InvalidConfig("a") != InvalidConfig("b")


@pytest.mark.parametrize("name", ["a", "A9", "x_y.z-1", "0" * 64])
def test_a09_good_container_ids(name: str) -> None:
    args.check_container_id(name)
    args.check_network_name(name)


@pytest.mark.parametrize(
    "name", ["../x", "some-%%container-id", "-x", ".", "..", "a/b", "a:b", "foo ", "é", "a\n"]
)
def test_a08_a09_bad_names(name: str) -> None:
    with pytest.raises(InvalidEnvironment):
        args.check_container_id(name)
    with pytest.raises(InvalidConfig):
        args.check_network_name(name)


def test_an_empty_container_id_is_an_unknown_container() -> None:
    with pytest.raises(UnknownContainer):
        args.check_container_id("")


@pytest.mark.parametrize("name", ["", "a" * 16, ".", "..", "a/b", "a:b", "a b", "a\tb", "é" * 8, "a\udc80"])
def test_bad_interface_names(name: str) -> None:
    with pytest.raises(InvalidEnvironment):
        args.check_ifname(name)


@pytest.mark.parametrize("name", ["eth0", "a" * 15, "é" * 7, "-", "..."])
def test_good_interface_names(name: str) -> None:
    args.check_ifname(name)


@pytest.mark.parametrize("name", ["", "a/b", "..", 3, None])
def test_plugin_types_are_file_names(name: object) -> None:
    with pytest.raises(InvalidConfig):
        args.check_plugin_type(name)


def test_cni_args_pairs() -> None:
    assert args.parse_args("") == {}
    assert args.parse_args("IP=1.2.3.4;K=") == {"IP": "1.2.3.4", "K": ""}
    assert args.parse_args(args.format_args({"A": "1", "B": ""})) == {"A": "1", "B": ""}
    for bad in ("IP", "IP=1=2", "A=1;", "=x", ";"):
        with pytest.raises(InvalidEnvironment):
            args.parse_args(bad)
    assert args.salvage_args("A=1;bad;B=2=3;C=4") == {"A": "1", "C": "4"}
    for bad_pair in ({"A": "1;2"}, {"A=": "1"}, {"": "1"}):
        with pytest.raises(InvalidEnvironment):
            args.format_args(bad_pair)


def test_a12_unknown_args_pass_only_with_ignore_unknown() -> None:
    given = {"K8S_POD_NAMESPACE": "default", "IP": "10.0.0.1"}
    with pytest.raises(InvalidEnvironment, match="K8S_POD_NAMESPACE"):
        args.check_known(given, {"IP"})
    for yes in ("1", "true", "TRUE"):
        args.check_known({**given, "IgnoreUnknown": yes}, {"IP"})
    with pytest.raises(InvalidEnvironment, match="IgnoreUnknown"):
        args.check_known({"IgnoreUnknown": "maybe"}, {"IP"})


def test_versions_compare_as_numbers() -> None:
    assert versions.at_least("0.10.0", "0.4.0")
    assert versions.at_least("1.0", "1.0.0")
    assert not versions.at_least("", "0.2.0")
    for bad in ("x", "1.0.0.0", "1..0", "-1", "1.0.0 ", "9" * 12, "²"):
        with pytest.raises(InvalidConfig):
            versions.parse(bad)


@pytest.mark.parametrize(
    ("version", "offered", "chosen"),
    [
        ("", [], "0.1.0"),
        ("0.4.0", [], "0.4.0"),
        ("", ["0.4.0", "1.1.0", "1.0.0"], "1.1.0"),
        ("1.0.0", ["0.4.0"], "1.0.0"),
        ("0.4.0", ["1.1.0", "9.0.0"], "1.1.0"),
        ("9.0.0", ["9.1.0"], "9.0.0"),
    ],
)
def test_the_highest_version_that_we_know_is_taken(version: str, offered: list[str], chosen: str) -> None:
    assert versions.choose(version, offered) == chosen


def test_importing_is_light_and_reaches_no_other_room() -> None:
    code = (
        "import sys, podwire.cni.plugin; "
        "print([m for m in sys.modules if m[:8] == 'podwire.' and m[:11] != 'podwire.cni'], "
        "[m for m in ('asyncio', 'subprocess', 'json', 'concurrent.futures') if m in sys.modules])"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    assert printed.stdout.split("\n")[0] == "[] []"


def test_the_package_offers_its_names_lazily() -> None:
    import podwire.cni as package

    for name in package.__all__:
        assert getattr(package, name).__name__ == name
    assert sorted(package.__all__) == sorted(package._NAMES)
    with pytest.raises(AttributeError):
        _ = package.nothing


def test_the_runtime_loads_neither_asyncio_nor_subprocess_before_it_is_used() -> None:
    code = (
        "import sys, podwire.cni.runtime; "
        "print([m for m in ('asyncio', 'subprocess', 'json', 'pathlib', 'logging') if m in sys.modules])"
    )
    printed = subprocess.run(
        [sys.executable, "-S", "-c", code],
        check=True,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    assert printed.stdout == "[]\n"


MISTAKES = """
from podwire.cni import Attachment, Interface, IPConfig, Plugin, Request, Result, Runtime, parse_list
import msgspec

class Config(msgspec.Struct):
    mtu: int = 0

def add(request: Request[Config], kernel: None) -> Result:
    request.config.mut
    return Result((IPConfig("10.0.0.1/8"),))

plugin = Plugin("p", "p", Config, add)

async def use(runtime: Runtime) -> str:
    result = await runtime.add(parse_list("{}"), Attachment(5))
    return result.ips[0].family
"""


def test_types_reach_a_type_checker_through_the_package(tmp_path: Path) -> None:
    (tmp_path / "mistakes.py").write_text(MISTAKES)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir=/dev/null", "mistakes.py"]
    source = Path(__file__).parents[2] / "src"
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, env={**os.environ, "MYPYPATH": str(source)}
    )
    found = [line.partition("error: ")[2] for line in done.stdout.splitlines() if "error: " in line]
    assert [line.rpartition("[")[2] for line in found] == [
        "attr-defined]",
        "arg-type]",
        "arg-type]",
        "return-value]",
    ], done.stdout


def test_results_and_errors_print_compare_and_can_be_keys() -> None:
    result = Result((Interface("eth0"),), (IPConfig("10.1.0.5/16", interface=0),))
    assert repr(result).startswith("Result(interfaces=(Interface(name='eth0'")
    assert result == Result((Interface("eth0"),), (IPConfig("10.1.0.5/16", interface=0),))
    assert {result: 1}[pickle.loads(pickle.dumps(result))] == 1
    error = InvalidConfig("no", "see 7")
    assert repr(error) == "InvalidConfig(7, 'no', 'see 7')"
    assert {error: 1}[pickle.loads(pickle.dumps(error))] == 1
