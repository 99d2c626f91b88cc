"""What passes along a list of plugins: an attachment, each plugin's turn, and what a trace shows of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from podwire.cni.config import NetworkConfigList, PluginConfig
from podwire.cni.errors import CNIError
from podwire.cni.types import AttachmentKey, Result, TraceContext


class Attachment(msgspec.Struct, frozen=True):
    """What a runtime says of one container on one network (libcni's RuntimeConf).

    ``netns`` is a path, empty at DEL where it is gone; ``args`` become CNI_ARGS; of ``capability_args`` each
    plugin gets those that it declares.
    """

    container_id: str
    netns: str = ""
    ifname: str = "eth0"
    args: Mapping[str, str] = {}
    capability_args: Mapping[str, Any] = {}

    @property
    def key(self) -> AttachmentKey:
        """What names it in GC."""
        return AttachmentKey(self.container_id, self.ifname)


NOBODY = Attachment("", ifname="")
"""The attachment of requests that are about none: GC, STATUS, VERSION."""


class Step(msgspec.Struct, frozen=True):
    """One plugin's turn, as a trace shows it: what it got, what it gave, and how long it took (seconds).

    ``position`` counts from 1 along the network's ``total`` plugins. ``executable`` is a foreign plugin's
    program, empty for one of ours; ``stderr`` the tail of what it, or a foreign delegate, wrote there.
    """

    plugin: str
    command: str
    seconds: float
    config: Mapping[str, Any]
    result: Result | None
    error: CNIError | None
    network: str = ""
    position: int = 0
    total: int = 0
    attachment: Attachment = NOBODY
    executable: str = ""
    stderr: str = ""


class Turn(msgspec.Struct, frozen=True):
    """One plugin's turn to come: which plugin of which network, to do what for whom."""

    network: NetworkConfigList
    plugin: PluginConfig
    position: int
    command: str
    attachment: Attachment
    trace: TraceContext | None


def turns_of(
    network: NetworkConfigList,
    command: str,
    attachment: Attachment = NOBODY,
    trace: TraceContext | None = None,
) -> Iterable[Turn]:
    """Yield the turns of a network's plugins in the order of the list."""
    for position, plugin in enumerate(network.plugins, 1):
        yield Turn(network, plugin, position, command, attachment, trace)
