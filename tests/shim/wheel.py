"""What is inside of a wheel: ``python -m tests.shim.wheel DIRECTORY`` checks the one there."""

from __future__ import annotations

import json
import os
import platform
import shutil
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

MACHINES = {"x86_64": 62, "aarch64": 183}
"""e_machine of each architecture (elf.h)."""
_PT_INTERP, _PT_DYNAMIC, _PT_GNU_STACK, _PF_X = 3, 2, 0x6474E551, 1
_LARGEST = 40_000


def shims(wheel: Path) -> dict[str, bytes]:
    """The shims of a wheel by architecture; each has its executable bits."""
    found = {}
    with zipfile.ZipFile(wheel) as archive:
        for entry in archive.infolist():
            if entry.filename.endswith("/podwire-shim"):
                assert entry.external_attr >> 16 & 0o111 == 0o111, entry
                found[Path(entry.filename).parent.name] = archive.read(entry)
    return found


def check_program(data: bytes, arch: str, largest: int = _LARGEST) -> None:
    """An ELF program of the architecture that needs nothing, is small, and has no executable stack."""
    assert data[:6] == b"\x7fELF\x02\x01", data[:6]
    assert struct.unpack_from("<H", data, 18)[0] == MACHINES[arch]
    (offset,) = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    headers = [struct.unpack_from("<II", data, offset + size * n) for n in range(count)]
    kinds = {kind for kind, _ in headers}
    assert not kinds & {_PT_INTERP, _PT_DYNAMIC}, f"not static: {kinds}"
    assert [flags & _PF_X for kind, flags in headers if kind == _PT_GNU_STACK] == [0]
    assert len(data) <= largest, len(data)
    for path in (str(Path.home()), os.getcwd(), "/tmp/"):  # noqa: PTH109
        assert path.encode() not in data


def call(program: list[str], environ: Mapping[str, str]) -> dict[str, object]:
    """What the program says without an agent."""
    done = subprocess.run(
        program,
        env={**environ, "CNI_COMMAND": "ADD", "PODWIRE_TIMEOUT": "0.05"},
        input=b"",
        capture_output=True,
    )
    assert done.returncode == 1, done
    found: dict[str, object] = json.loads(done.stdout)
    return found


def main(directory: Path) -> None:
    """Check the one wheel in a directory: both architectures, small, static, run where that can be."""
    (wheel,) = directory.glob("podwire-*.whl")
    assert wheel.name.endswith("-py3-none-any.whl"), wheel
    found = shims(wheel)
    assert found.keys() == MACHINES.keys(), found.keys()
    with tempfile.TemporaryDirectory() as home:
        for arch, data in found.items():
            check_program(data, arch)
            program = Path(home) / arch
            program.write_bytes(data)
            program.chmod(0o755)
            emulator = [] if arch == platform.machine() else [f"qemu-{arch}"]
            ran = not emulator or shutil.which(emulator[0]) is not None
            if ran:
                said = call([*emulator, str(program)], {"PODWIRE_SOCKET": "/nowhere"})
                assert said["code"] == 11, said
            print(f"{wheel.name}: {arch}: {len(data)} bytes, static{', runs' if ran else ''}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
