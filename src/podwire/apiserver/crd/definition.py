"""CustomResourceDefinition itself: its defaults, its rules, and what its status says.

Source: k8s.io/apiextensions-apiserver/pkg/apis/apiextensions (v1/defaults.go, validation/validation.go) and
pkg/controller/{status,establish}.
"""

from __future__ import annotations

import re
from typing import Any

from podwire.apiserver import metadata, naming
from podwire.apiserver.crd import props, pruning, structural, validation
from podwire.apiserver.crd.jsonpath import BadPath, Path, fields
from podwire.apiserver.crd.openapi import DEFINITION_SCHEMA
from podwire.apiserver.crd.schema import Schema, read
from podwire.apiserver.kind import STATUS, Kind
from podwire.serving import status
from podwire.serving.status import Cause

Object = dict[str, Any]

GROUP, VERSION, KIND, PLURAL = (
    "apiextensions.k8s.io",
    "v1",
    "CustomResourceDefinition",
    "customresourcedefinitions",
)
FINALIZER = "customresourcecleanup.apiextensions.k8s.io"

_SCOPES = ("Cluster", "Namespaced")
_COLUMN_TYPES = ("boolean", "date", "integer", "number", "string")
_COLUMN_FORMATS = ("byte", "date", "date-time", "double", "float", "int32", "int64", "password")
_APPROVAL = "api-approved.kubernetes.io"
_VERSION_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")


def defaults(obj: Object) -> None:
    """Names that follow from others, the conversion, and that versions keep no deprecation of false."""
    spec = obj.get("spec")
    if not isinstance(spec, dict):
        return
    names = spec.get("names")
    if isinstance(names, dict) and isinstance(names.get("kind"), str):
        if not names.get("singular"):
            names["singular"] = names["kind"].lower()
        if not names.get("listKind"):
            names["listKind"] = names["kind"] + "List"
    if not spec.get("conversion"):
        spec["conversion"] = {"strategy": "None"}
    if spec.get("preserveUnknownFields") is False:
        del spec["preserveUnknownFields"]


def prune(obj: Object) -> list[str]:
    """Remove unknown fields; their paths. Raise Failure 400 if one that is known has the wrong type."""
    _drop_nulls(obj.get("spec"))
    unknown = pruning.metadata(obj) + pruning.prune(obj, _SHAPE)
    for cause in validation.validate(obj, _SHAPE, resource=True):
        if cause.reason == "FieldValueTypeInvalid":
            raise status.cannot_handle(KIND, VERSION, cause.message.partition(": ")[2].partition(": ")[2])
    for index, version in enumerate((obj.get("spec") or {}).get("versions") or []):
        given = version.get("schema") or {}
        if given.get("openAPIV3Schema") is not None:
            try:
                path = f"spec.versions[{index}].schema.openAPIV3Schema"
                unknown.extend(props.prune(given["openAPIV3Schema"], path))
            except props.WrongType as wrong:
                raise status.cannot_handle(KIND, VERSION, str(wrong)) from wrong
    return unknown


def _drop_nulls(value: Any) -> None:
    """A field that is null is one that is left out; in the schemas a null can be a default or a choice."""
    if isinstance(value, dict):
        for name in [name for name, below in value.items() if below is None]:
            del value[name]
        for name, below in value.items():
            if name != "openAPIV3Schema":
                _drop_nulls(below)
    elif isinstance(value, list):
        for below in value:
            _drop_nulls(below)


def validate(obj: Object) -> list[Cause]:
    """What is wrong with a definition."""
    spec = obj.get("spec")
    if not spec:
        return [status.required("spec")]
    causes: list[Cause] = []
    group, names = spec.get("group") or "", spec.get("names") or {}
    plural = names.get("plural") or ""
    if obj["metadata"].get("name") != f"{plural}.{group}":
        told = 'must be spec.names.plural+"."+spec.group'
        causes.append(status.invalid_value("metadata.name", obj["metadata"].get("name"), told))
    _check_group(obj, group, causes)
    scope = spec.get("scope") or ""
    if not scope:
        causes.append(status.required("spec.scope"))
    elif scope not in _SCOPES:
        causes.append(status.not_supported("spec.scope", scope, _SCOPES))
    _check_names(names, causes)
    _check_versions(spec.get("versions") or [], causes)
    strategy = (spec.get("conversion") or {}).get("strategy")
    if strategy not in ("None", "Webhook"):
        causes.append(status.not_supported("spec.conversion.strategy", strategy, ("None", "Webhook")))
    if spec.get("preserveUnknownFields"):
        told = (
            "must be false in order to use defaults in the schema; set x-kubernetes-preserve-unknown-fields"
        )
        causes.append(status.invalid_value("spec.preserveUnknownFields", True, told))
    return causes


def _check_group(obj: Object, group: str, causes: list[Cause]) -> None:
    if not group:
        causes.append(status.required("spec.group"))
    elif wrong := naming.dns_subdomain(group):
        causes.append(status.invalid_value("spec.group", group, wrong))
    elif "." not in group:
        causes.append(status.invalid_value("spec.group", group, "should be a domain with at least one dot"))
    protected = group in ("k8s.io", "kubernetes.io") or group.endswith((".k8s.io", ".kubernetes.io"))
    if protected and not (obj["metadata"].get("annotations") or {}).get(_APPROVAL):
        told = (
            f'protected groups must have approval annotation "{_APPROVAL}",'
            " see https://github.com/kubernetes/enhancements/pull/1111"
        )
        causes.append(status.required(f"metadata.annotations[{_APPROVAL}]", told))


def _check_names(names: Object, causes: list[Cause]) -> None:
    for field in ("plural", "singular", "kind", "listKind"):
        value = names.get(field) or ""
        if not value:
            causes.append(status.required(f"spec.names.{field}"))
        elif wrong := naming.dns_1035_label(str(value).lower()):
            causes.append(status.invalid_value(f"spec.names.{field}", value, wrong))
        elif field in ("plural", "singular") and value != value.lower():
            causes.append(
                status.invalid_value(
                    f"spec.names.{field}", value, naming.dns_1035_label(value) or "lower case"
                )
            )
    if names.get("kind") and names.get("kind") == names.get("listKind"):
        told = "kind and listKind may not be the same"
        causes.append(status.invalid_value("spec.names.listKind", names["listKind"], told))
    for field in ("shortNames", "categories"):
        for index, value in enumerate(names.get(field) or []):
            if wrong := naming.dns_1035_label(str(value)):
                causes.append(status.invalid_value(f"spec.names.{field}[{index}]", value, wrong))


def _check_versions(versions: list[Object], causes: list[Cause]) -> None:
    seen: set[str] = set()
    stored = [one.get("name") for one in versions if one.get("storage")]
    for index, version in enumerate(versions):
        path = f"spec.versions[{index}]"
        name = version.get("name") or ""
        if not name:
            causes.append(status.required(f"{path}.name"))
        elif not _VERSION_NAME.fullmatch(name) or len(name) > 63:
            causes.append(
                status.invalid_value(f"{path}.name", name, naming.dns_1035_label(name) or "too long")
            )
        if name in seen:
            causes.append(
                status.invalid_value("spec.versions", sorted(seen), "must contain unique version names")
            )
        seen.add(name)
        for flag in ("served", "storage"):
            if not isinstance(version.get(flag), bool):
                causes.append(status.required(f"{path}.{flag}"))
        _check_version(version, path, causes)
    if len(stored) != 1:
        told = "must have exactly one version marked as storage version"
        causes.append(status.invalid_value("spec.versions", [v.get("name") for v in versions], told))


def _check_version(version: Object, path: str, causes: list[Cause]) -> None:
    given = (version.get("schema") or {}).get("openAPIV3Schema")
    if given is None:
        causes.append(status.required(f"{path}.schema.openAPIV3Schema", "schemas are required"))
    else:
        causes.extend(structural.check(given, f"{path}.schema.openAPIV3Schema"))
    for index, column in enumerate(version.get("additionalPrinterColumns") or []):
        _check_column(column, f"{path}.additionalPrinterColumns[{index}]", causes)
    for index, field in enumerate(version.get("selectableFields") or []):
        _check_path(field, f"{path}.selectableFields[{index}]", causes)
    scale = (version.get("subresources") or {}).get("scale")
    if scale is not None:
        _check_scale(scale, f"{path}.subresources.scale", causes)


def _check_column(column: Object, path: str, causes: list[Cause]) -> None:
    if not column.get("name"):
        causes.append(status.required(f"{path}.name"))
    kind = column.get("type") or ""
    if not kind:
        told = f"must be one of {','.join(_COLUMN_TYPES)}"
        causes.append(status.required(f"{path}.type", told))
    elif kind not in _COLUMN_TYPES:
        told = f"must be one of {','.join(_COLUMN_TYPES)}"
        causes.append(status.invalid_value(f"{path}.type", kind, told))
    if column.get("format") and column["format"] not in _COLUMN_FORMATS:
        told = f"must be one of {','.join(_COLUMN_FORMATS)}"
        causes.append(status.invalid_value(f"{path}.format", column["format"], told))
    _check_path(column, path, causes)


def _check_path(holder: Object, path: str, causes: list[Cause]) -> None:
    if not holder.get("jsonPath"):
        causes.append(status.required(f"{path}.jsonPath"))
        return
    try:
        Path(holder["jsonPath"])
    except BadPath as error:
        causes.append(status.invalid_value(f"{path}.jsonPath", holder["jsonPath"], str(error)))


def _check_scale(scale: Object, path: str, causes: list[Cause]) -> None:
    for name, root in (("specReplicasPath", ".spec."), ("statusReplicasPath", ".status.")):
        value = scale.get(name) or ""
        if not value:
            causes.append(status.required(f"{path}.{name}"))
        elif fields(value) is None or not value.startswith(root):
            told = f"should be a json path under {root.rstrip('.')}"
            causes.append(status.invalid_value(f"{path}.{name}", value, told))
    value = scale.get("labelSelectorPath")
    if value and (fields(value) is None or not value.startswith((".spec.", ".status."))):
        told = "should be a json path under either .spec or .status"
        causes.append(status.invalid_value(f"{path}.labelSelectorPath", value, told))


def validate_update(new: Object, old: Object) -> list[Cause]:
    """What is wrong with an update: group, scope and names of what is served stay as they are."""
    causes = validate(new)
    if not new.get("spec"):
        return causes
    spec, before = new["spec"], old["spec"]
    for path in ("group", "scope", "names.kind", "names.plural"):
        value, held = _at(spec, path), _at(before, path)
        if value != held and (path == "group" or condition(old, "Established")):
            causes.append(status.invalid_value(f"spec.{path}", value, metadata.IMMUTABLE))
    known = {version.get("name") for version in spec.get("versions") or []}
    for index, name in enumerate((old.get("status") or {}).get("storedVersions") or []):
        if name not in known:
            told = (
                f"missing from spec.versions; {name} was previously a storage version, and must remain in"
                " spec.versions until a storage migration ensures no data remains persisted in"
                f" {name} and removes {name} from status.storedVersions"
            )
            causes.append(status.invalid_value(f"status.storedVersions[{index}]", name, told))
    return causes


def _at(value: Any, path: str) -> Any:
    for name in path.split("."):
        value = (value or {}).get(name)
    return value


def condition(obj: Object, kind: str) -> bool:
    """Whether a condition of the definition is true."""
    found = (obj.get("status") or {}).get("conditions") or []
    return any(one.get("type") == kind and one.get("status") == "True" for one in found)


def warn(obj: Object) -> list[str]:
    """What this server leaves out."""
    told = []
    if (obj["spec"].get("conversion") or {}).get("strategy") == "Webhook":
        told.append(
            "spec.conversion: webhooks are not called; objects are converted by their apiVersion alone"
        )
    if any(_has_rules(version) for version in obj["spec"]["versions"]):
        told.append("x-kubernetes-validations: expressions in CEL are not evaluated by this server")
    return told


def _has_rules(value: Any) -> bool:
    if isinstance(value, dict):
        return bool(value.get("x-kubernetes-validations")) or any(map(_has_rules, value.values()))
    return isinstance(value, list) and any(map(_has_rules, value))


def schema_of(version: Object) -> Schema:
    """The schema of a version of a definition."""
    return read(version["schema"]["openAPIV3Schema"])


def prepare_create(obj: Object) -> None:
    """Objects of it are to be deleted before it goes."""
    finalizers = obj["metadata"].setdefault("finalizers", [])
    if FINALIZER not in finalizers:
        finalizers.append(FINALIZER)


_SHAPE = read(DEFINITION_SCHEMA)

DEFINITIONS = Kind(
    group=GROUP,
    version=VERSION,
    kind=KIND,
    plural=PLURAL,
    namespaced=False,
    short_names=("crd", "crds"),
    categories=("api-extensions",),
    subresources={"status": STATUS},
    generation=True,
    defaults=defaults,
    prepare_create=prepare_create,
    validate=validate,
    validate_update=validate_update,
    warn=warn,
    prune=prune,
    free_finalizers=True,
    schema=DEFINITION_SCHEMA,
)
