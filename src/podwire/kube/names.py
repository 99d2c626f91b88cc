"""The syntax of names in Kubernetes: each check gives what is wrong with a text, or an empty string.

Source: k8s.io/apimachinery/pkg/util/validation/validation.go.
"""

from __future__ import annotations

import ipaddress
import re

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_QUALIFIED = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_SYSCTL = re.compile(r"[a-z0-9]([-_a-z0-9]*[a-z0-9])?([./][a-z0-9]([-_a-z0-9]*[a-z0-9])?)*")
_UID = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")


def dns_label(text: str) -> str:
    """RFC 1123 label: names of containers, volumes, namespaces."""
    if len(text) > 63:
        return "63 characters at most"
    if not _LABEL.fullmatch(text):
        return 'lower case letters, digits and "-" are allowed, with a letter or digit at both ends'
    return ""


def dns_subdomain(text: str) -> str:
    """RFC 1123 subdomain: names of most objects."""
    if len(text) > 253:
        return "253 characters at most"
    if not _SUBDOMAIN.fullmatch(text):
        return 'lower case letters, digits, "-" and "." are allowed, with a letter or digit at both ends'
    return ""


def search_domain(text: str) -> str:
    """A DNS search domain: a subdomain, with underscores, or a trailing dot, or the root alone."""
    return "" if text == "." else dns_subdomain(text.removesuffix(".").replace("_", "a"))


def qualified_name(text: str) -> str:
    """The key of a label or an annotation: an optional DNS prefix with "/", and a name of 63 characters."""
    prefix, slash, name = text.rpartition("/")
    if slash and dns_subdomain(prefix):
        return f'the part before "/" is a DNS name: {dns_subdomain(prefix)}'
    if not name:
        return "the name is empty"
    if len(name) > 63:
        return '63 characters at most (after the "/")'
    if not _QUALIFIED.fullmatch(name):
        return 'letters, digits, "-", "_" and "." are allowed, with a letter or digit at both ends'
    return ""


def label_value(text: str) -> str:
    """The value of a label; may be empty."""
    if len(text) > 63:
        return "63 characters at most"
    if text and not _QUALIFIED.fullmatch(text):
        return 'letters, digits, "-", "_" and "." are allowed, with a letter or digit at both ends'
    return ""


def port_name(text: str) -> str:
    """RFC 6335 service name."""
    if len(text) > 15:
        return "15 characters at most"
    if not _LABEL.fullmatch(text) or "--" in text or not re.search("[a-z]", text):
        return 'lower case letters, digits and single "-" are allowed, with at least one letter'
    return ""


def environment_name(text: str) -> str:
    """The name of an environment variable: printable ASCII without "="."""
    if not text or "=" in text or not all(" " <= c <= "~" for c in text):
        return 'printable ASCII characters without "=" are allowed'
    return ""


def sysctl_name(text: str) -> str:
    """A sysctl, with dots or slashes."""
    if len(text) > 253:
        return "253 characters at most"
    return "" if _SYSCTL.fullmatch(text) else "not the name of a sysctl, such as net.ipv4.ip_forward"


def ip_address(text: str) -> str:
    """An IPv4 or IPv6 address, without zone or prefix."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return "an IPv4 or IPv6 address is expected"
    return "an address without a zone is expected" if getattr(address, "scope_id", None) else ""


def uid(text: str) -> str:
    """A UID: it becomes part of paths, so that only harmless characters are allowed."""
    if len(text) > 128:
        return "128 characters at most"
    return "" if _UID.fullmatch(text) else 'letters, digits, "-", "_" and "." are allowed'
