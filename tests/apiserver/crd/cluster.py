"""An API server in this process, and the kubectl programs of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import yaml

from podwire.apiserver.server import ApiServer, Settings

SECONDS = 30.0


def kubectls() -> list[str]:
    """The oldest and the newest kubectl; at least one."""
    versions: dict[int, str] = {}
    for path in Path("/usr/lib/google-cloud-sdk/bin").glob("kubectl.1.*"):
        if match := re.fullmatch(r"kubectl\.1\.(\d+)", path.name):
            versions[int(match[1])] = str(path)
    if versions:
        return sorted({versions[min(versions)], versions[max(versions)]})
    found = shutil.which("kubectl")
    assert found, "there is no kubectl on this machine"
    return [found]


class Cluster:
    """A server and a kubectl with its configuration."""

    def __init__(self, server: ApiServer, kubeconfig: Path, kubectl: str, home: Path) -> None:
        self.server = server
        self.kubeconfig = kubeconfig
        self._kubectl = kubectl
        self._home = home

    async def __call__(self, *arguments: str, stdin: Any = None, code: int = 0) -> str:
        """What kubectl prints, to stderr too; ``stdin`` is given as YAML, ``code`` is how it must end."""
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self._home),
            "KUBECONFIG": str(self.kubeconfig),
        }
        program = await asyncio.create_subprocess_exec(
            self._kubectl,
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=environment,
        )
        given = b"" if stdin is None else yaml.safe_dump(stdin).encode()
        async with asyncio.timeout(SECONDS):
            out, _ = await program.communicate(given)
        text = out.decode()
        assert program.returncode == code, text
        return text


@contextlib.asynccontextmanager
async def cluster(directory: Path, kubectl: str = "") -> AsyncIterator[Cluster]:
    """A server with its state in ``directory``, on a port of its own."""
    server = ApiServer(Settings(directory=directory / "state", listen=("127.0.0.1:0",)))
    try:
        await server.start()
        yield Cluster(server, server.files.kubeconfig, kubectl, directory / "home")
    finally:
        await server.close()
