"""An object as it is stored, and a change from one state of it to the next."""

from __future__ import annotations

from typing import Any

import msgspec

from podwire.apiserver.database import Key

Object = dict[str, Any]
"""A Kubernetes object as JSON gives it."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode


class Stored:
    """One state of an object: its revision and its JSON, with that resourceVersion in it.

    ``object`` is decoded when it is first asked for, and is shared: it must not be changed.
    """

    __slots__ = ("_object", "raw", "revision")

    def __init__(self, revision: int, raw: bytes, obj: Object | None = None) -> None:
        self.revision = revision
        self.raw = raw
        self._object = obj

    @classmethod
    def of(cls, obj: Object, revision: int) -> Stored:
        """The object at a new revision; ``obj`` now belongs to it."""
        obj["metadata"]["resourceVersion"] = str(revision)
        return cls(revision, _encode(obj), obj)

    @classmethod
    def unsaved(cls, obj: Object) -> Stored:
        """The object as the answer to a dry run; it keeps the resourceVersion it has, if any."""
        return cls(0, _encode(obj), obj)

    @property
    def object(self) -> Object:
        """The object; not to be changed."""
        if self._object is None:
            self._object = _decode(self.raw)
        return self._object

    @property
    def labels(self) -> dict[str, str]:
        """The object's labels."""
        found: dict[str, str] = self.object["metadata"].get("labels") or {}
        return found

    def at(self, revision: int) -> Stored:
        """The same object with another resourceVersion."""
        obj = dict(self.object)
        obj["metadata"] = dict(obj["metadata"])
        return Stored.of(obj, revision)

    def field(self, path: str) -> str:
        """The text of a field such as ``spec.nodeName``; empty if it is not there."""
        value: Any = self.object
        for name in path.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        if value is None:
            return ""
        return str(value).lower() if isinstance(value, bool) else str(value)


class Change:
    """What happened to an object at a revision; ``before`` is None for the first, ``after`` for the last."""

    __slots__ = ("_gone", "after", "before", "key", "lines", "revision")

    def __init__(self, revision: int, key: Key, before: Stored | None, after: Stored | None) -> None:
        self.revision = revision
        self.key = key
        self.before = before
        self.after = after
        self._gone: Stored | None = None
        self.lines: dict[str, bytes] = {}
        """The change as watches send it, by the type of event; made once for all of them."""

    @property
    def gone(self) -> Stored:
        """The state before, with this revision: what is told to those who saw it and do not any more."""
        if self._gone is None:
            assert self.before is not None
            self._gone = self.before.at(self.revision)
        return self._gone
