"""OpenAPI documents, made from the shapes of the kinds: for ``kubectl explain`` and for its validation.

Version 3 has one document for each group and version, named with a hash by the index, so that clients can
keep it. Version 2 has no shapes. Source: k8s.io/kube-openapi/pkg/handler3 and k8s.io/kubectl/pkg/explain.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import msgspec
from aiohttp import web

from podwire.apiserver import schemas
from podwire.apiserver.http import openapi2
from podwire.apiserver.http.answers import answer
from podwire.apiserver.kind import Kind
from podwire.apiserver.registry import Registry
from podwire.apiserver.schemas import Message, Type

Object = dict[str, Any]

_SCALARS: dict[str, Object] = {
    "string": {"type": "string", "default": ""},
    "bool": {"type": "boolean"},
    "int32": {"type": "integer", "format": "int32"},
    "int64": {"type": "integer", "format": "int64"},
    "double": {"type": "number", "format": "double"},
    "bytes": {"type": "string", "format": "byte"},
    "time": {"type": "string", "format": "date-time"},
    "microtime": {"type": "string", "format": "date-time"},
    "quantity": {"oneOf": [{"type": "string"}, {"type": "number"}]},
    "intorstring": {"oneOf": [{"type": "integer"}, {"type": "string"}], "format": "int-or-string"},
    "fields": {"type": "object"},
}
_NAMED_SCALARS = {
    "time": "io.k8s.apimachinery.pkg.apis.meta.v1.Time",
    "microtime": "io.k8s.apimachinery.pkg.apis.meta.v1.MicroTime",
    "quantity": "io.k8s.apimachinery.pkg.api.resource.Quantity",
    "intorstring": "io.k8s.apimachinery.pkg.util.intstr.IntOrString",
    "fields": "io.k8s.apimachinery.pkg.apis.meta.v1.FieldsV1",
}
_META = "meta.ObjectMeta"
_TYPE_WORDS = {
    "apiVersion": "The group and version of this kind of object, such as v1 or networking.k8s.io/v1.",
    "kind": "What kind of object this is, such as Pod.",
}
_PATCHES = ("application/apply-patch+yaml", "application/json-patch+json", "application/merge-patch+json")


class OpenApi:
    """Answers requests below ``/openapi``."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._documents: dict[str, bytes] = {}
        registry.on_change(self._documents.clear)

    async def serve(self, request: web.Request, parts: list[str]) -> web.Response | None:
        """The answer, or None for other paths."""
        match parts:
            case ["openapi", "v2"]:
                accepted = request.headers.get("Accept", "")
                if openapi2.PROTOBUF in accepted and "application/json" not in accepted:
                    body = openapi2.document(self._patched())
                    return web.Response(body=body, headers={"Content-Type": openapi2.ANSWERED})
                return answer({"swagger": "2.0", "info": _info(), "paths": {}, "definitions": {}})
            case ["openapi", "v3"]:
                return answer({"paths": {path: self._entry(path) for path in self._paths()}})
            case ["openapi", "v3", *rest] if "/".join(rest) in self._paths():
                body = self._document("/".join(rest))
                return web.Response(
                    body=body,
                    content_type="application/json",
                    headers={"ETag": f'"{_hash(body)}"', "Cache-Control": "public, immutable"},
                )
        return None

    def _paths(self) -> dict[str, list[Kind]]:
        found: dict[str, list[Kind]] = {}
        for kind in self._registry.kinds:
            found.setdefault(_root(kind), []).append(kind)
        return found

    def _patched(self) -> Iterator[tuple[str, dict[str, str]]]:
        for kind in self._registry.kinds:
            if "patch" in kind.verbs:
                middle = "/namespaces/{namespace}" if kind.namespaced else ""
                gvk = {"group": kind.group, "version": kind.version, "kind": kind.kind}
                yield f"/{_root(kind)}{middle}/{kind.plural}/{{name}}", gvk

    def _entry(self, path: str) -> Object:
        digest = _hash(self._document(path))
        return {"serverRelativeURL": f"/openapi/v3/{path}?hash={digest}"}

    def _document(self, path: str) -> bytes:
        body = self._documents.get(path)
        if body is None:
            body = self._documents[path] = msgspec.json.encode(_describe(path, self._paths()[path]))
        return body


def component(kind: Kind) -> str:
    """The name of the kind's schema."""
    if kind.message:
        return _name(kind.message)
    return ".".join((*reversed(kind.group.split(".")), kind.version, kind.kind))


def _root(kind: Kind) -> str:
    return f"apis/{kind.group}/{kind.version}" if kind.group else f"api/{kind.version}"


def _hash(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest().upper()


def _info() -> Object:
    return {"title": "Kubernetes", "version": "v1.33.0"}


def _describe(root: str, kinds: list[Kind]) -> Object:
    components: Object = {}
    paths: Object = {}
    for kind in kinds:
        gvk = {"group": kind.group, "kind": kind.kind, "version": kind.version}
        schema = _of_kind(kind, components)
        schema["x-kubernetes-group-version-kind"] = [gvk]
        components[component(kind)] = schema
        paths.update(_paths_of(f"/{root}", kind, gvk))
    return {
        "openapi": "3.0.0",
        "info": _info(),
        "paths": paths,
        "components": {"schemas": dict(sorted(components.items()))},
    }


def _of_kind(kind: Kind, components: Object) -> Object:
    if kind.message:
        schema = _message(schemas.message(kind.message), components)
    else:
        schema = msgspec.json.decode(msgspec.json.encode(kind.schema or {"type": "object"}))
        schema.setdefault("properties", {})["metadata"] = _reference(Type(_META), components, "")
    typed = {name: {"type": "string", "description": words} for name, words in _TYPE_WORDS.items()}
    schema["properties"] = dict(sorted({**schema.get("properties", {}), **typed}.items()))
    return schema


def _message(shape: Message, components: Object) -> Object:
    properties = {
        name: _property(field.type, shape.words.get(name, ""), components)
        for name, field in sorted(shape.fields.items())
    }
    schema: Object = {"type": "object", "description": shape.description, "properties": properties}
    if shape.required:
        schema["required"] = sorted(shape.required)
    return schema


def _property(kind: Type, words: str, components: Object) -> Object:
    if not kind.form:
        return _reference(kind, components, words)
    inner = _reference(kind, components, "")
    if kind.form == "list":
        return {"type": "array", "description": words, "items": inner}
    return {"type": "object", "description": words, "additionalProperties": inner}


def _reference(kind: Type, components: Object, words: str) -> Object:
    described = {"description": words} if words else {}
    if kind.scalar and kind.name not in _NAMED_SCALARS:
        return {**_SCALARS[kind.name], **described}
    name = _NAMED_SCALARS.get(kind.name) or _name(kind.name)
    if name not in components:
        components[name] = {}
        if kind.scalar:
            components[name] = _SCALARS[kind.name]
        else:
            components[name] = _message(schemas.message(kind.name), components)
    return {**described, "allOf": [{"$ref": f"#/components/schemas/{name}"}]}


def _name(message: str) -> str:
    group, _, name = message.partition(".")
    if group == "meta":
        return f"io.k8s.apimachinery.pkg.apis.meta.v1.{name}"
    return f"io.k8s.api.{group}.v1.{name}"


def _paths_of(root: str, kind: Kind, gvk: Object) -> Object:
    many = f"{root}/namespaces/{{namespace}}/{kind.plural}" if kind.namespaced else f"{root}/{kind.plural}"
    reference = {"$ref": f"#/components/schemas/{component(kind)}"}
    answered = {"200": {"description": "OK", "content": {"application/json": {"schema": reference}}}}

    def operation(action: str, *, write: bool = False, media: tuple[str, ...] = ()) -> Object:
        made: Object = {
            "x-kubernetes-action": action,
            "x-kubernetes-group-version-kind": gvk,
            "responses": answered,
        }
        if write:
            made["parameters"] = [_query("dryRun"), _query("fieldManager"), _query("fieldValidation")]
            made["requestBody"] = {"content": {one: {"schema": reference} for one in media}}
        return made

    json = ("application/json",)
    collection: Object = {}
    single: Object = {}
    for verb, method, write, media in (
        ("get", "get", False, ()),
        ("update", "put", True, json),
        ("patch", "patch", True, _PATCHES),
        ("delete", "delete", False, ()),
    ):
        if verb in kind.verbs:
            single[method] = operation({"update": "put"}.get(verb, verb), write=write, media=media)
    if "list" in kind.verbs:
        collection["get"] = operation("list")
    if "create" in kind.verbs:
        collection["post"] = operation("post", write=True, media=json)
    paths = {many: collection}
    if single:
        paths[f"{many}/{{name}}"] = single
    return paths


def _query(name: str) -> Object:
    return {"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}}
