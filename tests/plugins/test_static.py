from __future__ import annotations

from ipaddress import IPv4Interface, IPv6Interface
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.cni.errors import CNIError, IncompatibleVersion, InvalidConfig, InvalidEnvironment
from podwire.cni.plugin import IPConfig, Result, call, make_request
from podwire.plugins.static import PLUGIN
from tests.plugins.helpers import Host, addresses, reaches

ADDRESSES = [{"address": "10.1.0.5/24", "gateway": "10.1.0.1"}, {"address": "fd00:1::5/64"}]
V4 = st.builds(lambda ip, length: IPv4Interface((ip, length)), st.ip_addresses(v=4), st.integers(0, 32))
V6 = st.builds(
    lambda number, length: IPv6Interface((number, length)),
    st.integers(1 << 48, (1 << 128) - 1),  # those below are told as IPv4, if they are mapped ones
    st.integers(0, 128),
)


def do(
    command: str = "ADD",
    *,
    env: str = "",
    result: Result | None = None,
    version: str = "1.1.0",
    **config: Any,
) -> Result | None:
    ipam = {"type": "static", "addresses": ADDRESSES, **config.pop("ipam", {})}
    whole = {"cniVersion": version, "name": "net", "type": "static", "ipam": ipam, **config}
    pod: dict[str, Any] = {"container_id": "c", "netns": "/run/netns/none", "ifname": "eth0"}
    request = make_request(PLUGIN, command, whole, args=env, prev_result=result, **pod)
    return call(PLUGIN, request, None)


def added(**options: Any) -> list[tuple[str, str]]:
    result = do(**options)
    assert result is not None
    return [(ip.address, ip.gateway) for ip in result.ips]


def test_the_runtime_appends_by_args_and_replaces_by_capability() -> None:
    configured = [("10.1.0.5/24", "10.1.0.1"), ("fd00:1::5/64", "")]
    args = "IP=10.3.0.5/24 ,fd00:3::5/64;GATEWAY=10.3.0.1, fd00:3::1,10.1.0.9"
    assert added(env=args) == [*configured, ("10.3.0.5/24", "10.3.0.1"), ("fd00:3::5/64", "fd00:3::1")]
    asked = {"args": {"cni": {"ips": ["10.4.0.5/24"]}}}
    assert added(env=args, **asked) == [("10.4.0.5/24", "")]
    assert added(env=args, **asked, runtimeConfig={"ips": ["10.5.0.5/24"]}) == [("10.5.0.5/24", "")]


@given(st.lists(st.one_of(V4, V6), min_size=1, max_size=5))
def test_addresses_come_back_as_they_were_asked_for(wanted: list[IPv4Interface | IPv6Interface]) -> None:
    told = added(runtimeConfig={"ips": [str(one) for one in wanted]})
    assert told == [(str(one), "") for one in wanted]


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        (
            {"ipam": {"addresses": [{"address": "10.1.0.5"}]}},
            InvalidConfig,
            r'addresses\[0\]: "10\.1\.0\.5" is',
        ),
        ({"ipam": {"addresses": [{}]}}, InvalidConfig, r"addresses\[0\]"),
        ({"ipam": {"addresses": [{"address": "10.1.0.5/24", "gateway": "x"}]}}, InvalidConfig, '"x" is not'),
        ({"ipam": {"addresses": 7}}, InvalidConfig, r"ipam\.addresses: Expected"),
        ({"ipam": {"routes": [{"dst": "x"}]}}, InvalidConfig, "ipam.routes"),
        ({"env": "IP=10.1.0.5"}, InvalidEnvironment, "CNI_ARGS IP"),
        ({"env": "IP=10.1.0.5/24;GATEWAY=x"}, InvalidEnvironment, 'GATEWAY "x"'),
        ({"env": "COLOUR=red"}, InvalidEnvironment, "COLOUR"),
        ({"runtimeConfig": {"ips": ["10.1.0.5/24", "x"]}}, InvalidConfig, r"runtimeConfig\.ips\[1\]"),
        ({"version": "0.2.0", "env": "IP=10.3.0.5/24"}, IncompatibleVersion, "more than one address"),
    ],
)
def test_what_cannot_be_is_named(options: dict[str, Any], error: type[CNIError], said: str) -> None:
    with pytest.raises(error, match=said):
        do(**options)
    if "env" not in options:
        with pytest.raises(error, match=said):
            do("STATUS", **{"version": "1.1.0", **options})
    assert do("DEL", **options) is None


def test_status_wants_nothing_but_a_sound_configuration() -> None:
    assert do("STATUS") is None


def test_check_finds_an_address_and_a_gateway_that_differ() -> None:
    result = do()
    assert result is not None
    do("CHECK", result=result)
    first = result.ips[0]
    for ip, said in (
        (IPConfig("10.1.0.5/25", first.gateway), r"address 10\.1\.0\.5/24 is not in prevResult"),
        (IPConfig(first.address, "10.1.0.2"), r"gateway of 10\.1\.0\.5/24 is 10\.1\.0\.2 in prevResult"),
    ):
        with pytest.raises(CNIError, match=said):
            do("CHECK", result=msgspec.structs.replace(result, ips=(ip, *result.ips[1:])))
    # The main plugin may have filled in a gateway where none is configured.
    filled = IPConfig("fd00:1::5/64", "fd00:1::1")
    do("CHECK", result=msgspec.structs.replace(result, ips=(first, filled)))


@pytest.mark.kernel
def test_a_pod_on_a_bridge_with_it(host: Host) -> None:
    ipam = {"type": "static", "addresses": ADDRESSES, "routes": [{"dst": "192.0.2.0/24"}]}
    config = host.config(ipam=ipam, isGateway=True)
    result = host.add(config, host.pod("one"))
    assert set(addresses("eth0", "one")) >= {"10.1.0.5/24", "fd00:1::5/64"}
    assert reaches("one", "10.1.0.1")
    assert reaches("one", "fd00:1::1")
    host.check(config, "one", result)
    host.delete(config, "one")
