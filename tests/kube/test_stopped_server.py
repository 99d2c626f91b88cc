"""I04: a server that is stopped (SIGSTOP) behind open connections is found out by a ping, in real time."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from podwire.kube import client as clients
from podwire.kube import watching
from podwire.kube.client import Client
from podwire.kube.config import Config
from podwire.kube.errors import ConnectionDead, DeadlinePassed, KubeError
from podwire.kube.informer import Informer
from podwire.kube.resource import PODS

SERVER = Path(__file__).parents[2] / "bench" / "kubelist_server.py"


async def test_i04_a_stopped_server_is_found_out_and_met_again(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 30 <= watching.SILENT + watching.PING_TIMEOUT <= 45
    monkeypatch.setattr(watching, "SILENT", 0.6)
    monkeypatch.setattr(clients, "PING_TIMEOUT", 0.4)
    server = subprocess.Popen(  # noqa: ASYNC220 (it starts at once)
        [sys.executable, SERVER, "3", "50"], stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    found: asyncio.Queue[KubeError] = asyncio.Queue()
    try:
        port = int(server.stdout.readline().split()[0])
        async with Client(Config(server=f"http://127.0.0.1:{port}")) as client:
            informer = Informer(client, PODS, problem=found.put_nowait)
            running = asyncio.create_task(informer.run())
            events = asyncio.Event()
            informer.add_handler(lambda change: events.set() if change.type == "update" else None)
            async with asyncio.timeout(10):
                await events.wait()
            os.kill(server.pid, signal.SIGSTOP)
            began = time.monotonic()
            async with asyncio.timeout(10):
                assert isinstance(await found.get(), ConnectionDead)
            assert time.monotonic() - began < 5
            with pytest.raises(DeadlinePassed):
                await client.get(PODS, "x", "default", timeout=0.2)
            os.kill(server.pid, signal.SIGCONT)
            events.clear()
            async with asyncio.timeout(10):
                await events.wait()
            assert len(informer.store) == 3
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
    finally:
        server.kill()
        server.wait()
        server.stdout.close()
