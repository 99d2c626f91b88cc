"""`dhcp daemon`: the keeper of leases as a process of its own, for hosts without the agent.

The reference daemon's flags are taken (Go writes them with one dash).
"""

from __future__ import annotations

import argparse
import logging
import os
import re
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from podwire.dhcp.errors import DHCPError
from podwire.dhcp.keeper import LeaseKeeper
from podwire.dhcp.service import KeeperService, listen
from podwire.dhcp.wire import SOCKET

STORE = "/var/lib/podwire/dhcp.sqlite"
RESEND_SECONDS = 208.0
"""The longest time of an acquisition, as in the reference."""
_FIRST_FD = 3  # sd_listen_fds(3)
_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_PART = re.compile(r"(\d+\.?\d*|\.\d+)(h|ms|m|s|us|µs|ns)")


def duration(text: str) -> float:
    """Return the seconds of a duration as Go writes it (``1m30s``); ValueError for anything else."""
    if text == "0":
        return 0.0
    if not text or _PART.sub("", text):
        raise ValueError(text)
    return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))


def _boolean(text: str) -> bool:
    if text.lower() not in {"true", "false", "1", "0", "t", "f"}:
        raise ValueError(text)
    return text.lower() in {"true", "1", "t"}


def parser() -> argparse.ArgumentParser:
    """The flags."""
    made = argparse.ArgumentParser("dhcp daemon", description=__doc__, allow_abbrev=False)
    for name, text in (
        ("pidfile", "a file to write the daemon's PID to"),
        ("hostprefix", "a prefix of the paths of network namespaces and of the socket"),
    ):
        made.add_argument(f"-{name}", f"--{name}", default="", metavar="PATH", help=text)
    made.add_argument(
        "-socketpath", "--socketpath", default=SOCKET, metavar="PATH", help=f"where to listen ({SOCKET})"
    )
    made.add_argument("-store", "--store", default=STORE, metavar="PATH", help=f"the leases' file ({STORE})")
    made.add_argument(
        "-broadcast",
        "--broadcast",
        nargs="?",
        const=True,
        default=False,
        type=_boolean,
        metavar="BOOL",
        help="have servers answer by broadcast",
    )
    made.add_argument(
        "-resendtimeout",
        "--resendtimeout",
        default=RESEND_SECONDS,
        type=duration,
        metavar="DURATION",
        help="the longest time of an acquisition (208s)",
    )
    for name in ("timeout", "resendmax"):
        made.add_argument(
            f"-{name}",
            f"--{name}",
            type=duration,
            metavar="DURATION",
            help="taken, and without effect: answers are listened for all the time",
        )
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT; the leases stay for the next start. Return the exit status."""
    flags = parser().parse_args(arguments)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="dhcp: %(message)s")
    # Blocked before any thread starts, so that the wait below is where they arrive.
    signals = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    if flags.pidfile and not Path(flags.pidfile).is_absolute():
        sys.stderr.write(f"dhcp daemon: -pidfile {flags.pidfile}: is no absolute path\n")
        return 1
    path = flags.hostprefix + flags.socketpath
    handed_over = _handed_over()
    keeper = LeaseKeeper(flags.store, host_prefix=flags.hostprefix, broadcast=flags.broadcast)
    try:
        keeper.start()
        try:
            listener = handed_over or listen(path)
            with KeeperService(keeper, listener, longest=flags.resendtimeout):
                if flags.pidfile:
                    Path(flags.pidfile).write_text(str(os.getpid()), encoding="ascii")
                signal.sigwait(signals)
                if handed_over is None:
                    Path(path).unlink(missing_ok=True)
        finally:
            keeper.close()
    except (DHCPError, OSError) as error:
        sys.stderr.write(f"dhcp daemon: {error}\n")
        return 1
    finally:
        if flags.pidfile:
            Path(flags.pidfile).unlink(missing_ok=True)
    return 0


def _handed_over() -> socket.socket | None:
    """The listening socket that the service manager opened for this process, if it did (sd_listen_fds(3))."""
    if os.environ.get("LISTEN_PID") != str(os.getpid()) or os.environ.get("LISTEN_FDS") != "1":
        return None
    return socket.socket(fileno=_FIRST_FD)
