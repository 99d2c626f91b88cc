"""Names, labels and annotations, with the words in which kube-apiserver refuses them.

Source: k8s.io/apimachinery/pkg/util/validation/validation.go and pkg/api/validation/objectmeta.go.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

from podwire.kube import names
from podwire.serving.status import (
    Cause,
    forbidden_field,
    invalid_value,
    required,
    too_long,
)

Object = dict[str, Any]

_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN_MESSAGE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must"
    " start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is"
    f" '{_LABEL}(\\.{_LABEL})*')"
)
_LABEL_MESSAGE = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and"
    " end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is"
    f" '{_LABEL}')"
)
_LABEL_1035_MESSAGE = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic"
    " character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for"
    " validation is '[a-z]([-a-z0-9]*[a-z0-9])?')"
)
_QUALIFIED_MESSAGE = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an"
    " alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is"
    " '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
_VALUE_MESSAGE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must"
    " start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used"
    " for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"
_ANNOTATIONS = 256 << 10
_GARBAGE_FINALIZERS = ("orphan", "foregroundDeletion")


def dns_subdomain(text: str) -> str:
    """What is wrong with the name of most objects."""
    if len(text) > 253:
        return "must be no more than 253 characters"
    return _SUBDOMAIN_MESSAGE if names.dns_subdomain(text) else ""


def dns_label(text: str) -> str:
    """What is wrong with the name of a namespace."""
    if len(text) > 63:
        return "must be no more than 63 characters"
    return _LABEL_MESSAGE if names.dns_label(text) else ""


def dns_1035_label(text: str) -> str:
    """What is wrong with the name of a service."""
    if len(text) > 63:
        return "must be no more than 63 characters"
    return _LABEL_1035_MESSAGE if names.dns_label(text) or text[:1].isdigit() else ""


def path_segment(text: str) -> str:
    """What is wrong with a name that only has to fit into a path."""
    if text in (".", ".."):
        return f"may not be '{text}'"
    found = [character for character in "/%" if character in text]
    return f"may not contain '{found[0]}'" if found else ""


def generated(prefix: str) -> str:
    """A name from metadata.generateName: the prefix, cut to fit, and five random characters."""
    return prefix[:58] + "".join(secrets.choice(_SUFFIX) for _ in range(5))


def label_key(field: str, key: str) -> list[Cause]:
    """What is wrong with the key of a label."""
    if not names.qualified_name(key):
        return []
    prefix, slash, name = key.rpartition("/")
    if slash and dns_subdomain(prefix):
        return [invalid_value(field, key, f"prefix part {dns_subdomain(prefix)}")]
    if not name:
        return [invalid_value(field, key, "name part must be non-empty")]
    if len(name) > 63:
        return [invalid_value(field, key, "name part must be no more than 63 characters")]
    return [invalid_value(field, key, _QUALIFIED_MESSAGE)]


def check_labels(field: str, labels: dict[str, str]) -> list[Cause]:
    """What is wrong with labels."""
    causes = []
    for key, value in labels.items():
        causes += label_key(field, key)
        if len(value) > 63:
            causes.append(invalid_value(field, value, "must be no more than 63 characters"))
        elif names.label_value(value):
            causes.append(invalid_value(field, value, _VALUE_MESSAGE))
    return causes


def check_metadata(
    meta: Object, *, namespaced: bool, check_name: Callable[[str], str], standard_finalizers: bool = True
) -> list[Cause]:
    """What is wrong with the metadata of a new object, in the order in which it is told.

    ``standard_finalizers``: one without a domain must be known, as with the core kinds.
    """
    causes: list[Cause] = []
    name = meta.get("name") or ""
    prefix = meta.get("generateName") or ""
    if prefix and (wrong := check_name(prefix.removesuffix("-") or "a")):
        causes.append(invalid_value("metadata.generateName", prefix, wrong))
    if not name:
        causes.append(required("metadata.name", "name or generateName is required"))
    elif wrong := check_name(name):
        causes.append(invalid_value("metadata.name", name, wrong))
    if namespaced:
        if not meta.get("namespace"):
            causes.append(required("metadata.namespace"))
    elif meta.get("namespace"):
        causes.append(forbidden_field("metadata.namespace", "not allowed on this type"))
    causes += check_labels("metadata.labels", meta.get("labels") or {})
    annotations = meta.get("annotations") or {}
    for key in annotations:
        causes += label_key("metadata.annotations", key.lower())
    if sum(len(key) + len(value) for key, value in annotations.items()) > _ANNOTATIONS:
        causes.append(too_long("metadata.annotations", _ANNOTATIONS))
    causes += _check_owners(meta.get("ownerReferences") or [])
    for finalizer in meta.get("finalizers") or []:
        causes += label_key("metadata.finalizers", finalizer)
        if (
            standard_finalizers
            and "/" not in finalizer
            and finalizer not in (*_GARBAGE_FINALIZERS, "kubernetes")
        ):
            detail = "name is neither a standard finalizer name nor is it fully qualified"
            causes.append(invalid_value("metadata.finalizers", finalizer, detail))
    if set(_GARBAGE_FINALIZERS) <= set(meta.get("finalizers") or []):
        detail = "finalizer orphan and foregroundDeletion cannot be both set"
        causes.append(invalid_value("metadata.finalizers", meta["finalizers"], detail))
    return causes


def _check_owners(owners: list[Object]) -> list[Cause]:
    causes = []
    controller = ""
    for index, owner in enumerate(owners):
        for part in ("apiVersion", "kind", "name", "uid"):
            if not owner.get(part):
                detail = f"{part} must not be empty" if part != "apiVersion" else "version must not be empty"
                causes.append(
                    invalid_value(f"metadata.ownerReferences[{index}].{part}", owner.get(part) or "", detail)
                )
        if owner.get("controller"):
            if controller:
                detail = (
                    f'Only one reference can have Controller set to true. Found "true" in references for'
                    f" {controller} and {owner.get('name')}"
                )
                causes.append(invalid_value("metadata.ownerReferences", "[]", detail))
            controller = str(owner.get("name"))
    return causes
