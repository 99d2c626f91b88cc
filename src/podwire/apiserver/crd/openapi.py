"""The schemas of definitions and of custom objects, as OpenAPI v3 shows them."""

from __future__ import annotations

import copy
from typing import Any

Object = dict[str, Any]


def published(props: Object) -> Object:
    """The schema of a version for OpenAPI; the server adds what every object has."""
    schema = copy.deepcopy(props)
    _embedded(schema)
    return schema


def _embedded(schema: Any) -> None:
    """Show what objects inside of objects have."""
    if not isinstance(schema, dict):
        return
    if schema.get("x-kubernetes-embedded-resource"):
        properties = schema.setdefault("properties", {})
        properties.setdefault("apiVersion", _text("The group and version of the object."))
        properties.setdefault("kind", _text("The kind of the object."))
        properties.setdefault("metadata", {"type": "object", "description": "The object's metadata."})
    for below in (schema.get("properties") or {}).values():
        _embedded(below)
    for name in ("items", "additionalProperties"):
        _embedded(schema.get(name))


def _text(description: str) -> Object:
    return {"type": "string", "description": description}


def _flag(description: str) -> Object:
    return {"type": "boolean", "description": description}


def _list(items: Object, description: str) -> Object:
    return {"type": "array", "items": items, "description": description}


def _record(told: str, required: tuple[str, ...] = (), **properties: Object) -> Object:
    schema: Object = {"type": "object", "description": told, "properties": properties}
    if required:
        schema["required"] = list(required)
    return schema


_NAMES = _record(
    "The names of the resource and its kind.",
    ("plural", "kind"),
    plural=_text("The name in paths; the definition is named after it and the group."),
    singular=_text("The name of one; the kind in lower case if it is left out."),
    kind=_text("The kind of an object, in CamelCase."),
    listKind=_text("The kind of a list of them; the kind and List if it is left out."),
    shortNames=_list({"type": "string"}, "Short names for the command line."),
    categories=_list({"type": "string"}, "Groups of resources it belongs to, such as all."),
)
_COLUMN = _record(
    "A column in tables.",
    ("name", "type", "jsonPath"),
    name=_text("The heading."),
    type=_text("boolean, date, integer, number or string."),
    format=_text("A format of OpenAPI; name marks the column with the name."),
    description=_text("What it shows."),
    priority={"type": "integer", "format": "int32", "description": "Above 0: only in wide tables."},
    jsonPath=_text("Where the value is in an object, such as .spec.replicas."),
)
_FREE = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_SCALE = _record(
    "Makes objects scalable at their own path.",
    ("specReplicasPath", "statusReplicasPath"),
    specReplicasPath=_text("Where the wanted number of replicas is, under .spec."),
    statusReplicasPath=_text("Where the present number of replicas is, under .status."),
    labelSelectorPath=_text("Where a selector of labels is, as text, under .spec or .status."),
)
_VERSION = _record(
    "A version of the resource.",
    ("name", "served", "storage"),
    name=_text("The version, such as v1 or v1beta1."),
    served=_flag("Whether it can be read and written."),
    storage=_flag("Whether objects are stored in it; true of just one."),
    deprecated=_flag("Whether its use is warned of."),
    deprecationWarning=_text("The warning, in place of the usual one."),
    schema=_record(
        "What objects may hold.",
        openAPIV3Schema={**_FREE, "description": "A structural schema in OpenAPI v3."},
    ),
    subresources=_record(
        "Paths below an object.",
        status={**_FREE, "description": "Makes the status writable at its own path only."},
        scale=_SCALE,
    ),
    additionalPrinterColumns=_list(_COLUMN, "Columns in tables, beside the name."),
    selectableFields=_list(
        _record("A field.", ("jsonPath",), jsonPath=_text("Where it is.")), "Fields for field selectors."
    ),
)
_CONDITION = _record(
    "Something that is true or false of the definition.",
    ("type", "status"),
    type=_text("NamesAccepted, Established, NonStructuralSchema or Terminating."),
    status=_text("True, False or Unknown."),
    reason=_text("Why, in one word."),
    message=_text("Why, for a person."),
    lastTransitionTime={"type": "string", "format": "date-time", "description": "Since when."},
)

DEFINITION_SCHEMA: Object = _record(
    "Defines a resource of your own: its names, versions and what its objects may hold.",
    ("spec",),
    spec=_record(
        "What is defined.",
        ("group", "names", "scope", "versions"),
        group=_text("The group of the resource, a domain such as example.com."),
        names=_NAMES,
        scope=_text("Namespaced or Cluster."),
        versions=_list(_VERSION, "All versions."),
        conversion=_record(
            "How objects get from one version to another.",
            ("strategy",),
            strategy=_text("None: only the apiVersion changes."),
            webhook={**_FREE, "description": "Not used by this server."},
        ),
        preserveUnknownFields=_flag("Must be false."),
    ),
    status=_record(
        "What the server made of it.",
        conditions=_list(_CONDITION, "Whether the names are accepted and the resource is served."),
        acceptedNames=_NAMES,
        storedVersions=_list({"type": "string"}, "Versions in which objects may be stored."),
    ),
)
