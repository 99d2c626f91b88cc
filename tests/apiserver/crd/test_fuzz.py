"""Definitions and objects with anything anywhere: they are served or refused, and nothing else happens."""

from __future__ import annotations

import copy
import json
from datetime import UTC, datetime
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from podwire.apiserver.crd import definition as crd
from podwire.apiserver.crd.kinds import kinds
from podwire.apiserver.schemas.checking import WrongType
from podwire.serving.status import Failure
from tests.apiserver.crd.definitions import SCHEMA, crontab, definition, version

SCALE = {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}
FULL = definition(
    version(
        subresources={"status": {}, "scale": SCALE},
        additionalPrinterColumns=[{"name": "A", "type": "string", "jsonPath": ".spec.mode"}],
        selectableFields=[{"jsonPath": ".spec.mode"}],
    ),
    version("v2", storage=False),
    categories=["all"],
)
WORDS = [
    "type",
    "object",
    "array",
    "string",
    "properties",
    "items",
    "default",
    "anyOf",
    "map",
    "x",
    "",
    ".spec",
    "v1",
]
values = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 3) | st.sampled_from(WORDS),
    lambda below: st.lists(below, max_size=2) | st.dictionaries(st.sampled_from(WORDS), below, max_size=3),
    max_leaves=6,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    members = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, below in members:
        found += places(below, (*path, key))
    return found


def put(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    changed = copy.deepcopy(value)
    node = changed
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = new
    return changed


OBJECT = crontab(ports=[{"port": 1, "name": "a"}], mode="fast")
ESTABLISHED = {"conditions": [{"type": "Established", "status": "True"}]}


@settings(max_examples=300, deadline=None)
@given(st.sampled_from([p for p in places(FULL) if p[0] != "status" and p != ("metadata",)]), values)
def test_any_definition(path: tuple[Any, ...], value: Any) -> None:
    obj = put(FULL, path, value)
    try:
        crd.prune(obj)
    except (Failure, WrongType):
        return
    crd.defaults(obj)
    causes = crd.validate(obj)
    json.dumps([str(cause) for cause in causes])
    if causes:
        return
    crd.warn(obj)
    for kind in kinds({**obj, "status": ESTABLISHED}):
        made = copy.deepcopy(OBJECT)
        assert kind.prune is not None
        kind.prune(made)
        kind.validate(made)
        for column in kind.columns:
            column.value(made, datetime.now(UTC))


@settings(max_examples=200, deadline=None)
@given(st.sampled_from([p for p in places(OBJECT) if p[0] != "metadata"]), values)
def test_any_object(path: tuple[Any, ...], value: Any) -> None:
    kind = kinds({**FULL, "status": ESTABLISHED})[0]
    made = put(OBJECT, path, value)
    assert kind.prune is not None
    kind.prune(made)
    causes = kind.validate(made)
    json.dumps([str(cause) for cause in causes])
    assert causes or not unlike(made["spec"], SCHEMA["properties"]["spec"])


def unlike(spec: Any, schema: dict[str, Any]) -> bool:
    """A second opinion on the few rules of the test's schema."""
    if not isinstance(spec, dict) or not isinstance(spec.get("cronSpec"), str):
        return True
    replicas = spec.get("replicas")
    return (
        type(replicas) is not int
        or not 1 <= replicas <= 10
        or spec.get("mode", "fast") not in ("fast", "slow")
    )
