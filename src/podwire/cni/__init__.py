"""The Container Network Interface, spec 0.1.0 to 1.1.0: runtime library, plugin SDK, types and conversions.

Stands alone: it imports nothing else of podwire and needs no root to import. Modules load when first used.
"""

from importlib import import_module
from typing import Any

_HOMES = {
    "errors": ("CNIError",),
    "types": ("AttachmentKey", "DNS", "IPConfig", "Interface", "Result", "Route", "TraceContext"),
    "convert": ("decode_result", "encode_result"),
    "config": (
        "Directory",
        "NetworkConfigList",
        "find",
        "load_directory",
        "load_list",
        "parse_list",
        "save_list",
    ),
    "turns": ("Attachment", "Step"),
    "cache": ("Record",),
    "runtime": ("Runtime",),
    "watch": ("watch_directory",),
    "plugin": ("Plugin", "Request", "call", "delegate_ipam", "main", "make_request"),
}
_NAMES = {name: module for module, names in _HOMES.items() for name in names}

__all__ = sorted(_NAMES)  # noqa: PLE0605 - a list, made of the table above


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_NAMES[name]}"), name)
