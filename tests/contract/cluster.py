"""The API server under test: the embedded one, or that of a kubeconfig."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from podwire.apiserver.server import ApiServer, Settings
from podwire.kube import config, tls
from podwire.kube.clock import SystemClock

VARIABLE = "PODWIRE_TEST_KUBECONFIG"
"""Names a kubeconfig; then its server is tested in place of the embedded one."""


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Where a server is and how it is asked. ``compact`` forgets its log; None where nobody can."""

    url: str
    tls: ssl.SSLContext
    kubeconfig: Path
    headers: dict[str, str] = field(default_factory=dict)
    embedded: _Embedded | None = None


class _Embedded:
    """An embedded server in a thread of its own."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="apiserver")

    def start(self) -> None:
        self._thread.start()
        self._started.wait()
        if not hasattr(self, "server") or not self.server.url:
            raise RuntimeError("the embedded server did not start: its thread tells why")

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()

    def compact(self) -> None:
        """Forget all changes so far."""
        storage = self.server.storage
        asyncio.run_coroutine_threadsafe(storage.compact(storage.revision), self.loop).result(10)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        finally:
            self._started.set()

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self.server = ApiServer(Settings(directory=self._directory, listen=("127.0.0.1:0",)))
        try:
            await self.server.start()
            self._started.set()
            await self._ended.wait()
        finally:
            await self.server.close()


@contextlib.contextmanager
def embedded(directory: Path) -> Iterator[Cluster]:
    """An embedded server with its objects in ``directory``."""
    server = _Embedded(directory)
    server.start()
    try:
        yield of_file(server.server.files.kubeconfig, server)
    finally:
        server.stop()


def of_file(path: Path, server: Any = None) -> Cluster:
    """The server of a kubeconfig."""
    found = config.load(path)
    credential = asyncio.run(found.credentials.get(SystemClock()))
    headers = {"Authorization": credential.authorization} if credential.authorization else {}
    return Cluster(
        url=found.server,
        tls=tls.context(found, credential),
        kubeconfig=path,
        headers=headers,
        embedded=server,
    )


def real() -> Path | None:
    """The kubeconfig of a real cluster, if one is to be tested."""
    value = os.environ.get(VARIABLE)
    return Path(value) if value else None
