"""Each check finds the fault that it is there for, in a plugin that has this fault and no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from podwire.conformance import case
from podwire.conformance.catalogue import checks
from podwire.conformance.overall import OVERALL
from tests.conformance import helpers

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(
        not Path(helpers.GO, "host-local").exists(), reason="needs containernetworking-plugins"
    ),
]

FAULTS = [
    ("main", "does not ask for CNI_CONTAINERID", "variable-missing failures"),
    ("main", "does not ask for CNI_NETNS", "variable-missing"),
    ("main", "another code for a missing variable", "variable-missing"),
    ("main", "greets on stdout", "command-missing"),
    ("main", "another code for an unknown command", "command-unknown"),
    ("main", "takes any container ID", "container-id"),
    ("main", "takes any ifname", "ifname"),
    ("main", "takes any network name", "network-name"),
    ("main", "another code for malformed JSON", "malformed-json"),
    ("main", "traceback for malformed JSON", "malformed-json failures"),
    ("main", "takes any type", "field-type failures"),
    ("main", "error without cniVersion", "error-version"),
    ("main", "error without msg", "network-name"),
    ("main", "error on stderr", "network-name failures"),
    ("main", "error with status 0", "network-name stdout"),
    ("main", "works in its own netns", "own-netns"),
    ("main", "refuses unknown keys", "stdin-unknown-keys"),
    ("main", "crash on a missing key", "key-missing failures"),
    ("main", "refuses CNI_ARGS", "cni-args"),
    ("chained", "crash on a sparse prevResult", "prev-result-sparse failures"),
    ("main", "no supportedVersions", "version"),
    ("main", "VERSION needs stdin", "version"),
    ("main", "another version in the answer to VERSION", "version-echo"),
    ("main", "takes any version", "version-unsupported"),
    ("main", "one shape for all versions", "version-shapes version-missing"),
    ("ipam", "result of another version", "add version-shapes version-missing"),
    ("main", "any command in any version", "command-too-new"),
    ("main", "interface index out of range", "add"),
    ("main", "another MAC in the result", "result-true dual-stack"),
    ("main", "no sandbox in the result", "result-true dual-stack"),
    ("main", "another address in the result", "result-true dual-stack"),
    ("main", "a route is not made", "result-true dual-stack"),
    ("chained", "prevResult not passed on", "prev-result-passed"),
    ("main", "takes over an interface that is there", "ifname-taken add-twice"),
    ("main", "leaves a file for a taken ifname", "ifname-taken"),
    ("ipam", "another address for the same container", "address-twice"),
    ("main", "needs no netns", "add-no-netns"),
    ("ipam", "the same address for all", "side-by-side"),
    ("main", "CHECK always succeeds", "check-no-prev-result check-damage"),
    ("main", "CHECK looks at no interface", "check-damage"),
    ("main", "CHECK fails when another container comes", "check"),
    ("main", "hangs", "check deadline"),
    ("main", "OK on stdout", "check stdout"),
    ("main", "two answers to ADD", "add stdout"),
    ("main", "noise on stderr", "stderr"),
    ("ipam", "DEL frees nothing", "del del-netns-gone del-netns-empty del-no-prev-result"),
    ("ipam", "DEL fails on what is gone", "del del-unknown"),
    ("main", "DEL needs the netns", "del-netns-gone del-netns-empty del-netns-is-none"),
    ("main", "DEL without netns does nothing", "del-netns-gone del-netns-empty"),
    ("main", "DEL needs prevResult", "del-no-prev-result"),
    ("ipam", "DEL frees by address", "del-late"),
    ("chained", "state shared by a container's interfaces", "del-one-of-two"),
    ("main", "host end named by the container alone", "del-one-of-two"),
    ("main", "link before the address", "failed-add-exhausted delegate-missing"),
    ("main", "link left after a failed ADD", "failed-add-late"),
    ("main", "address left after a failed ADD", "failed-add-late"),
    ("chained", "does without prevResult", "failed-add-no-prev-result"),
    ("main", "delegate gets another environment", "delegate"),
    ("main", "delegate gets only its part", "delegate"),
    ("main", "no DEL of a delegate that failed", "delegate-fails"),
    ("ipam", "speaks no 1.1.0", "gc-there"),
    ("ipam", "GC does nothing", "gc"),
    ("ipam", "GC deletes all", "gc gc-keeps"),
    ("ipam", "GC without a list deletes all", "gc-no-list"),
    ("chained", "GC deletes all", "gc gc-keeps"),
    ("ipam", "STATUS knows no exhausted pool", "status-exhausted"),
]


@pytest.mark.parametrize(
    ("role", "fault", "expected"), FAULTS, ids=[f"{role}: {fault}" for role, fault, _ in FAULTS]
)
def test_a_fault_is_found_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, role: str, fault: str, expected: str
) -> None:
    monkeypatch.setattr(case, "SETTLE_SECONDS", 0.2)
    subject = helpers.exemplar(tmp_path, role, fault, timeout=1.5 if fault == "hangs" else 10)
    if fault == "speaks no 1.1.0":
        subject = helpers.speaking(subject, subject.versions[:-1])
    wanted = set(expected.split())
    # Checks of all calls together need calls; an ADD is one that works but for the fault.
    overall = {one.row.id for one in OVERALL}
    beside = {"add"} if wanted <= overall else {"version"}
    outcomes = helpers.run(subject, *wanted | beside)
    assert helpers.failed(outcomes) == wanted, helpers.told(outcomes)
    assert {one.check for one in outcomes} == wanted | beside


def test_every_check_has_a_fault_that_it_finds() -> None:
    found = {check for _, _, expected in FAULTS for check in expected.split()}
    elsewhere = {"failed-add-config", "failed-add-chain", "status", "status-master"}
    assert {one.id for one in checks()} | {one.row.id for one in OVERALL} == found | elsewhere


def test_a_plugin_without_fault_passes_every_check(tmp_path: Path) -> None:
    outcomes = helpers.run(helpers.exemplar(tmp_path, "main"))
    assert helpers.told(outcomes) == ""
    assert len(helpers.passed(outcomes)) > 50
