"""An ADD or a DEL whose steps fail in turn: what a plugin must undo, and what it must be able to complete."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from podwire.cni.errors import CNIError
from podwire.cni.plugin import Result
from podwire.kernel.host import Kernel
from tests.plugins.faults import Faults
from tests.plugins.helpers import Host

MOST = 120


class Tried(NamedTuple):
    """The steps that failed: those that the operation told as an error, and those that it bore."""

    told: list[str]
    borne: list[str]


def add_failing_at_each_step(
    host: Host,
    config: dict[str, Any],
    look: Callable[[], object],
    *,
    after: bool,
    result: Result | None = None,
    tidied: Callable[[], object] = lambda: None,
    fresh: bool = True,
) -> Tried:
    """ADD pod `one` with its first step failing, then its second, until one has no more; that one stays.

    ``look`` tells all that an ADD may touch: a failed one leaves it as it was. An ADD which is whole although
    a step failed, such as one more look at a link, is checked and deleted; ``tidied`` then takes away what a
    DEL leaves. ``fresh``: each ADD opens the kernel anew, so that all have the same steps.
    """
    tried = Tried([], [])
    clean = look()
    for step in range(1, MOST):
        faults = Faults(step, after=after)
        try:
            with _kernel(host, fresh), faults.active():
                made = host.add(config, "one", result=result)
        except CNIError as error:
            assert "Input/output error" in str(error), f"step {step}: {error}"
            assert look() == clean, f"after {faults.failed}, step {step}"
            tried.told.append(faults.failed)
            continue
        host.check(config, "one", made)
        if faults.count < step:
            return tried
        if faults.failed:
            tried.borne.append(faults.failed)
        host.delete(config, "one")
        tidied()
        assert look() == clean, f"after the DEL, step {step} ({faults.failed})"
    raise AssertionError(f"an ADD of {MOST} steps and more")


def delete_failing_at_each_step(
    host: Host,
    config: dict[str, Any],
    look: Callable[[], object],
    *,
    after: bool,
    result: Result | None = None,
) -> Tried:
    """ADD and DEL pod `one`, the DEL's first step failing, then its second, until one has no more.

    The DEL after it leaves all as ``look`` told it after a DEL that went well.
    """
    tried = Tried([], [])
    host.add(config, "one", result=result)
    host.delete(config, "one", result=result)
    clean = look()
    for step in range(1, MOST):
        made = host.add(config, "one", result=result)
        faults = Faults(step, after=after)
        try:
            with faults.active():
                host.delete(config, "one", result=made if result else None)
        except CNIError as error:
            assert "Input/output error" in str(error), f"step {step}: {error}"
            tried.told.append(faults.failed)
        else:
            if faults.failed:
                tried.borne.append(faults.failed)
        host.delete(config, "one", result=made if result else None)
        assert look() == clean, f"after {faults.failed}, step {step}"
        if faults.count < step:
            return tried
    raise AssertionError(f"a DEL of {MOST} steps and more")


@contextmanager
def _kernel(host: Host, fresh: bool) -> Iterator[None]:
    if not fresh:
        yield
        return
    whole = host.kernel
    try:
        with Kernel.open() as host.kernel:
            yield
    finally:
        host.kernel = whole
