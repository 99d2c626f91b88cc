"""Builds the shim: ``python shim/build.py [--out FILE] [--arch ARCH] [--compiler zig|system] [--sanitize]``.

The result is a static program without build paths or times in it: the same bytes every time from the same
compiler. Imported by the package's build hook and by the tests.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ARCHES = ("x86_64", "aarch64")
"""What a wheel has a shim for, as ``uname -m`` calls them."""
NATIVE = platform.machine()
IN_TREE = HERE.parent / "src" / "podwire" / "shim" / NATIVE / "podwire-shim"
"""Where an editable installation finds it."""

_STRICT = (
    *("-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow", "-Wvla", "-Wformat=2"),
    *("-Wstrict-prototypes", "-Wmissing-prototypes", "-Werror"),
)
_SMALL = (
    *("-Os", "-static", "-s", "-fstack-protector-strong", "-ffunction-sections", "-fdata-sections"),
    "-Wl,--gc-sections,--build-id=none,-z,relro,-z,now,-z,noexecstack",
)
_SANITIZED = (
    "-O1",
    "-g",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
    "-fno-omit-frame-pointer",
)


class NoCompiler(Exception):
    """Nothing here can compile a shim; the text says what would."""


def sources() -> list[Path]:
    """The files that it is made of, in an order that is always the same."""
    return sorted(HERE.glob("*.[ch]"))


def zig(arch: str) -> list[str]:
    """PyPI's ziglang as a C compiler for ``arch``; NoCompiler if it is not installed."""
    if importlib.util.find_spec("ziglang") is None:
        raise NoCompiler("the package ziglang is not installed")
    return [sys.executable, "-m", "ziglang", "cc", "-target", f"{arch}-linux-musl", "-fno-sanitize=all"]


def system() -> list[str]:
    """The machine's own compiler, for its own architecture: CC, or musl-gcc, or cc."""
    if given := os.environ.get("CC"):
        return shlex.split(given)
    for name in ("musl-gcc", "cc", "gcc", "clang"):
        if found := shutil.which(name):
            return [found]
    raise NoCompiler("no C compiler: install musl-tools and gcc, or the Python package ziglang")


def compile(target: Path, compiler: list[str], *, sanitize: bool = False) -> None:
    """Write the shim to ``target``, in one step; CalledProcessError if the compiler refuses it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    new = target.with_name(f".{target.name}.{os.getpid()}")
    names = [path.name for path in sources() if path.suffix == ".c"]
    flags = _SANITIZED if sanitize else _SMALL
    try:
        # Run in the sources' directory, by their bare names: no path of this machine gets into the program.
        subprocess.run([*compiler, *_STRICT, *flags, "-o", str(new), *names], cwd=HERE, check=True)
        new.chmod(0o755)
        new.replace(target)
    finally:
        new.unlink(missing_ok=True)


def main() -> int:
    """Build for one architecture."""
    parser = argparse.ArgumentParser(description="Build the shim.")
    parser.add_argument("--out", type=Path, default=IN_TREE)
    parser.add_argument("--arch", choices=ARCHES, default=NATIVE)
    parser.add_argument("--compiler", choices=("zig", "system"), default="system")
    parser.add_argument("--sanitize", action="store_true", help="with AddressSanitizer and UBSan, for tests")
    given = parser.parse_args()
    if given.compiler == "system" and given.arch != NATIVE:
        parser.error(f"the system's compiler builds for {NATIVE} only: --compiler zig")
    try:
        compiler = ["gcc"] if given.sanitize else zig(given.arch) if given.compiler == "zig" else system()
        compile(given.out, compiler, sanitize=given.sanitize)
    except NoCompiler as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        return int(error.returncode)
    return 0


if __name__ == "__main__":
    sys.exit(main())
