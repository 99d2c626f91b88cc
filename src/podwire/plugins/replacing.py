"""Files that are put in place together: all of them, or none.

Each is renamed into place, so that whoever opens or starts it meanwhile has the old or the new one. What was
there is kept under a hidden name until all is done. After a kill -9 in between some files are new and some
old; doing the same again finishes it and clears what was left.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_HIDDEN = ".podwire-install."
_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS, errno.EXDEV})


class Replacing:
    """Changes in one directory that an exception undoes. OSError from each names the file that was meant."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._undo: list[Callable[[], None]] = []
        self._hidden: list[Path] = []
        self._written: dict[tuple[bytes, int], Path] = {}

    def put(self, path: Path, data: bytes, mode: int) -> None:
        """Put a file in place. Equal ones are one file with several names (hard links), where that can be."""
        first = self._written.get((data, mode))
        new = self._name()
        with _naming(path):
            if first is None:
                _write(new, data, mode)
            else:
                _link(first, new)
            self._over(path)
            os.rename(new, path)  # noqa: PTH104
        self._written.setdefault((data, mode), path)

    def save(self, path: Path, backup: Path) -> None:
        """Keep ``path`` as ``backup`` as well; a backup of before is replaced."""
        new = self._name()
        with _naming(backup):
            _link(path, new)
            self._over(backup)
            os.rename(new, backup)  # noqa: PTH104

    def remove(self, path: Path) -> None:
        """Take a file away."""
        kept = self._name()
        self._undo.append(lambda: _back(kept, path))
        with _naming(path):
            os.rename(path, kept)  # noqa: PTH104

    def restore(self, backup: Path, path: Path) -> None:
        """Put a backup in the place of ``path``, which may be there or not."""
        self.save(backup, path)
        self.remove(backup)

    def _over(self, path: Path) -> None:
        """Prepare for something that comes into the place of ``path``."""
        if not os.path.lexists(path):
            self._undo.append(lambda: path.unlink(missing_ok=True))
            return
        kept = self._name()
        self._undo.append(lambda: _back(kept, path))
        _link(path, kept)

    def _name(self) -> Path:
        path = self.directory / f"{_HIDDEN}{os.getpid()}.{len(self._hidden)}"
        self._hidden.append(path)
        return path

    def roll_back(self) -> None:
        """Undo everything, newest first; what cannot be undone is raised at the end."""
        failures = []
        for undo in reversed(self._undo):
            try:
                undo()
            except OSError as error:
                failures.append(error)
        self.tidy()
        if failures:
            raise failures[0]

    def tidy(self) -> None:
        """Drop what was kept for undoing."""
        for path in self._hidden:
            with contextlib.suppress(OSError):
                path.unlink()


@contextmanager
def replacing(directory: Path) -> Iterator[Replacing]:
    """Change files in ``directory`` for the length of a block; an exception inside it undoes all of it.

    One process at a time. OSError, also from making the directory.
    """
    made = _missing(directory)
    directory.mkdir(0o755, parents=True, exist_ok=True)
    lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for path in directory.glob(f"{_HIDDEN}*"):
            path.unlink()
        changes = Replacing(directory)
        try:
            yield changes
            os.fsync(lock)
        except BaseException as error:
            try:
                changes.roll_back()
            except OSError as trouble:
                error.add_note(f"not all was put back: {trouble}")
            for each in made:
                with contextlib.suppress(OSError):
                    each.rmdir()
            raise
        changes.tidy()
    finally:
        os.close(lock)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Have an OSError name the file that somebody asked for, not a hidden one."""
    try:
        yield
    except OSError as error:
        error.filename, error.filename2 = str(path), None
        raise


def _missing(directory: Path) -> list[Path]:
    return [each for each in (directory, *directory.parents) if not each.exists()]


def _back(kept: Path, path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):  # it never came so far
        os.replace(kept, path)  # noqa: PTH105


def _write(path: Path, data: bytes, mode: int) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fchmod(file.fileno(), mode)
        os.fsync(file.fileno())


def _link(path: Path, other: Path) -> None:
    """Give a file, or a symbolic link, another name; a copy where the file system has no hard links."""
    try:
        os.link(path, other, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        shutil.copy2(path, other, follow_symlinks=False)
