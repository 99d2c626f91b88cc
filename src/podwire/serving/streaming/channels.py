"""The streams of exec and attach, whatever carries them.

Source: k8s.io/apimachinery/pkg/util/remotecommand/constants.go,
k8s.io/kubelet/pkg/cri/streaming/remotecommand.
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

import msgspec

from podwire.serving.streaming.backend import TerminalSize

Object = dict[str, Any]

_LARGEST_SIZE = 0xFFFF


class Channels(Protocol):
    """One client's streams."""

    @property
    def last_active(self) -> float:
        """When a stream carried something last, by the loop's clock."""

    async def serve(self) -> None:
        """Take what comes until the client has gone."""

    async def ready(self) -> None:
        """Wait until the client has opened all its streams. Raise Failure if it does not."""

    async def read_stdin(self) -> bytes:
        """The next bytes; empty at the end. Raise ConnectionError."""

    def drop_stdin(self) -> None:
        """What still comes for stdin is dropped."""

    async def read_size(self) -> TerminalSize:
        """The newest size of the client's terminal, when it has changed."""

    async def write(self, stream: int, data: bytes) -> None:
        """Send bytes of stdout (1) or stderr (2). Raise ConnectionError."""

    async def finish(self, status: Object) -> None:
        """Tell how it ended and close all."""

    async def ping(self) -> None:
        """Send something, so that a broken connection is noticed. Raise ConnectionError."""


class Sizes:
    """The terminal's newest size."""

    def __init__(self) -> None:
        self._size: TerminalSize | None = None
        self._changed = asyncio.Event()

    def tell(self, message: bytes) -> None:
        """A message of the client's: ``{"Width": columns, "Height": rows}``; anything else is passed over."""
        try:
            size = msgspec.json.decode(message, type=_Size)
        except msgspec.DecodeError:
            return
        if 0 < size.width <= _LARGEST_SIZE and 0 < size.height <= _LARGEST_SIZE:
            self._size = TerminalSize(size.width, size.height)
            self._changed.set()

    async def read(self) -> TerminalSize:
        """The size, once it has changed."""
        await self._changed.wait()
        self._changed.clear()
        assert self._size is not None
        return self._size


class _Size(msgspec.Struct):
    width: int = msgspec.field(name="Width")
    height: int = msgspec.field(name="Height")


def success() -> Object:
    """The Status of a program that ended well."""
    return {"metadata": {}, "status": "Success"}


def exited(code: int) -> Object:
    """The Status of a program that ended with this code."""
    if code == 0:
        return success()
    return {
        "metadata": {},
        "status": "Failure",
        "message": f"command terminated with non-zero exit code: exit status {code}",
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
    }


def message(status: Object, *, as_json: bool) -> bytes:
    """What stands on the error stream: the Status, or before version 4 its text and nothing for success."""
    if as_json:
        return msgspec.json.encode(status)
    return b"" if status["status"] == "Success" else str(status.get("message", "")).encode()
