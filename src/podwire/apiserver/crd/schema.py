"""A structural schema, read once: what a field of a custom object may hold.

Source: k8s.io/apiextensions-apiserver/pkg/apiserver/schema (structural.go, convert.go).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from podwire.apiserver.crd.expressions import compiled
from podwire.apiserver.patch.merge_keys import METADATA
from podwire.apiserver.patch.shape import PLAIN, Shape

Object = dict[str, Any]

ABSENT: Any = object()


@dataclass(frozen=True, slots=True, eq=False)
class Schema:
    """A schema of JSONSchemaProps. ``rules`` are those members that only check, as they were given.

    ``entries`` is additionalProperties where that is a schema; ``open`` that it is true. ``branches`` are
    the schemas of allOf, anyOf, oneOf and not, which check but neither prune nor default.
    """

    type: str = ""
    format: str = ""
    properties: Mapping[str, Schema] = field(default_factory=dict)
    required: tuple[str, ...] = ()
    entries: Schema | None = None
    open: bool = False
    items: Schema | None = None
    nullable: bool = False
    default: Any = ABSENT
    int_or_string: bool = False
    preserve: bool = False
    embedded: bool = False
    list_type: str = ""
    list_keys: tuple[str, ...] = ()
    map_type: str = ""
    rules: Mapping[str, Any] = field(default_factory=dict)
    pattern: re.Pattern[str] | None = None
    branches: Mapping[str, tuple[Schema, ...]] = field(default_factory=dict)

    def member(self, name: str) -> Schema | None:
        """The schema of a member of an object; None if it has none."""
        return self.properties.get(name) or self.entries


_RULES = (
    "pattern",
    "enum",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
)
_BRANCHES = ("allOf", "anyOf", "oneOf")


def read(props: Object) -> Schema:
    """The schema in JSONSchemaProps that passed :mod:`podwire.apiserver.crd.structural`."""
    additional = props.get("additionalProperties")
    branches = {name: tuple(read(one) for one in props[name]) for name in _BRANCHES if props.get(name)}
    if props.get("not"):
        branches["not"] = (read(props["not"]),)
    pattern = props.get("pattern")
    return Schema(
        type=props.get("type") or "",
        format=props.get("format") or "",
        properties={name: read(one) for name, one in (props.get("properties") or {}).items()},
        required=tuple(props.get("required") or ()),
        entries=read(additional) if isinstance(additional, dict) else None,
        open=additional is True,
        items=read(props["items"]) if isinstance(props.get("items"), dict) else None,
        nullable=bool(props.get("nullable")),
        default=props.get("default", ABSENT),
        int_or_string=bool(props.get("x-kubernetes-int-or-string")),
        preserve=bool(props.get("x-kubernetes-preserve-unknown-fields")),
        embedded=bool(props.get("x-kubernetes-embedded-resource")),
        list_type=props.get("x-kubernetes-list-type") or "",
        list_keys=tuple(props.get("x-kubernetes-list-map-keys") or ()),
        map_type=props.get("x-kubernetes-map-type") or "",
        rules={name: props[name] for name in _RULES if props.get(name) is not None},
        pattern=compiled(pattern) if pattern else None,
        branches=branches,
    )


def shape(schema: Schema, *, top: bool = True) -> Shape:
    """How objects of the schema are merged by server-side apply."""
    if top:
        fields = {name: shape(one, top=False) for name, one in schema.properties.items()}
        return Shape(fields={**fields, "metadata": METADATA})
    if schema.type == "array":
        items = schema.items
        keys = schema.list_keys if schema.list_type == "map" else ()
        defaults = {}
        if items is not None and keys:
            found = {key: items.properties[key].default for key in keys if key in items.properties}
            defaults = {key: value for key, value in found.items() if value is not ABSENT}
        return Shape(
            items=PLAIN if items is None else shape(items, top=False),
            keys=keys,
            key_defaults=defaults,
            unique=schema.list_type == "set",
        )
    fields = {name: shape(one, top=False) for name, one in schema.properties.items()}
    if schema.embedded:
        fields["metadata"] = METADATA
    return Shape(
        fields=fields,
        values=None if schema.entries is None else shape(schema.entries, top=False),
        entries=schema.entries is not None or schema.open,
        atomic=schema.map_type == "atomic",
    )
