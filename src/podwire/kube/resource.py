"""What a URL of the API names: group, version, plural, and the type that its objects are decoded into."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from urllib.parse import quote

from msgspec import Raw

from podwire.kube.events import Event
from podwire.kube.lease import Lease
from podwire.kube.objects import Pod

T = TypeVar("T")

Unstructured = dict[str, Any]
"""An object as its JSON."""


@dataclass(frozen=True, slots=True)
class Resource(Generic[T]):
    """One resource of an API.

    ``type`` is a frozen msgspec struct, or ``dict`` for objects left as JSON; ``reader`` makes a ``type`` of
    JSON where that needs more than decoding.
    """

    group: str
    version: str
    plural: str
    kind: str
    type: type[T]
    namespaced: bool = True
    reader: Callable[[bytes | Raw], T] | None = None

    @property
    def api_version(self) -> str:
        """``version`` for the core group, else ``group/version``."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """The path of the collection (of all namespaces if ``namespace`` is empty) or of one object.

        Raises ValueError for what has no path: an object of a namespaced kind without its namespace, a
        namespace for a kind that has none.
        """
        if namespace and not self.namespaced:
            raise ValueError(f"{self.plural} have no namespace, {namespace!r} was given")
        if name and self.namespaced and not namespace:
            raise ValueError(f"{self.plural} {name!r}: a namespace is needed")
        parts = ["/apis", self.group, self.version] if self.group else ["/api", self.version]
        if namespace:
            parts += ["namespaces", quote(namespace, safe="")]
        parts.append(self.plural)
        if name:
            parts.append(quote(name, safe=""))
        if subresource:
            parts += [quote(part, safe="") for part in subresource.split("/")]
        return "/".join(parts)


def unstructured(
    group: str, version: str, plural: str, kind: str, *, namespaced: bool = True
) -> Resource[Unstructured]:
    """A resource whose objects stay JSON."""
    return Resource(group, version, plural, kind, dict, namespaced)


PODS = Resource("", "v1", "pods", "Pod", Pod)
EVENTS = Resource("", "v1", "events", "Event", Event)
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease", Lease)
NODES = unstructured("", "v1", "nodes", "Node", namespaced=False)
NAMESPACES = unstructured("", "v1", "namespaces", "Namespace", namespaced=False)
SERVICES = unstructured("", "v1", "services", "Service")
ENDPOINTS = unstructured("", "v1", "endpoints", "Endpoints")
CONFIG_MAPS = unstructured("", "v1", "configmaps", "ConfigMap")
SECRETS = unstructured("", "v1", "secrets", "Secret")
SERVICE_ACCOUNTS = unstructured("", "v1", "serviceaccounts", "ServiceAccount")
ENDPOINT_SLICES = unstructured("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice")
NETWORK_POLICIES = unstructured("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
CUSTOM_RESOURCE_DEFINITIONS = unstructured(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False
)
