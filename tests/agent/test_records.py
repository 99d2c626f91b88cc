"""The file of records: durable before the answer, and honest about what it cannot do."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
from pathlib import Path
from typing import Any

import pytest

from podwire.agent.records import Records, RecordsBroken
from podwire.cni.request import Request, make_request
from tests.agent.plugins import WATCHED


def request(container: str = "one", ifname: str = "eth0", network: str = "net") -> Request[Any]:
    return make_request(
        WATCHED,
        "ADD",
        {"cniVersion": "1.1.0", "name": network, "type": "watched", "directory": "/x"},
        container_id=container,
        netns="/run/netns/x",
        ifname=ifname,
    )


def begin(records: Records, one: Request[Any]) -> int:
    return records.begin(one, 7, b"CNI_NETNS=/run/netns/x\0", b'{"name": "net"}')


def test_an_add_is_interrupted_until_it_is_complete(tmp_path: Path) -> None:
    records = Records(tmp_path / "agent.db")
    number = begin(records, request())
    (record,) = records.interrupted()
    assert (record.id, record.made, record.netns, record.view) == (number, False, "/run/netns/x", 7)
    records.complete(number, b'{"ips": []}')
    assert records.interrupted() == []
    (record,) = records.all()
    assert (record.made, record.result, record.config) == (True, b'{"ips": []}', b'{"name": "net"}')
    records.remove(request())
    assert records.all() == []
    records.close()


def test_del_forgets_its_own_attachment_only(tmp_path: Path) -> None:
    records = Records(tmp_path / "agent.db")
    others = [request("two"), request(ifname="eth1"), request(network="other")]
    for one in (request(), *others):
        records.complete(begin(records, one), b"{}")
    records.remove(request())
    assert [(r.container_id, r.ifname, r.network) for r in records.all()] == [
        (one.container_id, one.ifname, one.name) for one in others
    ]
    records.close()


def test_a_second_success_takes_the_place_of_the_first(tmp_path: Path) -> None:
    records = Records(tmp_path / "agent.db")
    others = [request("two"), request(ifname="eth1"), request(network="other")]
    for one in others:
        records.complete(begin(records, one), b"0")
    numbers = [begin(records, request()) for _ in range(3)]
    for number, result in zip(numbers, (b"1", b"2"), strict=False):
        records.complete(number, result)
    assert [(record.id, record.result) for record in records.all()[3:]] == [
        (numbers[1], b"2"),
        (numbers[2], b""),
    ]
    assert [record.result for record in records.all()[:3]] == [b"0"] * 3
    records.close()


def test_what_was_written_outlives_kill_9(tmp_path: Path) -> None:
    pid = os.fork()
    if pid == 0:
        try:
            records = Records(tmp_path / "agent.db")
            records.complete(begin(records, request()), b"{}")
            begin(records, request("two"))
            os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    records = Records(tmp_path / "agent.db")
    assert [(record.container_id, record.made) for record in records.all()] == [("one", True), ("two", False)]
    records.close()


def test_what_was_made_before_a_boot_is_told_apart(tmp_path: Path) -> None:
    records = Records(tmp_path / "agent.db")
    records.boot_id = "another"
    records.complete(begin(records, request()), b"{}")
    records.close()
    records = Records(tmp_path / "agent.db")
    records.complete(begin(records, request("two")), b"{}")
    assert [record.container_id for record in records.earlier()] == ["one"]
    assert [record.container_id for record in records.current()] == ["two"]
    records.close()


@pytest.mark.parametrize(
    "damage", ["not a database, certainly " * 50, "SQLite format 3\0" + "garbage " * 600]
)
def test_a_damaged_file_is_named_and_left_alone(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "agent.db"
    path.write_text(damage)
    records = Records(path)
    with pytest.raises(RecordsBroken) as caught:
        begin(records, request())
    assert caught.value.code == 5
    assert str(caught.value).startswith(f"records in {path}: ")
    assert "move it away and restart" in caught.value.details
    assert path.read_text() == damage
    records.close()


def test_a_file_of_another_version_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    broken = Records(path).broken
    assert broken is not None
    assert "are of version 99, not 1" in str(broken)


def test_a_file_that_is_removed_under_way_is_noticed(tmp_path: Path) -> None:
    records = Records(tmp_path / "agent.db")
    (tmp_path / "agent.db").unlink()
    with pytest.raises(RecordsBroken, match="somebody has removed the file; restart podwire agent"):
        begin(records, request())
    (tmp_path / "agent.db").touch()
    with pytest.raises(RecordsBroken, match="another file has taken its place"):
        begin(records, request())
    records.close()


@pytest.mark.kernel
def test_a_full_disk_is_told_and_got_over(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", disk], check=True)
    try:
        records = Records(disk / "agent.db")
        filler = disk / "filler"
        with pytest.raises(OSError, match="No space"), filler.open("wb", buffering=0) as file:
            while True:
                file.write(b"x" * 4096)
        with pytest.raises(RecordsBroken, match="make room on the disk"):
            begin(records, request())
        filler.unlink()
        records.complete(begin(records, request()), b"{}")
        assert len(records.all()) == 1
        records.close()
    finally:
        subprocess.run(["umount", disk], check=True)


def test_tidying_keeps_everything(tmp_path: Path) -> None:
    records = Records(tmp_path / "agent.db")
    for number in range(50):
        one = request(f"c{number}")
        records.complete(begin(records, one), b"x" * 3000)
    before = (tmp_path / "agent.db-wal").stat().st_size
    records.tidy(always=True)
    assert (tmp_path / "agent.db-wal").stat().st_size < before
    assert records.count() == 50
    records.close()
