"""The verbs of the API over HTTP."""

from __future__ import annotations

import dataclasses
from typing import Any

from aiohttp import web

from podwire.apiserver.http import request as asked
from podwire.apiserver.http import tables
from podwire.apiserver.http.answers import answer
from podwire.apiserver.http.backend import NodeBackend
from podwire.apiserver.http.negotiation import TABLE, Form, form
from podwire.apiserver.http.paths import Target
from podwire.apiserver.http.watching import stream
from podwire.apiserver.kind import Kind, Named, Subresource
from podwire.apiserver.registry import Listing, Registry
from podwire.apiserver.storage import Stored
from podwire.serving import status
from podwire.serving.answers import encode
from podwire.serving.query import flag

Object = dict[str, Any]

STRATEGIC = "application/strategic-merge-patch+json"
PATCHES = (
    "application/json-patch+json",
    "application/merge-patch+json",
    STRATEGIC,
    "application/apply-patch+yaml",
)


class Resources:
    """Answers requests for objects of the registry's kinds."""

    def __init__(self, registry: Registry, backend: NodeBackend | None = None) -> None:
        self.registry = registry
        self.backend = backend

    async def serve(self, request: web.Request, target: Target, user: str) -> web.StreamResponse:
        """Answer. Raise Failure."""
        kind = self.registry.lookup(target.group, target.version, target.plural)
        if kind is None:
            what = f"{target.plural} of {target.group or 'core'}/{target.version} are not served here"
            raise status.not_served(target.group, target.plural, what)
        if target.namespace is not None and not kind.namespaced:
            raise status.no_such_path()
        if target.subresource:
            part = kind.subresources.get(target.subresource)
            if part is None:
                what = f"{kind.plural} have no {target.subresource} here"
                raise status.not_served(target.group, target.plural, what)
            if not target.name or (kind.namespaced and target.namespace is None):
                raise status.no_such_path()
            return await self._part(request, target, kind, part, user)
        if kind.namespaced and target.namespace is None and target.name:
            raise status.no_such_path()
        verb = _verb(request, target)
        if verb not in kind.verbs or (kind.namespaced and target.namespace is None and verb == "create"):
            raise status.method_not_allowed(kind.group, kind.plural, verb)
        match verb:
            case "list" | "watch":
                return await self._read_many(request, target, kind)
            case "get":
                version = request.query.get("resourceVersion", "")
                stored = self.registry.get(kind, target.namespace or "", target.name, version)
                return self._one(request, kind, stored)
            case "create":
                return await self._create(request, target, kind, user)
            case "update" | "patch":
                return await self._change(request, target, kind, None, user)
            case "delete":
                return await self._delete(request, target, kind)
            case _:
                return await self._delete_many(request, target, kind)

    async def _read_many(self, request: web.Request, target: Target, kind: Kind) -> web.StreamResponse:
        options = asked.list_options(request)
        if target.watch:
            fields = options.field_selector
            if target.name:
                fields = ",".join(filter(None, (fields, f"metadata.name={target.name}")))
            options = dataclasses.replace(options, watch=True, field_selector=fields)
        wanted = form(request.headers.get("Accept", ""))
        if options.watch:
            return await stream(request, self.registry, kind, target.namespace, options=options, form=wanted)
        return self._many(request, kind, self.registry.list(kind, target.namespace, options), wanted)

    def _one(
        self,
        request: web.Request,
        kind: Kind,
        stored: Stored,
        *,
        code: int = 200,
        warnings: list[str] | None = None,
    ) -> web.Response:
        wanted = form(request.headers.get("Accept", ""))
        warned = warnings or ()
        if not wanted.as_kind:
            body = stored.raw if kind.read is None else self.registry.view(kind, stored)
            return answer(body, code=code, form=wanted, warnings=warned)
        obj = self.registry.view(kind, stored)
        if wanted.as_kind == TABLE:
            meta = {"resourceVersion": obj["metadata"].get("resourceVersion", "")}
            include = request.query.get("includeObject", "Metadata")
            return answer(
                tables.table(kind, [obj], meta, wanted, include=include),
                code=code,
                form=wanted,
                warnings=warned,
            )
        return answer(tables.partial(obj, wanted.version), code=code, form=wanted, warnings=warned)

    def _many(self, request: web.Request, kind: Kind, found: Listing, wanted: Form) -> web.Response:
        meta: Object = {"resourceVersion": str(found.revision)}
        if found.token:
            meta["continue"] = found.token
            if found.remaining > 0:
                meta["remainingItemCount"] = found.remaining
        if wanted.as_kind:
            objects = [self.registry.view(kind, stored) for stored in found.items]
            if wanted.as_kind == TABLE:
                include = request.query.get("includeObject", "Metadata")
                return answer(tables.table(kind, objects, meta, wanted, include=include), form=wanted)
            return answer(tables.partial_list(objects, meta, wanted), form=wanted)
        if kind.read is not None:
            objects = [self.registry.view(kind, stored) for stored in found.items]
            body = {"kind": kind.lists, "apiVersion": kind.api_version, "metadata": meta, "items": objects}
            return answer(body, form=wanted)
        return answer(_joined(kind, meta, found.items), form=wanted)

    async def _create(self, request: web.Request, target: Target, kind: Kind, user: str) -> web.Response:
        raw = await asked.read(request)
        if target.name:
            raise status.method_not_allowed(kind.group, kind.plural, "create")
        options = asked.write_options(request, user=user)
        obj, options = asked.object_of(request, raw, kind.kind, kind.message, options)
        check_kind(obj, kind.api_version, kind.kind)
        if kind.review is not None:
            self.registry.check_fields(kind, obj, options)
            return answer(kind.review(obj, user), code=201)
        stored = await self.registry.create(kind, target.namespace or "", obj, options)
        return self._one(request, kind, stored, code=201, warnings=options.warnings)

    async def _change(
        self, request: web.Request, target: Target, kind: Kind, part: Subresource | None, user: str
    ) -> web.Response:
        raw = await asked.read(request)
        name = "" if part is None else part.name
        options = asked.write_options(request, user=user, subresource=name, kind="UpdateOptions")
        namespace = target.namespace or ""
        if request.method == "PUT":
            group, version, what = _what(kind, part)
            obj, options = asked.object_of(request, raw, what, _message(kind, part), options)
            check_kind(obj, f"{group}/{version}" if group else version, what)
            stored, created = await self.registry.replace(
                kind, namespace, target.name, obj=obj, options=options, subresource=part
            )
        else:
            media = request.content_type
            accepted = [one for one in PATCHES if not kind.custom or one != STRATEGIC]
            if media not in accepted:
                raise status.unsupported_media_type(accepted)
            asked.check_patch(request, media)
            stored, created = await self.registry.patch(
                kind, namespace, target.name, body=raw, content_type=media, options=options, subresource=part
            )
        if part is not None:
            stored = Stored.unsaved(part.view(self.registry.view(kind, stored))) if part.kind else stored
        return self._one(request, kind, stored, code=201 if created else 200, warnings=options.warnings)

    async def _part(
        self, request: web.Request, target: Target, kind: Kind, part: Subresource, user: str
    ) -> web.StreamResponse:
        verb = {"GET": "get", "PUT": "update", "PATCH": "patch", "POST": "create"}.get(request.method, "")
        if verb not in part.verbs:
            raise status.method_not_allowed(kind.group, kind.plural, verb or request.method.lower())
        namespace = target.namespace or ""
        if part.connect:
            stored = self.registry.get(kind, namespace, target.name)
            if self.backend is None:
                raise status.unavailable(f"{part.name}: no node runs pods here")
            answered: web.StreamResponse = await getattr(self.backend, part.connect)(request, stored.object)
            return answered
        if verb == "get":
            stored = self.registry.get(kind, namespace, target.name)
            if part.kind:
                return answer(part.view(self.registry.view(kind, stored)))
            return self._one(request, kind, stored)
        if verb != "create":
            return await self._change(request, target, kind, part, user)
        assert part.act is not None
        options = asked.write_options(request, user=user, subresource=part.name)
        group, version, what = _what(kind, part)
        raw = await asked.read(request)
        obj, options = asked.object_of(request, raw, what, _message(kind, part), options)
        check_kind(obj, f"{group}/{version}" if group else version, what)
        body = await part.act(self.registry, Named(kind, namespace, target.name), obj, options)
        return answer(body, code=201, warnings=options.warnings)

    async def _delete(self, request: web.Request, target: Target, kind: Kind) -> web.Response:
        options = await asked.delete_options(request)
        stored, gone = await self.registry.delete(kind, target.namespace or "", target.name, options)
        if gone and not kind.returns_deleted:
            uid = stored.object["metadata"]["uid"]
            body = status.success(name=target.name, group=kind.group, kind=kind.plural, uid=uid)
            return answer(body)
        code = 202 if not gone and options.orphan_dependents is False else 200
        return self._one(request, kind, stored, code=code)

    async def _delete_many(self, request: web.Request, target: Target, kind: Kind) -> web.Response:
        options = await asked.delete_options(request)
        selection = asked.list_options(request)
        deleted = await self.registry.delete_collection(kind, target.namespace, options, selection)
        found = Listing(deleted, self.registry.storage.revision, "", 0)
        return self._many(request, kind, found, Form())


def check_kind(obj: Object, api_version: str, kind: str) -> None:
    """Raise Failure 400 if an object says that it is something else."""
    given, version = obj.get("kind"), obj.get("apiVersion")
    if given and given != kind:
        raise status.bad_request(
            f"{given} in version {status.quoted(str(version or ''))} cannot be handled as a {kind}:"
            f" no kind {status.quoted(str(given))} is registered for this path"
        )
    if version and version != api_version:
        raise status.bad_request(
            f"the API version in the data ({version}) does not match the expected API version ({api_version})"
        )


def _what(kind: Kind, part: Subresource | None) -> tuple[str, str, str]:
    if part is None or not part.kind:
        return kind.group, kind.version, kind.kind
    return part.group, part.version or kind.version, part.kind


def _message(kind: Kind, part: Subresource | None) -> str:
    if part is None or not part.kind:
        return kind.message
    return f"{part.group.removesuffix('.k8s.io') or 'core'}.{part.kind}"


def _verb(request: web.Request, target: Target) -> str:
    if target.watch:
        return "watch" if request.method in ("GET", "HEAD") else request.method.lower()
    many = not target.name
    match request.method:
        case "GET" | "HEAD":
            if many:
                return "watch" if flag(request, "watch") else "list"
            return "get"
        case "POST":
            return "create"
        case "PUT" if not many:
            return "update"
        case "PATCH" if not many:
            return "patch"
        case "DELETE":
            return "deletecollection" if many else "delete"
    return request.method.lower()


def _joined(kind: Kind, meta: Object, items: list[Stored]) -> bytes:
    head: Object = {"kind": kind.lists, "apiVersion": kind.api_version, "metadata": meta}
    return encode(head)[:-1] + b',"items":[' + b",".join([stored.raw for stored in items]) + b"]}\n"
