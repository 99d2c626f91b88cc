"""The run: finding the plugin, what it is, and the host that nothing of it reaches."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from podwire.conformance import isolation, snapshot, subject, tester
from podwire.conformance.findings import NotTestable, Status
from podwire.conformance.profiles import PROFILES, Kind
from podwire.plugins import launchers
from tests.conformance import helpers

ROOT = Path(__file__).parents[2]


def conf(directory: Path, role: str, **more: object) -> Path:
    path = directory / f"{role}.conflist"
    entries = [{"type": "other"}, {**helpers.configuration(role), **more}]
    path.write_text(json.dumps({"cniVersion": "1.1.0", "name": "mine", "plugins": entries}))
    return path


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_a_plugin_is_found_by_path_or_by_type(tmp_path: Path) -> None:
    place = script(tmp_path / "bridge", "exit 0")
    by_path = subject.resolve(str(place), ["/nosuch"])
    by_type = subject.resolve("bridge", ["/nosuch", str(tmp_path)])
    assert by_path.executable == by_type.executable == str(place)
    assert by_path.path == (str(tmp_path), "/nosuch")
    assert by_type.config()["name"] == "conformance"
    assert by_type.config()["ipam"]["type"] == "host-local"


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    unknown = script(tmp_path / "unknown", "exit 0")
    (tmp_path / "plain").write_text("")
    for plugin, reason in (
        ("nosuch", f'no plugin "nosuch" in {tmp_path}'),
        (f"{tmp_path}/nosuch", f"{tmp_path}/nosuch: no such file"),
        (f"{tmp_path}/plain", f"{tmp_path}/plain: is not executable"),
        (str(unknown), '"unknown" is none of the types with a default configuration'),
    ):
        with pytest.raises(NotTestable) as caught:
            subject.resolve(plugin, [str(tmp_path)])
        assert str(caught.value).startswith(reason)


def test_a_configuration_has_the_plugins_entry_or_is_refused(tmp_path: Path) -> None:
    place = helpers.write_exemplar(tmp_path)
    found = subject.resolve(str(place), [], conf(tmp_path, "main", mtu=1400))
    assert found.network == "mine"
    assert found.config(version="0.4.0") == {
        "cniVersion": "0.4.0",
        "name": "mine",
        **helpers.configuration("main"),
        "mtu": 1400,
    }
    with pytest.raises(NotTestable, match='no plugin of type "bridge" in network mine'):
        subject.resolve(str(script(tmp_path / "bridge", "")), [], conf(tmp_path, "main"))


def test_every_type_has_its_own_configuration_for_each_attachment() -> None:
    for name in ("portmap", "static", "host-device", "vlan"):
        assert PROFILES[name].options(1) != PROFILES[name].options(2)


@pytest.mark.kernel
@pytest.mark.parametrize("role", ["main", "ipam", "chained"])
def test_what_an_unknown_plugin_is_is_found_out(tmp_path: Path, role: str) -> None:
    given = subject.resolve(str(helpers.write_exemplar(tmp_path)), [helpers.GO], conf(tmp_path, role))
    found = tester.prepare(given)
    assert found.kind is Kind(role)
    assert found.version == "1.1.0"
    assert found.single == ""


@pytest.mark.kernel
def test_a_configuration_for_one_attachment_only(tmp_path: Path) -> None:
    one = {"type": "host-local", "ranges": [[{"subnet": "10.89.0.0/30"}]]}
    path = conf(tmp_path, "main", ipam=one)
    found = tester.prepare(subject.resolve(str(helpers.write_exemplar(tmp_path)), [helpers.GO], path))
    assert "no IP addresses available" in found.single
    (outcome,) = tester.run(found, ["side-by-side"])
    assert outcome.status is Status.SKIPPED
    assert outcome.reason.startswith("one attachment at a time: ")


@pytest.mark.kernel
def test_a_configuration_that_does_not_work_is_told_once(tmp_path: Path) -> None:
    path = conf(tmp_path, "main", ipam={"type": "nosuch"})
    given = subject.resolve(str(helpers.write_exemplar(tmp_path)), [helpers.GO], path)
    with pytest.raises(
        NotTestable, match=r"no ADD succeeds with this configuration: .* no nosuch in CNI_PATH"
    ):
        tester.prepare(given)


@pytest.mark.kernel
@pytest.mark.parametrize("kind", ["vlan", "vrf"])
def test_a_kernel_without_the_kind_of_link_is_told(kind: str) -> None:
    with pytest.raises(NotTestable, match=f"this kernel has no links of the kind {kind}"):
        tester.prepare(subject.resolve(kind, [helpers.GO]))


@pytest.mark.kernel
def test_nothing_of_a_run_is_left_on_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("podwire.conformance.case.SETTLE_SECONDS", 0.2)

    def state() -> snapshot.Snapshot:
        return snapshot.network() + snapshot.files([Path("/run"), Path("/var/lib"), tmp_path])

    leaking = helpers.exemplar(tmp_path, "main", "link left after a failed ADD")
    before, mounts = state(), Path("/proc/self/mountinfo").read_text()
    outcomes = tester.run(leaking, ["add", "failed-add-late", "check-damage"])
    assert helpers.failed(outcomes) == {"failed-add-late"}
    assert snapshot.difference(before, state()) == ()
    assert Path("/proc/self/mountinfo").read_text() == mounts


@pytest.mark.kernel
def test_a_plugin_below_a_state_directory_stays_visible() -> None:
    home = Path("/var/lib/somewhere/bin")
    home.mkdir(parents=True)
    (home / "hidden").touch()

    def look() -> tuple[bool, list[str]]:
        return (home / "hidden").exists(), [one.name for one in Path("/run").iterdir()]

    assert isolation.on_new_host(look, [str(home)]) == (True, [])
    assert isolation.on_new_host(look) == (False, [])


@pytest.mark.kernel
def test_after_some_hangs_the_rest_is_skipped(tmp_path: Path) -> None:
    place = script(tmp_path / "loopback", 'case "$CNI_COMMAND" in VERSION) echo "{}" ;; *) sleep 60 ;; esac')
    found = tester.prepare(subject.resolve(str(place), [], timeout=0.3))
    outcomes = tester.run(found, ["container-id", "add", "del", "deadline"], jobs=1)
    status = {one.check: one for one in outcomes}
    assert "did not end within" in status["container-id"].problems[0].observed
    assert status["add"].reason == "5 calls hung before"
    assert "and was killed" in status["deadline"].problems[0].observed


GARBAGE = [
    '[{"a": 1}]',
    '{"cniVersion": "1.1.0", "interfaces": 7, "ips": "x", "routes": {}, "dns": null}',
    '{"cniVersion": "1.1.0", "interfaces": [1, {"name": 7}], "ips": [null, {"address": 5}], "routes": ["x"]}',
    '{"cniVersion": "0.9.0", "ips": [{}], "interfaces": [{}], "code": "x", "msg": []}',
    "\xff\xfe not JSON " + "[" * 2000,
]


@pytest.mark.kernel
@pytest.mark.parametrize(("said", "status"), [*((one, 0) for one in GARBAGE), (GARBAGE[3], 1)])
def test_whatever_a_plugin_says_the_run_goes_on(tmp_path: Path, said: str, status: int) -> None:
    (tmp_path / "answer").write_text(said, encoding="latin-1")
    for kind in ("bridge", "sbr"):
        place = script(tmp_path / kind, f"/bin/busybox cat {tmp_path}/answer; exit {status}")
        found = tester.prepare(subject.resolve(str(place), []))
        outcomes = tester.run(found)
        assert len(outcomes) == len(tester.check_ids())
        assert any(one.violated for one in outcomes)


@pytest.mark.kernel
@pytest.mark.parametrize(
    ("plugin", "expected"),
    [
        (
            "bridge",
            "failed-add-exhausted failed-add-late delegate-fails del-netns-empty gc-there error-version",
        ),
        ("host-device", "del-netns-gone del-unknown gc-there"),
        ("firewall", "del-late gc-there"),
        ("portmap", "del-one-of-two check gc-there"),
        ("bandwidth", "del check-damage gc-there"),
    ],
)
def test_the_known_faults_of_the_go_plugins_are_found(
    monkeypatch: pytest.MonkeyPatch, plugin: str, expected: str
) -> None:
    monkeypatch.setattr("podwire.conformance.case.SETTLE_SECONDS", 0.3)
    found = tester.prepare(subject.resolve(plugin, [helpers.GO]))
    wanted = {*expected.split(), "version", "add"}
    assert helpers.failed(tester.run(found, sorted(wanted))) == set(expected.split())


@pytest.mark.kernel
@pytest.mark.parametrize(
    ("plugin", "checks"),
    [
        ("bridge", "failed-add-late delegate-fails del-netns-empty gc"),
        ("host-local", "status-exhausted gc"),
        ("portmap", "del-one-of-two"),
        ("loopback", "result-true"),
    ],
)
def test_ours_have_none_of_them(tmp_path: Path, plugin: str, checks: str) -> None:
    launchers.write(tmp_path)
    found = tester.prepare(subject.resolve(plugin, [str(tmp_path)]))
    outcomes = tester.run(found, [*checks.split(), "network-name", "stdout"])
    assert helpers.told(outcomes) == ""
    assert len(helpers.passed(outcomes)) == len(checks.split()) + 2


def podwire(*arguments: str, path: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "CNI_PATH": path, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "podwire", "cni", "conformance", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environ)


@pytest.mark.kernel
def test_the_command_prints_a_table_and_its_status_tells_a_finding(tmp_path: Path) -> None:
    only = ("--check", "add", "--check", "del-netns-is-none", "--check", "error-version")
    violated = podwire("bridge", *only, "--junit", str(tmp_path / "out.xml"), path=helpers.GO)
    assert violated.returncode == 1
    assert "violation   del-netns-is-none   2 DEL" in violated.stdout
    assert "\n1 violation, 1 weakness, 0 notes; 1 passed, 0 do not apply;" in violated.stdout
    assert violated.stderr == ""
    assert 'failures="1"' in (tmp_path / "out.xml").read_text()
    weak = podwire("bridge", "-o", "json", "--check", "error-version", path=helpers.GO)
    assert weak.returncode == 1
    assert (
        podwire("bridge", "--check", "error-version", "--fail-on", "violation", path=helpers.GO).returncode
        == 0
    )
    assert [(one["check"], one["status"]) for one in json.loads(weak.stdout)] == [("error-version", "failed")]


@pytest.mark.kernel
def test_the_command_goes_on_past_a_plugin_that_it_cannot_test() -> None:
    done = podwire("nosuch", "loopback", "--check", "add", path=helpers.GO)
    assert done.returncode == 1
    assert done.stderr == f'nosuch: not tested: no plugin "nosuch" in {helpers.GO}\n'
    assert "1 passed" in done.stdout


def test_a_command_line_that_makes_no_sense() -> None:
    done = podwire("bridge", "--check", "nosuch", path=helpers.GO)
    assert done.returncode == 2
    assert done.stderr.startswith("error: --check 'nosuch': no such check\nThere are: variable-missing, ")
    done = podwire("bridge", "--daemon", "true", path=helpers.GO)
    assert done.returncode == 2
    assert done.stderr.startswith("error: --daemon 'true': give --ready too")
    done = podwire("bridge", "--fail-on", "worst", path=helpers.GO)
    assert done.returncode == 2
    assert done.stderr.startswith(
        "error: --fail-on 'worst' is no weight\nIt can be: violation, weakness, note."
    )


def test_without_root_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(NotTestable, match="needs root"):
        tester.prepare(subject.Subject("bridge", "/bin/true", (), PROFILES["bridge"]))
