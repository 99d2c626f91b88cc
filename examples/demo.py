"""Bring up examples/hello on this machine, check every claim it makes, take it down, and compare with before.

Run as root: ``make demo``. Exit status 0 only if all of it holds.
"""

from __future__ import annotations

import base64
import contextlib
import difflib
import json
import os
import re
import ssl
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

HELLO = Path(__file__).resolve().parent / "hello"
PODS = ("client", "dual-stack", "host-network", "web")
OURS = (Path("/var/lib/podwire"), Path("/run/podwire"))
PODWIRE = (sys.executable, "-m", "podwire")
WEB_PORT, DUAL_PORT, HOST_NETWORK_PORT = 18080, 18081, 18082
PATIENCE = 60
# Counters and clocks of the kernel, which change whatever anybody does.
VOLATILE = re.compile(
    r"nf_conntrack_count|\.stable_secret|/gc_stale_time|random|netdev_rss_key|dentry|inode|file-nr"
)


def text(*command: str, timeout: float = 30) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=True).stdout


def podwire(*arguments: str, timeout: float = PATIENCE) -> str:
    done = subprocess.run(
        (*PODWIRE, *arguments), capture_output=True, text=True, timeout=timeout, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"podwire {' '.join(arguments)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def sysctls() -> str:
    lines = []
    for path in sorted(Path("/proc/sys/net").rglob("*")):
        if path.is_file() and not VOLATILE.search(str(path)):
            with contextlib.suppress(OSError):
                lines.append(f"{path} = {path.read_text().strip()}")
    return "\n".join(lines)


def tree(directory: Path) -> str:
    if not directory.exists():
        return "(not there)"
    return "\n".join(str(path) for path in sorted((directory, *directory.rglob("*"))))


def host() -> dict[str, str]:
    """Everything that must be the same before and after."""
    return {
        "ip -j link": json.dumps(json.loads(text("ip", "-j", "link")), indent=1),
        "ip -j address": json.dumps(
            [
                [link["ifname"], sorted(entry["local"] for entry in link.get("addr_info", ()))]
                for link in json.loads(text("ip", "-j", "address"))
            ],
            indent=1,
        ),
        "ip route": text("ip", "route", "show", "table", "all")
        + text("ip", "-6", "route", "show", "table", "all"),
        "ip netns": text("ip", "netns"),
        "nft list ruleset": text("nft", "list", "ruleset"),
        "sysctl net": sysctls(),
        **{str(directory): tree(directory) for directory in OURS},
    }


def differences(before: dict[str, str], after: dict[str, str]) -> list[str]:
    lines = []
    for what, was in before.items():
        if was != after[what]:
            changed = difflib.unified_diff(
                was.splitlines(), after[what].splitlines(), "before", "after", lineterm="", n=0
            )
            lines += [f"{what}:", *(f"    {line}" for line in changed)]
    return lines


def fetch(url: str) -> str:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=5) as answer:
        body: bytes = answer.read()
    return body.decode().strip()


def at(address: str, port: int) -> str:
    return f"http://[{address}]:{port}/" if ":" in address else f"http://{address}:{port}/"


def inside(pod: str, address: str, port: int) -> str:
    """What a program in ``pod`` gets from the address."""
    return podwire(
        "exec", pod, "--", "/bin/busybox", "timeout", "5", "/bin/busybox", "wget", "-qO-", at(address, port)
    ).strip()


@dataclass
class Claims:
    """Claims, each checked and printed as it is made."""

    failed: list[str] = field(default_factory=list)
    made: int = 0

    def check(self, claim: str, question: Callable[[], str], wanted: str) -> None:
        """The answer to ``question`` contains ``wanted``."""
        self.made += 1
        try:
            answer = question()
            good = wanted in answer
        except (OSError, RuntimeError, subprocess.SubprocessError, urllib.error.URLError) as error:
            answer, good = str(error), False
        print(
            f"  {'✓' if good else '✗'} {claim}: {answer.splitlines()[0] if answer else '(nothing)'}",
            flush=True,
        )
        if not good:
            self.failed.append(claim)


def refuse() -> str:
    """Why the demo had better not run here; empty if nothing speaks against it."""
    if os.geteuid() != 0:
        return "it needs root (make demo as root)"
    for directory in OURS:
        if directory.exists():
            return f"{directory} exists: podwire is in use here. Should it go? podwire down"
    links = {link["ifname"] for link in json.loads(text("ip", "-j", "link"))}
    if "podwire0" in links:
        return "a link podwire0 exists, which is none of this demo's"
    return ""


def wait_for_pods() -> None:
    """Return when all pods are Running and ready, told by the node as it happens."""
    watch = subprocess.Popen(
        (*PODWIRE, "get", "pods", "--watch", "--no-headers"), stdout=subprocess.PIPE, text=True
    )
    alarm = threading.Timer(PATIENCE, watch.kill)
    alarm.start()
    missing = set(PODS)
    try:
        with watch:
            for line in watch.stdout or ():
                name, ready, status, *_ = line.split()
                if status == "Running" and ready == "1/1":
                    missing -= {pod for pod in PODS if name.startswith(f"{pod}-")}
                if not missing:
                    watch.kill()
                    return
    finally:
        alarm.cancel()
    raise RuntimeError(f"not running after {PATIENCE} s: {', '.join(sorted(missing))}")


def claims_of_the_pods(claims: Claims) -> None:
    pods = {
        pod["metadata"]["labels"]["app"]: pod
        for pod in json.loads(podwire("get", "pods", "-o", "json"))["items"]
    }
    addresses = {
        name: [entry["ip"] for entry in pod["status"].get("podIPs", [])] for name, pod in pods.items()
    }

    def phase_and_addresses(name: str) -> str:
        return f"{pods[name]['status']['phase']}, {', '.join(addresses[name])}"

    for name in PODS:
        claims.check(
            f"{name} is Running",
            partial(phase_and_addresses, name),
            "Running, ",
        )
    web4, web6 = split(addresses["web"])
    dual4, dual6 = split(addresses["dual-stack"])
    client4, client6 = split(addresses["client"])
    page, shared = "hello from the web pod", "hello from the host network"
    print("\nFrom pod to pod")
    claims.check("client reaches web at its pod IP", lambda: inside("client", web4, 80), page)
    claims.check("client reaches web over IPv6", lambda: inside("client", web6, 80), page)
    claims.check(
        "dual-stack sees the client's own IPv4 address", lambda: inside("client", dual4, 8080), client4
    )
    claims.check(
        "dual-stack sees the client's own IPv6 address", lambda: inside("client", dual6, 8080), client6
    )
    print("\nFrom the host to a pod")
    claims.check("web at its pod IP", lambda: fetch(at(web4, 80)), page)
    claims.check("web over IPv6", lambda: fetch(at(web6, 80)), page)
    print("\nHost ports")
    host4, host6 = host_addresses()
    claims.check("127.0.0.1", lambda: fetch(at("127.0.0.1", WEB_PORT)), page)
    claims.check(f"the host's IPv4 address {host4}", lambda: fetch(at(host4, WEB_PORT)), page)
    claims.check(f"the host's IPv6 address {host6}", lambda: fetch(at(host6, WEB_PORT)), page)
    claims.check("from another pod", lambda: inside("client", host4, DUAL_PORT), "dual-stack")
    claims.check("from another pod over IPv6", lambda: inside("client", host6, DUAL_PORT), "dual-stack")
    claims.check("from the pod itself", lambda: inside("web", host4, WEB_PORT), page)
    print("\nThe host-network pod")
    claims.check("from the host", lambda: fetch(at("127.0.0.1", HOST_NETWORK_PORT)), shared)
    claims.check("from a pod", lambda: inside("client", host4, HOST_NETWORK_PORT), shared)
    print("\nSeen from the command line")
    claims.check("the client's log", lambda: podwire("logs", "client"), "ready")
    claims.check(
        "a program inside has the pod's name", lambda: podwire("exec", "client", "--", "hostname"), "client"
    )
    claims.check("the API server has a mirror pod of each", mirrored, ", ".join(PODS))
    broken = f"{HELLO / 'broken.yaml'}:9"
    claims.check(
        "the broken manifest is reported with its file and line", lambda: said_about("broken.yaml"), broken
    )
    claims.check("and with the field that is wrong", lambda: said_about("broken.yaml"), "comand")


def mirrored() -> str:
    """The pods that the API server has, as kubectl would ask it: with its kubeconfig."""
    kubeconfig = json.loads((OURS[0] / "apiserver" / "kubeconfig").read_text())
    cluster = kubeconfig["clusters"][0]["cluster"]
    authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
    request = urllib.request.Request(
        f"{cluster['server']}/api/v1/namespaces/default/pods",
        headers={"Authorization": f"Bearer {kubeconfig['users'][0]['user']['token']}"},
    )
    secure = urllib.request.HTTPSHandler(context=ssl.create_default_context(cadata=authority))
    with urllib.request.build_opener(urllib.request.ProxyHandler({}), secure).open(request, timeout=5) as got:
        items = json.load(got)["items"]
    return ", ".join(sorted(pod["metadata"]["labels"]["app"] for pod in items))


def said_about(name: str) -> str:
    events = json.loads(podwire("get", "events", "--all-namespaces", "-o", "json"))["items"]
    return "\n".join(event["message"] for event in events if name in event["message"])


def split(addresses: list[str]) -> tuple[str, str]:
    """The IPv4 and the IPv6 address."""
    four = [address for address in addresses if ":" not in address]
    six = [address for address in addresses if ":" in address]
    return four[0], six[0]


def host_addresses() -> tuple[str, str]:
    """An address of each family that this host has: its own before that of the pods' bridge."""
    links: list[dict[str, Any]] = json.loads(text("ip", "-j", "address", "show", "scope", "global"))
    links.sort(key=lambda link: link["ifname"] == "podwire0")
    found = [entry["local"] for link in links for entry in link["addr_info"] if "local" in entry]
    return split(found)


def main() -> int:
    reason = refuse()
    if reason:
        print(f"demo: not here: {reason}", file=sys.stderr)
        return 1
    claims = Claims()
    before = host()
    print(f"podwire up --detach {HELLO}", flush=True)
    try:
        print(podwire("up", "--detach", str(HELLO)), end="", flush=True)
        wait_for_pods()
        print(f"\n{podwire('get', 'pods', '-o', 'wide')}")
        claims_of_the_pods(claims)
    except (RuntimeError, subprocess.SubprocessError, OSError, LookupError) as error:
        print(f"  ✗ {error}")
        claims.failed.append(str(error))
        log = OURS[0] / "node.log"
        if log.exists():
            print(f"\nThe end of {log}:\n" + "\n".join(log.read_text().splitlines()[-20:]))
    finally:
        print("\npodwire down", flush=True)
        down = subprocess.run((*PODWIRE, "down", "--timeout", "5"), timeout=PATIENCE * 2, check=False)
    claims.check("podwire down succeeds", lambda: f"exit status {down.returncode}", "exit status 0")
    changed = differences(before, host())
    claims.check(
        f"before and after are the same ({', '.join(before)})",
        lambda: "\n".join(changed) or "no difference",
        "no diff",
    )
    for line in changed:
        print(f"    {line}")
    if claims.failed:
        print(f"\n{len(claims.failed)} of {claims.made} claims do not hold.")
        return 1
    print(f"\nAll {claims.made} claims hold.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
