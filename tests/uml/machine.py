"""Another kernel for tests: Debian's user-mode-linux, unpacked beside the tests and installed nowhere.

It is a program, whose root file system is this machine's, read-only (boot.sh). It has the links that a small
kernel may lack: vlan, ipvlan, dummy, vrf, and the VLAN filter of bridges.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

PACKAGE = "user-mode-linux"
_HERE = Path(__file__).parent
_MODPROBE = """#!/bin/sh
exec /usr/bin/busybox chroot {kernel} /busybox modprobe "$@"
"""


BOOT_SECONDS = 60.0
"""How long the machine may take until it runs the command: 2 s, and 5 s on a machine with much else to do."""
FETCH_SECONDS = 120.0
"""How long one step of fetching the kernel may take."""
_COMMAND = "command"
_TICK = 0.1


class MachineError(Exception):
    """The machine could not be fetched, did not start, or ended without an exit status."""


def fetch(cache: Path) -> Path:
    """Return the directory of the unpacked kernel below ``cache``; downloads it the first time.

    Raises MachineError with the words of apt-get or dpkg.
    """
    kernel = cache / "uml"
    if (kernel / "modprobe").exists():
        return kernel
    shutil.rmtree(cache, ignore_errors=True)
    cache.mkdir(parents=True)
    try:
        _run("apt-get", "download", "-qq", PACKAGE, cwd=cache)
    except MachineError:  # the lists of packages may be missing or old
        _run("apt-get", "update", "-qq", cwd=cache)
        _run("apt-get", "download", "-qq", PACKAGE, cwd=cache)
    [package] = cache.glob(f"{PACKAGE}_*.deb")
    _run("dpkg", "-x", package.name, "uml", cwd=cache)
    package.unlink()
    (kernel / "proc").mkdir()
    (kernel / "lib").mkdir()
    (kernel / "lib/modules").symlink_to("../usr/lib/uml/modules")
    busybox = shutil.which("busybox")
    if busybox is None:
        raise MachineError("busybox is missing (Debian package busybox-static): it loads the guest's modules")
    shutil.copy(busybox, kernel / "busybox")
    modprobe = kernel / "modprobe.new"
    modprobe.write_text(_MODPROBE.format(kernel=shlex.quote(str(kernel))))
    modprobe.chmod(0o755)
    modprobe.rename(kernel / "modprobe")
    return kernel


def run(
    kernel: Path,
    command: Sequence[str],
    results: Path,
    *,
    directory: Path,
    environment: Mapping[str, str],
    timeout: float,
    boot_timeout: float = BOOT_SECONDS,
) -> int:
    """Run a command in the guest as root; return its exit status. ``timeout`` is in seconds, boot included.

    The command sees this machine's files, and can write ``results`` alone, at /mnt; what it prints is in
    ``results/log``. Raises MachineError if the machine ends without an exit status, or not at all, or if the
    command is not reached within ``boot_timeout``: that tells how far the boot came, with what it printed.
    """
    shutil.rmtree(results, ignore_errors=True)
    results.mkdir(parents=True)
    exports = [f"export {name}={shlex.quote(value)}\n" for name, value in environment.items()]
    place = shlex.quote(str(directory))
    (results / "command").write_text(f"cd {place}\n{''.join(exports)}exec {shlex.join(command)}\n")
    # Its processes are a PID namespace, which ends with this process, whatever ends that.
    alone = ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--mount-proc", "--kill-child"]
    boot = [*alone, str(_HERE / "boot.sh"), str(kernel), str(results), str(_HERE / "init.sh")]
    with (results / "console").open("wb") as console:
        machine = subprocess.Popen(boot, stdout=console, stderr=console)
        try:
            _await(machine, results, timeout, min(boot_timeout, timeout))
        finally:
            machine.kill()
            machine.wait()
    try:
        return int((results / "status").read_text())
    except (OSError, ValueError):
        raise MachineError(f"it ended without an exit status, at: {_where(results)}") from None


def _await(machine: subprocess.Popen[bytes], results: Path, timeout: float, boot_timeout: float) -> None:
    begin = time.monotonic()
    booted = False
    while machine.poll() is None:
        seconds = time.monotonic() - begin
        booted = booted or _COMMAND in _stages(results)
        if not booted and seconds > boot_timeout:
            raise MachineError(
                f"it did not boot within {boot_timeout:.0f} s, it is at: {_where(results)};"
                f" its processes: {_processes(machine.pid)}"
            )
        if seconds > timeout:
            raise MachineError(f"it did not end within {timeout:.0f} s, it is at: {_where(results)}")
        with suppress(subprocess.TimeoutExpired):
            machine.wait(_TICK)


def _stages(results: Path) -> list[str]:
    """How far the guest's first program has come; the last is what it is at."""
    try:
        return (results / "stages").read_text().splitlines()
    except FileNotFoundError:
        return []


def at(results: Path) -> str:
    """Tell in one line what a machine is at."""
    stages = _stages(results)
    if _COMMAND in stages:
        return f"{stages[-1]}; {_last_words(results / 'log', 1)}"
    return f"{stages[-1] if stages else 'the boot'}; {_last_words(results / 'console', 1)}"


def _where(results: Path) -> str:
    stages = _stages(results)
    if _COMMAND in stages:
        return f"{stages[-1]}; {_last_words(results / 'log', 3)}; {_last_words(results / 'console', 3)}"
    console = (results / "console").read_text(errors="replace")
    return f"{stages[-1] if stages else 'the boot'}; its console:\n{console}"


def _processes(pid: int) -> str:
    """What the machine's processes wait for, as the kernel of this machine tells it."""
    told = []
    for one in [pid, *_children(pid)]:
        place = Path("/proc", str(one))
        with suppress(OSError):
            state = (place / "stat").read_text().rpartition(")")[2].split()[0]
            told.append(f"{one} {state} {(place / 'wchan').read_text()} {(place / 'stack').read_text()!r}")
    return "; ".join(told)


def _children(pid: int) -> Iterator[int]:
    with suppress(OSError):
        for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            yield int(one)
            yield from _children(int(one))


def _last_words(path: Path, count: int) -> str:
    text = path.read_text(errors="replace") if path.exists() else ""
    said = [line for line in text.splitlines() if line][-count:]
    return f"{path.name}: {' | '.join(said)}" if said else f"its {path.name} is empty"


def _run(*command: str, cwd: Path) -> None:
    try:
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=FETCH_SECONDS)
    except subprocess.TimeoutExpired:
        raise MachineError(f"{shlex.join(command)}: did not end within {FETCH_SECONDS:g} s") from None
    if done.returncode:
        raise MachineError(f"{shlex.join(command)}: {(done.stderr or done.stdout).strip()}")
