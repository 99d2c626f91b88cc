"""How a list or watch is asked for: selectors, pages, and at which revision.

Source: k8s.io/apimachinery/pkg/apis/meta/internalversion/validation and
k8s.io/apiserver/pkg/storage/continue.go.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from podwire.apiserver import selectors
from podwire.apiserver.kind import Kind
from podwire.apiserver.storage import Expired, Storage, Stored
from podwire.serving import status
from podwire.serving.status import Cause

Object = dict[str, Any]

_NOT_OLDER, _EXACT = "NotOlderThan", "Exact"
_TOKEN_EXPIRED = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list"
    " without the continue parameter, or use the continue token in this response to retrieve the remainder of"
    " the results. Continuing with the provided token results in an inconsistent list - objects that were"
    " created, modified, or deleted between the time the first chunk was returned and now may show up in the"
    " list."
)


@dataclass(frozen=True, kw_only=True)
class ListOptions:
    """metav1.ListOptions as they came in the query."""

    label_selector: str = ""
    field_selector: str = ""
    limit: int = 0
    continue_: str = ""
    resource_version: str = ""
    resource_version_match: str = ""
    watch: bool = False
    allow_bookmarks: bool = False
    send_initial_events: bool | None = None
    timeout_seconds: int | None = None

    def check(self) -> None:
        """Raise Failure 422 if options contradict one another."""
        causes: list[Cause] = []
        match, field = self.resource_version_match, "resourceVersionMatch"
        if self.send_initial_events is not None and not self.watch:
            causes.append(
                status.forbidden_field("sendInitialEvents", "sendInitialEvents is forbidden for list")
            )
        elif self.send_initial_events is not None and match != _NOT_OLDER:
            detail = f"sendInitialEvents requires setting resourceVersionMatch to {_NOT_OLDER}"
            causes.append(status.forbidden_field(field, detail))
        if match:
            if self.watch:
                if self.send_initial_events is None:
                    detail = (
                        "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
                    )
                    causes.append(status.forbidden_field(field, detail))
            else:
                causes += self._check_match(match, field)
        if causes:
            raise status.invalid("meta.k8s.io", "ListOptions", "", causes)

    def _check_match(self, match: str, field: str) -> list[Cause]:
        if self.continue_:
            return [status.forbidden_field(field, "resourceVersionMatch is forbidden for continue")]
        if match not in (_EXACT, _NOT_OLDER):
            return [status.not_supported(field, match, [_EXACT, _NOT_OLDER, ""])]
        if not self.resource_version:
            return [
                status.forbidden_field(
                    field, "resourceVersionMatch is forbidden unless resourceVersion is provided"
                )
            ]
        if match == _EXACT and self.resource_version == "0":
            detail = 'resourceVersionMatch "Exact" is forbidden for resourceVersion "0"'
            return [status.forbidden_field(field, detail)]
        return []


@dataclass(frozen=True, slots=True)
class Start:
    """Where a list begins: behind ``after``, at ``revision`` (0: now)."""

    after: str = ""
    revision: int = 0


def start(options: ListOptions, storage: Storage) -> Start:
    """Where to begin. Raise Failure 400, 410 or 504."""
    if options.continue_:
        if options.resource_version not in ("", "0"):
            raise status.bad_request("specifying resource version is not allowed when using continue")
        return decode_token(options.continue_)
    revision = parse_revision(options.resource_version)
    check_reached(revision, storage)
    exact = options.resource_version_match == _EXACT or (options.limit and not options.resource_version_match)
    return Start(revision=revision if exact else 0)


def check_reached(revision: int, storage: Storage) -> None:
    """Raise Failure 504 for a revision in the future."""
    if revision > storage.revision:
        raise status.too_large(revision, storage.revision)


def parse_revision(text: str) -> int:
    """A resourceVersion as a number, 0 if there is none. Raise Failure 400."""
    if not text:
        return 0
    if not text.isascii() or not text.isdigit() or int(text) >= 1 << 64:
        cause = status.invalid_value(
            "resourceVersion", text, f"strconv.ParseUint: parsing {status.quoted(text)}: invalid syntax"
        )
        raise status.bad_request(str(cause))
    return int(text)


def encode_token(after: str, revision: int) -> str:
    """The token for what follows ``after`` in the list at ``revision``; -1: as things are then."""
    value = {"v": "meta.k8s.io/v1", "rv": revision, "start": after + "\0"}
    return base64.urlsafe_b64encode(json.dumps(value, separators=(",", ":")).encode()).rstrip(b"=").decode()


def decode_token(text: str) -> Start:
    """The place that a token stands for. Raise Failure 400."""
    try:
        value = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        after, revision = value["start"], value["rv"]
        if value["v"] != "meta.k8s.io/v1" or not isinstance(after, str) or type(revision) is not int:
            raise ValueError(value)
    except (binascii.Error, ValueError, KeyError, TypeError) as error:
        raise status.bad_request(f"continue key is not valid: {error}") from error
    return Start(after.removesuffix("\0"), max(revision, 0))


def token_expired(place: Start) -> status.Failure:
    """410 with a token that goes on from there with things as they are now."""
    failure = status.expired(_TOKEN_EXPIRED)
    failure.body["metadata"] = {"continue": encode_token(place.after, -1)}
    return failure


def expired(error: Expired, options: ListOptions, place: Start) -> status.Failure:
    """410 of a list."""
    if options.continue_:
        return token_expired(place)
    return status.too_old(error.revision, error.oldest)


class Selection:
    """A label and a field selector of a kind, as a predicate.

    ``index`` is a field with the one value it must have, by which watches are dispatched; ``name`` is that
    of metadata.name. Raise Failure 400 for what cannot be parsed.
    """

    INDEXED = ("spec.nodeName", "metadata.name")

    def __init__(self, kind: Kind, options: ListOptions, view: Callable[[Stored], Object]) -> None:
        self._view = view
        self._kind = f"{kind.group}/{kind.version}"
        self._labels = selectors.parse_labels(options.label_selector)
        known = {
            **kind.fields,
            "metadata.name": lambda obj: str(obj["metadata"]["name"]),
            "metadata.namespace": lambda obj: str(obj["metadata"].get("namespace", "")),
        }
        terms = selectors.parse_fields(options.field_selector)
        pairs = selectors.field_check(terms, known)
        wanted = {term.field: term.value for term in terms if term.equal}
        self.name = wanted.get("metadata.name", "")
        field = next((f for f in self.INDEXED if wanted.get(f)), "")
        self.index = (field, wanted[field]) if field else None
        self._rest = [
            pair for pair in pairs if not (pair[1].equal and (pair[1].field, pair[1].value) == self.index)
        ]
        self._fields = pairs

    @property
    def everything(self) -> bool:
        """Whether it selects all objects."""
        return not self._labels and not self._fields

    def matches(self, stored: Stored) -> bool:
        """Whether it selects the object."""
        return self._match(stored, self._fields)

    @property
    def beside_index(self) -> Callable[[Stored], bool] | None:
        """The predicate for what ``index`` does not settle; None if there is nothing."""
        if not self._labels and not self._rest:
            return None
        return lambda stored: self._match(stored, self._rest)

    def _through(self, stored: Stored, read: Callable[[Object], str]) -> Callable[[Object], str]:
        return lambda _: read(self._view(stored))

    def _match(self, stored: Stored, pairs: list[Any]) -> bool:
        if self._labels:
            labels = stored.labels
            if not all(requirement.matches(labels) for requirement in self._labels):
                return False
        for read, term in pairs:
            # Fields of a view have other names than those of what is stored, so the kind is in the key.
            value = stored.read(f"{self._kind}.{term.field}", self._through(stored, read))
            if (value == term.value) is not term.equal:
                return False
        return True
