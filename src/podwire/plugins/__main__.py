"""A plugin as its own process: ``python -m podwire.plugins TYPE`` with the CNI variables and stdin.

``dhcp daemon`` keeps the leases of hosts without the agent.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from podwire.cni.process import main as run
from podwire.plugins import TYPES, load


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the plugin that the first argument names, and return the exit status."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if given[:2] == ["dhcp", "daemon"]:
        from podwire.plugins import dhcp_daemon

        return dhcp_daemon.main(given[2:])
    plugin = load(given[0]) if len(given) == 1 else None
    if plugin is None:
        named = f"no plugin {' '.join(given)!r}; " if given else ""
        sys.stderr.write(f"{named}usage: python -m podwire.plugins {{{','.join(TYPES)}}}\n")
        return 2
    return run(plugin, registry=load)


if __name__ == "__main__":
    sys.exit(main())
