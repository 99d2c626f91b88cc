"""What is in a request: its options and its body.

Source: k8s.io/apimachinery/pkg/apis/meta/v1 (the Options types), k8s.io/apiserver/pkg/endpoints/handlers.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
from aiohttp import web

from podwire.apiserver import status
from podwire.apiserver.deletion import DeleteOptions
from podwire.apiserver.kind import WriteOptions
from podwire.apiserver.reading import ListOptions

Object = dict[str, Any]

BODY_AT_MOST = 3 << 20
_TYPES = ("application/json", "application/yaml", "application/vnd.kubernetes.protobuf")
_VALIDATION = ("Ignore", "Warn", "Strict")
_decode = msgspec.json.Decoder().decode


def flag(request: web.Request, name: str) -> bool:
    """A boolean of the query. ``?watch`` alone counts as true, as does any value but 0 and false."""
    value = request.query.get(name)
    return value is not None and value.lower() not in ("0", "false")


def number(request: web.Request, name: str) -> int | None:
    """A whole number of the query. Raise Failure 400."""
    text = request.query.get(name)
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        raise status.bad_request(f"strconv.ParseInt: parsing {status.quoted(text)}: invalid syntax") from None


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


async def delete_options(request: web.Request) -> DeleteOptions:
    """Options of a deletion, from the body or else the query. Raise Failure 400, 413, 415, 422."""
    body: Object = {}
    raw = await read(request)
    if raw.strip():
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


def yaml_object(raw: bytes) -> Any:
    """What a YAML text holds, as JSON would. Raise ValueError."""
    import yaml

    try:
        return json.loads(json.dumps(yaml.safe_load(raw), default=str))
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
