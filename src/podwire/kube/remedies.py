"""What helps after an error of a list or a watch."""

from __future__ import annotations

from podwire.kube.errors import (
    ApiError,
    BadAnswer,
    Expired,
    Forbidden,
    InternalError,
    KubeError,
    NotFound,
    ServerTimeout,
    ServiceUnavailable,
    Timeout,
    TooManyRequests,
    Unauthorized,
)


def is_too_old(error: KubeError) -> bool:
    """Whether the version that was asked for is one that the server does not have, any more or yet."""
    return isinstance(error, Expired) or (isinstance(error, ApiError) and error.version_too_large)


def only_waiting_helps(error: KubeError) -> bool:
    """Whether asking for something else would not help: nobody answers, or the server cannot just now."""
    if is_too_old(error):
        return False
    return not isinstance(error, ApiError | BadAnswer) or isinstance(
        error,
        TooManyRequests
        | ServiceUnavailable
        | InternalError
        | ServerTimeout
        | Timeout
        | NotFound
        | Forbidden
        | Unauthorized,
    )
