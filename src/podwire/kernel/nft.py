"""nftables through libnftables, in process: transactions as text, answers as JSON, errors with their errno.

The library's interface is nftables/libnftables.h; the text is what nft(8) describes. Single elements and the
rules without their sets are read straight from the kernel (linux/netfilter/nf_tables.h): exact errors, and a
cost that does not grow with what else is in the table.
"""

from __future__ import annotations

import ctypes
import errno
import json
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from podwire.kernel import message as nl
from podwire.kernel import netns, nftwrite
from podwire.kernel.attributes import BINARY, NESTED, NESTED_BYTES, S32, STRING, Table, attribute
from podwire.kernel.closing import ClosedAtEnd
from podwire.kernel.errors import KernelError, MalformedReply
from podwire.kernel.message import Message
from podwire.kernel.netlink import ERROR, NetlinkSocket, failure, header, split
from podwire.kernel.nftset import Element, Fields, NamedSet
from podwire.kernel.nftwrite import Changes

if TYPE_CHECKING:
    from podwire.kernel.netns import Netns

LIBRARY = "libnftables.so.1"
COMMENT_BYTES = 128
"""The longest comment of a rule or an element that libnftables takes (NFTNL_UDATA_COMMENT_MAXLEN)."""

_JSON = 1 << 4
_NUMERIC_PROTOCOL = 1 << 7

_IDLE_SOCKETS = 64
_READINGS = 32
_SUBSYSTEM = 10
_GET_TABLE = (_SUBSYSTEM << 8) | 1
_GET_CHAIN = (_SUBSYSTEM << 8) | 4
_GET_RULE = (_SUBSYSTEM << 8) | 7
_GET_ELEMENT = (_SUBSYSTEM << 8) | 13
_GET_GENERATION = (_SUBSYSTEM << 8) | 16
_HEADER = 4
_FAMILIES = {"ip": 2, "inet": 1, "ip6": 10, "arp": 3, "bridge": 7, "netdev": 5}
_TABLE = Table("nftables table", name=(1, STRING))
_CHAIN = Table("nftables chain", table=(1, STRING), name=(3, STRING))
_RULE = Table("nftables rule", table=(1, STRING), chain=(2, STRING), userdata=(7, BINARY))
_ELEMENTS = Table("nftables elements", table=(1, STRING), set=(2, STRING), elements=(3, NESTED_BYTES))
_VERDICT = Table("nftables verdict", chain=(2, STRING))
_VALUE = Table("nftables data", value=(1, BINARY), verdict=(2, _VERDICT))
_ELEMENT = Table("nftables element", key=(1, _VALUE), data=(2, _VALUE), userdata=(6, BINARY))
_LIST_ELEMENT = 1
_ELEMENT_KEY = 1
_DATA_VALUE = 1
_ELEMENTS_OF_SET = 3 | NESTED
_ATTRIBUTE = struct.Struct("=HH")
_GENERATION = Table("nftables generation", number=(1, BINARY))
_USERDATA_COMMENT = 0
_ERESTART = 85


class NftError(KernelError):
    """A transaction was refused, and nothing of it was done.

    ``errno`` is the kernel's for the first command that it refused (EEXIST for a ``create`` of what is there,
    ENOENT for a ``delete`` of what is not). Text that libnftables refused before the kernel saw it has
    EINVAL; a table, chain or set that does not exist has that or ENOENT. ``detail`` is the library's message;
    the place that it marks is not always the right one in a transaction of several commands.
    """


class NftUnavailable(NftError):
    """libnftables is not installed, or cannot be loaded; raised when something is to be run."""


class Rule(NamedTuple):
    """A rule's place and the comment that tells whose it is (``""`` if it has none)."""

    chain: str
    comment: str


class NetfilterSocket(NetlinkSocket):
    """NETLINK_NETFILTER: nftables and conntrack of one network namespace."""

    PROTOCOL = 12

    __slots__ = ()

    def send_batch(self, messages: Sequence[Message]) -> None:
        """Send one nftables transaction, from its begin to its end, and wait for the kernel's judgement.

        Raises :class:`KernelError` of the first message that was refused; then nothing was done. The kernel
        has answered before the system call returns (nfnetlink_rcv_batch): the refusals in order, that of the
        whole as one of the begin, and the acknowledgement that only the last change asks for.
        """
        first = self._next(len(messages))
        last = first + len(messages) - 2
        self._write(
            messages[0],
            [
                part
                for number, message in enumerate(messages, first)
                for part in (
                    header(message, nl.REQUEST | nl.ACK if number == last else nl.REQUEST, number),
                    message.body,
                )
            ],
        )
        while True:
            for kind, flags, number, body in split(self._read(messages[0])):
                if kind != ERROR or not first <= number <= last + 1:
                    continue
                if S32.unpack(body):
                    self._discard()
                    raise failure(messages[number - first], flags, body)
                if number == last:
                    return


class Nft(ClosedAtEnd):
    """nftables of one network namespace. Threads may share it; a context manager that closes it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._closed = False
        self._known: dict[tuple[str, str], list[Rule]] = {}
        self.reading = object()
        """Another object after each reading of the rules: what was found out of them holds as long as it."""
        self._known_at = -1
        self._home = netns.current()
        self._idle: list[NetfilterSocket] = []
        self._socket = NetfilterSocket.open()
        self._library: ctypes.CDLL | None = None
        self._unavailable: NftUnavailable | None = None
        self._context: int | None = None
        try:
            self._library, self._context = _context()
        except NftUnavailable as error:
            # What is there can still be read, and a DEL finds that there is nothing to do.
            self._unavailable = error
        except NftError:
            self._socket.close()
            self._home.close()
            raise

    @classmethod
    def open(cls, netns: Netns | None = None) -> Self:
        """Open nftables in ``netns``, or in the calling thread's namespace."""
        return cls() if netns is None else netns.run(cls)

    def run(self, commands: str, *, keeps_rules: bool = False) -> None:
        """Run ``commands`` (nft text) as one transaction: all or nothing. Raises :class:`NftError`.

        ``keeps_rules`` promises that they change elements only, so that :meth:`rules` need not read again.
        """
        self._run(commands, 0, keeps_rules=keeps_rules)

    def write(self, changes: Changes, *, in_known_rules: bool = False) -> bool:
        """Change elements in one transaction, without libnftables. Raises :class:`NftError`.

        With ``in_known_rules`` it is done only if there was no transaction of anybody else since the rules
        were read last (:meth:`rules`); else the answer is False.
        """
        with self._lock:
            self._opened("change")
            known = self._known_at if self._known_at >= 0 else None
            if known is None and in_known_rules:
                return False
            if self._sent(nftwrite.batch(changes, known)):
                if known is not None:
                    self._known_at = (known + 1) & 0xFFFFFFFF
                return True
            self._forget()
            return False if in_known_rules else self._sent(nftwrite.batch(changes))

    def _sent(self, messages: list[Message]) -> bool:
        """Whether the kernel took the transaction; False: its generation is another one."""
        try:
            self._socket.send_batch(messages)
        except KernelError as error:
            if error.errno == _ERESTART:
                return False
            raise NftError(error.errno, error.operation, error.subject, error.detail) from error
        return True

    def _forget(self) -> None:
        self._known.clear()
        self._known_at = -1
        self.reading = object()

    def check(self, commands: str) -> None:
        """Let the kernel judge the transaction without doing it. Raises :class:`NftError` as run() would."""
        self._run(commands, 0, dry_run=True)

    def query(self, commands: str) -> list[dict[str, Any]]:
        """Run ``commands`` that list something; return libnftables-json(5) objects, without the metainfo.

        Protocols are numbers. Not for ``get element``: libnftables answers that in text up to 1.0.6.
        """
        output = self._run(commands, _JSON | _NUMERIC_PROTOCOL)
        if not output:
            return []
        objects: list[dict[str, Any]] = json.loads(output)["nftables"]
        return [item for item in objects if "metainfo" not in item]

    def get(self, where: NamedSet, key: Fields) -> Element | None:
        """Read one element; None if it, its set or its table is not there."""
        return self.get_all([(where, key)])[0]

    def get_all(self, wanted: Sequence[tuple[NamedSet, Fields]]) -> list[Element | None]:
        """Read elements in one system call; None for one that, or whose set or table, is not there."""
        if not wanted:
            return []
        with self._reader("get an element of") as sock:
            answers = sock.ask([_element_question(where, key) for where, key in wanted])
        found: list[Element | None] = []
        for (where, _), answer in zip(wanted, answers, strict=True):
            if isinstance(answer, KernelError):
                if answer.errno != errno.ENOENT:
                    raise answer
                found.append(None)
            else:
                found.append(next(read_elements(where, answer[1]), None))
        return found

    def elements(self, where: NamedSet) -> list[Element]:
        """List all elements; none if the set or its table is not there.

        A set that grows or shrinks is sorted anew in its own time; a listing in several parts, each of which
        begins where the last one ended, then has elements twice and leaves out as many others. Such a one is
        read again, up to 32 times; then NftError with EAGAIN.
        """
        body = _header(where.family) + _ELEMENTS.encode({"table": where.table, "set": where.name})
        message = Message(
            _GET_ELEMENT, 0, body, "list the elements of", f"{where.family} {where.table} {where.name}"
        )
        for _ in range(_READINGS):
            try:
                with self._lock:
                    self._opened(message.operation)
                    answers = self._socket.dump(message)
            except KernelError as error:
                if error.errno == errno.ENOENT:
                    return []
                raise
            found = [element for _, answer in answers for element in read_elements(where, answer)]
            if len(answers) < 2 or len(set(found)) == len(found):
                return found
        raise NftError(
            errno.EAGAIN,
            message.operation,
            message.subject,
            f"the set was sorted anew during {_READINGS} readings",
        )

    def rules(self, table: str, family: str = "inet") -> list[Rule]:
        """List the rules of ``table`` with their comments; a table that does not exist has none.

        Reads the kernel's only if there was any transaction, whoever's, since they were read last; then it
        costs as much as the table has rules, however many elements it holds.
        """
        body = _header(family) + _RULE.encode({"table": table})
        message = Message(_GET_RULE, 0, body, "list the rules of", f"{family} {table}")
        with self._lock:
            self._opened(message.operation)
            generation = self._generation()
            if generation != self._known_at:
                self._forget()
                self._known_at = generation
            rules = self._known.get((family, table))
            if rules is None:
                entries = self._socket.dump(message)
                rules = []
                for _, entry in entries:
                    values = _RULE.decode(entry, _HEADER)
                    # A kernel that does not filter lists every table.
                    if values.get("table") == table:
                        rules.append(Rule(values.get("chain", ""), _comment(values.get("userdata", b""))))
                if self._generation() == generation:
                    self._known[family, table] = rules
        return list(rules)

    def has_table(self, table: str, family: str = "inet") -> bool:
        """Tell whether ``table`` exists."""
        body = _header(family) + _TABLE.encode({"name": table})
        return self._has(Message(_GET_TABLE, 0, body, "look for table", f"{family} {table}"))

    def has_chain(self, table: str, chain: str, family: str = "inet") -> bool:
        """Tell whether ``chain`` exists."""
        body = _header(family) + _CHAIN.encode({"table": table, "name": chain})
        return self._has(Message(_GET_CHAIN, 0, body, "look for chain", f"{family} {table} {chain}"))

    def _has(self, message: Message) -> bool:
        with self._lock:
            self._opened(message.operation)
            try:
                self._socket.request(message)
            except KernelError as error:
                if error.errno == errno.ENOENT:
                    return False
                raise
        return True

    def exist(self, places: Sequence[tuple[str, str, str]]) -> list[bool]:
        """Tell, in one system call, which tables (no chain) and chains (family, table, chain) exist."""
        questions = [_existence_question(*place) for place in places]
        with self._reader("look for tables of") as sock:
            answers = sock.ask(questions)
        for answer in answers:
            if isinstance(answer, KernelError) and answer.errno != errno.ENOENT:
                raise answer
        return [not isinstance(answer, KernelError) for answer in answers]

    def close(self) -> None:
        """Free the library's context and the sockets; more than once does nothing."""
        with self._lock:
            self._closed = True
            self._home.close()
            self._socket.close()
            while self._idle:
                self._idle.pop().close()
            if self._library is not None and self._context:
                self._library.nft_ctx_free(self._context)
                self._context = None

    def _generation(self) -> int:
        """The kernel's count of transactions in this namespace; each adds one."""
        message = Message(_GET_GENERATION, 0, bytes(_HEADER), "read the generation of", "nftables")
        _, answer = self._socket.request(message)
        return int.from_bytes(_GENERATION.decode(answer, _HEADER).get("number", b""), "big")

    @contextmanager
    def _reader(self, operation: str) -> Iterator[NetfilterSocket]:
        """A socket of the caller's own: many threads look up at once, and none waits for the others' lock."""
        with self._lock:
            self._opened(operation)
            sock = self._idle.pop() if self._idle else self._home.run(NetfilterSocket.open)
        try:
            yield sock
        finally:
            with self._lock:
                if self._closed or len(self._idle) >= _IDLE_SOCKETS:
                    sock.close()
                else:
                    self._idle.append(sock)

    def _opened(self, operation: str) -> None:
        if self._closed:
            raise NftError(errno.EBADF, operation, "nftables", "it was closed")

    def _run(self, commands: str, flags: int, *, dry_run: bool = False, keeps_rules: bool = False) -> str:
        if "\0" in commands:
            raise NftError(errno.EINVAL, "run", "nftables commands", "they hold a NUL")
        with self._lock:
            self._opened("run")
            library = self._library
            if library is None:
                raise self._unavailable or NftError(errno.ELIBACC, "run", LIBRARY)
            library.nft_ctx_output_set_flags(self._context, flags)
            library.nft_ctx_set_dry_run(self._context, dry_run)
            ctypes.set_errno(0)
            failed = library.nft_run_cmd_from_buffer(self._context, commands.encode())
            number = ctypes.get_errno()
            output: bytes = library.nft_ctx_get_output_buffer(self._context)
            message: bytes = library.nft_ctx_get_error_buffer(self._context)
            if keeps_rules and not failed and self._generation() == (self._known_at + 1) & 0xFFFFFFFF:
                # Nobody else's transaction came between.
                self._known_at += 1
        if failed:
            # EAGAIN is left over from the library's reading of an empty socket: the kernel refused nothing.
            refused = number not in {0, errno.EAGAIN}
            raise NftError(
                number if refused else errno.EINVAL,
                "check" if dry_run else "run",
                "nftables commands",
                message.decode(errors="replace").strip(),
            )
        return output.decode(errors="replace")


def _context() -> tuple[ctypes.CDLL, int]:
    library = _load()
    context: int | None = library.nft_ctx_new(0)
    if not context:
        raise NftError(errno.ENOMEM, "open", "nftables")
    library.nft_ctx_buffer_output(context)
    library.nft_ctx_buffer_error(context)
    return library, context


_loaded: ctypes.CDLL | None = None


def _load() -> ctypes.CDLL:
    global _loaded
    if _loaded is not None:
        return _loaded
    try:
        library = ctypes.CDLL(LIBRARY, use_errno=True)
    except OSError as error:
        raise NftUnavailable(
            errno.ELIBACC, "load", LIBRARY, f"install the Debian package libnftables1 ({error})"
        ) from error
    context, number = ctypes.c_void_p, ctypes.c_uint
    for name, result, arguments in (
        ("nft_ctx_new", context, [ctypes.c_uint32]),
        ("nft_ctx_free", None, [context]),
        ("nft_ctx_buffer_output", ctypes.c_int, [context]),
        ("nft_ctx_buffer_error", ctypes.c_int, [context]),
        ("nft_ctx_output_set_flags", None, [context, number]),
        ("nft_ctx_set_dry_run", None, [context, ctypes.c_bool]),
        ("nft_ctx_get_output_buffer", ctypes.c_char_p, [context]),
        ("nft_ctx_get_error_buffer", ctypes.c_char_p, [context]),
        ("nft_run_cmd_from_buffer", ctypes.c_int, [context, ctypes.c_char_p]),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    _loaded = library
    return library


@lru_cache(maxsize=64)
def _existence_question(family: str, table: str, chain: str) -> Message:
    if chain:
        body = _header(family) + _CHAIN.encode({"table": table, "name": chain})
        return Message(_GET_CHAIN, 0, body, "look for chain", f"{family} {table} {chain}")
    body = _header(family) + _TABLE.encode({"name": table})
    return Message(_GET_TABLE, 0, body, "look for table", f"{family} {table}")


def _element_question(where: NamedSet, key: Fields) -> Message:
    subject, begin = _set_question(where.family, where.table, where.name)
    value = attribute(_ELEMENT_KEY | NESTED, attribute(_DATA_VALUE, where.pack_key(key)))
    nest = attribute(_ELEMENTS_OF_SET, attribute(_LIST_ELEMENT | NESTED, value))
    return Message(_GET_ELEMENT, 0, begin + nest, "get an element of", subject)


@lru_cache(maxsize=64)
def _set_question(family: str, table: str, name: str) -> tuple[str, bytes]:
    """How a set is named in an error, and how a question about one of its elements begins."""
    return f"{family} {table} {name}", _header(family) + _ELEMENTS.encode({"table": table, "set": name})


def _header(family: str) -> bytes:
    return bytes((_FAMILIES[family], 0, 0, 0))


def read_elements(where: NamedSet, body: bytes) -> Iterator[Element]:
    """The elements in the body of an NFT_MSG_NEWSETELEM. Raises :class:`MalformedReply`."""
    nest: bytes = _ELEMENTS.decode(body, _HEADER).get("elements", b"")
    offset = 0
    while offset + 4 <= len(nest):
        length, _ = _ATTRIBUTE.unpack_from(nest, offset)
        if length < 4 or offset + length > len(nest):
            raise MalformedReply("set element", f"{length} bytes at {offset} of {len(nest)}")
        values = _ELEMENT.decode(nest[offset + 4 : offset + length])
        data = values.get("data", {})
        value: Fields | str | None = None
        if "verdict" in data:
            value = data["verdict"].get("chain", "")
        elif "value" in data:
            value = where.unpack_value(data["value"])
        key = where.unpack_key(values.get("key", {}).get("value", b""))
        yield Element(key, value, _comment(values.get("userdata", b"")))
        offset += (length + 3) & ~3


def _comment(userdata: bytes) -> str:
    """Read the comment out of user data: type and length of one byte each, then the value."""
    offset = 0
    while offset + 2 <= len(userdata):
        kind, length = userdata[offset], userdata[offset + 1]
        if kind == _USERDATA_COMMENT:
            return userdata[offset + 2 : offset + 2 + length].partition(b"\0")[0].decode(errors="replace")
        offset += 2 + length
    return ""
