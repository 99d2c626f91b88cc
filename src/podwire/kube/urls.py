"""URLs of servers, looked at before anybody connects to them."""

from __future__ import annotations

from urllib.parse import urlsplit


def url_fault(text: str) -> str:
    """What is wrong with the URL of a server: its characters, host or port; empty if nothing is."""
    if not text.isprintable() or " " in text:
        return "a character that cannot be in one"
    try:
        parts = urlsplit(text)
        host = parts.hostname
        _ = parts.port
    except ValueError as error:
        return str(error)
    return host_fault(host) if host else "no host"


def host_fault(name: str) -> str:
    """What is wrong with the name or address of a host; empty if nothing is."""
    try:
        name.encode("idna")
    except UnicodeError:
        return f"{name!r} is no name of a host"
    return ""
