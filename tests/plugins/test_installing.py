"""Files put in place together: all or none, ours known by what is inside, somebody else's put back."""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from podwire.plugins import TYPES, installing, launchers, shims
from podwire.plugins.installing import File, is_our_program
from tests.shim.helpers import ROOT, in_tree

SOCKET = Path("/run/podwire/agent.sock")
NAMES = set(TYPES)


@pytest.fixture(scope="module", autouse=True)
def _shim() -> None:
    in_tree()


def files(directory: Path, socket: Path = SOCKET, *, standalone: bool = True) -> tuple[File, ...]:
    return installing.programs(directory, socket, standalone=standalone)


def install(directory: Path, **options: Any) -> dict[str, str]:
    force = options.pop("force", False)
    unwanted = options.pop("unwanted", ())
    found = installing.install(
        directory, files(directory, **options), is_our_program, force=force, unwanted=unwanted
    )
    return {change.path.name: change.action for change in found}


def uninstall(directory: Path) -> dict[str, str]:
    found = installing.uninstall(directory, installing.names_of_ours(directory), is_our_program)
    return {change.path.name: change.action for change in found}


def contents(directory: Path) -> dict[str, tuple[object, ...]]:
    """All that is in a directory, hidden files too, with modes, contents and what links say."""
    found: dict[str, tuple[object, ...]] = {}
    if not directory.exists():
        return {"": ("missing",)}
    for path in directory.iterdir():
        status = path.lstat()
        if stat.S_ISLNK(status.st_mode):
            found[path.name] = (path.readlink(),)
        else:
            found[path.name] = (status.st_mode, path.read_bytes() if path.is_file() else "directory")
    return found


def foreign(path: Path, kind: str) -> None:
    if kind == "file":
        path.write_bytes(b"\x7fELF\x00\xff theirs")
        path.chmod(0o750)
    elif kind == "directory":
        path.mkdir()
    elif kind == "script":
        path.write_text("#!/bin/sh\n# podwire plugin launchers are not this\n")
    else:
        path.symlink_to("/bin/sh" if kind == "link" else "/nowhere")


def test_every_plugin_has_a_program_and_all_are_one_file(tmp_path: Path) -> None:
    home = tmp_path / "opt" / "cni" / "bin"
    assert install(home) == dict.fromkeys({*NAMES, "podwire-standalone"}, "made")
    assert set(contents(home)) == {*NAMES, "podwire-standalone"}
    assert len({(home / name).stat().st_ino for name in NAMES}) == 1
    assert (home / "bridge").stat().st_nlink == len(NAMES)
    assert {stat.S_IMODE(path.stat().st_mode) for path in home.iterdir()} == {0o755}
    assert all(is_our_program(path) for path in home.iterdir())


def test_again_changes_nothing_and_a_newer_one_replaces(tmp_path: Path) -> None:
    install(tmp_path)
    before = {path: path.stat().st_ino for path in tmp_path.iterdir()}
    assert set(install(tmp_path).values()) == {"unchanged"}
    assert {path: path.stat().st_ino for path in tmp_path.iterdir()} == before
    (tmp_path / "bridge").unlink()
    (tmp_path / "portmap").chmod(0o644)
    assert install(tmp_path)["bridge"] == "made"
    changed = install(tmp_path, socket=Path("/other.sock"))
    assert changed == {**dict.fromkeys(NAMES, "replaced"), "podwire-standalone": "unchanged"}
    assert shims.socket_of((tmp_path / "portmap").read_bytes()) == Path("/other.sock")


def test_launchers_of_earlier_versions_are_replaced(tmp_path: Path) -> None:
    launchers.write(tmp_path)
    (tmp_path / "bridge").write_text(f"#!/bin/sh\n{launchers.MARK}\nexec something older\n")
    changed = install(tmp_path)
    assert {changed[name] for name in TYPES} == {"replaced"}
    assert {path.read_bytes()[:4] for path in tmp_path.iterdir() if path.name in NAMES} == {b"\x7fELF"}
    assert not list(tmp_path.glob("*.before-podwire"))


@pytest.mark.parametrize("kind", ["file", "script", "link", "dangling", "directory"])
def test_somebody_elses_file_is_refused_and_nothing_changes(tmp_path: Path, kind: str) -> None:
    foreign(tmp_path / "portmap", kind)
    foreign(tmp_path / "bridge", "file")
    before = contents(tmp_path)
    with pytest.raises(installing.Foreign) as refused:
        install(tmp_path)
    assert refused.value.paths == (tmp_path / "bridge", tmp_path / "portmap")
    assert uninstall(tmp_path) == {}
    assert contents(tmp_path) == before


@pytest.mark.parametrize("kind", ["file", "script", "link", "dangling"])
def test_by_force_it_is_kept_and_uninstall_puts_it_back(tmp_path: Path, kind: str) -> None:
    foreign(tmp_path / "bridge", kind)
    foreign(tmp_path / "other", "file")
    before = contents(tmp_path)
    assert install(tmp_path, force=True)["bridge"] == "replaced"
    assert contents(tmp_path)["bridge.before-podwire"] == before["bridge"]
    assert set(install(tmp_path, force=True).values()) == {"unchanged"}
    assert install(tmp_path, socket=Path("/s"))["bridge"] == "replaced"
    removed = uninstall(tmp_path)
    assert (removed["bridge"], removed["portmap"]) == ("restored", "removed")
    assert contents(tmp_path) == before
    assert uninstall(tmp_path) == {}


def test_by_force_no_directory_is_replaced(tmp_path: Path) -> None:
    foreign(tmp_path / "bridge", "directory")
    with pytest.raises(installing.Foreign):
        install(tmp_path, force=True)
    assert list(contents(tmp_path)) == ["bridge"]


def test_a_package_that_writes_its_file_again_keeps_it(tmp_path: Path) -> None:
    """Debian's package is upgraded over us: its file stays, also at the next install by force."""
    (tmp_path / "bridge").write_text("old")
    install(tmp_path, force=True)
    (tmp_path / "new").write_text("new")
    (tmp_path / "new").rename(tmp_path / "bridge")
    kept = contents(tmp_path)
    assert uninstall(tmp_path)["bridge"] == "left"
    assert contents(tmp_path) == {key: kept[key] for key in ("bridge", "bridge.before-podwire")}
    install(tmp_path, force=True)
    assert (tmp_path / "bridge.before-podwire").read_text() == "new"
    uninstall(tmp_path)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["new"]


def test_a_file_that_went_meanwhile_is_restored_too(tmp_path: Path) -> None:
    (tmp_path / "bridge").write_text("theirs")
    install(tmp_path, force=True)
    (tmp_path / "bridge").unlink()
    assert uninstall(tmp_path)["bridge"] == "restored"
    assert contents(tmp_path).keys() == {"bridge"}


def test_without_the_standalone_program_one_of_before_goes(tmp_path: Path) -> None:
    install(tmp_path)
    unwanted = (tmp_path / "podwire-standalone",)
    assert install(tmp_path, standalone=False, unwanted=unwanted)["podwire-standalone"] == "removed"
    assert set(contents(tmp_path)) == NAMES


def test_uninstall_knows_names_that_this_version_does_not(tmp_path: Path) -> None:
    install(tmp_path)
    (tmp_path / "bridge").rename(tmp_path / "once-a-plugin")
    assert uninstall(tmp_path)["once-a-plugin"] == "removed"
    assert contents(tmp_path) == {}


class Fault(OSError):
    pass


class Faults:
    """Lets the ``at``-th call to the file system fail, before or after it is done."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: int, when: str) -> None:
        self.seen = 0
        self.at, self.when = at, when
        for name in ("rename", "link", "fsync", "fchmod"):
            monkeypatch.setattr(os, name, self._wrapped(getattr(os, name)))

    def _wrapped(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            self.seen += 1
            if self.seen == self.at and self.when == "before":
                raise Fault(errno.ENOSPC, "full")
            found = real(*arguments, **options)
            if self.seen == self.at and self.when == "after":
                raise Fault(errno.EIO, "broken")
            return found

        return call


def _occupied(directory: Path) -> None:
    """One of each kind: ours of before, somebody else's, an old backup, a link."""
    directory.mkdir()
    installing.install(directory, files(directory, Path("/old.sock"))[:1], is_our_program)
    (directory / "portmap").write_text("theirs")
    (directory / "portmap.before-podwire").write_text("older")
    (directory / "podwire").symlink_to("/bin/true")


def _uninstalled(directory: Path) -> None:
    uninstall(directory)


def _forced(directory: Path) -> None:
    install(directory, force=True)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("act", [_forced, _uninstalled])
def test_whatever_fails_nothing_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: Callable[[Path], None], when: str
) -> None:
    monkeypatch.setattr(installing, "NAMES", ("bridge", "loopback", "podwire", "portmap"))
    at = 1
    while True:
        home = tmp_path / f"{at}"
        _occupied(home)
        if act is _uninstalled:
            _forced(home)
        before = contents(home)
        with pytest.MonkeyPatch.context() as patch:
            faults = Faults(patch, at, when)
            with contextlib.suppress(Fault):
                act(home)
        if faults.seen < at:
            break
        assert contents(home) == before, f"call {at}"
        at += 1
    assert at > 10


def test_a_directory_made_for_it_goes_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Faults(monkeypatch, 4, "before")
    with pytest.raises(Fault):
        install(tmp_path / "a" / "b")
    assert contents(tmp_path) == {}


def test_after_a_kill_the_same_again_finishes_and_clears_up(tmp_path: Path) -> None:
    code = (
        "import os, sys, itertools; from pathlib import Path\n"
        "from podwire.plugins import installing, replacing\n"
        "real, count = os.rename, itertools.count(1)\n"
        "def rename(*a):\n    next(count) == 4 and os._exit(9)\n    real(*a)\n"
        "replacing.os.rename = rename; home = Path(sys.argv[1])\n"
        "found = installing.programs(home, Path('/s'), standalone=True)\n"
        "installing.install(home, found, installing.is_our_program, force=True)\n"
    )
    (tmp_path / "bridge").write_text("theirs")
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], env=environ).returncode == 9
    assert [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    install(tmp_path, force=True)
    assert set(contents(tmp_path)) == {*NAMES, "podwire-standalone", "bridge.before-podwire"}
    uninstall(tmp_path)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("bridge", "theirs")]


def test_a_file_system_without_hard_links_gets_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: object, **_options: object) -> None:
        raise OSError(errno.EPERM, "no hard links")

    monkeypatch.setattr(os, "link", refuse)
    (tmp_path / "bridge").write_text("theirs")
    (tmp_path / "portmap").symlink_to("/bin/true")
    before = contents(tmp_path)
    install(tmp_path, force=True)
    assert {(tmp_path / name).stat().st_nlink for name in NAMES} == {1}
    assert {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in NAMES} == {0o755}
    uninstall(tmp_path)
    assert contents(tmp_path) == before


@pytest.fixture
def shim() -> Iterator[bytes]:
    yield in_tree().read_bytes()


def test_another_socket_is_written_into_the_shim(shim: bytes) -> None:
    assert shims.socket_of(shim) == SOCKET
    longest = Path("/" + "x" * 106)
    for path in (longest, Path("/a"), Path("/run/it's \xe4")):
        other = shims.told_of(shim, path)
        assert shims.socket_of(other) == path
        assert len(other) == len(shim)
        assert shims.told_of(other, SOCKET) == shim


@pytest.mark.parametrize("path", ["relative", "/" + "x" * 107, "/\0"])
def test_a_path_that_no_socket_can_have_is_refused(shim: bytes, path: str) -> None:
    with pytest.raises(ValueError, match="not an absolute path of at most 107 bytes"):
        shims.told_of(shim, Path(path))


def test_a_shim_is_known_by_its_mark(tmp_path: Path, shim: bytes) -> None:
    with pytest.raises(ValueError, match="mark"):
        shims.told_of(b"\x7fELF", SOCKET)
    path = tmp_path / "x"
    for data, ours in ((shim, True), (shim[:-5000], False), (b"#" + shim, False), (b"", False)):
        path.write_bytes(data)
        assert shims.is_ours(path) is ours
    assert not shims.is_ours(tmp_path / "missing")


def test_a_package_without_a_shim_for_this_machine_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(shims.ShimMissing, match=r"/shim/riscv64/podwire-shim: .*no shim for riscv64"):
        shims.binary()
