"""kill -9 of the agent at random while pods are attached and detached: ``python -m tests.e2e.agent_soak``.

Callers do as a runtime does: a failed ADD is followed by DEL until that succeeds, then by another ADD; a DEL
is repeated until it succeeds. At every moment no two pods have one address; at the end, after one more start
of the agent, the host is as it was, and what others made was never touched.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from podwire.kernel import netns
from tests.agent import lab
from tests.agent.helpers import Answer, Forked, exchange, request, variables

FOREIGN = 'table ip foreign { chain c { tcp dport 8080 accept comment "precious"; }; }'
PATIENCE = 60.0


class Load:
    """Callers that attach and detach pods of their own until ``pairs`` ADDs and DELs are done."""

    def __init__(self, socket: Path, data: Path, pairs: int, callers: int, shim: Path | None) -> None:
        self.socket = socket
        self.data = data
        self.pairs = pairs
        self.callers = callers
        self.shim = shim
        self.lock = threading.Lock()
        self.live: dict[str, str] = {}
        self.faults: list[str] = []
        self.answers = mmap.mmap(-1, 8)
        """How many requests were answered, shared with the process that kills."""
        self.done = 0
        self.said: dict[str, str] = {}
        self.retries = 0

    def run(self) -> dict[str, Any]:
        """Do it all, and tell what was wrong."""
        with ThreadPoolExecutor(self.callers) as pool:
            for each in [pool.submit(self._caller, number) for number in range(self.callers)]:
                each.result()
        return {"faults": self.faults, "done": self.done, "retries": self.retries, "live": len(self.live)}

    def _caller(self, number: int) -> None:
        path = f"/run/netns/soak{number}"
        netns.create(path)
        try:
            while True:
                with self.lock:
                    if self.done >= self.pairs or self.faults:
                        return
                    self.done += 1
                    name = f"pod{self.done}"
                self._one(number, name, path)
        finally:
            netns.remove(path)

    def _one(self, number: int, name: str, path: str) -> None:
        bridge = lab.bridge(self.data, subnet="10.77.0.0/26")
        ports = lab.portmap(20000 + number)
        end = time.monotonic() + PATIENCE
        while (result := self._attached(bridge, ports, name, path)) is None:
            with self.lock:
                self.retries += 1
            self._detached(bridge, ports, name, path)
            if time.monotonic() > end:
                self._fault(f"{name}: no ADD succeeds: {self.said.get(name)}")
                return
        addresses = [ip["address"].partition("/")[0] for ip in result["ips"]]
        with self.lock:
            for address in addresses:
                if address in self.live:
                    self.faults.append(f"{address} has {self.live[address]} and {name}")
                self.live[address] = name
        with self.lock:
            for address in addresses:
                self.live.pop(address, None)
        self._detached(bridge, ports, name, path)

    def _attached(self, bridge: dict[str, Any], ports: dict[str, Any], name: str, path: str) -> Any:
        made = self._ask("ADD", bridge, name, path)
        if made is not None and not made.exit:
            made = self._ask("ADD", {**ports, "prevResult": made.json}, name, path)
            if made is not None and not made.exit:
                return made.json
        self.said[name] = made.stdout.decode() if made is not None else "nothing"
        return None

    def _detached(self, bridge: dict[str, Any], ports: dict[str, Any], name: str, path: str) -> None:
        for config in (ports, bridge):
            end = time.monotonic() + PATIENCE
            while (answer := self._ask("DEL", config, name, path)) is None or answer.exit:
                if time.monotonic() > end:
                    self._fault(f"{name}: no DEL succeeds: {answer.body if answer else None!r}")
                    return
                time.sleep(0.02)

    def _ask(self, command: str, config: dict[str, Any], name: str, path: str) -> Answer | None:
        environ, stdin = variables(command, name, path), json.dumps(config).encode()
        if self.shim is not None:
            done = subprocess.run(
                [config["type"]],
                executable=self.shim,
                input=stdin,
                capture_output=True,
                check=False,
                env={**environ, "PODWIRE_SOCKET": str(self.socket)},
            )
            self._count()
            headers = {"podwire-exit": str(done.returncode), "podwire-stderr": "0"}
            return Answer(200, headers, done.stdout)
        try:
            answer = exchange(self.socket, request(config["type"], environ, stdin))
        except (ConnectionError, FileNotFoundError):
            answer = None
        if answer is None:
            time.sleep(0.01)
        else:
            self._count()
        return answer

    def _count(self) -> None:
        with self.lock:
            self.answers[:] = (self.answered + 1).to_bytes(8, "little")

    @property
    def answered(self) -> int:
        """How many requests were answered."""
        return int.from_bytes(self.answers[:], "little")

    def _fault(self, text: str) -> None:
        with self.lock:
            self.faults.append(text)


def in_a_process(load: Load, report: Path) -> int:
    """Run the load in a copy of this process, which stays free of threads and can be copied again."""
    pid = os.fork()
    if pid == 0:
        try:
            report.write_text(json.dumps(load.run()))
            os._exit(0)
        except BaseException:  # noqa: BLE001 - this copy must not go on
            report.write_text(json.dumps({"faults": [traceback.format_exc()]}))
        finally:
            os._exit(1)
    return pid


def soak(
    home: Path, *, pairs: int, callers: int = 6, seed: int = 0, shim: Path | None = None
) -> dict[str, Any]:
    """Run the soak in the calling process's namespaces, and return what was done; AssertionError if not."""
    chance = random.Random(seed)
    root, data = home / "agent", home / "data"
    subprocess.run(["nft", "-f", "-"], input=FOREIGN, text=True, check=True)
    lab.run("ip", "link", "add", "foreign0", "type", "veth", "peer", "name", "foreign1")
    (data / "net").mkdir(parents=True)
    (data / "net" / "10.77.0.9").write_text("foreign\r\neth0")
    agent = Forked(root).started()
    # The bridge stays when its last pod is gone.
    made = agent.add(lab.bridge(data, subnet="10.77.0.0/26"), "first", _pod())
    assert made.exit == 0, made.body
    assert agent.delete(lab.bridge(data, subnet="10.77.0.0/26"), "first").exit == 0
    before = lab.everything(data)
    load = Load(agent.socket, data, pairs, callers, shim)
    worker = in_a_process(load, home / "report")
    kills = 0
    try:
        while os.waitpid(worker, os.WNOHANG) == (0, 0):
            until, end = load.answered + chance.randrange(4 * callers), time.monotonic() + 2
            while load.answered < until and time.monotonic() < end:
                time.sleep(0.001)
            time.sleep(chance.uniform(0, 0.01))
            agent.kill()
            kills += 1
            agent = Forked(root).started()
        report: dict[str, Any] = json.loads((home / "report").read_text())
        agent.kill()
        agent = Forked(root).started()
        left = {"attachments": agent.attachments(), **lab.everything(data)}
        assert report["faults"] == [], f"{report}; {agent.log.read_text()[-20000:]}"
        assert report["live"] == 0
        assert left == {"attachments": [], **before}
        assert "Traceback" not in agent.log.read_text(), agent.log.read_text()
    finally:
        agent.kill()
        netns.remove(_POD)
    return {**report, "kills": kills}


_POD = "/run/netns/soak-first"


def _pod() -> str:
    netns.create(_POD)
    return _POD


def main() -> int:
    """Run it in namespaces of its own and print what was done."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=1000, help="how many ADDs and DELs")
    parser.add_argument("--callers", type=int, default=6)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--shim", type=Path, help="the shim, to call through it")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.inside:
        again = [sys.executable, "-m", "tests.e2e.agent_soak", "--inside", *sys.argv[1:]]
        script = 'mount --make-rprivate /; mount -t tmpfs tmpfs /run; ip link set lo up; exec "$@"'
        return subprocess.call(["unshare", "-n", "-m", "sh", "-c", script, "sh", *again])
    began = time.monotonic()
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="pw", dir="/run") as home:
        done = soak(
            Path(home),
            pairs=options.pairs,
            callers=options.callers,
            seed=options.seed,
            shim=options.shim,
        )
    print(
        f"{done['done']} ADDs and DELs, {done['retries']} ADDs repeated, {done['kills']} agents killed,"
        f" {time.monotonic() - began:.0f} s: no address twice, nothing left, nothing foreign touched"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
