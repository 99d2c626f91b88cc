#!/usr/bin/python3 -IS
"""A CNI plugin without a known fault, and with one on demand: what the tester must find, and nothing else.

A program of its own, with the standard library alone. Its configuration's ``role`` makes it a main plugin (a
veth, host-local behind it), an IPAM plugin (host-local in its clothes) or a chained one (keeps a file).
"""

import json
import os
import re
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import Any, NoReturn

FAULT = ""
VERSIONS = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"]
REQUIRED = {
    "ADD": ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"],
    "CHECK": ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"],
    "DEL": ["CNI_CONTAINERID", "CNI_IFNAME"],
    "GC": ["CNI_PATH"],
    "STATUS": [],
    "VERSION": [],
}
SINCE = {"CHECK": "0.4.0", "GC": "1.1.0", "STATUS": "1.1.0"}
GO_NEWEST = "1.0.0"
NETWORKS = Path("/var/lib/cni/networks")
CHAINED = Path("/var/lib/exemplar")

env = os.environ
command = env.get("CNI_COMMAND", "")
conf: dict[str, Any] = {}
version = "1.1.0"


def fail(code: int, msg: str) -> NoReturn:
    said = {"cniVersion": version, "code": code, "msg": msg}
    if FAULT == "error without cniVersion":
        del said["cniVersion"]
    if FAULT == "error without msg":
        del said["msg"]
    if FAULT == "error on stderr":
        print(msg, file=sys.stderr)
        sys.exit(1)
    print(json.dumps(said))
    sys.exit(0 if FAULT == "error with status 0" else 1)


def ip(*words: str, missing_ok: bool = False) -> str:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode and not missing_ok:
        raise OSError(done.stderr.strip())
    return done.stdout


def batch(lines: list[str], *words: str) -> None:
    text = "\n".join(lines)
    done = subprocess.run(
        ["ip", *words, "-batch", "-"], input=text, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise OSError(done.stderr.strip())


def delegate(asked: str, container: str = "") -> dict[str, Any]:
    kind = conf["ipam"]["type"]
    sent = dict(conf)
    if kind == "host-local":
        sent["cniVersion"] = GO_NEWEST
        sent.pop("prevResult", None)
    variables = {**env, "CNI_COMMAND": asked}
    if FAULT == "delegate gets another environment":
        variables.pop("CNI_ARGS", None)
    if FAULT == "delegate gets only its part":
        sent.pop("role", None)
    if container:
        variables["CNI_CONTAINERID"] = container
    for directory in env.get("CNI_PATH", "").split(":"):
        path = Path(directory) / kind
        if path.is_file():
            break
    else:
        fail(7, f"no {kind} in CNI_PATH")
    text = json.dumps(sent)
    done = subprocess.run([path], input=text, capture_output=True, text=True, check=False, env=variables)
    if done.returncode:
        error = json.loads(done.stdout)
        raise OSError(error["msg"])
    return json.loads(done.stdout) if asked == "ADD" else {}


def at_least(wanted: str) -> bool:
    return VERSIONS.index(version) >= VERSIONS.index(wanted)


def shaped(result: dict[str, Any]) -> dict[str, Any]:
    said: dict[str, Any] = {"cniVersion": version}
    if FAULT == "result of another version":
        said["cniVersion"] = "1.0.0" if version != "1.0.0" else "0.4.0"
    if not at_least("0.3.0") and FAULT != "one shape for all versions":
        first = result["ips"][0]
        said["ip4"] = {
            "ip": first["address"],
            "gateway": first["gateway"],
            "routes": result.get("routes", []),
        }
        return said
    said.update({key: result[key] for key in ("interfaces", "ips", "routes") if result.get(key)})
    if not at_least("1.0.0"):
        said["ips"] = [{"version": "4" if "." in one["address"] else "6", **one} for one in said["ips"]]
    elif at_least("1.0.0"):
        said["ips"] = [{key: one[key] for key in one if key != "version"} for one in said["ips"]]
    if FAULT == "interface index out of range":
        said["ips"] = [{**one, "interface": 9} for one in said["ips"]]
    return said


def leases(container: str, ifname: str) -> list[Path]:
    return [path for path, holder in held().items() if holder == (container, ifname)]


def held() -> dict[Path, tuple[str, ...]]:
    found = {}
    for path in (NETWORKS / conf["name"]).glob("*.*.*.*"):
        try:
            found[path] = tuple(path.read_text().split())
        except FileNotFoundError:
            continue
    return found


def host_end() -> str:
    key = f"{env['CNI_CONTAINERID']}/{env['CNI_IFNAME']}"
    if FAULT == "host end named by the container alone":
        key = env["CNI_CONTAINERID"]
    return f"ex{zlib.crc32(key.encode()):08x}"


def pod_name() -> str:
    return Path(env.get("CNI_NETNS", "")).name


def netns_is_there() -> bool:
    path = env.get("CNI_NETNS", "")
    return path.startswith("/run/netns/") and Path(path).exists()


def add_main() -> dict[str, Any]:
    pod, ifname = pod_name(), env["CNI_IFNAME"]
    if FAULT == "needs no netns" and not netns_is_there():
        return {"ips": [{"address": "10.89.0.99/24", "gateway": "10.89.0.1"}]}
    if not netns_is_there():
        fail(8, "CNI_NETNS: no network namespace")
    taken = f'"{ifname}"' in ip("-n", pod, "-j", "link")
    if taken and FAULT != "takes over an interface that is there":
        if FAULT == "leaves a file for a taken ifname":
            Path("/var/lib/exemplar-junk").touch()
        fail(100, f"{ifname} is there already")
    if taken:
        ip("-n", pod, "link", "delete", ifname)
    address: dict[str, Any] = {}
    if FAULT == "link before the address":
        ip("link", "add", host_end(), "type", "veth", "peer", "name", ifname, "netns", pod)
    try:
        address = delegate("ADD")
    except OSError as error:
        if FAULT != "no DEL of a delegate that failed":
            delegate("DEL")
        fail(101, str(error))
    try:
        if FAULT != "link before the address":
            ip("link", "add", host_end(), "up", "type", "veth", "peer", "name", ifname, "netns", pod)
        lines = [f"link set {ifname} up"]
        lines += [f"address add {one['address']} dev {ifname} nodad" for one in address["ips"]]
        gateways = {":" in one["address"]: one["gateway"] for one in address["ips"]}
        for route in address.get("routes", []):
            family = "-6 " if ":" in route["dst"] else ""
            gateway = route.get("gw") or gateways[":" in route["dst"]]
            if FAULT != "a route is not made":
                lines.append(
                    f"{family}route add {route['dst']} via {gateway} dev {ifname}".replace("-6 ", "")
                )
        batch(lines, "-n", pod)
    except OSError as error:
        if FAULT != "link left after a failed ADD":
            ip("link", "delete", host_end(), missing_ok=True)
        if FAULT != "address left after a failed ADD":
            delegate("DEL")
        fail(102, str(error))
    links = {
        "host": json.loads(ip("-j", "link", "show", host_end()))[0],
        "pod": json.loads(ip("-n", pod, "-j", "link", "show", ifname))[0],
    }
    inner = {"name": ifname, "mac": links["pod"]["address"], "mtu": 1500, "sandbox": env["CNI_NETNS"]}
    if FAULT == "another MAC in the result":
        inner["mac"] = "02:00:00:00:00:99"
    if FAULT == "no sandbox in the result":
        del inner["sandbox"]
    if FAULT == "another address in the result":
        address["ips"][0]["address"] = "10.89.0.200/24"
    if not at_least("1.1.0"):
        del inner["mtu"]
    outer = {"name": host_end(), "mac": links["host"]["address"]}
    ips = [{**one, "interface": 1} for one in address["ips"]]
    return {"interfaces": [outer, inner], "ips": ips, "routes": address.get("routes", [])}


def add() -> dict[str, Any]:
    role = conf.get("role", "main")
    if role == "main":
        return add_main()
    if role == "ipam":
        again = leases(env["CNI_CONTAINERID"], env["CNI_IFNAME"])
        if again and FAULT == "another address for the same container":
            return delegate("ADD", container=f"{env['CNI_CONTAINERID']}-again")
        try:
            result = delegate("ADD")
        except OSError as error:
            fail(101, str(error))
        if FAULT == "the same address for all":
            result["ips"][0]["address"] = "10.89.0.50/24"
        return result
    previous = conf.get("prevResult")
    if previous is None and FAULT == "does without prevResult":
        return {"ips": [{"address": "10.89.0.99/24"}]}
    if previous is None:
        fail(7, "prevResult is missing")
    if FAULT == "crash on a sparse prevResult" and not previous["interfaces"]:
        raise IndexError(previous)
    if not (FAULT == "state shared by a container's interfaces" and chained_file().exists()):
        chained_file().parent.mkdir(parents=True, exist_ok=True)
        chained_file().write_text(conf["name"])
    result = dict(previous)
    if FAULT == "prevResult not passed on":
        result["interfaces"] = []
        result["ips"] = [{key: one[key] for key in one if key != "interface"} for one in result["ips"]]
    return result


def chained_file() -> Path:
    name = f"{env['CNI_CONTAINERID']}@{env['CNI_IFNAME']}"
    if FAULT == "state shared by a container's interfaces":
        name = env["CNI_CONTAINERID"]
    return CHAINED / name


def check() -> None:
    previous = conf.get("prevResult")
    if FAULT == "CHECK always succeeds":
        return
    if previous is None:
        fail(7, "CHECK needs prevResult")
    role = conf.get("role", "main")
    if role == "chained":
        if not chained_file().exists():
            fail(100, "its file is gone")
        return
    try:
        delegate("CHECK")
    except OSError as error:
        fail(101, str(error))
    if role == "ipam" or FAULT == "CHECK looks at no interface":
        return
    shown = json.loads(ip("-n", pod_name(), "-j", "address", "show"))
    found = {f"{one['local']}/{one['prefixlen']}" for link in shown for one in link["addr_info"]}
    if not {one["address"] for one in previous["ips"]} <= found:
        fail(100, "an address is gone")
    routes = [one["dst"] for one in json.loads(ip("-n", pod_name(), "-j", "route") or "[]")]
    for route in previous.get("routes", []):
        if ":" not in route["dst"] and route["dst"].replace("0.0.0.0/0", "default") not in routes:
            fail(100, "a route is gone")
    if FAULT == "CHECK fails when another container comes" and len(held()) > 1:
        fail(100, "not alone")


def delete() -> None:
    role = conf.get("role", "main")
    mine = leases(env["CNI_CONTAINERID"], env["CNI_IFNAME"])
    if FAULT == "DEL fails on what is gone" and not mine and not chained_file().exists():
        fail(100, "no such attachment")
    if FAULT == "DEL needs the netns" and not netns_is_there():
        fail(8, "CNI_NETNS is no namespace")
    if FAULT == "DEL without netns does nothing" and not netns_is_there():
        return
    if FAULT == "DEL needs prevResult" and "prevResult" not in conf and at_least("0.4.0"):
        return
    if role == "chained":
        chained_file().unlink(missing_ok=True)
        return
    if role == "main":
        ip("link", "delete", host_end(), missing_ok=True)
    if FAULT == "DEL frees by address":
        for one in conf.get("prevResult", {}).get("ips", []):
            (NETWORKS / conf["name"] / one["address"].partition("/")[0]).unlink(missing_ok=True)
    if FAULT != "DEL frees nothing":
        delegate("DEL")


def collect() -> None:
    listed = conf.get("cni.dev/valid-attachments", conf.get("cni.dev/attachments"))
    if listed is None and FAULT == "GC without a list deletes all":
        listed = []
    if listed is None or FAULT == "GC does nothing":
        return
    valid = {(one["containerID"], one["ifname"]) for one in listed}
    if FAULT == "GC deletes all":
        valid = set()
    for path, holder in held().items():
        if holder not in valid:
            path.unlink()
    for path in CHAINED.glob("*"):
        if tuple(path.name.split("@")) not in valid:
            path.unlink()


def status() -> None:
    for ranges in conf.get("ipam", {}).get("ranges", []):
        start = ranges[0].get("rangeStart")
        full = start and start == ranges[0].get("rangeEnd") and (NETWORKS / conf["name"] / start).exists()
        if full and FAULT != "STATUS knows no exhausted pool":
            fail(50, "no address is left")


def checked() -> None:
    missing = [name for name in REQUIRED[command] if not env.get(name)]
    if missing and f"does not ask for {missing[0]}" != FAULT:
        fail(5 if FAULT == "another code for a missing variable" else 4, f"{', '.join(missing)} missing")
    container = env.get("CNI_CONTAINERID", "")
    named = r"[A-Za-z0-9][A-Za-z0-9_.-]*"
    if container and FAULT != "takes any container ID" and not re.fullmatch(named, container, re.ASCII):
        fail(4, "CNI_CONTAINERID is bad")
    ifname = env.get("CNI_IFNAME", "")
    bad = len(ifname) > 15 or ifname in {".", ".."} or re.search(r"[/:\s]", ifname)
    if bad and FAULT != "takes any ifname":
        fail(4, "CNI_IFNAME is bad")


def read() -> None:
    global conf, version
    try:
        conf = json.loads(sys.stdin.buffer.read())
    except ValueError as error:
        if FAULT == "traceback for malformed JSON":
            raise
        fail(7 if FAULT == "another code for malformed JSON" else 6, f"stdin: {error}")
    if not isinstance(conf, dict):
        fail(6, "stdin: no object")
    said = conf.get("cniVersion") or "0.1.0"
    if not isinstance(said, str):
        fail(6, "cniVersion: no string")
    if said not in VERSIONS and FAULT != "takes any version":
        fail(1, f"cniVersion {said} is not supported")
    version = said if said in VERSIONS else "1.1.0"
    name = conf.get("name")
    if FAULT != "takes any network name" and not (
        isinstance(name, str) and re.fullmatch(r"[a-z0-9][\w.-]*", name)
    ):
        fail(7, "name is bad")
    for key in ("prevResult", "ipam"):
        if not isinstance(conf.get(key) or {}, dict) and FAULT != "takes any type":
            fail(7, f"{key}: no object")
    since = SINCE.get(command, "0.1.0")
    if not at_least(since) and FAULT != "any command in any version":
        fail(1, f"{command} came with {since}")
    if conf.get("role", "main") != "chained" and not (conf.get("ipam") or {}).get("type"):
        if FAULT == "crash on a missing key":
            raise KeyError("ipam")
        fail(7, "ipam.type is missing")
    if env.get("CNI_NETNS") == "/proc/self/ns/net":
        if FAULT == "works in its own netns":
            ip("link", "add", "eth0", "type", "veth", "peer", "name", "eth1")
        fail(8, "CNI_NETNS is the plugin's own")
    unknown = [pair for pair in env.get("CNI_ARGS", "").split(";") if pair.startswith("K8S_")]
    if unknown and FAULT == "refuses CNI_ARGS":
        fail(4, "CNI_ARGS is unknown")
    if "cni.dev/future" in conf and FAULT == "refuses unknown keys":
        fail(2, "cni.dev/future")


def main() -> None:
    if FAULT == "hangs" and command == "CHECK":
        time.sleep(60)
    if not command:
        print("exemplar", file=sys.stdout if FAULT == "greets on stdout" else sys.stderr)
        return
    if command not in REQUIRED:
        fail(
            100 if FAULT == "another code for an unknown command" else 4, f"CNI_COMMAND {command} is unknown"
        )
    if command == "VERSION":
        text = sys.stdin.read()
        if not text and FAULT == "VERSION needs stdin":
            fail(6, "stdin is empty")
        asked = json.loads(text)["cniVersion"] if text else "1.1.0"
        said = {"cniVersion": asked, "supportedVersions": VERSIONS}
        if FAULT == "no supportedVersions":
            del said["supportedVersions"]
        if FAULT == "another version in the answer to VERSION":
            said["cniVersion"] = "1.1.0"
        if FAULT == "speaks no 1.1.0":
            said["supportedVersions"] = VERSIONS[:-1]
        print(json.dumps(said))
        return
    checked()
    read()
    if FAULT == "noise on stderr":
        print("hello", file=sys.stderr)
    if command == "ADD":
        print(json.dumps(shaped(add())))
        if FAULT == "two answers to ADD":
            print("{}")
        return
    {"CHECK": check, "DEL": delete, "GC": collect, "STATUS": status}[command]()
    if FAULT == "OK on stdout":
        print("OK")


if __name__ == "__main__":
    main()
