"""The MAC that a user or a runtime asks for: where it may be written, and which one counts."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from podwire.cni.errors import CNIError, InvalidConfig, InvalidEnvironment

_MAC = re.compile(r"[0-9a-fA-F]{2}(:[0-9a-fA-F]{2}){5}")


class MacConfig(msgspec.Struct, frozen=True):
    """A MAC that is asked for."""

    mac: str = ""


class Args(msgspec.Struct, frozen=True):
    """``args`` of a network."""

    cni: MacConfig = MacConfig()


def requested_mac(variables: Mapping[str, str], args: Args, runtime_config: MacConfig) -> str:
    """Return the MAC that is asked for, in lower case, or ``""``.

    The last one counts of CNI_ARGS (``variables``), args.cni.mac and runtimeConfig.mac. Raises
    InvalidEnvironment (4) or InvalidConfig (7) if one is not the MAC of one station.
    """
    mac = ""
    asked: tuple[tuple[str, str, type[CNIError]], ...] = (
        ("CNI_ARGS MAC", variables.get("MAC", ""), InvalidEnvironment),
        ("args.cni.mac", args.cni.mac, InvalidConfig),
        ("runtimeConfig.mac", runtime_config.mac, InvalidConfig),
    )
    for field, value, error in asked:
        if value:
            mac = station_mac(field, value, error)
    return mac


def station_mac(field: str, value: str, error: type[CNIError] = InvalidConfig) -> str:
    """Return a MAC in lower case; ``error``, naming the field, if it is not the MAC of one station."""
    mac = value.lower().replace("-", ":")
    if not _MAC.fullmatch(mac) or int(mac[:2], 16) & 1 or mac == "00:00:00:00:00:00":
        raise error(f'{field} "{value}": is not the MAC of a station, as 02:00:5e:10:00:01')
    return mac
