from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from podwire.cli import joining
from podwire.cli.errors import CommandError
from podwire.cli.locations import Locations

pytestmark = pytest.mark.kernel


def kubeconfig(path: Path, port: int) -> Path:
    path.write_text(json.dumps({"clusters": [{"cluster": {"server": f"https://127.0.0.1:{port}"}}]}))
    return path


def listening(port: int) -> socket.socket:
    taken = socket.socket()
    taken.bind(("127.0.0.1", port))
    taken.listen()
    return taken


def test_the_port_of_the_last_run_then_6443_then_any(tmp_path: Path) -> None:
    before = kubeconfig(tmp_path / "kubeconfig", 7443)
    assert joining.free_port(tmp_path / "none") == 6443
    assert joining.free_port(before) == 7443
    with listening(7443):
        assert joining.free_port(before) == 6443
        with listening(6443):
            assert joining.free_port(before) == 0
    (tmp_path / "odd").write_text("apiVersion: v1")
    assert joining.free_port(tmp_path / "odd") == 6443


async def test_the_kubeconfig_stays_good_over_a_restart(tmp_path: Path) -> None:
    places = Locations(state=tmp_path / "lib", run=tmp_path / "run", root=tmp_path)
    texts = []
    for _ in range(2):
        async with joining.embedded(places) as joined:
            assert joined.kubeconfig is not None
            texts.append(joined.kubeconfig.read_text())
            assert (await joined.client.raw("GET", "/readyz", accept="*/*")).body == b"ok"
    assert texts[0] == texts[1]
    assert not places.apiserver_socket.exists()


async def test_a_second_server_in_the_same_place_is_refused(tmp_path: Path) -> None:
    places = Locations(state=tmp_path / "lib", run=tmp_path / "run", root=tmp_path)
    async with joining.embedded(places):
        with pytest.raises(CommandError, match="runs here already"):
            async with joining.embedded(places):
                pass


async def test_a_kubeconfig_that_is_none_is_told_with_file_and_field(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text("clusters: 1")
    with pytest.raises(CommandError, match=f"--kubeconfig: {path}"):
        async with joining.joined(path):
            pass
