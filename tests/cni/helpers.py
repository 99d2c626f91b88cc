"""Plugins that the CNI tests run: in process, recording what they are asked, and as scripts."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from podwire.cni import config
from podwire.cni.config import NetworkConfigList
from podwire.cni.plugin import Interface, IPConfig, Plugin, Request, Result, Route

RESULT = Result(
    (Interface("eth0", "02:00:00:00:00:01", 1400, "/run/netns/x"),),
    (IPConfig("10.1.0.5/16", "10.1.0.1", 0), IPConfig("fd00::5/64", interface=0)),
    (Route("0.0.0.0/0"), Route("::/0", "fd00::1", mtu=1300)),
)


class Options(msgspec.Struct, frozen=True):
    """A configuration with a field of each sort."""

    mtu: int = 0
    bandWidth: int = 0
    ranges: tuple[tuple[dict[str, str], ...], ...] = ()


@dataclass
class Recorder:
    """A plugin in process that remembers its requests and does what ``acts`` says for a command."""

    type: str = "rec"
    requests: list[Request[Options]] = field(default_factory=list)
    acts: dict[str, Callable[[Request[Options]], Result | None]] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)
    lock: Any = field(default_factory=threading.Lock)

    def _do(self, request: Request[Options], _kernel: None) -> Result:
        with self.lock:
            self.requests.append(request)
            self.log.append(f"{request.command} {self.type} {request.container_id}")
        act = self.acts.get(request.command)
        made = act(request) if act else None
        return made if made is not None else (request.prev_result or RESULT)

    def _quiet(self, request: Request[Options], kernel: None) -> None:
        self._do(request, kernel)

    @property
    def plugin(self) -> Plugin[Options, None]:
        """The plugin."""
        quiet = self._quiet
        return Plugin(self.type, f"CNI {self.type} plugin", Options, self._do, quiet, quiet, quiet, quiet)

    @property
    def commands(self) -> list[str]:
        """The commands that came, in order."""
        return [request.command for request in self.requests]


def failing(error: Exception) -> Callable[[Request[Options]], Result | None]:
    """An act that raises."""

    def act(_request: Request[Options]) -> Result | None:
        raise error

    return act


def network(*plugins: str | Mapping[str, Any], version: str = "1.1.0", **keys: Any) -> NetworkConfigList:
    """A list of these plugins (by type, or whole objects)."""
    entries = [{"type": each} if isinstance(each, str) else each for each in plugins]
    return config.parse_list(
        json.dumps({"cniVersion": version, "name": "net", "plugins": entries, **keys}).encode()
    )


def script(directory: Path, name: str, body: str) -> Path:
    """A foreign plugin: a shell script in ``directory``."""
    path = directory / name
    path.write_text("#!/bin/sh\n" + body)
    path.chmod(0o755)
    return path
