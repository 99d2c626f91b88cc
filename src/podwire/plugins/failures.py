"""The kernel's refusals as errors of the CNI protocol."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from podwire.cni.errors import CNIError, InvalidNetns
from podwire.kernel import netns
from podwire.kernel.errors import KernelError, NetnsError

KERNEL = 100
"""Our code for what the kernel refused; the message names the operation, the object and the errno."""


@contextmanager
def told(what: str) -> Iterator[None]:
    """Raise the kernel's refusals inside the block as CNI errors; ``what`` says what was being done."""
    try:
        yield
    except NetnsError as error:
        raise InvalidNetns(f"{what}: {error}", _notes(error)) from error
    except KernelError as error:
        raise CNIError(f"{what}: {error}", _notes(error), code=KERNEL) from error


def _notes(error: KernelError) -> str:
    return "; ".join(getattr(error, "__notes__", ()))


@contextmanager
def undoing(error: BaseException) -> Iterator[None]:
    """Undo something after ``error``: a failure of the undoing is told in its notes and goes no further."""
    try:
        yield
    except (CNIError, KernelError) as trouble:
        error.add_note(f"while undoing: {trouble}")


@contextmanager
def undone_on_failure() -> Iterator[list[Callable[[], object]]]:
    """Collect what takes back the steps of the block; if it fails, all of it runs, the last first."""
    steps: list[Callable[[], object]] = []
    try:
        yield steps
    except BaseException as error:
        for step in reversed(steps):
            with undoing(error):
                step()
        raise


def attempt(errors: list[CNIError], what: str, action: Callable[[], object]) -> bool:
    """Do a step of a DEL or GC, which go on past failures: collect its error; True if there was none."""
    try:
        with told(what):
            action()
    except CNIError as error:
        errors.append(error)
        return False
    return True


def mended(check: Callable[[], object], add: Callable[[], object], code: int) -> list[str]:
    """Have an ADD make all again if CHECK fails with ``code``; tell what was missing."""
    try:
        check()
    except CNIError as error:
        if error.code != code:
            raise
        add()
        return [error.msg]
    return []


def open_netns(path: str) -> netns.Netns:
    """Open the container's namespace; InvalidNetns (8) says what is wrong with the path."""
    with told("CNI_NETNS"):
        return netns.open(path)


def open_netns_if_there(path: str) -> netns.Netns | None:
    """Open the container's namespace for a DEL: empty, missing, or no namespace (any more) is ``None``."""
    if not path:
        return None
    try:
        return netns.open(path)
    except NetnsError:
        return None
