"""Section 2, parameters: the variables, the configuration on stdin, and what an error looks like."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import msgspec

from podwire.cni import versions
from podwire.conformance.case import Case, in_version
from podwire.conformance.catalogue import AFTER, OWN, check
from podwire.conformance.findings import Problem, Severity, Skip
from podwire.conformance.pods import Pod

_CONTAINER = {"CNI_CONTAINERID": "conformance-1", "CNI_NETNS": "/run/netns/none", "CNI_IFNAME": "eth0"}

REQUIRED = (
    ("ADD", "CNI_CONTAINERID"),
    ("ADD", "CNI_NETNS"),
    ("ADD", "CNI_IFNAME"),
    ("CHECK", "CNI_CONTAINERID"),
    ("CHECK", "CNI_NETNS"),
    ("CHECK", "CNI_IFNAME"),
    ("DEL", "CNI_CONTAINERID"),
    ("DEL", "CNI_IFNAME"),
    ("GC", "CNI_PATH"),
)
"""Commands and the variables that each needs."""


@check(
    "variable-missing",
    "2 Parameters",
    "exit status not 0, and error code 4 on stdout that names the missing variable",
)
def variable_missing(case: Case) -> Iterator[Problem]:
    """Each command without each variable that it needs."""
    for command, variable in REQUIRED:
        if command == "GC" and not versions.at_least(case.version, versions.GC_SINCE):
            continue
        ran = case.run(command, env=_CONTAINER, without=[variable], label=f"{command} without {variable}")
        yield from case.refused(ran, 4, mention=variable)


@check(
    "command-missing",
    "2 Parameters",
    "an error of the protocol, or a word on stderr and nothing on stdout",
    severity=Severity.WEAKNESS,
)
def command_missing(case: Case) -> Iterator[Problem]:
    """A call without CNI_COMMAND, as by hand."""
    ran = case.run("", without=["CNI_COMMAND"], label="no CNI_COMMAND")
    if ran.hung or (ran.status != 0 and ran.error is None) or (ran.status == 0 and ran.stdout.strip()):
        yield Problem(ran.label, ran.describe())


@check("command-unknown", "2 Parameters", "error code 4")
def command_unknown(case: Case) -> Iterator[Problem]:
    """A command that does not exist."""
    yield from case.refused(case.run("RECONCILE", env=_CONTAINER), 4)


@check("container-id", "2 Parameters", "error code 4 (or 3, where it is empty)")
def container_id(case: Case) -> Iterator[Problem]:
    """Container IDs that could not be file names."""
    for bad in ("../x", "-x", "a/b", "a b", "é"):
        env = {**_CONTAINER, "CNI_CONTAINERID": bad}
        yield from case.refused(case.run("ADD", env=env, label=f"ADD with CNI_CONTAINERID={bad!r}"), 4)


@check("ifname", "2 Parameters", "error code 4")
def ifname(case: Case) -> Iterator[Problem]:
    """Interface names that Linux does not take."""
    for bad in ("sixteen-letters-", "..", "a/b", "a:b", "a b"):
        env = {**_CONTAINER, "CNI_IFNAME": bad}
        yield from case.refused(case.run("ADD", env=env, label=f"ADD with CNI_IFNAME={bad!r}"), 4)


@check("network-name", "1 Configuration", "error code 7")
def network_name(case: Case) -> Iterator[Problem]:
    """A network name that is missing, empty, or could not be a file name."""
    whole = case.config()
    unnamed = {key: value for key, value in whole.items() if key != "name"}
    for label, config in (
        ("no name", unnamed),
        ("an empty name", {**whole, "name": ""}),
        ('the name "../x"', {**whole, "name": "../x"}),
    ):
        ran = case.run("ADD", env=_CONTAINER, config=config, label=f"ADD with {label}")
        yield from case.refused(ran, 7)


@check("malformed-json", "2 Parameters", "error code 6 (for what is JSON but no object also 7)")
def malformed_json(case: Case) -> Iterator[Problem]:
    """A configuration that is no JSON object."""
    for text in (b"", b'{"cniVersion": "1.0.0", ', b"\xff\xfe"):
        ran = case.run("ADD", env=_CONTAINER, stdin=text, label=f"ADD with {text!r} on stdin")
        yield from case.refused(ran, 6)
    for text in (b"[]", b'"x"'):
        ran = case.run("ADD", env=_CONTAINER, stdin=text, label=f"ADD with {text!r} on stdin")
        yield from case.refused(ran, 6, 7)


@check("field-type", "2 Errors", "error code 6 or 7", severity=Severity.WEAKNESS)
def field_type(case: Case) -> Iterator[Problem]:
    """Reserved keys of the configuration with values of the wrong type."""
    wrong: dict[str, Any] = {"cniVersion": 1, "name": {}, "prevResult": "x"}
    if "ipam" in case.config():
        wrong["ipam"] = 7
    for key, value in wrong.items():
        ran = case.run(
            "ADD", env=_CONTAINER, config=case.config(**{key: value}), label=f"ADD with {key} = {value!r}"
        )
        yield from case.refused(ran, 6, 7)


@check(
    "error-version",
    "5 Error",
    "an error that has the configuration's cniVersion",
    severity=Severity.WEAKNESS,
)
def error_version(case: Case) -> Iterator[Problem]:
    """The cniVersion of an error."""
    config = case.config(name="../x")
    ran = case.run("ADD", env=_CONTAINER, config=config, label='ADD with the name "../x"')
    if ran.error is None:
        raise Skip("needs an error of the protocol")
    if ran.error.get("cniVersion") != case.version:
        yield Problem(ran.label, f"cniVersion is {ran.error.get('cniVersion')!r}, want {case.version!r}")


@check("own-netns", "2 Parameters", "error code 8, and nothing done", severity=Severity.WEAKNESS, kinds=OWN)
def own_netns(case: Case) -> Iterator[Problem]:
    """CNI_NETNS that is the plugin's own namespace."""
    pod = case.pod()
    before = case.state()
    env = {"CNI_NETNS": "/proc/self/ns/net"}
    ran = case.run("ADD", pod, env=env, label="ADD with CNI_NETNS=/proc/self/ns/net")
    yield from case.refused(ran, 8, severity=Severity.NOTE)
    yield from case.settled(before, ran.label, why="the host was changed")


@check("stdin-unknown-keys", "1 Configuration", "an ADD that succeeds")
def unknown_keys(case: Case) -> Iterator[Problem]:
    """Keys that runtimes add: args, capabilities, runtimeConfig and cni.dev/*."""
    pod = case.pod()
    config = case.config(pod)
    config["args"] = {"cni": {"labels": [{"key": "app", "value": "x"}]}, "example.com/x": {"y": 1}}
    config["cni.dev/future"] = True
    config.setdefault("runtimeConfig", {})
    ran = case.add(pod, config=config, label="ADD with args, runtimeConfig and cni.dev/future")
    yield from case.succeeded(ran, silent=False)
    case.run("DEL", pod, config=config)


@check("key-missing", "2 Errors", "success, or an error of the protocol; no crash")
def key_missing(case: Case) -> Iterator[Problem]:
    """The plugin's own keys: all left out, and each in turn left out or null."""
    keys = [one for one in case.config() if one not in {"cniVersion", "name", "type"}]
    if not keys:
        raise Skip("its configuration has no keys of its own")
    pod = case.pod()
    for left_out in [keys, *([key] for key in keys)]:
        label = f"without {', '.join(left_out)}"
        config = {key: value for key, value in case.config(pod).items() if key not in left_out}
        yield from _no_crash(case, pod, config, label)
        if len(left_out) == 1:
            yield from _no_crash(case, pod, {**config, left_out[0]: None}, f"with {left_out[0]} = null")


@check("prev-result-sparse", "2 Errors", "success, or an error of the protocol; no crash", kinds=AFTER)
def prev_result_sparse(case: Case) -> Iterator[Problem]:
    """A prevResult that lacks interfaces, addresses, sandboxes, or has an index out of range."""
    pod = case.pod()
    whole = in_version(pod.previous or {}, case.version)
    hosts = [one for one in whole["interfaces"] if "sandbox" not in one]
    loose = [{key: one[key] for key in one if key != "interface"} for one in whole["ips"]]
    for label, changes in (
        ("nothing", {"interfaces": [], "ips": [], "routes": []}),
        ("no interfaces", {"interfaces": [], "ips": loose}),
        ("no addresses", {"ips": []}),
        ("host interfaces only", {"interfaces": hosts, "ips": loose}),
        ("an index out of range", {"ips": [{**one, "interface": 9} for one in whole["ips"]]}),
    ):
        config = case.config(pod, prevResult={**whole, **changes})
        yield from _no_crash(case, pod, config, f"with {label} in prevResult")


def _no_crash(case: Case, pod: Pod, config: dict[str, Any], label: str) -> Iterator[Problem]:
    given = "prevResult" in config
    for command in case.commands:
        call = case.add if command == "ADD" else partial(case.run, command)
        ran = call(pod, config=config, prev_result=not given, label=f"{command} {label}")
        if ran.hung or (ran.status != 0 and ran.error is None):
            yield Problem(ran.label, ran.describe())
    pod.result = {}


@check("cni-args", "Conventions: CNI_ARGS", "an ADD that succeeds")
def cni_args(case: Case) -> Iterator[Problem]:
    """CNI_ARGS as kubelet's runtimes give them, with IgnoreUnknown=1."""
    pod = case.pod()
    env = {"CNI_ARGS": "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=x"}
    ran = case.add(pod, env=env, label=f"ADD with CNI_ARGS={env['CNI_ARGS']}")
    yield from case.succeeded(ran, silent=False)
    case.run("DEL", pod, env=env)


def probe_stdin(version: str) -> bytes:
    """What VERSION gets on stdin."""
    return msgspec.json.encode({"cniVersion": version})
