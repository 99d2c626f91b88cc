"""Patches as the registry asks for them: by media type, with failures as kube-apiserver answers them.

Source: k8s.io/apiserver/pkg/endpoints/handlers/patch.go, k8s.io/apimachinery/pkg/util/managedfields.
"""

from __future__ import annotations

import copy
import re
from typing import Any

import msgspec

from podwire.apiserver import metadata, yamltext
from podwire.apiserver.kind import Kind, WriteOptions
from podwire.apiserver.patch import apply, fieldset, jsonpatch, merge, merge_keys, strategic
from podwire.apiserver.patch.managers import APPLY, UPDATE, Managed, Manager
from podwire.apiserver.patch.shape import Shape
from podwire.apiserver.schemas import checking
from podwire.serving import status

Object = dict[str, Any]

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
KUBECTL = "kubectl"
"""The manager as which ``kubectl apply --server-side`` applies: it takes over what kubectl applied before."""

_PART = re.compile(r"\[(\d+)\]|([^.\[\]]+)")
"""A step of a path such as ``spec.containers[0].image``: an index or a name."""
_decode = msgspec.json.Decoder().decode


def apply_patch(kind: Kind, current: Object, body: bytes, content_type: str, options: WriteOptions) -> Object:
    """The object with the patch in it. ``current`` is not changed; it is empty if there is no object.

    An apply also brings metadata.managedFields up to date; see :func:`track` for the others.
    Raise Failure 400, 409, 413, 415, 422, 500.
    """
    if content_type == APPLY_PATCH and kind.apply:
        return _apply(kind, current, body, options)
    accepted = [JSON_PATCH, MERGE_PATCH]
    if not kind.custom:
        accepted.append(STRATEGIC_PATCH)
    if content_type not in accepted:
        raise status.unsupported_media_type([*accepted, APPLY_PATCH] if kind.apply else accepted)
    try:
        patch = _decode(body)
    except msgspec.DecodeError as error:
        raise status.bad_request(f"error decoding patch: {error}") from error
    if content_type == JSON_PATCH:
        patched = _json_patch(current, patch)
    else:
        if not isinstance(patch, dict):
            raise status.bad_request("error decoding patch: an object is expected")
        if content_type == MERGE_PATCH:
            patched = merge.merge(current, patch)
        else:
            patched = _strategic(current, patch, _shape(kind))
    if not isinstance(patched, dict) or not isinstance(patched.get("metadata"), dict):
        raise status.bad_request("the patched object is no object, or has no metadata")
    return patched


def track(kind: Kind, new: Object, old: Object, options: WriteOptions) -> None:
    """Note in the metadata.managedFields of ``new`` who manages what after a write that is no apply.

    ``old`` is empty for a create. A client may set the list, and empties it by ``[{}]``.
    """
    meta, before = new["metadata"], old.get("metadata") or {}
    given, held = meta.pop("managedFields", None), before.get("managedFields")
    reset = given == [{}] and not options.subresource
    ignored = options.subresource or given == held
    managed = Managed() if reset else (None if ignored else _decoded(given)) or _decoded(held, trusted=True)
    managed = managed or Managed()
    # An object whose managers are not known stays so until an apply.
    if managed.entries or not old:
        manager = Manager(options.field_manager, UPDATE, kind.api_version, options.subresource)
        was = {**_empty(kind, new), **_bare(old)} if old else _empty(kind, new)
        try:
            apply.update(was, new, _shape(kind), managed, manager=manager, time=metadata.now())
        except fieldset.NamelessItem:
            # The validation that follows tells what is wrong with it.
            pass
    if managed.entries:
        meta["managedFields"] = managed.encode()


def _apply(kind: Kind, current: Object, body: bytes, options: WriteOptions) -> Object:
    try:
        config = yamltext.load(body)
    except ValueError as error:
        raise status.bad_request(f"error decoding YAML: {error}") from error
    if not isinstance(config, dict):
        raise status.bad_request("error decoding YAML: an object is expected")
    meta = metadata.meta_of(config)
    if meta.get("managedFields"):
        raise status.bad_request("metadata.managedFields must be nil")
    given = config.get("apiVersion")
    if given != kind.api_version:
        raise status.bad_request(
            "Incorrect version specified in apply patch. Specified patch version:"
            f" {given or ''}, expected: {kind.api_version}"
        )
    if config.get("kind") != kind.kind:
        raise status.bad_request(
            f"the kind in the data ({config.get('kind') or ''}) does not match the expected kind"
            f" ({kind.kind})"
        )
    if not options.field_manager:
        cause = status.required("fieldManager", "is required for apply patch")
        raise status.invalid("meta.k8s.io", "PatchOptions", "", [cause])
    _drop_reset(kind, config, options.subresource)
    _check_declared(kind, config)
    live = _bare(current) if current else _empty(kind, config)
    manager = Manager(options.field_manager, APPLY, kind.api_version, options.subresource)
    try:
        result, managed = _applied(kind, current, live, config, manager, force=options.force)
    except apply.Conflicts as conflicts:
        causes = [
            status.Cause("FieldManagerConflict", f"conflict with {one.manager}", fieldset.shown(one.path))
            for one in conflicts.conflicts
        ]
        raise status.Failure(409, "Conflict", str(conflicts), causes=causes) from conflicts
    except (fieldset.DuplicateItem, fieldset.NamelessItem) as error:
        raise _untyped(kind, config, str(error)) from error
    meta = result["metadata"] = dict(result.get("metadata") or {})
    if options.field_manager == KUBECTL and LAST_APPLIED in (meta.get("annotations") or {}):
        meta["annotations"] = {**meta["annotations"], LAST_APPLIED: _last_applied(config)}
    meta["managedFields"] = managed.encode()
    return result


def _drop_reset(kind: Kind, config: Object, subresource: str) -> None:
    """Take out what a write to this part of the object does not change, so that nobody comes to manage it."""
    if not subresource and kind.has_status:
        config.pop("status", None)
    elif subresource == "status":
        for name in set(config) - {"apiVersion", "kind", "metadata", "status"}:
            del config[name]


def _check_declared(kind: Kind, config: Object) -> None:
    """Raise Failure 500 if the configuration has fields that the kind has not: nobody could manage them."""
    unknown: list[str] = []
    scratch = copy.deepcopy(config)
    try:
        if kind.message:
            unknown = checking.prune(kind.message, scratch)
        elif kind.prune is not None:
            unknown = kind.prune(scratch)
    except checking.WrongType:
        # The registry refuses it, in better words.
        return
    if unknown:
        told = [f"{_keyed(path, config, _shape(kind))}: field not declared in schema" for path in unknown]
        listed = told[0] if len(told) == 1 else "errors:\n" + "\n".join(f"  {one}" for one in told)
        raise _untyped(kind, config, listed)


def _keyed(path: str, value: Any, shape: Shape) -> str:
    """A path with the items of lists named by their keys, not by their places."""
    shown = ""
    for index, name in _PART.findall(path):
        if name:
            shown += f".{name}"
            value, shape = value.get(name) if isinstance(value, dict) else None, shape.member(name)
        else:
            value = value[int(index)] if isinstance(value, list) else None
            try:
                shown += f"[{index}]" if shape.whole else _element(value, shape)
            except fieldset.NamelessItem:
                shown += f"[{index}]"
            shape = shape.item
    return shown


def _element(value: Any, shape: Shape) -> str:
    return fieldset.element_shown(fieldset.element_of(value, shape, ()))


def _untyped(kind: Kind, config: Object, why: str) -> status.Failure:
    return status.Failure(500, "", f"failed to create typed patch object ({_named(kind, config)}): {why}")


def _applied(
    kind: Kind, current: Object, live: Object, config: Object, manager: Manager, *, force: bool
) -> tuple[Object, Managed]:
    shape, time = _shape(kind), metadata.now()

    def attempt(forced: bool) -> tuple[Object, Managed]:
        managed = _decoded((current.get("metadata") or {}).get("managedFields"), trusted=True) or Managed()
        if current:
            empty = _empty(kind, current)
            apply.adopt(live, empty, shape, managed, version=kind.api_version, time=time)
        result = apply.apply(live, config, shape, managed, manager=manager, time=time, force=forced)
        return copy.deepcopy(result), managed

    try:
        return attempt(force)
    except apply.Conflicts as conflicts:
        annotations = (live.get("metadata") or {}).get("annotations") or {}
        if manager.name != KUBECTL or LAST_APPLIED not in annotations:
            raise
        beside = conflicts.beside(_allowed(annotations[LAST_APPLIED], live, shape))
        if beside:
            raise apply.Conflicts(beside) from conflicts
    return attempt(True)


def _allowed(annotation: str, live: Object, shape: Shape) -> fieldset.Fields:
    """Fields that kubectl applied from the client's side, and that still have the values it gave them."""
    try:
        applied = _decode(annotation)
        if not isinstance(applied, dict):
            return fieldset.NOTHING
        fields = fieldset.fields_of(applied, shape)
        changed, removed = fieldset.compare(applied, live, shape)
    except (msgspec.DecodeError, fieldset.NamelessItem):
        return fieldset.NOTHING
    return fields - changed - removed


def _json_patch(current: Object, patch: Any) -> Any:
    if isinstance(patch, list) and len(patch) > jsonpatch.OPERATIONS_AT_MOST:
        most = jsonpatch.OPERATIONS_AT_MOST
        why = f"The allowed maximum operations in a JSON patch is {most}, got {len(patch)}"
        raise status.Failure(413, "RequestEntityTooLarge", why)
    try:
        return jsonpatch.apply(current, patch)
    except jsonpatch.BadPatch as error:
        raise status.bad_request(str(error)) from error
    except jsonpatch.PatchFailed as error:
        raise _unprocessable() from error


def _strategic(current: Object, patch: Object, shape: Shape) -> Object:
    try:
        return strategic.merge(current, patch, shape)
    except strategic.BadPatch as error:
        raise status.bad_request(str(error)) from error
    except strategic.BadDirective as error:
        raise _unprocessable() from error
    except strategic.MergeFault as error:
        raise status.Failure(500, "", str(error)) from error


def _unprocessable() -> status.Failure:
    return status.Failure(422, "Invalid", "the server rejected our request due to an error in our request")


def _shape(kind: Kind) -> Shape:
    return kind.shape or merge_keys.shape_of(kind.group, kind.kind)


def _decoded(listed: Any, *, trusted: bool = False) -> Managed | None:
    if not listed:
        return None
    try:
        return Managed.decode(listed, trusted=trusted)
    except ValueError:
        return None


def _bare(obj: Object) -> Object:
    """The object without its managedFields."""
    return {**obj, "metadata": {k: v for k, v in obj["metadata"].items() if k != "managedFields"}}


def _empty(kind: Kind, obj: Object) -> Object:
    """An object of this kind with nothing in it, as Go has it: typed ones have an empty spec and status."""
    empty: Object = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {}}
    if not kind.custom:
        for part in ("spec", "status"):
            if part in obj:
                empty[part] = {}
        if (kind.group, kind.kind) == ("", "Pod") and "spec" in obj:
            empty["spec"] = {"containers": None}
    return empty


def _named(kind: Kind, obj: Object) -> str:
    meta = obj["metadata"]
    where = "/".join(part for part in (meta.get("namespace"), meta.get("name")) if part)
    group = f"{kind.group}/{kind.version}" if kind.group else f"/{kind.version}"
    return f"{where}; {group}, Kind={kind.kind}"


def _last_applied(config: Object) -> str:
    return fieldset.compact(config) + "\n"
