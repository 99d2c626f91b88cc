"""Failures of a request, as the Status objects that kube-apiserver answers with, word for word.

Source: k8s.io/apimachinery/pkg/api/errors/errors.go and k8s.io/apimachinery/pkg/util/validation/field.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

Object = dict[str, Any]

MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"
_NO_SUCH = "the server could not find the requested resource"


class Cause(NamedTuple):
    """metav1.StatusCause: one field that is wrong, and how."""

    reason: str
    message: str
    field: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


class Failure(Exception):
    """A request that failed. ``body`` is the Status, ``code`` the HTTP status."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        *,
        name: str = "",
        group: str = "",
        kind: str = "",
        uid: str = "",
        causes: Sequence[Cause] = (),
        retry_after: int = 0,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.retry_after = retry_after
        details: Object = {
            "name": name,
            "group": group,
            "kind": kind,
            "uid": uid,
            "causes": [
                {k: v for k, v in (("reason", c.reason), ("message", c.message), ("field", c.field)) if v}
                for c in causes
            ],
            "retryAfterSeconds": retry_after,
        }
        details = {key: value for key, value in details.items() if value}
        self.body: Object = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": message,
            "reason": reason,
            **({"details": details} if details else {}),
            "code": code,
        }
        if not reason:
            del self.body["reason"]


def resource(group: str, plural: str) -> str:
    """The name of a resource in messages: ``pods``, ``leases.coordination.k8s.io``."""
    return f"{plural}.{group}" if group else plural


def not_found(group: str, plural: str, name: str) -> Failure:
    """404 of an object."""
    message = f"{resource(group, plural)} {quoted(name)} not found"
    return Failure(404, "NotFound", message, name=name, group=group, kind=plural)


def no_such_path() -> Failure:
    """404 of a path that is not served."""
    return Failure(404, "NotFound", _NO_SUCH)


def not_served(group: str, plural: str, what: str) -> Failure:
    """404 of a resource, or a part of one, that is not served; ``what`` says so to a person.

    It has details, as one that client-go makes of a text: kubectl debug looks into them unasked.
    """
    return Failure(404, "NotFound", f"{_NO_SUCH}: {what}", group=group, kind=plural)


def already_exists(group: str, plural: str, name: str) -> Failure:
    """409 of a create."""
    message = f"{resource(group, plural)} {quoted(name)} already exists"
    return Failure(409, "AlreadyExists", message, name=name, group=group, kind=plural)


def generate_name_conflict(group: str, plural: str, name: str) -> Failure:
    """409 of a create by generateName whose name was taken."""
    message = (
        f"{resource(group, plural)} {quoted(name)} already exists, the server was not able to generate a"
        " unique name for the object"
    )
    return Failure(409, "AlreadyExists", message, name=name, group=group, kind=plural)


def conflict(group: str, plural: str, name: str, why: str = MODIFIED) -> Failure:
    """409 of an update or a precondition."""
    message = f"Operation cannot be fulfilled on {resource(group, plural)} {quoted(name)}: {why}"
    return Failure(409, "Conflict", message, name=name, group=group, kind=plural)


def invalid(group: str, kind: str, name: str, causes: Sequence[Cause]) -> Failure:
    """422: the object breaks rules."""
    causes = list(dict.fromkeys(causes))
    told = ", ".join(str(cause) for cause in causes)
    message = f"{resource(group, kind)} {quoted(name)} is invalid"
    if causes:
        message += f": [{told}]" if len(causes) > 1 else f": {told}"
    return Failure(422, "Invalid", message, name=name, group=group, kind=kind, causes=causes)


def bad_request(message: str) -> Failure:
    """400."""
    return Failure(400, "BadRequest", message)


def cannot_handle(kind: str, version: str, why: str) -> Failure:
    """400 of an object that cannot be decoded."""
    return bad_request(f"{kind} in version {quoted(version)} cannot be handled as a {kind}: {why}")


def forbidden(group: str, plural: str, name: str, why: str, causes: Sequence[Cause] = ()) -> Failure:
    """403."""
    message = f"{resource(group, plural)} {quoted(name)} is forbidden: {why}"
    return Failure(403, "Forbidden", message, name=name, group=group, kind=plural, causes=causes)


def unauthorized() -> Failure:
    """401."""
    return Failure(401, "Unauthorized", "Unauthorized")


def method_not_allowed(group: str, plural: str, verb: str) -> Failure:
    """405."""
    message = f"{verb} is not supported on resources of kind {quoted(resource(group, plural))}"
    return Failure(405, "MethodNotAllowed", message, group=group, kind=plural)


def expired(message: str) -> Failure:
    """410."""
    return Failure(410, "Expired", message)


def too_old(revision: int, oldest: int) -> Failure:
    """410 of a resourceVersion."""
    return expired(f"too old resource version: {revision} ({oldest})")


def too_large(revision: int, current: int) -> Failure:
    """504 of a resourceVersion that was not reached."""
    return Failure(
        504,
        "Timeout",
        f"Timeout: Too large resource version: {revision}, current: {current}",
        causes=[Cause("ResourceVersionTooLarge", "Too large resource version", "")],
        retry_after=1,
    )


def unsupported_media_type(accepted: Iterable[str]) -> Failure:
    """415."""
    message = "the body of the request was in an unknown format - accepted media types include: " + ", ".join(
        accepted
    )
    return Failure(415, "UnsupportedMediaType", message)


def not_acceptable(accepted: Iterable[str]) -> Failure:
    """406."""
    message = "only the following media types are accepted: " + ", ".join(accepted)
    return Failure(406, "NotAcceptable", message)


def too_many_requests(message: str, *, retry_after: int = 0, causes: Sequence[Cause] = ()) -> Failure:
    """429."""
    return Failure(429, "TooManyRequests", message, retry_after=retry_after, causes=causes)


def internal_error(why: str) -> Failure:
    """500."""
    return Failure(500, "InternalError", f"Internal error occurred: {why}", causes=[Cause("", why, "")])


def unavailable(message: str) -> Failure:
    """503."""
    return Failure(503, "ServiceUnavailable", message)


def success(*, name: str, group: str, kind: str, uid: str) -> Object:
    """The Status of a deletion that is done."""
    details = {"name": name, "group": group, "kind": kind, "uid": uid}
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": {key: value for key, value in details.items() if value},
    }


def quoted(text: str) -> str:
    """Text as Go's %q writes it."""
    return json.dumps(text, ensure_ascii=False)


def _shown(value: object) -> str:
    if isinstance(value, str):
        return quoted(value)
    if value is None:
        return "null"
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def required(field: str, detail: str = "") -> Cause:
    """A field that must be there."""
    return Cause("FieldValueRequired", "Required value" + (f": {detail}" if detail else ""), field)


def invalid_value(field: str, value: object, detail: str) -> Cause:
    """A value that is not allowed."""
    return Cause("FieldValueInvalid", f"Invalid value: {_shown(value)}: {detail}", field)


def type_invalid(field: str, value: object, detail: str) -> Cause:
    """A value of the wrong type."""
    return Cause("FieldValueTypeInvalid", f"Invalid value: {_shown(value)}: {detail}", field)


def not_supported(field: str, value: object, supported: Iterable[str]) -> Cause:
    """A value that is none of those known."""
    known = ", ".join(quoted(one) for one in supported)
    return Cause(
        "FieldValueNotSupported", f"Unsupported value: {_shown(value)}: supported values: {known}", field
    )


def duplicate(field: str, value: object) -> Cause:
    """A value that must be unique and is not."""
    return Cause("FieldValueDuplicate", f"Duplicate value: {_shown(value)}", field)


def forbidden_field(field: str, detail: str) -> Cause:
    """A field that must not be set, or changed."""
    return Cause("FieldValueForbidden", f"Forbidden: {detail}", field)


def too_long(field: str, most: int) -> Cause:
    """A value that is too long, in bytes."""
    return Cause("FieldValueTooLong", f"Too long: may not be more than {most} bytes", field)


def too_many(field: str, actual: int, most: int) -> Cause:
    """A list or mapping with too many members."""
    return Cause("FieldValueTooMany", f"Too many: {actual}: must have at most {most} items", field)


def missing(field: str, value: object) -> Cause:
    """A value that names something that does not exist."""
    return Cause("FieldValueNotFound", f"Not found: {_shown(value)}", field)
