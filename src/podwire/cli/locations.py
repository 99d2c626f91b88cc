"""Where a node keeps its state and its sockets."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from podwire.cli import arguments
from podwire.cli.errors import usage

VARIABLE = "PODWIRE_ROOT"
_SOCKET_PATH_LIMIT = 107
"""Bytes of a unix socket's path (sun_path of linux/un.h, less its NUL)."""
_LONGEST_INSIDE = len("/run/.agent.sock.4194304")
STATE = Path("/var/lib/podwire")
RUN = Path("/run/podwire")


@dataclass(frozen=True, slots=True)
class Locations:
    """The durable directory, the one that a reboot empties, and the ``--root`` that moved them, if any."""

    state: Path = STATE
    run: Path = RUN
    root: Path | None = None

    @classmethod
    def of(cls, given: str | None) -> Locations:
        """The machine's own places, or ``lib`` and ``run`` below ``--root``, else below PODWIRE_ROOT.

        A variable that is empty counts as unset. A CommandError (usage) names which of the two is no place.
        """
        if given is not None:
            return cls._below("--root", given)
        found = os.environ.get(VARIABLE, "")
        return cls._below(VARIABLE, found) if found else cls()

    @classmethod
    def _below(cls, name: str, text: str) -> Locations:
        if not text:
            raise usage(f"{name}: the directory's name is empty")
        if name == VARIABLE and not Path(text).is_absolute():
            raise usage(
                f"{name} {text!r}: not an absolute path; it would mean another node in each directory"
            )
        root = Path(os.path.normpath(Path(text).absolute()))
        if len(os.fsencode(root)) + _LONGEST_INSIDE > _SOCKET_PATH_LIMIT:
            limit = _SOCKET_PATH_LIMIT - _LONGEST_INSIDE
            raise usage(f"{name} {text}: longer than {limit} bytes, too long for the sockets in it")
        reason = arguments.no_directory(root)
        if reason:
            raise usage(f"{name} {text}: {reason}")
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
    def agent_socket(self) -> Path:
        """Where the agent answers."""
        return self.run / "agent.sock"

    @property
    def agent_lock(self) -> Path:
        """Held (flock) by the agent as long as it runs; holds its process ID."""
        return self.run / "agent.lock"

    @property
    def apiserver(self) -> Path:
        """The API server's objects, token, certificates and kubeconfig."""
        return self.state / "apiserver"

    @property
    def apiserver_socket(self) -> Path:
        """Where the API server inside a node answers without a token."""
        return self.run / "api.sock"

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
    def pages(self) -> Path:
        """The last good body of each manifest URL."""
        return self.state / "urls"

    @property
    def ledger(self) -> Path:
        """What was changed on the host, and what it was before."""
        return self.state / "host.json"

    @property
    def flags(self) -> str:
        """The option that names this place again in a command shown to the user, with a leading space."""
        return f" --root {self.root}" if self.root else ""
