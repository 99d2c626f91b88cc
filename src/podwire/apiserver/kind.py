"""What the registry knows of a kind of object: names, rules, selectable fields, table columns.

Rules are functions on plain dicts. Each has a default that does nothing, so a new kind is a few lines.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from podwire.apiserver import naming
from podwire.serving.status import Cause

if TYPE_CHECKING:
    from podwire.apiserver.patch.shape import Shape
    from podwire.apiserver.registry import Registry

Object = dict[str, Any]

ALL_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


@dataclass(frozen=True, kw_only=True)
class WriteOptions:
    """How a write is to be done; metav1.CreateOptions, UpdateOptions and PatchOptions together.

    ``warnings`` collects what is to be told in Warning headers.
    """

    dry_run: bool = False
    field_manager: str = ""
    field_validation: str = "Warn"
    force: bool = False
    subresource: str = ""
    user: str = ""
    duplicates: tuple[str, ...] = ()
    """What is to be told of fields that the body has twice."""
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Column:
    """A column of a table. ``value`` gives the cell of an object; ``priority`` above 0: only with wide."""

    name: str
    value: Callable[[Object, datetime], Any]
    type: str = "string"
    format: str = ""
    description: str = ""
    priority: int = 0


def _nothing(obj: Object) -> None:
    pass


def _no_update(new: Object, old: Object) -> None:
    pass


def _no_causes(obj: Object) -> list[Cause]:
    return []


def _no_update_causes(new: Object, old: Object) -> list[Cause]:
    return []


def same(obj: Object) -> Object:
    """The object itself: the view of a subresource that shows all of it."""
    return obj


def merge_status(current: Object, incoming: Object) -> Object:
    """The object with the status of the incoming one; its metadata counts as in a replace."""
    merged = {**current, "metadata": incoming.get("metadata") or {}}
    if "status" in incoming:
        merged["status"] = incoming["status"]
    else:
        merged.pop("status", None)
    return merged


class Named(NamedTuple):
    """The object that something is done with."""

    kind: Kind
    namespace: str
    name: str


Act = Callable[["Registry", Named, Object, WriteOptions], Awaitable[Object]]


@dataclass(frozen=True, kw_only=True)
class Subresource:
    """A part of an object with a path of its own, such as ``status`` or ``scale``.

    With ``merge`` it can be read (``view``), replaced and patched; with ``act`` something is done when an
    object is posted to it; ``connect`` is the method of the node backend that answers. ``group``, ``version``
    and ``kind`` are those of what is read and written; empty: the object's own. One that is not ``listed`` is
    not in discovery: it is there to say why something cannot be had.
    """

    name: str
    verbs: tuple[str, ...] = ("get", "patch", "update")
    group: str = ""
    version: str = ""
    kind: str = ""
    view: Callable[[Object], Object] = same
    merge: Callable[[Object, Object], Object] | None = None
    act: Act | None = None
    connect: str = ""
    listed: bool = True


STATUS = Subresource(name="status", merge=merge_status)


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind in one version.

    ``spec_fields`` are the top-level fields that count for metadata.generation, where ``generation`` is on.
    ``stored_as`` is the group and plural under which it is stored, if it is a view of another kind:
    ``read`` turns what is stored into this kind and ``write`` back.
    """

    group: str
    version: str
    kind: str
    plural: str
    singular: str = ""
    list_kind: str = ""
    namespaced: bool = True
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ALL_VERBS
    subresources: Mapping[str, Subresource] = field(default_factory=dict)
    check_name: Callable[[str], str] = naming.dns_subdomain
    generation: bool = False
    defaults: Callable[[Object], None] = _nothing
    prepare_create: Callable[[Object], None] = _nothing
    prepare_update: Callable[[Object, Object], None] = _no_update
    validate: Callable[[Object], list[Cause]] = _no_causes
    validate_update: Callable[[Object, Object], list[Cause]] = _no_update_causes
    validate_status: Callable[[Object, Object], list[Cause]] = _no_update_causes
    admit: Callable[[Registry, Object, Object | None], None] | None = None
    """Sees the object after the defaults and before it is checked, with the old one or None; may change it,
    and raise Failure."""
    warn: Callable[[Object], list[str]] = lambda obj: []
    message: str = ""
    """The shape of the object in :mod:`podwire.apiserver.schemas`; empty: by ``prune`` and ``schema``."""
    prune: Callable[[Object], list[str]] | None = None
    """Removes unknown fields and gives their paths; may raise Failure."""
    grace: Callable[[Object, int | None], int | None] | None = None
    """Seconds of grace of a deletion, of the object and what was asked for; None: deleted at once."""
    check_delete: Callable[[Object], None] = _nothing
    """May raise Failure to prevent a deletion."""
    begin_delete: Callable[[Object], None] = _nothing
    """Sees the object when its deletion begins and it is kept."""
    holds: Callable[[Object], bool] = lambda obj: False
    """Whether something other than metadata.finalizers keeps an object that is being deleted."""
    fields: Mapping[str, Callable[[Object], str]] = field(default_factory=dict)
    """Fields that a fieldSelector may name, beside metadata.name and metadata.namespace."""
    columns: tuple[Column, ...] = ()
    schema: Mapping[str, Any] | None = None
    """OpenAPI schema of the object, where there is no ``message``."""
    review: Callable[[Object, str], Object] | None = None
    """Of a kind that is never stored: what is answered to one that is posted by a user."""
    stored_as: tuple[str, str] | None = None
    read: Callable[[Object], Object] | None = None
    write: Callable[[Object], Object] | None = None
    allow_create_on_update: bool = False
    keep_status: bool = False
    """Whether a create may set the status, as that of a node may."""
    returns_deleted: bool = False
    """Whether a deletion answers with the object, not with a Status."""
    unconditional_update: bool = True
    apply: bool = True
    free_finalizers: bool = False
    """Whether a finalizer needs no domain, as with the kinds that are not built in."""
    custom: bool = False
    """Whether it comes from a CustomResourceDefinition: strategic merge patches are not for it."""
    shape: Shape | None = None
    """How its fields are merged; None: as :mod:`podwire.apiserver.patch.merge_keys` tells."""

    @property
    def api_version(self) -> str:
        """``v1``, ``apps/v1``."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def storage(self) -> tuple[str, str]:
        """The group and plural under which objects are stored."""
        return self.stored_as or (self.group, self.plural)

    @property
    def listed_subresources(self) -> list[Subresource]:
        """Those that discovery tells of."""
        return [part for part in self.subresources.values() if part.listed]

    @property
    def has_status(self) -> bool:
        """Whether status is a subresource, and so left alone by writes to the object itself."""
        return "status" in self.subresources

    @property
    def lists(self) -> str:
        """The kind of a list of them."""
        return self.list_kind or f"{self.kind}List"

    @property
    def single(self) -> str:
        """The singular name, in lower case."""
        return self.singular or self.kind.lower()
