"""What owns sockets, descriptors or threads is closed at the end of its ``with`` block."""

from __future__ import annotations

from types import TracebackType
from typing import Self


class ClosedAtEnd:
    """A context manager that is itself the value and whose end is :meth:`close`."""

    __slots__ = ()

    def close(self) -> None:
        """Let go of what is owned; more than once does nothing."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
