"""From a forked child of the supervisor to the user's program: mounts, user, directory, exec(2).

Runs between fork and exec in a process with one thread: nothing heavy may be imported here.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import signal
import stat
import struct
import termios
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, NoReturn

from podwire.runtime import linux

DEFAULT_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
START_ERROR: Final = "StartError"
CANNOT_RUN: Final = "ContainerCannotRun"


class StartFailure(Exception):
    """A program that could not be run: what a shell would exit with, the CRI's reason, and the message."""

    def __init__(self, message: str, exit_code: int = 128, reason: str = START_ERROR) -> None:
        super().__init__(message)
        self.message = message
        self.exit_code = exit_code
        self.reason = reason


class Bind(NamedTuple):
    """A file or directory of the host to be shown at ``target``."""

    source: str
    target: str
    readonly: bool


class Program(NamedTuple):
    """What is to be run, and as whom."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    directory: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    tty: bool


def _fields(path: str, count: int) -> list[list[str]]:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:  # noqa: PTH123
            rows = [line.rstrip("\n").split(":") for line in file]
    except FileNotFoundError:
        return []
    return [row for row in rows if len(row) >= count]


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() else None


def program(
    config: Mapping[str, Any], hostname: str, passwd: str = "/etc/passwd", group: str = "/etc/group"
) -> Program:
    """The program of a container: ``config`` is a ContainerConfig as JSON. Raises :class:`StartFailure`.

    The user is looked up in the machine's passwd and group files as container runtimes do it: a user without
    an explicit group gets the group of its passwd line, or 0 if it has none.
    """
    wanted = config["user"]
    uid, gid, name, home = wanted["uid"], wanted["gid"], wanted["username"], "/"
    users = _fields(passwd, 6)
    if uid is None and name:
        row = next((row for row in users if row[0] == name), None)
        uid = _number(row[2]) if row else _number(name)
        if uid is None:
            raise StartFailure(f'user "{name}": no such user in {passwd}')
    uid = uid or 0
    row = next((row for row in users if _number(row[2]) == uid), None)
    login = row[0] if row else ""
    if row:
        home = row[5] or "/"
        gid = (_number(row[3]) or 0) if gid is None else gid
    groups = set(wanted["supplemental_groups"])
    if login:
        for line in _fields(group, 4):
            number = _number(line[2])
            if number is not None and login in line[3].split(","):
                groups.add(number)
    environment = {"PATH": DEFAULT_PATH, "HOSTNAME": hostname, "HOME": home}
    if config["tty"]:
        environment["TERM"] = "xterm"
    environment.update(config["envs"])
    argv = (*config["command"], *config["args"])
    for text in (*argv, *environment, *environment.values(), config["working_dir"]):
        if "\0" in text:
            raise StartFailure(f"{text!r}: a command, variable or directory cannot hold a NUL byte")
    directory = config["working_dir"] or "/"
    return Program(argv, environment, directory, uid, gid or 0, tuple(sorted(groups)), config["tty"])


def mount_proc() -> None:
    """A /proc that shows the PID namespace of the calling process; OSError."""
    linux.mount("proc", "/proc", "proc", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC)


def bind(mount: Bind) -> None:
    """Show a file or directory of the host at another place that exists. Raises :class:`StartFailure`.

    The file system is the machine's own, so a target is never made.
    """
    try:
        source = stat.S_ISDIR(os.stat(mount.source).st_mode)  # noqa: PTH116
    except OSError as error:
        raise StartFailure(
            f"mount {mount.target}: {mount.source}: {os.strerror(error.errno or 0)}"
        ) from error
    target = os.path.realpath(mount.target)
    try:
        directory = stat.S_ISDIR(os.stat(target).st_mode)  # noqa: PTH116
    except OSError as error:
        raise StartFailure(
            f"mount {mount.target}: {target}: {os.strerror(error.errno or 0)} (programs see this machine's "
            "file system, so the place to mount on must exist here)"
        ) from error
    if source != directory:
        kinds = {True: "a directory", False: "a file"}
        raise StartFailure(
            f"mount {mount.target}: {mount.source} is {kinds[source]} and {target} is {kinds[directory]}"
        )
    try:
        linux.mount(mount.source, target, flags=linux.MS_BIND | linux.MS_REC)
        if mount.readonly:
            # A remount must repeat the flags that the file system was mounted with; ST_* equal MS_* for
            # these.
            kept = os.statvfs(target).f_flag & (linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC)
            linux.mount("none", target, flags=linux.MS_BIND | linux.MS_REMOUNT | linux.MS_RDONLY | kept)
    except OSError as error:
        raise StartFailure(
            f"mount {mount.target}: {mount.source}: {os.strerror(error.errno or 0)}"
        ) from error


def set_size(terminal: int, columns: int, rows: int) -> None:
    """Set a terminal's size, by either end of it; OSError."""
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def reset_signals() -> None:
    """Default actions and an empty mask: what Python and the supervisor changed must not reach programs."""
    for number in range(1, signal.NSIG):
        try:
            signal.signal(number, signal.SIG_DFL)
        except (OSError, ValueError):  # KILL, STOP and the C library's own
            continue
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def close_all_but(*keep: int) -> None:
    """Close every descriptor from 3 on, except those of ``keep``."""
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        fd = int(name)
        if fd > 2 and fd not in keep:
            try:
                os.close(fd)
            except OSError:  # the listing's own
                continue


def child(
    run: Program,
    streams: Sequence[int],
    report: int,
    *,
    mounts: Sequence[Bind] = (),
    own_proc: bool = False,
    mount_namespace: int | None = None,
) -> NoReturn:
    """Become ``run``. Called in the forked child; never returns.

    ``streams`` are the three standard streams; with a terminal all three are the same descriptor. A failure
    is written to ``report`` (close-on-exec) as ``<exit code> <reason> <message>``, and is the exit code too.
    """
    code = 128
    said = False
    try:
        linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
        os.setsid()
        reset_signals()
        # Above 2 first, so that no stream is overwritten before it is in place.
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in streams]
        report = fcntl.fcntl(report, fcntl.F_DUPFD_CLOEXEC, 10)
        if mount_namespace is not None:
            linux.setns(mount_namespace, linux.CLONE_NEWNS)
        for number, fd in enumerate(high):
            os.dup2(fd, number)
        close_all_but(report)
        if run.tty:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        if own_proc:
            mount_proc()
        for mount in mounts:
            bind(mount)
        os.umask(0o022)
        _become(run, report)
        _execute(run)
    except StartFailure as failure:
        code, said = failure.exit_code, True
        _report(report, failure.exit_code, failure.reason, failure.message)
    except OSError as error:
        said = True
        _report(
            report, code, START_ERROR, f"{error.filename}: {error.strerror}" if error.filename else str(error)
        )
    finally:
        if not said:
            _report(report, code, START_ERROR, "the program could not be started")
        os._exit(code)


def _report(fd: int, code: int, reason: str, message: str) -> None:
    os.write(fd, f"{code} {reason} {message}".encode(errors="surrogateescape")[:4096])


def _become(run: Program, report: int) -> None:
    os.setgroups(run.groups)
    os.setresgid(run.gid, run.gid, run.gid)
    os.setresuid(run.uid, run.uid, run.uid)
    # A change of user clears it, so it is set again; the supervisor may have died in between.
    linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
    poll = select.poll()
    poll.register(report, 0)
    if poll.poll(0):
        raise StartFailure("the sandbox ended")
    try:
        os.chdir(run.directory)
    except OSError as error:
        raise StartFailure(
            f"working directory {run.directory}: {os.strerror(error.errno or 0)} (programs see this "
            "machine's file system)"
        ) from error


def _execute(run: Program) -> NoReturn:
    """execvpe(3) with errors as container runtimes put them."""
    name = run.argv[0]
    if not name:
        raise StartFailure('exec: "": no command', 127, CANNOT_RUN)
    arguments = list(run.argv)
    if "/" in name:
        candidates = [name]
    else:
        candidates = [
            f"{directory or '.'}/{name}" for directory in run.environment.get("PATH", DEFAULT_PATH).split(":")
        ]
    denied = False
    for path in candidates:
        try:
            os.execve(path, arguments, dict(run.environment))
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                if os.path.lexists(path) and error.errno == errno.ENOENT:
                    raise StartFailure(
                        f'exec: "{path}": its interpreter does not exist', 127, CANNOT_RUN
                    ) from error
                continue
            if error.errno == errno.EACCES:
                denied = True
                continue
            text = "exec format error" if error.errno == errno.ENOEXEC else os.strerror(error.errno or 0)
            raise StartFailure(f'exec: "{path}": {text}', 126, CANNOT_RUN) from error
    if denied:
        raise StartFailure(f'exec: "{name}": permission denied', 126, CANNOT_RUN)
    if "/" in name:
        raise StartFailure(f'exec: "{name}": no such file or directory', 127, CANNOT_RUN)
    raise StartFailure(f'exec: "{name}": executable file not found in $PATH', 127, CANNOT_RUN)
