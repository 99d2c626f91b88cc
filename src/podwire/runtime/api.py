"""What the node asks of a runtime: CRI v1 (cri-api/pkg/apis/runtime/v1) in frozen Python types.

Names, enum values and semantics are the CRI's, so that a gRPC client of containerd or CRI-O can stand behind
the same interface. Times are nanoseconds since the epoch, as in the CRI; 0 means not yet.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol


class SandboxState(enum.IntEnum):
    """PodSandboxState."""

    READY = 0
    NOTREADY = 1


class ContainerState(enum.IntEnum):
    """ContainerState."""

    CREATED = 0
    RUNNING = 1
    EXITED = 2
    UNKNOWN = 3


class PortProtocol(enum.IntEnum):
    """Protocol."""

    TCP = 0
    UDP = 1
    SCTP = 2


class NetworkMode(enum.IntEnum):
    """NamespaceMode, as far as the network goes."""

    POD = 0
    NODE = 2


class PidMode(enum.IntEnum):
    """NamespaceMode, as far as processes go: one namespace for the pod, or one for each container."""

    POD = 0
    CONTAINER = 1
    NODE = 2


@dataclass(frozen=True, slots=True)
class SandboxMetadata:
    """PodSandboxMetadata: who the sandbox is for. ``attempt`` counts the sandboxes of one pod UID."""

    name: str
    uid: str
    namespace: str
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class PortMapping:
    """PortMapping. ``host_port`` 0 means none."""

    protocol: PortProtocol
    container_port: int
    host_port: int = 0
    host_ip: str = ""


@dataclass(frozen=True, slots=True)
class DNSConfig:
    """DNSConfig: the lines of resolv.conf."""

    servers: tuple[str, ...] = ()
    searches: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HostAlias:
    """A line of /etc/hosts that the pod asks for (the kubelet writes these itself; here the runtime does)."""

    ip: str
    hostnames: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SandboxConfig:
    """PodSandboxConfig."""

    metadata: SandboxMetadata
    hostname: str
    log_directory: str
    dns: DNSConfig | None = None
    """None: the host's resolv.conf as it is."""
    port_mappings: tuple[PortMapping, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    network: NetworkMode = NetworkMode.POD
    pid: PidMode = PidMode.CONTAINER
    host_aliases: tuple[HostAlias, ...] = ()
    sysctls: Mapping[str, str] = field(default_factory=dict)
    domain: str = ""
    """The pod's subdomain part of its FQDN, or empty."""


@dataclass(frozen=True, slots=True)
class SandboxStatus:
    """PodSandboxStatus. ``ips``: the pod's addresses, the primary one first; none with the host network."""

    id: str
    metadata: SandboxMetadata
    state: SandboxState
    created_at: int
    network: NetworkMode
    ips: tuple[str, ...]
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    netns: str = ""
    """Path of the network namespace; empty with the host's network."""
    reason: str = ""
    """Why it is not ready, where the runtime knows more than that (the CRI has it in its verbose info)."""


@dataclass(frozen=True, slots=True)
class ContainerMetadata:
    """ContainerMetadata. ``attempt`` counts restarts."""

    name: str
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class Mount:
    """Mount: a file or directory of the host shown inside the container."""

    container_path: str
    host_path: str
    readonly: bool = False


@dataclass(frozen=True, slots=True)
class ContainerUser:
    """Who the program runs as: LinuxContainerSecurityContext's run_as_* and supplemental_groups."""

    uid: int | None = None
    gid: int | None = None
    username: str = ""
    supplemental_groups: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ContainerConfig:
    """ContainerConfig. ``log_path`` is relative to the sandbox's ``log_directory``.

    ``image`` is carried for runtimes that have images; the embedded one runs ``command`` from this machine.
    """

    metadata: ContainerMetadata
    command: tuple[str, ...]
    image: str = ""
    args: tuple[str, ...] = ()
    working_dir: str = ""
    envs: tuple[tuple[str, str], ...] = ()
    mounts: tuple[Mount, ...] = ()
    user: ContainerUser = ContainerUser()
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    log_path: str = ""
    stdin: bool = False
    stdin_once: bool = False
    """The program's stdin ends with the first client's that is attached to it."""
    tty: bool = False


@dataclass(frozen=True, slots=True)
class ContainerStatus:
    """ContainerStatus. ``reason``: Completed, Error, OOMKilled, ContainerCannotRun."""

    id: str
    sandbox_id: str
    metadata: ContainerMetadata
    state: ContainerState
    created_at: int
    started_at: int = 0
    finished_at: int = 0
    exit_code: int = 0
    signal: int = 0
    """The signal that ended the program, 0 if it exited by itself; ``exit_code`` is then 128 + signal."""
    image: str = ""
    reason: str = ""
    message: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    log_path: str = ""
    """Absolute."""
    pid: int = 0


class EventType(enum.IntEnum):
    """ContainerEventType."""

    CREATED = 0
    STARTED = 1
    STOPPED = 2
    DELETED = 3


@dataclass(frozen=True, slots=True)
class ContainerEvent:
    """ContainerEventResponse: something happened to a container, or to the sandbox itself."""

    type: EventType
    sandbox_id: str
    container_id: str
    """The sandbox's own ID for an event of the sandbox."""
    metadata: SandboxMetadata


@dataclass(frozen=True, slots=True)
class RuntimeCondition:
    """RuntimeCondition: RuntimeReady or NetworkReady."""

    type: str
    status: bool
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class ExecResult:
    """ExecSyncResponse."""

    stdout: bytes
    stderr: bytes
    exit_code: int


class ExecSession(Protocol):
    """A program running inside a container with its streams in the caller's hands."""

    async def write_stdin(self, data: bytes) -> None:
        """Pass bytes to the program; empty closes its stdin."""

    def output(self) -> AsyncIterator[tuple[int, bytes]]:
        """(1, stdout bytes) and (2, stderr bytes) as they come, until the program and its streams end."""

    async def resize(self, columns: int, rows: int) -> None:
        """Set the terminal's size; nothing without a terminal."""

    async def wait(self) -> int:
        """The exit code, 128 + signal when killed."""

    async def close(self) -> None:
        """Kill the program if it still runs and release everything."""


class RuntimeService(Protocol):
    """CRI RuntimeService, asyncio. Stop and remove succeed on what is already gone.

    Every method raises :class:`podwire.runtime.errors.RuntimeFault` (with ``code`` as gRPC names it, the
    object and the cause) and nothing else for what goes wrong below it.
    """

    async def version(self) -> tuple[str, str]:
        """Name and version of the runtime."""

    async def status(self) -> tuple[RuntimeCondition, ...]:
        """RuntimeReady and NetworkReady."""

    async def run_pod_sandbox(self, config: SandboxConfig) -> str:
        """Make the sandbox and its network; all or nothing. Returns its ID."""

    async def stop_pod_sandbox(self, sandbox_id: str) -> None:
        """Stop all its programs and take its network down. Idempotent."""

    async def remove_pod_sandbox(self, sandbox_id: str) -> None:
        """Stop it if need be and forget it, its containers too. Idempotent."""

    async def pod_sandbox_status(self, sandbox_id: str) -> SandboxStatus:
        """One sandbox; NOT_FOUND if unknown."""

    async def list_pod_sandbox(self) -> list[SandboxStatus]:
        """All sandboxes, in the order they were made."""

    async def create_container(self, sandbox_id: str, config: ContainerConfig) -> str:
        """Register a container; its program does not run yet. Returns its ID."""

    async def start_container(self, container_id: str) -> None:
        """Run the program. A program that cannot be run raises FAILED_PRECONDITION and leaves it EXITED."""

    async def stop_container(self, container_id: str, timeout: float) -> None:
        """TERM, then KILL after ``timeout`` seconds; returns when it has ended. Idempotent."""

    async def remove_container(self, container_id: str) -> None:
        """Kill it if need be and forget it. Its log stays. Idempotent."""

    async def container_status(self, container_id: str) -> ContainerStatus:
        """One container; NOT_FOUND if unknown."""

    async def list_containers(self) -> list[ContainerStatus]:
        """All containers of all sandboxes, in the order they were made."""

    async def exec_sync(self, container_id: str, command: tuple[str, ...], timeout: float) -> ExecResult:
        """Run a program inside and collect its output; DEADLINE_EXCEEDED after ``timeout`` seconds."""

    async def exec(
        self,
        container_id: str,
        command: tuple[str, ...],
        *,
        stdin: bool = False,
        tty: bool = False,
        size: tuple[int, int] | None = None,
    ) -> ExecSession:
        """Run a program inside with open streams; ``size`` is its terminal's at the start: columns, rows."""

    async def attach(self, container_id: str, *, stdin: bool = False) -> ExecSession:
        """Join the streams of the container's own program: what it writes from now on, and its stdin.

        Without ``stdin`` in its configuration nothing can be written. ``close`` leaves the program running;
        ``wait`` gives its exit code, or 0 when the session ends before, with the caller's input.
        """

    def events(self) -> AsyncIterator[ContainerEvent]:
        """GetContainerEvents: what happens from the call on, until the iterator is closed."""

    async def close(self) -> None:
        """Let go of everything; what runs goes on running."""
