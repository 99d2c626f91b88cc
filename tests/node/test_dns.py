from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from podwire.node.dns import Resolver, parse_resolv_conf, resolve
from podwire.runtime.api import DNSConfig
from tests.node.helpers import pod

HOST = "# the host\nnameserver 192.0.2.53\nsearch old.example\nsearch lan.example\noptions ndots:2 rotate\n"


@pytest.fixture
def host(tmp_path: Path) -> Path:
    path = tmp_path / "resolv.conf"
    path.write_text(HOST)
    return path


def test_parse_takes_the_last_search_line_and_skips_comments() -> None:
    text = "; c\nnameserver fd00::1\nnameserver\ndomain a\nsearch b c\noptions x\noptions y:1\n"
    assert parse_resolv_conf(text) == DNSConfig(("fd00::1",), ("b", "c"), ("x", "y:1"))


@pytest.mark.parametrize("policy", ["ClusterFirst", "ClusterFirstWithHostNet", "Default"])
def test_without_cluster_dns_the_hosts_file_is_used_as_it_is(host: Path, policy: str) -> None:
    found = resolve(pod(dnsPolicy=policy), Resolver(host))
    assert found.config is None
    assert [reason for reason, _ in found.notes] == (
        ["MissingClusterDNS"] if policy == "ClusterFirstWithHostNet" else []
    )


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (
            {"dnsPolicy": "ClusterFirst"},
            DNSConfig(
                ("10.96.0.10",),
                ("default.svc.cluster.local", "svc.cluster.local", "cluster.local", "lan.example"),
                ("ndots:5",),
            ),
        ),
        ({"dnsPolicy": "ClusterFirst", "hostNetwork": True}, None),
        (
            {"dnsPolicy": "None", "dnsConfig": {"nameservers": ["1.1.1.1"], "searches": ["x"]}},
            DNSConfig(("1.1.1.1",), ("x",), ()),
        ),
        (
            {
                "dnsPolicy": "Default",
                "dnsConfig": {
                    "nameservers": ["192.0.2.53", "fd00::53"],
                    "options": [{"name": "ndots", "value": "1"}, {"name": "edns0"}],
                },
            },
            DNSConfig(("192.0.2.53", "fd00::53"), ("lan.example",), ("ndots:1", "rotate", "edns0")),
        ),
    ],
)
def test_policies(host: Path, spec: dict[str, Any], expected: DNSConfig | None) -> None:
    found = resolve(pod(**spec), Resolver(host, ("10.96.0.10",)))
    assert found.config == expected
    assert found.notes == ()


def test_limits_are_kept_and_said(host: Path) -> None:
    config = {
        "nameservers": [f"192.0.2.{n}" for n in range(1, 6)],
        "searches": [f"{n:02}" + "x" * 100 for n in range(40)],
    }
    found = resolve(pod(dnsPolicy="None", dnsConfig=config), Resolver(host))
    assert found.config is not None
    assert found.config.servers == ("192.0.2.1", "192.0.2.2", "192.0.2.3")
    assert len(found.config.searches) == 19
    assert len(" ".join(found.config.searches)) <= 2048
    assert [reason for reason, _ in found.notes] == ["DNSConfigForming", "DNSConfigForming"]
    many = {"nameservers": ["192.0.2.1"], "searches": [str(n) for n in range(40)]}
    short = resolve(pod(dnsPolicy="None", dnsConfig=many), Resolver(host)).config
    assert short is not None and len(short.searches) == 32


def test_a_host_without_resolv_conf(tmp_path: Path) -> None:
    spec: dict[str, Any] = {"dnsPolicy": "Default", "dnsConfig": {"searches": ["x"]}}
    assert resolve(pod(**spec), Resolver(tmp_path / "none")).config == DNSConfig((), ("x",), ())
