"""Formats that a string of a custom object may be asked to have.

Source: k8s.io/kube-openapi/pkg/validation/strfmt and the list of supported formats of
k8s.io/apiextensions-apiserver/pkg/apiserver/validation/formats.go.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import re
import urllib.parse
from collections.abc import Callable
from datetime import date, datetime

_LABEL = "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOSTNAME = re.compile(rf"(?=.{{1,255}}$){_LABEL}(\.{_LABEL})*\.?")
_EMAIL = re.compile(r"[^@\s]+@[^@\s]+")
_UUID = re.compile(r"(?i)[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}")
_TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)")
_DURATION = re.compile(r"[-+]?((\d+(\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h|d|w))+|0")
_MAC = re.compile(r"(?i)[0-9a-f]{2}([:-][0-9a-f]{2}){5}|([0-9a-f]{4}\.){2}[0-9a-f]{4}")


def _reads(read: Callable[[str], object]) -> Callable[[str], bool]:
    def check(text: str) -> bool:
        try:
            read(text)
        except (ValueError, binascii.Error):
            return False
        return True

    return check


def _matches(pattern: re.Pattern[str]) -> Callable[[str], bool]:
    return lambda text: pattern.fullmatch(text) is not None


def _date_time(text: str) -> bool:
    # The range of each part is for datetime to tell; fractions of a second may be longer than it reads.
    whole = re.sub(r"\.\d+", "", text).upper()
    return _TIME.fullmatch(text) is not None and _reads(datetime.fromisoformat)(whole)


def _uri(text: str) -> bool:
    try:
        parts = urllib.parse.urlsplit(text)
    except ValueError:
        return False
    return bool(parts.scheme or text.startswith("/")) and not re.search(r"[\s<>]", text)


FORMATS: dict[str, Callable[[str], bool]] = {
    "bsonobjectid": _matches(re.compile(r"[0-9a-fA-F]{24}")),
    "byte": _reads(lambda text: base64.b64decode(text, validate=True)),
    "cidr": lambda text: "/" in text and _reads(lambda t: ipaddress.ip_network(t, strict=False))(text),
    "date": lambda text: len(text) == 10 and _reads(date.fromisoformat)(text),
    "date-time": _date_time,
    "datetime": _date_time,
    "duration": _matches(_DURATION),
    "email": _matches(_EMAIL),
    "hostname": _matches(_HOSTNAME),
    "ipv4": _reads(ipaddress.IPv4Address),
    "ipv6": _reads(ipaddress.IPv6Address),
    "mac": _matches(_MAC),
    "uri": _uri,
    "uuid": _matches(_UUID),
    "uuid3": _matches(_UUID),
    "uuid4": _matches(_UUID),
    "uuid5": _matches(_UUID),
}
"""By name; what is not here is not checked."""

INTEGERS = {"int32": 1 << 31, "int64": 1 << 63}
