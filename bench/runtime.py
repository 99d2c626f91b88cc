"""What the runtime library itself costs an operation: ADD, CHECK and DEL with a plugin that does nothing."""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

from podwire.cni.config import parse_list
from podwire.cni.plugin import Interface, IPConfig, Plugin, Request, Result, Route
from podwire.cni.runtime import Attachment, Runtime

_WARM_UP = 50


class _Config(msgspec.Struct):
    """No options."""


def _add(request: Request[_Config], _kernel: None) -> Result:
    return Result(
        (Interface(request.ifname, "02:00:00:00:00:01", sandbox=request.netns),),
        (IPConfig("10.1.0.5/16", "10.1.0.1", 0), IPConfig("fd00::5/64", interface=0)),
        (Route("0.0.0.0/0"), Route("::/0", "fd00::1")),
    )


def _nothing(_request: Request[_Config], _kernel: None) -> None:
    return None


@dataclass(frozen=True)
class Overhead:
    """Medians of ``n`` operations in milliseconds; ``import_ms`` over a bare start of Python."""

    add_ms: float
    check_ms: float
    delete_ms: float
    import_ms: float
    n: int


def measure(n: int = 300, directory: str = "/var/tmp") -> Overhead:
    """Measure with the result cache below ``directory``, which is on a disk for what users have."""
    with tempfile.TemporaryDirectory(dir=directory) as cache:
        add, check, delete = asyncio.run(_operations(n, Path(cache)))
    return Overhead(add, check, delete, _import_cost(), n)


async def _operations(n: int, cache: Path) -> tuple[float, float, float]:
    network = parse_list('{"cniVersion": "1.1.0", "name": "net", "plugins": [{"type": "nothing"}]}')
    plugin = Plugin("nothing", "does nothing", _Config, _add, _nothing, _nothing)
    took: tuple[list[float], list[float], list[float]] = ([], [], [])
    async with Runtime({"nothing": plugin}, cache_dir=cache) as runtime:
        for number in range(n + _WARM_UP):
            attachment = Attachment(f"c{number}", "/run/netns/x", args={"IgnoreUnknown": "1"})
            for times, operation in zip(took, (runtime.add, runtime.check, runtime.delete), strict=True):
                begin = time.perf_counter()
                await operation(network, attachment)
                times.append((time.perf_counter() - begin) * 1000)
    add, check, delete = (statistics.median(times[_WARM_UP:]) for times in took)
    return add, check, delete


def _import_cost(starts: int = 9) -> float:
    """The median of starts with ``podwire.cni.runtime`` imported over that of bare ones, interleaved."""
    times: dict[str, list[float]] = {"pass": [], "import podwire.cni.runtime": []}
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    for _ in range(starts):
        for program, taken in times.items():
            begin = time.perf_counter()
            subprocess.run([sys.executable, "-c", program], check=True, env=environ)
            taken.append((time.perf_counter() - begin) * 1000)
    bare, full = (statistics.median(taken) for taken in times.values())
    return full - bare
