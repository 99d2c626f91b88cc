"""The kubectl programs of this machine, and how tests run them."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import pty
import re
import select
import shutil
import struct
import subprocess
import termios
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SECONDS = 30.0


@dataclass(frozen=True)
class Kubectl:
    """One program; ``environment`` says what it is told beside."""

    path: str
    name: str
    environment: tuple[tuple[str, str], ...] = field(default=())

    def __str__(self) -> str:
        return self.name

    def arguments(self, url: str, home: Path, *arguments: str) -> list[str]:
        """``url`` may be the path of a kubeconfig, too."""
        where = "--server" if url.startswith("http") else "--kubeconfig"
        return [self.path, where, url, "--cache-dir", str(home / "cache"), *arguments]

    def variables(self, home: Path) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "TERM": "dumb",
            **dict(self.environment),
        }


SPDY = (("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", "false"), ("KUBECTL_PORT_FORWARD_WEBSOCKETS", "false"))


def every() -> list[Kubectl]:
    """All that are found, the oldest first; at least one."""
    main = shutil.which("kubectl")
    directories = {Path(main).resolve().parent, Path(main).parent} if main else set()
    directories.add(Path("/usr/lib/google-cloud-sdk/bin"))
    versions: dict[int, str] = {}
    for directory in directories:
        for path in directory.glob("kubectl.1.*"):
            if match := re.fullmatch(r"kubectl\.1\.(\d+)", path.name):
                versions[int(match[1])] = str(path)
    if not versions:
        assert main, "there is no kubectl on this machine"
        return [Kubectl(main, "kubectl")]
    return [Kubectl(versions[number], f"1.{number}") for number in sorted(versions)]


def plain() -> list[Kubectl]:
    """The oldest and the newest; all that are found if ``PODWIRE_TEST_KUBECTL`` is ``all``."""
    kubectls = every()
    if os.environ.get("PODWIRE_TEST_KUBECTL") == "all" or len(kubectls) < 2:
        return kubectls
    return [kubectls[0], kubectls[-1]]


def found() -> list[Kubectl]:
    """The oldest and the newest, the newest without WebSockets, too; at least one."""
    kubectls = every()
    newest = kubectls[-1]
    return [*dict.fromkeys((kubectls[0], newest)), Kubectl(newest.path, f"{newest.name}-spdy", SPDY)]


@dataclass(frozen=True)
class Ended:
    """How a kubectl ended."""

    code: int
    out: bytes
    err: str


async def run(kubectl: Kubectl, url: str, home: Path, *arguments: str, stdin: bytes | None = None) -> Ended:
    """Run it to its end."""
    async with running(kubectl, url, home, *arguments, stdin=stdin is not None) as program:
        async with asyncio.timeout(SECONDS):
            out, err = await program.communicate(stdin)
    assert program.returncode is not None
    return Ended(program.returncode, out, err.decode())


@contextlib.asynccontextmanager
async def running(
    kubectl: Kubectl, url: str, home: Path, *arguments: str, stdin: bool = False
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Have it run; it is killed at the end if it still does."""
    pipe = asyncio.subprocess.PIPE
    program = await asyncio.create_subprocess_exec(
        *kubectl.arguments(url, home, *arguments),
        stdin=pipe if stdin else asyncio.subprocess.DEVNULL,
        stdout=pipe,
        stderr=pipe,
        env=kubectl.variables(home),
    )
    try:
        yield program
    finally:
        if program.returncode is None:
            program.kill()
        await program.communicate()


class Stock:
    """Runs one kubectl. ``namespace`` is that of all commands unless they name another."""

    def __init__(self, program: Kubectl, kubeconfig: Path, home: Path, namespace: str = "default") -> None:
        self.program = program
        self.kubeconfig = kubeconfig
        self.namespace = namespace
        self.home = home

    def __call__(self, *arguments: str, stdin: Any = None, code: int = 0, **environment: str) -> str:
        """What it prints; ``stdin`` is given as JSON, ``code`` is how it must end (then what stderr says)."""
        done = subprocess.run(
            self.line(*arguments),
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

    @property
    def environment(self) -> dict[str, str]:
        """The variables that it sees."""
        return self.program.variables(self.home)

    def line(self, *arguments: str) -> list[str]:
        """The command line."""
        where = ("--namespace", self.namespace)
        return self.program.arguments(str(self.kubeconfig), self.home, *where, *arguments)

    def json(self, *arguments: str) -> Any:
        """What it prints with ``-o json``."""
        return json.loads(self(*arguments, "-o", "json"))

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        """It, with the streams that ``options`` say (subprocess.Popen), as text."""
        return subprocess.Popen(self.line(*arguments), text=True, env=self.environment, **options)

    def beside(self, *arguments: str, terminal: tuple[int, int] | None = None) -> Beside:
        """It, while the test goes on."""
        return Beside(self.line(*arguments), self.environment, terminal)


class Beside:
    """A kubectl that runs on; used with ``with``. With ``terminal`` (rows, columns) it has one of its own."""

    def __init__(
        self, line: list[str], environment: dict[str, str], terminal: tuple[int, int] | None = None
    ) -> None:
        self._text = b""
        if terminal is None:
            self._fd, theirs = os.pipe()
            stdin = subprocess.DEVNULL
        else:
            self._fd, theirs = pty.openpty()
            self.resize(*terminal)
            line = ["setsid", "--ctty", "--wait", *line]
            stdin = theirs
        self._program = subprocess.Popen(line, stdin=stdin, stdout=theirs, stderr=theirs, env=environment)
        os.close(theirs)

    def __enter__(self) -> Beside:
        return self

    def __exit__(self, *_: object) -> None:
        if self._program.poll() is None:
            self._program.kill()
        self._program.wait()
        os.close(self._fd)

    def resize(self, rows: int, columns: int) -> None:
        """Give its terminal another size."""
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text: str) -> None:
        """Type something at its terminal."""
        os.write(self._fd, text.encode())

    def until(self, *words: str) -> str:
        """All that it has printed, once the words are in it, one behind the other."""
        end = time.monotonic() + SECONDS
        while not self._has(words):
            assert self._more(end - time.monotonic()), f"{words} not in:\n{self.text}"
        return self.text

    def shows(self, word: str) -> bool:
        """Whether the word is printed within a second."""
        while word not in self.text and self._more(1.0):
            pass
        return word in self.text

    def ends(self, code: int = 0) -> str:
        """Wait for its end; all that it has printed."""
        end = time.monotonic() + SECONDS
        while self._more(end - time.monotonic()):
            pass
        assert self._program.wait(SECONDS) == code, self.text
        return self.text

    @property
    def text(self) -> str:
        """What was read so far."""
        return self._text.decode()

    def _more(self, seconds: float) -> bool:
        """Read what comes within so many seconds; whether anything did."""
        if not select.select([self._fd], [], [], max(seconds, 0.0))[0]:
            return False
        try:
            chunk = os.read(self._fd, 1 << 16)
        except OSError:
            # A terminal that nobody holds any more.
            return False
        self._text += chunk
        return bool(chunk)

    def _has(self, words: Sequence[str]) -> bool:
        at = 0
        for word in words:
            at = self.text.find(word, at)
            if at < 0:
                return False
            at += len(word)
        return True
