"""What the agent has done since it started, for its status and its log."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field

SLOW_SECONDS = 1.0
"""From how long on a request is logged although all went well."""


@dataclass
class Counts:
    """Requests by what became of them. Numbers may lag by one where two threads count at once."""

    served: int = 0
    failed: int = 0
    refused: int = 0
    abandoned: int = 0
    given_up: int = 0
    undone: int = 0
    mended: int = 0
    looks: int = 0
    sweeps: int = 0
    began: float = field(default_factory=time.time)
    log: logging.Logger = field(default_factory=lambda: logging.getLogger("podwire.agent"))

    def looked(self) -> None:
        """One look for what pods are short of is done."""
        self.looks += 1

    def swept(self) -> None:
        """One look for what nobody needs is done."""
        self.sweeps += 1
