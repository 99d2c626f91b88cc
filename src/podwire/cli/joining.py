"""The API server that a node belongs to: one inside its process, somebody else's, or none."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from podwire.cli.errors import CommandError
from podwire.cli.locations import Locations

if TYPE_CHECKING:
    from podwire.apiserver.server import ApiServer
    from podwire.kube.client import Client

LOOPBACK = "127.0.0.1"
PORT = 6443
"""Where the server listens if nobody else does and it had no other port before."""
QPS, BURST = 500.0, 1000
"""The node's own server needs no sparing."""


@dataclass(frozen=True, slots=True)
class Joined:
    """A client of the server, the server if it is inside, and the kubeconfig that a person uses."""

    client: Client
    server: ApiServer | None
    kubeconfig: Path | None


@asynccontextmanager
async def embedded(places: Locations) -> AsyncIterator[Joined]:
    """The API server of ``places``, on a loopback port for kubectl and on a socket for the node itself."""
    from podwire.apiserver.database import DatabaseFault
    from podwire.apiserver.server import ApiServer, ListenError, Settings
    from podwire.cli import lock
    from podwire.kube.client import Client
    from podwire.kube.config import Config

    own = f"unix:{places.apiserver_socket}"
    kubeconfig = places.apiserver / "kubeconfig"
    port = free_port(kubeconfig)
    listen = (own,) if port is None else (f"{LOOPBACK}:{port}", own)
    places.apiserver.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        with lock.hold(places.apiserver / "lock"):
            server = ApiServer(Settings(directory=places.apiserver, listen=listen))
            try:
                await server.start()
                config = Config(server=f"unix://{places.apiserver_socket}")
                async with Client(config, qps=QPS, burst=BURST) as client:
                    yield Joined(client, server, kubeconfig if server.url else None)
            finally:
                await server.close()
    except lock.NodeRunning as error:
        raise CommandError(
            f"podwire apiserver runs here already, as process {error.pid}",
            hint=f"Join it: podwire up --kubeconfig {kubeconfig}{places.flags}",
        ) from error
    except ListenError as error:
        raise CommandError(
            f"the API server cannot listen on {error}", hint="Go without: --no-apiserver"
        ) from error
    except DatabaseFault as error:
        raise CommandError(f"the API server's objects cannot be read: {error}") from error


@asynccontextmanager
async def joined(kubeconfig: Path) -> AsyncIterator[Joined]:
    """Somebody else's API server, by a kubeconfig."""
    from podwire.kube import config
    from podwire.kube.client import Client
    from podwire.kube.errors import ConfigError

    try:
        loaded = config.load(kubeconfig)
    except ConfigError as error:
        raise CommandError(f"--kubeconfig: {error}") from error
    async with Client(loaded) as client:
        yield Joined(client, None, kubeconfig)


def free_port(kubeconfig: Path) -> int | None:
    """The port of the last run if it is free, so that a kubeconfig stays good; else 6443; else any.

    None where there is no loopback address to listen on.
    """
    for port in (*_last_port(kubeconfig), PORT, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((LOOPBACK, port))
            except OSError:
                continue
            return port
    return None


def _last_port(kubeconfig: Path) -> tuple[int, ...]:
    try:
        port = urlsplit(json.loads(kubeconfig.read_bytes())["clusters"][0]["cluster"]["server"]).port
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return ()
    return () if port is None else (port,)
