"""The kinds that a definition defines: one for each version that is served."""

from __future__ import annotations

from typing import Any

from podwire.apiserver.crd import pruning, schema, validation
from podwire.apiserver.crd.columns import columns
from podwire.apiserver.crd.definition import condition, schema_of
from podwire.apiserver.crd.jsonpath import Path, fields
from podwire.apiserver.crd.openapi import published
from podwire.apiserver.crd.schema import Schema
from podwire.apiserver.kind import ALL_VERBS, Kind, Subresource, merge_status
from podwire.serving import status
from podwire.serving.status import Cause

Object = dict[str, Any]


def kinds(definition: Object) -> list[Kind]:
    """The kinds of an established definition, the newest of its versions not necessarily first.

    While it is being deleted its objects can be read and deleted, but not made.
    """
    if not condition(definition, "Established"):
        return []
    return [_kind(definition, version) for version in definition["spec"]["versions"] if version["served"]]


def _kind(definition: Object, version: Object) -> Kind:
    spec = definition["spec"]
    names, group = (definition.get("status") or {}).get("acceptedNames") or spec["names"], spec["group"]
    structure = schema_of(version)
    api_version = f"{group}/{version['name']}"
    storage = next(f"{group}/{one['name']}" for one in spec["versions"] if one["storage"])
    several = len(spec["versions"]) > 1
    terminating = bool(definition["metadata"].get("deletionTimestamp"))

    def prune(obj: Object) -> list[str]:
        unknown = pruning.metadata(obj) + pruning.prune(obj, structure)
        pruning.fill(obj, structure)
        return unknown

    def validate(obj: Object) -> list[Cause]:
        return validation.validate(obj, structure, resource=True)

    def validate_update(new: Object, old: Object) -> list[Cause]:
        return validation.validate(new, structure, resource=True, old=old)

    def validate_status(new: Object, old: Object) -> list[Cause]:
        return [
            cause
            for cause in validate_update(new, old)
            if cause.field.partition(".")[0].partition("[")[0] == "status"
        ]

    def convert(target: str) -> Any:
        return (lambda obj: {**obj, "apiVersion": target}) if several else None

    return Kind(
        group=group,
        version=version["name"],
        kind=names["kind"],
        plural=names["plural"],
        singular=names.get("singular") or "",
        list_kind=names.get("listKind") or "",
        namespaced=spec["scope"] == "Namespaced",
        short_names=tuple(names.get("shortNames") or ()),
        categories=tuple(names.get("categories") or ()),
        verbs=tuple(verb for verb in ALL_VERBS if not (terminating and verb == "create")),
        subresources=_subresources(version, structure),
        generation=True,
        prune=prune,
        validate=validate,
        validate_update=validate_update,
        validate_status=validate_status,
        warn=_warning(version, api_version, names["kind"]),
        fields=_selectable(version),
        columns=columns(version.get("additionalPrinterColumns") or []),
        schema=published(version["schema"]["openAPIV3Schema"]),
        stored_as=(group, names["plural"]),
        read=convert(api_version),
        write=convert(storage),
        unconditional_update=False,
        custom=True,
        free_finalizers=True,
        shape=schema.shape(structure),
    )


def _warning(version: Object, api_version: str, kind: str) -> Any:
    if not version.get("deprecated"):
        return lambda obj: []
    told = version.get("deprecationWarning") or f"{api_version} {kind} is deprecated"
    return lambda obj: [told]


def _selectable(version: Object) -> dict[str, Any]:
    found = {}
    for one in version.get("selectableFields") or []:
        path = Path(one["jsonPath"])
        found[one["jsonPath"].lstrip(".")] = _text_at(path)
    return found


def _text_at(path: Path) -> Any:
    def text(obj: Object) -> str:
        value = path.first(obj)
        if value is None:
            return ""
        return str(value).lower() if isinstance(value, bool) else str(value)

    return text


def _subresources(version: Object, structure: Schema) -> dict[str, Subresource]:
    given = version.get("subresources") or {}
    found = {}
    if given.get("status") is not None:

        def merge(current: Object, incoming: Object) -> Object:
            # Of the metadata of a custom object, a write of its status changes nothing but the managers.
            merged = merge_status(current, incoming)
            meta = dict(current["metadata"])
            for name in ("managedFields", "resourceVersion", "uid"):
                if name in merged["metadata"]:
                    meta[name] = merged["metadata"][name]
            merged["metadata"] = meta
            return merged

        found["status"] = Subresource(name="status", merge=merge)
    if given.get("scale") is not None:
        found["scale"] = _scale(given["scale"])
    return found


def _scale(scale: Object) -> Subresource:
    spec_path = fields(scale["specReplicasPath"]) or []
    status_path = fields(scale["statusReplicasPath"]) or []
    selector = fields(scale.get("labelSelectorPath") or "") or []

    def view(obj: Object) -> Object:
        meta = obj["metadata"]
        kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
        wanted = _get(obj, spec_path)
        shown: Object = {
            "apiVersion": "autoscaling/v1",
            "kind": "Scale",
            "metadata": {name: meta[name] for name in kept if name in meta},
            "spec": {"replicas": wanted or 0},
            "status": {"replicas": _get(obj, status_path) or 0},
        }
        if selected := (_get(obj, selector) if selector else None):
            shown["status"]["selector"] = selected
        return shown

    def merge(current: Object, incoming: Object) -> Object:
        replicas = (incoming.get("spec") or {}).get("replicas", 0)
        path = "spec.replicas"
        name = current["metadata"]["name"]
        if type(replicas) is not int:
            raise status.bad_request(f"{path}: a whole number is expected")
        if replicas < 0:
            told = "should be a non-negative integer"
            raise status.invalid("autoscaling", "Scale", name, [status.invalid_value(path, replicas, told)])
        merged = {**current, "metadata": dict(current["metadata"])}
        given = incoming.get("metadata") or {}
        merged["metadata"].pop("resourceVersion", None)
        for kept in ("resourceVersion", "uid"):
            if given.get(kept):
                merged["metadata"][kept] = given[kept]
        node = merged
        for part in spec_path[:-1]:
            node[part] = dict(node.get(part) or {})
            node = node[part]
        node[spec_path[-1]] = replicas
        return merged

    return Subresource(name="scale", group="autoscaling", version="v1", kind="Scale", view=view, merge=merge)


def _get(obj: Object, path: list[str]) -> Any:
    value: Any = obj
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value
