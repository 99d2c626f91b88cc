"""An API server in this process, and a kubectl for it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import yaml

from podwire.apiserver.server import ApiServer, Settings
from tests.kubectl import Kubectl, run


class Cluster:
    """A server and a kubectl with its configuration."""

    def __init__(self, server: ApiServer, kubectl: Kubectl | None, home: Path) -> None:
        self.server = server
        self.kubeconfig = server.files.kubeconfig
        self._kubectl = kubectl
        self._home = home

    async def __call__(self, *arguments: str, stdin: Any = None, code: int = 0) -> str:
        """What kubectl prints, to stderr too; ``stdin`` is given as YAML, ``code`` is how it must end."""
        assert self._kubectl is not None, "this cluster has no kubectl"
        given = b"" if stdin is None else yaml.safe_dump(stdin).encode()
        ended = await run(self._kubectl, str(self.kubeconfig), self._home, *arguments, stdin=given)
        told = ended.out.decode() + ended.err
        assert ended.code == code, told
        return told


@contextlib.asynccontextmanager
async def cluster(directory: Path, kubectl: Kubectl | None = None) -> AsyncIterator[Cluster]:
    """A server with its state in ``directory``, on a port of its own."""
    server = ApiServer(Settings(directory=directory / "state", listen=("127.0.0.1:0",)))
    try:
        await server.start()
        yield Cluster(server, kubectl, directory / "home")
    finally:
        await server.close()
