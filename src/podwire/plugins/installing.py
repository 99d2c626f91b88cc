"""Installation for other runtimes: our programs in their bin directory, a network in their configuration.

What is ours is known by what is inside of it, never by its name. What is somebody else's is left alone, or
kept beside ours and put back when ours goes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from podwire.plugins import TYPES, launchers, shims
from podwire.plugins.replacing import Replacing, replacing

BACKUP = ".before-podwire"
"""What is added to the name of somebody else's file that ours has replaced."""


@dataclass(frozen=True)
class File:
    """A file to be there."""

    path: Path
    data: bytes
    mode: int


@dataclass(frozen=True)
class Change:
    """What becomes of one file.

    ``action``: ``made``, ``replaced`` (ours by a newer one, or, with ``backup``, somebody else's),
    ``unchanged``, ``removed`` (``backup``: a copy that is kept), ``restored`` (somebody else's, from
    ``backup``), ``left`` (somebody else's took the place again meanwhile, and ``backup`` stays too).
    """

    path: Path
    action: str
    backup: Path | None = None


class Foreign(Exception):
    """Files of somebody else are where ours should be; ``paths`` lists them."""

    def __init__(self, paths: Sequence[Path]) -> None:
        super().__init__(", ".join(map(str, paths)))
        self.paths = tuple(paths)


Ours = Callable[[Path], bool]


def _never(_path: Path) -> bool:
    return False


def is_our_program(path: Path) -> bool:
    """Whether a file is a shim or a launcher, of this or another version."""
    return shims.is_ours(path) or launchers.is_ours(path)


NAMES = tuple(sorted(TYPES))
"""The names that our programs are installed under."""


def launcher_programs(directory: Path) -> tuple[File, ...]:
    """The plugins as Python programs, which know no agent."""
    return tuple(File(directory / name, launchers.script(name), 0o755) for name in TYPES)


def programs(directory: Path, socket: Path, *, standalone: bool) -> tuple[File, ...]:
    """The shim under each plugin's name, and the program that needs no agent. ShimMissing, ValueError."""
    shim = shims.told_of(shims.binary(), socket)
    found = [File(directory / name, shim, 0o755) for name in NAMES]
    if standalone:
        found.append(File(directory / launchers.STANDALONE, launchers.script(), 0o755))
    return tuple(found)


def plan(
    files: Iterable[File], ours: Ours, *, force: bool = False, unwanted: Iterable[Path] = ()
) -> tuple[Change, ...]:
    """Return what :func:`install` would do. Foreign, OSError."""
    changes = [Change(path, "removed") for path in unwanted if ours(path)]
    foreign = []
    for file in files:
        backup = None
        if not os.path.lexists(file.path):
            action = "made"
        elif ours(file.path):
            action = "unchanged" if _is(file) else "replaced"
        elif force and not (file.path.is_dir() and not file.path.is_symlink()):
            action, backup = "replaced", _backup(file.path)
        else:
            foreign.append(file.path)
            continue
        changes.append(Change(file.path, action, backup))
    if foreign:
        raise Foreign(foreign)
    return tuple(changes)


def install(
    directory: Path, files: Sequence[File], ours: Ours, *, force: bool = False, unwanted: Sequence[Path] = ()
) -> tuple[Change, ...]:
    """Put files into ``directory`` (made if missing): all of them, or nothing changes. Foreign, OSError.

    Ours from before are replaced, ``unwanted`` ones taken away. Somebody else's are refused, or with
    ``force`` kept beside ours.
    """
    changes = plan(files, ours, force=force, unwanted=unwanted)
    if all(change.action == "unchanged" for change in changes):
        return changes
    wanted = {file.path: file for file in files}
    with replacing(directory) as transaction:
        changes = plan(files, ours, force=force, unwanted=unwanted)
        for change in changes:
            if change.backup:
                transaction.save(change.path, change.backup)
            if change.action == "removed":
                transaction.remove(change.path)
            elif change.action != "unchanged":
                file = wanted[change.path]
                transaction.put(file.path, file.data, file.mode)
    return changes


def removal(directory: Path, names: Iterable[str], ours: Ours, *, keep: Ours = _never) -> tuple[Change, ...]:
    """Return what :func:`uninstall` would do. OSError."""
    changes = []
    for path in sorted(directory / name for name in names):
        backup = _backup(path)
        theirs = os.path.lexists(backup) and not ours(backup)
        if ours(path) and keep(path) and not theirs:
            changes.append(Change(path, "removed", backup))
        elif ours(path) or (theirs and not os.path.lexists(path)):
            changes.append(Change(path, "restored" if theirs else "removed", backup if theirs else None))
        elif theirs:
            changes.append(Change(path, "left", backup))
    return tuple(changes)


def uninstall(
    directory: Path, names: Iterable[str], ours: Ours, *, keep: Ours = _never
) -> tuple[Change, ...]:
    """Take our files of these names away, and put back what they had replaced: all, or nothing. OSError.

    Of ours that ``keep`` chooses a copy is kept where nothing else was.
    """
    wanted = tuple(names)
    if not removal(directory, wanted, ours, keep=keep):
        return ()
    with replacing(directory) as transaction:
        changes = removal(directory, wanted, ours, keep=keep)
        for change in changes:
            _take_away(transaction, change)
    return changes


def names_of_ours(directory: Path) -> tuple[str, ...]:
    """The names under which programs of ours are in ``directory``, or once were. OSError."""
    if not directory.is_dir():
        return ()
    found = set()
    for path in directory.iterdir():
        if path.name.endswith(BACKUP):
            found.add(path.name.removesuffix(BACKUP))
        elif is_our_program(path):
            found.add(path.name)
    return tuple(sorted(found))


def _take_away(transaction: Replacing, change: Change) -> None:
    if change.action == "removed":
        if change.backup:
            transaction.save(change.path, change.backup)
        transaction.remove(change.path)
    elif change.action == "restored" and change.backup:
        transaction.restore(change.backup, change.path)


def _backup(path: Path) -> Path:
    return path.with_name(path.name + BACKUP)


def _is(file: File) -> bool:
    status = file.path.stat()
    return (status.st_mode & 0o7777, status.st_size) == (file.mode, len(file.data)) and (
        file.path.read_bytes() == file.data
    )
