"""The shapes of the built-in objects: one table that serves validation, OpenAPI and protobuf.

``wire.types`` lists messages by group (``= core``) with their fields as ``number name type``. Types are
``string``, ``bool``, ``int32``, ``int64``, ``bytes``, ``double``, ``time``, ``microtime``, ``quantity``,
``intorstring``, ``fields`` (any object), the name of a message, or ``[type]`` and ``{type}``, a list and a
mapping of strings. The name ``.`` marks a message whose fields stand in the enclosing object. The numbers are
those of the protobuf encoding. ``words.txt`` says in our words what fields are for; a ``!`` marks a field
that must be there.

Source of names, numbers and types: k8s.io/api and k8s.io/apimachinery, generated.proto.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from importlib import resources

SCALARS = frozenset(
    (
        "string",
        "bool",
        "int32",
        "int64",
        "bytes",
        "double",
        "time",
        "microtime",
        "quantity",
        "intorstring",
        "fields",
    )
)


@dataclass(frozen=True, slots=True)
class Type:
    """The type of a field: a scalar, or the name of a message; ``form`` is "", "list" or "map"."""

    name: str
    form: str = ""

    @property
    def scalar(self) -> bool:
        """Whether it is no message."""
        return self.name in SCALARS


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a message; an empty name stands for the fields of the message inside."""

    number: int
    name: str
    type: Type


@dataclass(slots=True)
class Message:
    """A message such as ``core.Pod``. ``fields`` holds those of inlined messages too, by their JSON names."""

    name: str
    own: list[Field] = field(default_factory=list)
    fields: dict[str, Field] = field(default_factory=dict)
    description: str = ""
    words: dict[str, str] = field(default_factory=dict)
    required: set[str] = field(default_factory=set)


TOP_LEVEL = frozenset(("apiVersion", "kind"))
LEFT_OUT = frozenset(
    (
        "chapAuthDiscovery",
        "chapAuthSession",
        "hostIPC",
        "hostNetwork",
        "hostPID",
        "publishNotReadyAddresses",
        "readOnly",
        "sslEnabled",
        "stdin",
        "stdinOnce",
        "tty",
        "unschedulable",
    )
)
"""Fields that are not there when they are false: plain booleans with omitempty in Go, where false and nothing
are the same, whatever a client sends. Other booleans may be true by default."""


def message(name: str) -> Message:
    """The message of that name, such as ``core.Pod``. Raise KeyError."""
    return messages()[name]


@functools.cache
def messages() -> dict[str, Message]:
    """All messages."""
    found: dict[str, Message] = {}
    group = ""
    current: Message | None = None
    for line in _text("wire.types").splitlines():
        if line.startswith("= "):
            group = line[2:]
        elif line.startswith("  "):
            number, name, kind = line.split()
            assert current is not None
            current.own.append(Field(int(number), name.removeprefix("."), _type(kind, group)))
        elif line:
            current = found[f"{group}.{line}"] = Message(f"{group}.{line}")
    for one in found.values():
        for entry in one.own:
            inner = [entry] if entry.name else found[entry.type.name].own
            one.fields.update({below.name: below for below in inner})
    _describe(found)
    return found


def _describe(found: dict[str, Message]) -> None:
    for line in _text("words.txt").splitlines():
        path, separator, words = line.partition(": ")
        if not separator or line.startswith("#"):
            continue
        group, name, *rest = path.split(".")
        one = found[f"{group}.{name.rstrip('!')}"]
        if not rest:
            one.description = words
            continue
        label = rest[0].rstrip("!")
        if label not in one.fields:
            raise KeyError(path)
        one.words[label] = words
        if rest[0].endswith("!"):
            one.required.add(label)


def _type(text: str, group: str) -> Type:
    form = {"[": "list", "{": "map"}.get(text[0], "")
    name = text.strip("[]{}")
    return Type(name if name in SCALARS or "." in name else f"{group}.{name}", form)


def _text(name: str) -> str:
    return resources.files(__name__).joinpath(name).read_text("utf-8")
