"""The kubectl programs of this machine, and how tests run them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

SECONDS = 20.0


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
