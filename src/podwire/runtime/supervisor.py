"""The process that holds one sandbox: its namespaces, its containers, and a socket on which it is asked.

It lives on its own, so the node may end and come back. Protocol: frames (:mod:`podwire.runtime.wire`),
requests ``{"id", "op", ...}``, answers ``{"id", "ok" | "error"}`` and events ``{"event", ...}``. What a
request changes is told as an event before it is answered. Forked from the spawner.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any, Final, NamedTuple, NoReturn

from podwire.runtime import launch, linux, wire
from podwire.runtime.attached import STALLED_SECONDS, Attached
from podwire.runtime.contained import POD, Answer, Contained, LogTarget, Namespaces
from podwire.runtime.inside import Inside
from podwire.runtime.loop import Loop

SOCKET: Final = "shim.sock"
ORPHAN_SECONDS: Final = 30.0
"""How often it looks whether its records are still there."""
UNSENT_LIMIT: Final = 1 << 20
"""A client that lets this many bytes of events pile up is dropped."""


class Spec(NamedTuple):
    """What the spawner is asked for."""

    id: str
    state_dir: str
    run_dir: str
    """Where the socket goes."""
    netns: str
    """Path of the network namespace; empty: the host's."""
    hostname: str
    log_directory: str
    pid_mode: int
    sysctls: dict[str, str]
    """Keys with slashes, below /proc/sys."""
    log_limit: int
    log_files: int
    attach_stall: float = STALLED_SECONDS
    """Seconds after which an attached client that takes nothing is let go."""


class Client:
    """One connection to the supervisor."""

    def __init__(self, sock: socket.socket, supervisor: Supervisor) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.fds: list[int] = []
        self.inside: Inside | None = None
        self.attached: tuple[Contained, Attached] | None = None
        self.closed = False
        self._supervisor = supervisor
        self._decoder = wire.Decoder()
        self._unsent = b""

    def receive(self) -> None:
        """Serve what has come; the connection is dropped when it has ended or is broken."""
        if self._unsent:
            self._flush()
        try:
            data, fds, _, _ = socket.recv_fds(self.sock, 65536, 8)
        except BlockingIOError:
            return
        except OSError:
            data, fds = b"", []
        self.fds += fds
        if not data:
            self._supervisor.drop(self)
            return
        try:
            for frame in self._decoder.feed(data):
                self._supervisor.serve(self, frame)
        except wire.Broken:
            self._supervisor.drop(self)

    def send(self, frame: wire.Frame) -> None:
        """Queue a frame; never blocks."""
        if self.closed:
            return
        self._unsent += wire.encode(frame)
        if len(self._unsent) > UNSENT_LIMIT:
            self._supervisor.drop(self)
        else:
            self._flush()

    def _flush(self) -> None:
        try:
            self._unsent = self._unsent[self.sock.send(self._unsent) :]
        except BlockingIOError:
            pass
        except OSError:
            self._unsent = b""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)
        self._supervisor.loop.change(self.sock.fileno(), events)


class Supervisor:
    """The sandbox's namespaces and containers."""

    def __init__(self, spec: Spec) -> None:
        self.loop = Loop()
        self._spec = spec
        self._clients: list[Client] = []
        self._containers: dict[str, Contained] = {}
        self._children: dict[int, Callable[[int], None]] = {}
        self._notes: list[str] = []
        self._kept = False
        self._first: Client | None = None
        self._leaving: list[Answer] | None = None
        self._pause = 0
        self._namespaces: Namespaces

    def set_up(self) -> None:
        """Make and enter the sandbox's namespaces; OSError names the file that was in the way."""
        spec = self._spec
        flags = linux.CLONE_NEWNS | linux.CLONE_NEWIPC
        if spec.netns:
            network = os.open(spec.netns, os.O_RDONLY | os.O_CLOEXEC)
            linux.setns(network, linux.CLONE_NEWNET)
            os.close(network)
            flags |= linux.CLONE_NEWUTS
        linux.unshare(flags)
        linux.mount("none", "/", flags=linux.MS_REC | linux.MS_SLAVE)
        if spec.netns:
            socket.sethostname(spec.hostname)
            _own_sysfs()
        self._mount_own()
        for key, value in spec.sysctls.items():
            fd = os.open(f"/proc/sys/{key}", os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(fd, value.encode())
            except OSError as error:
                raise OSError(
                    error.errno, os.strerror(error.errno or 0), f"sysctl {key} = {value}"
                ) from error
            finally:
                os.close(fd)
        linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)
        linux.prctl(linux.PR_SET_NAME, b"podwire-pod")
        self._namespaces = Namespaces(spec.pid_mode, bool(spec.netns))
        if spec.pid_mode == POD:
            self._start_pause()

    def _mount_own(self) -> None:
        """/dev/shm and message queues of the sandbox, and the generated files over the machine's.

        The tmpfs carries the sandbox's ID as its source: by it the processes of a sandbox are known for
        certain in /proc/PID/mountinfo, even when the supervisor is no more.
        """
        flags = linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC
        if os.path.isdir("/dev/shm"):  # noqa: PTH112
            linux.mount(f"podwire-{self._spec.id}", "/dev/shm", "tmpfs", flags, "mode=1777,size=64m")
        else:
            self._notes.append("/dev/shm does not exist on this machine")
        if os.path.ismount("/dev/mqueue"):
            linux.mount("mqueue", "/dev/mqueue", "mqueue", flags)
        for name in ("hosts", "resolv.conf", "hostname"):
            source = f"{self._spec.state_dir}/{name}"
            if not os.path.exists(source):  # noqa: PTH110
                continue
            target = os.path.realpath(f"/etc/{name}")
            if os.path.exists(target):  # noqa: PTH110
                linux.mount(source, target, flags=linux.MS_BIND)
            else:
                self._notes.append(
                    f"/etc/{name} does not exist on this machine, so programs do not see the pod's"
                )

    def _start_pause(self) -> None:
        """PID 1 of the pod's PID namespace: does nothing but reap."""
        linux.unshare(linux.CLONE_NEWPID)
        pid = os.fork()
        if pid == 0:
            _pause()
        self._pause = pid
        self._namespaces.shared_pid = os.open(f"/proc/{pid}/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        self._children[pid] = lambda _status: self.shut_down(None)

    def serve_forever(self, control: socket.socket) -> None:
        """Answer on the socket in the run directory and on ``control`` until shut down."""
        os.chdir(self._spec.run_dir)
        listener = socket.socket(
            socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        )
        if os.path.lexists(SOCKET):
            os.unlink(SOCKET)  # noqa: PTH108
        before = os.umask(0o177)
        # A relative name: sun_path holds 108 bytes, and the run directory may be deep.
        listener.bind(SOCKET)
        os.umask(before)
        os.chdir("/")
        listener.listen(64)
        self.loop.watch(listener.fileno(), lambda: self._accept(listener))
        self.loop.on_signal(signal.SIGCHLD, self._reap)
        self.loop.on_signal(signal.SIGTERM, lambda: self.shut_down(None))
        self._first = self._add(control)
        self._look_now_and_then()
        self._reap()
        self.loop.run()

    def _look_now_and_then(self) -> None:
        self._end_if_forgotten()
        self.loop.after(ORPHAN_SECONDS, self._look_now_and_then)

    def _end_if_forgotten(self) -> None:
        """End when the sandbox's records are gone and nobody is connected: no runtime could find it again."""
        if not self._clients and not os.path.isdir(self._spec.state_dir):  # noqa: PTH112
            self.shut_down(None)

    def _accept(self, listener: socket.socket) -> None:
        try:
            sock, _ = listener.accept()
        except OSError:
            return
        self._add(sock)

    def _add(self, sock: socket.socket) -> Client:
        client = Client(sock, self)
        self._clients.append(client)
        self.loop.watch(sock.fileno(), client.receive)
        containers = {one.id: one.state for one in self._containers.values()}
        pid = os.getpid()
        client.send(
            {"event": "hello", "pid": pid, "start_time": linux.start_time(pid), "containers": containers}
        )
        return client

    def drop(self, client: Client) -> None:
        """The connection is over: what it ran inside ends with it."""
        if client.closed:
            return
        client.closed = True
        self.loop.forget(client.sock.fileno())
        client.sock.close()
        self._clients.remove(client)
        for fd in client.fds:
            os.close(fd)
        if client.inside is not None:
            client.inside.kill()
        if client.attached is not None:
            container, attached = client.attached
            container.detach(attached)
        if client is self._first and not self._kept:
            # The node ended while this sandbox was in the making: nobody knows of it.
            self.shut_down(None)
        else:
            self._end_if_forgotten()

    def serve(self, client: Client, frame: wire.Frame) -> None:
        """One request."""
        number = frame.get("id")

        def answer(result: wire.Frame) -> None:
            client.send({"id": number, **result})

        try:
            operation = self._operations[str(frame.get("op"))]
            operation(self, client, frame, answer)
        except launch.StartFailure as failure:
            answer(_error("FailedPrecondition", failure.message))
        except OSError as error:
            answer(
                _error("Internal", f"{error.filename}: {error.strerror}" if error.filename else str(error))
            )
        except (KeyError, TypeError, ValueError) as error:
            answer(_error("InvalidArgument", f"request not understood: {error!r}"))

    def _keep(self, _client: Client, _frame: wire.Frame, answer: Answer) -> None:
        self._kept = True
        answer({"ok": {}})

    def _start(self, _client: Client, frame: wire.Frame, answer: Answer) -> None:
        directory = f"{self._spec.state_dir}/containers/{frame['container']}"
        if self._leaving is not None:
            answer(_error("FailedPrecondition", "the sandbox is being stopped"))
            return
        if frame["container"] in self._containers:
            answer(_error("FailedPrecondition", "it has been started before"))
            return
        with open(f"{directory}/config.json", "rb") as file:  # noqa: PTH123
            config = json.load(file)["config"]
        container = Contained(directory, config, self.loop, self._namespaces, self._changed)
        self._containers[container.id] = container
        spec = self._spec
        log = f"{spec.log_directory}/{config['log_path']}" if config["log_path"] else ""
        notes = self._notes
        try:
            pid = container.start(
                spec.hostname, LogTarget(log, spec.log_limit, spec.log_files), notes, answer
            )
        except launch.StartFailure as failure:
            container.finish(failure.exit_code, failure.reason, failure.message)
            answer(_error("FailedPrecondition", failure.message))
        except OSError as error:
            container.finish(128, launch.START_ERROR, str(error))
            answer(_error("Internal", str(error)))
        else:
            self._children[pid] = container.ended

    def _changed(self, container: Contained) -> None:
        for client in list(self._clients):
            if client.inside is None and client.attached is None:
                client.send({"event": "container", "container": container.id, "state": container.state})
        if self._leaving is not None:
            self._leave()

    def _stop(self, _client: Client, frame: wire.Frame, answer: Answer) -> None:
        container = self._containers.get(frame["container"])
        if container is None:
            answer({"ok": {}})
        else:
            container.stop(float(frame["grace"]), answer)

    def _forget(self, _client: Client, frame: wire.Frame, answer: Answer) -> None:
        container = self._containers.get(frame["container"])
        if container is not None and container.alive:
            answer(_error("FailedPrecondition", "it runs"))
            return
        self._containers.pop(frame["container"], None)
        answer({"ok": {}})

    def _exec(self, client: Client, frame: wire.Frame, answer: Answer) -> None:
        """Run a program inside; its end is the event ``exit`` on the same connection."""
        streams, client.fds = client.fds, []
        try:
            if client.inside is not None or len(streams) not in (1, 3):
                raise ValueError(f"{len(streams)} streams")
            container = self._containers.get(frame["container"])
            if container is None:
                raise launch.StartFailure("it does not run")

            def send(result: wire.Frame) -> None:
                client.send(result) if "event" in result else answer(result)

            argv = tuple(frame["command"])
            inside = Inside(container, argv, streams, namespaces=self._namespaces, loop=self.loop, send=send)
            client.inside = inside
            self._children[inside.pid] = inside.ended
        finally:
            for fd in streams:
                os.close(fd)

    def _attach(self, client: Client, frame: wire.Frame, answer: Answer) -> None:
        """Join the connection to a container's streams; their end is the event ``exit``."""
        streams, client.fds = client.fds, []
        try:
            if client.inside is not None or client.attached is not None or len(streams) != 3:
                raise ValueError(f"{len(streams)} streams")
            container = self._containers.get(frame["container"])
            if container is None:
                raise launch.StartFailure("it does not run")
            attached = container.attach(
                streams,
                stdin=bool(frame["stdin"]),
                stall=self._spec.attach_stall,
                ended=lambda code: client.send({"event": "exit", "code": code}),
                gone=lambda: self.drop(client),
            )
            client.attached = container, attached
        finally:
            for fd in streams:
                os.close(fd)
        answer({"ok": {"stdin": container.stdin >= 0}})

    def _resize(self, client: Client, frame: wire.Frame, answer: Answer) -> None:
        if client.attached is not None:
            client.attached[1].resize(int(frame["columns"]), int(frame["rows"]))
        answer({"ok": {}})

    def _shut_down(self, _client: Client, _frame: wire.Frame, answer: Answer) -> None:
        self.shut_down(answer)

    def shut_down(self, answer: Answer | None) -> None:
        """Kill everything inside, then end; ``answer`` is called in between."""
        if self._leaving is None:
            self._leaving = []
        if answer is not None:
            self._leaving.append(answer)
        for container in self._containers.values():
            container.stop(0)
        self._leave()

    def _leave(self) -> None:
        if any(container.alive for container in self._containers.values()):
            return
        if self._pause in self._children:
            del self._children[self._pause]
            os.kill(self._pause, signal.SIGKILL)
            os.waitpid(self._pause, 0)
        for answer in self._leaving or ():
            answer({"ok": {}})
        self.loop.stop()

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            ended = self._children.pop(pid, None)
            if ended is not None:
                ended(status)

    _operations: Final[dict[str, Callable[[Any, Client, wire.Frame, Answer], None]]] = {
        "keep": _keep,
        "start": _start,
        "stop": _stop,
        "forget": _forget,
        "exec": _exec,
        "attach": _attach,
        "resize": _resize,
        "shutdown": _shut_down,
    }


def _error(code: str, message: str) -> wire.Frame:
    return {"error": {"code": code, "message": message}}


def _own_sysfs() -> None:
    """A /sys that shows the sandbox's network devices; control groups and BPF objects stay in view."""
    kept = []
    for path in ("/sys/fs/cgroup", "/sys/fs/bpf"):
        if os.path.ismount(path):
            kept.append((path, os.open(path, os.O_PATH | os.O_CLOEXEC)))
    linux.mount("sysfs", "/sys", "sysfs", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC)
    for path, fd in kept:
        linux.mount(f"/proc/self/fd/{fd}", path, flags=linux.MS_BIND | linux.MS_REC)
        os.close(fd)


def _pause() -> NoReturn:
    try:
        linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
        linux.prctl(linux.PR_SET_NAME, b"podwire-pause")
        os.setsid()
        launch.reset_signals()
        launch.close_all_but()
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGCHLD,))
        while True:
            signal.sigwait((signal.SIGCHLD,))
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                continue
    finally:
        os._exit(1)


def main(spec: Spec, control: socket.socket) -> NoReturn:
    """The whole life of a supervisor, in a process just forked from the spawner; never returns."""
    code = 1
    try:
        os.setsid()
        launch.reset_signals()
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        os.umask(0o022)
        launch.close_all_but(control.fileno())
        log = os.open(f"{spec.state_dir}/supervisor.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        supervisor = Supervisor(spec)
        try:
            supervisor.set_up()
        except OSError as failure:
            what = f"{failure.filename}: {failure.strerror}" if failure.filename else str(failure)
            control.sendall(wire.encode({"event": "failed", "message": what}))
        else:
            supervisor.serve_forever(control)
            code = 0
    finally:
        kind, error, trace = sys.exc_info()
        if kind is not None and error is not None:
            sys.excepthook(kind, error, trace)
        os._exit(code)
