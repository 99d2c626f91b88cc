"""The standard plugins, one module each, loaded when they are first asked for.

``python -m podwire.plugins TYPE`` runs one as a CNI runtime runs a plugin.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from podwire.cni.plugin import Plugin

_MODULES = {
    "bandwidth": "bandwidth",
    "bridge": "bridge",
    "dhcp": "dhcp",
    "dummy": "dummy",
    "firewall": "firewall",
    "host-device": "host_device",
    "host-local": "host_local",
    "ipvlan": "ipvlan",
    "loopback": "loopback",
    "podwire": "podwire",
    "macvlan": "macvlan",
    "portmap": "portmap",
    "ptp": "ptp",
    "sbr": "sbr",
    "static": "static",
    "tap": "tap",
    "tuning": "tuning",
    "vlan": "vlan",
    "vrf": "vrf",
}

TYPES = tuple(_MODULES)
"""The types of all plugins that are here, as configurations name them."""


def load(type: str) -> Plugin[Any, Any] | None:
    """Return the plugin of a type, or ``None`` if it is not one of ours."""
    module = _MODULES.get(type)
    if module is None:
        return None
    plugin: Plugin[Any, Any] = import_module(f"{__name__}.{module}").PLUGIN
    return plugin
