"""Where a node keeps its state and its sockets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

STATE = Path("/var/lib/podwire")
RUN = Path("/run/podwire")


@dataclass(frozen=True, slots=True)
class Locations:
    """The durable directory, the one that a reboot empties, and the ``--root`` that moved them, if any."""

    state: Path = STATE
    run: Path = RUN
    root: Path | None = None

    @classmethod
    def of(cls, root: Path | None) -> Locations:
        """The machine's own places, or ``lib`` and ``run`` below ``root``."""
        if root is None:
            return cls()
        root = root.absolute()
        return cls(state=root / "lib", run=root / "run", root=root)

    @property
    def socket(self) -> Path:
        """Where the node answers."""
        return self.run / "node.sock"

    @property
    def lock(self) -> Path:
        """Held (flock) by the node as long as it runs; holds its process ID."""
        return self.run / "node.lock"

    @property
    def log(self) -> Path:
        """What a detached node writes."""
        return self.state / "node.log"

    @property
    def results(self) -> Path:
        """The CNI result cache."""
        return self.state / "cni"

    @property
    def networks(self) -> Path:
        """``host-local``'s address files."""
        return self.state / "networks"

    @property
    def manifests(self) -> Path:
        """The last good text of each manifest."""
        return self.state / "manifests"

    @property
    def ledger(self) -> Path:
        """What was changed on the host, and what it was before."""
        return self.state / "host.json"

    @property
    def flags(self) -> str:
        """The option that names this place again in a command shown to the user, with a leading space."""
        return f" --root {self.root}" if self.root else ""
