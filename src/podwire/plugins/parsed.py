"""Texts of a result as addresses and networks: parsed once each, though many steps of an ADD ask for them."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import (
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
    ip_address,
    ip_interface,
    ip_network,
)

IPAddress = IPv4Address | IPv6Address
IPInterface = IPv4Interface | IPv6Interface
IPNetwork = IPv4Network | IPv6Network


@lru_cache(maxsize=1024)
def address(text: str) -> IPAddress:
    """Return an address; ValueError for anything else."""
    return ip_address(text)


@lru_cache(maxsize=1024)
def interface(text: str) -> IPInterface:
    """Return an address with its prefix length, as ``10.1.0.5/16``; ValueError for anything else."""
    return ip_interface(text)


@lru_cache(maxsize=1024)
def network(text: str) -> IPNetwork:
    """Return a network; host bits are cleared. ValueError for anything else."""
    return ip_network(text, strict=False)
