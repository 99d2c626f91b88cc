"""Manifest files as they are on disk: which ones count, what is in them, and the last good pod of each."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import time
from dataclasses import dataclass

from podwire.kube.defaults import NAME_LIMIT, static_name, static_pod
from podwire.kube.errors import ManifestError, printable
from podwire.kube.manifest import load_manifest
from podwire.kube.objects import Pod
from podwire.kube.yamltree import MAX_BYTES
from podwire.sources.kept import LastGood
from podwire.sources.problems import Reason, SourceProblem
from podwire.sources.updates import FILE

_TEMPORARY_ENDINGS = ("~", ".swp", ".swo", ".swx", ".tmp", ".temp", ".part", ".dpkg-new", ".dpkg-tmp")
_RACY_NS = 50_000_000

Signature = tuple[int, int, int, int, int]


class NotRegular(Exception):
    """Something that is no regular file; the text says what."""


@dataclass(slots=True)
class Manifest:
    """One file: its last good pod and what is wrong with it now.

    ``signature`` is None while the file is so young that a change might not show in it; ``kept`` remembers
    the last good text.
    """

    path: str
    kept: LastGood
    recalled: bytes | None = None
    """The last good text of an earlier run, until the file has been good in this one."""
    pod: Pod | None = None
    problems: tuple[SourceProblem, ...] = ()
    signature: Signature | None = None
    digest: bytes = b""
    missing_since: float | None = None

    @property
    def shown(self) -> str:
        """The path as it can be printed."""
        return shown_path(self.path)

    def refresh(self, status: os.stat_result, node_name: str) -> None:
        """Read the file again if it may have changed. The last good pod stays when it has turned bad."""
        if self.signature is not None and self.signature == signature(status):
            return
        try:
            data, self.signature = read(self.path)
        except NotRegular as error:
            self.recall(node_name)
            self.problems = (self._problem(Reason.IGNORED_FILE, f"{error}: it is not read"),)
            self.signature, self.digest = None, b""
            return
        except OSError as error:
            self.unreadable(error, node_name)
            return
        digest = hashlib.blake2b(data, digest_size=16).digest()
        if digest != self.digest:
            self.digest = digest
            self._parse(data, node_name)

    def unreadable(self, error: OSError, node_name: str) -> None:
        """Note that the file could not be read; its last good pod stays."""
        self.recall(node_name)
        self.signature, self.digest = None, b""
        self.problems = (self._problem(Reason.FAILED_READ, describe(self.path, error)),)

    def recall(self, node_name: str) -> None:
        """Have the pod of an earlier run's last good text, if this run has not seen a good one."""
        text, self.recalled = self.recalled, None
        if text is not None and self.pod is None:
            self._parse(text, node_name)

    def _parse(self, data: bytes, node_name: str) -> None:
        try:
            loaded = load_manifest(data, self.shown)
        except ManifestError as error:
            self.recall(node_name)
            namespace, _, name = error.pod.partition("/")
            pod_name = f"{namespace}/{static_name(name, node_name)}" if name else ""
            self.problems = tuple(
                self._problem(Reason(error.reason), fault.text, fault.line, pod_name)
                for fault in error.errors
            )
            return
        if loaded is None:
            self.pod, self.problems, self.recalled = None, (), None
            self.kept.forget(self.path)
            return
        pod = static_pod(loaded.pod, node_name=node_name, source=FILE, path=self.path)
        if len(pod.metadata.name) > NAME_LIMIT:
            message = (
                f"metadata.name: {pod.metadata.name}: with the node's name it is longer"
                f" than {NAME_LIMIT} characters"
            )
            self.recall(node_name)
            self.problems = (self._problem(Reason.FAILED_VALIDATION, message, pod=pod.full_name),)
            return
        self.pod, self.recalled = pod, None
        self.kept.save(self.path, data)
        self.problems = tuple(
            SourceProblem(FILE, self.shown, fault.line, Reason.AMBIGUOUS_PORT, fault.text, pod.full_name)
            for fault in loaded.warnings
        )

    def _problem(self, reason: Reason, message: str, line: int | None = None, pod: str = "") -> SourceProblem:
        kept = self.pod is not None
        name = self.pod.full_name if self.pod is not None else pod
        return SourceProblem(FILE, self.shown, line, reason, message, name, kept)


def read(path: str) -> tuple[bytes, Signature | None]:
    """The bytes of a regular file and its signature, None if it may still change unseen.

    Never blocks on a pipe or a device. Raises NotRegular and OSError; a file beyond 10 MiB is cut off behind
    the limit.
    """
    kind = _kind(os.stat(path).st_mode)  # noqa: PTH116
    if kind:
        raise NotRegular(kind)
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        before = os.fstat(fd)
        kind = _kind(before.st_mode)
        if kind:
            raise NotRegular(kind)
        data = file.read(MAX_BYTES + 1)
        after = os.fstat(fd)
    settled = time.time_ns() - max(after.st_mtime_ns, after.st_ctime_ns) > _RACY_NS
    same = signature(before) == signature(after)
    return data, signature(after) if same and settled else None


def signature(status: os.stat_result) -> Signature:
    """What changes when a file does."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def is_temporary(name: str) -> bool:
    """Whether editors and installers give such a name to files that are not meant yet, or no longer."""
    return name.endswith(_TEMPORARY_ENDINGS) or (name.startswith("#") and name.endswith("#"))


def holds_pod(path: str) -> bool:
    """Whether a file is a manifest that would be used under another name."""
    try:
        return load_manifest(read(path)[0]) is not None
    except (ManifestError, NotRegular, OSError):
        return False


def describe(path: str, error: OSError) -> str:
    """An error of the file system in words."""
    text = os.strerror(error.errno) if error.errno else str(error)
    if error.errno == errno.ENOENT and os.path.islink(path):  # noqa: PTH114
        return f"the symbolic link leads to {shown_path(os.readlink(path))}: {text}"  # noqa: PTH115
    return text


def shown_path(path: str) -> str:
    """A path without bytes that are not UTF-8 and without control characters."""
    return printable(os.fsencode(path).decode("utf-8", "backslashreplace"))


def _kind(mode: int) -> str:
    if stat.S_ISREG(mode):
        return ""
    kinds = (
        (stat.S_ISDIR, "a directory"),
        (stat.S_ISFIFO, "a named pipe"),
        (stat.S_ISSOCK, "a socket"),
        (stat.S_ISCHR, "a device"),
        (stat.S_ISBLK, "a device"),
    )
    return next((name for test, name in kinds if test(mode)), "not a regular file")
