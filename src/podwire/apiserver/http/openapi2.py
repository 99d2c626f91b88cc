"""The OpenAPI document of version 2, for clients older than version 3.

They ask for it in protobuf, and only to learn which kinds the server validates itself; no shapes are in it.
Source: github.com/google/gnostic-models/openapiv2/OpenAPIv2.proto.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

PROTOBUF = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
"""How clients ask for it."""
ANSWERED = PROTOBUF.replace("@", ".")
"""How it is answered: a media type has no ``@``."""
_QUERY = ("dryRun", "fieldManager", "fieldValidation", "force")


def document(paths: Iterable[tuple[str, dict[str, str]]]) -> bytes:
    """The document; for each path whose objects can be patched the group, version and kind."""
    items = b"".join(_field(2, _field(1, path.encode()) + _field(2, _item(gvk))) for path, gvk in paths)
    info = _field(1, b"Kubernetes") + _field(2, b"v1.33.0")
    return _field(1, b"2.0") + _field(2, info) + _field(8, items)


def _item(gvk: dict[str, str]) -> bytes:
    """PathItem with a patch Operation."""
    parameters = b"".join(_field(8, _parameter(name)) for name in _QUERY)
    extension = _field(1, b"x-kubernetes-group-version-kind") + _field(2, _field(2, json.dumps(gvk).encode()))
    return _field(8, parameters + _field(13, extension))


def _parameter(name: str) -> bytes:
    """ParametersItem, Parameter, NonBodyParameter, QueryParameterSubSchema."""
    query = _field(2, b"query") + _field(4, name.encode()) + _field(6, b"string")
    return _field(1, _field(2, _field(3, query)))


def _field(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
