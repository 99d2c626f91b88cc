"""What the agent remembers of attachments, durable before each answer: one SQLite file in WAL mode.

A row is written before an ADD touches anything and completed when it has succeeded; a DEL that succeeds
removes it. A commit is in the kernel's hands before the call returns, so it outlives the process, however
that ends; after a crash of the machine the boot ID tells that nothing of the row is there any more.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from podwire.agent import protocol
from podwire.cni.errors import IOFailure
from podwire.cni.request import Request

VERSION = 1
WAL_BYTES = 4 << 20
"""The size of the log from which `tidy` brings it into the file."""

_SCHEMA = """
CREATE TABLE attachment (
    id INTEGER PRIMARY KEY,
    made INTEGER NOT NULL,
    network TEXT NOT NULL,
    container_id TEXT NOT NULL,
    ifname TEXT NOT NULL,
    plugin TEXT NOT NULL,
    boot_id TEXT NOT NULL,
    view INTEGER NOT NULL,
    began REAL NOT NULL,
    environment BLOB NOT NULL,
    config BLOB NOT NULL,
    result BLOB NOT NULL
);
CREATE INDEX attachment_key ON attachment (container_id, ifname, network, plugin);
"""
_COLUMNS = (
    "id, made, network, container_id, ifname, plugin, boot_id, view, began, environment, config, result"
)
_INSERT = (
    "INSERT INTO attachment (made, network, container_id, ifname, plugin, boot_id, view, began, environment,"
    " config, result) VALUES (0, ?, ?, ?, ?, ?, ?, ?, ?, ?, x'')"
)
_COMPLETE = "UPDATE attachment SET made = 1, result = ? WHERE id = ?"
_KEY = "container_id = ? AND ifname = ? AND network = ? AND plugin = ?"
# Of the connection that writes, not of the file: one statement, and so one transaction, does both.
_REPLACING = """
CREATE TEMP TRIGGER replacing AFTER UPDATE OF made ON main.attachment WHEN NEW.made BEGIN
    DELETE FROM attachment WHERE container_id = NEW.container_id AND ifname = NEW.ifname
        AND network = NEW.network AND plugin = NEW.plugin AND id < NEW.id;
END
"""
_BUSY_SECONDS = 2.0


class RecordsBroken(IOFailure):
    """5: the file of records cannot be read or written; says which one, why, and what to do."""

    def __init__(self, path: Path, reason: str, hint: str = "") -> None:
        super().__init__(f"records in {path}: {reason}", hint)


class Record(msgspec.Struct, frozen=True):
    """An ADD of one plugin: what was asked, and its result (the JSON it printed) once it was ``made``.

    ``view`` is the mount namespace of its caller, in which CNI_NETNS is a path; ``began`` is in seconds since
    the epoch.
    """

    id: int
    made: bool
    network: str
    container_id: str
    ifname: str
    plugin: str
    boot_id: str
    view: int
    began: float
    environment: bytes
    config: bytes
    result: bytes

    @property
    def environ(self) -> dict[str, str]:
        """The variables of the ADD."""
        return protocol.parse_environment(self.environment)

    @property
    def netns(self) -> str:
        """The path of the container's namespace, as its caller named it."""
        return self.environ.get("CNI_NETNS", "")

    def __str__(self) -> str:
        return f"{self.plugin} {self.ifname} of container {self.container_id} on network {self.network}"


def boot_id() -> str:
    """Return what is another one after each boot of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


class Records:
    """The records in one file, which is made if it is missing. Thread-safe. RecordsBroken where it fails.

    A file that cannot be used leaves an object whose `broken` says so and whose every call raises that.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._read_lock = threading.Lock()
        self._inode = 0
        self.boot_id = boot_id()
        self.changes = 0
        """Grows with every change."""
        self.broken: RecordsBroken | None = None
        try:
            self._writer = self._open()
            self._reader = self._connect()
        except (sqlite3.Error, OSError) as error:
            self.broken = self._failure(error)
        except RecordsBroken as error:
            self.broken = error

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        connection.execute("PRAGMA synchronous = NORMAL")
        # Its fsync would fall into the middle of some request: `tidy` does it.
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        return connection

    def _open(self) -> sqlite3.Connection:
        self._path.parent.mkdir(0o700, parents=True, exist_ok=True)
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        connection = self._connect()
        with _closed_on_failure(connection):
            connection.execute("PRAGMA journal_mode = WAL")
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version == 0:
                connection.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version = {VERSION}; COMMIT;")
            elif version != VERSION:
                raise RecordsBroken(
                    self._path, f"are of version {version}, not {VERSION}", "another podwire's"
                )
            (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            if verdict != "ok":
                raise RecordsBroken(self._path, f"the file is damaged: {verdict}", _MOVE_AWAY)
            connection.execute(_REPLACING)
            self._inode = self._path.stat().st_ino
        return connection

    def begin(self, request: Request[Any], view: int, environment: bytes, config: bytes) -> int:
        """Write down an ADD that is about to begin, and return its number."""
        values = (
            request.name,
            request.container_id,
            request.ifname,
            request.plugin_type,
            self.boot_id,
            view,
            time.time(),
            environment,
            config,
        )
        with self._writing() as connection:
            return connection.execute(_INSERT, values).lastrowid or 0

    def complete(self, number: int, result: bytes) -> None:
        """Write down that an ADD has succeeded; it takes the place of an earlier one of the same name."""
        with self._writing() as connection:
            connection.execute(_COMPLETE, (result, number))

    def drop(self, number: int) -> None:
        """Forget one ADD, of which nothing is there."""
        with self._writing() as connection:
            connection.execute("DELETE FROM attachment WHERE id = ?", (number,))

    def remove(self, request: Request[Any]) -> None:
        """Forget an attachment, after its DEL."""
        key = (request.container_id, request.ifname, request.name, request.plugin_type)
        with self._writing() as connection:
            connection.execute(f"DELETE FROM attachment WHERE {_KEY}", key)

    def get(self, number: int) -> Record | None:
        """Return one record."""
        found = self._read("WHERE id = ?", number)
        return found[0] if found else None

    def all(self) -> list[Record]:
        """Return every record, in the order of their ADDs."""
        return self._read("ORDER BY id")

    def interrupted(self) -> list[Record]:
        """Return the ADDs that are not made, the last first."""
        return self._read("WHERE NOT made ORDER BY id DESC")

    def earlier(self) -> list[Record]:
        """Return what was made before the machine was booted, the last first."""
        return self._read("WHERE made AND boot_id <> ? ORDER BY id DESC", self.boot_id)

    def current(self) -> list[Record]:
        """Return what was made since the machine was booted, in the order of the ADDs."""
        return self._read("WHERE made AND boot_id = ? ORDER BY id", self.boot_id)

    def count(self) -> int:
        """Return how many records there are."""
        with self._reading() as connection:
            (number,) = connection.execute("SELECT count(*) FROM attachment").fetchone()
            return int(number)

    def tidy(self, *, always: bool = False) -> None:
        """Bring a log that has grown into the file; requests go on meanwhile."""
        with suppress(OSError), self._reading() as connection:
            if always or Path(f"{self._path}-wal").stat().st_size > WAL_BYTES:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)" if always else "PRAGMA wal_checkpoint")

    def close(self) -> None:
        """Close the file; more than once does nothing."""
        if self.broken is None:
            with suppress(RecordsBroken):
                self.tidy(always=True)
            self.broken = RecordsBroken(self._path, "closed")
            with self._lock, self._read_lock:
                self._reader.close()
                self._writer.close()

    def _read(self, which: str, *values: object) -> list[Record]:
        with self._reading() as connection:
            rows = connection.execute(f"SELECT {_COLUMNS} FROM attachment {which}", values).fetchall()
        return [Record(row[0], bool(row[1]), *row[2:]) for row in rows]

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        if self.broken is not None:
            raise self.broken
        try:
            with self._lock:
                # An open file that somebody has removed goes on working, and nothing of it would last.
                if os.stat(self._path).st_ino != self._inode:  # noqa: PTH116 - once per request
                    raise RecordsBroken(self._path, "another file has taken its place", _RESTART)
                yield self._writer
                self.changes += 1
        except FileNotFoundError:
            raise RecordsBroken(self._path, "somebody has removed the file", _RESTART) from None
        except (sqlite3.Error, OSError) as error:
            raise self._failure(error) from error

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        if self.broken is not None:
            raise self.broken
        try:
            with self._read_lock:
                yield self._reader
        except sqlite3.Error as error:
            raise self._failure(error) from error

    def _failure(self, error: Exception) -> RecordsBroken:
        if isinstance(error, OSError):
            return RecordsBroken(self._path, error.strerror or str(error))
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        return RecordsBroken(self._path, str(error), _HINTS.get(code, ""))


_MOVE_AWAY = (
    "move it away and restart podwire agent; what it held is freed by the runtime's DEL or GC of the network"
)
_RESTART = "restart podwire agent"
_HINTS = {
    sqlite3.SQLITE_FULL: "make room on the disk",
    sqlite3.SQLITE_CORRUPT: _MOVE_AWAY,
    sqlite3.SQLITE_NOTADB: _MOVE_AWAY,
    sqlite3.SQLITE_READONLY: "the directory must be writable",
}


@contextmanager
def _closed_on_failure(connection: sqlite3.Connection) -> Iterator[None]:
    try:
        yield
    except BaseException:
        connection.close()
        raise
