"""The leases of this host on disk: one SQLite file, written before anybody is answered.

One keeper at a time has the file: it holds ``<file>.lock`` with flock(2).
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from pathlib import Path

import msgspec

from podwire.dhcp.errors import KeeperUnavailable, StoreError
from podwire.dhcp.records import Key, Record

_SCHEMA = """
CREATE TABLE IF NOT EXISTS lease (
    network TEXT NOT NULL, container_id TEXT NOT NULL, ifname TEXT NOT NULL, record BLOB NOT NULL,
    PRIMARY KEY (network, container_id, ifname)
) WITHOUT ROWID
"""
_VERSION = 1


class LeaseStore:
    """The open file. One thread at a time. Close it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open it; it and its directory (0700) are made if missing.

        Raises :class:`KeeperUnavailable` if another keeper has it, :class:`StoreError` if it cannot be used.
        """
        self.path = os.fspath(path)
        self._lock = -1
        try:
            Path(self.path).parent.mkdir(0o700, parents=True, exist_ok=True)
            self._lock = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        except BlockingIOError as error:
            self._unlock()
            raise KeeperUnavailable(self.path, "another process keeps these leases") from error
        except OSError as error:
            self._unlock()
            raise StoreError("open", self.path, "", error.errno or 0) from error
        try:
            self._database = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
            try:
                self._prepare()
            except BaseException:
                self._database.close()
                raise
        except sqlite3.Error as error:
            self._unlock()
            raise StoreError("open", self.path, str(error)) from error
        except BaseException:
            self._unlock()
            raise

    def _prepare(self) -> None:
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = FULL")
        (version,) = self._database.execute("PRAGMA user_version").fetchone()
        if version not in (0, _VERSION):
            raise StoreError("open", self.path, f"its format is {version}, and this keeper knows {_VERSION}")
        self._database.execute(_SCHEMA)
        self._database.execute(f"PRAGMA user_version = {_VERSION}")

    def load(self) -> tuple[dict[Key, Record], list[Key]]:
        """Return all records, and the keys of those that cannot be read."""
        records: dict[Key, Record] = {}
        broken: list[Key] = []
        try:
            rows = self._database.execute(
                "SELECT network, container_id, ifname, record FROM lease"
            ).fetchall()
        except sqlite3.Error as error:
            raise StoreError("read", self.path, str(error)) from error
        for network, container_id, ifname, record in rows:
            key = Key(network, container_id, ifname)
            try:
                records[key] = msgspec.json.decode(record, type=Record)
            except (msgspec.DecodeError, ValueError, TypeError):
                broken.append(key)
        return records, broken

    def put(self, key: Key, record: Record) -> None:
        """Remember a record in place of an earlier one: it is on disk when this returns."""
        self._write(
            "INSERT INTO lease VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET record = excluded.record",
            (*key, msgspec.json.encode(record)),
        )

    def delete(self, key: Key) -> None:
        """Forget a record; none is no error."""
        self._write("DELETE FROM lease WHERE network = ? AND container_id = ? AND ifname = ?", key)

    def _write(self, statement: str, values: tuple[object, ...]) -> None:
        try:
            self._database.execute(statement, values)
        except sqlite3.Error as error:
            raise StoreError("write", self.path, str(error)) from error

    def close(self) -> None:
        """Close the file and let others have it; more than once does nothing."""
        self._database.close()
        self._unlock()

    def _unlock(self) -> None:
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)
