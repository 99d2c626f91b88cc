"""What is known of each sandbox and container on disk, so that a runtime that starts again finds everything.

``<root>/sandboxes/<id>/sandbox.json`` is written before anything of the sandbox is made, by the runtime.
``containers/<id>/config.json`` is the runtime's too; ``state.json`` beside it belongs to the supervisor, and
to the runtime once the supervisor is dead.
"""

from __future__ import annotations

import enum
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from podwire.runtime import atomic
from podwire.runtime.api import ContainerConfig, ContainerState, SandboxConfig

T = TypeVar("T")

SHORT: Final = 16
"""Digits of a sandbox's ID that name its socket's directory: sun_path holds 108 bytes in all."""


class Phase(enum.StrEnum):
    """How far a sandbox has come."""

    CREATING = "creating"
    """Its making began; found at a start, it is torn down."""
    READY = "ready"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class SandboxRecord:
    """A sandbox. ``created_at`` in nanoseconds since the epoch."""

    id: str
    created_at: int
    config: SandboxConfig
    phase: Phase
    netns: str = ""
    """Path of its network namespace; empty: the host's."""
    network: str = ""
    """The network configuration list it was attached with, as JSON; empty: none."""
    attached: bool = False
    """A CNI ADD may have begun whose DEL has not succeeded."""
    ips: tuple[str, ...] = ()
    trouble: str = ""
    """Why it could not be taken down, last time."""

    @property
    def subject(self) -> str:
        """Namespace and name of the pod, for messages."""
        return f"{self.config.metadata.namespace}/{self.config.metadata.name}"


@dataclass(frozen=True, slots=True)
class ContainerRecord:
    """A container as it was created."""

    id: str
    sandbox_id: str
    created_at: int
    config: ContainerConfig


@dataclass(frozen=True, slots=True)
class RunState:
    """What became of a program. Times in nanoseconds since the epoch, ``start_time`` in ticks since boot."""

    state: ContainerState = ContainerState.CREATED
    pid: int = 0
    start_time: int = 0
    started_at: int = 0
    finished_at: int = 0
    exit_code: int = 0
    signal: int = 0
    reason: str = ""
    message: str = ""


class Unreadable(Exception):
    """A record that cannot be understood: the file and why."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path


def new_id() -> str:
    """64 hexadecimal digits, as containerd's."""
    return secrets.token_hex(32)


@dataclass(frozen=True, slots=True)
class Places:
    """Where things are kept: ``root`` is durable, ``run_dir`` holds sockets and namespaces."""

    root: Path
    run_dir: Path

    @property
    def sandboxes(self) -> Path:
        """One directory a sandbox."""
        return self.root / "sandboxes"

    def state(self, sandbox_id: str) -> Path:
        """A sandbox's records and generated files."""
        return self.sandboxes / sandbox_id

    def container(self, sandbox_id: str, container_id: str) -> Path:
        """A container's records."""
        return self.state(sandbox_id) / "containers" / container_id

    def run(self, sandbox_id: str) -> Path:
        """Where a sandbox's socket is."""
        return self.run_dir / "sandboxes" / sandbox_id[:SHORT]

    def netns(self, sandbox_id: str) -> Path:
        """Where a sandbox's network namespace is pinned."""
        return self.run_dir / "netns" / sandbox_id

    def save(self, record: SandboxRecord) -> None:
        """Write a sandbox's record; OSError.

        The first one survives a power cut, since addresses that were given out do as well. The later ones
        need not: what runs ends with the power, and a DEL can be done again.
        """
        directory = self.state(record.id)
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        atomic.write(
            str(directory / "sandbox.json"),
            msgspec.json.encode(record),
            durable=record.phase is Phase.CREATING,
        )

    def save_container(self, record: ContainerRecord) -> None:
        """Write a container's record; OSError."""
        directory = self.container(record.sandbox_id, record.id)
        directory.mkdir(mode=0o700, parents=True)
        atomic.write(str(directory / "config.json"), msgspec.json.encode(record))

    def save_state(self, record: ContainerRecord, state: RunState) -> None:
        """Write what became of a container whose supervisor is dead; OSError."""
        path = self.container(record.sandbox_id, record.id) / "state.json"
        atomic.write(str(path), msgspec.json.encode(state))

    def forget(self, sandbox_id: str) -> None:
        """Remove all files of a sandbox; what is gone already is fine. OSError."""
        for directory in (self.run(sandbox_id), self.state(sandbox_id)):
            _remove(directory)

    def forget_container(self, record: ContainerRecord) -> None:
        """Remove a container's files; what is gone already is fine. OSError."""
        _remove(self.container(record.sandbox_id, record.id))

    def load(self, sandbox_id: str) -> tuple[SandboxRecord, list[tuple[ContainerRecord, RunState]]]:
        """A sandbox and its containers in the order they were made; raises :class:`Unreadable` or OSError."""
        record = _read(self.state(sandbox_id) / "sandbox.json", SandboxRecord)
        containers = []
        directory = self.state(sandbox_id) / "containers"
        for entry in directory.iterdir() if directory.is_dir() else ():
            config = entry / "config.json"
            if not config.exists():  # the runtime was killed while it was made
                _remove(entry)
                continue
            state = entry / "state.json"
            made = _read(config, ContainerRecord)
            containers.append((made, _read(state, RunState) if state.exists() else RunState()))
        containers.sort(key=lambda pair: pair[0].created_at)
        return record, containers

    def known(self) -> list[str]:
        """IDs of the sandboxes that have a record; directories without one, from a kill, are removed."""
        if not self.sandboxes.is_dir():
            return []
        found = []
        for entry in self.sandboxes.iterdir():
            if (entry / "sandbox.json").exists():
                found.append(entry.name)
            else:
                _remove(entry)
        return found


def _read(path: Path, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Unreadable(path, str(error)) from error


def _remove(directory: Path) -> None:
    try:
        shutil.rmtree(directory)
    except FileNotFoundError:
        return
