"""The file source: pods from manifest files and directories of them, by inotify and by polling.

A directory is read in the order of its names, without its sub-directories, names that begin with a dot, and
temporary files of editors; symbolic links are followed. A file that turns bad keeps its last good pod, and so
does a directory that cannot be read. Of two files with the same pod the first one counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from podwire.sources.kept import LastGood
from podwire.sources.manifests import Manifest, describe, holds_pod, is_temporary, shown_path, signature
from podwire.sources.problems import Reason, SourceProblem
from podwire.sources.updates import FILE, Emit, Snapshot
from podwire.sources.watch import Watcher

GONE_AFTER = 0.1
"""Seconds for which a file may be missing: editors and version control take a file away and write it anew."""

_TEMPORARY_AGE = 2.0


class FileSource:
    """Pods from files on this machine.

    ``paths`` is one path or several; each is a directory, a file, or not there yet. Together they are one
    source. ``poll_interval`` is in seconds; inotify tells of changes earlier. ``keep`` is a directory for
    the last good text of each file, which then is wanted also by a run that finds the file bad; None: no run
    knows of the one before.
    """

    name = FILE

    def __init__(
        self,
        paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        node_name: str,
        poll_interval: float = 20.0,
        keep: Path | None = None,
    ) -> None:
        several = (paths,) if isinstance(paths, str | os.PathLike) else paths
        self.paths = tuple(dict.fromkeys(str(Path(path).absolute()) for path in several))
        self.node_name = node_name
        self.poll_interval = poll_interval
        self._manifests: dict[tuple[int, str], Manifest] = {}
        self._notes: list[SourceProblem] = []
        self._temporary: dict[str, tuple[object, bool]] = {}
        self._look_again: float | None = None
        self._kept = LastGood(keep)
        self._recalled = False

    def read(self) -> Snapshot:
        """What the files hold now, read once and without waiting for changes."""
        with Watcher() as watcher:
            return self._scan(watcher)

    async def run(self, emit: Emit) -> None:
        """Give ``emit`` a snapshot at once and after every change, until cancelled."""
        loop = asyncio.get_running_loop()
        last: Snapshot | None = None
        with Watcher() as watcher, ThreadPoolExecutor(1, "file-source") as thread:
            while True:
                snapshot = await loop.run_in_executor(thread, self._scan, watcher)
                if snapshot != last:
                    last = snapshot
                    emit(snapshot)
                wait = self.poll_interval
                if self._look_again is not None:
                    wait = min(wait, max(0.0, self._look_again - time.monotonic()))
                await watcher.changed(wait)

    def _scan(self, watcher: Watcher) -> Snapshot:
        self._notes, self._look_again = [], None
        self._recall()
        watcher.begin()
        found: set[tuple[int, str]] = set()
        for index, path in enumerate(self.paths):
            for name in self._files(watcher, index, path):
                found.add((index, name))
        watcher.end()
        self._drop_missing(found)
        if watcher.failure:
            message = f"{watcher.failure}; changes are seen at the next poll, within {self.poll_interval:g} s"
            self._notes.append(SourceProblem(FILE, "", None, Reason.FAILED_WATCH, message))
        return self._snapshot()

    def _recall(self) -> None:
        """Once: what an earlier run kept of the files that this one reads; the rest is forgotten."""
        if self._recalled:
            return
        self._recalled = True
        for path, text in self._kept.load().items():
            directory, name = os.path.split(path)
            if path in self.paths:
                key = (self.paths.index(path), "")
            elif directory in self.paths:
                key = (self.paths.index(directory), name)
            else:
                self._kept.forget(path)
                continue
            # Should the file be gone, it went while no node ran: long enough ago.
            self._manifests[key] = Manifest(path, self._kept, text, missing_since=float("-inf"))

    def _files(self, watcher: Watcher, index: int, path: str) -> Iterator[str]:
        """Refresh all files of one path; the names that are there, empty for the path itself."""
        watcher.follow(path, content=False)
        try:
            status = os.stat(path)  # noqa: PTH116
        except FileNotFoundError as error:
            watcher.follow(path, content=True)
            message = describe(path, error)
            self._notes.append(SourceProblem(FILE, shown_path(path), None, Reason.MISSING_PATH, message))
            return
        except OSError as error:
            self._notes.append(self._unreadable(path, error))
            yield from self._known(index)
            return
        if not stat.S_ISDIR(status.st_mode):
            directory, name = os.path.split(os.path.realpath(path))
            self._refresh(watcher, (index, ""), path, (watcher.need(directory, name), name))
            yield ""
            return
        number = watcher.need(path)
        try:
            with os.scandir(path) as entries:
                listed = sorted((entry.name, entry.is_symlink()) for entry in entries)
        except OSError as error:
            self._notes.append(self._unreadable(path, error))
            yield from self._known(index)
            return
        for name, is_link in listed:
            full = f"{path}/{name}"
            if name.startswith(".") or not self._meant(full, name):
                continue
            place = (number, name)
            if is_link:
                watcher.follow(full, content=True)
                directory, target = os.path.split(os.path.realpath(full))
                place = (watcher.need(directory, target), target)
            if self._refresh(watcher, (index, name), full, place):
                yield name

    def _refresh(
        self, watcher: Watcher, key: tuple[int, str], path: str, place: tuple[int | None, str]
    ) -> bool:
        manifest = self._manifests.get(key) or Manifest(path, self._kept)
        try:
            status = os.stat(path)  # noqa: PTH116
        except OSError as error:
            if isinstance(error, FileNotFoundError) and not os.path.islink(path):  # noqa: PTH114
                return False
            manifest.unreadable(error, self.node_name)
        else:
            held = watcher.held(*place, status.st_size) if stat.S_ISREG(status.st_mode) else None
            if held is None:
                manifest.refresh(status, self.node_name)
            else:
                manifest.recall(self.node_name)
                self._look_at(held)
        manifest.missing_since = None
        self._manifests[key] = manifest
        return True

    def _meant(self, path: str, name: str) -> bool:
        """False for temporary names; one that stays and holds a pod is noted, so that nobody wonders."""
        if not is_temporary(name):
            return True
        with contextlib.suppress(OSError):
            status = os.stat(path)  # noqa: PTH116
            if time.time() - status.st_mtime >= _TEMPORARY_AGE:
                known, holds = self._temporary.get(path, (None, False))
                if known != signature(status):
                    holds = holds_pod(path)
                    self._temporary[path] = (signature(status), holds)
                if holds:
                    message = (
                        "not read, because the name is that of a temporary file: rename it if it is meant"
                    )
                    self._notes.append(
                        SourceProblem(FILE, shown_path(path), None, Reason.IGNORED_FILE, message)
                    )
        return False

    def _drop_missing(self, found: set[tuple[int, str]]) -> None:
        now = time.monotonic()
        for key in [key for key in self._manifests if key not in found]:
            manifest = self._manifests[key]
            since = manifest.missing_since = now if manifest.missing_since is None else manifest.missing_since
            if manifest.pod is None or now - since >= GONE_AFTER:
                del self._manifests[key]
                self._kept.forget(manifest.path)
            else:
                self._look_at(since + GONE_AFTER)

    def _look_at(self, when: float) -> None:
        self._look_again = when if self._look_again is None else min(when, self._look_again)

    def _known(self, index: int) -> Iterator[str]:
        """The files that were read in a path which cannot be read now."""
        for (at, name), manifest in self._manifests.items():
            if at == index:
                manifest.recall(self.node_name)
                yield name

    def _unreadable(self, path: str, error: OSError) -> SourceProblem:
        return SourceProblem(FILE, shown_path(path), None, Reason.FAILED_READ, describe(path, error))

    def _snapshot(self) -> Snapshot:
        by_name: dict[str, Manifest] = {}
        by_uid: dict[str, Manifest] = {}
        problems = list(self._notes)
        for _, manifest in sorted(self._manifests.items()):
            problems.extend(manifest.problems)
            pod = manifest.pod
            if pod is None:
                continue
            name, uid = pod.full_name, pod.metadata.uid
            first = by_name.get(name) or by_uid.get(uid)
            if first is None:
                by_name[name] = by_uid[uid] = manifest
                continue
            what = f'pod "{name}"' if name in by_name else f'a pod with UID "{uid}"'
            message = f"{what} is already in {first.shown}: this file is left out"
            problems.append(
                SourceProblem(FILE, manifest.shown, None, Reason.DUPLICATE_NAME, message, pod=name)
            )
        pods = tuple(manifest.pod for manifest in by_name.values() if manifest.pod is not None)
        return Snapshot(FILE, pods, tuple(problems))
