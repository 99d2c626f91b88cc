"""Which links the kernel that is running lacks, asked by making one with ``ip``."""

from __future__ import annotations

import os
import subprocess
from functools import cache

IN_MACHINE = "PODWIRE_TEST_KERNEL"
"""Set in the guest of `make test-kernel`: there nothing may be lacking."""
SHARE = "PODWIRE_TEST_SHARE"
"""``NUMBER/COUNT``: which of so many parts of the tests are this guest's."""

_PROBES = {
    "bridge-vlan": "ip link add probe0 type bridge vlan_filtering 1 && bridge vlan add dev probe0 vid 7 self",
    "dummy": "ip link add probe0 type dummy",
    "ipvlan": "ip link add probe0 type veth peer probe1 && ip link add probe2 link probe0 type ipvlan",
    "vlan": "ip link add probe0 type veth peer probe1 && ip link add probe2 link probe0 type vlan id 7",
    "vrf": "ip link add probe0 type vrf table 7",
}


def in_machine() -> bool:
    """Tell whether this is the guest of `make test-kernel`."""
    return os.environ.get(IN_MACHINE) == "1"


def share(number_of_test: int) -> bool:
    """Tell whether a test is one of this guest's; true where there are no shares."""
    number, _, count = os.environ.get(SHARE, "0/1").partition("/")
    return number_of_test % int(count) == int(number)


@cache
def lacks(kind: str) -> bool:
    """Tell whether the kernel has no links of a kind. Tries in a network namespace of its own; needs root."""
    done = subprocess.run(["unshare", "--net", "sh", "-c", _PROBES[kind]], capture_output=True)
    return done.returncode != 0
