"""Files that are either the old or the new, whatever happens in between."""

from __future__ import annotations

import os


def write(path: str, data: bytes, *, mode: int = 0o600, durable: bool = False) -> None:
    """Replace the file at ``path``; with ``durable`` it survives a power cut too. OSError."""
    temporary = f"{path}.new"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        os.fchmod(fd, mode)
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        if durable:
            os.fsync(fd)
    finally:
        os.close(fd)
    os.replace(temporary, path)  # noqa: PTH105 - pathlib is not imported in supervisors
    if durable:
        directory = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)  # noqa: PTH120
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
