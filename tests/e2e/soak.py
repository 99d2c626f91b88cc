"""A node that is killed, disturbed and refilled at random, and must be right each time it gets to rest.

``python -m tests.e2e.soak --minutes 5 --seed 7`` (as root) works in network, mount and process namespaces of
its own, so that nothing of the machine is reached and every process that is left over is seen. Each round
does a few random things (manifests come, change, break and go; the node, its spawner, supervisors, ``up`` and
``down`` are killed; rules are flushed, links deleted), then lets the node get to rest and checks:

- every wanted pod runs, is ready, and its program is there exactly once; no other program is;
- no address twice; the addresses of the pods are exactly those that the IPAM directory holds;
- one supervisor, one namespace, one bridge port and one CNI record for each pod; all pods answer a ping;
- each pod address is masqueraded, and the rules do not grow;

and at the end of a round, now and then, takes all down and checks that the host is as before: links, routes,
rules, sysctls, mounts, files, processes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from podwire.kube.objects import Pod
from podwire.node.client import ClientError, NodeClient
from tests.cli.helpers import SOURCE, Machine, host, output

PATIENCE = 60.0
NAMES = 8
INSIDE = "PODWIRE_SOAK_INSIDE"
COMMAND = (sys.executable, "-m", "podwire")

MANIFEST = """\
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
    - name: main
      command: ["/bin/busybox", "sleep", "{marker}"]
      {ports}
"""


class Wrong(AssertionError):
    """Something is not as it must be."""


def expect(what: str, found: object, wanted: object) -> None:
    """Raise `Wrong` unless the two are equal."""
    if found != wanted:
        raise Wrong(f"{what}:\n  found  {found}\n  wanted {wanted}")


def programs() -> dict[int, list[str]]:
    """The processes of this process namespace with their arguments; without those that have ended."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().split(b"\0")[:-1]
        except OSError:
            continue
        if words:
            found[int(path.name)] = [word.decode(errors="replace") for word in words]
    return found


def named(name: str) -> list[int]:
    """The processes that call themselves that."""
    found = []
    for path in Path("/proc").glob("[0-9]*/comm"):
        try:
            if path.read_text().strip() == name:
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def kill(pid: int) -> None:
    """KILL, unless it has ended by itself."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


class Soak:
    """The machine, what should run on it, and the dice."""

    def __init__(self, machine: Machine, seed: int) -> None:
        self.machine = machine
        self.random = random.Random(seed)
        self.wanted: dict[str, str] = {}
        """The marker of each pod's program by the pod's name."""
        self.counts: Counter[str] = Counter()
        self.done: list[str] = []
        self._number = 1000
        self._before = self._host()

    def _host(self) -> dict[str, str]:
        mounts = Path("/proc/self/mountinfo").read_text()
        points = "\n".join(sorted(line.split(" ")[4] for line in mounts.splitlines()))
        others = "\n".join(
            " ".join(words)
            for pid, words in sorted(programs().items())
            if pid not in {1, os.getpid(), os.getppid()}
        )
        return {**host(), "mounts": points, "processes": others, "root": str(self.machine.root.exists())}

    def write(self) -> None:
        """A new pod, or another one under a name that is there."""
        self._number += 1
        name, marker = f"p{self.random.randrange(NAMES)}", str(self._number)
        number = int(name[1:])
        ports = f"ports: [{{containerPort: 80, hostPort: {8000 + number}}}]" if number % 2 else ""
        self.machine.write(f"{name}.yaml", MANIFEST.format(name=name, marker=marker, ports=ports))
        self.wanted[name] = marker

    def several(self) -> None:
        """Many changes at once."""
        for _ in range(self.random.randrange(2, NAMES)):
            self.write()

    def remove(self) -> None:
        """A manifest goes."""
        if self.wanted:
            name = self.random.choice(sorted(self.wanted))
            (self.machine.manifests / f"{name}.yaml").unlink()
            del self.wanted[name]

    def up(self) -> None:
        """A node, if there is none."""
        self.machine.podwire("up", "--detach", str(self.machine.manifests), "--node-name", "n1", status=None)

    def up_killed(self) -> None:
        """A node that is killed somewhere between its start and its work."""
        self._killed(
            "up", str(self.machine.manifests), "--node-name", "n1", after=self.random.uniform(0.1, 1.5)
        )

    def down_killed(self) -> None:
        """``down`` that is killed on its way."""
        self._killed("down", "--timeout", "2", after=self.random.uniform(0.1, 1.5))

    def _killed(self, *arguments: str, after: float) -> None:
        with subprocess.Popen(
            [*COMMAND, *arguments],
            env=self.machine.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process:
            time.sleep(after)
            process.kill()

    def _node(self) -> int:
        try:
            return int((self.machine.root / "run" / "node.lock").read_text())
        except (OSError, ValueError):
            return 0

    def kill_node(self) -> None:
        """KILL to the node, if it runs."""
        pid = self._node()
        if "podwire" in programs().get(pid, ()):
            kill(pid)

    def end_node(self) -> None:
        """TERM to the node, as from Ctrl-C: its pods go on."""
        pid = self._node()
        if "podwire" in programs().get(pid, ()):
            os.kill(pid, signal.SIGTERM)

    def kill_spawner(self) -> None:
        """KILL to the process that supervisors are forked from."""
        supervisors = named("podwire-pod")
        for pid, words in programs().items():
            if any("podwire.runtime.spawner" in word for word in words) and pid not in supervisors:
                kill(pid)

    def kill_supervisors(self) -> None:
        """KILL to a few supervisors."""
        there = named("podwire-pod")
        for pid in self.random.sample(there, min(len(there), self.random.randrange(1, 4))):
            kill(pid)

    def kill_programs(self) -> None:
        """KILL to a few programs of pods."""
        there = [pid for pid, words in programs().items() if words[:2] == ["/bin/busybox", "sleep"]]
        for pid in self.random.sample(there, min(len(there), 2)):
            kill(pid)

    def flush_rules(self) -> None:
        """Somebody flushes all of nftables."""
        output("nft", "flush", "ruleset")

    def cut_links(self) -> None:
        """Somebody deletes a pod's link."""
        listed = json.loads(output("ip", "-j", "link", "show", "type", "veth"))
        if listed:
            name = self.random.choice(listed)["ifname"]
            subprocess.run(["ip", "link", "delete", name], capture_output=True, check=False)

    def cut_bridge(self) -> None:
        """Somebody deletes the bridge."""
        subprocess.run(["ip", "link", "delete", "podwire0"], capture_output=True, check=False)

    def pause(self) -> None:
        """Nothing for a moment."""
        time.sleep(self.random.uniform(0.0, 0.6))

    def deeds(self) -> list[tuple[int, Callable[[], None]]]:
        """What may happen, with weights."""
        return [
            (4, self.write),
            (3, self.several),
            (3, self.remove),
            (3, self.up),
            (2, self.up_killed),
            (2, self.down_killed),
            (3, self.kill_node),
            (1, self.end_node),
            (1, self.kill_spawner),
            (2, self.kill_supervisors),
            (1, self.kill_programs),
            (1, self.flush_rules),
            (1, self.cut_links),
            (1, self.cut_bridge),
            (6, self.pause),
        ]

    def round(self, deeds: int = 8) -> None:
        """A few random things, then rest, then the checks; now and then ``down`` and its checks."""
        weights, actions = zip(*self.deeds(), strict=True)
        self.done = []
        for action in self.random.choices(actions, weights, k=deeds):
            self.done.append(action.__name__)
            self.counts[action.__name__] += 1
            action()
        self.rest()
        if self.random.random() < 0.4:
            self.down()

    def rest(self) -> None:
        """Start the node if need be, and wait until what must hold does, at most `PATIENCE` seconds."""
        self.up()
        asyncio.run(self._settle())

    async def _settle(self) -> None:
        until = time.monotonic() + PATIENCE
        while True:
            try:
                async with NodeClient(self.machine.root / "run" / "node.sock") as client:
                    pods = await client.pods()
                self.check(pods)
                return
            except (Wrong, ClientError):
                if time.monotonic() > until:
                    raise
            await asyncio.sleep(0.1)

    def check(self, pods: list[Pod]) -> None:
        """Compare what the node says and what the host has with what is wanted."""
        count = len(self.wanted)
        states = {
            pod.metadata.name.removesuffix("-n1"): pod.status.phase
            for pod in pods
            if all(status.ready for status in pod.status.container_statuses)
        }
        expect("pods", states, dict.fromkeys(self.wanted, "Running"))
        sleepers = [words[2] for words in programs().values() if words[:2] == ["/bin/busybox", "sleep"]]
        expect("programs", sorted(sleepers), sorted(self.wanted.values()))
        expect("supervisors", len(named("podwire-pod")), count)
        given = sorted(entry.ip for pod in pods for entry in pod.status.pod_ips)
        expect("addresses, two for each pod, none twice", len(set(given)), 2 * count)
        lib, run = self.machine.root / "lib", self.machine.root / "run"
        kept = {path.name for path in (lib / "networks").rglob("*") if path.is_file()}
        leases = sorted(name for name in kept if name[:1].isdigit() or ":" in name)
        expect("leases", leases, given)
        expect("records", len(list((lib / "cni" / "results").glob("*"))), count)
        expect("sandboxes", len(list((lib / "sandboxes").glob("*"))), count)
        expect("namespaces", len(list((run / "netns").glob("*"))), count)
        expect("sockets", len(list((run / "sandboxes").glob("*"))), count)
        if count:
            self._check_network(given)

    def _check_network(self, given: list[str]) -> None:
        links = json.loads(output("ip", "-j", "link", "show", "type", "veth"))
        ports = [link["ifname"] for link in links if link.get("master") == "podwire0"]
        expect("bridge ports and links", (len(ports), len(links)), (len(given) // 2, len(given) // 2))
        table = json.loads(output("nft", "-j", "list", "table", "inet", "podwire"))["nftables"]
        elements = [
            entry["elem"]["val"] if isinstance(entry, dict) else entry
            for item in table
            if item.get("map", {}).get("name") in ("masquerade4", "masquerade6")
            for entry, _ in item["map"].get("elem", ())
        ]
        expect("masqueraded", sorted(elements), given)
        rules = sum("rule" in item for item in table)
        if rules > 60:
            raise Wrong(f"{rules} rules")
        asked = [
            subprocess.Popen(["/bin/busybox", "ping", "-q", "-c", "1", "-W", "2", address], stdout=-3)
            for address in given
        ]
        silent = [address for address, asking in zip(given, asked, strict=True) if asking.wait(10) != 0]
        expect("pods that do not answer", silent, [])

    def tell(self) -> None:
        """What may explain a failure."""
        log = self.machine.root / "lib" / "node.log"
        print(log.read_text() if log.exists() else "no node.log")
        for command in (("get", "pods", "-o", "wide"), ("get", "events")):
            said = self.machine.podwire(*command, status=None)
            print(said.stdout[-4000:], said.stderr)

    def down(self) -> None:
        """Take all down: nothing is left."""
        self.counts["down"] += 1
        done = self.machine.podwire("down", "--timeout", "2", status=None)
        if done.returncode:
            raise Wrong(f"down: {done.returncode}\n{done.stdout}{done.stderr}")
        after = self._host()
        for key, value in self._before.items():
            expect(f"after down: {key}", after[key], value)


def _enter() -> None:
    """Run this module again in namespaces of its own; never returns."""
    words = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    # A shell as process 1: it waits for whatever loses its own parent.
    words += ["sh", "-c", '"$@"; exit $?', "sh", sys.executable, "-m", "tests.e2e.soak", *sys.argv[1:]]
    path = os.pathsep.join([str(SOURCE), str(SOURCE.parent)])
    os.execvpe(words[0], words, {**os.environ, INSIDE: "1", "PYTHONPATH": path})


def _furnish() -> None:
    """A loopback, and empty /run and /var/lib."""
    output("ip", "link", "set", "lo", "up")
    for directory in ("/run", "/var/lib"):
        output("mount", "-t", "tmpfs", "tmpfs", directory)


def run(directory: Path, seed: int, minutes: float, rounds: int) -> int:
    """Rounds until the time is over, or ``rounds`` of them; the exit status."""
    soak = Soak(Machine(directory), seed)
    until = time.monotonic() + 60 * minutes
    number = 0
    while number < rounds if rounds else number == 0 or time.monotonic() < until:
        number += 1
        began = time.monotonic()
        try:
            soak.round()
            soak.down() if number == rounds else None
        except (Wrong, ClientError, AssertionError, OSError, subprocess.SubprocessError) as error:
            print(f"round {number}: after {', '.join(soak.done)}:\n{error}", flush=True)
            soak.tell()
            print(f"again with: python -m tests.e2e.soak --seed {seed} --rounds {number}")
            return 1
        print(f"round {number}: {time.monotonic() - began:.1f} s: {', '.join(soak.done)}", flush=True)
    soak.down()
    told = ", ".join(f"{name} {count}" for name, count in sorted(soak.counts.items()))
    print(f"{number} rounds, nothing wrong. Done: {told}")
    return 0


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=1.0, help="how long; at least one round")
    parser.add_argument("--rounds", type=int, default=0, help="how many rounds, whatever the time")
    parser.add_argument("--seed", type=int, default=None, help="the dice, to repeat a run")
    options = parser.parse_args()
    if os.geteuid() != 0:
        print("this needs root: it makes namespaces", file=sys.stderr)
        return 1
    if INSIDE not in os.environ:
        _enter()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(10**6)
    print(f"seed {seed}; {(__doc__ or '').partition('checks:')[2].strip()}", flush=True)
    _furnish()
    with tempfile.TemporaryDirectory(prefix="podwire-soak-", ignore_cleanup_errors=True) as directory:
        return run(Path(directory), seed, options.minutes, options.rounds)


if __name__ == "__main__":
    sys.exit(main())
