"""Compiles the shim into the package: hatchling's build hook.

A wheel built with ziglang (which the build requires, so every isolated build has it) holds the shim for each
architecture and fits all. Without it (``--no-isolation``) the system's compiler builds for its own
architecture, and the wheel's tag says so. An editable installation takes the system's compiler if there is
one, and does without a shim where nothing can build it.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


def _builder(root: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("podwire_shim_build", root / "shim" / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class ShimBuildHook(BuildHookInterface[Any]):
    """Puts ``podwire/shim/<architecture>/podwire-shim`` into wheels and beside an editable installation."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build what the target needs."""
        if self.target_name != "wheel":
            return
        shim = _builder(Path(self.root))
        if version == "editable":
            self._editable(shim)
            return
        out = Path(self.root) / "build" / "shim"
        try:
            compilers = {arch: shim.zig(arch) for arch in shim.ARCHES}
        except shim.NoCompiler:
            compilers = {shim.NATIVE: shim.system()}
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-linux_{shim.NATIVE}"
        for arch, compiler in compilers.items():
            shim.compile(out / arch / "podwire-shim", compiler)
            build_data["force_include"][str(out / arch / "podwire-shim")] = (
                f"podwire/shim/{arch}/podwire-shim"
            )

    def _editable(self, shim: ModuleType) -> None:
        try:
            try:
                compiler = shim.system()
            except shim.NoCompiler:
                compiler = shim.zig(shim.NATIVE)
        except shim.NoCompiler as error:
            self.app.display_warning(f"no shim is built: {error}")
            return
        try:
            shim.compile(shim.IN_TREE, compiler)
        except subprocess.CalledProcessError as error:  # e.g. a compiler without a static C library
            self.app.display_warning(f"no shim is built: {error}")
