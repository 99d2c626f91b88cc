"""Programs of the host that a plugin runs, e.g. `ip`, within the time of its request."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Sequence
from subprocess import PIPE, Popen, TimeoutExpired

from podwire.cni.errors import CNIError, TryLater

FAILED = 100
"""The code of a program's failure, one of those that the specification leaves to plugins."""
_TICK = 0.5


def run(command: Sequence[str], deadline: float, cancel: threading.Event | None = None) -> str:
    """Run a program and return its stdout; CNIError (100) tells its stderr.

    It and its children are killed at ``deadline`` (`time.monotonic`) or when ``cancel`` is set: TryLater.
    """
    shown = " ".join(command)
    try:
        process = Popen(
            command, stdout=PIPE, stderr=PIPE, text=True, errors="replace", start_new_session=True
        )
    except (OSError, ValueError) as error:
        raise CNIError(f"{shown}: {error}", code=FAILED) from error
    with process:
        while True:
            left = max(0.0, deadline - time.monotonic())
            try:
                stdout, stderr = process.communicate(timeout=min(_TICK, left))
                break
            except TimeoutExpired:
                cancelled = cancel is not None and cancel.is_set()
                if left and not cancelled:
                    continue
                os.killpg(process.pid, signal.SIGKILL)
                why = "cancelled" if cancelled else "not done at the deadline"
                raise TryLater(f"{shown}: {why}") from None
    if process.returncode:
        said = stderr.strip() or f"exit status {process.returncode}"
        raise CNIError(f"{shown}: {said}", code=FAILED)
    return stdout
