"""The plugins as Python programs, which need no agent: one under each plugin's name, or one for all of them.

Each is a shell script that starts this interpreter in isolated mode (``-I``: no environment, no current
directory) with the package that wrote it.
"""

from __future__ import annotations

import errno
import os
import shlex
import sys
from pathlib import Path

import podwire
from podwire.plugins import TYPES

MARK = "# podwire plugin launcher"
"""The second line of every launcher: only files that have it are written over or removed."""
STANDALONE = "podwire-standalone"
"""The program that the shim becomes where there is no agent; its argument is the plugin's type."""


class LauncherConflict(OSError):
    """A file of a plugin's name is there and is not ours; ``filename`` is its path."""

    def __init__(self, path: Path) -> None:
        super().__init__(errno.EEXIST, "exists and is not a podwire launcher", str(path))


def script(name: str = "", python: str = sys.executable) -> bytes:
    """Return the launcher of the plugin ``name``, or of the one that its first argument names."""
    home = str(Path(podwire.__file__).resolve().parents[1])
    arguments = f"[{name!r}, *sys.argv[1:]]" if name else "sys.argv[1:]"
    # After the standard library, whose modules nothing may hide, and before any other podwire.
    code = (
        "import sys; found = [i for i, p in enumerate(sys.path) if p.endswith('-packages')]; "
        f"sys.path.insert(*found[:1] or [len(sys.path)], {home!r}); "
        f"from podwire.plugins.__main__ import main; sys.exit(main({arguments}))"
    )
    return f'#!/bin/sh\n{MARK}\nexec {shlex.quote(python)} -I -c {shlex.quote(code)} "$@"\n'.encode()


def is_ours(path: Path) -> bool:
    """Whether a regular file is a launcher, of this or an earlier version. OSError if it cannot be read."""
    try:
        if path.is_symlink() or not path.is_file():
            return False
        with path.open("rb") as file:
            file.readline(64)
            return file.readline(64).strip() == MARK.encode()
    except FileNotFoundError:
        return False


def write(directory: str | os.PathLike[str], python: str = sys.executable) -> tuple[Path, ...]:
    """Write a launcher for every plugin into ``directory`` (made if missing) and return their paths.

    Raises :class:`LauncherConflict` if a file of that name is not ours, and then nothing was written.
    """
    home = Path(directory)
    home.mkdir(0o755, parents=True, exist_ok=True)
    paths = tuple(home / name for name in TYPES)
    for path in paths:
        if os.path.lexists(path) and not is_ours(path):
            raise LauncherConflict(path)
    for path in paths:
        _replace(path, script(path.name, python))
    return paths


def remove(directory: str | os.PathLike[str]) -> tuple[Path, ...]:
    """Remove our launchers from ``directory``, leave all else alone, and return what was removed."""
    ours = tuple(path for path in (Path(directory) / name for name in TYPES) if is_ours(path))
    for path in ours:
        path.unlink()
    return ours


def _replace(path: Path, text: bytes) -> None:
    # Renamed into place: a runtime may be starting the old one at this moment.
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        new.write_bytes(text)
        new.chmod(0o755)
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
