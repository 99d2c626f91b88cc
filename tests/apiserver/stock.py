"""A stock kubectl with the kubeconfig of a server, in a namespace of its own."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SECONDS = 30.0


class Stock:
    """Runs one kubectl. ``namespace`` is that of all commands unless they name another."""

    def __init__(self, program: str, kubeconfig: Path, home: Path, namespace: str) -> None:
        self.program = program
        self.namespace = namespace
        self.home = home
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "KUBECONFIG": str(kubeconfig),
            "TERM": "dumb",
        }

    def __call__(self, *arguments: str, stdin: Any = None, code: int = 0, **environment: str) -> str:
        """What it prints; ``stdin`` is given as JSON, ``code`` is how it must end (then what stderr says)."""
        done = subprocess.run(
            self.line(arguments),
            input="" if stdin is None else stdin if isinstance(stdin, str) else json.dumps(stdin),
            capture_output=True,
            text=True,
            env={**self.environment, **environment},
            timeout=SECONDS,
        )
        told = f"kubectl {' '.join(arguments)}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert done.returncode == code, told
        assert "panic:" not in done.stderr, told
        return done.stdout if not code else done.stdout + done.stderr

    def line(self, arguments: Sequence[str]) -> list[str]:
        """The command line."""
        return [self.program, "--namespace", self.namespace, *arguments]

    def json(self, *arguments: str) -> Any:
        """What it prints with ``-o json``."""
        return json.loads(self(*arguments, "-o", "json"))

    def beside(self, *arguments: str) -> Beside:
        """It, while the test goes on."""
        return Beside(self.line(arguments), self.environment)


class Beside:
    """A kubectl that runs on; used with ``with``."""

    def __init__(self, line: list[str], environment: dict[str, str]) -> None:
        self._program = subprocess.Popen(
            line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment, bufsize=0
        )
        self._text = b""

    def __enter__(self) -> Beside:
        return self

    def __exit__(self, *_: object) -> None:
        if self._program.poll() is None:
            self._program.kill()
        self._program.wait()
        assert self._program.stdout is not None
        self._program.stdout.close()

    def until(self, *words: str) -> str:
        """All that it has printed, once the words are in it, one behind the other."""
        assert self._program.stdout is not None
        end = time.monotonic() + SECONDS
        with selectors.DefaultSelector() as ready:
            ready.register(self._program.stdout, selectors.EVENT_READ)
            while not self._has(words):
                assert ready.select(end - time.monotonic()), f"{words} not in:\n{self.text}"
                chunk = os.read(self._program.stdout.fileno(), 1 << 16)
                assert chunk or self._has(words), f"ended without {words}:\n{self.text}"
                self._text += chunk
        return self.text

    def shows(self, word: str) -> bool:
        """Whether the word is printed within a second."""
        assert self._program.stdout is not None
        with selectors.DefaultSelector() as ready:
            ready.register(self._program.stdout, selectors.EVENT_READ)
            while word not in self.text and ready.select(1.0):
                chunk = os.read(self._program.stdout.fileno(), 1 << 16)
                assert chunk, f"ended:\n{self.text}"
                self._text += chunk
        return word in self.text

    def ends(self, code: int = 0) -> None:
        """Wait for its end."""
        assert self._program.wait(SECONDS) == code, self.text

    @property
    def text(self) -> str:
        """What was read so far."""
        return self._text.decode()

    def _has(self, words: Sequence[str]) -> bool:
        at = 0
        for word in words:
            at = self.text.find(word, at)
            if at < 0:
                return False
            at += len(word)
        return True
