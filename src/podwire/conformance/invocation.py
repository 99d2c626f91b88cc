"""One call of a plugin's executable, told whole: variables and stdin in; streams, status and time out."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping
from typing import Any

import msgspec

_SHOWN = 200


class Ran(msgspec.Struct, frozen=True):
    """What a call left. ``label`` says what was done, for people.

    ``status`` is negative for a signal; ``hung`` tells that it was killed at its deadline.
    """

    label: str
    command: str
    status: int
    stdout: bytes
    stderr: bytes
    seconds: float
    hung: bool = False

    @property
    def said(self) -> Any:
        """The JSON value on stdout; None if there is none."""
        try:
            return msgspec.json.decode(self.stdout)
        except (msgspec.DecodeError, RecursionError):
            return None

    @property
    def error(self) -> Mapping[str, Any] | None:
        """The error of the protocol on stdout; None if there is none."""
        said = self.said
        return said if isinstance(said, dict) and "code" in said else None

    def describe(self) -> str:
        """Tell in one line how it ended."""
        if self.hung:
            return f"it did not end within {self.seconds:.1f} s and was killed"
        how = f"exit status {self.status}" if self.status >= 0 else f"killed by {_signal(-self.status)}"
        error = self.error
        if error is not None:
            details = f"; {error['details']}" if error.get("details") else ""
            return f"{how}, code {error['code']}: {error.get('msg')}{details}"
        shown = shorten(self.stdout.decode(errors="replace").strip()) if self.stdout.strip() else "nothing"
        noise = f", stderr: {_ends(self.stderr.decode(errors='replace'))}" if self.stderr.strip() else ""
        return f"{how}, stdout: {shown}{noise}"


def shorten(text: str, limit: int = _SHOWN) -> str:
    """Return text as one line of at most ``limit`` characters."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def _ends(text: str) -> str:
    """Return both ends of a long text: Go tells what happened first, Python last."""
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else f"{line[: _SHOWN // 2]} … {line[-_SHOWN // 2 :]}"


def execute(
    executable: str, variables: Mapping[str, str], stdin: bytes, *, label: str, timeout: float
) -> Ran:
    """Run an executable with these ``CNI_*`` variables and no other ones, for ``timeout`` seconds at most."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith("CNI_")}
    began = time.monotonic()
    process = subprocess.Popen(
        [executable],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**environ, **variables},
        start_new_session=True,
    )
    hung = False
    with process:
        try:
            stdout, stderr = process.communicate(stdin, timeout=timeout)
        except subprocess.TimeoutExpired:
            hung = True
            _kill(process.pid)
            stdout, stderr = process.communicate()
        except BaseException:
            _kill(process.pid)
            raise
    return Ran(
        label=label,
        command=variables.get("CNI_COMMAND", ""),
        status=process.returncode,
        stdout=stdout,
        stderr=stderr,
        seconds=time.monotonic() - began,
        hung=hung,
    )


def _kill(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
