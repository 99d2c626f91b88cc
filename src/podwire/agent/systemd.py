"""What systemd wants to hear of a service of Type=notify (sd_notify(3)), without its library."""

from __future__ import annotations

import os
import socket


def notify(*states: str) -> bool:
    """Send ``READY=1`` and the like to the service manager; False if there is none, or it is not there."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return False
    if address.startswith("@"):
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
            sock.sendto("\n".join(states).encode(), address)
    except OSError:
        return False
    return True
