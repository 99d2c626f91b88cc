"""What some plugins need beside themselves: for dhcp, its daemon and a DHCP server on the pod's link."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

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


def dhcp(executable: str, interface: str) -> list[subprocess.Popen[bytes]]:
    """Start a DHCP server (busybox) on ``interface``, which has 10.89.0.1/24, and the plugin's daemon."""
    busybox = shutil.which("busybox")
    if busybox is None:
        raise NotTestable("dhcp needs a DHCP server on the container's link: install busybox")
    HOME.mkdir(exist_ok=True)
    (HOME / "leases").touch()
    settings = HOME / "udhcpd.conf"
    settings.write_text(_DHCP_SERVER.format(interface=interface, home=HOME))
    started = [
        # Without waiting for an ARP answer before each offer: nobody else has these addresses.
        _start(busybox, "udhcpd", "-f", "-a", "1", str(settings)),
        _start(executable, "daemon"),
    ]
    deadline = time.monotonic() + _START_SECONDS
    while not _DHCP_SOCKET.exists():
        if started[1].poll() is not None or time.monotonic() > deadline:
            stop(started)
            raise NotTestable(f"{executable} daemon made no {_DHCP_SOCKET}")
        time.sleep(0.01)
    return started


def stop(processes: list[subprocess.Popen[bytes]]) -> None:
    """Kill what was started, and wait for its end."""
    for process in processes:
        process.kill()
        process.wait()


def _start(*command: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
