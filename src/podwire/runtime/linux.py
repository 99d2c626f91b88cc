"""System calls about processes and mounts that Python 3.11 does not have."""

from __future__ import annotations

import ctypes
import os
from typing import Final

CLONE_NEWNS: Final = 0x00020000
CLONE_NEWUTS: Final = 0x04000000
CLONE_NEWIPC: Final = 0x08000000
CLONE_NEWPID: Final = 0x20000000
CLONE_NEWNET: Final = 0x40000000

MS_RDONLY: Final = 1
MS_NOSUID: Final = 2
MS_NODEV: Final = 4
MS_NOEXEC: Final = 8
MS_REMOUNT: Final = 32
MS_BIND: Final = 4096
MS_REC: Final = 16384
MS_SLAVE: Final = 1 << 19

PR_SET_PDEATHSIG: Final = 1
PR_SET_NAME: Final = 15
PR_SET_CHILD_SUBREAPER: Final = 36

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, call: str, subject: str = "") -> None:
    if result < 0:
        errno = ctypes.get_errno()
        raise OSError(errno, f"{call}: {os.strerror(errno)}", subject or None)


def unshare(flags: int) -> None:
    """Move the calling thread into new namespaces (``CLONE_NEW*``); OSError."""
    _check(_libc.unshare(flags), "unshare")


def setns(fd: int, kind: int) -> None:
    """Move the calling thread into the namespace behind ``fd``, which must be of ``kind``; OSError."""
    _check(_libc.setns(fd, kind), "setns")


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    """Mount a file system or a directory (mount(2)); OSError with ``target`` as its file name."""
    result = _libc.mount(
        os.fsencode(source),
        os.fsencode(target),
        os.fsencode(kind) if kind else None,
        ctypes.c_ulong(flags),
        os.fsencode(data) if data else None,
    )
    _check(result, "mount", target)


def prctl(option: int, value: int | bytes) -> None:
    """Set a property of this process (prctl(2)) to a number or a text; OSError."""
    argument = ctypes.c_char_p(value) if isinstance(value, bytes) else ctypes.c_ulong(value)
    _check(_libc.prctl(option, argument, 0, 0, 0), "prctl")


def start_time(pid: int) -> int:
    """When process ``pid`` started, in clock ticks since boot (proc(5), stat field 22); 0 if there is none.

    Together with the PID it names a process for good.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - pathlib is not imported here
            stat = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(stat[stat.rindex(b")") + 2 :].split()[19])
