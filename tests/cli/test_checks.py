"""What is checked before a node starts."""

from __future__ import annotations

import ipaddress
from pathlib import Path

import pytest

from podwire.cli import checks
from podwire.cli.errors import CommandError


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "''"),
        ("10.0.0.0", "no room"),
        ("10.0.0.1/16", "host bits"),
        ("10.0.0.0/16,10.1.0.0/16", "two ranges of IPv4"),
        ("10.0.0.0/31", "no room"),
        ("224.0.0.0/8", "not for hosts"),
        ("fe80::/64", "not for hosts"),
        ("fd00::/129", "fd00::/129"),
        ("x", "'x'"),
        ("10.0.0.0/16,", "''"),
    ],
)
def test_a_bad_pod_cidr_is_named(text: str, word: str) -> None:
    with pytest.raises(CommandError) as caught:
        checks.pod_cidrs(text)
    assert caught.value.exit_code == 2
    assert caught.value.message.startswith(f"--pod-cidr {text}")
    assert word in caught.value.message


def test_one_range_of_each_family() -> None:
    assert [str(network) for network in checks.pod_cidrs("10.1.0.0/16, fd00:1::/64")] == [
        "10.1.0.0/16",
        "fd00:1::/64",
    ]


def test_an_overlap_names_both_sides() -> None:
    wanted = checks.pod_cidrs("10.1.0.0/16,fd00:1::/64")
    other = ipaddress.ip_network("10.1.2.0/24")
    free = [
        (ipaddress.ip_network("0.0.0.0/0"), "the default route"),
        (ipaddress.ip_network("10.2.0.0/16"), "elsewhere"),
        (ipaddress.ip_network("fd00:2::/64"), "elsewhere"),
    ]
    checks.overlaps(wanted, free)
    with pytest.raises(
        CommandError, match=r"--pod-cidr 10\.1\.0\.0/16 overlaps the route 10\.1\.2\.0/24 on eth9"
    ):
        checks.overlaps(wanted, [*free, (other, "the route 10.1.2.0/24 on eth9")])


@pytest.mark.parametrize("name", ["Node", "a_b", "-a", "a-", "a..b", "a" * 254, "a b"])
def test_a_bad_node_name_is_named(name: str) -> None:
    with pytest.raises(CommandError) as caught:
        checks.node_name(name)
    assert caught.value.exit_code == 2
    assert repr(name) in caught.value.message


def test_the_hosts_name_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "Box.Example")
    assert checks.node_name(None) == "box.example"
    monkeypatch.setattr("socket.gethostname", lambda: "my_box")
    with pytest.raises(CommandError, match="the host's name 'my_box'") as caught:
        checks.node_name(None)
    assert "--node-name" in caught.value.hint


@pytest.mark.parametrize("name", ["", "a" * 16, "a/b", "a b", "..", "a:b"])
def test_a_bad_bridge_name_is_named(name: str) -> None:
    with pytest.raises(CommandError) as caught:
        checks.bridge_name(name)
    assert repr(name) in caught.value.message


def test_manifests_must_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CommandError, match=r"no PATH given") as caught:
        checks.manifests(())
    assert caught.value.exit_code == 2
    (tmp_path / "manifests").mkdir()
    assert checks.manifests(()) == (tmp_path / "manifests",)
    with pytest.raises(CommandError, match=r"^missing: No such file or directory$"):
        checks.manifests(("manifests", "missing"))
    with pytest.raises(CommandError, match="/dev/null: neither a directory nor a file"):
        checks.manifests(("/dev/null",))


def test_urls_and_paths_are_told_apart(tmp_path: Path) -> None:
    both = (str(tmp_path), "https://me@example.com:8443/a.yaml", "HTTP://[2001:db8::1]/", str(tmp_path))
    assert checks.manifests(both) == (tmp_path,)
    assert checks.urls(both) == both[1:3]
    for bad in ("ftp://example.com/a", "http://", "http://host:port/", "http://host/\n"):
        with pytest.raises(CommandError) as caught:
            checks.urls((bad,))
        assert caught.value.exit_code == 2 and repr(bad)[1:-1] in caught.value.message


def test_headers_for_urls() -> None:
    given = ("Metadata-Flavor:Google", "X-Key: a:b ", "X-Key:2", "Empty:")
    expected = (("Metadata-Flavor", "Google"), ("X-Key", "a:b"), ("X-Key", "2"), ("Empty", ""))
    assert checks.url_headers(given) == expected
    for bad in ("Name", ":value", "a b:c", "Name:a\nHost: x"):
        with pytest.raises(CommandError, match="NAME:VALUE") as caught:
            checks.url_headers((bad,))
        assert "Host" not in caught.value.message, "a value may be a secret"


def test_the_same_path_twice_counts_once(tmp_path: Path) -> None:
    assert checks.manifests((str(tmp_path), f"{tmp_path}/")) == (tmp_path,)
