"""A throwaway host with pods, watched by ``ip`` and ``nft``; our plugins and the reference ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from podwire.cni.convert import encode_result
from podwire.cni.plugin import Request, Result, call, make_request
from podwire.kernel.host import Kernel
from podwire.plugins import load

GO_PLUGINS = Path("/usr/lib/cni")
ROOT = Path(__file__).parents[2]


def run(*command: str, check: bool = True, stdin: str = "") -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, input=stdin)
    if check and done.returncode:
        raise AssertionError(f"{' '.join(command)}: {done.stderr or done.stdout}")
    return done.stdout


def ip_batch(text: str, pod: str = "") -> None:
    """Run a line of ``ip`` after the other in one process."""
    run("ip", *(["-n", pod] if pod else []), "-batch", "-", stdin=text)


def ip(*arguments: str, pod: str = "") -> list[dict[str, Any]]:
    inside = ["-n", pod] if pod else []
    text = run("ip", *inside, "-d", "-j", *arguments)
    found: list[dict[str, Any]] = json.loads(text or "[]")
    return [entry for entry in found if entry]


def links(pod: str = "") -> dict[str, dict[str, Any]]:
    return {link["ifname"]: link for link in ip("link", "show", pod=pod)}


def settled(name: str, pod: str = "") -> None:
    """Wait until a link has noticed its carrier: up to a second after its other end is up."""
    limit = time.monotonic() + 5
    while links(pod)[name]["operstate"] not in ("UP", "UNKNOWN"):
        assert time.monotonic() < limit, f"{name} has no carrier"


def addresses(device: str, pod: str = "") -> list[str]:
    return [
        f"{one['local']}/{one['prefixlen']}"
        for link in ip("address", "show", "dev", device, pod=pod)
        for one in link["addr_info"]
    ]


def routes(pod: str = "", family: str = "-4", table: str = "main") -> list[dict[str, Any]]:
    inside = ["-n", pod] if pod else []
    found: list[dict[str, Any]] = json.loads(
        run("ip", *inside, family, "-j", "route", "show", "table", table) or "[]"
    )
    return found


def reaches(pod: str, address: str) -> bool:
    inside = ["ip", "netns", "exec", pod] if pod else []
    done = subprocess.run(
        [*inside, "busybox", "ping", "-c", "1", "-W", "1", address], capture_output=True, check=False
    )
    return done.returncode == 0


def sysctl(key: str, pod: str = "") -> str:
    inside = ["ip", "netns", "exec", pod] if pod else []
    return run(*inside, "cat", f"/proc/sys/{key}").strip()


class Host:
    """The test's namespace as a node: pods, and one network at a time."""

    def __init__(self, directory: Path, kernel: Kernel) -> None:
        self.directory = directory
        self.kernel = kernel
        self.data = directory / "networks"
        self.pods: list[str] = []

    def pod(self, name: str) -> str:
        run("ip", "netns", "add", name)
        self.pods.append(name)
        return name

    def remove_pods(self) -> None:
        for name in self.pods:
            run("ip", "netns", "delete", name, check=False)

    def config(self, *subnets: str, **options: Any) -> dict[str, Any]:
        config: dict[str, Any] = {
            "cniVersion": "1.1.0",
            "name": "net",
            "type": "bridge",
            "bridge": "pw0",
            **options,
        }
        if subnets and "ipam" not in options:
            config["ipam"] = {
                "type": "host-local",
                "dataDir": str(self.data),
                "ranges": [[{"subnet": subnet}] for subnet in subnets],
            }
        return config

    def call(
        self, command: str, config: dict[str, Any], pod: str = "", *, type: str = "", **options: Any
    ) -> Result | None:
        plugin = load(type or config["type"])
        assert plugin is not None
        return call(plugin, self.request(command, config, pod, type=type, **options), self.kernel)

    def request(
        self,
        command: str,
        config: dict[str, Any],
        pod: str = "",
        *,
        type: str = "",
        container_id: str = "",
        netns: str | None = None,
        ifname: str = "eth0",
        args: str = "",
        result: Result | None = None,
        path: tuple[str, ...] = (),
    ) -> Request[Any]:
        plugin = load(type or config["type"])
        assert plugin is not None
        if result is not None:
            version = config["cniVersion"]
            config = {**config, "prevResult": json.loads(encode_result(result, version))}
        return make_request(
            plugin,
            command,
            config,
            container_id=container_id or (f"id-{pod}" if pod else ""),
            netns=(f"/run/netns/{pod}" if pod else "") if netns is None else netns,
            ifname=ifname,
            args=args,
            path=path,
            registry=load,
        )

    def add(self, config: dict[str, Any], pod: str, **options: Any) -> Result:
        result = self.call("ADD", config, pod, **options)
        assert result is not None
        return result

    def check(self, config: dict[str, Any], pod: str, result: Result, **options: Any) -> None:
        self.call("CHECK", config, pod, result=result, **options)

    def delete(self, config: dict[str, Any], pod: str, **options: Any) -> None:
        self.call("DEL", config, pod, **options)

    def held(self, network: str = "net") -> dict[str, str]:
        """The addresses that are taken, read from the files."""
        home = self.data / network
        if not home.is_dir():
            return {}
        return {
            path.name: path.read_text().split("\n")[0].strip()
            for path in home.iterdir()
            if path.name != "lock" and not path.name.startswith("last_reserved_ip.")
        }


def execute(
    program: Path | str,
    command: str,
    config: dict[str, Any],
    *,
    container_id: str = "",
    netns: str = "",
    ifname: str = "",
    args: str = "",
    path: str = str(GO_PLUGINS),
) -> subprocess.CompletedProcess[bytes]:
    """Run a plugin's executable as a runtime does."""
    variables = {
        "CNI_COMMAND": command,
        "CNI_CONTAINERID": container_id,
        "CNI_NETNS": netns,
        "CNI_IFNAME": ifname,
        "CNI_ARGS": args,
        "CNI_PATH": path,
    }
    return subprocess.run(
        [str(program)],
        input=json.dumps(config).encode(),
        env={"PATH": os.environ["PATH"], **{key: value for key, value in variables.items() if value}},
        capture_output=True,
        check=False,
    )


def python_plugin(type: str) -> list[str]:
    return [sys.executable, "-m", "podwire.plugins", type]
