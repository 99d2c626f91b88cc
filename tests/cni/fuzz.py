"""Random and mutated configurations, environments and plugin outputs, by a seed.

Each case is judged: an answer of the protocol, an error of our own kinds, in bounded time, nothing left over.
"""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

from podwire.cni import config, convert, invoke
from podwire.cni.args import parse_args
from podwire.cni.cache import Cache
from podwire.cni.errors import CNIError
from podwire.cni.plugin import Result, call, make_request, respond
from podwire.cni.request import COMMANDS
from podwire.cni.runtime import Attachment, Runtime
from tests.cni.helpers import RESULT, Recorder, script

SECONDS_A_CASE = 5.0

WORDS = [
    *[
        "a",
        "c1",
        "eth0",
        "net",
        "/run/netns/x",
        "../x",
        ".",
        "..",
        "a/b",
        "a=b",
        "A=1;B=2",
        ";",
        "=",
        "é",
        "1",
        "0",
        "true",
        "0.1.0",
        "0.4.0",
        "1.0.0",
        "1.1.0",
        "9.9.9",
    ],
    *[
        "x.y",
        "10.1.0.5/16",
        "10.1.0.5",
        "::/0",
        "fd00::1",
        "fd00::1/64",
        "::ffff:1.2.3.4/100",
        "999.1.1.1/8",
        "0x7f",
        "host-local",
    ],
    *["rec", "IgnoreUnknown=1", "[]", "{}", "null", "<script>&"],
    *("", "a b", "\0", "\udc80", "\ud800", "\u2028", "x" * 300),
]
LEAVES: list[Any] = [None, True, False, 0, 1, -1, 2**31, 2**63, 2**64, 10**40, 1.5, 1e308, -0.0, [], {}]
KEYS = [
    *[
        "cniVersion",
        "cniversion",
        "CNIVERSION",
        "cniVersions",
        "name",
        "Name",
        "type",
        "plugins",
        "ipam",
        "dns",
        "ips",
        "capabilities",
    ],
    *[
        "runtimeConfig",
        "prevResult",
        "prevresult",
        "args",
        "disableCheck",
        "disableGC",
        "interfaces",
        "loadOnlyInlinedPlugins",
    ],
    *[
        "mtu",
        "bandWidth",
        "ranges",
        "address",
        "gateway",
        "interface",
        "routes",
        "dst",
        "gw",
        "version",
        "ip4",
        "ip6",
        "ip",
        "containerID",
    ],
    *[
        "cni.dev/valid-attachments",
        "cni.dev/attachments",
        "ifname",
        "sandbox",
        "mac",
        "code",
        "msg",
        "details",
        "subnet",
    ],
    *("", "\u2028", "é"),
]
SEEDS: list[Any] = [
    {
        "cniVersion": "1.1.0",
        "name": "net",
        "type": "rec",
        "mtu": 1500,
        "ranges": [[{"subnet": "10.0.0.0/8"}]],
    },
    {"cniVersion": "1.1.0", "name": "net", "plugins": [{"type": "rec", "capabilities": {"mac": True}}]},
    {
        "cniVersion": "0.4.0",
        "name": "net",
        "disableCheck": "true",
        "plugins": [{"type": "rec"}, {"type": "rec"}],
    },
    {"cniVersions": ["0.4.0", "1.0.0"], "name": "net", "plugins": [{"type": "rec", "ipam": {"type": "rec"}}]},
    {"cniVersion": "0.2.0", "ip4": {"ip": "10.0.0.2/8", "routes": [{"dst": "0.0.0.0/0"}]}, "dns": {}},
    {**convert.to_object(RESULT, "1.1.0"), "cni.dev/attachments": [{"containerID": "c1", "ifname": "eth0"}]},
    convert.to_object(RESULT, "0.4.0"),
    {"code": 7, "msg": "no", "details": "x", "cniVersion": "1.0.0"},
]
VARIABLES = (
    "CNI_CONTAINERID",
    "CNI_NETNS",
    "CNI_IFNAME",
    "CNI_ARGS",
    "CNI_PATH",
    "CNI_NETNS_OVERRIDE",
    "TRACEPARENT",
)


class Fuzz:
    """Cases from one seed; ``one`` judges the next and raises AssertionError with the case if it fails."""

    def __init__(self, seed: int, directory: Path) -> None:
        self.random = random.Random(seed)
        self.directory = directory
        self.recorder = Recorder()
        self.recorder.acts = {"ADD": self._sometimes, "DEL": self._sometimes, "CHECK": self._sometimes}
        self.refusals = 0
        self.successes = 0

    def _sometimes(self, _request: Any) -> Result | None:
        if self.random.random() < 0.05:
            raise self.random.choice(
                [CNIError("no", code=7), ValueError("oops"), KeyError("x"), CNIError("\udc80")]
            )
        return None

    def value(self, depth: int = 3) -> Any:
        """Any JSON value."""
        pick = self.random.random()
        if depth == 0 or pick < 0.5:
            return self.random.choice(LEAVES) if pick < 0.2 else self.random.choice(WORDS)
        if pick < 0.7:
            return [self.value(depth - 1) for _ in range(self.random.randrange(4))]
        return {self.random.choice(KEYS): self.value(depth - 1) for _ in range(self.random.randrange(5))}

    def mutated(self, value: Any) -> Any:
        """A value with a few places changed."""
        if self.random.random() < 0.12:
            return self.value()
        if isinstance(value, dict):
            made = {key: self.mutated(each) for key, each in value.items() if self.random.random() > 0.04}
            if self.random.random() < 0.15:
                made[self.random.choice(KEYS)] = self.value(2)
            return made
        if isinstance(value, list):
            made_list = [self.mutated(each) for each in value]
            return made_list * 2 if self.random.random() < 0.05 else made_list
        return value

    def text(self) -> bytes:
        """A JSON text, sometimes broken."""
        text = json.dumps(self.mutated(self.random.choice(SEEDS))).encode()
        pick = self.random.random()
        if pick < 0.1:
            at = self.random.randrange(len(text) + 1)
            return text[:at] + self.random.randbytes(self.random.randrange(4)) + text[at:]
        if pick < 0.15:
            return text[: self.random.randrange(len(text) + 1)]
        if pick < 0.17:
            return b"[" * self.random.choice([10, 5000, 100000])
        return text

    def word(self) -> str:
        """A word, as a variable holds it."""
        return self.random.choice(WORDS)

    async def one(self) -> None:
        """Judge one case."""
        if self.random.random() < 0.02:
            async with asyncio.timeout(SECONDS_A_CASE):
                await self._foreign()
            return
        judge = self.random.choice([self._plugin, self._result, self._config, self._record, self._arguments])
        if self.random.random() < 0.25:
            async with asyncio.timeout(SECONDS_A_CASE):
                await self._run()
            return
        judge()

    def _plugin(self) -> None:
        env = {key: self.word() for key in VARIABLES if self.random.random() < 0.8}
        if self.random.random() < 0.6:
            env |= {"CNI_CONTAINERID": "c1", "CNI_NETNS": "/none/x", "CNI_IFNAME": "eth0", "CNI_ARGS": ""}
        command = self.random.choice([*COMMANDS, "VERSION", "add", "\udc80", ""])
        stdin = self.text()
        reply = respond(self.recorder.plugin, {**env, "CNI_COMMAND": command}, stdin)
        if reply.status:
            said = json.loads(reply.stdout)
            assert isinstance(said["code"], int) and isinstance(said["msg"], str), (command, env, stdin)
            known = said["code"] != 999 or said["msg"] in {"oops", "'x'", "\\udc80"}
            assert known, (command, env, stdin, said)
            self.refusals += 1
        elif reply.stdout:
            assert json.loads(reply.stdout)["cniVersion"], (command, env, stdin)
            self.successes += 1

    def _result(self) -> None:
        text = self.text()
        try:
            result = convert.decode_result(text, self.random.choice(["", "0.2.0", "1.1.0"]))
        except CNIError as error:
            assert error.code in {1, 6}, (text, error)
            assert json.loads(error.to_json()), text
            self.refusals += 1
            return
        for version in ("0.3.1", "1.1.0"):
            again = convert.decode_result(convert.encode_result(result, version))
            assert again.ips == result.ips, text
        failed = invoke._failure("/bin/p", self.random.randint(-64, 255), invoke.Outcome(text, "", 0.0))
        assert json.loads(failed.to_json())["msg"], text
        self.successes += 1

    def _config(self) -> None:
        text = self.text()
        try:
            network = config.parse_list(text, "x.conflist")
        except config.ConfigError as error:
            assert str(error).startswith("x.conflist: "), (text, error)
            self.refusals += 1
            return
        assert config.parse_list(network.raw).plugins == network.plugins, text
        self.successes += 1

    def _record(self) -> None:
        path = self.directory / "records" / "results" / "net-c1-eth0"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.text())
        cache = Cache(self.directory / "records")
        for record in [*cache.records(), cache.read("net", "c1", "eth0")]:
            if record is not None:
                record.typed_result()
        cache.remove("net", "c1", "eth0")
        path.unlink(missing_ok=True)

    def _arguments(self) -> None:
        text = ";".join(self.word() for _ in range(self.random.randrange(4)))
        try:
            parse_args(text)
        except CNIError as error:
            assert error.code == 4 and error.to_json(), text
        conf = self.mutated(SEEDS[0])
        if not isinstance(conf, dict):
            return
        try:
            request = make_request(
                self.recorder.plugin, "ADD", conf, container_id="c1", netns="/n", ifname="eth0"
            )
            call(self.recorder.plugin, request, None)
        except CNIError as error:
            assert json.loads(error.to_json()), conf

    async def _run(self) -> None:
        text = self.text()
        try:
            network = config.parse_list(text)
        except config.ConfigError:
            return
        self.recorder.requests.clear()
        attachment = Attachment(
            self.random.choice(["c1", self.word()]),
            self.random.choice(["/run/netns/x", self.word()]),
            self.random.choice(["eth0", self.word()]),
            {self.word(): self.word()} if self.random.random() < 0.3 else {},
            {"mac": self.value(2)} if self.random.random() < 0.3 else {},
        )
        runtime = Runtime(
            {"rec": self.recorder.plugin, "host-local": self.recorder.plugin}, cache_dir=self.directory
        )
        async with runtime:
            for operation in (runtime.add, runtime.check, runtime.delete):
                try:
                    await operation(network, attachment, timeout=SECONDS_A_CASE)
                    self.successes += 1
                except CNIError as error:
                    assert json.loads(error.to_json()), text
                    self.refusals += 1
            await self._clean(runtime, text)

    async def _foreign(self) -> None:
        """A program that prints whatever, with whatever status."""
        self.recorder.requests.clear()
        program = self.directory / "bin" / "foreign"
        if not program.exists():
            program.parent.mkdir()
            script(program.parent, "foreign", "cat $0.out; cat $0.err >&2; exit $(cat $0.status)")
        text = self.text()
        program.with_suffix(".out").write_bytes(text)
        program.with_suffix(".err").write_bytes(self.random.randbytes(20))
        program.with_suffix(".status").write_text(str(self.random.choice([0, 0, 1, 77, 255])))
        network = config.parse_list(
            '{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "foreign"}]}'
        )
        attachment = Attachment("c1", "/run/netns/x")
        async with Runtime(path=(str(program.parent),), cache_dir=self.directory) as runtime:
            for operation in (runtime.add, runtime.check, runtime.delete):
                try:
                    await operation(network, attachment)
                    self.successes += 1
                except CNIError as error:
                    assert json.loads(error.to_json()), text
                    self.refusals += 1
            program.with_suffix(".status").write_text("0")
            await self._clean(runtime, text)

    async def _clean(self, runtime: Runtime, text: bytes) -> None:
        """Whatever was refused, once the plugin works nothing of it stays."""
        acts, self.recorder.acts = self.recorder.acts, {}
        for record in runtime.attachments():
            await runtime.delete(record.network, Attachment(record.container_id, ifname=record.ifname))
        self.recorder.acts = acts
        commands = self.recorder.commands
        assert commands.count("ADD") <= commands.count("DEL"), (text, commands)
        self.recorder.requests.clear()
        self.recorder.log.clear()
        left = [each.name for each in (self.directory / "results").glob("*")]
        assert left == [], (text, left)
