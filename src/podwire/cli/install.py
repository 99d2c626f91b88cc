"""``podwire install``: the plugins as programs, for other CNI runtimes."""

from __future__ import annotations

from pathlib import Path

from podwire.cli.errors import CommandError


def run(directory: Path, *, uninstall: bool) -> int:
    """Write a launcher for each plugin into ``directory``, or take ours away."""
    from podwire.plugins import launchers

    try:
        changed = launchers.remove(directory) if uninstall else launchers.write(directory)
    except PermissionError as error:
        raise CommandError(
            f"{error.filename or directory}: {error.strerror}", hint="Try it with sudo."
        ) from error
    for path in changed:
        print(f"{'removed' if uninstall else 'wrote'} {path}")
    if not changed:
        print(f"nothing to do in {directory}")
    return 0
