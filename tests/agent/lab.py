"""The reference configurations, and the whole state of a host as independent tools see it."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def bridge(data: Path, name: str = "net", subnet: str = "10.77.0.0/24", **options: Any) -> dict[str, Any]:
    return {
        "cniVersion": "1.1.0",
        "name": name,
        "type": "bridge",
        "bridge": "pw0",
        "isGateway": True,
        "ipMasq": True,
        "ipam": {
            "type": "host-local",
            "dataDir": str(data),
            "ranges": [[{"subnet": subnet}], [{"subnet": "fd77::/64"}]],
        },
        **options,
    }


def portmap(port: int, name: str = "net") -> dict[str, Any]:
    mappings = [{"hostPort": port, "containerPort": 80, "protocol": protocol} for protocol in ("tcp", "udp")]
    return {
        "cniVersion": "1.1.0",
        "name": name,
        "type": "portmap",
        "runtimeConfig": {"portMappings": mappings},
    }


def held(data: Path, name: str = "net") -> dict[str, str]:
    """The addresses that are taken, and by which container."""
    home = data / name
    if not home.is_dir():
        return {}
    return {
        path.name: path.read_text().split()[0]
        for path in home.iterdir()
        if re.match(r"[0-9a-f]+[.:]", path.name)
    }


def elements() -> list[Any]:
    """All elements of our table, and the rules and sets of everybody else's."""
    objects = json.loads(run("nft", "-j", "list", "ruleset"))["nftables"]
    found = []
    for item in objects:
        ((kind, body),) = item.items()
        if kind in {"set", "map"} and body["name"] == "localnet":
            continue  # the bridge stays, and what lets 127.0.0.0/8 out through it
        if kind in {"set", "map"}:
            found += [json.dumps([body["name"], each], sort_keys=True) for each in body.get("elem", ())]
        elif body.get("table") != "podwire" and body.get("name") != "podwire" and kind != "metainfo":
            found.append(json.dumps({**body, "handle": 0}, sort_keys=True))
    return sorted(found)


def links() -> dict[str, Any]:
    """The links of the host by name: kind, master, alias, addresses."""
    return {
        link["ifname"]: [
            link.get("linkinfo", {}).get("info_kind"),
            link.get("master"),
            link.get("ifalias"),
            sorted(
                f"{one['local']}/{one['prefixlen']}" for one in link["addr_info"] if one["scope"] == "global"
            ),
        ]
        for link in json.loads(run("ip", "-d", "-j", "address"))
    }


def everything(data: Path) -> dict[str, Any]:
    """What must be as before when all is undone."""
    return {"links": links(), "held": held(data), "elements": elements()}
