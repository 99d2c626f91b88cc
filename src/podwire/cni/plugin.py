"""The plugin SDK in one place: what the author of a plugin imports.

A plugin is a `Plugin` with functions of a `Request`; `main` makes it an executable, `make_request` and `call`
run it in process (also in its tests).
"""

from podwire.cni.process import Reply, main, respond
from podwire.cni.request import (
    CLEANUP_SECONDS,
    DEFAULT_SECONDS,
    Plugin,
    Registry,
    Request,
    call,
    delegate_ipam,
    make_request,
)
from podwire.cni.types import DNS, AttachmentKey, Interface, IPConfig, Result, Route, TraceContext

__all__ = [
    "CLEANUP_SECONDS",
    "DEFAULT_SECONDS",
    "DNS",
    "AttachmentKey",
    "IPConfig",
    "Interface",
    "Plugin",
    "Registry",
    "Reply",
    "Request",
    "Result",
    "Route",
    "TraceContext",
    "call",
    "delegate_ipam",
    "main",
    "make_request",
    "respond",
]
