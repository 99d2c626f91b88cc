"""Chains as subjects of the tester: called in order, judged as one, and their faults found."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from podwire.conformance import chain, subject, tester
from podwire.conformance.findings import NotTestable
from podwire.conformance.invocation import Ran
from podwire.conformance.subject import Subject
from podwire.plugins import launchers
from tests.conformance import helpers

UNKNOWN: Mapping[str, Any] = {"cni.dev/future": True}
FAILS = "refuses unknown keys"


def programs(directory: Path, *names: str) -> list[str]:
    for name in names:
        (directory / name).write_text("#!/bin/sh\n")
        (directory / name).chmod(0o755)
    return [str(directory)]


def called(
    tmp_path: Path, command: str, first: Mapping[str, Any], failing: str = ""
) -> tuple[Ran, list[tuple[str, Mapping[str, Any]]]]:
    tested = subject.resolve("bridge,tuning,portmap", programs(tmp_path, "bridge", "tuning", "portmap"))
    calls: list[tuple[str, Mapping[str, Any]]] = []

    def call(member: Subject, config: Mapping[str, Any]) -> Ran:
        calls.append((member.type, config))
        said = msgspec.json.encode({"said": member.type})
        return Ran(member.type, command, member.type == failing, said, b"", 0.0)

    return chain.run(tested, command, first, call, number=2, later={"tuning": {"mtu": 1300}}), calls


FIRST = {"cniVersion": "1.0.0", "name": "n", "type": "bridge", "cni.dev/valid-attachments": [], "ipam": {}}


def test_an_add_goes_in_order_and_each_plugin_gets_the_result_before_it(tmp_path: Path) -> None:
    ran, calls = called(tmp_path, "ADD", FIRST)
    assert [name for name, _ in calls] == ["bridge", "tuning", "portmap"]
    assert calls[0][1] == FIRST
    assert calls[1][1] == {
        "cniVersion": "1.0.0",
        "name": "n",
        "type": "tuning",
        "cni.dev/valid-attachments": [],
        "mtu": 1300,
        "sysctl": {"net.ipv4.conf.all.log_martians": "1"},
        "prevResult": {"said": "bridge"},
    }
    assert calls[2][1]["prevResult"] == {"said": "tuning"}
    assert calls[2][1]["runtimeConfig"]["portMappings"][0]["hostPort"] == 18082
    assert ran.said == {"said": "portmap"}


@pytest.mark.parametrize(
    ("command", "failing", "order"),
    [
        ("DEL", "", "portmap tuning bridge"),
        ("DEL", "tuning", "portmap tuning"),
        ("CHECK", "tuning", "bridge tuning"),
        ("GC", "bridge", "bridge tuning portmap"),
        ("STATUS", "", "bridge tuning portmap"),
    ],
)
def test_each_command_has_its_order_and_its_end(
    tmp_path: Path, command: str, failing: str, order: str
) -> None:
    ran, calls = called(tmp_path, command, {**FIRST, "prevResult": {"whole": 1}}, failing)
    assert [name for name, _ in calls] == order.split()
    assert all(config["prevResult"] == {"whole": 1} for _, config in calls)
    assert ran.label == (failing or order.rsplit(maxsplit=1)[-1])


@pytest.mark.parametrize("plugins", ["tuning,portmap", "bridge,bridge", "host-local,tuning"])
def test_what_is_no_chain_is_refused(tmp_path: Path, plugins: str) -> None:
    path = programs(tmp_path, "bridge", "tuning", "portmap", "host-local")
    with pytest.raises(NotTestable, match=rf'^"{plugins}": .* is no known plugin of the kind '):
        subject.resolve(plugins, path)


@pytest.mark.kernel
def test_ours_have_no_finding_in_a_chain(tmp_path: Path) -> None:
    launchers.write(tmp_path)
    tested = tester.prepare(subject.resolve("bridge,portmap,tuning", [str(tmp_path)]))
    wanted = "add result-true check check-damage del del-no-prev-result failed-add-chain gc status"
    outcomes = tester.run(tested, wanted.split())
    assert helpers.told(outcomes) == ""
    assert helpers.passed(outcomes) == set(wanted.split())
    assert {one.plugin for one in outcomes} == {"bridge,portmap,tuning"}


@pytest.mark.kernel
def test_what_looks_at_one_plugins_calls_does_not_apply(tmp_path: Path) -> None:
    launchers.write(tmp_path)
    tested = subject.resolve("bridge,tuning", [str(tmp_path)])
    outcomes = tester.run(tested, ["variable-missing", "version-shapes", "delegate"])
    assert {one.reason for one in outcomes} == {"looks at one plugin's calls: for plugins alone"}


def chained(directory: Path, first: str, second: str) -> Subject:
    """The exemplar twice, each with a fault; the second one refuses a key if that is its fault."""
    later = directory / "later"
    later.mkdir()
    after = helpers.exemplar(later, "chained", second)
    profile = msgspec.structs.replace(after.profile, broken={"a key that it refuses": UNKNOWN})
    after = msgspec.structs.replace(after, profile=profile)
    return msgspec.structs.replace(helpers.exemplar(directory, "main", first), then=(after,))


@pytest.mark.kernel
@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("", FAILS, ""),
        ("DEL needs prevResult", FAILS, "failed-add-chain del-no-prev-result"),
        ("", "", "failed-add-chain"),
        ("", "prevResult not passed on", "failed-add-chain result-true"),
        ("", "DEL needs prevResult", "failed-add-chain del-no-prev-result"),
    ],
)
def test_a_fault_of_either_plugin_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str, second: str, expected: str
) -> None:
    monkeypatch.setattr("podwire.conformance.case.SETTLE_SECONDS", 0.2)
    outcomes = helpers.run(
        chained(tmp_path, first, second), "result-true", "del", "del-no-prev-result", "failed-add-chain"
    )
    assert helpers.failed(outcomes) == set(expected.split()), helpers.told(outcomes)
