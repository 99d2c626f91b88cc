"""The file under the API server: objects, the log of their changes and the revision, in SQLite.

One thread writes, a batch in a transaction (group commit: what comes while one is being committed goes into
the next one together). Each table gets its rows of a batch in one statement: SQLite's module lets go of the
interpreter's lock for every step, and has to wait to get it back from a busy event loop. WAL with
``synchronous=NORMAL``: what was committed survives the death of the process; after a power cut the newest
transactions may be missing, never half of one. The file is locked: a second process cannot open it.

A row of ``changes`` holds the object as it was *before* (null when it was created). What came after is the
next row of the same object, or its row in ``objects``: so each state is stored once.
"""

from __future__ import annotations

import queue
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

_SCHEMA = """
CREATE TABLE IF NOT EXISTS objects (
    grp TEXT NOT NULL, plural TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL,
    revision INTEGER NOT NULL, data BLOB NOT NULL,
    PRIMARY KEY (grp, plural, namespace, name)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS changes (
    revision INTEGER PRIMARY KEY,
    grp TEXT NOT NULL, plural TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL,
    before_revision INTEGER NOT NULL, before BLOB
);
CREATE TABLE IF NOT EXISTS state (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
"""
_VERSION = 1
_ROWS = 128
"""Rows of one statement."""


class Key(NamedTuple):
    """Where an object is stored; ``namespace`` is empty for what belongs to the whole cluster."""

    group: str
    plural: str
    namespace: str
    name: str


class DatabaseFault(Exception):
    """SQLite failed. ``code`` is its extended error code, ``cause`` the exception."""

    def __init__(self, path: str, cause: sqlite3.Error) -> None:
        super().__init__(f"{path}: {cause}")
        self.path = path
        self.cause = cause
        self.code: int = getattr(cause, "sqlite_errorcode", 0)

    @property
    def full(self) -> bool:
        """Whether the disk is full."""
        return self.code & 0xFF == sqlite3.SQLITE_FULL


class Write(NamedTuple):
    """One change: ``after`` is None when the object is deleted, ``before`` when it is created."""

    revision: int
    key: Key
    before_revision: int
    before: bytes | None
    after: bytes | None


class ObjectRow(NamedTuple):
    """A current object."""

    key: Key
    revision: int
    data: bytes


class ChangeRow(NamedTuple):
    """An entry of the log."""

    revision: int
    key: Key
    before_revision: int
    before: bytes | None


class Submission(NamedTuple):
    """Writes to be made in order, durably; ``compacted`` > 0 drops the log up to there.

    ``epoch``: when one fails, those of its epoch that follow fail too, as they may build on it. ``token``
    is handed back.
    """

    writes: Sequence[Write]
    compacted: int
    epoch: int
    token: Any


Landed = Callable[[DatabaseFault | None], None]


class Database:
    """The SQLite file and its writer thread. ``path`` None: in memory."""

    def __init__(self, path: Path | None) -> None:
        self.path = ":memory:" if path is None else str(path)
        try:
            self._connection = sqlite3.connect(
                self.path,
                isolation_level=None,
                check_same_thread=False,
                timeout=0.2,
                cached_statements=4 * _ROWS,
            )
            try:
                self._prepare()
            except sqlite3.Error:
                self._connection.close()
                raise
        except sqlite3.Error as error:
            raise DatabaseFault(self.path, error) from error
        self._queue: queue.SimpleQueue[tuple[Sequence[Write], int] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._broken: DatabaseFault | None = None

    def _prepare(self) -> None:
        run = self._connection.execute
        run("PRAGMA locking_mode=EXCLUSIVE")
        run("PRAGMA journal_mode=WAL")
        run("PRAGMA synchronous=NORMAL")
        run("PRAGMA wal_autocheckpoint=4000")
        run("PRAGMA cache_size=-16000")
        run("BEGIN IMMEDIATE")
        found = run("PRAGMA user_version").fetchone()[0]
        if found not in (0, _VERSION):
            raise sqlite3.DatabaseError(f"the file has format {found}; this program knows {_VERSION}")
        for statement in _SCHEMA.split(";"):
            run(statement)
        run(f"PRAGMA user_version={_VERSION}")
        run("COMMIT")

    def start(self, landed: Landed) -> None:
        """Start the writer thread; from here on only it uses the file.

        It calls ``landed`` after each batch, with what went wrong.
        """
        self._thread = threading.Thread(
            target=self._work, args=(landed,), name="podwire-storage", daemon=True
        )
        self._thread.start()

    def submit(self, writes: Sequence[Write], compacted: int) -> None:
        """Write a batch in order, all of it or nothing; ``compacted`` > 0 drops the log up to there."""
        self._queue.put((writes, compacted))

    def close(self) -> None:
        """Write what is queued, then close the file."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None
        self._connection.close()

    def objects(self) -> Iterator[ObjectRow]:
        """All current objects; before :meth:`start`."""
        rows = self._connection.execute("SELECT grp, plural, namespace, name, revision, data FROM objects")
        for group, plural, namespace, name, revision, data in rows:
            yield ObjectRow(Key(group, plural, namespace, name), revision, data)

    def changes(self) -> Iterator[ChangeRow]:
        """The log, newest entry first; before :meth:`start`."""
        rows = self._connection.execute(
            "SELECT revision, grp, plural, namespace, name, before_revision, before"
            " FROM changes ORDER BY revision DESC"
        )
        for revision, group, plural, namespace, name, before_revision, before in rows:
            yield ChangeRow(revision, Key(group, plural, namespace, name), before_revision, before)

    def state(self) -> tuple[int, int]:
        """The last revision, and the one up to which the log was compacted; before :meth:`start`."""
        run = self._connection.execute
        (revision,) = run("SELECT max(revision) FROM changes").fetchone()
        compacted = run("SELECT value FROM state WHERE name = 'compacted'").fetchone()
        oldest = compacted[0] if compacted else 0
        return max(revision or 0, oldest), oldest

    def _work(self, landed: Landed) -> None:
        while (batch := self._queue.get()) is not None:
            landed(self._commit(*batch))

    def _commit(self, writes: Sequence[Write], compacted: int) -> DatabaseFault | None:
        if self._broken is not None:
            return self._broken
        connection = self._connection
        try:
            connection.execute("BEGIN IMMEDIATE")
            self._write(writes, compacted)
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            fault = DatabaseFault(self.path, error)
            try:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
            except sqlite3.Error:
                # Whether the transaction is in the file is unknown: only a new start can tell.
                self._broken = fault
            return fault
        return None

    def _write(self, writes: Sequence[Write], compacted: int) -> None:
        self._rows(
            "INSERT INTO changes VALUES ",
            [(w.revision, *w.key, w.before_revision, w.before) for w in writes],
        )
        # Only the last state of each object in this transaction counts.
        last = {write.key: write for write in writes}.values()
        self._rows(
            "INSERT OR REPLACE INTO objects VALUES ",
            [(*w.key, w.revision, w.after) for w in last if w.after is not None],
        )
        self._rows(
            "DELETE FROM objects WHERE (grp, plural, namespace, name) IN (VALUES ",
            [tuple(w.key) for w in last if w.after is None],
            ")",
        )
        if compacted:
            run = self._connection.execute
            run("INSERT OR REPLACE INTO state VALUES ('compacted', ?)", (compacted,))
            # The newest change stays: it holds the revision.
            run(
                "DELETE FROM changes WHERE revision <= ? AND revision < (SELECT max(revision) FROM changes)",
                (compacted,),
            )

    def _rows(self, head: str, rows: list[tuple[Any, ...]], tail: str = "") -> None:
        for start in range(0, len(rows), _ROWS):
            some = rows[start : start + _ROWS]
            marks = "(" + ",".join("?" * len(some[0])) + ")"
            values = [value for row in some for value in row]
            self._connection.execute(head + ",".join([marks] * len(some)) + tail, values)
