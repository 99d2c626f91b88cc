"""What the node says no to, as typed errors."""

from __future__ import annotations


class NodeError(Exception):
    """The root of the node's errors."""


class PodRefused(NodeError):
    """The node will not run the pod as it is written.

    ``reason`` is the event's and the status' CamelCase word, ``message`` names the field and the value.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class ContainerConfigError(NodeError):
    """A container cannot be configured on this node at this time (kubelet: CreateContainerConfigError)."""

    def __init__(self, container: str, message: str) -> None:
        super().__init__(f"container {container}: {message}")
        self.container = container
        self.message = message


class NetworkNotReady(NodeError):
    """The runtime's network is not ready for a pod that needs it; tried again soon."""


class HookFailed(NodeError):
    """A postStart or preStop hook did not succeed."""


class StorageFault(NodeError):
    """A directory of the node's own state cannot be made; names it and the system's reason."""


class MountFailed(NodeError):
    """A volume cannot be set up; tried again later (kubelet: FailedMount)."""

    def __init__(self, volume: str, message: str) -> None:
        super().__init__(f'MountVolume.SetUp failed for volume "{volume}" : {message}')
        self.volume = volume
