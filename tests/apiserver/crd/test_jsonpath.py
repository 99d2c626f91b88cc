"""JSONPath of printer columns."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podwire.apiserver.crd.columns import cell
from podwire.apiserver.crd.jsonpath import BadPath, Path, fields

OBJECT = {
    "metadata": {"labels": {"a.b/c": "x", "plain": "y"}},
    "spec": {"replicas": 3, "ports": [{"port": 80, "name": "a"}, {"port": 81, "name": "b"}], "on": True},
    "status": {
        "conditions": [
            {"type": "Ready", "status": "True", "weight": 1},
            {"type": "Other", "status": "False", "weight": 5},
        ]
    },
}


@pytest.mark.parametrize(
    ("path", "found"),
    [
        (".spec.replicas", [3]),
        (".spec.missing", []),
        (".spec.replicas.deeper", []),
        (".metadata.labels['a.b/c']", ["x"]),
        ('.metadata.labels["a.b/c"]', ["x"]),
        (r".metadata.labels.a\.b/c", ["x"]),
        (".metadata['labels'].plain", ["y"]),
        (".spec.ports[0].port", [80]),
        (".spec.ports[-1].port", [81]),
        (".spec.ports[5].port", []),
        (".spec.ports[*].port", [80, 81]),
        (".spec.ports[0:1].port", [80]),
        (".spec.ports[1:].port", [81]),
        ('.status.conditions[?(@.type=="Ready")].status', ["True"]),
        (".status.conditions[?(@.type=='Ready')].status", ["True"]),
        ('.status.conditions[?(@.type != "Ready")].status', ["False"]),
        (".status.conditions[?(@.weight > 2)].type", ["Other"]),
        (".status.conditions[?(@.weight <= 1)].type", ["Ready"]),
        (".status.conditions[?(@.nothing)].type", []),
        (".status.conditions[?(@.type > 1)].type", []),
        (".spec.on", [True]),
    ],
)
def test_what_is_found(path: str, found: list[Any]) -> None:
    assert Path(path).find(OBJECT) == found


@pytest.mark.parametrize(
    "path", ["spec", "", "..", ".a[", ".a[x]", ".a[?(@.b==c)]", "{.a}", ".a b", ".a[?(@.b=='c']"]
)
def test_what_is_no_path(path: str) -> None:
    with pytest.raises(BadPath):
        Path(path)


@settings(deadline=None)
@given(st.text(alphabet=".[]'\"*?@()=ab01:-\\ ", max_size=20))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        path = Path(text)
    except BadPath:
        return
    assert isinstance(path.find(OBJECT), list)


def test_names_of_plain_paths() -> None:
    assert fields(".spec.a") == ["spec", "a"]
    assert fields(".spec[0]") is None
    assert fields("") is None


@pytest.mark.parametrize(
    ("value", "kind", "shown"),
    [
        ("x", "string", "x"),
        ({"a": 1}, "string", '{"a":1}'),
        (5, "string", "5"),
        (5.0, "integer", 5),
        ("5", "integer", None),
        (True, "integer", None),
        (5, "number", 5.0),
        (True, "boolean", True),
        (1, "boolean", None),
        ("2026-01-01T00:00:00Z", "date", "5m"),
        ("never", "date", "<invalid>"),
        (None, "string", None),
    ],
)
def test_cells(value: Any, kind: str, shown: Any) -> None:
    assert cell(value, kind, datetime(2026, 1, 1, 0, 5, tzinfo=UTC)) == shown
