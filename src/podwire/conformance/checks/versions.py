"""Versions: what the plugin says that it speaks, and that it answers so (sections 2 VERSION and 5)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from podwire.cni import versions
from podwire.conformance import schema
from podwire.conformance.case import Case
from podwire.conformance.catalogue import check
from podwire.conformance.checks.parameters import probe_stdin
from podwire.conformance.findings import Problem, Severity, Skip
from podwire.conformance.profiles import Kind


def _report_faults(said: Any) -> Iterator[str]:
    if not isinstance(said, dict):
        yield "stdout holds no JSON object"
        return
    if not isinstance(said.get("cniVersion"), str):
        yield "cniVersion is missing"
    listed = said.get("supportedVersions")
    if not isinstance(listed, list) or not listed or not all(isinstance(one, str) for one in listed):
        yield "supportedVersions is no list of versions"


@check("version", "2 VERSION", "exit status 0 and {cniVersion, supportedVersions} on stdout")
def version(case: Case) -> Iterator[Problem]:
    """VERSION with a configuration's version on stdin, and without any."""
    for label, stdin, severity in (
        ("VERSION", probe_stdin(case.version), None),
        ("VERSION with nothing on stdin", b"", Severity.WEAKNESS),
    ):
        ran = case.run("VERSION", stdin=stdin, label=label)
        if ran.status != 0:
            yield Problem(ran.label, ran.describe(), severity)
            continue
        for fault in _report_faults(ran.said):
            yield Problem(ran.label, f"{fault}: {ran.describe()}", severity)


@check("version-echo", "5 Version", "cniVersion is the one on stdin", severity=Severity.NOTE)
def version_echo(case: Case) -> Iterator[Problem]:
    """The cniVersion of the answer to VERSION."""
    ran = case.run("VERSION", stdin=probe_stdin("0.4.0"), label="VERSION with cniVersion 0.4.0 on stdin")
    said = ran.said
    if not isinstance(said, dict):
        raise Skip("needs an answer to VERSION")
    if said.get("cniVersion") != "0.4.0":
        yield Problem(ran.label, f"cniVersion is {said.get('cniVersion')!r}")


@check("version-unsupported", "2 Errors", "error code 1")
def unsupported(case: Case) -> Iterator[Problem]:
    """Configurations of versions that the plugin does not speak."""
    pod = case.pod()
    unknown = [one for one in versions.SUPPORTED if one not in case.subject.versions]
    for each in ("9.9.9", *unknown[-1:]):
        ran = case.run("ADD", pod, config=case.config(pod, each), label=f"ADD with cniVersion {each}")
        yield from case.refused(ran, 1)


@check(
    "version-shapes", "5 Success", "a result of the configuration's version, in the shape that it has there"
)
def shapes(case: Case) -> Iterator[Problem]:
    """ADD and DEL in every version that the plugin speaks."""
    done = False
    for each in case.subject.versions:
        if case.subject.kind is Kind.CHAINED and not versions.at_least(each, versions.PREV_RESULT_SINCE):
            continue
        done = True
        pod = case.pod()
        config = case.config(pod, each)
        ran = case.add(pod, config=config, label=f"ADD with cniVersion {each}")
        if ran.status != 0:
            if case.subject.kind is Kind.LOOPBACK and not versions.at_least(each, "0.3.0"):
                continue
            yield Problem(ran.label, ran.describe())
            continue
        for fault in schema.faults(ran.said, each):
            yield Problem(ran.label, fault)
        yield from case.succeeded(case.run("DEL", pod, config=config, label=f"DEL with cniVersion {each}"))
        case.remove_netns(pod)
    if not done:
        raise Skip("it speaks no version that has prevResult")


@check("version-missing", "1 Configuration", "a result in the shape of 0.1.0", severity=Severity.WEAKNESS)
def missing(case: Case) -> Iterator[Problem]:
    """A configuration without cniVersion, which means 0.1.0."""
    if "0.1.0" not in case.subject.versions:
        raise Skip("the plugin does not speak 0.1.0")
    if case.subject.kind in {Kind.CHAINED, Kind.LOOPBACK}:
        raise Skip("0.1.0 has no prevResult and no result without addresses")
    pod = case.pod()
    config = {key: value for key, value in case.config(pod).items() if key != "cniVersion"}
    ran = case.add(pod, config=config, label="ADD without cniVersion")
    if ran.status != 0:
        yield Problem(ran.label, ran.describe())
        return
    for fault in schema.faults(ran.said, "0.1.0"):
        yield Problem(ran.label, fault)
    case.run("DEL", pod, config=config)


@check(
    "command-too-new", "2 CNI operations", "error code 1 (or 4, unknown command)", severity=Severity.WEAKNESS
)
def too_new(case: Case) -> Iterator[Problem]:
    """CHECK, GC and STATUS with a configuration of a version that does not have them."""
    pod = case.pod()
    for command, since, old in (
        ("CHECK", "0.4.0", "0.3.1"),
        ("GC", "1.1.0", "1.0.0"),
        ("STATUS", "1.1.0", "1.0.0"),
    ):
        if old not in case.subject.versions or not versions.at_least(case.version, since):
            continue
        ran = case.run(command, pod, config=case.config(pod, old), label=f"{command} with cniVersion {old}")
        yield from case.refused(ran, 1, 4)
