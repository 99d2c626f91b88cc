"""The directory in which the reference host-local plugin remembers who has which address.

``<data dir>/<network>/`` holds one file an address, named by it (``10.1.0.5``, ``fd00::5``), with the
text ``<container ID>\\r\\n<ifname>`` (old plugins: the ID alone); ``last_reserved_ip.<n>`` with the address
that set ``n`` gave last; and ``lock``, held with flock(2) by whoever reads or writes. Either plugin can
release what the other allocated.

What differs from the reference: a file appears with its content, in one step (rename(2) of a file written
before), and an empty address file, left by a writer that was killed, counts as free.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import NamedTuple

from podwire.ipam.errors import Address, AddressTaken, Holder, LockTimeout, StoreError

LOCK = "lock"
LAST_RESERVED = "last_reserved_ip."
_NEW = ".new"  # written under the lock, then renamed
_POLL = 0.002


class _Entry(NamedTuple):
    stamp: tuple[int, int]  # inode, time of last change
    address: Address
    holder: Holder | None  # None: an empty file


class _Index:
    """What one process knows of one directory, valid as long as the directory has not changed since."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.stamp: tuple[int, int] | None = None
        self.entries: dict[str, _Entry] = {}
        self.taken: dict[int, dict[int, Holder]] = {4: {}, 6: {}}
        self.held: dict[Holder, list[Address]] = {}
        self.last: dict[int, Address | None] = {}
        """What each set gave last: with a new one, by whomever, there is a new file in the directory."""

    def forget(self) -> None:
        self.stamp = None
        self.entries.clear()
        self.taken = {4: {}, 6: {}}
        self.held.clear()
        self.last.clear()

    def put(self, name: str, entry: _Entry) -> None:
        self.drop(name)
        self.entries[name] = entry
        if entry.holder is not None:
            self.taken[entry.address.version][int(entry.address)] = entry.holder
            self.held.setdefault(entry.holder, []).append(entry.address)

    def drop(self, name: str) -> None:
        entry = self.entries.pop(name, None)
        if entry is not None and entry.holder is not None:
            del self.taken[entry.address.version][int(entry.address)]
            held = self.held[entry.holder]
            held.remove(entry.address)
            if not held:
                del self.held[entry.holder]


_indexes: dict[str, _Index] = {}
_indexes_lock = threading.Lock()


class AddressDirectory:
    """The addresses of one network below ``data_dir``; safe for threads, and processes of either plugin."""

    def __init__(self, data_dir: str | Path, network: str) -> None:
        if not network or network in (".", "..") or "/" in network or "\0" in network:
            raise StoreError("open", f"{data_dir}/{network}", errno.EINVAL)
        self.path = f"{data_dir}/{network}"
        with _indexes_lock:
            self._index = _indexes.setdefault(self.path, _Index())

    def exists(self) -> bool:
        """Tell whether anything was ever allocated here."""
        return os.path.isdir(self.path)  # noqa: PTH112

    @contextmanager
    def locked(self, deadline: float | None = None) -> Iterator[Leases]:
        """Hold the network's lock; the directory is made if it is missing.

        ``deadline`` is a time of :func:`time.monotonic`, by default in a minute; :class:`LockTimeout` is
        raised when it passes.
        """
        began = time.monotonic()
        limit = began + 60.0 if deadline is None else deadline
        if not self._index.lock.acquire(timeout=max(0.0, limit - began)):
            raise LockTimeout(f"{self.path}/{LOCK}", time.monotonic() - began)
        try:
            directory, lock = self._open(began, limit)
            try:
                yield Leases(self.path, directory, self._index)
            finally:
                os.close(lock)
                os.close(directory)
        finally:
            self._index.lock.release()

    def _open(self, began: float, limit: float) -> tuple[int, int]:
        """Open the directory and its lock, and take the lock; again if both were removed meanwhile."""
        while True:
            fds: list[int] = []
            try:
                fds.append(self._directory())
                fds.append(os.open(LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o750, dir_fd=fds[0]))
                self._flock(fds[1], began, limit)
                # The lock that is there by its whole path: so it is of this directory, and that is in place.
                if os.path.samestat(os.stat(f"{self.path}/{LOCK}"), os.fstat(fds[1])):  # noqa: PTH116
                    directory, lock = fds
                    fds.clear()
                    return directory, lock
            except FileNotFoundError:
                pass
            except OSError as error:
                raise StoreError("lock", self.path, error.errno or 0) from error
            finally:
                for fd in fds:
                    os.close(fd)
            if time.monotonic() >= limit:
                raise LockTimeout(f"{self.path}/{LOCK}", time.monotonic() - began)

    def _directory(self) -> int:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        try:
            return os.open(self.path, flags)
        except FileNotFoundError:
            Path(self.path).mkdir(0o755, parents=True, exist_ok=True)
            return os.open(self.path, flags)

    def _flock(self, fd: int, began: float, limit: float) -> None:
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() >= limit:
                    raise LockTimeout(f"{self.path}/{LOCK}", time.monotonic() - began) from None
                time.sleep(_POLL)


class Leases:
    """A locked directory: what is taken, and the changes. Of use only inside ``AddressDirectory.locked``."""

    def __init__(self, path: str, directory: int, index: _Index) -> None:
        self._path = path
        self._directory = directory
        self._index = index
        try:
            changed = index.stamp is None or index.stamp != self._stamp()
        except OSError as error:
            raise StoreError("read", path, error.errno or 0) from error
        if changed:
            self._scan()

    def taken(self, version: int) -> Mapping[int, Holder]:
        """Return the holders of one family's addresses, by the address as a number."""
        return self._index.taken[version]

    def held_by(self, container_id: str, ifname: str) -> tuple[Address, ...]:
        """Return the addresses of one attachment; if there are none, those of old files with the ID alone."""
        held = self._index.held
        found = held.get(Holder(container_id, ifname)) or held.get(Holder(container_id, "")) or ()
        return tuple(sorted(found, key=lambda address: (address.version, int(address))))

    def confirmed(self, container_id: str, ifname: str) -> tuple[Address, ...]:
        """Return what `held_by` does, by the files themselves.

        What another process took away within the same tick of the file system's clock leaves no new time on
        the directory, and so the index as it was.
        """
        return tuple(
            address
            for address in self.held_by(container_id, ifname)
            if self._present(str(address)) in (Holder(container_id, ifname), Holder(container_id, ""))
        )

    def all_older_than(self, moment: float, container_id: str, ifname: str) -> bool:
        """Tell whether an attachment's addresses were all given before a moment (`time.time`)."""
        held = self.held_by(container_id, ifname)
        stamps = [self._index.entries[str(address)].stamp for address in held]
        return bool(stamps) and all(changed < moment * 1e9 for _, changed in stamps)

    def last_reserved(self, position: int) -> Address | None:
        """Return the address that set ``position`` gave last, if that is known."""
        last = self._index.last
        if position not in last:
            try:
                last[position] = _address(self._read(f"{LAST_RESERVED}{position}").strip())
            except OSError:
                return None
        return last[position]

    def reserve(self, address: Address, holder: Holder, position: int) -> None:
        """Give ``address`` of set ``position`` to ``holder``.

        Raises :class:`AddressTaken` if it has one already. The file is there with its content, or not at all.
        """
        name = str(address)
        if (present := self._present(name)) is not None:
            raise AddressTaken(address, present)
        renamed = False
        try:
            stamp = self._write(_NEW, f"{holder.container_id}\r\n{holder.ifname}")
            os.rename(_NEW, name, src_dir_fd=self._directory, dst_dir_fd=self._directory)
            renamed = True
            # In place, as the reference does: torn, it only means that the turn starts at the first again.
            self._write(f"{LAST_RESERVED}{position}", name)
            changed = self._stamp()
        except OSError as error:
            self._index.stamp = None
            with suppress(OSError):
                os.unlink(name if renamed else _NEW, dir_fd=self._directory)
            raise StoreError("reserve", f"{self._path}/{name}", error.errno or 0) from error
        self._index.put(name, _Entry(stamp, address, holder))
        self._index.last[position] = address
        self._index.stamp = changed

    def release(self, container_id: str, ifname: str) -> tuple[Address, ...]:
        """Free the addresses of one attachment and return them; none is no error."""
        found = self.held_by(container_id, ifname)
        if not found:
            # Clocks of old kernels tick every 4 ms: the directory may have changed without showing it.
            self._index.forget()
            self._scan()
            found = self.held_by(container_id, ifname)
        return self._free(
            found, lambda holder: holder.container_id == container_id and holder.ifname in (ifname, "")
        )

    def free(self, address: Address, holder: Holder) -> None:
        """Take back one address if ``holder`` has it."""
        self._free((address,), holder.__eq__)

    def retain(self, valid: Collection[tuple[str, str]]) -> tuple[Address, ...]:
        """Free every address whose (container ID, ifname) is not in ``valid``, and return them.

        Old files that name no interface stay as long as any interface of their container is valid.
        """
        keep = {Holder(*pair) for pair in valid} | {Holder(pair[0], "") for pair in valid}
        stale = [(holder, addresses) for holder, addresses in self._index.held.items() if holder not in keep]
        freed: list[Address] = []
        for holder, addresses in stale:
            freed += self._free(tuple(addresses), holder.__eq__)
        empty = [entry.address for entry in self._index.entries.values() if entry.holder is None]
        self._free(tuple(empty), lambda _: False)
        return tuple(freed)

    def _free(self, addresses: tuple[Address, ...], ours: Callable[[Holder], bool]) -> tuple[Address, ...]:
        freed = []
        for address in addresses:
            name = str(address)
            try:
                holder = _holder(self._read(name))
                if holder is None or ours(holder):
                    os.unlink(name, dir_fd=self._directory)
                    freed.append(address)
            except FileNotFoundError:
                pass
            except OSError as error:
                self._index.stamp = None
                raise StoreError("release", f"{self._path}/{name}", error.errno or 0) from error
            self._index.drop(name)
        if addresses:
            self._index.stamp = self._stamp()
        return tuple(freed)

    def _stamp(self) -> tuple[int, int]:
        stat = os.fstat(self._directory)
        return stat.st_ino, stat.st_mtime_ns

    def _scan(self) -> None:
        """Bring the index up to date, reading only files that are new or changed."""
        index = self._index
        index.last.clear()
        try:
            stamp = self._stamp()
            present: set[str] = set()
            with os.scandir(self._directory) as listing:
                for item in listing:
                    address = _address(item.name)
                    if address is None:
                        continue
                    present.add(item.name)
                    seen = _file_stamp(item.stat(follow_symlinks=False))
                    known = index.entries.get(item.name)
                    if known is None or known.stamp != seen:
                        index.put(item.name, _Entry(seen, address, _holder(self._read(item.name))))
            for name in index.entries.keys() - present:
                index.drop(name)
        except OSError as error:
            index.stamp = None
            raise StoreError("read", self._path, error.errno or 0) from error
        index.stamp = stamp

    def _read(self, name: str) -> str:
        # Not blocking: a pipe of that name would keep every ADD and DEL waiting for its other end.
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        fd = os.open(name, flags, dir_fd=self._directory)
        try:
            return os.read(fd, 4096).decode(errors="replace")
        finally:
            os.close(fd)

    def _present(self, name: str) -> Holder | None:
        """Look at the file itself, whatever the index says: rename(2) would take its place."""
        try:
            return _holder(self._read(name))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError("read", f"{self._path}/{name}", error.errno or 0) from error

    def _write(self, name: str, text: str) -> tuple[int, int]:
        # Not O_TRUNC: file systems make that durable at once (ext4: 0.6 ms), for files that are written over.
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(name, flags, 0o600, dir_fd=self._directory)
        try:
            data = text.encode()
            if os.write(fd, data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            stat = os.fstat(fd)
            if stat.st_size > len(data):
                os.ftruncate(fd, len(data))
                stat = os.fstat(fd)
            return _file_stamp(stat)
        finally:
            os.close(fd)


def _file_stamp(stat: os.stat_result) -> tuple[int, int]:
    return stat.st_ino, stat.st_mtime_ns


def _address(name: str) -> Address | None:
    try:
        address = ip_address(name)
    except ValueError:
        return None
    if isinstance(address, IPv6Address) and address.scope_id:
        return None
    return address if str(address) == name else None


def _holder(text: str) -> Holder | None:
    container_id, _, ifname = text.strip().partition("\n")
    return Holder(container_id.strip(), ifname.strip()) if container_id.strip() else None
