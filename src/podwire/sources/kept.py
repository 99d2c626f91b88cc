"""The last good text of each manifest file, on disk, so that a node that starts again does not lose it.

A file may turn bad, or unreadable, while no node runs: its pod goes on running and is still wanted.
"""

from __future__ import annotations

import hashlib
import logging
import os
from pathlib import Path

import msgspec

_log = logging.getLogger(__name__)


class _Entry(msgspec.Struct, frozen=True):
    path: bytes
    text: bytes


class LastGood:
    """One small file a manifest below ``directory``; None keeps nothing. What the disk refuses is logged."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._known: dict[str, bytes] = {}

    def load(self) -> dict[str, bytes]:
        """The text of each manifest by its path."""
        if self._directory is None or not self._directory.is_dir():
            return {}
        for file in self._directory.iterdir():
            try:
                entry = msgspec.json.decode(file.read_bytes(), type=_Entry)
                self._known[os.fsdecode(entry.path)] = entry.text
            except (OSError, msgspec.MsgspecError) as error:
                _log.warning("%s: left out: %s", file, error)
        return dict(self._known)

    def save(self, path: str, text: bytes) -> None:
        """Keep the text of the manifest at ``path``."""
        if self._directory is None or self._known.get(path) == text:
            return
        self._known[path] = text
        file = self._file(self._directory, path)
        temporary = file.with_name(f".{file.name}")
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            temporary.write_bytes(msgspec.json.encode(_Entry(os.fsencode(path), text)))
            temporary.replace(file)
        except OSError as error:
            _log.warning("%s: its last good text is not kept: %s", path, error)

    def forget(self, path: str) -> None:
        """The manifest at ``path`` is gone, or says that there is no pod."""
        if self._directory is None or self._known.pop(path, None) is None:
            return
        try:
            self._file(self._directory, path).unlink(missing_ok=True)
        except OSError as error:
            _log.warning("%s: its last good text stays: %s", path, error)

    @staticmethod
    def _file(directory: Path, path: str) -> Path:
        return directory / hashlib.sha256(os.fsencode(path)).hexdigest()[:32]
