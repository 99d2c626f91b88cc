"""docs/manifests.md says of every field of a pod what the code does with it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from podwire.kube.objects import Pod, PodSpec
from podwire.node.support import findings

PAGE = Path(__file__).parents[2] / "docs" / "manifests.md"
WORKS, IGNORED, REFUSED, MEANINGLESS = (
    "Works",
    "Ignored with a warning",
    "Refused",
    "Without meaning here",
)
SAMPLES: dict[str, Any] = {
    "hostUsers": False,
    "containers[].securityContext.allowPrivilegeEscalation": False,
    "os": {"name": "windows"},
    "securityContext.sysctls[].name": "net.core.somaxconn",
    "containers[].env[].valueFrom.fieldRef.fieldPath": "status.podIP",
    "containers[].volumeMounts[].mountPropagation": "Bidirectional",
    "containers[].volumeMounts[].recursiveReadOnly": "Enabled",
    "containers[].terminationMessagePath": "/message",
    "containers[].terminationMessagePolicy": "FallbackToLogsOnError",
    "containers[].lifecycle.stopSignal": "SIGUSR1",
    "volumes[].emptyDir.medium": "Memory",
    "nodeSelector": {"a": "b"},
}
"""Values of fields where any other of their type would not show what becomes of them."""


def page() -> dict[str, str]:
    """The section of each field that the page names."""
    found: dict[str, str] = {}
    section = ""
    for line in PAGE.read_text().splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ")
        elif line.startswith("| `"):
            for field in re.findall(r"`([^`]+)`", line.split("|")[1]):
                assert field not in found, f"{field} is named twice"
                found[field] = section
    return found


def unwrapped(kind: inspect.Type) -> inspect.Type:
    """The type behind what is optional."""
    if isinstance(kind, inspect.UnionType):
        given = [each for each in kind.types if not isinstance(each, inspect.NoneType | inspect.CustomType)]
        return unwrapped(given[0]) if given else inspect.AnyType()
    return kind


def item_of(kind: inspect.Type) -> inspect.StructType | None:
    """The struct that a list holds; None for what is no such list."""
    if isinstance(kind, inspect.ListType | inspect.VarTupleType):
        item = unwrapped(kind.item_type)
        return item if isinstance(item, inspect.StructType) else None
    return None


def leaves(
    kind: inspect.Type, path: str = "", inside: frozenset[type] = frozenset()
) -> Iterator[tuple[str, Any]]:
    """The path of every field that holds no struct, and a value for it."""
    kind = unwrapped(kind)
    item = item_of(kind)
    if item is not None:
        yield from leaves(item, f"{path}[]", inside)
    elif isinstance(kind, inspect.StructType):
        if kind.cls not in inside:
            for field in kind.fields:
                below = f"{path}.{field.encode_name}" if path else field.encode_name
                yield from leaves(field.type, below, inside | {kind.cls})
    else:
        yield path, sample(kind)


def sample(kind: inspect.Type) -> Any:
    """Some value of a type; of a struct, what it has to have."""
    match unwrapped(kind):
        case inspect.StrType():
            return "x"
        case inspect.IntType():
            return 1
        case inspect.BoolType():
            return True
        case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item):
            return [sample(item)]
        case inspect.StructType(fields=needed):
            return {field.encode_name: sample(field.type) for field in needed if field.required}
        case _:
            return {"a": "b"}


def built(kind: inspect.Type, parts: list[str], value: Any) -> Any:
    """An object of ``kind`` with ``value`` at the path ``parts``, and what is required on the way."""
    kind = unwrapped(kind)
    item = item_of(kind)
    if not parts:
        return value
    if item is not None:
        return [built(item, parts, value)]
    assert isinstance(kind, inspect.StructType)
    (field,) = [field for field in kind.fields if field.encode_name == parts[0]]
    return {**sample(kind), field.encode_name: built(field.type, parts[1:], value)}


def fields() -> dict[str, Any]:
    """Every field of a pod's spec; those of init containers are those of containers."""
    found = dict(leaves(inspect.type_info(PodSpec)))
    return {path: SAMPLES.get(path, value) for path, value in found.items() if "initContainers" not in path}


def section_of(field: str, told: dict[str, str]) -> str | None:
    """What the page says: the row of the field, or of the nearest one that it is inside of."""
    while field:
        if field in told:
            return told[field]
        shorter = field.removesuffix("[]")
        field = shorter if shorter != field else field.rpartition(".")[0]
    return None


def pod_with(field: str, value: Any) -> Pod:
    """A pod that is as plain as can be, but for one field."""
    spec = built(inspect.type_info(PodSpec), field.replace("[]", "").split("."), value)
    return msgspec.convert({"metadata": {"name": "p"}, "spec": spec}, Pod)


def test_every_field_is_told_once_and_no_other() -> None:
    told, known = page(), fields()
    assert len(known) > 150
    assert [field for field in known if section_of(field, told) is None] == []
    assert set(told.values()) == {WORKS, IGNORED, REFUSED, MEANINGLESS}
    for field in told:
        inside = [path for path in known if path == field or path.startswith((f"{field}.", f"{field}[]"))]
        assert inside, f"{field} is no field of a pod"


@pytest.mark.parametrize(("field", "value"), fields().items(), ids=fields())
def test_the_page_is_true(field: str, value: Any) -> None:
    found = findings(pod_with(field, value))
    section = section_of(field, page())
    about = [
        entry for entry in found if re.sub(r"\[\d+\]", "[]", entry.field).startswith(f"spec.{head(field)}")
    ]
    outcome = {IGNORED: [False], REFUSED: [True]}.get(section or "", [])
    assert [entry.fatal for entry in about] == outcome, f"{field} is told as {section}: {found}"


def head(field: str) -> str:
    """As much of a field's path as a finding names: a whole reference, not what is in it."""
    return re.sub(r"(\.valueFrom)\.(?!fieldRef).*", r"\1", field)
