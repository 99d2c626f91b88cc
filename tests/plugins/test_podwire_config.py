"""A configuration of `podwire` that cannot be is refused, and the error names the field and the value."""

from __future__ import annotations

from typing import Any

import pytest

from podwire.cni.errors import CNIError
from podwire.cni.plugin import make_request
from podwire.plugins import pod_network, podwire

GOOD: dict[str, Any] = {"cniVersion": "1.1.0", "name": "net", "type": "podwire", "subnets": ["10.1.0.0/24"]}


def read(config: dict[str, Any], args: str = "") -> pod_network.Network:
    request = make_request(
        podwire.PLUGIN, "ADD", config, container_id="one", netns="/nowhere", ifname="eth0", args=args
    )
    return pod_network.network(request)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mod": "bridge"}, '"mod": is no option of podwire: did you mean mode?'),
        ({"subnet": ["10.1.0.0/24"]}, "did you mean subnets?"),
        ({"ipMasq": True}, '"ipMasq": is no option of podwire: did you mean masquerade?'),
        ({"ipam": {"type": "host-local"}}, "did you mean ranges"),
        ({"isGateway": True}, "the host is always the gateway"),
        ({"qwertyuiop": 1}, "options are mode, bridge"),
        ({"mode": "l2"}, 'mode "l2": is neither bridge nor routed'),
        ({"mode": 1}, "mode: "),
        ({"bridge": "a/b"}, "bridge: "),
        ({"bridge": "br%d"}, "contains '%'"),
        ({"uplink": "x" * 16}, "uplink: "),
        ({"subnets": ["10.1.0.5/24"]}, "subnets[0].subnet '10.1.0.5/24': has host bits set"),
        ({"subnets": []}, "ranges: none"),
        ({"ranges": [[{"subnet": "10.1.0.0/24"}]]}, "ranges and subnets exclude each other"),
        ({"subnets": [], "ranges": [[]]}, "ranges[0]: a set of ranges is empty"),
        (
            {"subnets": [], "ranges": [[{"subnet": "10.1.0.0/24", "rangestrat": "10.1.0.9"}]]},
            "mean rangeStart?",
        ),
        ({"subnets": ["10.1.0.0/24", "10.1.0.0/25"]}, "overlaps"),
        ({"noMasquerade": ["10.0.0.1"]}, 'noMasquerade[0] "10.0.0.1": is not a subnet'),
        ({"mtu": 20}, "mtu 20: is not between 68 and 65535"),
        ({"mtu": 1000, "subnets": ["fd00::/64"]}, "mtu 1000: is not between 1280 and 65535"),
        ({"mtuOverhead": -1}, "mtuOverhead -1"),
        ({"markMasqBit": 32}, "markMasqBit: want a bit from 0 to 31"),
        ({"dataDir": "here"}, 'dataDir "here": is not an absolute path'),
        ({"dns": {"nameservers": ["one"]}}, 'dns.nameservers[0] "one": is not an IP address'),
        ({"bandwidth": {"ingressRate": 8}}, "bandwidth.ingressRate 8: needs"),
        ({"bandwidth": {"ingresRate": 8}}, "did you mean ingressRate?"),
        ({"routes": [{"dst": "nowhere"}]}, "routes[0]"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(CNIError) as caught:
        read({**GOOD, **options})
    assert caught.value.code == 7
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("runtime", "message"),
    [
        ({"ips": ["ten"]}, 'runtimeConfig.ips[0] "ten": is not an IP address'),
        ({"mac": "01:00:5e:00:00:01"}, "runtimeConfig.mac"),
        ({"ipRanges": [[{"subnet": "x"}]]}, "runtimeConfig.ipRanges[0][0].subnet"),
        ({"bandwidth": {"ingressRate": 1}}, "runtimeConfig.bandwidth.ingressRate"),
    ],
)
def test_what_the_runtime_supplies_is_checked(runtime: dict[str, Any], message: str) -> None:
    request = make_request(
        podwire.PLUGIN,
        "ADD",
        {**GOOD, "runtimeConfig": runtime},
        container_id="one",
        netns="/x",
        ifname="eth0",
    )
    with pytest.raises(CNIError) as caught:
        network = pod_network.network(request)
        pod_network.requested_addresses(request)
        pod_network.requested_mac(request)
        pod_network.limits(request, network)
    assert caught.value.code == 7
    assert message in str(caught.value)


def test_keys_match_whatever_their_case_and_the_protocols_own_pass() -> None:
    network = read(
        {
            **GOOD,
            "MODE": "bridge",
            "Masquerade": False,
            "capabilities": {"portMappings": True},
            "cni.dev/valid-attachments": [],
            "prevResult": None,
        }
    )
    assert (network.settings.mode, network.settings.masquerade) == ("bridge", False)


def test_ranges_of_the_runtime_take_the_place_of_the_configured() -> None:
    network = read({**GOOD, "runtimeConfig": {"ipRanges": [[{"subnet": "10.9.0.0/24"}]]}})
    assert [str(one) for one in network.sets] == ["10.9.0.1-10.9.0.254"]
    assert {str(one) for one in network.spared} == {"10.9.0.0/24", "10.1.0.0/24"}
