"""What is served: /api and /apis, in the old form and as aggregated discovery.

Source: k8s.io/api/apidiscovery/v2 and k8s.io/apimachinery/pkg/apis/meta/v1 (APIGroup, APIResource).
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

import msgspec
from aiohttp import web

from podwire.apiserver.http.answers import answer
from podwire.apiserver.http.negotiation import entries
from podwire.apiserver.kind import Kind
from podwire.apiserver.registry import Registry
from podwire.serving.answers import HEADERS

Object = dict[str, Any]

_AGGREGATED = "APIGroupDiscoveryList"
_VERSION = re.compile(r"v(\d+)(?:(alpha|beta)(\d+))?")


def version_order(version: str) -> tuple[Any, ...]:
    """A key that sorts v2, v1, v1beta2, v1beta1, v1alpha1, then all else by name."""
    match = _VERSION.fullmatch(version)
    if match is None:
        return (1, version)
    stage = {None: 2, "beta": 1, "alpha": 0}[match[2]]
    return (0, -stage, -int(match[1]), -int(match[3] or 0))


class Discovery:
    """Answers discovery requests from the registry's kinds."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def serve(self, request: web.Request, parts: list[str]) -> web.Response | None:
        """The answer to ``/api``, ``/apis`` and what is right below them; None for other paths."""
        match parts:
            case ["api" | "apis" as root]:
                version = _aggregated(request)
                if version:
                    return self._aggregate(request, root, version)
                return answer(self._versions(request) if root == "api" else self._groups())
            case ["api", version] if self._kinds("", version):
                return answer(self._resources("", version))
            case ["apis", group] if group and self._group_versions(group):
                return answer({"kind": "APIGroup", "apiVersion": "v1", **self._group(group)})
            case ["apis", group, version] if group and self._kinds(group, version):
                return answer(self._resources(group, version))
        return None

    def groups(self) -> list[str]:
        """The groups in the order in which they are shown; the core group is not among them."""
        return list(dict.fromkeys(kind.group for kind in self._registry.kinds if kind.group))

    def _group_versions(self, group: str) -> list[str]:
        found = {kind.version for kind in self._registry.kinds if kind.group == group}
        return sorted(found, key=version_order)

    def _kinds(self, group: str, version: str) -> list[Kind]:
        kinds = [k for k in self._registry.kinds if (k.group, k.version) == (group, version)]
        return sorted(kinds, key=lambda kind: kind.plural)

    def _versions(self, request: web.Request) -> Object:
        return {
            "kind": "APIVersions",
            "versions": ["v1"],
            "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": request.host}],
        }

    def _group(self, group: str) -> Object:
        versions = [
            {"groupVersion": f"{group}/{version}", "version": version}
            for version in self._group_versions(group)
        ]
        return {"name": group, "versions": versions, "preferredVersion": versions[0]}

    def _groups(self) -> Object:
        groups = [self._group(group) for group in self.groups()]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}

    def _resources(self, group: str, version: str) -> Object:
        resources = []
        for kind in self._kinds(group, version):
            entry: Object = {
                "name": kind.plural,
                "singularName": kind.single,
                "namespaced": kind.namespaced,
                "kind": kind.kind,
                "verbs": list(kind.verbs),
            }
            if kind.short_names:
                entry["shortNames"] = list(kind.short_names)
            if kind.categories:
                entry["categories"] = list(kind.categories)
            if kind.review is None:
                digest = hashlib.sha256(f"{kind.storage}".encode()).digest()[:6]
                entry["storageVersionHash"] = digest.hex()
            resources.append(entry)
            for part in kind.listed_subresources:
                below: Object = {
                    "name": f"{kind.plural}/{part.name}",
                    "singularName": "",
                    "namespaced": kind.namespaced,
                    "kind": part.kind or kind.kind,
                    "verbs": list(part.verbs),
                }
                if part.kind and (part.group, part.version or version) != (group, version):
                    below["group"], below["version"] = part.group, part.version
                resources.append(below)
        return {
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": f"{group}/{version}" if group else version,
            "resources": resources,
        }

    def _aggregate(self, request: web.Request, root: str, version: str) -> web.Response:
        groups = [""] if root == "api" else self.groups()
        body = msgspec.json.encode(
            {
                "kind": _AGGREGATED,
                "apiVersion": f"apidiscovery.k8s.io/{version}",
                "metadata": {},
                "items": [
                    {
                        "metadata": {"name": group, "creationTimestamp": None},
                        "versions": [
                            {
                                "version": one,
                                "resources": [_discovered(kind) for kind in self._kinds(group, one)],
                                "freshness": "Current",
                            }
                            for one in self._group_versions(group)
                        ],
                    }
                    for group in groups
                ],
            }
        )
        tag = '"' + hashlib.sha256(body).hexdigest().upper() + '"'
        headers = {
            **HEADERS,
            "Content-Type": f"application/json;g=apidiscovery.k8s.io;v={version};as={_AGGREGATED}",
            "ETag": tag,
            "Vary": "Accept",
        }
        if request.headers.get("If-None-Match") == tag:
            return web.Response(status=304, headers=headers)
        return web.Response(body=body, headers=headers)


def _aggregated(request: web.Request) -> str:
    """The version of aggregated discovery that is asked for before any other form; empty if none is."""
    for entry in entries(request.headers.get("Accept", "")):
        if entry.media not in ("application/json", "*/*"):
            continue
        asked = entry.parameters
        if not asked.get("as"):
            return ""
        if (
            asked["as"] == _AGGREGATED
            and asked.get("g") == "apidiscovery.k8s.io"
            and asked.get("v") in ("v2", "v2beta1")
        ):
            return asked["v"]
    return ""


def _discovered(kind: Kind) -> Object:
    def named(group: str, version: str, name: str) -> Object:
        return {"group": group, "version": version, "kind": name}

    entry: Object = {
        "resource": kind.plural,
        "responseKind": named(kind.group, kind.version, kind.kind),
        "scope": "Namespaced" if kind.namespaced else "Cluster",
        "singularResource": kind.single,
        "verbs": list(kind.verbs),
    }
    if kind.short_names:
        entry["shortNames"] = list(kind.short_names)
    if kind.categories:
        entry["categories"] = list(kind.categories)
    if kind.listed_subresources:
        entry["subresources"] = [
            {
                "subresource": part.name,
                "responseKind": named(
                    part.group if part.kind else kind.group,
                    part.version or kind.version,
                    part.kind or kind.kind,
                ),
                "verbs": list(part.verbs),
            }
            for part in kind.listed_subresources
        ]
    return entry
