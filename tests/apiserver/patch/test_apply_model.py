"""Server-side apply and updates by several managers, against a small model of who owns what."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from podwire.apiserver.patch import fieldset
from podwire.apiserver.patch.apply import Conflicts, apply, update
from podwire.apiserver.patch.managers import APPLY, UPDATE, Managed, Manager
from podwire.apiserver.patch.merge_keys import shape_of

SHAPE = shape_of("", "Pod")

Leaf = tuple[str, str]
"""``(label, key)``, ``(finalizer, name)``, ``(item, container)`` or ``(image, container)``."""
State = dict[Leaf, str]


def written(state: State) -> dict[str, Any]:
    """The object in which these fields are set."""
    labels = {key: value for (kind, key), value in state.items() if kind == "label"}
    finalizers = [key for kind, key in state if kind == "finalizer"]
    containers = []
    for kind, key in state:
        if kind == "item":
            containers.append({"name": key})
            if ("image", key) in state:
                containers[-1]["image"] = state["image", key]
    obj: dict[str, Any] = {"metadata": {"name": "p"}, "spec": {"nodeName": "n"}}
    if labels:
        obj["metadata"]["labels"] = labels
    if finalizers:
        obj["metadata"]["finalizers"] = finalizers
    if containers:
        obj["spec"]["containers"] = containers
    return obj


def read(obj: dict[str, Any]) -> State:
    """The fields that are set in an object."""
    meta, spec = obj.get("metadata") or {}, obj.get("spec") or {}
    state = {("label", key): value for key, value in (meta.get("labels") or {}).items()}
    state.update({("finalizer", key): "" for key in meta.get("finalizers") or []})
    for one in spec.get("containers") or []:
        state["item", one["name"]] = ""
        if "image" in one:
            state["image", one["name"]] = one["image"]
    return state


def path(leaf: Leaf) -> fieldset.Path:
    kind, key = leaf
    if kind == "label":
        return ("f:metadata", "f:labels", f"f:{key}")
    if kind == "finalizer":
        return ("f:metadata", "f:finalizers", f'v:"{key}"')
    item = ("f:spec", "f:containers", f'k:{{"name":"{key}"}}')
    return item if kind == "item" else (*item, "f:image")


class Model:
    """What is set, and who owns it."""

    def __init__(self) -> None:
        self.state: State = {}
        self.owners: dict[Leaf, set[str]] = {}

    def conflicts(self, manager: str, config: State) -> set[Leaf]:
        return {
            leaf
            for leaf, value in config.items()
            if self.owners.get(leaf, set()) - {manager} and self.state.get(leaf, value) != value
        }

    def apply(self, manager: str, config: State) -> None:
        for leaf in [leaf for leaf in self.state if leaf not in config]:
            if manager not in self.owners.get(leaf, ()):
                continue
            self.owners[leaf].discard(manager)
            if not self.owners[leaf]:
                self._remove(leaf)
        for leaf, value in config.items():
            if self.state.get(leaf) != value:
                self.owners[leaf] = set()
            self.state[leaf] = value
            self.owners[leaf].add(manager)

    def update(self, manager: str, after: State) -> None:
        for leaf in [leaf for leaf in self.state if leaf not in after]:
            self._remove(leaf)
        for leaf, value in after.items():
            if self.state.get(leaf) != value:
                self.state[leaf] = value
                self.owners[leaf] = {manager}

    def _remove(self, leaf: Leaf) -> None:
        self.state.pop(leaf, None)
        self.owners.pop(leaf, None)
        if leaf[0] == "item":
            self._remove(("image", leaf[1]))


keys = st.sampled_from(["a", "b", "c"])
values = st.sampled_from(["1", "2"])


@st.composite
def states(draw: st.DrawFn) -> State:
    state: State = {("label", key): draw(values) for key in draw(st.lists(keys, unique=True))}
    state.update({("finalizer", key): "" for key in draw(st.lists(keys, unique=True))})
    for key in draw(st.lists(keys, unique=True)):
        state["item", key] = ""
        if draw(st.booleans()):
            state["image", key] = draw(values)
    return state


steps = st.lists(
    st.tuples(st.sampled_from(["x", "y"]), st.sampled_from(["apply", "force", "update"]), states()),
    min_size=1,
    max_size=8,
)


@settings(max_examples=120, deadline=None)
@given(steps)
def test_the_model_and_the_server_agree(taken: list[tuple[str, str, State]]) -> None:
    model, live, held = Model(), written({}), Managed()
    del live["spec"]["nodeName"]
    for clock, (name, action, state) in enumerate(taken):
        manager = Manager(name, UPDATE if action == "update" else APPLY, "v1", "")
        managed = Managed.decode(held.encode())
        before = copy.deepcopy(live)
        if action == "update":
            after = written(state)
            update(live, after, SHAPE, managed, manager=manager, time=str(clock))
            model.update(f"{name} {UPDATE}", state)
            live, held = after, managed
        else:
            owner = f"{name} {APPLY}"
            expected = set() if action == "force" else model.conflicts(owner, state)
            try:
                after = apply(
                    live,
                    written(state),
                    SHAPE,
                    managed,
                    manager=manager,
                    time=str(clock),
                    force=action == "force",
                )
            except Conflicts as conflicts:
                assert {one.path for one in conflicts.conflicts} == {path(leaf) for leaf in expected}
            else:
                assert not expected
                model.apply(owner, state)
                live, held = after, managed
        assert before == live or read(live) == model.state
        assert read(live) == model.state
        owned = {
            leaf: {
                f"{entry.manager.name} {entry.manager.operation}"
                for entry in held.entries.values()
                if path(leaf) in entry.fields
            }
            for leaf in model.state
        }
        assert owned == model.owners
