"""Whatever a patch holds, it is done or refused: nothing but a Failure comes out."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podwire.apiserver.kind import WriteOptions
from podwire.apiserver.kinds import builtin
from podwire.apiserver.patch import apply_patch, track
from podwire.serving.status import Failure

PODS = next(kind for kind in builtin() if kind.kind == "Pod")
NAMES = """
metadata spec status labels annotations finalizers ownerReferences managedFields containers name image
ports containerPort protocol env volumes podIPs ip conditions type nodeSelector uid apiVersion kind
$patch $retainKeys $setElementOrder/containers $deleteFromPrimitiveList/finalizers op path value from
fieldsV1 operation manager kubectl.kubernetes.io/last-applied-configuration
"""
WORDS = NAMES.split()
TEXTS = [
    *WORDS,
    "",
    "v1",
    "Pod",
    "delete",
    "replace",
    "add",
    "remove",
    "/spec/containers/0",
    "/metadata/-",
    "{}",
]
leaves = st.none() | st.booleans() | st.integers(-2, 100) | st.sampled_from(TEXTS) | st.just(1.5)
trees = st.recursive(
    leaves,
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.sampled_from(WORDS), below, max_size=5),
    max_leaves=12,
)
shaped = st.fixed_dictionaries(
    {"apiVersion": st.just("v1"), "kind": st.just("Pod")},
    optional={
        "metadata": st.fixed_dictionaries({"name": st.just("p")}, optional=dict.fromkeys(WORDS[3:8], trees)),
        "spec": st.fixed_dictionaries({}, optional=dict.fromkeys(("containers", "volumes"), trees)),
        "status": trees,
    },
)
OPTIONS = WriteOptions(field_manager="kubectl", force=True)


def live() -> dict[str, Any]:
    spec = {"containers": [{"name": "a", "image": "x", "ports": [{"containerPort": 80}]}], "nodeName": "n"}
    obj: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "uid": "u", "labels": {"a": "b"}, "finalizers": ["f/a"]},
        "spec": spec,
    }
    track(PODS, obj, {}, OPTIONS)
    return obj


@pytest.mark.parametrize(
    "media",
    [
        "application/json-patch+json",
        "application/merge-patch+json",
        "application/strategic-merge-patch+json",
        "application/apply-patch+yaml",
    ],
)
@settings(max_examples=60, deadline=None)
@given(body=trees | shaped | st.lists(trees, max_size=3), known=st.booleans())
def test_any_patch(media: str, body: Any, known: bool) -> None:
    current = live() if known or "apply" not in media else {}
    kept = json.dumps(current)
    with contextlib.suppress(Failure):
        patched = apply_patch(PODS, current, json.dumps(body).encode(), media, OPTIONS)
        assert isinstance(patched["metadata"], dict)
        json.dumps(patched)
    assert json.dumps(current) == kept


@settings(max_examples=60, deadline=None)
@given(before=shaped, after=shaped)
def test_any_write_is_tracked(before: dict[str, Any], after: dict[str, Any]) -> None:
    before.setdefault("metadata", {})
    after.setdefault("metadata", {})
    track(PODS, before, {}, OPTIONS)
    track(PODS, after, before, OPTIONS)
    json.dumps(after)
