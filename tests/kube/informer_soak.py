"""Informers beside an API server that is killed at random: ``python -m tests.kube.informer_soak``.

Writers create, change and delete objects of their own, and know what was answered. The server is killed
(SIGKILL) and started again on its files. No informer may tell what does not follow from what it told before;
one that was never made to list again has told every write that was answered; at the end all stores are equal
to the server, and the server has all that it answered.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from podwire.kube import config
from podwire.kube.client import Client
from podwire.kube.decode import identity
from podwire.kube.errors import KubeError, NotFound
from podwire.kube.informer import Change, Informer
from podwire.kube.resource import CONFIG_MAPS
from podwire.kube.versions import is_older

Object = dict[str, Any]
NAMESPACE = "default"


class Server:
    """``podwire apiserver`` as a process."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.process: asyncio.subprocess.Process | None = None
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]

    @property
    def kubeconfig(self) -> Path:
        return self.root / "lib" / "apiserver" / "kubeconfig"

    async def start(self) -> None:
        """Start it, and return when it serves."""
        command = [sys.executable, "-m", "podwire", "apiserver", "--root", str(self.root)]
        self.process = await asyncio.create_subprocess_exec(
            *command, "--listen", f"127.0.0.1:{self.port}", stdout=asyncio.subprocess.DEVNULL
        )
        while self.process.returncode is None:
            with contextlib.suppress(KubeError):
                async with Client(config.load(self.kubeconfig)) as client:
                    await client.ping()
                    return
            await asyncio.sleep(0.05)
        raise RuntimeError(f"the server has ended: {self.process.returncode}")

    async def kill(self) -> None:
        """SIGKILL."""
        assert self.process is not None
        self.process.kill()
        await self.process.wait()


class Follower:
    """An informer, and what it has told."""

    def __init__(self, name: str, client: Client, **chosen: Any) -> None:
        self.name = name
        self.chosen = {key: value for key, value in chosen.items() if key in ("labels",)}
        self.faults: list[str] = []
        self.seen: dict[str, tuple[str, str]] = {}
        self.versions: set[str] = set()
        self.informer = Informer(
            client, CONFIG_MAPS, namespace=NAMESPACE, problem=lambda error: None, **chosen
        )
        self.replaced = 0
        """How often it has had to list."""
        self._count_lists(self.informer.reflector._sink)
        self.informer.add_handler(self._told)

    def _count_lists(self, sink: Any) -> None:
        replace = sink.replace

        def counted(items: list[Any]) -> None:
            self.replaced += 1
            replace(items)

        sink.replace = counted

    def _told(self, change: Change[Object]) -> None:
        key, known = change.key, self.seen.get(change.key)
        now = change.sealed.uid, change.sealed.version
        self.versions.add(change.sealed.version)
        if (change.type == "add") != (known is None):
            self.faults.append(f"{self.name}: {change.type} of {key}, known {known}, now {now}")
        if known is not None and is_older(now[1], known[1]):
            self.faults.append(f"{self.name}: {key} went back from {known} to {now}")
        if change.type == "delete":
            self.seen.pop(key, None)
        else:
            self.seen[key] = now


class Writer:
    """Writes objects of its own, one after the other, and knows what is certain."""

    def __init__(self, number: int, client: Client, rng: random.Random) -> None:
        self.number = number
        self.client = client
        self.rng = rng
        self.certain: dict[str, Object | None] = {}
        self.answered: set[str] = set()
        """Versions that were answered."""

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            name = f"w{self.number}-{self.rng.randrange(8)}"
            with contextlib.suppress(KubeError):
                await self._step(name)

    async def _step(self, name: str) -> None:
        known = self.certain.pop(name, None) if name in self.certain else await self._read(name)
        if known is None:
            color = self.rng.choice(("red", "blue"))
            body = {"metadata": {"name": name, "labels": {"color": color}}, "data": {"n": "0"}}
            made = await self.client.create(CONFIG_MAPS, _object(body), NAMESPACE)
        elif self.rng.random() < 0.2:
            await self.client.delete(
                CONFIG_MAPS, name, NAMESPACE, version=known["metadata"]["resourceVersion"]
            )
            self.certain[name] = None
            return
        else:
            number = str(int(known["data"]["n"]) + 1)
            labels = {"color": self.rng.choice(("red", "blue"))}
            change = {"metadata": {"labels": labels}, "data": {"n": number}}
            made = await self.client.patch(CONFIG_MAPS, change, name, NAMESPACE)
        self.answered.add(made["metadata"]["resourceVersion"])
        self.certain[name] = made

    async def _read(self, name: str) -> Object | None:
        try:
            return await self.client.get(CONFIG_MAPS, name, NAMESPACE)
        except NotFound:
            return None


def _object(body: Object) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", **body}


async def soak(kills: int, writers: int, seed: int) -> list[str]:
    """Do it all; what was wrong."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="podwire-soak-") as directory:
        server = Server(Path(directory))
        await server.start()
        try:
            return await _soak(server, kills, writers, rng)
        finally:
            await server.kill()


async def _soak(server: Server, kills: int, writers: int, rng: random.Random) -> list[str]:
    began = time.monotonic()
    async with contextlib.AsyncExitStack() as stack:

        async def client() -> Client:
            made = Client(config.load(server.kubeconfig), qps=10_000, burst=10_000)
            return await stack.enter_async_context(made)

        followers = [
            Follower("all", await client()),
            Follower("pages", await client(), watch_list=False),
            Follower("red", await client(), labels="color=red"),
            Follower("blue", await client(), labels="color=blue", watch_list=False),
        ]
        authors = [Writer(number, await client(), random.Random(rng.random())) for number in range(writers)]
        following = [asyncio.create_task(each.informer.run()) for each in followers]
        for each in followers:
            await each.informer.wait_synced()
        writing = [asyncio.create_task(each.run()) for each in authors]
        for _ in range(kills):
            await asyncio.sleep(rng.uniform(0.2, 2.0))
            await server.kill()
            await asyncio.sleep(rng.choice((0.0, 0.5, 3.0)))
            await server.start()
        await asyncio.sleep(2)
        for task in writing:
            task.cancel()
        await asyncio.gather(*writing, return_exceptions=True)
        faults = await _compare(await client(), followers, authors)
        for task in following:
            task.cancel()
        await asyncio.gather(*following, return_exceptions=True)
    answered = set().union(*(each.answered for each in authors))
    for each in followers[:2]:
        missed = answered - each.versions
        if missed and each.replaced == 1:
            faults.append(f"{each.name}: {len(missed)} answered writes were never told")
    print(f"{kills} kills, {len(answered)} writes answered, {time.monotonic() - began:.0f} s")
    for each in followers:
        print(f"{each.name}: {len(each.versions)} states told, {each.replaced} lists")
    return faults


async def _difference(client: Client, follower: Follower) -> str:
    page = await client.list_all(CONFIG_MAPS, NAMESPACE, **follower.chosen)
    wanted = {identity(found).key: identity(found).version for found in page.items}
    stored = {found.key: found.version for found in follower.informer.store.all_sealed()}
    told = {key: version for key, (_, version) in follower.seen.items()}
    return "" if stored == told == wanted else f"{follower.name}: {stored}, told {told}, in place of {wanted}"


async def _compare(client: Client, followers: list[Follower], authors: list[Writer]) -> list[str]:
    faults: list[str] = []
    for each in followers:
        fault = ""
        for _ in range(600):
            fault = await _difference(client, each)
            if not fault:
                break
            await asyncio.sleep(0.1)
        faults += [*([fault] if fault else []), *each.faults]
    everything = {
        found["metadata"]["name"]: found for found in (await client.list_all(CONFIG_MAPS, NAMESPACE)).items
    }
    for author in authors:
        for name, certain in author.certain.items():
            found = everything.get(name)
            if found != certain:
                faults.append(f"{name}: {found} is there, {certain} was answered")
    return faults


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--writers", type=int, default=6)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "big"))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    faults = asyncio.run(soak(options.kills, options.writers, options.seed))
    for fault in faults:
        print(fault)
    raise SystemExit(bool(faults))


if __name__ == "__main__":
    main()
