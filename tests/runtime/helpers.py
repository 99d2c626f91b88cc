"""A network that is told what to do, observers of the machine, and short ways to ask for things."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from podwire.cni.cache import Record
from podwire.cni.config import NetworkConfigList, parse_list
from podwire.cni.errors import CNIError
from podwire.cni.runtime import Attachment
from podwire.cni.types import Interface, IPConfig, Result
from podwire.runtime.api import (
    ContainerConfig,
    ContainerMetadata,
    ContainerState,
    ContainerStatus,
    NetworkMode,
    SandboxConfig,
    SandboxMetadata,
)
from podwire.runtime.embedded import EmbeddedRuntime

NETWORK = parse_list(json.dumps({"cniVersion": "1.1.0", "name": "test", "plugins": [{"type": "none"}]}))
LINE = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z (stdout|stderr) ([FP]) ([^\n]*)\n")


@dataclass
class FakeCni:
    """Gives out fixed addresses, remembers what it was asked, and fails on demand."""

    ips: tuple[str, ...] = ("10.9.0.5/16", "fd00:9::5/64")
    calls: list[tuple[str, str]] = field(default_factory=list)
    asked: list[Attachment] = field(default_factory=list)
    attached: set[str] = field(default_factory=set)
    add_error: CNIError | None = None
    delete_error: CNIError | None = None
    during_add: asyncio.Event | None = None
    """Set when an ADD has begun, which then never ends by itself."""
    netns_at_add: list[bool] = field(default_factory=list)

    async def add(self, network: NetworkConfigList, attachment: Attachment) -> Result:
        self.calls.append(("ADD", network.name))
        self.asked.append(attachment)
        self.netns_at_add.append(Path(attachment.netns).exists())
        self.attached.add(attachment.container_id)
        if self.during_add is not None:
            self.during_add.set()
            await asyncio.Event().wait()
        if self.add_error is not None:
            raise self.add_error
        return Result(
            interfaces=(Interface(name="br0"), Interface(name="eth0", sandbox=attachment.netns)),
            ips=tuple(IPConfig(address=ip, interface=1) for ip in self.ips),
        )

    async def delete(self, network: NetworkConfigList, attachment: Attachment) -> None:
        self.calls.append(("DEL", network.name))
        self.asked.append(attachment)
        if self.delete_error is not None:
            raise self.delete_error
        self.attached.discard(attachment.container_id)

    def attachments(self, container_id: str | None = None, *, network: str | None = None) -> list[Record]:
        return []


@dataclass
class Places:
    """Where a test's runtimes keep their things."""

    base: Path
    cni: FakeCni

    @property
    def root(self) -> Path:
        return self.base / "lib"

    @property
    def run_dir(self) -> Path:
        return self.base / "run"

    @property
    def logs(self) -> Path:
        return self.base / "logs"

    def runtime(self, **options: Any) -> EmbeddedRuntime:
        return EmbeddedRuntime(self.root, self.run_dir, self.cni, NETWORK, **options)

    def sandbox(self, name: str = "web", **changes: Any) -> SandboxConfig:
        config = SandboxConfig(
            metadata=SandboxMetadata(name, f"uid-of-{name}", "default"),
            hostname=name,
            log_directory=str(self.logs),
            network=NetworkMode.NODE,
        )
        return replace(config, **changes)

    def own_network(self, name: str = "web", **changes: Any) -> SandboxConfig:
        return self.sandbox(name, network=NetworkMode.POD, **changes)

    def log(self, name: str = "main") -> bytes:
        """What a container wrote, put together again from its log."""
        return b"".join(text + (b"\n" if tag == b"F" else b"") for _, tag, text in self.entries(name))

    def entries(self, name: str = "main") -> list[tuple[bytes, bytes, bytes]]:
        """Stream, tag and text of each entry of a log, every byte of which must be in the CRI's format."""
        return parse(Path(self.logs, f"{name}.log").read_bytes())


def parse(log: bytes) -> list[tuple[bytes, bytes, bytes]]:
    entries = []
    at = 0
    while at < len(log):
        match = LINE.match(log, at)
        assert match, f"not an entry: {log[at : at + 80]!r}"
        stream, tag, text = match.groups()
        entries.append((stream, tag, text))
        at = match.end()
    return entries


def container(*command: str, name: str = "main", **changes: Any) -> ContainerConfig:
    return replace(ContainerConfig(ContainerMetadata(name), command, log_path=f"{name}.log"), **changes)


def shell(script: str, name: str = "main", **changes: Any) -> ContainerConfig:
    return container("/bin/sh", "-c", script, name=name, **changes)


async def started(runtime: EmbeddedRuntime, sandbox_id: str, config: ContainerConfig) -> str:
    container_id = await runtime.create_container(sandbox_id, config)
    await runtime.start_container(container_id)
    assert (await runtime.container_status(container_id)).state is not ContainerState.CREATED
    return container_id


async def until(what: str, condition: Callable[[], object], seconds: float = 10) -> None:
    """Wait for something of the machine that sends no event."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    assert condition(), what


async def ended(runtime: EmbeddedRuntime, container_id: str, seconds: float = 15) -> ContainerStatus:
    """The status of a container when it has ended, awaited by the runtime's events."""
    events = runtime.events()
    try:
        async with asyncio.timeout(seconds):
            while True:
                status = await runtime.container_status(container_id)
                if status.state is ContainerState.EXITED:
                    return status
                await anext(events)
    finally:
        await events.aclose()


async def ran(runtime: EmbeddedRuntime, sandbox_id: str, config: ContainerConfig) -> ContainerStatus:
    """Run a program to its end."""
    return await ended(runtime, await started(runtime, sandbox_id, config))


def processes_of(sandbox_ids: Iterable[str]) -> dict[int, str]:
    """Living processes of sandboxes, found by the mounts that only they have; the value is their name."""
    marks = [f" podwire-{one} ".encode() for one in sandbox_ids]
    found = {}
    seen: dict[str, bool] = {}
    for entry in Path("/proc").iterdir() if marks else ():
        if not entry.name.isdigit():
            continue
        try:
            namespace = str((entry / "ns" / "mnt").readlink())
            if namespace not in seen:
                mounts = (entry / "mountinfo").read_bytes()
                seen[namespace] = any(mark in mounts for mark in marks)
            if seen[namespace]:
                found[int(entry.name)] = (entry / "comm").read_text().strip()
        except (OSError, ValueError):
            continue
    return found


def supervisor_of(sandbox_id: str) -> int:
    found = [pid for pid, name in processes_of([sandbox_id]).items() if name == "podwire-pod"]
    assert len(found) == 1, found
    return found[0]


def alive(pid: int) -> bool:
    """Whether there is such a process; a zombie counts, unless it is init's to reap, in its own time."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return fields[:2] != ["Z", "1"]


def zombies_under(pid: int) -> list[int]:
    """Dead children of ``pid`` that it has not waited for."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] == "Z" and int(fields[1]) == pid:
            found.append(int(stat.parent.name))
    return found


def fds(pid: int | str = "self") -> list[str]:
    """What the descriptors of a process point to, sorted; that of the listing itself left out."""
    found = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found.append(re.sub(r"\d+", "N", str(link.readlink())))
        except FileNotFoundError:
            continue
    return sorted(found)


def mounts() -> list[str]:
    """This process's mounts without their numbers, which differ each time."""
    return sorted(line.split(" ", 3)[3] for line in Path("/proc/self/mountinfo").read_text().splitlines())
