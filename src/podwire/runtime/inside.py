"""A program run inside a running container (CRI Exec): in its namespaces, with the caller's streams."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence

from podwire.runtime import launch
from podwire.runtime.contained import Contained, Namespaces, State
from podwire.runtime.loop import Loop


class Inside:
    """One such program."""

    def __init__(
        self,
        container: Contained,
        argv: tuple[str, ...],
        streams: Sequence[int],
        *,
        namespaces: Namespaces,
        loop: Loop,
        send: Callable[[State], None],
    ) -> None:
        """Fork it; ``streams`` are its three streams, or one terminal.

        ``send`` gets ``{"ok": {"pid"}}`` or ``{"error"}`` once, and after ``ok`` the event ``exit``. Raises
        :class:`podwire.runtime.launch.StartFailure` or OSError.
        """
        if container.program is None or not container.running:
            raise launch.StartFailure("it does not run")
        tty = len(streams) == 1
        environment = (
            {"TERM": "xterm", **container.program.environment} if tty else container.program.environment
        )
        run = container.program._replace(argv=argv, environment=environment, tty=tty)
        inside = os.open(f"/proc/{container.state['pid']}/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        try:
            namespaces.aim(inside)
        finally:
            os.close(inside)
        standard = list(streams) * 3 if tty else list(streams)
        self._report, said = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            self.pid = os.fork()
        except OSError:
            os.close(self._report)
            raise
        else:
            if self.pid == 0:
                launch.child(run, standard, said, mount_namespace=container.mount_namespace)
        finally:
            os.close(said)
        self._loop = loop
        self._send = send
        self._failed = False
        self._over = False
        loop.watch(self._report, self._on_report)

    def _on_report(self) -> None:
        try:
            said = os.read(self._report, 8192).decode(errors="replace")
        except BlockingIOError:
            if not self._over:
                return
            said = ""
        self._loop.forget(self._report)
        os.close(self._report)
        self._report = -1
        if said:
            self._failed = True
            self._send({"error": {"code": "FailedPrecondition", "message": said.split(" ", 2)[2]}})
        else:
            self._send({"ok": {"pid": self.pid}})

    def ended(self, status: int) -> None:
        """It was reaped with that wait status."""
        self._over = True
        if self._report >= 0:
            self._on_report()
        if not self._failed:
            code = os.waitstatus_to_exitcode(status)
            self._send({"event": "exit", "code": code if code >= 0 else 128 - code})

    def kill(self) -> None:
        """Kill it and its process group, if it still runs."""
        if self._over:
            return
        for kill in (os.killpg, os.kill):
            try:
                kill(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
