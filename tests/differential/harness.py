"""The same work by the reference plugins and by ours, in two hosts alike; everything that differs is told.

A scenario is a function of a :class:`World`. :func:`compare` runs it twice, each time on a fresh host (a
network namespace with its own pods, an empty data directory): once with the Go plugins of /usr/lib/cni as
processes, once with ours (environment and stdin in, status and stdout out). Both hosts and their pods have
the same names, so that paths are the same. Each operation leaves a record: exit status, error code (not its
text), result, and the state of the host, of all pods and of the data directory; see
:mod:`tests.differential.snapshot` for what is compared of it and what is a placeholder::

    def scenario(world: World) -> None:
        world.sh("ip", "link", "add", "m0", "address", "02:00:00:00:00:01", "type", "veth", ...)
        world.add(config, world.pod("one"))
        world.check(config, "one")
        world.note("the gateway answers", world.reaches("one", "10.1.0.1"))
        world.delete(config, "one")


    def test_plain(twins: Twins) -> None:
        twins(scenario, HOST_END)

A configuration is one plugin's (``cniVersion`` 1.0.0 and a name are filled in, ``DATA`` stands for the data
directory), or a list of them: a chain, run with prevResult as a runtime does. What cannot be compared as it
is (rules of iptables beside nftables) is probed and told with ``note``.

Differences on purpose are data: a :class:`Difference` matches the paths of what differs. An undeclared one
fails the test, and so does a declared one that no longer shows. Those of :data:`COMMON` concern every plugin;
they need not show. Each test module lists its own ones in ``DIFFERENCES``; the identifiers begin with the
heading in docs/differences.md under which they are told (``all-``: "All plugins"). A reader finds the path in
the failure: ``step / part / ... : Go's value | ours``.
"""

from __future__ import annotations

import contextlib
import enum
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from podwire.cni.process import respond
from podwire.plugins import load
from tests.conftest import CLONE_NEWNET, setns
from tests.differential.snapshot import JSON, Placeholders, comparable, observe
from tests.waiting import until

GO = Path("/usr/lib/cni")
DATA = "{data}"
"""Stands for the data directory in a configuration."""
_MAC = re.compile(r"(?<![0-9a-f:])(?:[0-9a-f]{2}:){5}[0-9a-f]{2}(?![0-9a-f:])", re.IGNORECASE)
_LINK_LOCAL = re.compile(r"fe80::[0-9a-f:]+", re.IGNORECASE)
_GONE_SECONDS = 5.0
_ANY = "(any)"
ABSENT = "(absent)"
"""The value of what one side does not have."""


class Side(enum.Enum):
    """Whose plugins."""

    GO = "go"
    OURS = "ours"


class Difference(msgspec.Struct, frozen=True):
    """What differs on purpose. ``where`` matches whole paths, ``*`` standing for anything.

    ``go`` and ``ours`` are the values that are expected there; leave them out if any will do.
    """

    id: str
    where: str
    reason: str
    go: Any = _ANY
    ours: Any = _ANY

    def matches(self, delta: Delta) -> bool:
        pattern = ".*".join(re.escape(part) for part in self.where.split("*"))
        return (
            re.fullmatch(pattern, delta.path) is not None
            and self.go in (_ANY, delta.go)
            and self.ours in (_ANY, delta.ours)
        )


class Delta(msgspec.Struct, frozen=True):
    """One leaf that the two sides have different values for."""

    path: str
    go: Any
    ours: Any

    def __str__(self) -> str:
        return f"{self.path}: {_shown(self.go)} | {_shown(self.ours)}"


class Reply(msgspec.Struct, frozen=True):
    """What a plugin answered; ``code`` is that of its error, ``msg`` is for a reader."""

    status: int
    result: JSON | None = None
    code: int | None = None
    msg: str = ""


COMMON: tuple[Difference, ...] = (
    Difference(
        "all-error-codes",
        "* / reply / code",
        "a code of the specification that says what is wrong, where Go has 999 for anything",
        go=999,
    ),
    Difference(
        "all-host-alias",
        "* / links / * / ifalias",
        "what is ours on the host is recognisable: DEL and GC find it without namespace and record",
    ),
    Difference(
        "all-route-protocol",
        "* / routes / *",
        "a routing daemon may purge the routes whose protocol is boot (ip-route(8))",
        go="boot",
        ours="static",
    ),
    Difference(
        "all-link-local",
        "* / links / * / inet6_addr_gen_mode",
        "interfaces have the IPv6 addresses that were asked for, and a link-local one only beside such",
        go="eui64",
        ours="none",
    ),
    Difference(
        "all-link-local",
        "* / addresses / <link-local of its MAC>/64 dev *",
        "as above",
        go="",
        ours=ABSENT,
    ),
    Difference(
        "all-link-local", "* / routes / unicast fe80::/64 dev *", "as above", go="kernel", ours=ABSENT
    ),
    Difference(
        "all-dad",
        "* / addresses / *:*/* dev *",
        "an address that the IPAM gave to one container alone need not be probed for: pods start at once",
        go="",
        ours="nodad",
    ),
    Difference(
        "all-dad", "* / addresses / <link-local of its MAC>/64 dev *", "as above", go="", ours="nodad"
    ),
    Difference(
        "all-addresses-kept",
        "* / sysctls / * / ipv6/keep_addr_on_down",
        "an interface that goes down and up has its IPv6 addresses, as it has those of IPv4",
        go="0",
        ours="1",
    ),
    Difference(
        "all-announcement",
        "* / sysctls / * / ipv6/ndisc_notify",
        "IPv6 addresses are announced when the interface comes up, as IPv4 addresses are",
        go="0",
        ours="1",
    ),
    Difference(
        "all-router-advertisements",
        "* / sysctls / * / ipv6/accept_ra",
        "a router on the network must not add addresses and routes to those of the IPAM",
        go="1",
        ours="0",
    ),
    Difference("all-router-advertisements", "* / sysctls / * / ipv6/autoconf", "as above", go="1", ours="0"),
    Difference(
        "all-result-mtu",
        "* / reply / result / interfaces / * / mtu",
        "the MTU is told, as by the reference from 1.6 on",
        go=ABSENT,
    ),
    Difference(
        "all-queue-length",
        "* / links / * / txqlen",
        "the kernel's default; Go's 1.1.1 asks for a queue of no packets without meaning to",
        go=0,
        ours=1000,
    ),
    Difference(
        "all-queues",
        "* / links / * / num_tx_queues",
        "a pair has the one queue that is used; the kernel makes one for each processor",
        ours=1,
    ),
)


class World:
    """One side's host: the calling thread is in its namespace while the scenario runs."""

    def __init__(self, side: Side, directory: Path, renames: Iterable[tuple[str, str]]) -> None:
        self.side = side
        self.data = directory / "data"
        self.records: list[tuple[str, JSON]] = []
        self.pods: list[str] = []
        self._hide = Placeholders(renames)
        self._results: dict[tuple[str, str, str], JSON] = {}

    def sh(self, *command: str, pod: str = "", stdin: str = "") -> str:
        """Run a command on the host or in a pod; it must succeed. MACs in it are compared as they are."""
        self._fix(" ".join(command))
        inside = ["ip", "netns", "exec", pod] if pod else []
        done = subprocess.run([*inside, *command], capture_output=True, text=True, input=stdin)
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr or done.stdout}"
        return done.stdout

    def pod(self, name: str) -> str:
        """Make a pod's namespace, its loopback down as a runtime leaves it."""
        self.sh("ip", "netns", "add", name)
        self.pods.append(name)
        self._inside(name, _hurry)
        return name

    def kill_pod(self, name: str) -> None:
        """Delete a pod's namespace, and wait until the kernel has taken its pairs away."""
        indexes = {link["ifindex"] for link in self._inside(name, observe).links.values()}
        gone = (
            {name for name, link in observe().links.items() if link.get("link_index") in indexes}
            if indexes
            else set()
        )
        self.sh("ip", "netns", "delete", name)
        self.pods.remove(name)
        until(
            lambda: not gone & set(observe().links),
            f"{gone} of pod {name} are still there",
            seconds=_GONE_SECONDS,
        )

    def add(self, config: JSON | Sequence[JSON], pod: str, **options: Any) -> Reply:
        """ADD, of each plugin of a chain until one fails; the result is kept for CHECK and DEL."""
        previous: JSON | None = options.pop("prev_result", None)
        reply = Reply(0)
        for one in _chain(config):
            reply = self._call("ADD", one, pod, previous, **options)
            if reply.result is None:
                return reply
            previous = reply.result
        if previous is not None:
            self._results[self._key(config, pod, options)] = previous
        return reply

    def check(self, config: JSON | Sequence[JSON], pod: str, **options: Any) -> Reply:
        """CHECK, with the result of the last ADD (or ``prev_result``) as prevResult."""
        return self._later("CHECK", _chain(config), config, pod, options)

    def delete(self, config: JSON | Sequence[JSON], pod: str, **options: Any) -> Reply:
        """DEL, the last plugin first; ``netns=""`` says none, ``prev_result=None`` leaves that out."""
        return self._later("DEL", list(reversed(_chain(config))), config, pod, options)

    def note(self, what: str, value: Any) -> None:
        """Record what a probe saw, to be compared."""
        self.records.append((f"{len(self.records) + 1}. {what}", {"seen": value}))

    def state(self, what: str) -> None:
        """Record the state as it is now."""
        self.records.append((f"{len(self.records) + 1}. {what}", {"state": self._state()[0]}))

    def reaches(self, pod: str, address: str) -> bool:
        """Tell whether a ping is answered; from the host if ``pod`` is empty."""
        inside = ["ip", "netns", "exec", pod] if pod else []
        command = [*inside, "busybox", "ping", "-c", "1", "-W", "1", address]
        return subprocess.run(command, capture_output=True).returncode == 0

    def _later(
        self, command: str, order: Sequence[JSON], config: JSON | Sequence[JSON], pod: str, options: JSON
    ) -> Reply:
        default = self._results.get(self._key(config, pod, options))
        previous = options.pop("prev_result", default)
        reply = Reply(0)
        for one in order:
            reply = self._call(command, one, pod, previous, **options)
            if reply.status:
                return reply
        return reply

    def _key(self, config: JSON | Sequence[JSON], pod: str, options: JSON) -> tuple[str, str, str]:
        name = _chain(config)[0].get("name", "net")
        return name, options.get("container_id") or pod, options.get("ifname", "eth0")

    def _call(
        self,
        command: str,
        config: JSON,
        pod: str,
        previous: JSON | None,
        *,
        ifname: str = "eth0",
        container_id: str = "",
        netns: str | None = None,
        args: str = "",
    ) -> Reply:
        told = {"cniVersion": "1.0.0", "name": "net", **config}
        if previous is not None:
            told["prevResult"] = previous
        stdin = json.dumps(told).replace(DATA, str(self.data))
        self._fix(json.dumps(config))
        self._fix(args)
        variables = {
            "CNI_COMMAND": command,
            "CNI_CONTAINERID": container_id or f"id-{pod}",
            "CNI_NETNS": f"/run/netns/{pod}" if netns is None else netns,
            "CNI_IFNAME": ifname,
            "CNI_ARGS": args,
            "CNI_PATH": str(GO),
            "PATH": os.environ["PATH"],
        }
        environ = {key: value for key, value in variables.items() if value or key == "CNI_NETNS"}
        status, stdout = self._execute(config["type"], environ, stdin.encode())
        answer = json.loads(stdout) if stdout.strip() else None
        if status:
            assert isinstance(answer, dict), f"{config['type']} {command}: exit {status}, {stdout!r}"
            reply = Reply(
                status, code=answer.get("code"), msg=f"{answer.get('msg')} {answer.get('details', '')}"
            )
        else:
            reply = Reply(status, answer)
        self._record(f"{command} {config['type']} {pod} {ifname}", reply)
        return reply

    def _execute(self, type: str, environ: dict[str, str], stdin: bytes) -> tuple[int, bytes]:
        if self.side is Side.GO:
            done = subprocess.run([GO / type], input=stdin, env=environ, capture_output=True)
            return done.returncode, done.stdout
        plugin = load(type)
        assert plugin is not None, f"no plugin {type} of ours"
        reply = respond(plugin, environ, stdin, registry=load)
        return reply.status, reply.stdout

    def _record(self, what: str, reply: Reply) -> None:
        state, macs = self._state()
        shown: JSON = {"status": reply.status, "code": reply.code, "(says)": reply.msg}
        if reply.result is not None:
            shown["result"] = _result(reply.result, macs, self._hide)
        self.records.append((f"{len(self.records) + 1}. {what}", {"reply": shown, "state": state}))

    def _state(self) -> tuple[JSON, dict[tuple[str, str], str]]:
        host = observe()
        pods = {name: self._inside(name, observe) for name in self.pods}
        self._hide.learn(host, pods)
        macs = {("", name): link.get("address", "") for name, link in host.links.items()}
        state = {"host": comparable(host, self._hide)}
        for pod, space in pods.items():
            state[pod] = comparable(space, self._hide)
            for name, link in space.links.items():
                macs[f"/run/netns/{pod}", name] = link.get("address", "")
        files = sorted(path for path in self.data.rglob("*") if path.is_file()) if self.data.is_dir() else []
        state["files"] = {
            str(path.relative_to(self.data)): {
                "text": path.read_text(),
                "mode": oct(path.stat().st_mode & 0o777),
            }
            for path in files
        }
        return state, macs

    def _inside(self, pod: str, look: Callable[[], Any]) -> Any:
        with _entered(Path("/run/netns", pod)):
            return look()

    def _fix(self, text: str) -> None:
        for pattern in (_MAC, _LINK_LOCAL):
            self._hide.fixed |= {found.lower() for found in pattern.findall(text)}

    def end(self) -> None:
        for name in self.pods:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)


def _hurry() -> None:
    """Have duplicate address detection end at once: its waiting is not what is compared."""
    for key in ("dad_transmits", "router_solicitation_delay"):
        Path("/proc/sys/net/ipv6/conf/default", key).write_text("0")


def _chain(config: JSON | Sequence[JSON]) -> list[JSON]:
    return [config] if isinstance(config, dict) else list(config)


def _result(result: JSON, macs: dict[tuple[str, str], str], hide: Placeholders) -> JSON:
    """Return a result in which every MAC that is the one of its link stands as such."""
    shown: JSON = {**result}
    interfaces = []
    for one in result.get("interfaces", ()):
        held = macs.get((one.get("sandbox", ""), one["name"]))
        mac = one.get("mac", "")
        if mac and mac not in hide.fixed and mac.lower() == held:
            mac = "<its link's MAC>"
        interfaces.append({**one, "name": hide.name(one["name"]), "mac": mac})
    shown["interfaces"] = interfaces
    for key in ("interfaces", "ips", "routes"):
        shown[key] = {str(index): one for index, one in enumerate(shown.get(key, ()))}
    found: JSON = hide.value(shown)
    return found


@contextlib.contextmanager
def _entered(path: Path) -> Iterator[None]:
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    there = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        setns(there, CLONE_NEWNET)
        try:
            yield
        finally:
            setns(home, CLONE_NEWNET)
    finally:
        os.close(there)
        os.close(home)


def run(
    scenario: Callable[[World], None],
    side: Side,
    directory: Path,
    renames: Iterable[tuple[str, str]] = (),
) -> World:
    """Run a scenario on a fresh host of one side, and take the host away again."""
    world = World(side, directory, renames)
    subprocess.run(["ip", "netns", "add", "the-host"], check=True)
    try:
        with _entered(Path("/run/netns/the-host")):
            subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
            _hurry()
            scenario(world)
    finally:
        world.end()
        subprocess.run(["ip", "netns", "delete", "the-host"], check=True)
        shutil.rmtree(world.data, ignore_errors=True)
        for left in ("/var/lib/cni", "/run/cni", "/run/podwire"):
            shutil.rmtree(left, ignore_errors=True)
    return world


def differences(
    scenario: Callable[[World], None], directory: Path, renames: Iterable[tuple[str, str]] = ()
) -> list[Delta]:
    """Run a scenario on both sides and return all that differs."""
    renames = tuple(renames)
    go = run(scenario, Side.GO, directory, renames)
    ours = run(scenario, Side.OURS, directory, renames)
    return deltas(go, ours)


def deltas(go: World, ours: World) -> list[Delta]:
    """Return what the records of two sides differ in."""
    left, right = dict(go.records), dict(ours.records)
    found = [
        Delta(path, one, other)
        for step in dict.fromkeys([*left, *right])
        for path, one, other in _unequal(step, left.get(step, ABSENT), right.get(step, ABSENT))
    ]
    return [delta for delta in found if not delta.path.endswith(" / (says)")]


def compare(
    scenario: Callable[[World], None],
    directory: Path,
    *declared: Difference,
    renames: Iterable[tuple[str, str]] = (),
    part: str = "",
) -> None:
    """Fail unless the two sides differ in what is declared, and in nothing else.

    With ``part`` ("reply" or "state") only that part of the records is compared.
    """
    renames = tuple(renames)
    go = run(scenario, Side.GO, directory, renames)
    ours = run(scenario, Side.OURS, directory, renames)
    found = [one for one in deltas(go, ours) if not part or f" / {part} / " in one.path]
    undeclared = [one for one in found if not any(each.matches(one) for each in (*declared, *COMMON))]
    unseen = [each for each in declared if not any(each.matches(one) for one in found)]
    told = [f"  {one}" for one in undeclared]
    if undeclared:
        told = ["path: Go's | ours", *told, *_errors("Go", go), *_errors("ours", ours)]
    told += [f"declared, but there is no such difference: {each.id} ({each.where})" for each in unseen]
    assert not told, "\n".join(["", *told])


def _errors(whose: str, world: World) -> list[str]:
    return [
        f"  {whose} said at {step}: {record['reply']['(says)']}"
        for step, record in world.records
        if record.get("reply", {}).get("status")
    ]


def _unequal(path: str, go: Any, ours: Any) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(go, dict) and isinstance(ours, dict):
        for key in dict.fromkeys([*go, *ours]):
            yield from _unequal(f"{path} / {key}", go.get(key, ABSENT), ours.get(key, ABSENT))
    elif isinstance(go, dict) and not go and ours == ABSENT:
        return
    elif go != ours:
        yield path, go, ours


def _shown(value: Any) -> str:
    return value if value == ABSENT else json.dumps(value)
