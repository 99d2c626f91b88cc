"""The leases' file: what was put is there after any end, and one process has it."""

from __future__ import annotations

import sqlite3
import stat
from pathlib import Path

import msgspec
import pytest

from podwire.dhcp.errors import KeeperUnavailable, StoreError
from podwire.dhcp.lease import Lease, LeaseRoute
from podwire.dhcp.records import Key, Record, Wish
from podwire.dhcp.store import LeaseStore

KEY = Key("net", "id", "eth0")
LEASE = Lease(
    "10.0.0.5/24", "10.0.0.1", 12.5, 600, 300.0, 510.0, "10.0.0.1", (LeaseRoute("0.0.0.0/0", "10.0.0.1"),)
)
RECORD = Record(
    Wish("/run/netns/x", {12: b"\xff\0"}, (1, 3)),
    (4, 4026532000),
    b"\2\0\0\0\0\1",
    "boot",
    LEASE,
    b"\2\0\0\0\0\2",
)


def test_a_record_comes_back_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "leases"
    store = LeaseStore(path)
    store.put(KEY, RECORD)
    store.close()
    store = LeaseStore(path)
    assert store.load() == ({KEY: RECORD}, [])
    store.put(KEY, msgspec.structs.replace(RECORD, lost=True))
    assert store.load()[0][KEY].lost
    store.delete(KEY)
    store.delete(KEY)
    assert store.load() == ({}, [])
    store.close()
    store.close()


def test_it_is_roots_alone(tmp_path: Path) -> None:
    LeaseStore(tmp_path / "deep" / "leases").close()
    assert stat.S_IMODE((tmp_path / "deep").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "deep" / "leases").stat().st_mode) == 0o600


def test_only_one_has_it(tmp_path: Path) -> None:
    first = LeaseStore(tmp_path / "leases")
    with pytest.raises(KeeperUnavailable):
        LeaseStore(tmp_path / "leases")
    first.close()
    LeaseStore(tmp_path / "leases").close()


def test_a_file_that_is_no_database_is_told_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "leases"
    path.write_bytes(b"not a database, but somebody's words" * 100)
    before = path.read_bytes()
    with pytest.raises(StoreError, match=str(path)):
        LeaseStore(path)
    assert path.read_bytes() == before


def test_a_format_of_the_future_is_told(tmp_path: Path) -> None:
    LeaseStore(tmp_path / "leases").close()
    database = sqlite3.connect(tmp_path / "leases")
    database.execute("PRAGMA user_version = 9")
    database.close()
    with pytest.raises(StoreError, match="its format is 9"):
        LeaseStore(tmp_path / "leases")


def test_a_directory_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"Not a directory|File exists"):
        LeaseStore(tmp_path / "file" / "leases")
