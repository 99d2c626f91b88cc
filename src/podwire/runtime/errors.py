"""What can go wrong below the runtime interface, as one typed error."""

from __future__ import annotations

import enum


class Code(enum.StrEnum):
    """The gRPC status codes that CRI runtimes answer with."""

    INVALID_ARGUMENT = "InvalidArgument"
    NOT_FOUND = "NotFound"
    ALREADY_EXISTS = "AlreadyExists"
    FAILED_PRECONDITION = "FailedPrecondition"
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    UNAVAILABLE = "Unavailable"
    UNIMPLEMENTED = "Unimplemented"
    INTERNAL = "Internal"


class RuntimeFault(Exception):
    """A runtime request that failed: the gRPC-like ``code``, what it was about, and the cause.

    The cause (a CNI error, a kernel error, an OSError) is also ``__cause__``.
    """

    def __init__(self, code: Code, subject: str, message: str) -> None:
        super().__init__(f"{subject}: {message}" if subject else message)
        self.code = code
        self.subject = subject
        self.message = message
