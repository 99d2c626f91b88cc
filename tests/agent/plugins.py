"""Plugins that tests watch through files: they begin, wait, and end when they are told to."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec

from podwire.cni.errors import CNIError, TryLater
from podwire.cni.plugin import IPConfig, Plugin, Request, Result
from tests.waiting import until


class Config(msgspec.Struct, frozen=True):
    """``directory``: where the plugin writes; ``wait``: for which file there, ``stubborn`` past its time."""

    directory: str
    wait: str = ""
    stubborn: bool = False
    fail: str = ""


def _act(request: Request[Config]) -> None:
    home = Path(request.config.directory)
    with (home / "log").open("a") as log:
        log.write(f"{request.command} {request.container_id} begin\n")
    while request.config.wait and not (home / request.config.wait).exists():
        cancelled = request.cancel is not None and request.cancel.is_set()
        if not request.config.stubborn and (cancelled or not request.remaining()):
            with (home / "log").open("a") as log:
                log.write(f"{request.command} {request.container_id} cancelled\n")
            raise TryLater("gave up")
        time.sleep(0.005)
    with (home / "log").open("a") as log:
        log.write(f"{request.command} {request.container_id} end\n")
    if request.config.fail == request.command:
        raise CNIError("told to fail", code=123)


def add(request: Request[Config], _kernel: Any) -> Result:
    """Write a file of the container's name."""
    _act(request)
    (Path(request.config.directory) / f"made-{request.container_id}").touch()
    return Result(ips=(IPConfig("192.0.2.1/24"),))


def delete(request: Request[Config], _kernel: Any) -> None:
    """Remove the file."""
    request = msgspec.structs.replace(
        request, config=Config(request.config.directory, fail=request.config.fail)
    )
    _act(request)
    (Path(request.config.directory) / f"made-{request.container_id}").unlink(missing_ok=True)


def other(request: Request[Config], _kernel: Any) -> None:
    """Only write that it was called."""
    _act(request)


WATCHED = Plugin(
    type="watched",
    about="a test's",
    config=Config,
    add=add,
    delete=delete,
    check=other,
    gc=other,
    status=other,
)


def config(directory: Path, *, name: str = "net", **options: Any) -> dict[str, Any]:
    """A configuration of the plugin."""
    return {"cniVersion": "1.1.0", "name": name, "type": "watched", "directory": str(directory), **options}


def log(directory: Path) -> list[str]:
    """What was called, in order."""
    path = directory / "log"
    return path.read_text().splitlines() if path.exists() else []


def wait_for(directory: Path, line: str, seconds: float = 10.0) -> None:
    """Wait until a line is in the log."""
    until(lambda: line in log(directory), lambda: str(log(directory)), seconds=seconds)
