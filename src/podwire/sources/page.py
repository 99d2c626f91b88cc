"""What a manifest URL last said: its pods, its bytes, and what is wrong with it now."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from podwire.kube.defaults import NAME_LIMIT, static_name, static_pod
from podwire.kube.errors import ManifestError, printable
from podwire.kube.manifest import load_manifests
from podwire.kube.objects import Pod
from podwire.sources.kept import LastGood
from podwire.sources.problems import Reason, SourceProblem
from podwire.sources.updates import HTTP


@dataclass(slots=True)
class Page:
    """One URL. ``pods`` are those of its last good body, ``recalled`` that body of an earlier run.

    ``validators`` are the request headers that ask whether the body is still the one that was read.
    """

    url: str
    shown: str
    kept: LastGood
    recalled: bytes | None = None
    answered: bool = False
    """Whether the server has said what there is, good or bad; until then there may be pods unknown here."""
    pods: tuple[Pod, ...] = ()
    problems: tuple[SourceProblem, ...] = ()
    digest: bytes = b""
    validators: dict[str, str] = field(default_factory=dict)
    _parsed: tuple[SourceProblem, ...] = ()
    """What was wrong with the bytes of ``digest``."""

    def recall(self, node_name: str) -> None:
        """Have the pods of an earlier run's last good body, if this run has not seen a good one."""
        text, self.recalled = self.recalled, None
        if text is not None and not self.pods:
            self._parse(text, node_name)

    def body(self, data: bytes, node_name: str) -> bool:
        """Take in what the server sent; whether it is good. A bad body leaves the last good pods."""
        self.answered = True
        digest = hashlib.blake2b(data, digest_size=16).digest()
        if digest != self.digest:
            self.digest, self.validators = digest, {}
            self._parsed = self._parse(data, node_name)
        return self.unchanged()

    def unchanged(self) -> bool:
        """The server has what it had at the last good transfer; whether that is good."""
        self.problems = self._parsed
        return not any(problem.type == "Warning" and problem.reason in _BAD for problem in self._parsed)

    def failed(self, reason: Reason, message: str, node_name: str) -> None:
        """The server did not say what there is; the last good pods stay."""
        self.recall(node_name)
        self.problems = (self._problem(reason, message),)

    def _parse(self, data: bytes, node_name: str) -> tuple[SourceProblem, ...]:
        try:
            loaded = load_manifests(data, self.shown)
        except ManifestError as error:
            self.recall(node_name)
            return tuple(
                self._problem(Reason(error.reason), fault.text, fault.line) for fault in error.errors
            )
        pods = tuple(
            static_pod(one.pod, node_name=node_name, source=HTTP, path=self.url, tolerate=False)
            for one in loaded
        )
        for pod in pods:
            if len(pod.metadata.name) > NAME_LIMIT:
                self.recall(node_name)
                message = (
                    f"metadata.name: {printable(pod.metadata.name)}: with the node's name it is longer"
                    f" than {NAME_LIMIT} characters"
                )
                return (self._problem(Reason.FAILED_VALIDATION, message),)
        self.pods, self.recalled = pods, None
        if pods:
            self.kept.save(self.url, data)
        else:
            self.kept.forget(self.url)
        return tuple(
            SourceProblem(
                HTTP,
                self.shown,
                fault.line,
                Reason.AMBIGUOUS_PORT,
                fault.text,
                f"{one.pod.metadata.namespace or 'default'}/{static_name(one.pod.metadata.name, node_name)}",
            )
            for one in loaded
            for fault in one.warnings
        )

    def _problem(self, reason: Reason, message: str, line: int | None = None) -> SourceProblem:
        return SourceProblem(HTTP, self.shown, line, reason, message, kept=bool(self.pods))


_BAD = (Reason.FAILED_PARSE, Reason.FAILED_VALIDATION)
