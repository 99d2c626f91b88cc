"""The text of a manifest file to a Pod: YAML or JSON, one Pod a file.

All faults of a manifest are told together, each with file, line, field, value and what is expected.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, replace

from podwire.kube import yamltree
from podwire.kube.errors import FieldError, ManifestError
from podwire.kube.objects import Pod
from podwire.kube.references import validate_static
from podwire.kube.rules import Invalid
from podwire.kube.schema import Fault, child, decode, find, shown
from podwire.kube.validation import ambiguities, validate_pod
from podwire.kube.yamltree import Mapping, Node, Scalar, Sequence, TreeError

FAILED_PARSE = "FailedParse"
FAILED_VALIDATION = "FailedValidation"
_LISTS = ("PodList", "List")


@dataclass(frozen=True, slots=True)
class Loaded:
    """A pod as written, and what in it is allowed but perhaps not meant."""

    pod: Pod
    warnings: tuple[FieldError, ...] = ()


def load_pod(data: bytes | str, file: str = "", *, static: bool = True) -> Pod | None:
    """The pod of ``load_manifest``."""
    loaded = load_manifest(data, file, static=static)
    return None if loaded is None else loaded.pod


def load_manifest(data: bytes | str, file: str = "", *, static: bool = True) -> Loaded | None:
    """The Pod in ``data``; None if there is nothing but white space and comments.

    ``static`` also refuses what a pod without an API server cannot have. Raises ManifestError.
    """
    documents = _documents(data, file)
    if not documents:
        return None
    root = documents[0]
    faults = _not_a_pod(documents)
    if faults:
        raise ManifestError(FAILED_PARSE, _located(file, faults))
    pod, faults = decode(root, Pod)
    if pod is None:
        raise ManifestError(FAILED_PARSE, _located(file, faults), _name(root))
    invalid = [*validate_pod(pod), *(validate_static(pod) if static else ())]
    if invalid:
        raise ManifestError(FAILED_VALIDATION, _placed(file, root, invalid), _name(root))
    return Loaded(pod, tuple(_placed(file, root, ambiguities(pod))))


def load_manifests(data: bytes | str, file: str = "", *, static: bool = True) -> list[Loaded]:
    """The pods in ``data``: one Pod, a PodList (or List), or a list of Pods; none if there is nothing in it.

    Raises ManifestError with the faults of all pods; one faulty pod spoils all.
    """
    documents = _documents(data, file)
    if not documents:
        return []
    root = documents[0]
    faults = _not_pods(documents)
    if faults:
        raise ManifestError(FAILED_PARSE, _located(file, faults))
    loaded: list[Loaded] = []
    errors: list[FieldError] = []
    reason = FAILED_VALIDATION
    for path, node in _items(root):
        pod, faults = decode(node, Pod, path)
        if pod is None:
            reason = FAILED_PARSE
            errors += _located(file, faults)
            continue
        invalid = [*validate_pod(pod), *(validate_static(pod) if static else ())]
        errors += [replace(e, field=child(path, e.field)) for e in _placed(file, node, invalid)]
        loaded.append(Loaded(pod, tuple(_placed(file, node, ambiguities(pod)))))
    if errors:
        raise ManifestError(reason, errors, _name(root) if isinstance(root, Mapping) else "")
    return loaded


def _documents(data: bytes | str, file: str) -> list[Node]:
    try:
        text = data if isinstance(data, str) else yamltree.decode_text(data)
        return yamltree.parse(text.removeprefix("\ufeff"))
    except TreeError as error:
        fault = FieldError(file, error.line, error.column, "", "", error.message)
        raise ManifestError(FAILED_PARSE, [fault]) from error


def _items(root: Node) -> list[tuple[str, Node]]:
    """Each pod's node with its field path: empty where the whole document is the pod."""
    if isinstance(root, Sequence):
        return [(f"[{index}]", node) for index, node in enumerate(root.items or [])]
    kind = _top(root, "kind") if isinstance(root, Mapping) else None
    if kind is None or kind.text not in _LISTS:
        return [("", root)]
    items = find(root, "items")
    listed = items.items if isinstance(items, Sequence) else None
    return [(f"items[{index}]", node) for index, node in enumerate(listed or [])]


def _not_pods(documents: list[Node]) -> list[Fault]:
    """What makes the text neither a Pod nor a list of Pods."""
    root = documents[0]
    kind = _top(root, "kind") if isinstance(root, Mapping) else None
    if not isinstance(root, Sequence) and (kind is None or kind.text not in _LISTS):
        return _not_a_pod(documents)
    if len(documents) > 1:
        return [Fault(documents[1], "", "", "a second document begins here: write a PodList")]
    items = find(root, "items") if kind is not None else None
    if items is root:
        return [Fault(root, "items", "", "this field is required: an empty list is []")]
    if isinstance(items, Mapping) or (isinstance(items, Scalar) and yamltree.scalar_value(items) is not None):
        return [Fault(items, "items", shown(items), "a list is expected here")]
    return [
        Fault(fault.node, child(path, fault.field) if fault.field else path, fault.value, fault.message)
        for path, node in _items(root)
        for fault in _not_an_item(node, in_list=kind is not None)
    ]


def _not_an_item(node: Node, *, in_list: bool) -> list[Fault]:
    """As for a document, except that the items of a typed list need not say what they are."""
    if in_list and isinstance(node, Mapping):
        stated = {name: _top(node, name) for name in ("kind", "apiVersion")}
        if all(value is None for value in stated.values()):
            return []
    return _not_a_pod([node])


def _not_a_pod(documents: list[Node]) -> list[Fault]:
    root = documents[0]
    if not isinstance(root, Mapping):
        return [
            Fault(
                root,
                "",
                shown(root),
                "this is not a Pod: a mapping with apiVersion, kind, metadata is expected",
            )
        ]
    if len(documents) > 1:
        return [Fault(documents[1], "", "", "a second document begins here: write one Pod a file")]
    kind, version = (_top(root, name) for name in ("kind", "apiVersion"))
    if kind is None:
        return [Fault(root, "kind", "", 'this field is required: write "kind: Pod"')]
    if kind.text != "Pod":
        return [Fault(kind, "", "", _unsupported(kind.text))]
    if version is None:
        return [Fault(root, "apiVersion", "", 'this field is required: write "apiVersion: v1"')]
    if version.text != "v1":
        return [Fault(version, "apiVersion", shown(version), 'a Pod is of "v1"')]
    return []


def _top(root: Mapping, name: str) -> Scalar | None:
    node = find(root, name)
    return node if isinstance(node, Scalar) and yamltree.scalar_value(node) is not None else None


def _unsupported(kind: str) -> str:
    shown_kind = kind if len(kind) <= 60 else kind[:57] + "..."
    message = f"kind {shown_kind} is not supported here: only Pod"
    if kind in ("List", "PodList"):
        return message + ", one a file"
    if difflib.SequenceMatcher(None, kind.lower(), "pod").ratio() > 0.8:
        return message + ', did you mean "Pod"?'
    return message


def _name(root: Node) -> str:
    """The namespace/name that the manifest gives itself, as far as it can be read."""
    name, namespace = find(root, "metadata.name"), find(root, "metadata.namespace")
    if not isinstance(name, Scalar):
        return ""
    return f"{namespace.text if isinstance(namespace, Scalar) else 'default'}/{name.text}"


def _located(file: str, faults: Iterable[Fault]) -> list[FieldError]:
    errors = [FieldError(file, f.node.line, f.node.column, f.field, f.value, f.message) for f in faults]
    return sorted(errors, key=lambda error: (error.line or 0, error.column or 0))


def _placed(file: str, root: Node, invalid: Iterable[Invalid]) -> list[FieldError]:
    return _located(file, [Fault(find(root, i.field) or root, i.field, i.value, i.message) for i in invalid])
