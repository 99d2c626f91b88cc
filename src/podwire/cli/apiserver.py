"""``podwire apiserver``: the API server alone, in the foreground."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from podwire.cli import lock
from podwire.cli.errors import CommandError, usage
from podwire.cli.locations import Locations

if TYPE_CHECKING:
    from podwire.apiserver.server import Settings

DEFAULT = "127.0.0.1:6443"


def serve(places: Locations, listen: Sequence[str], *, verbose: bool) -> int:
    """Serve until SIGTERM or Ctrl-C."""
    from podwire.apiserver import server
    from podwire.apiserver.database import DatabaseFault

    for address in listen:
        if not address.startswith("unix:"):
            try:
                server.split(address)
            except ValueError as error:
                raise usage(f"--listen {address}: {error}") from error
    level = logging.INFO if verbose else logging.WARNING
    logging.basicConfig(stream=sys.stderr, level=level, format="%(asctime)s %(levelname)s %(message)s")
    directory = places.state / "apiserver"
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    settings = server.Settings(directory=directory, listen=tuple(listen))
    try:
        with lock.hold(directory / "lock"):
            asyncio.run(_run(settings))
    except lock.NodeRunning as error:
        who = f", as process {error.pid}" if error.pid else ""
        raise CommandError(f"an API server runs already{who}") from error
    except server.ListenError as error:
        raise CommandError(f"cannot listen on {error}") from error
    except DatabaseFault as error:
        raise CommandError(f"the objects cannot be read: {error}") from error
    return 0


async def _run(settings: Settings) -> None:
    from podwire.apiserver.server import ApiServer

    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    api = ApiServer(settings)
    try:
        await api.start()
        if api.url:
            print(f"The API server answers on {api.url}. Try:")
            print(f"  kubectl --kubeconfig {api.files.kubeconfig} get namespaces")
        for address in settings.listen:
            if address.startswith("unix:"):
                print(f"It answers on {address}, without TLS and token.")
        sys.stdout.flush()
        await ended.wait()
    finally:
        with contextlib.suppress(asyncio.CancelledError):
            await api.close()
