"""kubectl attach and run with standard input and with a terminal."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import time

import pytest

from tests.cli.helpers import Machine
from tests.e2e.kubectl import Kubectl, versions

pytestmark = pytest.mark.kernel

POD = """\
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  terminationGracePeriodSeconds: 1
  restartPolicy: Never
  containers:
    - name: main
      image: none
      stdin: true
      tty: {tty}
      stdinOnce: {once}
      command: ["/bin/busybox", "sh", "-c", "{script}"]
"""


def apply(kubectl: Kubectl, name: str, script: str, *, tty: bool = False, once: bool = False) -> None:
    text = POD.format(name=name, script=script, tty=str(tty).lower(), once=str(once).lower())
    kubectl("apply", "-f", "-", stdin=text)
    kubectl("wait", f"pod/{name}", "--for=condition=Ready", "--timeout=20s")


def test_standard_input_and_terminals_reach_the_program(machine: Machine) -> None:
    machine.up()
    for number, program in enumerate(versions()):
        kubectl = Kubectl(machine, program)
        said = kubectl(
            *("run", f"run{number}", "-i", "--quiet", "--rm", "--restart=Never", "--image=none"),
            *("--command", "--", "/bin/busybox", "tr", "a-z", "A-Z"),
            stdin="there and back",
        )
        assert said == "THERE AND BACK"
        apply(kubectl, f"once{number}", "/bin/busybox cat; exit 7", once=True)
        assert kubectl("attach", "-i", f"once{number}", stdin="all of it\n").endswith("all of it\n")
        kubectl("wait", f"pod/once{number}", "--for=jsonpath={.status.phase}=Failed", "--timeout=20s")
        apply(kubectl, f"shell{number}", "exec /bin/busybox sh", tty=True)
        in_a_terminal(kubectl, f"shell{number}")


def in_a_terminal(kubectl: Kubectl, name: str) -> None:
    """Work in the pod's shell, leave it, and end it from outside."""
    ours, theirs = pty.openpty()
    attach = kubectl.start("attach", "-it", name, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    try:
        os.write(ours, b"echo $((6 * 7)); stty size\n")
        expect(ours, b"42\r\n")
        os.write(ours, b"exit\n")
        assert attach.wait(20) == 0
    finally:
        attach.kill()
        attach.wait()
        os.close(ours)
    kubectl("wait", f"pod/{name}", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=20s")


def expect(terminal: int, text: bytes) -> None:
    seen, end = b"", time.monotonic() + 20
    while text not in seen:
        assert select.select([terminal], [], [], max(0.0, end - time.monotonic()))[0], seen
        seen += os.read(terminal, 4096)


def test_a_terminal_is_there_again_after_the_node(machine: Machine) -> None:
    machine.up()
    kubectl = Kubectl(machine, versions()[-1])
    apply(kubectl, "kept", "read one; echo first $one; read two; echo second $two", once=False)
    first = kubectl.start("attach", "-i", "kept", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert first.stdin is not None and first.stdout is not None
    first.stdin.write("here\n")
    first.stdin.flush()
    assert first.stdout.readline() == "first here\n"
    first.kill()
    first.communicate()
    node = int((machine.root / "run" / "node.lock").read_text())
    process = os.pidfd_open(node)
    os.kill(node, signal.SIGKILL)
    select.select([process], [], [], 20)
    os.close(process)
    machine.up()
    kubectl("wait", "pod/kept", "--for=condition=Ready", "--timeout=20s")
    second = kubectl.start("attach", "-i", "kept", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert second.stdin is not None and second.stdout is not None
    second.stdin.write("there\n")
    second.stdin.flush()
    assert second.stdout.readline() == "second there\n"
    second.communicate()
