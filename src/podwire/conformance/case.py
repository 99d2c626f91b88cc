"""What a check works with: a plugin, an empty host, pods on it; and the judgements that many checks share."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import msgspec

from podwire.cni import versions
from podwire.conformance import chain, invocation, pods, profiles, schema, services, snapshot
from podwire.conformance.findings import Problem, Severity, Skip
from podwire.conformance.invocation import Ran
from podwire.conformance.isolation import STATE_DIRECTORIES
from podwire.conformance.pods import Pod
from podwire.conformance.profiles import Kind
from podwire.conformance.snapshot import Snapshot
from podwire.conformance.subject import Subject
from podwire.kernel import netns

NAMESPACES = Path("/run/netns")
SETTLE_SECONDS = 3.0
"""How long leftovers may take to go: the kernel takes a dead namespace's links away a little later."""
_SETTLE_PAUSE = 0.02
_SHOWN_LINES = 8

_PER_CONTAINER = {"ADD", "CHECK", "DEL"}


class Case:
    """One check's host: use it in the thread that `podwire.conformance.isolation` made.

    A context manager, which ends what runs there beside the plugin.
    """

    def __init__(self, subject: Subject, record: Callable[[Ran], None] = lambda _ran: None) -> None:
        self.subject = subject
        self._record = record
        self._numbers = itertools.count(1)
        pods.make_uplink()
        self._services = services.daemon(subject.daemon, subject.timeout)
        try:
            self._services += subject.profile.serve(subject.executable, subject.daemon is not None)
        except BaseException:
            services.stop(self._services)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        services.stop(self._services)

    @property
    def version(self) -> str:
        """The version that configurations have unless a check says otherwise."""
        return self.subject.version

    def need(self, version: str, what: str) -> None:
        """Skip the check where the plugin speaks no version that has ``what``."""
        if not versions.at_least(self.version, version):
            raise Skip(f"the plugin speaks {self.version} at most, {what} came with {version}")

    def need_second(self) -> None:
        """Skip the check where only one attachment can be there at a time."""
        if self.subject.single:
            raise Skip(f"one attachment at a time: {self.subject.single}")

    def pod(self, number: int = 0, *, address: str = "") -> Pod:
        """Make a pod with what the chain makes before the plugin; ``address`` is for chained ones."""
        number = number or next(self._numbers)
        pod = Pod(
            number, f"conformance-{number}", str(NAMESPACES / f"pod{number}"), self.subject.profile.ifname
        )
        netns.create(pod.netns)
        self.subject.profile.prepare(pod)
        if self.subject.kind is Kind.CHAINED:
            pod.previous = pods.wire(pod, address)
        return pod

    def second_interface(self, pod: Pod) -> Pod:
        """Return the same container with another interface, not attached yet."""
        second = Pod(next(self._numbers), pod.container_id, pod.netns, "net1")
        self.subject.profile.prepare(second)
        if self.subject.kind is Kind.CHAINED:
            second.previous = pods.wire(second)
        return second

    def remove_netns(self, pod: Pod) -> None:
        """Take the pod's namespace away, as when its last process has died."""
        pods.unwire(pod)
        netns.remove(pod.netns)

    def config(self, pod: Pod | None = None, version: str = "", **changes: Any) -> dict[str, Any]:
        """The configuration for a pod, without prevResult; ``changes`` stand in for keys of it."""
        return {**self.subject.config(pod.number if pod else 1, version), **changes}

    @property
    def pool_can_be_narrowed(self) -> bool:
        """Whether addresses come from host-local, whose ranges a check may replace."""
        ipam = self.config().get("ipam")
        return isinstance(ipam, dict) and ipam.get("type") == "host-local"

    def one_address(self, pod: Pod | None = None) -> dict[str, Any]:
        """The configuration with one address to give; skips the check where the IPAM is another."""
        if not self.pool_can_be_narrowed:
            raise Skip("needs host-local as the IPAM plugin, to have one address only")
        only = {
            "subnet": profiles.SUBNET,
            "rangeStart": profiles.ONE_ADDRESS,
            "rangeEnd": profiles.ONE_ADDRESS,
        }
        ipam = {**profiles.host_local(), "ranges": [[only]]}
        return self.config(pod, ipam=ipam)

    def run(
        self,
        command: str,
        pod: Pod | None = None,
        *,
        config: Mapping[str, Any] | None = None,
        stdin: bytes | None = None,
        env: Mapping[str, str] | None = None,
        without: Sequence[str] = (),
        prev_result: bool = True,
        label: str = "",
        later: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> Ran:
        """Call the plugin as a runtime does, but for what the arguments change, and return how it ended.

        Of a chain, all plugins are called; ``config`` is the first one's, and ``later`` are changes of the
        others', by type. What comes back is the last call, or the first that failed.
        """
        variables = self.subject.variables(command)
        if command in _PER_CONTAINER and pod is not None:
            variables |= {
                "CNI_CONTAINERID": pod.container_id,
                "CNI_NETNS": pod.netns,
                "CNI_IFNAME": pod.ifname,
                "CNI_ARGS": "",
            }
        variables |= env or {}
        for name in without:
            variables.pop(name, None)
        label = label or command
        if stdin is not None:
            return self._call(self.subject, variables, stdin, label)
        sent = dict(self.config(pod) if config is None else config)
        if prev_result and command in _PER_CONTAINER and pod is not None:
            sent |= self._prev_result(command, pod, str(sent.get("cniVersion", "")))
        if not self.subject.then:
            return self._call(self.subject, variables, msgspec.json.encode(sent), label)
        number = pod.number if pod else 1
        return chain.run(
            self.subject,
            command,
            sent,
            lambda member, own: self._call(
                member, variables, msgspec.json.encode(own), f"{label} ({member.type})"
            ),
            number=number,
            later=later or {},
        )

    def _call(self, member: Subject, variables: Mapping[str, str], stdin: bytes, label: str) -> Ran:
        ran = invocation.execute(
            member.executable, variables, stdin, label=label, timeout=self.subject.timeout
        )
        self._record(ran)
        return ran

    def _prev_result(self, command: str, pod: Pod, version: str) -> dict[str, Any]:
        result = pod.previous
        if command != "ADD" and versions.at_least(version, versions.PREV_RESULT_AT_DEL_SINCE):
            result = pod.result or pod.previous
        if result is None or not versions.at_least(version, versions.PREV_RESULT_SINCE):
            return {}
        return {"prevResult": in_version(result, version)}

    def add(self, pod: Pod, **arguments: Any) -> Ran:
        """Call ADD and keep its result in the pod."""
        ran = self.run("ADD", pod, **arguments)
        if ran.status == 0:
            pod.result = ran.said if isinstance(ran.said, dict) else {}
        return ran

    @property
    def commands(self) -> tuple[str, ...]:
        """The commands for one container that the version has."""
        checks = versions.at_least(self.version, versions.CHECK_SINCE)
        return ("ADD", "CHECK", "DEL") if checks else ("ADD", "DEL")

    def added(self, pod: Pod | None = None, **arguments: Any) -> Pod:
        """Return a pod after an ADD; skips the check if that fails (a check of its own tells so)."""
        pod = pod or self.pod()
        ran = self.add(pod, **arguments)
        if ran.status != 0:
            raise Skip(f"needs an ADD that succeeds: {ran.describe()}")
        return pod

    def witness(self) -> None:
        """Attach a pod that stays: what all attachments share is there, and must survive.

        Where only one attachment is possible it goes at once, and the shared state may stay.
        """
        pod = self.added()
        if self.subject.single:
            self.run("DEL", pod)
            self.remove_netns(pod)

    def host(self) -> Snapshot:
        """Take the state of the host: network, rules, files."""
        kept = [Path(one) for one in self.subject.path]
        return snapshot.network() + snapshot.files(
            STATE_DIRECTORIES, without=[NAMESPACES, services.HOME, *kept]
        )

    def state(self, *pods: Pod) -> Snapshot:
        """Take the state of the host and, marked with their names, of pods.

        For loopback only the host's: whether lo is up or down is what it is there for.
        """
        found = self.host()
        for pod in () if self.subject.kind is Kind.LOOPBACK else pods:
            for line, count in snapshot.network(pod.netns).items():
                found[f"in {Path(pod.netns).name}: {line}"] += count
        return found

    def settled(
        self, before: Snapshot, did: str, *pods: Pod, why: str = "changed", fixtures: bool = True
    ) -> list[Problem]:
        """Expect the state that was before; waits a little for what the kernel does later.

        Without ``fixtures`` the links that the profile made for the pods do not count.
        """
        deadline = time.monotonic() + SETTLE_SECONDS
        ours = () if fixtures else tuple(f"+ link {name}" for name in self.subject.profile.fixtures)
        while True:
            lines = [
                line
                for line in snapshot.difference(before, self.state(*pods))
                if not (ours and line.startswith(ours))
            ]
            if not lines:
                return []
            if time.monotonic() > deadline:
                break
            time.sleep(_SETTLE_PAUSE)
        more = f"; and {len(lines) - _SHOWN_LINES} more" if len(lines) > _SHOWN_LINES else ""
        return [Problem(did, f"{why}: {'; '.join(lines[:_SHOWN_LINES])}{more}")]

    def succeeded(self, ran: Ran, *, silent: bool = True) -> list[Problem]:
        """Expect success and, unless told otherwise, an empty stdout."""
        if ran.status != 0 or ran.hung:
            return [Problem(ran.label, ran.describe())]
        if silent and ran.stdout.strip():
            return [Problem(ran.label, ran.describe())]
        return []

    def refused(
        self, ran: Ran, *codes: int, mention: str = "", severity: Severity | None = None
    ) -> list[Problem]:
        """Expect an error of the protocol with one of ``codes`` (none: any), whose text has ``mention``."""
        if ran.hung:
            return [Problem(ran.label, ran.describe())]
        if ran.status == 0:
            return [Problem(ran.label, f"it succeeded: {ran.describe()}")]
        faults = list(schema.error_faults(ran.said))
        if faults:
            return [Problem(ran.label, f"no error of the protocol ({faults[0]}): {ran.describe()}")]
        said = ran.error or {}
        text = f"{said.get('msg')} {said.get('details', '')}"
        if (codes and said["code"] not in codes) or mention not in text:
            return [Problem(ran.label, ran.describe(), severity)]
        return []


def in_version(result: Mapping[str, Any], version: str) -> dict[str, Any]:
    """Return a result as ``prevResult`` of that version: its own shape, but for ``ips.version``.

    A result with ``cniVersion`` came from the plugin itself and stays as it said it.
    """
    if "cniVersion" in result:
        return dict(result)
    said = {**result, "cniVersion": version}
    ips = said.get("ips")
    if isinstance(ips, list) and not versions.at_least(version, "1.0.0"):
        said["ips"] = [{"version": "6" if ":" in ip["address"] else "4", **ip} for ip in ips]
    return said


def labelled(problems: Iterable[Problem], severity: Severity) -> list[Problem]:
    """Return the problems with another severity than their check's."""
    return [msgspec.structs.replace(one, severity=severity) for one in problems]
