"""The error tree of this package: each keeps its errno, what was done, to what, and the kernel's text."""

from __future__ import annotations

import errno as _errno
import os


class KernelError(Exception):
    """The kernel refused ``operation`` on ``subject``.

    ``errno`` is the positive error number and ``detail`` the kernel's extended acknowledgement
    (NLMSGERR_ATTR_MSG) or whatever else is known, ``""`` if nothing is.
    """

    def __init__(self, errno: int, operation: str, subject: str, detail: str = "") -> None:
        super().__init__(errno, operation, subject, detail)
        self.errno = errno
        self.operation = operation
        self.subject = subject
        self.detail = detail

    def __str__(self) -> str:
        name = _errno.errorcode.get(self.errno, str(self.errno))
        text = f"{self.operation} {self.subject}: {os.strerror(self.errno)} ({name})"
        return f"{text}: {self.detail}" if self.detail else text


class InvalidValue(KernelError, ValueError):
    """A value that no kernel would take, refused before it is sent: ``subject`` names it, errno is EINVAL."""

    def __init__(self, subject: str, detail: str) -> None:
        super().__init__(_errno.EINVAL, "encode", subject, detail)

    def __str__(self) -> str:
        return f"{self.subject}: {self.detail}"

    def __reduce__(self) -> tuple[type[InvalidValue], tuple[str, str]]:
        return InvalidValue, (self.subject, self.detail)


class MalformedReply(KernelError):
    """Bytes that are not what netlink promises: ``subject`` names the table or header, errno is EBADMSG."""

    def __init__(self, subject: str, detail: str) -> None:
        super().__init__(_errno.EBADMSG, "decode", subject, detail)

    def __reduce__(self) -> tuple[type[MalformedReply], tuple[str, str]]:
        return MalformedReply, (self.subject, self.detail)


class NetnsError(KernelError):
    """A network namespace could not be opened, entered, made or removed; ``subject`` is its path."""


class NetnsMissing(NetnsError):
    """Nothing is at the path: the namespace is gone, or never was."""


class NotANetns(NetnsError):
    """Something is at the path, but it is no network namespace."""
