"""The result cache: who is attached to which network, in libcni's files and format.

``<directory>/results/<network>-<container ID>-<ifname>`` (0600 in 0700), JSON of kind ``cniCacheV1``, so that
Go's libcni and this library can take over from each other. A record without ``result`` says that an ADD has
begun: whoever finds it runs DEL. The file is written when the ADD begins; ``result``, its last key, is put
behind that when the ADD is done (making a file is what costs). Killed in between, the first part still reads.
Nothing is synced to disk: after a power failure a file may be empty, which counts as no record
(containernetworking/cni#1055).

The name of a file is ambiguous where names hold ``-``; the key inside it decides, and a second key of the
same file name goes to a file with ``~`` and a hash behind it, which libcni's listing also finds.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from podwire.cni import convert, versions
from podwire.cni.errors import CNIError, InvalidConfig, IOFailure
from podwire.cni.filelock import number_of
from podwire.cni.types import Result

if TYPE_CHECKING:
    from pathlib import Path

KIND = "cniCacheV1"
DEFAULT_DIRECTORY = "/var/lib/cni"


class Record(msgspec.Struct, frozen=True):
    """One attachment: its key (network, container ID, ifname) and what its ADD was told and answered.

    ``config`` is the text of the network's list; ``result`` is in the list's version as JSON, None while the
    ADD is not done. ``legacy`` is a bare result of an old libcni; ``boot_id`` the boot that it was written
    in, empty where Go's libcni wrote it.
    """

    network: str
    container_id: str
    ifname: str
    netns: str = ""
    config: bytes = b""
    args: Mapping[str, str] = {}
    capability_args: Mapping[str, Any] = {}
    result: Mapping[str, Any] | None = None
    legacy: bool = False
    boot_id: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        """Network, container ID and interface name."""
        return self.network, self.container_id, self.ifname

    def typed_result(self) -> Result | None:
        """Return the result, or None where there is none that can be read."""
        if self.result is None:
            return None
        try:
            return convert.decode_result(self.result, versions.WHEN_MISSING)
        except CNIError:
            return None


class _File(msgspec.Struct, omit_defaults=True):
    """The file as Go's libcni lays it out, key for key."""

    kind: str
    containerId: str
    config: bytes
    ifName: str
    networkName: str
    netns: str = ""
    cniArgs: list[tuple[str, str]] | None = None
    capabilityArgs: dict[str, Any] | None = None
    bootID: str = ""
    result: dict[str, Any] | None = None


_RESULT = b',"result":'
_END = b"}"
_decoder = msgspec.json.Decoder(_File)


class Begun(msgspec.Struct, frozen=True):
    """Where `Cache.begin` wrote a record: the file, and the place in it that the result belongs at."""

    path: str
    at: int


class Cache:
    """The records below one directory. Its methods are safe to call from several threads.

    IOFailure (5) where the file system refuses; what a file holds never is an error.
    """

    def __init__(self, directory: Path | str = DEFAULT_DIRECTORY) -> None:
        self.directory = str(directory)
        self.results = os.path.join(self.directory, "results")  # noqa: PTH118
        self.boot_id = _boot_id()
        self._lock = threading.Lock()

    def read(self, network: str, container_id: str, ifname: str) -> Record | None:
        """Return the record of a key; None where there is none, or a damaged one."""
        key = (network, container_id, ifname)
        return next((found for path in self._paths(key) if (found := self._load(path, key))), None)

    def begin(self, record: Record) -> Begun:
        """Write that an ADD begins, before it does: the record without its result."""
        text = _encoded(record, self.boot_id)
        try:
            with self._lock:
                path = self._free_path(record.key)
                try:
                    _write(path, os.O_CREAT | os.O_TRUNC, text)
                except FileNotFoundError:
                    os.makedirs(self.results, mode=0o700, exist_ok=True)  # noqa: PTH103
                    _write(path, os.O_CREAT | os.O_TRUNC, text)
        except OSError as error:
            raise self._refused("write", error) from error
        return Begun(path, len(text) - len(_END))

    def complete(self, begun: Begun, result: Mapping[str, Any]) -> None:
        """Add the result to the record that `begin` wrote: the ADD is done."""
        text = _RESULT + msgspec.json.encode(result) + _END
        try:
            _write(begun.path, 0, text, begun.at)
        except OSError as error:
            raise self._refused("write", error) from error

    def remove(self, network: str, container_id: str, ifname: str) -> None:
        """Remove the record of a key, also a damaged one; none is fine."""
        key = (network, container_id, ifname)
        for path in self._paths(key):
            if self._owner(path) not in {None, key}:
                continue
            try:
                os.unlink(path)  # noqa: PTH108
            except FileNotFoundError:
                continue
            except OSError as error:
                raise self._refused("remove from", error) from error

    def records(self, *, network: str | None = None, container_id: str | None = None) -> list[Record]:
        """Return the records of a network or a container, or all, by file name. Damaged ones are left out.

        Legacy results are left out as well: their names cannot be told apart.
        """
        try:
            names = sorted(os.listdir(self.results))  # noqa: PTH208
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._refused("list", error) from error
        found = (self._load(os.path.join(self.results, name), None) for name in names)  # noqa: PTH118
        return [
            record
            for record in found
            if record is not None
            and network in {None, record.network}
            and container_id in {None, record.container_id}
        ]

    def is_stale(self, record: Record) -> bool:
        """Whether a record is an earlier boot's: what it tells of is gone, only its addresses are taken."""
        return bool(record.boot_id) and record.boot_id != self.boot_id

    def _paths(self, key: tuple[str, str, str]) -> tuple[str, str]:
        plain = f"{self.results}/{key[0]}-{key[1]}-{key[2]}"
        return plain, f"{plain}~{number_of(key):016x}"

    def _free_path(self, key: tuple[str, str, str]) -> str:
        plain, other = self._paths(key)
        return plain if self._owner(plain) in {None, key} else other

    def _owner(self, path: str) -> tuple[str, str, str] | None:
        record = self._load(path, None)
        return None if record is None else record.key

    def _refused(self, verb: str, error: OSError) -> IOFailure:
        return IOFailure(f"cannot {verb} the result cache in {self.results}: {error.strerror}")

    def _load(self, path: str, key: tuple[str, str, str] | None) -> Record | None:
        """Read a file; with a ``key`` only a record of that key, or a legacy result, which names none."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            text = _read_all(descriptor)
        except OSError:
            return None
        finally:
            os.close(descriptor)
        loaded = _decoded(text)
        if loaded is None:
            return None if key is None else _legacy(text, key)
        if loaded.kind != KIND or (key is not None and key != _key(loaded)):
            return None
        return Record(
            loaded.networkName,
            loaded.containerId,
            loaded.ifName,
            loaded.netns,
            loaded.config,
            dict(loaded.cniArgs or ()),
            loaded.capabilityArgs or {},
            loaded.result,
            boot_id=loaded.bootID,
        )


def _encoded(record: Record, boot_id: str) -> bytes:
    file = _File(
        KIND,
        record.container_id,
        record.config,
        record.ifname,
        record.network,
        record.netns,
        list(record.args.items()) or None,
        dict(record.capability_args) or None,
        boot_id,
    )
    try:
        return msgspec.json.encode(file)
    except (TypeError, UnicodeError) as error:
        raise InvalidConfig(f"cannot keep the arguments of {record.container_id}: {error}") from error


def _key(loaded: _File) -> tuple[str, str, str]:
    return loaded.networkName, loaded.containerId, loaded.ifName


def _decoded(text: bytes) -> _File | None:
    """Read a file's text; where its result is cut off, what stands before it."""
    for whole in (text, text.rpartition(_RESULT)[0] + _END):
        try:
            return _decoder.decode(whole)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            continue
    return None


def _write(path: str, flags: int, text: bytes, at: int = 0) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | flags, 0o600)
    try:
        while text:
            written = os.pwrite(descriptor, text, at)
            text, at = text[written:], at + written
    finally:
        os.close(descriptor)


def _read_all(descriptor: int) -> bytes:
    text = b""
    while chunk := os.read(descriptor, 1 << 16):
        text += chunk
    return text


def _legacy(text: bytes, key: tuple[str, str, str]) -> Record | None:
    try:
        result = msgspec.json.decode(text, type=dict[str, Any])
        if "kind" in result:
            return None
        convert.decode_result(result, versions.WHEN_MISSING)
    except (msgspec.DecodeError, UnicodeError, RecursionError, CNIError):
        return None
    return Record(*key, result=result, legacy=True)


def _boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as stream:  # noqa: PTH123
            return stream.read().strip()
    except OSError:
        return ""
