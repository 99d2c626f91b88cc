"""The files that a pod sees in place of the machine's: /etc/hosts, /etc/resolv.conf, /etc/hostname."""

from __future__ import annotations

from collections.abc import Sequence

from podwire.runtime.api import DNSConfig, HostAlias, NetworkMode, SandboxConfig

_LOCAL = (
    "127.0.0.1\tlocalhost",
    "::1\tlocalhost ip6-localhost ip6-loopback",
    "fe00::0\tip6-localnet",
    "fe00::0\tip6-mcastprefix",
    "fe00::1\tip6-allnodes",
    "fe00::2\tip6-allrouters",
)


def hosts(config: SandboxConfig, ips: Sequence[str], host_file: str) -> str:
    """/etc/hosts with the lines that the kubelet writes (pkg/kubelet/kubelet_pods.go, nodeHostsFileContent).

    A pod of its own network gets the local names, then each of its addresses with its names; one in the
    host's network gets ``host_file``, the text of the machine's. The pod's aliases come last.
    """
    metadata = config.metadata
    lines = [f"# Written by podwire for pod {metadata.namespace}/{metadata.name}."]
    if config.network is NetworkMode.NODE:
        lines += host_file.splitlines()
    else:
        names = f"{config.hostname}.{config.domain}\t{config.hostname}" if config.domain else config.hostname
        lines += _LOCAL
        lines += [f"{ip}\t{names}" for ip in ips]
    if config.host_aliases:
        lines += ["", "# From the pod's hostAliases."]
        lines += [_alias(alias) for alias in config.host_aliases]
    return "\n".join(lines) + "\n"


def _alias(alias: HostAlias) -> str:
    return "\t".join((alias.ip, *alias.hostnames))


def resolv_conf(dns: DNSConfig) -> str:
    """/etc/resolv.conf, resolv.conf(5)."""
    lines = []
    if dns.searches:
        lines.append("search " + " ".join(dns.searches))
    lines += [f"nameserver {server}" for server in dns.servers]
    if dns.options:
        lines.append("options " + " ".join(dns.options))
    return "".join(f"{line}\n" for line in lines)
