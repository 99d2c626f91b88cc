"""The flags of the kubelet's port: what they come to, and what is refused."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from podwire.cli.errors import CommandError
from podwire.cli.kubelet import PORT, KubeletOptions, KubeletPlan, planned, serving
from podwire.cli.locations import Locations
from podwire.kube.client import Client
from podwire.kube.config import Config
from podwire.serving.certificates import Subject
from podwire.serving.keyfiles import KeyFiles
from tests.node.helpers import bench

pytestmark = pytest.mark.kernel


@pytest.fixture
def keys(tmp_path: Path) -> KeyFiles:
    """Certificates of somebody's."""
    made = KeyFiles(tmp_path, "test", Subject("somebody"))
    made.tls(("localhost",))
    return made


def test_a_node_that_joins_has_the_port_unless_told_otherwise() -> None:
    assert planned(KubeletOptions(), joins=True) == KubeletPlan(port=PORT)
    assert planned(KubeletOptions(port=0), joins=True) == KubeletPlan(port=0)
    assert planned(KubeletOptions(), joins=False) is None


def test_a_plan_is_the_same_again_for_a_node_in_the_background(keys: KeyFiles, tmp_path: Path) -> None:
    pair = (tmp_path / "server.crt", tmp_path / "server.key")
    plan = planned(
        KubeletOptions(port=1234, client_ca=str(keys.authority), certificate=str(pair[0]), key=str(pair[1])),
        joins=True,
    )
    assert plan == KubeletPlan(port=1234, client_ca=keys.authority, pair=pair)
    flags = ("--kubelet-port", "1234", "--client-ca-file", str(keys.authority))
    assert plan.arguments == [*flags, "--tls-cert-file", str(pair[0]), "--tls-private-key-file", str(pair[1])]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (KubeletOptions(port=0), "--kubelet-port: only with --kubeconfig"),
        (KubeletOptions(client_ca="x"), "--client-ca-file: only with --kubeconfig"),
        (KubeletOptions(key="x"), "--tls-private-key-file: only with --kubeconfig"),
    ],
)
def test_without_a_server_to_join_there_is_no_port(options: KubeletOptions, message: str) -> None:
    with pytest.raises(CommandError, match=message):
        planned(options, joins=False)


def test_files_that_are_none_are_named(keys: KeyFiles, tmp_path: Path) -> None:
    text, none = tmp_path / "text", str(tmp_path / "none")
    text.write_text("no certificate")
    certificate, other = str(tmp_path / "server.crt"), str(keys.client_pair[1])
    for options, message in (
        (KubeletOptions(certificate=certificate), "--tls-cert-file and --tls-private-key-file go together"),
        (KubeletOptions(client_ca=none), f"--client-ca-file {none}: no such file"),
        (KubeletOptions(client_ca=str(text)), f"--client-ca-file {text}: not a PEM certificate"),
        (KubeletOptions(certificate=certificate, key=none), f"--tls-private-key-file {none}: no such file"),
        (KubeletOptions(certificate=certificate, key=other), f"--tls-cert-file {certificate}, .*MISMATCH"),
    ):
        with pytest.raises(CommandError, match=message):
            planned(options, joins=True)


async def test_a_port_that_is_taken_is_told_and_one_that_is_served_is_the_node_s(tmp_path: Path) -> None:
    places = Locations(state=tmp_path / "lib", run=tmp_path / "run", root=tmp_path)
    async with bench(tmp_path / "node") as b, Client(Config(server="http://127.0.0.1:1")) as client:
        refused = pytest.raises(CommandError, match="--kubelet-port 10259: Address already in use")
        with socket.create_server(("", 10259)), refused:
            async with serving(KubeletPlan(port=10259), b.node, client, places):
                pass
        assert b.node.kubelet_port == 0
        async with serving(KubeletPlan(port=10259), b.node, client, places):
            assert b.node.kubelet_port == 10259
            for host in ("127.0.0.1", "::1"):
                socket.create_connection((host, 10259), 5).close()
