"""The settings of the agent, as its configuration file has them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

Seconds = Annotated[float, msgspec.Meta(gt=0, le=86400)]


class BadSettings(Exception):
    """A configuration file that cannot be: names the file, the field and what is wrong."""


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """What can be set.

    ``drain_seconds``: how long the end waits for requests that run. ``repair_seconds``, ``sweep_seconds``:
    the time between two looks for what others took away, and for what nobody needs. ``verbose``: a log line
    for every request.
    """

    drain_seconds: Seconds = 20.0
    repair_seconds: Seconds = 5.0
    sweep_seconds: Seconds = 60.0
    verbose: bool = False


def load(path: Path) -> Settings:
    """Read a YAML (or JSON) file; BadSettings says what is wrong with it, OSError that it cannot be read."""
    try:
        return msgspec.yaml.decode(path.read_bytes() or b"{}", type=Settings)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadSettings(f"{path}: {error}") from None
