"""Another kernel for tests: Debian's user-mode-linux, unpacked beside the tests and installed nowhere.

It is a program, whose root file system is this machine's, read-only (boot.sh). It has the links that a small
kernel may lack: vlan, ipvlan, dummy, vrf, and the VLAN filter of bridges.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

PACKAGE = "user-mode-linux"
_HERE = Path(__file__).parent
_MODPROBE = """#!/bin/sh
exec /usr/bin/busybox chroot {kernel} /busybox modprobe "$@"
"""


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
) -> int:
    """Run a command in the guest as root; return its exit status. ``timeout`` is in seconds, boot included.

    The command sees this machine's files, and can write ``results`` alone, at /mnt; what it prints is in
    ``results/log``. Raises MachineError if the machine ends without an exit status, or not at all.
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
            machine.wait(timeout)
        except subprocess.TimeoutExpired:
            raise MachineError(f"it did not end within {timeout:.0f} s: {_last_words(results)}") from None
        finally:
            machine.kill()
            machine.wait()
    try:
        return int((results / "status").read_text())
    except (OSError, ValueError):
        raise MachineError(f"it ended without an exit status: {_last_words(results)}") from None


def _last_words(results: Path) -> str:
    for name in ("log", "console"):
        path = results / name
        lines = path.read_text(errors="replace").split("\n") if path.exists() else []
        if any(lines):
            return f"{name}: " + " | ".join([line for line in lines if line][-3:])
    return "it said nothing"


def _run(*command: str, cwd: Path) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    if done.returncode:
        raise MachineError(f"{shlex.join(command)}: {(done.stderr or done.stdout).strip()}")
