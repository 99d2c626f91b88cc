"""What form of an answer a client asks for: the Accept header.

Source: k8s.io/apiserver/pkg/endpoints/handlers/negotiation.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

from podwire.serving import status

JSON, YAML = "application/json", "application/yaml"
_TYPES = (JSON, YAML, "*/*", "application/*")
TABLE, PARTIAL, PARTIAL_LIST = "Table", "PartialObjectMetadata", "PartialObjectMetadataList"


class Form(NamedTuple):
    """The form of an answer: the media type, and the kind it is turned into (empty: as it is)."""

    media: str = JSON
    as_kind: str = ""
    version: str = "v1"


class Accepted(NamedTuple):
    """One entry of an Accept header."""

    media: str
    parameters: dict[str, str]
    quality: float


@functools.lru_cache(256)
def entries(header: str) -> tuple[Accepted, ...]:
    """The entries of an Accept header, the best first."""
    found = []
    for clause in header.split(","):
        media, *rest = [part.strip() for part in clause.split(";")]
        parameters = dict(part.partition("=")[::2] for part in rest)
        try:
            quality = float(parameters.pop("q", "1"))
        except ValueError:
            quality = 1.0
        if media:
            found.append(Accepted(media.lower(), parameters, quality))
    return tuple(sorted(found, key=lambda entry: -entry.quality))


@functools.lru_cache(256)
def form(header: str, *, tables: bool = True) -> Form:
    """The first form in the header that is known. Raise Failure 406.

    Protobuf is not served: clients name JSON as their second choice.
    """
    if not header:
        return Form()
    for entry in entries(header):
        if entry.media not in _TYPES:
            continue
        media = YAML if entry.media == YAML else JSON
        wanted = entry.parameters.get("as", "")
        if not wanted:
            return Form(media)
        known = entry.parameters.get("g") == "meta.k8s.io" and entry.parameters.get("v") in ("v1", "v1beta1")
        if tables and known and wanted in (TABLE, PARTIAL, PARTIAL_LIST):
            return Form(media, wanted, entry.parameters["v"])
    raise status.not_acceptable([JSON, YAML])
