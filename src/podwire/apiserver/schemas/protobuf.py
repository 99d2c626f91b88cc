"""The protobuf encoding of objects, read only: newer clients post some objects that way.

What is posted begins with ``k8s\\0`` and a runtime.Unknown that names the kind and holds the message. Answers
are always JSON, which these clients accept. Source: k8s.io/apimachinery/pkg/runtime/serializer/protobuf.
"""

from __future__ import annotations

import base64
import json
import struct
from datetime import UTC, datetime, timedelta
from typing import Any

from podwire.apiserver import schemas
from podwire.apiserver.schemas import Field, Message, Type

Object = dict[str, Any]

MAGIC = b"k8s\0"
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class ProtobufError(ValueError):
    """Bytes that are no such object."""


def decode(body: bytes, name: str) -> Object:
    """The object of the message ``name`` in a body, with kind and apiVersion. Raise ProtobufError."""
    if not body.startswith(MAGIC):
        raise ProtobufError("the magic number is missing")
    envelope = dict(_entries(body[len(MAGIC) :]))
    try:
        types = {number: _bytes(value).decode() for number, value in _entries(_bytes(envelope[1]))}
        obj = _message(schemas.message(name), _bytes(envelope.get(2, b"")))
    except (KeyError, UnicodeDecodeError) as error:
        raise ProtobufError(f"not an object: {error}") from error
    return {"kind": types.get(2, ""), "apiVersion": types.get(1, ""), **obj}


def _entries(data: bytes) -> list[tuple[int, int | bytes]]:
    found: list[tuple[int, int | bytes]] = []
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        match tag & 7:
            case 0:
                value, at = _varint(data, at)
                found.append((tag >> 3, value))
            case 2:
                size, at = _varint(data, at)
                if at + size > len(data):
                    raise ProtobufError("cut short")
                found.append((tag >> 3, data[at : at + size]))
                at += size
            case 1 | 5 as wire:
                size = 8 if wire == _FIXED64 else 4
                found.append((tag >> 3, data[at : at + size]))
                at += size
            case wire:
                raise ProtobufError(f"wire type {wire}")
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ProtobufError("cut short")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _bytes(value: int | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise ProtobufError("a number where a message is expected")
    return value


def _message(shape: Message, data: bytes) -> Object:
    fields = {field.number: field for field in shape.own}
    obj: Object = {}
    for number, raw in _entries(data):
        field = fields.get(number)
        if field is None:
            continue
        if not field.name:
            obj.update(_message(schemas.message(field.type.name), _bytes(raw)))
        elif field.type.form == "map":
            entry = dict(_entries(_bytes(raw)))
            key = _bytes(entry.get(1, b"")).decode()
            obj.setdefault(field.name, {})[key] = _item(field.type, entry.get(2, b""))
        elif field.type.form == "list":
            obj.setdefault(field.name, []).append(_item(field.type, raw))
        else:
            _put(obj, field, _item(field.type, raw))
    return obj


def _put(obj: Object, field: Field, value: Any) -> None:
    # Go writes empty strings of required fields; JSON leaves them out.
    if value is None or (value == "" and field.type.name == "string"):
        return
    obj[field.name] = value


def _item(kind: Type, raw: int | bytes) -> Any:
    match kind.name:
        case "string":
            return _bytes(raw).decode()
        case "bool":
            return bool(raw)
        case "int32" | "int64":
            number = int(raw) if isinstance(raw, int) else 0
            return number - (1 << 64) if number >> 63 else number
        case "bytes":
            return base64.b64encode(_bytes(raw)).decode()
        case "double":
            return struct.unpack("<d", _bytes(raw))[0]
        case "time" | "microtime":
            return _time(_bytes(raw), micro=kind.name == "microtime")
        case "quantity":
            return _bytes(dict(_entries(_bytes(raw))).get(1, b"0")).decode()
        case "intorstring":
            parts = dict(_entries(_bytes(raw)))
            return _bytes(parts.get(3, b"")).decode() if parts.get(1) else parts.get(2, 0)
        case "fields":
            return json.loads(_bytes(dict(_entries(_bytes(raw))).get(1, b"{}")) or b"{}")
    return _message(schemas.message(kind.name), _bytes(raw))


def _time(raw: bytes, *, micro: bool) -> str | None:
    parts = dict(_entries(raw))
    seconds, nanos = parts.get(1, 0), parts.get(2, 0)
    if not isinstance(seconds, int) or not isinstance(nanos, int) or not seconds or seconds >> 63:
        return None
    time = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds, microseconds=nanos // 1000)
    return time.strftime("%Y-%m-%dT%H:%M:%S.%fZ" if micro else "%Y-%m-%dT%H:%M:%SZ")
