"""What some plugins need beside themselves: a daemon; for dhcp, a DHCP server on the pod's link too."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

import msgspec

from podwire.conformance.findings import NotTestable

HOME = Path("/run/conformance")
"""Where services keep their files; no check looks there."""

_DHCP_SOCKET = Path("/run/cni/dhcp.sock")
_START_SECONDS = 10.0
_DHCP_SERVER = """interface {interface}
start 10.89.0.20
end 10.89.0.250
option subnet 255.255.255.0
option router 10.89.0.1
option lease 600
lease_file {home}/leases
pidfile {home}/pid
"""


class Daemon(msgspec.Struct, frozen=True):
    """A program that a plugin hands its work to: its words, and the path that is there when it serves."""

    command: tuple[str, ...]
    ready: Path


def daemon(wanted: Daemon | None, timeout: float) -> list[subprocess.Popen[bytes]]:
    """Start the daemon and wait ``timeout`` seconds at most until it serves.

    NotTestable says what became of it, with its last words.
    """
    if wanted is None:
        return []
    HOME.mkdir(exist_ok=True)
    with (HOME / "stderr").open("w+b") as words:
        started = [_start(*wanted.command, stderr=words)]
        try:
            _wait(
                started, wanted.ready.exists, f"{' '.join(wanted.command)}: made no {wanted.ready}", timeout
            )
        except NotTestable as error:
            words.seek(0)
            said = words.read().decode(errors="replace").strip().splitlines()
            raise NotTestable(f"{error}; it said: {said[-1] if said else 'nothing'}") from None
    return started


def dhcp(executable: str, interface: str, *, served: bool = False) -> list[subprocess.Popen[bytes]]:
    """Start a DHCP server (busybox) on ``interface``, which has 10.89.0.1/24, and the plugin's daemon.

    ``served``: another daemon does its part.
    """
    busybox = shutil.which("busybox")
    if busybox is None:
        raise NotTestable("dhcp needs a DHCP server on the container's link: install busybox")
    HOME.mkdir(exist_ok=True)
    (HOME / "leases").touch()
    settings = HOME / "udhcpd.conf"
    settings.write_text(_DHCP_SERVER.format(interface=interface, home=HOME))
    # Without waiting for an ARP answer before each offer: nobody else has these addresses.
    started = [_start(busybox, "udhcpd", "-f", "-a", "1", str(settings))]
    if not served:
        started.append(_start(executable, "daemon"))
        _wait(started, _DHCP_SOCKET.exists, f"{executable} daemon made no {_DHCP_SOCKET}")
    return started


def _wait(
    started: list[subprocess.Popen[bytes]],
    ready: Callable[[], bool],
    otherwise: str,
    seconds: float = _START_SECONDS,
) -> None:
    deadline = time.monotonic() + seconds
    while not ready():
        ended = started[-1].poll() is not None
        if ended or time.monotonic() > deadline:
            stop(started)
            raise NotTestable(f"{otherwise} {'and ended' if ended else f'within {seconds:g} s'}")
        time.sleep(0.01)


def stop(processes: list[subprocess.Popen[bytes]]) -> None:
    """Kill what was started, and wait for its end."""
    for process in processes:
        process.kill()
        process.wait()


def _start(*command: str, stderr: int | IO[bytes] = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr)
    except OSError as error:
        raise NotTestable(f"{command[0]}: {error.strerror}") from error
