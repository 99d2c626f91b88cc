"""The Container Network Interface, spec 0.1.0 to 1.1.0: runtime library, plugin SDK, types and conversions.

Stands alone: it imports nothing else of podwire and needs no root to import. Modules load when first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from podwire.cni.cache import Record
    from podwire.cni.config import (
        Directory,
        NetworkConfigList,
        find,
        load_directory,
        load_list,
        parse_list,
        save_list,
    )
    from podwire.cni.convert import decode_result, encode_result
    from podwire.cni.errors import CNIError
    from podwire.cni.plugin import Plugin, Request, call, delegate_ipam, main, make_request, respond
    from podwire.cni.runtime import Runtime
    from podwire.cni.turns import Attachment, Step
    from podwire.cni.types import DNS, AttachmentKey, Interface, IPConfig, Result, Route, TraceContext
    from podwire.cni.watch import watch_directory

_HOMES = {
    "cache": ("Record",),
    "config": (
        "Directory",
        "NetworkConfigList",
        "find",
        "load_directory",
        "load_list",
        "parse_list",
        "save_list",
    ),
    "convert": ("decode_result", "encode_result"),
    "errors": ("CNIError",),
    "plugin": ("Plugin", "Request", "call", "delegate_ipam", "main", "make_request", "respond"),
    "runtime": ("Runtime",),
    "turns": ("Attachment", "Step"),
    "types": ("AttachmentKey", "DNS", "IPConfig", "Interface", "Result", "Route", "TraceContext"),
    "watch": ("watch_directory",),
}
_NAMES = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "DNS",
    "Attachment",
    "AttachmentKey",
    "CNIError",
    "Directory",
    "IPConfig",
    "Interface",
    "NetworkConfigList",
    "Plugin",
    "Record",
    "Request",
    "Result",
    "Route",
    "Runtime",
    "Step",
    "TraceContext",
    "call",
    "decode_result",
    "delegate_ipam",
    "encode_result",
    "find",
    "load_directory",
    "load_list",
    "main",
    "make_request",
    "parse_list",
    "respond",
    "save_list",
    "watch_directory",
]


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_NAMES[name]}"), name)
