"""Who manages which fields: metadata.managedFields decoded, and back.

Source: k8s.io/apimachinery/pkg/util/managedfields/internal (managedfields.go, buildmanagerinfo.go,
capmanagers.go, stripmeta.go).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from podwire.apiserver.patch import fieldset
from podwire.apiserver.patch.fieldset import Fields

Object = dict[str, Any]

APPLY, UPDATE = "Apply", "Update"
UPDATERS_AT_MOST = 10
ANCIENT = "ancient-changes"

_STRIPPED = frozenset(
    {("f:apiVersion",), ("f:kind",), ("f:metadata",)}
    | {
        ("f:metadata", f"f:{name}")
        for name in (
            "name",
            "namespace",
            "creationTimestamp",
            "selfLink",
            "uid",
            "clusterName",
            "generation",
            "managedFields",
            "resourceVersion",
        )
    }
)
"""Fields that nobody manages."""


class Manager(NamedTuple):
    """Who manages: a name, how it writes (Apply or Update), in which version, and to which subresource."""

    name: str
    operation: str
    version: str
    subresource: str

    def __str__(self) -> str:
        told = fieldset.compact(self.name)
        if self.subresource:
            told += f" with subresource {fieldset.compact(self.subresource)}"
        return f"{told} using {self.version}" if self.operation == UPDATE else told

    @property
    def identity(self) -> tuple[str, str, str, str]:
        """What tells managers apart: of those who apply, the version does not."""
        return (self.name, self.operation, self.version if self.operation == UPDATE else "", self.subresource)


class Entry:
    """What one manages, and since when (RFC 3339): as a set and as fieldsV1, each made when it is needed."""

    __slots__ = ("_fields", "_tree", "manager", "time")

    def __init__(
        self, manager: Manager, time: str, *, fields: Fields | None = None, tree: Object | None = None
    ) -> None:
        self.manager = manager
        self.time = time
        self._fields = fields
        self._tree = tree

    @property
    def fields(self) -> Fields:
        """The set. Raise ValueError if what was decoded is none."""
        if self._fields is None:
            self._fields = fieldset.decode(self._tree)
        return self._fields

    @property
    def tree(self) -> Object:
        """The set as fieldsV1."""
        if self._tree is None:
            self._tree = fieldset.encode(self._fields or ())
        return self._tree

    def has(self, fields: Fields) -> bool:
        """Whether one of the fields is managed."""
        return fieldset.among(self._tree, fields) if self._fields is None else bool(self._fields & fields)


class Managed:
    """All entries of an object, by identity."""

    def __init__(self, entries: dict[tuple[str, str, str, str], Entry] | None = None) -> None:
        self.entries = entries or {}

    @classmethod
    def decode(cls, listed: Any, *, trusted: bool = False) -> Managed:
        """From metadata.managedFields. Raise ValueError; what is ``trusted`` is not looked at as closely."""
        found: dict[tuple[str, str, str, str], Entry] = {}
        if not isinstance(listed, list):
            raise ValueError("managedFields must be a list")
        for one in listed:
            if not isinstance(one, dict):
                raise ValueError("managedFields: an entry must be an object")
            if one.get("operation") not in (APPLY, UPDATE):
                raise ValueError("managedFields: operation must be `Apply` or `Update`")
            if one.get("fieldsType") not in (None, "", "FieldsV1"):
                raise ValueError("managedFields: fieldsType must be `FieldsV1`")
            texts = [one.get(name) or "" for name in ("manager", "apiVersion", "subresource", "time")]
            if not all(isinstance(text, str) for text in texts):
                raise ValueError("managedFields: manager, apiVersion, subresource and time must be strings")
            manager = Manager(texts[0], one["operation"], texts[1], texts[2])
            tree = one.get("fieldsV1")
            entry = Entry(manager, texts[3], tree={} if tree is None else tree)
            before = found.get(manager.identity)
            if not trusted:
                entry = Entry(manager, texts[3], fields=entry.fields)
            if before is not None:
                entry = Entry(manager, texts[3], fields=before.fields | entry.fields)
            found[manager.identity] = entry
        return cls(found)

    def encode(self) -> list[Object]:
        """As metadata.managedFields: those who apply first, then by time and name."""
        ordered = sorted(
            self.entries.values(),
            key=lambda e: (
                e.manager.operation,
                e.time,
                e.manager.name,
                e.manager.version,
                e.manager.subresource,
            ),
        )
        listed = []
        for entry in ordered:
            manager = entry.manager
            one: Object = {
                "manager": manager.name,
                "operation": manager.operation,
                "apiVersion": manager.version,
                "time": entry.time,
                "fieldsType": "FieldsV1",
                "fieldsV1": entry.tree,
                "subresource": manager.subresource,
            }
            listed.append({name: value for name, value in one.items() if value != ""})
        return listed

    def fields(self, manager: Manager) -> Fields:
        """What a manager manages."""
        entry = self.entries.get(manager.identity)
        return fieldset.NOTHING if entry is None else entry.fields

    def put(self, manager: Manager, fields: Fields, time: str) -> None:
        """Let it manage just these; without any it is forgotten."""
        if fields:
            self.entries[manager.identity] = Entry(manager, time, fields=fields)
        else:
            self.entries.pop(manager.identity, None)

    def others(self, manager: Manager) -> list[Entry]:
        """The entries of all others."""
        return [entry for identity, entry in self.entries.items() if identity != manager.identity]

    def take(self, entry: Entry, fields: Fields) -> None:
        """Let one manage these no more."""
        if entry.has(fields):
            self.put(entry.manager, entry.fields - fields, entry.time)

    def strip(self) -> None:
        """Forget what nobody manages."""
        for entry in list(self.entries.values()):
            self.take(entry, _STRIPPED)

    def cap(self) -> None:
        """Put the oldest who update together, where there are too many of them."""
        updaters = sorted(
            (e for e in self.entries.values() if e.manager.operation == UPDATE),
            key=lambda e: (e.time, e.manager.name),
        )
        if len(updaters) <= UPDATERS_AT_MOST:
            return
        for entry in updaters[: len(updaters) - UPDATERS_AT_MOST + 1]:
            del self.entries[entry.manager.identity]
            bucket = Manager(ANCIENT, UPDATE, entry.manager.version, "")
            self.put(bucket, self.fields(bucket) | entry.fields, entry.time)
