"""The parts of a node, put together: network, plugins, runtime."""

from __future__ import annotations

import json
import resource
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from podwire import plugins
from podwire.cli.locations import Locations
from podwire.cni import config
from podwire.cni.config import NetworkConfigList
from podwire.cni.plugin import Plugin
from podwire.cni.runtime import Runtime
from podwire.kernel.host import Kernel
from podwire.plugins.repair import Repairer
from podwire.runtime.embedded import EmbeddedRuntime

NETWORK = "podwire"


def network(places: Locations, bridge: str, pod_cidrs: Sequence[str]) -> NetworkConfigList:
    """The pods' network: one bridge with the first address of each range, masquerading, host ports."""
    document = {
        "cniVersion": "1.1.0",
        "name": NETWORK,
        "plugins": [
            {
                "type": "bridge",
                "bridge": bridge,
                "isGateway": True,
                "isDefaultGateway": True,
                "ipMasq": True,
                "hairpinMode": True,
                "ipam": {
                    "type": "host-local",
                    "dataDir": str(places.networks),
                    "ranges": [[{"subnet": cidr}] for cidr in pod_cidrs],
                },
            },
            {"type": "portmap", "snat": True, "capabilities": {"portMappings": True}},
        ],
    }
    return config.parse_list(json.dumps(document).encode())


def own_plugins() -> dict[str, Plugin[Any, Any]]:
    """Every plugin that Podwire has, by type."""
    found = {kind: plugins.load(kind) for kind in plugins.TYPES}
    return {kind: plugin for kind, plugin in found.items() if plugin is not None}


@asynccontextmanager
async def runtime(
    places: Locations, kernel: Kernel, pods_network: NetworkConfigList | None
) -> AsyncIterator[EmbeddedRuntime]:
    """The embedded runtime of ``places``; what runs goes on running when the context ends.

    Taking pods down needs no network: each record holds the one that its pod was attached to.
    """
    async with Runtime(own_plugins(), kernel, cache_dir=places.results) as cni:
        # Who only takes pods down mends nothing.
        repairer = Repairer(kernel) if pods_network is not None else None
        embedded = EmbeddedRuntime(places.state, places.run, cni, pods_network, repairer=repairer)
        # Each sandbox takes two descriptors; programs keep the limit that this process was started with.
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        try:
            yield embedded
        finally:
            await embedded.close()
