"""The outcomes as text for machines: JSON and JUnit XML."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree

import msgspec

from podwire.conformance.findings import Outcome, Severity, Status


def as_json(outcomes: Sequence[Outcome]) -> bytes:
    """Return a JSON list with one object a check, in the keys of `Outcome`."""
    return msgspec.json.format(msgspec.json.encode(list(outcomes)), indent=2)


def as_junit(outcomes: Sequence[Outcome]) -> bytes:
    """Return JUnit XML: a suite a plugin, a case a check; only violations are failures.

    Weaknesses and notes stand in ``system-out``, so that a CI shows them and stays green.
    """
    suites = ElementTree.Element("testsuites", name="podwire cni conformance")
    for plugin in dict.fromkeys(one.plugin for one in outcomes):
        own = [one for one in outcomes if one.plugin == plugin]
        suite = ElementTree.SubElement(
            suites,
            "testsuite",
            name=plugin,
            tests=str(len(own)),
            failures=str(sum(one.violated for one in own)),
            skipped=str(sum(one.status is Status.SKIPPED for one in own)),
            time=f"{sum(one.seconds for one in own):.3f}",
        )
        for one in own:
            _case(suite, one)
    ElementTree.indent(suites)
    text: bytes = ElementTree.tostring(suites, encoding="utf-8", xml_declaration=True)
    return text


def _case(suite: ElementTree.Element, outcome: Outcome) -> None:
    case = ElementTree.SubElement(
        suite,
        "testcase",
        classname=f"cni.{outcome.plugin}",
        name=f"{outcome.check}: {outcome.title}",
        time=f"{outcome.seconds:.3f}",
    )
    if outcome.status is Status.SKIPPED:
        ElementTree.SubElement(case, "skipped", message=_valid(outcome.reason))
        return
    if outcome.status is Status.PASSED:
        return
    lines = [f"CNI specification, section {outcome.section}", f"expected: {outcome.expected}"]
    lines += [f"{one.severity or outcome.severity}: {one.did}: {one.observed}" for one in outcome.problems]
    text = _valid("\n".join(lines))
    if outcome.violated:
        first = _valid(f"{outcome.problems[0].did}: {outcome.problems[0].observed}")
        failure = ElementTree.SubElement(case, "failure", type=str(Severity.VIOLATION), message=first)
        failure.text = text
    else:
        ElementTree.SubElement(case, "system-out").text = text


def _valid(text: str) -> str:
    """Replace the characters that XML 1.0 cannot hold."""
    return "".join(
        one if one in "\t\n" or " " <= one < "\ufffe" or one > "\uffff" else "\ufffd" for one in text
    )
