"""A throwaway host: a thread in a network and a mount namespace of its own, with empty state directories.

Programs that the thread starts inherit both, and so do its helper threads. When the thread has ended,
the kernel takes away all that was in them. Needs root (CAP_SYS_ADMIN).
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar, cast

from podwire.conformance.findings import NotTestable
from podwire.kernel import links
from podwire.kernel.netlink import RouteSocket

T = TypeVar("T")

STATE_DIRECTORIES = (Path("/run"), Path("/var/lib"))
"""Where plugins keep files: empty at the start of each throwaway host."""

_CLONE_NEWNS = 0x00020000
_CLONE_NEWNET = 0x40000000
_MS_BIND = 0x1000
_MS_REC_PRIVATE = 0x4000 | 0x40000

_libc = ctypes.CDLL(None, use_errno=True)


def require_root() -> None:
    """Raise NotTestable unless namespaces can be made here."""
    if os.geteuid() != 0:
        raise NotTestable("a conformance run makes network and mount namespaces, so it needs root")


def on_new_host(function: Callable[[], T], keep: Sequence[str] = ()) -> T:
    """Call ``function`` in a thread on a host of its own and return what it returns.

    ``keep`` are directories that must stay as they are, also where they lie below a state directory.
    """
    outcome: list[object] = []
    failure: list[BaseException] = []

    def body() -> None:
        try:
            _isolate(keep)
            outcome.append(function())
        except BaseException as error:  # noqa: BLE001 - raised again in the caller
            failure.append(error)

    thread = threading.Thread(target=body, name="conformance host")
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return cast(T, outcome[0])


def _isolate(keep: Sequence[str]) -> None:
    _call("unshare", _libc.unshare(_CLONE_NEWNS | _CLONE_NEWNET))
    _mount(None, "/", None, _MS_REC_PRIVATE)
    kept = [
        (directory, os.open(directory, os.O_PATH | os.O_CLOEXEC))
        for directory in dict.fromkeys(str(Path(one).resolve()) for one in keep)
        if Path(directory).is_dir() and any(state in Path(directory).parents for state in STATE_DIRECTORIES)
    ]
    for state in STATE_DIRECTORIES:
        _mount("tmpfs", str(state), "tmpfs")
    for directory, fd in kept:
        Path(directory).mkdir(parents=True, exist_ok=True)
        _mount(f"/proc/self/fd/{fd}", directory, None, _MS_BIND)
        os.close(fd)
    # /sys/class/net shows the namespace that mounted it.
    _mount("sysfs", "/sys", "sysfs")
    with RouteSocket.open() as sock:
        sock.send(links.configure("lo", up=True))


def _mount(source: str | None, target: str, kind: str | None, flags: int = 0) -> None:
    raw = [None if text is None else os.fsencode(text) for text in (source, target, kind)]
    _call(f"mount {target}", _libc.mount(*raw, flags, None))


def _call(operation: str, result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise NotTestable(f"cannot make a throwaway host: {operation}: {os.strerror(number)}")
