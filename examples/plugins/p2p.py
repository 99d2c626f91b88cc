#!/usr/bin/env python3
"""p2p: the container has one end of a veth pair, and the host a route to it through the other end."""

import hashlib
import json
import subprocess
import sys

import msgspec

from podwire.cni import CNIError, Interface, Plugin, Request, Result, delegate_ipam, main, verify


class Config(msgspec.Struct, forbid_unknown_fields=True):
    mtu: int = 1500


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CNIError(f"{' '.join(command)}: {done.stderr.strip()}", code=100)
    return done.stdout


def host_end(request: Request[Config]) -> str:
    return "p2p" + hashlib.sha256(f"{request.container_id}/{request.ifname}".encode()).hexdigest()[:12]


def add(request: Request[Config], _kernel: None) -> Result:
    host, name, inside = host_end(request), request.ifname, ("nsenter", f"--net={request.netns}", "ip")
    with request.delegated(request.ipam_type) as leased:
        run("ip", "link", "add", host, "up", "type", "veth", "peer", "name", name, "netns", request.netns)
        run(*inside, "link", "set", name, "up", "mtu", str(request.config.mtu))
        for ip in leased.ips:
            run("ip", "address", "add", ip.gateway, "dev", host, "nodad")
            run("ip", "route", "replace", ip.address.partition("/")[0], "dev", host)
            run(*inside, "address", "add", ip.address, "dev", name, "nodad")
            run(*inside, "route", "add", "default", "via", ip.gateway)
        return leased.on((Interface(host), Interface(name, sandbox=request.netns)), 1)


def check(request: Request[Config], _kernel: None) -> None:
    show = ("nsenter", f"--net={request.netns}", "ip", "-j", "address", "show", "dev", request.ifname)
    (link,) = json.loads(run(*show))
    verify.has_addresses(request, [f"{each['local']}/{each['prefixlen']}" for each in link["addr_info"]])
    delegate_ipam(request)


def delete(request: Request[Config], _kernel: None) -> None:
    if host_end(request) in run("ip", "link", "show", "type", "veth"):
        run("ip", "link", "delete", host_end(request))
    delegate_ipam(request)


PLUGIN = Plugin("p2p", "p2p: a routed veth pair", Config, add, delete, check, delegate_ipam, delegate_ipam)
if __name__ == "__main__":
    sys.exit(main(PLUGIN))
