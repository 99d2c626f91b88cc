"""From the bytes that a server sent to objects, without a dict in between.

The structs of :mod:`podwire.kube.objects` refuse unknown fields, because manifests are checked with them.
What a server sends may be newer than we are, so each struct has a lenient twin, made here once: a subclass
that passes over unknown fields and over ``managedFields`` (a third of a pod's bytes, of no use to a reader).
A null, which Go writes for what is empty, stands for the field being left out.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from podwire.kube.apistatus import Lenient, Status
from podwire.kube.errors import ApiError, BadAnswer, api_error
from podwire.kube.metadata import ObjectMeta
from podwire.kube.resource import Resource
from podwire.kube.sealed import Sealed, Shelf

T = TypeVar("T")


class _Passed(Struct, frozen=True, gc=False):
    """Any JSON object, of which nothing is kept."""


class ListMeta(Lenient, frozen=True, kw_only=True):
    """metav1.ListMeta. ``continue_`` is the token of the next page, empty after the last."""

    resource_version: str = ""
    continue_: str | None = msgspec.field(default=None, name="continue")
    remaining_item_count: int | None = None


class _RawList(Lenient, frozen=True, kw_only=True):
    api_version: str = ""
    kind: str = ""
    metadata: ListMeta = ListMeta()
    items: list[Raw] | None = None


class _Line(Struct, frozen=True):
    type: str
    object: Raw = Raw()


class _Head(Lenient, frozen=True, kw_only=True):
    api_version: str = ""
    kind: str = ""


class Identity(typing.NamedTuple):
    """What tells an object, and a state of it, from others."""

    namespace: str
    name: str
    uid: str
    version: str

    @property
    def key(self) -> str:
        """``namespace/name``, or ``name`` for what has no namespace."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


class Page(Struct, Generic[T], frozen=True):
    """A list, or a page of one. ``token`` is empty on the last page; ``remaining`` is None where unknown.

    ``unreadable`` are the items that could not be decoded and are left out, as far as they tell who they are.
    """

    items: list[T]
    version: str
    token: str = ""
    remaining: int | None = None
    unreadable: tuple[Identity, ...] = ()


class WatchEvent(Struct, Generic[T], frozen=True):
    """One event of a watch.

    ``type`` is ADDED, MODIFIED, DELETED or BOOKMARK. ``object`` is None for a bookmark and for an object of
    another type than was asked for or that cannot be decoded; ``problem`` tells which, and ``unreadable`` who
    it is if it is of the type. ``version`` is the resource version, empty where the object has none.
    ``initial_end`` marks the bookmark after the initial events.
    """

    type: str
    object: T | None
    version: str
    initial_end: bool = False
    problem: str = ""
    unreadable: Identity | None = None


_status = msgspec.json.Decoder(Status)
_line = msgspec.json.Decoder(_Line)
_list = msgspec.json.Decoder(_RawList)
_head = msgspec.json.Decoder(_Head)

INITIAL_EVENTS_END = "k8s.io/initial-events-end"
"""Annotation of the bookmark that ends the initial events of a watch with sendInitialEvents."""


def lenient(kind: type[T]) -> type[T]:
    """The twin of a struct: a subclass that passes over unknown fields, all the way down."""
    made = _made.get(kind)
    if made is None:
        made = _made[kind] = _lenient(kind) if issubclass(kind, Struct) else kind
    return cast("type[T]", made)


_made: dict[type, type] = {}


def _lenient(kind: type[Struct]) -> type[Struct]:
    fields: list[tuple[str, Any, Any]] = []
    for each in msgspec.structs.fields(kind):
        wanted = _twin(each.type)
        if each.name == "managed_fields" and issubclass(kind, ObjectMeta):
            wanted = list[_Passed] | UnsetType
        if each.default_factory is not msgspec.NODEFAULT:
            default: Any = msgspec.field(default_factory=each.default_factory, name=each.encode_name)
        elif each.default is not msgspec.NODEFAULT:
            default = msgspec.field(default=each.default, name=each.encode_name)
        else:
            default = msgspec.field(name=each.encode_name)
        fields.append((each.name, wanted, default))
    return msgspec.defstruct(
        kind.__name__,
        fields,
        bases=(kind,),
        module=kind.__module__,
        frozen=True,
        kw_only=True,
        forbid_unknown_fields=False,
        gc=False,
    )


def _twin(annotation: Any) -> Any:
    """The annotation with each struct in it replaced by its twin."""
    arguments = typing.get_args(annotation)
    if not arguments:
        return lenient(annotation) if isinstance(annotation, type) else annotation
    twins = tuple(_twin(each) for each in arguments)
    origin = typing.get_origin(annotation)
    if origin in (types.UnionType, typing.Union):
        return typing.Union[twins]  # noqa: UP007 (of a tuple)
    return origin[twins] if origin is not None else annotation


def without_nulls(value: Any) -> Any:
    """The value without the members that are null."""
    if isinstance(value, dict):
        return {name: without_nulls(each) for name, each in value.items() if each is not None}
    if isinstance(value, list):
        return [without_nulls(each) for each in value]
    return value


def decoder(kind: type[T]) -> Callable[[bytes | Raw], T]:
    """A function from JSON to ``kind``'s lenient twin (``dict`` stays a dict). Raises msgspec.DecodeError."""
    found = _decoders.get(kind)
    if found is None:
        found = _decoders[kind] = _decoder(lenient(kind))
    return found


_decoders: dict[type, Callable[[bytes | Raw], Any]] = {}


def _decoder(twin: type[T]) -> Callable[[bytes | Raw], T]:
    decode = msgspec.json.Decoder(twin).decode
    if not issubclass(twin, Struct):
        return decode

    def convert(data: bytes | Raw) -> T:
        try:
            return decode(data)
        except msgspec.ValidationError:
            return cast("T", msgspec.convert(without_nulls(msgspec.json.decode(data)), twin))

    return convert


def decode_status(data: bytes, code: int) -> Status:
    """The Status in an answer; one made from ``code`` if there is none (a proxy in between answers so)."""
    try:
        status = _status.decode(data)
    except msgspec.MsgspecError:
        status = None
    if status is None or status.kind != "Status" or not (status.code or status.reason):
        text = data[:200].decode(errors="replace").strip()
        return Status(status="Failure", code=code, message=f"HTTP status {code}: {text}" if text else "")
    return status if status.code else msgspec.structs.replace(status, code=code)


def decode_object(resource: Resource[T], data: bytes | Raw) -> T:
    """One object. Raises BadAnswer if it is not JSON or of another type."""
    try:
        found = (resource.reader or decoder(resource.type))(data)
    except msgspec.MsgspecError as error:
        raise BadAnswer(f"{resource.kind}: {error}") from error
    problem = _other_type(resource, found, data)
    if problem:
        raise BadAnswer(problem)
    return found


def _other_type(resource: Resource[T], found: T, data: bytes | Raw) -> str:
    if isinstance(found, dict):
        kind, version = found.get("kind", ""), found.get("apiVersion", "")
    else:
        head: object = found if hasattr(found, "kind") else _head.decode(data)
        kind, version = getattr(head, "kind", ""), getattr(head, "api_version", "")
    if kind == resource.kind and version == resource.api_version:
        return ""
    return f"{resource.kind} of {resource.api_version} was expected, {kind or 'nothing'} of {version!r} came"


def decode_page(resource: Resource[T], data: bytes) -> Page[T]:
    """A list. Items need not name their type. Raises BadAnswer if it is not a list of that resource."""
    try:
        raw = _list.decode(data)
    except msgspec.MsgspecError as error:
        raise BadAnswer(f"list of {resource.plural}: {error}") from error
    if raw.kind not in (f"{resource.kind}List", "List"):
        raise BadAnswer(f"a {resource.kind}List was expected, {raw.kind or 'nothing'} came")
    decode = resource.reader or decoder(resource.type)
    items: list[T] = []
    unreadable: list[Identity] = []
    for each in raw.items or ():
        try:
            found = decode(each)
        except msgspec.MsgspecError:
            unreadable.append(_who(each))
            continue
        if isinstance(found, dict):
            found.setdefault("apiVersion", resource.api_version)
            found.setdefault("kind", resource.kind)
        items.append(found)
    meta = raw.metadata
    return Page(
        items, meta.resource_version, meta.continue_ or "", meta.remaining_item_count, tuple(unreadable)
    )


def _who(data: Raw) -> Identity:
    """Who an object is that cannot be decoded whole; all empty where not even that can be told."""
    try:
        return identity(_identified.decode(data))
    except msgspec.MsgspecError:
        return Identity("", "", "", "")


def _is_of(resource: Resource[T], data: Raw) -> bool:
    try:
        head = _head.decode(data)
    except msgspec.MsgspecError:
        return False
    return head.kind == resource.kind and head.api_version == resource.api_version


def decode_event(resource: Resource[T], line: bytes) -> WatchEvent[T]:
    """One line of a watch. Raises ApiError for an ERROR event, BadAnswer for what is no event."""
    try:
        event = _line.decode(line)
        if event.type == "ERROR":
            raise _error_event(event.object)
        if event.type == "BOOKMARK":
            meta = _bookmark.decode(event.object).metadata
            ended = (meta.annotations or {}).get(INITIAL_EVENTS_END) == "true"
            return WatchEvent("BOOKMARK", None, meta.resource_version, ended)
    except msgspec.MsgspecError as error:
        raise BadAnswer(f"watch of {resource.plural}: {error}") from error
    if event.type not in ("ADDED", "MODIFIED", "DELETED"):
        return WatchEvent(event.type, None, "", problem=f"unknown type of event {event.type!r}")
    try:
        found = decode_object(resource, event.object)
    except BadAnswer as error:
        who = _who(event.object) if _is_of(resource, event.object) else None
        return WatchEvent(event.type, None, "", problem=str(error), unreadable=who)
    return WatchEvent(event.type, found, identity(found).version)


class _BookmarkMeta(Lenient, frozen=True, kw_only=True):
    resource_version: str = ""
    annotations: dict[str, str] | None = None


class _Bookmark(Lenient, frozen=True, kw_only=True):
    metadata: _BookmarkMeta = _BookmarkMeta()


_bookmark = msgspec.json.Decoder(_Bookmark)


def _error_event(data: Raw) -> ApiError:
    return api_error(decode_status(bytes(data), 500))


def identity(found: object) -> Identity:
    """Namespace, name, UID and resource version of an object of any type."""
    if isinstance(found, Sealed):
        namespace, _, name = found.key.rpartition("/")
        return Identity(namespace, name, found.uid, found.version)
    if isinstance(found, dict):
        get = (found.get("metadata") or {}).get
        return Identity(
            get("namespace") or "", get("name") or "", get("uid") or "", get("resourceVersion") or ""
        )
    meta = cast("Any", found).metadata
    return Identity(meta.namespace, meta.name, meta.uid, meta.resource_version)


def encode(found: object) -> bytes:
    """An object as JSON for a server, without ``managedFields``: they were not kept, the server has them."""
    if (
        isinstance(found, Struct)
        and getattr(getattr(found, "metadata", None), "managed_fields", UNSET) is not UNSET
    ):
        metadata = msgspec.structs.replace(cast("Any", found).metadata, managed_fields=UNSET)
        found = msgspec.structs.replace(found, metadata=metadata)
    return msgspec.json.encode(found)


class _Metadata(Lenient, frozen=True, kw_only=True):
    namespace: str = ""
    name: str = ""
    uid: str = ""
    resource_version: str = ""


class _Identified(Lenient, frozen=True, kw_only=True):
    metadata: _Metadata = _Metadata()


_identified = msgspec.json.Decoder(_Identified)


def sealing(resource: Resource[T]) -> Resource[Sealed[T]]:
    """The resource with its objects left packed. Each was looked at once: all of them can be opened."""
    shelf = Shelf()
    decode = decoder(resource.type)
    typed = issubclass(resource.type, Struct)

    def open_(data: bytes) -> T:
        found = decode(data)
        if isinstance(found, dict):
            found.setdefault("apiVersion", resource.api_version)
            found.setdefault("kind", resource.kind)
        return found

    def seal(data: bytes | Raw) -> Sealed[T]:
        new = identity(decode(data) if typed else _identified.decode(data))
        return Sealed(
            new.key, new.uid, new.version, packed=shelf.pack(data), unpack=shelf.unpack, decode=open_
        )

    return Resource(
        resource.group,
        resource.version,
        resource.plural,
        resource.kind,
        Sealed,
        resource.namespaced,
        seal,
    )
