"""Failing each step of an operation in turn: what a plugin asks of the kernel or the file system.

``Faults`` counts the steps of an operation; at the chosen one it raises, before the step is done or after. It
fails once: what undoes the operation works.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from podwire.cni.errors import IOFailure
from podwire.ipam.directory import AddressDirectory, Leases
from podwire.ipam.errors import StoreError
from podwire.kernel import net_parameters, sysctl
from podwire.kernel.errors import KernelError
from podwire.kernel.netlink import NetlinkSocket
from podwire.kernel.netns import Netns
from podwire.kernel.nft import Nft
from podwire.plugins.tuning_backup import Store


def _kernel_error(what: str) -> Exception:
    return KernelError(errno.EIO, "injected", what)


def _store_error(what: str) -> Exception:
    return StoreError("injected", what, errno.EIO)


def _backup_error(what: str) -> Exception:
    return IOFailure(f"{what}: Input/output error")


_STEPS: tuple[tuple[Any, str, Callable[[str], Exception]], ...] = (
    (NetlinkSocket, "open", _kernel_error),
    (NetlinkSocket, "send", _kernel_error),
    (NetlinkSocket, "request", _kernel_error),
    (NetlinkSocket, "request_after", _kernel_error),
    (NetlinkSocket, "dump", _kernel_error),
    (Netns, "run", _kernel_error),
    (Nft, "run", _kernel_error),
    (Nft, "write", _kernel_error),
    (sysctl, "read", _kernel_error),
    (sysctl.Kept, "read", _kernel_error),
    (sysctl, "write_all", _kernel_error),
    (AddressDirectory, "locked", _store_error),
    (Leases, "reserve", _store_error),
    (Leases, "release", _store_error),
    (net_parameters, "read", _kernel_error),
    (net_parameters, "write", _kernel_error),
    (Store, "read", _backup_error),
    (Store, "write", _backup_error),
    (Store, "remove", _backup_error),
)


class Faults:
    """The ``step``-th step from now fails, ``after`` it was done or before."""

    def __init__(self, step: int, *, after: bool) -> None:
        self.step = step
        self.after = after
        self.count = 0
        self.failed = ""

    @contextmanager
    def active(self) -> Iterator[None]:
        """Count and fail for the length of a block, in all threads."""
        with pytest.MonkeyPatch.context() as patch:
            for owner, name, error in _STEPS:
                patch.setattr(owner, name, self._wrapped(owner, name, error))
            yield

    def _wrapped(self, owner: Any, name: str, error: Callable[[str], Exception]) -> Any:
        original = owner.__dict__[name]
        bound = isinstance(original, classmethod)
        real: Callable[..., Any] = original.__func__ if bound else original

        def step(*args: Any, **kwargs: Any) -> Any:
            self.count += 1
            if self.count != self.step:
                return real(*args, **kwargs)
            if self.after:
                made = real(*args, **kwargs)
                for each in made if isinstance(made, tuple) else (made,):
                    if hasattr(each, "close"):
                        each.close()
            self.failed = f"{owner.__name__}.{name}"
            raise error(self.failed)

        return classmethod(step) if bound else step
