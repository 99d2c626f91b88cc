"""What can be wrong: with a manifest (file, line, field, value), a configuration, an answer of an API.

Errors of an API follow the reason of its Status, never its text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from podwire.kube.apistatus import RESOURCE_VERSION_TOO_LARGE, Status, StatusDetails


def printable(text: str) -> str:
    """The text on one line, what cannot be shown as escapes."""
    return text if text.isprintable() else text.encode("unicode_escape").decode()


@dataclass(frozen=True, slots=True)
class FieldError:
    """One fault. ``field`` is a path such as ``spec.containers[0].image``, empty for the whole file.

    ``line`` and ``column`` count from 1; None where the text has no such place. ``value`` is the value as
    written, shortened, empty where there is none.
    """

    file: str
    line: int | None
    column: int | None
    field: str
    value: str
    message: str

    def __post_init__(self) -> None:
        for name in ("field", "value", "message"):
            object.__setattr__(self, name, printable(getattr(self, name)))

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.file, self.line, self.column) if part not in (None, ""))
        return ": ".join(part for part in (place, self.text) if part)

    @property
    def text(self) -> str:
        """Field, value and message, without the place."""
        return ": ".join(part for part in (self.field, self.value, self.message) if part)


class ManifestError(Exception):
    """A manifest that cannot be used. ``errors`` holds every fault found, in the order of the text.

    ``reason`` is FailedParse (not YAML, not a Pod) or FailedValidation (a Pod that breaks a rule).
    """

    def __init__(self, reason: str, errors: Sequence[FieldError], pod: str = "") -> None:
        super().__init__("\n".join(str(error) for error in errors))
        self.reason = reason
        self.errors = tuple(errors)
        self.pod = pod

    @property
    def file(self) -> str:
        """The file, as it was named to the reader."""
        return self.errors[0].file

    @property
    def line(self) -> int | None:
        """The line of the first fault."""
        return self.errors[0].line


class KubeError(Exception):
    """What goes wrong between a client and an API server."""


class ConfigError(KubeError):
    """A configuration that cannot be used. ``file`` and ``field`` name the place, empty where none is."""

    def __init__(self, message: str, *, file: str = "", field: str = "") -> None:
        super().__init__(": ".join(part for part in (file, field, message) if part))
        self.file = file
        self.field = field
        self.message = message


class CredentialError(KubeError):
    """Credentials that could not be had: a program that failed, a token file that is not there."""


class ConnectionFailed(KubeError):
    """No answer came. ``sent`` is False where the request certainly never reached a server."""

    sent = True

    def __init__(self, message: str, cause: BaseException | None = None) -> None:
        super().__init__(message)
        self.cause = cause


class ConnectionRefused(ConnectionFailed):
    """Nobody listens there (ECONNREFUSED, or no such socket)."""

    sent = False


class ConnectFailed(ConnectionFailed):
    """No connection came about for another reason: name, route, TLS, proxy."""

    sent = False


class DeadlinePassed(ConnectionFailed):
    """The answer was not complete within the time given for the call."""


class ConnectionDead(ConnectionFailed):
    """A connection that was silent and whose server does not answer a ping either."""


class BadAnswer(KubeError):
    """An answer that is not what the API has: another content type, cut off, not JSON, another kind."""


class ApiError(KubeError):
    """A Status with ``status: Failure``. Subclasses are by reason; the plain class is for all other reasons.

    ``retry_after`` is in seconds, from the header Retry-After or from the details; None where neither is
    there.
    """

    def __init__(self, status: Status, *, retry_after: float | None = None) -> None:
        super().__init__(status.message or status.reason or f"HTTP status {status.code}")
        self.status = status
        if retry_after is None and status.details is not None and status.details.retry_after_seconds:
            retry_after = float(status.details.retry_after_seconds)
        self.retry_after = retry_after

    @property
    def reason(self) -> str:
        """metav1.StatusReason, empty where the server gave none."""
        return self.status.reason

    @property
    def code(self) -> int:
        """The HTTP status."""
        return self.status.code

    @property
    def message(self) -> str:
        """The server's words, for people."""
        return self.status.message

    @property
    def details(self) -> StatusDetails | None:
        """Which object and which fields."""
        return self.status.details

    @property
    def version_too_large(self) -> bool:
        """Whether the server has not reached the version that was asked for."""
        return self.status.has_cause(RESOURCE_VERSION_TOO_LARGE)


class BadRequest(ApiError):
    """400: the request makes no sense to the server."""


class Unauthorized(ApiError):
    """401: the server does not know who asks."""


class Forbidden(ApiError):
    """403: who asks may not do that."""


class NotFound(ApiError):
    """404: no such object, or no such resource."""


class MethodNotAllowed(ApiError):
    """405."""


class NotAcceptable(ApiError):
    """406: none of the content types asked for."""


class AlreadyExists(ApiError):
    """409 on a create: the name is taken."""


class Conflict(ApiError):
    """409: the object has changed since it was read, or a precondition does not hold."""


class Expired(ApiError):
    """410, reasons Expired and Gone: the resource version or continue token is too old."""


class UnsupportedMediaType(ApiError):
    """415: a content type that the server does not take, such as a kind of patch."""


class Invalid(ApiError):
    """422: the object breaks rules; ``details.causes`` name the fields."""


class TooManyRequests(ApiError):
    """429: later, see ``retry_after``."""


class InternalError(ApiError):
    """500."""


class ServiceUnavailable(ApiError):
    """503."""


class Timeout(ApiError):
    """504 with reason Timeout: not done within the time that the request had."""


class ServerTimeout(ApiError):
    """The server could not do it in time, and asks to try again (reason ServerTimeout, 500 or 504)."""


_BY_REASON: dict[str, type[ApiError]] = {
    "BadRequest": BadRequest,
    "Unauthorized": Unauthorized,
    "Forbidden": Forbidden,
    "NotFound": NotFound,
    "MethodNotAllowed": MethodNotAllowed,
    "NotAcceptable": NotAcceptable,
    "AlreadyExists": AlreadyExists,
    "Conflict": Conflict,
    "Gone": Expired,
    "Expired": Expired,
    "UnsupportedMediaType": UnsupportedMediaType,
    "Invalid": Invalid,
    "TooManyRequests": TooManyRequests,
    "InternalError": InternalError,
    "ServiceUnavailable": ServiceUnavailable,
    "Timeout": Timeout,
    "ServerTimeout": ServerTimeout,
}
_BY_CODE: dict[int, type[ApiError]] = {
    400: BadRequest,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    405: MethodNotAllowed,
    406: NotAcceptable,
    409: Conflict,
    410: Expired,
    415: UnsupportedMediaType,
    422: Invalid,
    429: TooManyRequests,
    500: InternalError,
    503: ServiceUnavailable,
    504: Timeout,
}


def api_error(status: Status, retry_after: float | None = None) -> ApiError:
    """The error for a Status: by its reason, else by its code."""
    kind = _BY_REASON.get(status.reason) or _BY_CODE.get(status.code, ApiError)
    return kind(status, retry_after=retry_after)
