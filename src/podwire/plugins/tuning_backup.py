"""What an interface was before `tuning`, in the reference plugin's file, so that either puts it back.

``<dataDir>/<container ID>_<ifname>.json`` holds the values that were changed: ``mac``, ``promisc``, ``mtu``,
``allmulti``, ``txQLen``. Ours also holds ``network``, by which a garbage collection knows whose it is, and
``netns``, the namespace's device and inode, so that another container's interface is never changed; the
reference plugin reads over both. The file is there, and durable, before anything is changed.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from podwire.cni.errors import CNIError, IOFailure

DATA_DIR = "/run/cni/tuning"
_SUFFIX = ".json"


class Backup(msgspec.Struct, frozen=True, omit_defaults=True):
    """The former values of what was changed; None and empty for what was not."""

    mac: str = ""
    promisc: bool | None = None
    mtu: int = 0
    allmulti: bool | None = None
    txQLen: int | None = None
    network: str = ""
    netns: str = ""

    def over(self, later: Backup) -> Backup:
        """Return these values, and where there are none those of ``later``."""
        joined = {**msgspec.to_builtins(later), **msgspec.to_builtins(self)}
        return msgspec.convert(joined, Backup)


class Store:
    """The files below one data directory. Errors are IOFailure (5) that names the file."""

    def __init__(self, directory: str) -> None:
        self.directory = directory or DATA_DIR

    def path(self, container_id: str, ifname: str) -> str:
        """The file of one attachment."""
        return f"{self.directory}/{container_id}_{ifname}{_SUFFIX}"

    def read(self, container_id: str, ifname: str) -> tuple[bytes, Backup] | None:
        """Return an attachment's file as it is and what it says; None if there is none.

        One that holds something else says nothing: a node must not keep a pod for it.
        """
        path = self.path(container_id, ifname)
        with _told(path):
            try:
                data = Path(path).read_bytes()
            except FileNotFoundError:
                return None
        return data, _parsed(data)

    def write(self, container_id: str, ifname: str, data: bytes) -> None:
        """Put an attachment's file there, whole and durable, in place of what was."""
        path = self.path(container_id, ifname)
        new = f"{path}.new"
        with _told(path):
            os.makedirs(self.directory, mode=0o700, exist_ok=True)  # noqa: PTH103
            try:
                _write(new, data)
                os.replace(new, path)  # noqa: PTH105
            except OSError:
                with suppress(OSError):
                    os.unlink(new)  # noqa: PTH108
                raise
            directory = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)

    def remove(self, container_id: str, ifname: str) -> None:
        """Remove an attachment's file; none is fine."""
        path = self.path(container_id, ifname)
        with _told(path), suppress(FileNotFoundError, NotADirectoryError):
            os.unlink(path)  # noqa: PTH108

    def collect(self, network: str, valid: Collection[tuple[str, str]]) -> None:
        """Remove the files of a network's attachments that are not valid, and torn new ones.

        Files that name no network, the reference plugin's, stay: they may be any network's.
        """
        kept = {Path(self.path(*pair)).name for pair in valid}
        with _told(self.directory):
            try:
                names = os.listdir(self.directory)  # noqa: PTH208
            except FileNotFoundError:
                return
            for name in names:
                if name in kept or not name.endswith(_SUFFIX):
                    continue
                path = Path(self.directory, name)
                with suppress(FileNotFoundError):
                    if _parsed(path.read_bytes()).network == network:
                        path.unlink()

    def unwritable(self) -> str:
        """Say why no file could be written, or return an empty string."""
        home = Path(self.directory)
        there = next(path for path in (home, *home.parents) if path.exists())
        if there.is_dir() and os.access(there, os.W_OK):
            return ""
        return (
            f"{self.directory} cannot be written to" if there == home else f"{home} cannot be made in {there}"
        )


def encoded(backup: Backup) -> bytes:
    """Return the text of a file, as ``json.MarshalIndent`` with one space lays it out."""
    return msgspec.json.format(msgspec.json.encode(backup), indent=1)


def _parsed(data: bytes) -> Backup:
    try:
        return msgspec.json.decode(data, type=Backup)
    except (msgspec.DecodeError, UnicodeError):
        return Backup()


def _write(path: str, data: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(path, flags, 0o600)
    try:
        if os.write(fd, data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def _told(path: str) -> Iterator[None]:
    try:
        yield
    except CNIError:
        raise
    except OSError as error:
        raise IOFailure(f"tuning: {error.filename or path}: {error.strerror}") from error
