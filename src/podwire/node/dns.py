"""What a pod's resolv.conf says: its DNS policy, its dnsConfig and the limits on both.

Rules: k8s.io/kubernetes pkg/kubelet/network/dns/dns.go.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from podwire.kube.objects import Pod
from podwire.runtime.api import DNSConfig

MAX_SERVERS = 3
MAX_SEARCHES = 32
MAX_SEARCH_CHARACTERS = 2048


@dataclass(frozen=True, slots=True)
class Resolver:
    """The names that pods can resolve: the host's file and, if there is one, the cluster's DNS service."""

    resolv_conf: Path = Path("/etc/resolv.conf")
    cluster_servers: tuple[str, ...] = ()
    cluster_domain: str = "cluster.local"


@dataclass(frozen=True, slots=True)
class Resolution:
    """The configuration (None: the host's file as it is) and (reason, message) notes for the pod's events."""

    config: DNSConfig | None
    notes: tuple[tuple[str, str], ...] = ()


def parse_resolv_conf(text: str) -> DNSConfig:
    """Servers, searches and options of a resolv.conf; the last ``search`` or ``domain`` line counts."""
    servers: list[str] = []
    searches: list[str] = []
    options: list[str] = []
    for line in text.splitlines():
        words = line.split()
        if not words or words[0].startswith(("#", ";")):
            continue
        match words[0]:
            case "nameserver" if len(words) > 1:
                servers.append(words[1])
            case "search" | "domain":
                searches = words[1:]
            case "options":
                options.extend(words[1:])
    return DNSConfig(tuple(servers), tuple(searches), tuple(options))


def resolve(pod: Pod, resolver: Resolver) -> Resolution:
    """The pod's DNS configuration."""
    spec = pod.spec
    notes: list[tuple[str, str]] = []
    policy = spec.dns_policy
    if policy == "ClusterFirst" and spec.host_network:
        policy = "Default"
    if policy in ("ClusterFirst", "ClusterFirstWithHostNet") and not resolver.cluster_servers:
        # ClusterFirst is what a pod gets that asks for nothing: nobody would read a note on every pod.
        if policy != "ClusterFirst":
            notes.append(
                (
                    "MissingClusterDNS",
                    f"no cluster DNS is configured on this node: dnsPolicy {policy} falls back to Default, "
                    "the host's resolv.conf",
                )
            )
        policy = "Default"
    if policy == "Default" and spec.dns_config is None:
        return Resolution(None, tuple(notes))
    host = _host(resolver) if policy != "None" else DNSConfig()
    if policy in ("ClusterFirst", "ClusterFirstWithHostNet"):
        domain = resolver.cluster_domain
        own = (f"{pod.metadata.namespace}.svc.{domain}", f"svc.{domain}", domain)
        host = DNSConfig(resolver.cluster_servers, own + host.searches, ("ndots:5",))
    config, more = _limited(_merged(host, pod))
    return Resolution(config, tuple(notes) + more)


def _host(resolver: Resolver) -> DNSConfig:
    try:
        return parse_resolv_conf(resolver.resolv_conf.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return DNSConfig()


def _merged(base: DNSConfig, pod: Pod) -> DNSConfig:
    extra = pod.spec.dns_config
    if extra is None:
        return base
    options = {option.partition(":")[0]: option for option in base.options}
    for option in extra.options:
        options[option.name] = option.name if option.value is None else f"{option.name}:{option.value}"
    return DNSConfig(
        servers=tuple(dict.fromkeys([*base.servers, *extra.nameservers])),
        searches=tuple(dict.fromkeys([*base.searches, *extra.searches])),
        options=tuple(options.values()),
    )


def _limited(config: DNSConfig) -> tuple[DNSConfig, tuple[tuple[str, str], ...]]:
    notes = []
    servers, searches = config.servers[:MAX_SERVERS], config.searches[:MAX_SEARCHES]
    while len(" ".join(searches)) > MAX_SEARCH_CHARACTERS:
        searches = searches[:-1]
    if servers != config.servers:
        text = f"Nameserver limits were exceeded, some nameservers have been omitted: {' '.join(servers)}"
        notes.append(("DNSConfigForming", text))
    if searches != config.searches:
        text = f"Search Line limits were exceeded, some search paths have been omitted: {' '.join(searches)}"
        notes.append(("DNSConfigForming", text))
    return DNSConfig(servers, searches, config.options), tuple(notes)
