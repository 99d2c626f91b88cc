"""Kernel tests get a host of their own: a network and a mount namespace that end with the test.

The whole worker moves into a private mount namespace with an empty ``/run``
and ``/var/lib`` when it starts; each test marked ``kernel`` moves into a new, empty network namespace.
Threads and programs that the test starts inherit both. Nothing of the machine is reached.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.uml import kinds

CLONE_NEWNS = 0x00020000
CLONE_NEWNET = 0x40000000
ROOT = os.geteuid() == 0
LEAVE_SECONDS = 3.0
"""How long what a test has ended may take to be gone."""

_libc = ctypes.CDLL(None, use_errno=True)
_counts = {"ran": 0, "skipped": 0}
_lacking: dict[str, int] = {}
"""What this kernel lacks, and how many tests were deselected for it."""

# How long an example takes says how busy the machine is, and nothing of what is tested.
settings.register_profile("podwire", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("podwire")


def _check(result: int, what: str) -> None:
    if result != 0:
        errno = ctypes.get_errno()
        raise OSError(errno, f"{what}: {os.strerror(errno)}")


def unshare(flags: int) -> None:
    """Move the calling thread into new namespaces (``CLONE_NEW*``)."""
    _check(_libc.unshare(flags), "unshare")


def setns(fd: int, flags: int) -> None:
    """Move the calling thread into the namespace that ``fd`` names."""
    _check(_libc.setns(fd, flags), "setns")


def pytest_configure(config: pytest.Config) -> None:
    if not ROOT or (config.getoption("numprocesses", default=None) and not hasattr(config, "workerinput")):
        return
    unshare(CLONE_NEWNS | CLONE_NEWNET)
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    for directory in ("/run", "/var/lib"):
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", directory], check=True)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    _deselect_what_the_kernel_lacks(config, items)
    items[:] = [item for number, item in enumerate(items) if kinds.share(number)]
    if not ROOT:
        for item in items:
            if item.get_closest_marker("kernel"):
                item.add_marker(pytest.mark.skip(reason="needs root: makes network namespaces"))


def _deselect_what_the_kernel_lacks(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests marked ``other_kernel(KIND...)`` of kinds of links that are not there.

    `make test-kernel` runs them on a kernel that has all kinds; there they are not left out but fail.
    """
    if not ROOT or kinds.in_machine():
        return
    left_out: list[pytest.Item] = []
    for item in items:
        wanted = [kind for mark in item.iter_markers("other_kernel") for kind in mark.args]
        lacking = [kind for kind in wanted if kinds.lacks(kind)]
        if lacking:
            left_out.append(item)
            _lacking[lacking[0]] = _lacking.get(lacking[0], 0) + 1
    if left_out:
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=left_out)


def pytest_sessionfinish(session: pytest.Session) -> None:
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["lacking"] = _lacking


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object) -> None:
    # Every worker has collected, and left out, the same tests.
    _lacking.update(getattr(node, "workeroutput", {}).get("lacking", {}))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    if not item.get_closest_marker("kernel"):
        return
    report.user_properties.append(("kernel", True))
    if report.skipped and ROOT:
        report.outcome = "failed"
        report.longrepr = f"kernel test skipped although root is here: {report.longrepr}"


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if dict(report.user_properties).get("kernel"):
        if report.when == "call":
            _counts["ran"] += 1
        elif report.skipped:
            _counts["skipped"] += 1


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    who = "root" if ROOT else "not root"
    terminalreporter.write_line(f"kernel tests: {_counts['ran']} run, {_counts['skipped']} skipped ({who})")
    if _lacking:
        told = ", ".join(f"{number} for {kind}" for kind, number in sorted(_lacking.items()))
        terminalreporter.write_line(
            f"left to make test-kernel, links that are lacking here: {sum(_lacking.values())} tests ({told})"
        )


def _started_here() -> dict[int, str]:
    """Processes that this worker's tests started and that still run: PID and what is known of each.

    Only they see its ``/run``: whatever starts them, and however they cut themselves off, they inherit its
    mounts.
    """
    own = os.stat("/run").st_dev  # noqa: PTH116
    found = {}
    for name in os.listdir("/proc"):  # noqa: PTH208
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            if os.stat(f"/proc/{name}/root/run").st_dev != own:  # noqa: PTH116
                continue
            words = Path("/proc", name, "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            mounts = Path("/proc", name, "mountinfo").read_text().splitlines()
        except OSError:  # it has ended
            continue
        places = [line.split(" ")[3] for line in mounts if "/sandboxes/" in line]
        found[int(name)] = f"{words[:200]!r} {' '.join(places)}"
    return found


@pytest.fixture(scope="session", autouse=True)
def _nothing_is_left_running() -> Iterator[None]:
    """At the end of a worker, no program runs on that its tests started."""
    yield
    if not ROOT:
        return
    until = time.monotonic() + LEAVE_SECONDS
    while (left := _started_here()) and time.monotonic() < until:
        time.sleep(0.05)
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if left:
        told = "\n".join(f"{pid}: {words}" for pid, words in left.items())
        pytest.fail(f"tests left these processes running (they are killed now):\n{told}")


@pytest.fixture(autouse=True)
def _own_network(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.node.get_closest_marker("kernel") is None:
        yield
        return
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        unshare(CLONE_NEWNET)
        # A new namespace forwards IPv4 where the machine does, as one with containers does.
        Path("/proc/sys/net/ipv4/ip_forward").write_text("0")
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        yield
    finally:
        setns(before, CLONE_NEWNET)
        os.close(before)
