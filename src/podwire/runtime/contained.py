"""One container as its supervisor sees it: started, its output logged, stopped, its end recorded."""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from podwire.runtime import atomic, launch, linux
from podwire.runtime.attached import Attached
from podwire.runtime.logs import LogFile, Stream
from podwire.runtime.loop import Loop, Timer

CHUNK: Final = 65536
RUNNING: Final = 1
EXITED: Final = 2
"""ContainerState's numbers."""
POD, CONTAINER, NODE = 0, 1, 2
"""PidMode's numbers."""
ROUNDS: Final = 50
"""How often leftover processes are looked for: each round may meet what the one before had forked."""
_RT_SIGTIMEDWAIT: Final = "128" if os.uname().machine == "x86_64" else "137"
"""Its number (asm/unistd.h): x86_64 has one of its own, the architectures with the generic table another."""
_TERM: Final = 1 << (signal.SIGTERM - 1)

State = dict[str, Any]
Answer = Callable[[State], None]


class LogTarget(NamedTuple):
    """Where a container's output goes, as LogFile takes it; an empty path is nowhere."""

    path: str
    limit: int
    files: int


class Namespaces:
    """Where the processes of a sandbox go."""

    def __init__(self, pid_mode: int, own_network: bool) -> None:
        self.pid_mode = pid_mode
        self.own_network = own_network
        self.shared_pid: int | None = None
        """Descriptor of the pod's PID namespace, if it has one."""
        self._pid = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        self._mount = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)

    def fork(self) -> tuple[int, int]:
        """Fork the first process of a new container: in its PID namespace and a mount namespace of its own.

        Returns its PID (0 in the child) and a descriptor of that mount namespace. OSError.
        """
        self.aim(self.shared_pid)
        if self.pid_mode == CONTAINER:
            linux.unshare(linux.CLONE_NEWPID)
        linux.unshare(linux.CLONE_NEWNS)
        mount = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        try:
            pid = os.fork()
        except OSError:
            os.close(mount)
            linux.setns(self._mount, linux.CLONE_NEWNS)
            raise
        if pid:
            linux.setns(self._mount, linux.CLONE_NEWNS)
        return pid, mount

    def aim(self, pid_namespace: int | None) -> None:
        """Children forked from now on go into that PID namespace; None: the supervisor's own."""
        linux.setns(self._pid if pid_namespace is None else pid_namespace, linux.CLONE_NEWPID)


class Contained:
    """A container that was started."""

    def __init__(
        self,
        directory: str,
        config: Mapping[str, Any],
        loop: Loop,
        namespaces: Namespaces,
        changed: Callable[[Contained], None],
    ) -> None:
        """Nothing runs yet.

        ``directory`` holds its record; ``changed`` is called when it runs and when it has ended, before
        anybody is answered.
        """
        self.id = os.path.basename(directory)  # noqa: PTH119
        self.state: State = {
            "state": 0, "pid": 0, "start_time": 0, "started_at": 0, "finished_at": 0,
            "exit_code": 0, "signal": 0, "reason": "", "message": "",
        }  # fmt: skip
        self.program: launch.Program | None = None
        self.mount_namespace = -1
        self._directory = directory
        self._config = config
        self._loop = loop
        self._namespaces = namespaces
        self._changed = changed
        self._log: LogFile | None = None
        self._streams: dict[int, list[Stream]] = {}
        self._numbers: dict[int, int] = {}
        """Of the descriptors in ``_streams``: 1 for stdout and a terminal, 2 for stderr."""
        self._held_up: set[int] = set()
        """Those that are not read because a client is behind."""
        self._clients: list[Attached] = []
        self.stdin = -1
        """Where the program's input goes, if it has any."""
        self._report = -1
        self._said = b""
        self._started: list[Answer] = []
        self._stopped: list[Answer] = []
        self._kill: Timer | None = None
        self._by_term = False

    @property
    def alive(self) -> bool:
        """Whether its first process is there."""
        return bool(self.state["state"] != EXITED and self.state["pid"])

    @property
    def running(self) -> bool:
        """Whether its program runs."""
        return bool(self.state["state"] == RUNNING)

    def start(self, hostname: str, log: LogTarget, notes: list[str], answer: Answer) -> int:
        """Fork its program; ``answer`` is called when it runs or has failed. Returns the PID.

        Raises :class:`podwire.runtime.launch.StartFailure` or OSError when it comes to nothing at once.
        """
        run = launch.program(self._config, hostname)
        self.program = run
        if log.path:
            try:
                self._log = LogFile(log.path, log.limit, log.files)
            except OSError as error:
                raise launch.StartFailure(f"log {log.path}: {os.strerror(error.errno or 0)}") from error
        mounts = [
            launch.Bind(mount["host_path"], mount["container_path"], mount["readonly"])
            for mount in self._config["mounts"]
        ]
        own_proc = self._namespaces.pid_mode != NODE
        opened: list[int] = []
        try:
            ours, theirs = self._open_streams(run.tty, opened)
            report, said = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            opened += (report, said)
            pid, mount = self._namespaces.fork()
        except OSError:
            self.stdin = -1
            for fd in opened:
                os.close(fd)
            raise
        if pid == 0:
            launch.child(run, theirs, said, mounts=mounts, own_proc=own_proc)
        for fd in {*theirs, said}:
            os.close(fd)
        self.mount_namespace = mount
        self._report = report
        self._streams = ours
        self._started.append(answer)
        self.state.update(pid=pid, start_time=linux.start_time(pid), message="; ".join(notes))
        self._loop.watch(report, self._on_report)
        for fd in ours:
            self._loop.watch(fd, functools.partial(self._pump, fd))
        return pid

    def _open_streams(self, tty: bool, opened: list[int]) -> tuple[dict[int, list[Stream]], list[int]]:
        """Our ends, each with where it goes, and the child's three streams; all go into ``opened`` too."""

        def streams(name: str) -> list[Stream]:
            return [Stream(name, self._log)] if self._log else []

        if tty:
            ours, theirs = os.openpty()
            opened += (ours, theirs)
            os.set_blocking(ours, False)
            if self._config["stdin"]:
                self.stdin = os.dup(ours)
                opened.append(self.stdin)
            self._numbers[ours] = 1
            return {ours: streams("stdout")}, [theirs, theirs, theirs]
        if self._config["stdin"]:
            stdin, self.stdin = os.pipe2(os.O_CLOEXEC)
            os.set_blocking(self.stdin, False)
            opened += (stdin, self.stdin)
        else:
            stdin = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
            opened.append(stdin)
        result: dict[int, list[Stream]] = {}
        theirs_all = [stdin]
        for number, name in enumerate(("stdout", "stderr"), 1):
            ours, theirs = os.pipe2(os.O_CLOEXEC)
            opened += (ours, theirs)
            os.set_blocking(ours, False)
            result[ours] = streams(name)
            self._numbers[ours] = number
            theirs_all.append(theirs)
        return result, theirs_all

    def _pump(self, fd: int) -> bool:
        """Move what there is into the log; False when there is nothing more for now or for good."""
        try:
            data = os.read(fd, CHUNK)
        except BlockingIOError:
            return False
        except OSError:  # EIO: the other end of a terminal is closed
            data = b""
        for stream in self._streams[fd]:
            stream.feed(data) if data else stream.end()
        if not data:
            self._close_output(fd)
            return False
        for client in list(self._clients):
            client.give(self._numbers[fd], data)
        if any(client.behind for client in self._clients):
            self._hold_up()
        return True

    def _close_output(self, fd: int) -> None:
        if fd in self._held_up:
            self._held_up.discard(fd)
        else:
            self._loop.forget(fd)
        os.close(fd)
        del self._streams[fd]

    def _hold_up(self) -> None:
        for fd in self._streams.keys() - self._held_up:
            self._loop.forget(fd)
            self._held_up.add(fd)

    def resume(self) -> None:
        """A client has taken what held the program up, or has gone."""
        if any(client.behind for client in self._clients):
            return
        held, self._held_up = self._held_up, set()
        for fd in held:
            self._loop.watch(fd, functools.partial(self._pump, fd))

    def attach(
        self,
        streams: Sequence[int],
        *,
        stdin: bool,
        stall: float,
        ended: Callable[[int], None],
        gone: Callable[[], None],
    ) -> Attached:
        """Join a client to its streams, see Attached. Raises StartFailure or OSError."""
        if not self.running:
            raise launch.StartFailure("it does not run")
        made = Attached(self, streams, stdin=stdin, stall=stall, loop=self._loop, ended=ended, gone=gone)
        self._clients.append(made)
        return made

    def detach(self, client: Attached) -> None:
        """That client has gone."""
        if client in self._clients:
            self._clients.remove(client)
        client.close()

    def input_ended(self) -> None:
        """A client's input has ended: with ``stdin_once`` so has the program's, unless it is a terminal."""
        if self._config.get("stdin_once") and not self._config["tty"]:
            self._close_stdin()

    def _close_stdin(self) -> None:
        if self.stdin >= 0:
            os.close(self.stdin)
            self.stdin = -1

    def resize(self, columns: int, rows: int) -> None:
        """Set the size of its terminal; nothing without one. OSError."""
        if self._config["tty"] and self._streams:
            launch.set_size(next(iter(self._streams)), columns, rows)

    def _on_report(self) -> None:
        """The child has written why it failed, or exec(2) has closed its end."""
        if self._report < 0:
            return
        try:
            data = os.read(self._report, 8192)
        except BlockingIOError:
            return
        self._said += data
        if data:
            return
        self._loop.forget(self._report)
        os.close(self._report)
        self._report = -1
        if not self._said and self.state["state"] == 0:
            self.state.update(state=RUNNING, started_at=time.time_ns())
            self._save()
            self._changed(self)
            self._tell(self._started, {"ok": {}})

    def ended(self, status: int) -> None:
        """Its first process was reaped with that wait status: end the rest, and record it."""
        while self._report >= 0:
            before = len(self._said)
            self._on_report()
            if self._report >= 0 and len(self._said) == before:
                # A copy of the pipe's other end outlived the child; what it had to say is read.
                self._loop.forget(self._report)
                os.close(self._report)
                self._report = -1
        if self._kill is not None:
            self._kill.cancel()
        if self._namespaces.pid_mode != CONTAINER:
            kill_in_mount_namespace(self.mount_namespace)
        self._finish_streams()
        code = os.waitstatus_to_exitcode(status)
        number = -code if code < 0 else 0
        if self._by_term and number == signal.SIGKILL:
            number = int(signal.SIGTERM)
        exit_code = 128 + number if number else code
        message = self.state["message"]
        reason = "Completed" if exit_code == 0 else "Error"
        if self._said:
            said_code, reason, message = self._said.decode(errors="replace").split(" ", 2)
            exit_code, number = int(said_code), 0
        self.finish(exit_code, reason, message, number)

    def _finish_streams(self) -> None:
        for fd in list(self._streams):
            while self._pump(fd):
                pass
        for fd, streams in list(self._streams.items()):
            # Somebody outside the container holds the other end; the program itself has ended.
            for stream in streams:
                stream.end()
            self._close_output(fd)
        self._close_stdin()
        if self.mount_namespace >= 0:
            os.close(self.mount_namespace)
            self.mount_namespace = -1
        if self._log is not None:
            if self._log.lost:
                complain(f"{self._log.path}: {self._log.lost} bytes lost: {self._log.error}")
            self._log.close()
            self._log = None

    def finish(self, exit_code: int, reason: str, message: str, number: int = 0) -> None:
        """Record the end and tell whoever waits."""
        if self._log is not None:
            self._log.close()
            self._log = None
        self.state.update(
            state=EXITED,
            finished_at=time.time_ns(),
            exit_code=exit_code,
            signal=number,
            reason=reason,
            message=message,
        )
        self._save()
        self._changed(self)
        for client in self._clients:
            client.end(exit_code)
        self._tell(self._started, {"error": {"code": "FailedPrecondition", "message": message}})
        self._tell(self._stopped, {"ok": {}})

    def stop(self, timeout: float, answer: Answer | None = None) -> None:
        """TERM, and KILL after ``timeout`` seconds; ``answer`` is called when it has ended."""
        if not self.alive:
            if answer is not None:
                answer({"ok": {}})
            return
        if answer is not None:
            self._stopped.append(answer)
        pid = self.state["pid"]
        if timeout <= 0 or self.state["state"] != RUNNING:
            os.kill(pid, signal.SIGKILL)
            return
        if self._kill is None and self._namespaces.pid_mode == CONTAINER and not hears_term(pid):
            # The kernel keeps signals without a handler from PID 1 of a namespace. TERM's default action is
            # to end the program, as it would anywhere else.
            self._by_term = True
            os.kill(pid, signal.SIGKILL)
            return
        if self._kill is None:
            os.kill(pid, signal.SIGTERM)
        elif self._kill.action is not None and self._kill.when <= time.monotonic() + timeout:
            return
        else:
            self._kill.cancel()
        self._kill = self._loop.after(timeout, lambda: os.kill(pid, signal.SIGKILL))

    def _save(self) -> None:
        try:
            atomic.write(f"{self._directory}/state.json", json.dumps(self.state).encode())
        except OSError as error:
            complain(f"{self._directory}/state.json: {error}")

    @staticmethod
    def _tell(waiting: list[Answer], answer: State) -> None:
        while waiting:
            waiting.pop(0)(answer)


def complain(text: str) -> None:
    """Say it in the supervisor's log, if there is room: a full disk must not end what runs."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        return


def hears_term(pid: int) -> bool:
    """Whether a PID 1 would get TERM: it is caught, or blocked to be fetched, or ignored on purpose."""
    masks = 0
    try:
        # A program that waits in sigwait(3) shows the signals that it waits for in no mask (rt_sigtimedwait
        # unblocks them meanwhile), so whether it waits is asked before and after.
        if _waits_for_signals(pid):
            return True
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:  # noqa: PTH123
            for line in file:
                name, _, value = line.partition(":")
                if name in ("SigBlk", "SigIgn", "SigCgt"):
                    masks |= int(value, 16)
        return bool(masks & _TERM) or _waits_for_signals(pid)
    except (FileNotFoundError, ProcessLookupError):
        return True


def _waits_for_signals(pid: int) -> bool:
    with open(f"/proc/{pid}/syscall", encoding="ascii") as file:  # noqa: PTH123
        return file.read().split()[0] == _RT_SIGTIMEDWAIT


def kill_in_mount_namespace(fd: int) -> None:
    """Kill every process that lives in the mount namespace behind ``fd``."""
    wanted = os.fstat(fd)
    for _ in range(ROUNDS):
        found = False
        for name in os.listdir("/proc"):  # noqa: PTH208
            if not name.isdigit():
                continue
            try:
                there = os.stat(f"/proc/{name}/ns/mnt")  # noqa: PTH116
                if (there.st_ino, there.st_dev) == (wanted.st_ino, wanted.st_dev):
                    os.kill(int(name), signal.SIGKILL)
                    found = True
            except OSError:  # it has ended, or is of another world and out of reach
                continue
        if not found:
            return
