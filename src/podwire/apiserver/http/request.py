"""What is in a request: its options and its body.

Source: k8s.io/apimachinery/pkg/apis/meta/v1 (the Options types), k8s.io/apiserver/pkg/endpoints/handlers.
"""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

import msgspec
from aiohttp import web

from podwire.apiserver import schemas
from podwire.apiserver.deletion import DeleteOptions
from podwire.apiserver.kind import WriteOptions
from podwire.apiserver.reading import ListOptions
from podwire.apiserver.schemas import protobuf
from podwire.serving import status
from podwire.serving.query import flag, number

Object = dict[str, Any]

BODY_AT_MOST = 3 << 20
PROTOBUF = "application/vnd.kubernetes.protobuf"
_KEY = re.compile(rb'"\s*:')
_TYPES = ("application/json", "application/yaml", PROTOBUF)
_VALIDATION = ("Ignore", "Warn", "Strict")
_decode = msgspec.json.Decoder().decode


def list_options(request: web.Request) -> ListOptions:
    """Options of a list or watch. Raise Failure 400."""
    query = request.query
    if not query:
        return ListOptions()
    initial = query.get("sendInitialEvents")
    return ListOptions(
        label_selector=query.get("labelSelector", ""),
        field_selector=query.get("fieldSelector", ""),
        limit=max(0, number(request, "limit") or 0),
        continue_=query.get("continue", ""),
        resource_version=query.get("resourceVersion", ""),
        resource_version_match=query.get("resourceVersionMatch", ""),
        watch=flag(request, "watch"),
        allow_bookmarks=flag(request, "allowWatchBookmarks"),
        send_initial_events=None if initial is None else flag(request, "sendInitialEvents"),
        timeout_seconds=number(request, "timeoutSeconds"),
    )


def write_options(
    request: web.Request, *, user: str, subresource: str = "", kind: str = "CreateOptions"
) -> WriteOptions:
    """Options of a write. Raise Failure 422."""
    query = request.query
    dry_run = query.getall("dryRun", [])
    validation = query.get("fieldValidation") or "Warn"
    causes = []
    if any(one != "All" for one in dry_run):
        causes.append(status.not_supported("dryRun", dry_run, ["All"]))
    if validation not in _VALIDATION:
        causes.append(status.not_supported("fieldValidation", validation, ["", *_VALIDATION]))
    manager = query.get("fieldManager", "")
    if len(manager) > 128:
        causes.append(status.too_long("fieldManager", 128))
    if causes:
        raise status.invalid("meta.k8s.io", kind, "", causes)
    return WriteOptions(
        dry_run=bool(dry_run),
        field_manager=manager or request.headers.get("User-Agent", "unknown").split("/")[0],
        field_validation=validation,
        force=flag(request, "force"),
        subresource=subresource,
        user=user,
    )


def check_patch(request: web.Request, media: str) -> None:
    """Raise Failure 422 if an apply does not say who applies, or another patch asks for force."""
    causes = []
    if media == "application/apply-patch+yaml":
        if not request.query.get("fieldManager"):
            causes.append(status.required("fieldManager", "is required for apply patch"))
    elif "force" in request.query:
        causes.append(status.forbidden_field("force", "may not be specified for non-apply patch"))
    if causes:
        raise status.invalid("meta.k8s.io", "PatchOptions", "", causes)


async def delete_options(request: web.Request) -> DeleteOptions:
    """Options of a deletion, from the body or else the query. Raise Failure 400, 413, 415, 422."""
    body: Object = {}
    raw = await read(request)
    if raw.strip():
        if request.content_type == PROTOBUF:
            body = _delete_options_of(raw)
        else:
            body = parse(request, raw, what="DeleteOptions")
        if body.get("kind") not in (None, "", "DeleteOptions"):
            raise status.bad_request(
                f"cannot be handled as a DeleteOptions: {status.quoted(str(body.get('kind')))}"
            )
    else:
        query = request.query
        grace = number(request, "gracePeriodSeconds")
        body = {"gracePeriodSeconds": grace, "propagationPolicy": query.get("propagationPolicy")}
        if "orphanDependents" in query:
            body["orphanDependents"] = flag(request, "orphanDependents")
    if "dryRun" in request.query:
        body["dryRun"] = request.query.getall("dryRun")
    return DeleteOptions.of(body)


def _delete_options_of(raw: bytes) -> Object:
    try:
        return protobuf.decode(raw, "meta.DeleteOptions")
    except protobuf.ProtobufError as error:
        raise status.bad_request(f"the object provided is unrecognized: {error}") from error


async def read(request: web.Request) -> bytes:
    """The body. Raise Failure 413."""
    try:
        return await request.read()
    except web.HTTPRequestEntityTooLarge:
        raise status.Failure(
            413, "RequestEntityTooLarge", f"Request entity too large: limit is {BODY_AT_MOST}"
        ) from None


def parse(request: web.Request, raw: bytes, *, what: str) -> Object:
    """The object in a body of JSON or YAML. Raise Failure 400, 415."""
    media = request.content_type if "Content-Type" in request.headers else "application/json"
    try:
        if media == "application/yaml":
            value = yaml_object(raw)
        elif media in ("application/json", "application/octet-stream", "text/plain"):
            value = _decode(raw)
        else:
            raise status.unsupported_media_type(_TYPES[:2])
    except (msgspec.DecodeError, ValueError) as error:
        raise status.bad_request(
            f"the object provided is unrecognized (must be of type {what}): couldn't get version/kind;"
            f" json parse error: {error}"
        ) from error
    if not isinstance(value, dict):
        raise status.bad_request(
            f"the object provided is unrecognized (must be of type {what}): couldn't get version/kind;"
            " an object is expected"
        )
    return value


def object_of(
    request: web.Request, raw: bytes, what: str, message: str, options: WriteOptions
) -> tuple[Object, WriteOptions]:
    """The object in a body of JSON, YAML or protobuf, and the options with the fields it has twice.

    ``message`` is its shape, if it has one: without it there is no protobuf. Raise Failure 400, 415.
    """
    if request.content_type == PROTOBUF and message in schemas.messages():
        try:
            return protobuf.decode(raw, message), options
        except protobuf.ProtobufError as error:
            raise status.bad_request(f"the object provided is unrecognized: {error}") from error
    obj = parse(request, raw, what=what)
    if options.field_validation != "Ignore" and request.content_type != "application/yaml":
        twice = repeated(raw, obj)
        if twice:
            options = dataclasses.replace(options, duplicates=twice)
    return obj, options


def repeated(raw: bytes, obj: Object) -> tuple[str, ...]:
    """What is to be told of keys that stand twice in an object of the JSON text."""
    # The keys that were kept are counted first: reading all pairs in Python is slow, and rarely needed.
    if len(_KEY.findall(raw)) == _keys(obj):
        return ()
    found: list[str] = []

    def pairs(items: list[tuple[str, Any]]) -> Object:
        made: Object = {}
        for key, value in items:
            if key in made:
                found.append(f'duplicate field "{key}"')
            made[key] = value
        return made

    json.loads(raw, object_pairs_hook=pairs)
    return tuple(dict.fromkeys(found))


def _keys(value: Any) -> int:
    if isinstance(value, dict):
        return len(value) + sum(map(_keys, value.values()))
    return sum(map(_keys, value)) if isinstance(value, list) else 0


def yaml_object(raw: bytes) -> Any:
    """What a YAML text holds, as JSON would. Raise ValueError."""
    import yaml

    try:
        return json.loads(json.dumps(yaml.safe_load(raw), default=str))
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
