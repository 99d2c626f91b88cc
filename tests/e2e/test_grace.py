"""kubectl deletes a pod that does not listen to TERM, thinks better of it, and deletes it by force."""

from __future__ import annotations

import time

import pytest

from tests.cli.helpers import Machine
from tests.kubectl import Stock, plain

pytestmark = pytest.mark.kernel

DEAF = """\
apiVersion: v1
kind: Pod
metadata: {name: deaf}
spec:
  terminationGracePeriodSeconds: 600
  containers:
    - name: main
      image: none
      command: ["/bin/busybox", "sh", "-c", "trap '' TERM; while true; do /bin/busybox sleep 1; done"]
"""


def addresses(machine: Machine) -> list[str]:
    """The IPv4 addresses that pods have."""
    leases = machine.root / "lib" / "networks" / "podwire"
    return [lease.name for lease in leases.glob("10.*")]


@pytest.mark.parametrize("sooner", [("--force", "--grace-period=0"), ("--grace-period=3", "--wait=false")])
def test_a_second_delete_stops_what_the_first_was_patient_with(
    machine: Machine, sooner: tuple[str, ...]
) -> None:
    machine.up()
    kubectl = Stock(plain()[-1], machine.kubeconfig, machine.root.parent)
    kubectl("apply", "-f", "-", stdin=DEAF)
    kubectl("wait", "pod/deaf", "--for=condition=Ready", "--timeout=20s")
    assert addresses(machine)
    kubectl("delete", "pod", "deaf", "--wait=false")
    end = time.monotonic() + 20
    while "Killing" not in machine.ask("get", "events").stdout:
        assert time.monotonic() < end
        time.sleep(0.05)
    kubectl("delete", "pod", "deaf", *sooner)
    end = time.monotonic() + 40
    while addresses(machine):
        assert time.monotonic() < end
        time.sleep(0.05)
    kubectl("wait", "pod/deaf", "--for=delete", "--timeout=20s")  # its last status is told first
    assert kubectl("get", "pods", "-o", "name") == ""
