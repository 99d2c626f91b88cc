"""Arguments that several commands take: each check names the flag and the value that it refuses."""

from __future__ import annotations

import math
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from podwire.cli.errors import usage

_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_PART = r"[0-9]+(?:\.[0-9]+)?(?:h|ms|m|s)"
_DURATION = re.compile(rf"{_PART}(?:{_PART})*")
_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
LONGEST = 366 * 86400.0
"""Seconds that any wait may take at most."""

Root = Annotated[
    str | None,
    typer.Option(
        "--root",
        metavar="DIR",
        help="Keep state in DIR/lib and sockets in DIR/run instead of /var/lib/podwire and /run/podwire."
        "  [env var: PODWIRE_ROOT]",
        show_default=False,
    ),
]


KubeletPort = Annotated[
    int | None,
    typer.Option(
        "--kubelet-port",
        metavar="PORT",
        min=0,
        max=65535,
        help="With --kubeconfig: where that API server reaches logs, exec and port-forward of the pods here;"
        " 0 for nowhere.  [default: 10250]",
        show_default=False,
    ),
]
ClientAuthority = Annotated[
    str,
    typer.Option(
        "--client-ca-file",
        metavar="FILE",
        help="Who comes to that port with a certificate by this authority is who it says.",
        show_default=False,
    ),
]
Certificate = Annotated[
    str,
    typer.Option(
        "--tls-cert-file",
        metavar="FILE",
        help="What that port shows, with intermediates.  [default: one made here]",
        show_default=False,
    ),
]
PrivateKey = Annotated[
    str,
    typer.Option(
        "--tls-private-key-file", metavar="FILE", help="The key of --tls-cert-file.", show_default=False
    ),
]


def namespace(text: str | None) -> str | None:
    """A namespace's name (RFC 1123 label) as ``--namespace`` gives it."""
    if text is not None and not _LABEL.fullmatch(text):
        raise usage(
            f"--namespace {text!r} is not a namespace's name: at most 63 lower-case letters, digits and '-'"
        )
    return text


def seconds(flag: str) -> Callable[[float | None], float | None]:
    """A check that a number of seconds is one that can be waited for."""

    def check(value: float | None) -> float | None:
        if value is not None and not (math.isfinite(value) and value <= LONGEST):
            raise usage(f"{flag} {value:g}: a number of seconds up to {LONGEST:.0f} (a year) is expected")
        return value

    return check


def duration(flag: str) -> Callable[[str], str]:
    """A check that a text is a duration as Go writes them: ``90s``, ``5m``, ``1h30m``, or empty."""

    def check(text: str) -> str:
        if text and not (_DURATION.fullmatch(text) and parse_duration(text) <= LONGEST):
            raise usage(f"{flag} {text!r} is not a duration", hint="As in: 30s, 5m, 1h30m.")
        return text

    return check


def parse_duration(text: str) -> float:
    """The seconds of a duration that :func:`duration` has passed."""
    parts = re.findall(r"([0-9.]+)(h|ms|m|s)", text)
    return math.fsum(float(number) * _SECONDS[unit] for number, unit in parts)


def no_directory(path: str | Path) -> str:
    """Why ``path`` cannot be a directory; empty if it is one, or could be made."""
    try:
        return "" if stat.S_ISDIR(os.stat(path).st_mode) else "not a directory"  # noqa: PTH116
    except FileNotFoundError:
        return "a symbolic link to nowhere" if os.path.islink(path) else ""  # noqa: PTH114
    except OSError as error:
        return error.strerror or str(error)


def directory(flag: str) -> Callable[[str], str]:
    """A check that a path can be a directory: it is one, or nothing is there yet."""

    def check(text: str) -> str:
        reason = no_directory(text) if text else "the directory's name is empty"
        if reason:
            raise usage(f"{flag} {text}: {reason}" if text else f"{flag}: {reason}")
        return text

    return check


def examples(*lines: str) -> str:
    """Command lines to copy, kept as they are (the mark is click's)."""
    return "\b\nExamples:\n" + "\n".join(f"  podwire {line}" for line in lines)
