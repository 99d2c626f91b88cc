"""Plugins as programs: run as a runtime runs them, alone and mixed with the reference plugins."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import podwire
from podwire.plugins import TYPES, launchers, load
from podwire.plugins.__main__ import main
from tests.plugins.helpers import GO_PLUGINS, Host, execute, links, reaches


def test_every_type_has_an_executable_file_and_remove_takes_them_away(tmp_path: Path) -> None:
    paths = launchers.write(tmp_path / "bin")
    assert sorted(path.name for path in (tmp_path / "bin").iterdir()) == sorted(TYPES)
    for path in paths:
        assert stat.S_IMODE(path.stat().st_mode) == 0o755
    assert launchers.write(tmp_path / "bin") == paths
    (tmp_path / "bin" / "weave-net").write_text("theirs")
    assert launchers.remove(tmp_path / "bin") == paths
    assert [path.name for path in (tmp_path / "bin").iterdir()] == ["weave-net"]
    assert launchers.remove(tmp_path / "bin") == launchers.remove(tmp_path / "none") == ()


@pytest.mark.parametrize("kind", ["file", "link", "dangling", "directory"])
def test_what_is_not_ours_is_neither_written_over_nor_removed(tmp_path: Path, kind: str) -> None:
    theirs = tmp_path / "portmap"
    if kind == "file":
        theirs.write_bytes(b"\x7fELF\x00\xff theirs")
    elif kind == "directory":
        theirs.mkdir()
    else:
        theirs.symlink_to("/bin/sh" if kind == "link" else "/nowhere")
    with pytest.raises(launchers.LauncherConflict, match=f"is not a podwire launcher: '{theirs}'"):
        launchers.write(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["portmap"]
    assert launchers.remove(tmp_path) == ()
    assert os.path.lexists(theirs)


def test_a_launcher_is_isolated_from_the_environment(tmp_path: Path) -> None:
    (tmp_path / "podwire.py").write_text("raise SystemExit('the wrong one')")
    program = launchers.write(tmp_path / "it's bin", python=sys.executable)[0]
    done = subprocess.run(
        [str(program)],
        env={"CNI_COMMAND": "VERSION", "PYTHONPATH": str(tmp_path), "PYTHONSTARTUP": "x"},
        cwd=tmp_path,
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(done.stdout)["supportedVersions"][-1] == "1.1.0"


def test_a_launcher_runs_the_package_that_wrote_it_and_not_another_that_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "home/podwire/plugins"
    own.mkdir(parents=True)
    for package in (own, own.parent):
        (package / "__init__.py").touch()
    (own / "__main__.py").write_text("import json\ndef main(words): print(words)\n")
    (tmp_path / "home/json.py").write_text("raise SystemExit('not the standard library')")
    monkeypatch.setattr(podwire, "__file__", str(tmp_path / "home/podwire/__init__.py"))
    program = launchers.write(tmp_path / "bin")[0]
    done = subprocess.run([str(program)], capture_output=True, text=True, check=True)
    assert done.stdout == f"['{program.name}']\n"


def test_without_a_command_it_tells_what_it_is(tmp_path: Path) -> None:
    launchers.write(tmp_path)
    done = subprocess.run([str(tmp_path / "bridge")], env={}, capture_output=True, text=True, check=True)
    assert done.stdout == ""
    assert "Podwire bridge" in done.stderr


def test_one_launcher_for_all_takes_the_type_as_its_argument(tmp_path: Path) -> None:
    program = tmp_path / launchers.STANDALONE
    program.write_bytes(launchers.script())
    program.chmod(0o755)
    assert launchers.is_ours(program)
    done = subprocess.run([str(program), "bridge"], env={}, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")
    assert "Podwire bridge" in done.stderr
    assert subprocess.run([str(program), "a b"], env={}, capture_output=True).returncode == 2


@pytest.mark.parametrize("arguments", [[], ["weave-net"], ["bridge", "extra"]])
def test_a_wrong_type_is_told_with_the_right_ones(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert ",".join(TYPES) in said.err


def test_load_knows_our_types_and_no_others() -> None:
    for name in ("bridge", "host-local", "loopback"):
        plugin = load(name)
        assert plugin is not None
        assert plugin.type == name
    assert load("nosuch") is None


@pytest.mark.kernel
@pytest.mark.parametrize("first", ["ours", "theirs"])
@pytest.mark.parametrize("ipam", ["ours", "theirs"])
def test_bridge_and_host_local_mix_with_the_reference_plugins(host: Host, first: str, ipam: str) -> None:
    """The runtime chooses the bridge; the reference's finds its IPAM by CNI_PATH, ours calls its own."""
    launchers.write(host.directory / "bin")
    only_ipam = host.directory / "ipam"
    only_ipam.mkdir()
    home = {"ours": host.directory / "bin", "theirs": GO_PLUGINS}
    (only_ipam / "host-local").symlink_to(home[ipam] / "host-local")
    program = home[first] / "bridge"
    config = host.config("10.1.0.0/24", "fd00:1::/64", isDefaultGateway=True, cniVersion="1.0.0")
    host.pod("one")
    call = {"container_id": "c", "netns": "/run/netns/one", "ifname": "eth0", "path": str(only_ipam)}
    made = execute(program, "ADD", config, **call)
    assert made.returncode == 0, made.stdout
    result = json.loads(made.stdout)
    assert [each["address"] for each in result["ips"]] == ["10.1.0.2/24", "fd00:1::2/64"]
    assert reaches("one", "10.1.0.1")
    assert host.held() == {"10.1.0.2": "c", "fd00:1::2": "c"}
    checked = execute(program, "CHECK", {**config, "prevResult": result}, **call)
    assert (checked.returncode, checked.stdout) == (0, b"")
    removed = execute(program, "DEL", {**config, "prevResult": result}, **call)
    assert (removed.returncode, removed.stdout) == (0, b"")
    assert host.held() == {}
    assert list(links("one")) == ["lo"]


@pytest.mark.kernel
def test_one_network_served_by_both_in_turn(host: Host) -> None:
    launchers.write(host.directory / "bin")
    config = host.config("10.1.0.0/24", isGateway=True, cniVersion="1.0.0")
    programs = [host.directory / "bin" / "bridge", GO_PLUGINS / "bridge"]
    results = []
    for n, program in enumerate([*programs, *programs]):
        host.pod(f"p{n}")
        done = execute(program, "ADD", config, container_id=f"c{n}", netns=f"/run/netns/p{n}", ifname="eth0")
        assert done.returncode == 0, done.stdout
        results.append(json.loads(done.stdout))
    assert [each["ips"][0]["address"] for each in results] == [f"10.1.0.{n}/24" for n in range(2, 6)]
    assert all(reaches("p0", f"10.1.0.{n}") for n in range(3, 6))
    for n, program in enumerate([*reversed(programs), *reversed(programs)]):
        done = execute(
            program,
            "DEL",
            {**config, "prevResult": results[n]},
            container_id=f"c{n}",
            netns=f"/run/netns/p{n}",
            ifname="eth0",
        )
        assert done.returncode == 0, done.stdout
    assert host.held() == {}
    assert not any(name.startswith("veth") for name in links())
