from __future__ import annotations

import fcntl
import os
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from podwire.ipam.allocation import exhausted
from podwire.ipam.directory import AddressDirectory
from podwire.ipam.errors import (
    AddressTaken,
    AddressUnusable,
    AlreadyAllocated,
    Holder,
    LockTimeout,
    PoolExhausted,
    RangeError,
    StoreError,
)
from tests.ipam.helpers import add, addresses, files, given, pool, release

V4 = pool("10.1.0.0/29")
V6 = pool("fd00::/64")


@pytest.fixture
def store(tmp_path: Path) -> AddressDirectory:
    return AddressDirectory(tmp_path, "net")


def test_files_are_those_of_the_reference(store: AddressDirectory) -> None:
    assert given(add(store, [V4, V6], "a")) == ["10.1.0.2", "fd00::2"]
    assert files(store) == {
        "10.1.0.2": "a\r\neth0",
        "fd00::2": "a\r\neth0",
        "last_reserved_ip.0": "10.1.0.2",
        "last_reserved_ip.1": "fd00::2",
    }
    for name in files(store):
        assert stat.S_IMODE((Path(store.path) / name).stat().st_mode) == 0o600


def test_addresses_go_round(store: AddressDirectory) -> None:
    assert [given(add(store, [V4], name)) for name in "abc"] == [["10.1.0.2"], ["10.1.0.3"], ["10.1.0.4"]]
    assert release(store, "b") == ["10.1.0.3"]
    assert [given(add(store, [V4], name)) for name in "def"] == [["10.1.0.5"], ["10.1.0.6"], ["10.1.0.3"]]


@pytest.mark.parametrize("last", ["10.0.0.6", "10.0.1.6", "10.0.0.1", "junk", ""])
def test_C03_exhaustion_is_an_error_whatever_was_reserved_last(store: AddressDirectory, last: str) -> None:
    sets = [pool("10.0.0.0/29", "10.0.1.0/29")]
    for n in range(10):
        add(store, sets, f"c{n}")
    (Path(store.path) / "last_reserved_ip.0").write_text(last)
    with store.locked() as leases:
        assert exhausted(leases, sets) is sets[0]
    with pytest.raises(PoolExhausted, match=r"10\.0\.0\.1-10\.0\.0\.6,10\.0\.1\.1.*all 10 are taken"):
        add(store, sets, "late")
    release(store, "c3")
    assert given(add(store, sets, "late")) == ["10.0.0.5"]


def test_C04_an_empty_file_is_free(store: AddressDirectory) -> None:
    add(store, [V4], "a")
    for n in range(3, 7):
        (Path(store.path) / f"10.1.0.{n}").touch()
    assert given(add(store, [V4], "b")) == ["10.1.0.3"]
    assert given(add(store, [V4], "c", "10.1.0.5")) == ["10.1.0.5"]
    assert addresses(store)["10.1.0.3"] == "b\r\neth0"
    with store.locked() as leases:
        leases.retain({("a", "eth0"), ("b", "eth0"), ("c", "eth0")})
    assert set(addresses(store)) == {"10.1.0.2", "10.1.0.3", "10.1.0.5"}


def test_C05_a_second_allocation_is_refused_and_takes_nothing(store: AddressDirectory) -> None:
    add(store, [V4], "x")
    before = files(store)
    with pytest.raises(AlreadyAllocated, match=r"container x \(eth0\) holds 10\.1\.0\.2 already"):
        add(store, [V4], "x")
    assert files(store) == before
    assert given(add(store, [V4], "x", ifname="net1")) == ["10.1.0.3"]
    assert release(store, "x") == ["10.1.0.2"]
    assert given(add(store, [V4], "x")) == ["10.1.0.4"]


def test_C07_a_refused_request_says_why(store: AddressDirectory) -> None:
    add(store, [V4], "holder")
    with pytest.raises(AddressTaken, match=r"10\.1\.0\.2 is held by container holder \(eth0\)"):
        add(store, [V4], "b", "10.1.0.2")
    with pytest.raises(AddressUnusable, match=r"10\.9\.0\.1 .*outside of 10\.1\.0\.1-10\.1\.0\.6"):
        add(store, [V4], "b", "10.9.0.1")
    with pytest.raises(AddressUnusable, match="it is a gateway"):
        add(store, [V4], "b", "10.1.0.1")
    with pytest.raises(AddressUnusable, match="outside"):
        add(store, [V4], "b", "10.1.0.7")
    with pytest.raises(RangeError, match=r"10\.1\.0\.3 is requested of the same set"):
        add(store, [V4], "b", "10.1.0.3", "10.1.0.4")
    assert set(addresses(store)) == {"10.1.0.2"}


def test_requests_are_met_by_the_set_they_lie_in(store: AddressDirectory) -> None:
    assert given(add(store, [V4, V6], "a", "fd00::77")) == ["10.1.0.2", "fd00::77"]
    assert given(add(store, [V4, V6], "b", "fd00::99", "10.1.0.6")) == ["10.1.0.6", "fd00::99"]


def test_several_sets_are_all_or_nothing(store: AddressDirectory) -> None:
    small = pool("fd00:2::/126", gateway="fe80::1")
    for name in "abc":
        add(store, [V4, small], name)
    before = addresses(store)
    with pytest.raises(PoolExhausted, match="fd00:2::"):
        add(store, [V4, small], "d")
    assert addresses(store) == before


def test_old_files_with_only_the_id(store: AddressDirectory) -> None:
    Path(store.path).mkdir()
    (Path(store.path) / "10.1.0.2").write_text("old\n")
    with pytest.raises(AlreadyAllocated, match=r"container old \(anything\) holds 10\.1\.0\.2"):
        add(store, [V4], "old", ifname="anything")
    with pytest.raises(AddressTaken, match=r"container old$"):
        add(store, [V4], "b", "10.1.0.2")
    assert release(store, "other") == []
    assert release(store, "old") == ["10.1.0.2"]
    assert addresses(store) == {}


def test_E04_release_of_an_unknown_or_older_id_touches_nobody(store: AddressDirectory) -> None:
    add(store, [V4], "A")
    release(store, "A")
    add(store, [V4], "B", "10.1.0.2")
    assert release(store, "A") == release(store, "A") == release(store, "never") == []
    assert addresses(store) == {"10.1.0.2": "B\r\neth0"}


def test_B11_retain_frees_what_is_not_listed_and_keeps_the_other_files(store: AddressDirectory) -> None:
    for name in "abc":
        add(store, [V4, V6], name)
    add(store, [V4, V6], "a", ifname="net1")
    (Path(store.path) / "fd00::99").write_text("legacy")
    with store.locked() as leases:
        freed = leases.retain({("a", "eth0"), ("c", "net9"), ("legacy", "eth0")})
    assert {str(one) for one in freed} == {
        *("10.1.0.3", "fd00::3", "10.1.0.4", "fd00::4", "10.1.0.5", "fd00::5"),
    }
    assert {path.name for path in Path(store.path).iterdir()} == {
        *("10.1.0.2", "fd00::2", "fd00::99", "lock", "last_reserved_ip.0", "last_reserved_ip.1"),
    }


def test_a_change_by_others_is_seen(store: AddressDirectory) -> None:
    add(store, [V4], "a")
    (Path(store.path) / "10.1.0.3").write_text("other\r\neth0")
    (Path(store.path) / "10.1.0.2").unlink()
    with store.locked() as leases:
        assert leases.held_by("a", "eth0") == ()
        assert [str(one) for one in leases.held_by("other", "eth0")] == ["10.1.0.3"]


def test_a_change_within_one_tick_of_the_clock_is_seen_where_it_is_looked_for(
    store: AddressDirectory,
) -> None:
    add(store, [V4], "a")
    path = Path(store.path)
    before = path.stat()
    (path / "10.1.0.2").unlink()
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with store.locked() as leases:
        assert leases.confirmed("a", "eth0") == ()
    add(store, [V4], "b")
    with store.locked() as leases:
        assert [str(one) for one in leases.confirmed("b", "eth0")] == ["10.1.0.3"]


def test_a_file_that_was_given_to_another_in_place_is_not_released(store: AddressDirectory) -> None:
    add(store, [V4], "a")
    (Path(store.path) / "10.1.0.2").write_text("b\r\neth0")
    assert release(store, "a") == []
    assert addresses(store) == {"10.1.0.2": "b\r\neth0"}


def test_files_of_others_are_left_alone(store: AddressDirectory) -> None:
    Path(store.path).mkdir()
    for name in ("README", "10.1.0.3.bak", "010.1.0.4", "fe80::1%eth0"):
        (Path(store.path) / name).write_text("a\r\neth0")
    add(store, [V4], "a")
    assert release(store, "a") == ["10.1.0.2"]
    with store.locked() as leases:
        leases.retain(())
    assert set(addresses(store)) == {"README", "10.1.0.3.bak", "010.1.0.4", "fe80::1%eth0"}


def test_the_directory_may_vanish_and_come_back(store: AddressDirectory) -> None:
    add(store, [V4], "a")
    for path in Path(store.path).iterdir():
        path.unlink()
    Path(store.path).rmdir()
    assert not store.exists()
    assert given(add(store, [V4], "b")) == ["10.1.0.2"]


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\0"])
def test_a_network_name_cannot_leave_the_data_directory(tmp_path: Path, name: str) -> None:
    with pytest.raises(StoreError):
        AddressDirectory(tmp_path, name)


def test_a_refusing_file_system_is_named(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    with pytest.raises(StoreError, match="plain/net: Not a directory") as caught:
        add(AddressDirectory(tmp_path / "plain", "net"), [V4], "a")
    assert caught.value.errno == 20


@pytest.mark.parametrize("call", ["open", "write", "read", "stat", "fstat", "rename"])
@pytest.mark.parametrize("turn", range(1, 9))
def test_any_failing_call_gives_nothing(
    store: AddressDirectory, monkeypatch: pytest.MonkeyPatch, call: str, turn: int
) -> None:
    add(store, [V4, V6], "first")
    before = addresses(store)
    real = getattr(os, call)
    count = 0

    def failing(*args: object, **kwargs: object) -> object:
        nonlocal count
        count += 1
        if count == turn:
            raise OSError(28, "No space left on device")
        return real(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, failing)
        try:
            add(store, [V4, V6], "second")
        except StoreError as error:
            assert error.errno == 28
            failed = True
        else:
            failed = False
    if failed:
        assert addresses(store) == before
        add(store, [V4, V6], "second")
    assert sorted(addresses(store).values()) == ["first\r\neth0"] * 2 + ["second\r\neth0"] * 2


def test_the_lock_of_another_process_is_waited_for_until_the_deadline(store: AddressDirectory) -> None:
    add(store, [V4], "a")
    with (Path(store.path) / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(LockTimeout, match="net/lock: the lock is held"):
            add(store, [V4], "b", deadline=time.monotonic() + 0.02)
    assert given(add(store, [V4], "b", deadline=time.monotonic() + 5)) == ["10.1.0.3"]


def test_threads_get_different_addresses(store: AddressDirectory) -> None:
    sets = [pool("10.2.0.0/24"), V6]
    got: list[str] = []

    def work(worker: int) -> None:
        for n in range(20):
            got.extend(given(add(store, sets, f"w{worker}-{n}")))
            if n % 2:
                release(store, f"w{worker}-{n - 1}")

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == len(set(got)) == 6 * 20 * 2
    assert len(addresses(store)) == 6 * 10 * 2


WORKER = """
import sys
from pathlib import Path
from podwire.ipam.directory import AddressDirectory
from tests.ipam.helpers import add, given, pool
store = AddressDirectory(Path(sys.argv[1]), "net")
for n in range(25):
    print(*given(add(store, [pool("10.3.0.0/24"), pool("fd00::/64")], f"{sys.argv[2]}-{n}")))
"""


def test_processes_get_different_addresses(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(tmp_path), name],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": f"{root / 'src'}:{root}"},
        )
        for name in "pqr"
    ]
    got: list[str] = []
    for worker in workers:
        out, _ = worker.communicate(timeout=30)
        assert worker.returncode == 0
        got += out.split()
    assert len(got) == len(set(got)) == 3 * 25 * 2
    assert set(addresses(AddressDirectory(tmp_path, "net"))) == set(got)


def test_a_holder_reads_as_a_person_would_write_it() -> None:
    assert str(Holder("c", "eth0")) == "c (eth0)"
    assert str(Holder("c", "")) == "c"


def test_a_pipe_among_the_addresses_keeps_nobody_waiting(tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    os.mkfifo(tmp_path / "net" / "10.1.0.2")
    with AddressDirectory(tmp_path, "net").locked() as leases:
        assert leases.held_by("id", "eth0") == ()
