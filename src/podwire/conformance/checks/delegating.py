"""Section 4: the IPAM plugin is called as a delegate, by a recording stand-in."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from podwire.cni import versions
from podwire.conformance.case import Case
from podwire.conformance.catalogue import MAKES, check
from podwire.conformance.findings import Problem, Severity, Skip
from podwire.conformance.pods import Pod

_TYPE = "recording-ipam"
_HOME = Path("/run/conformance-ipam")
_SCRIPT = """#!/bin/sh
here={home}
number=$(ls "$here" | grep -c '[.]env$')
cat > "$here/$number.stdin"
env | grep '^CNI_' > "$here/$number.env"
case $CNI_COMMAND in
ADD)
    if [ -e "$here/refuse" ]; then
        echo '{{"cniVersion":"{version}","code":111,"msg":"recording-ipam refuses"}}'
        exit 1
    fi
    echo '{result}'
    ;;
VERSION) echo '{{"cniVersion":"{version}","supportedVersions":["{version}"]}}' ;;
esac
"""


class _Recorder:
    """A stand-in IPAM plugin that writes down how it was called."""

    def __init__(self, case: Case) -> None:
        if "ipam" not in case.config():
            raise Skip("its configuration names no IPAM plugin")
        case.need("0.3.0", "interfaces")
        _HOME.mkdir()
        result: dict[str, Any] = {
            "cniVersion": case.version,
            "ips": [{"version": "4", "address": "10.89.0.77/24", "gateway": "10.89.0.1"}],
            "routes": [{"dst": "0.0.0.0/0"}],
        }
        if versions.at_least(case.version, "1.0.0"):
            del result["ips"][0]["version"]
        script = _HOME / _TYPE
        text = msgspec.json.encode(result).decode()
        script.write_text(_SCRIPT.format(home=_HOME, version=case.version, result=text))
        script.chmod(0o755)
        self._case = case

    def refuse(self) -> None:
        """Refuse every ADD from now on."""
        (_HOME / "refuse").touch()

    def config(self, pod: Pod) -> dict[str, Any]:
        return self._case.config(pod, ipam={"type": _TYPE})

    def env(self) -> dict[str, str]:
        path = self._case.subject.variables("")["CNI_PATH"]
        return {"CNI_PATH": f"{_HOME}:{path}", "CNI_ARGS": "IgnoreUnknown=1;K8S_POD_NAME=x"}

    def calls(self) -> list[tuple[dict[str, str], Any]]:
        """The variables and the configuration of each call so far."""
        found = []
        for path in sorted(_HOME.glob("*.env"), key=lambda path: int(path.stem)):
            pairs = dict(line.split("=", 1) for line in path.read_text().splitlines() if "=" in line)
            try:
                stdin = msgspec.json.decode(path.with_suffix(".stdin").read_bytes())
            except msgspec.DecodeError:
                stdin = None
            found.append((pairs, stdin))
        return found


@check(
    "delegate",
    "4 Delegation",
    "the IPAM plugin is called once, with the same variables and the same configuration",
    kinds=MAKES,
)
def delegate(case: Case) -> Iterator[Problem]:
    """ADD, CHECK and DEL with an IPAM plugin that records."""
    recorder = _Recorder(case)
    pod = case.pod()
    config, env = recorder.config(pod), recorder.env()
    for command in case.commands:
        known = len(recorder.calls())
        call = case.add if command == "ADD" else partial(case.run, command)
        ran = call(pod, config=config, env=env)
        if ran.status != 0:
            yield Problem(f"{command} with a recording IPAM plugin", ran.describe())
            return
        calls = recorder.calls()[known:]
        did = f"{command} with a recording IPAM plugin"
        if [variables.get("CNI_COMMAND") for variables, _ in calls] != [command]:
            said = ", ".join(variables.get("CNI_COMMAND", "?") for variables, _ in calls)
            yield Problem(did, f"it was called for: {said or 'nothing'}")
            continue
        variables, stdin = calls[0]
        for name, value in (
            ("CNI_CONTAINERID", pod.container_id),
            ("CNI_IFNAME", pod.ifname),
            ("CNI_NETNS", pod.netns),
            ("CNI_PATH", env["CNI_PATH"]),
            ("CNI_ARGS", env["CNI_ARGS"]),
        ):
            if variables.get(name, "") != value:
                yield Problem(did, f"{name} was {variables.get(name)!r}, want {value!r}")
        sent = {key: value for key, value in config.items() if key != "prevResult"}
        got = {key: value for key, value in stdin.items() if key != "prevResult"} if stdin else stdin
        if got != sent:
            yield Problem(did, f"its stdin was not the whole configuration: {stdin}")
    case.remove_netns(pod)


@check(
    "delegate-fails",
    "4 Delegation",
    "an error with the delegate's words, and the delegate's DEL after its failed ADD",
    severity=Severity.WEAKNESS,
    kinds=MAKES,
)
def delegate_fails(case: Case) -> Iterator[Problem]:
    """An ADD whose IPAM plugin refuses."""
    recorder = _Recorder(case)
    recorder.refuse()
    pod = case.pod()
    ran = case.run(
        "ADD",
        pod,
        config=recorder.config(pod),
        env=recorder.env(),
        label="ADD with an IPAM plugin that refuses",
    )
    yield from case.refused(ran, mention="recording-ipam refuses")
    commands = [variables.get("CNI_COMMAND") for variables, _ in recorder.calls()]
    if commands[:1] != ["ADD"] or "DEL" not in commands:
        yield Problem(ran.label, f"the IPAM plugin was called for: {', '.join(map(str, commands))}")


@check("delegate-missing", "4 Delegation", "an error, and nothing left behind", kinds=MAKES)
def delegate_missing(case: Case) -> Iterator[Problem]:
    """An ADD whose IPAM plugin is not in CNI_PATH."""
    if "ipam" not in case.config():
        raise Skip("its configuration names no IPAM plugin")
    case.witness()
    pod = case.pod()
    before = case.state(pod)
    config = case.config(pod, ipam={"type": "nosuch-ipam"})
    ran = case.run("ADD", pod, config=config, label="ADD with an IPAM plugin that does not exist")
    yield from case.refused(ran)
    yield from case.settled(before, ran.label, pod, why="left behind")
