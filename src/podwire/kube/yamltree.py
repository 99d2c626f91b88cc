"""YAML or JSON text as a tree that knows the line and column of every value.

libyaml gives the events; the tree keeps scalars as written, because only the field that a scalar ends up in
tells whether ``on`` or ``0644`` is meant. Plain scalars are read as the Kubernetes tools read them: YAML 1.1
booleans and octal numbers, but neither base 60 nor dates. Sizes are bounded, aliases counted as often as they
are used.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import yaml
from yaml._yaml import CParser

MAX_BYTES = 10 << 20
MAX_NODES = 100_000
MAX_DEPTH = 64
MAX_DOCUMENTS = 100

_TAGS = "tag:yaml.org,2002:"
_BOOLEANS = {
    **dict.fromkeys(("y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"), True),
    **dict.fromkeys(("n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"), False),
}
_NULLS = {"", "~", "null", "Null", "NULL"}
_INTEGER = re.compile(r"[-+]?(0[bB][01_]+|0[xX][0-9a-fA-F_]+|0[oO]?[0-7_]+|0|[1-9][0-9_]*)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SPECIAL = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_SURROGATES = re.compile(r"(?<!\\)((?:\\\\)*)\\u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})")


class TreeError(Exception):
    """Text that is no YAML, or more than the bounds allow; ``line`` and ``column`` count from 1."""

    def __init__(self, message: str, line: int, column: int) -> None:
        super().__init__(message)
        self.message = message
        self.line = line
        self.column = column


@dataclass(slots=True, eq=False)
class Node:
    """A value in the text. ``size`` counts the nodes below and itself, ``depth`` the levels."""

    line: int
    column: int
    size: int = 1
    depth: int = 1


@dataclass(slots=True, eq=False)
class Scalar(Node):
    """A scalar as written; ``plain`` without quotes, ``tag`` one of str, int, float, bool, null or empty."""

    text: str = ""
    plain: bool = True
    tag: str = ""


@dataclass(slots=True, eq=False)
class Sequence(Node):
    """A list."""

    items: list[Node] | None = None


@dataclass(slots=True, eq=False)
class Mapping(Node):
    """A mapping as written: duplicates and merge keys are still there."""

    entries: list[tuple[Node, Node]] | None = None


def decode_text(data: bytes) -> str:
    """UTF-8 with or without a byte order mark; other encodings and NUL are refused."""
    if len(data) > MAX_BYTES:
        raise TreeError(f"the file has {len(data)} bytes: the limit is {MAX_BYTES} (10 MiB)", 1, 1)
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise TreeError("the file is UTF-16: save it as UTF-8", 1, 1)
    at = data.find(b"\0")
    if at >= 0:
        raise TreeError("NUL byte: this is not a text file", *_position(data, at))
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        message = f"byte 0x{data[error.start]:02x} is not UTF-8: save the file as UTF-8"
        raise TreeError(message, *_position(data, error.start)) from error


def _position(data: bytes, offset: int) -> tuple[int, int]:
    before = data[:offset]
    return before.count(b"\n") + 1, offset - (before.rfind(b"\n") + 1) + 1


def parse(text: str) -> list[Node]:
    """The documents of ``text`` that hold anything. Raises TreeError at the first thing that is no YAML."""
    if text.lstrip().startswith(("{", "[")):
        text = _SURROGATES.sub(_join_surrogates, text)
    try:
        return _Builder(CParser(text)).documents()
    except yaml.reader.ReaderError as error:
        before = text.encode()[: error.position] if isinstance(error.position, int) else b""
        code = error.character if isinstance(error.character, int) else ord(error.character)
        message = f"character U+{code:04X} is not allowed in YAML"
        raise TreeError(message, *_position(before, len(before))) from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        message = ", ".join(part for part in (error.problem, error.context) if part) or "not YAML"
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        raise TreeError(message, line, column) from error


def _join_surrogates(match: re.Match[str]) -> str:
    """JSON writes a character beyond U+FFFF as two escapes, which YAML does not know."""
    high, low = int(match[2], 16), int(match[3], 16)
    return f"{match[1]}\\U{0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00):08X}"


class _Builder:
    def __init__(self, parser: Any) -> None:
        self._parser = parser
        self._anchors: dict[str, Node | None] = {}

    def documents(self) -> list[Node]:
        found: list[Node] = []
        count = 0
        while True:
            event = self._parser.get_event()
            if isinstance(event, yaml.StreamEndEvent):
                return found
            if isinstance(event, yaml.DocumentStartEvent):
                count += 1
                if count > MAX_DOCUMENTS:
                    raise TreeError(f"more than {MAX_DOCUMENTS} documents", *_place(event))
                self._anchors = {}
                node = self._node(self._parser.get_event(), 1)
                if not (isinstance(node, Scalar) and scalar_value(node) is None):
                    found.append(node)

    def _node(self, event: Any, level: int) -> Node:
        line, column = _place(event)
        if level > MAX_DEPTH:
            raise TreeError(f"nested more than {MAX_DEPTH} levels deep", line, column)
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event.anchor or "", line, column)
        if event.anchor:
            self._anchors[event.anchor] = None
        node: Node
        if isinstance(event, yaml.ScalarEvent):
            tag = _tag(event.tag, ("str", "int", "float", "bool", "null"), line, column)
            node = Scalar(line, column, text=event.value, plain=not event.style, tag=tag)
        elif isinstance(event, yaml.SequenceStartEvent):
            _tag(event.tag, ("seq",), line, column)
            node = self._sequence(Sequence(line, column, items=[]), level)
        else:
            _tag(event.tag, ("map",), line, column)
            node = self._mapping(Mapping(line, column, entries=[]), level)
        if node.size > MAX_NODES:
            raise TreeError(f"more than {MAX_NODES} values in one file", line, column)
        if event.anchor:
            self._anchors[event.anchor] = node
        return node

    def _sequence(self, node: Sequence, level: int) -> Node:
        items: list[Node] = []
        while not isinstance(event := self._parser.get_event(), yaml.SequenceEndEvent):
            child = self._node(event, level + 1)
            items.append(child)
            _count(node, child, level)
        node.items = items
        return node

    def _mapping(self, node: Mapping, level: int) -> Node:
        entries: list[tuple[Node, Node]] = []
        while not isinstance(event := self._parser.get_event(), yaml.MappingEndEvent):
            key = self._node(event, level + 1)
            child = self._node(self._parser.get_event(), level + 1)
            entries.append((key, child))
            _count(node, key, level)
            _count(node, child, level)
        node.entries = entries
        return node

    def _alias(self, name: str, line: int, column: int) -> Node:
        if name not in self._anchors:
            raise TreeError(f"alias *{name} has no anchor &{name} before it", line, column)
        node = self._anchors[name]
        if node is None:
            raise TreeError(f"alias *{name} stands inside its own anchor", line, column)
        return node


def _place(event: Any) -> tuple[int, int]:
    return event.start_mark.line + 1, event.start_mark.column + 1


def _count(parent: Node, child: Node, level: int) -> None:
    parent.size += child.size
    parent.depth = max(parent.depth, child.depth + 1)
    if parent.size > MAX_NODES:
        raise TreeError(
            f"more than {MAX_NODES} values in one file, aliases counted", child.line, child.column
        )
    if level + parent.depth > MAX_DEPTH + 1:
        raise TreeError(f"nested more than {MAX_DEPTH} levels deep", child.line, child.column)


def _tag(tag: str | None, allowed: tuple[str, ...], line: int, column: int) -> str:
    if tag is None:
        return ""
    if tag == "!":
        return "str" if "str" in allowed else ""
    name = tag.removeprefix(_TAGS)
    if name == tag or name not in allowed:
        raise TreeError(f"tag {tag.replace(_TAGS, '!!')} is not supported here: leave it out", line, column)
    return name


def scalar_value(node: Scalar) -> bool | int | float | str | None:
    """The value that the Kubernetes tools read from a scalar where any type is allowed."""
    if node.tag == "str" or not node.plain:
        return node.text
    text = node.text
    if text in _NULLS:
        return None
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    if _INTEGER.fullmatch(text):
        return _integer(text)
    if _FLOAT.fullmatch(text) or _SPECIAL.fullmatch(text):
        return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
    return text


def _integer(text: str) -> int | float | str:
    number = text.replace("_", "")
    octal = re.fullmatch(r"([-+]?)0[oO]?([0-7]+)", number)
    if len(number) > 128:
        return float(number) if number.lstrip("+-").isdigit() else text
    try:
        return int(octal[1] + octal[2], 8) if octal else int(number, 0)
    except ValueError:
        return text
