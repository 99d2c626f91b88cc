"""Us: the plugins called in process, one after the other, as a plugin host calls them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from podwire import plugins
from podwire.cni.plugin import Result, call, make_request
from podwire.kernel.host import Kernel


def add(
    kernel: Kernel, chain: list[dict[str, Any]], name: str, container_id: str, netns: Path
) -> Result | None:
    """ADD over a chain. Returns the last result."""
    result: Result | None = None
    for plugin in chain:
        result = _call(kernel, plugin, "ADD", name, container_id, netns, result)
    return result


def delete(  # noqa: PLR0917
    kernel: Kernel,
    chain: list[dict[str, Any]],
    name: str,
    container_id: str,
    netns: Path,
    result: Result | None,
) -> None:
    """DEL over a chain, backward, with the result of the ADD."""
    for plugin in reversed(chain):
        _call(kernel, plugin, "DEL", name, container_id, netns, result)


def _call(  # noqa: PLR0917
    kernel: Kernel,
    config: dict[str, Any],
    command: str,
    name: str,
    container_id: str,
    netns: Path,
    result: Result | None,
) -> Result | None:
    plugin = plugins.load(config["type"])
    assert plugin is not None
    request = make_request(
        plugin,
        command,
        {"cniVersion": "1.0.0", "name": name, **config},
        container_id=container_id,
        netns=str(netns),
        ifname="eth0",
        prev_result=result,
        registry=plugins.load,
    )
    return call(plugin, request, kernel)
