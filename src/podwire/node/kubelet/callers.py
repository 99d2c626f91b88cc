"""Who asks at the kubelet's port, and whether they may: both are the API server's to say.

A caller proves itself by a client certificate that the node's client authority signed, or by a bearer token
that the API server reviews; it may do what the API server allows it to do with the Node and its parts. There
are no anonymous callers. Source: k8s.io/kubernetes pkg/kubelet/server/auth.go, cmd/kubelet/app/auth.go, and
the defaults of KubeletConfiguration (authentication.webhook.cacheTTL, authorization.webhook).
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, Generic, NamedTuple, TypeVar

from aiohttp import web

from podwire.kube.client import Client
from podwire.kube.resource import unstructured
from podwire.node.clock import Clock

T = TypeVar("T")

_TOKEN_REVIEWS = unstructured("authentication.k8s.io", "v1", "tokenreviews", "TokenReview", namespaced=False)
_ACCESS_REVIEWS = unstructured(
    "authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", namespaced=False
)
TOKEN_SECONDS = 120.0
ALLOWED_SECONDS = 300.0
DENIED_SECONDS = 30.0
REMEMBERED = 1024
"""Answers that are kept, of each kind."""
EVERYBODY = "system:authenticated"
_VERBS = {
    "POST": "create",
    "GET": "get",
    "HEAD": "get",
    "PUT": "update",
    "PATCH": "patch",
    "DELETE": "delete",
}
_PARTS = {"pods": "pods", "runningpods": "pods", "healthz": "healthz"}
"""First parts of paths that have a subresource of their own beside ``proxy`` (KubeletFineGrainedAuthz)."""


class User(NamedTuple):
    """A caller, as the API server names it."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


class Callers:
    """Answers for the callers of one node, asking the API server and remembering what it said for a while."""

    def __init__(self, client: Client, node_name: str, clock: Clock) -> None:
        self._client = client
        self._node_name = node_name
        self._tokens: _Answers[User | None] = _Answers(clock)
        self._allowed: _Answers[bool] = _Answers(clock)

    async def user(self, request: web.Request) -> User | None:
        """Who asks; None for nobody that is known. Raise KubeError."""
        certificate = None if request.transport is None else request.transport.get_extra_info("peercert")
        if certificate:
            return _certified(certificate)
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token:
            return None
        # What is kept is not the secret itself.
        key = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
        return await self._tokens.get(key, lambda: self._reviewed(token), lambda _: TOKEN_SECONDS)

    async def may(self, user: User, request: web.Request) -> bool:
        """Whether the caller may do this. Raise KubeError."""
        verb = _VERBS.get(request.method)
        part = _PARTS.get(request.path.split("/")[1])
        if verb is None:
            return False
        for subresource in (*([part] if part else []), "proxy"):
            if await self._allowed.get(
                (user, verb, subresource),
                lambda subresource=subresource: self._access(user, verb, subresource),  # type: ignore[misc]
                lambda allowed: ALLOWED_SECONDS if allowed else DENIED_SECONDS,
            ):
                return True
        return False

    async def _reviewed(self, token: str) -> User | None:
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token},
        }
        told = (await self._client.create(_TOKEN_REVIEWS, body)).get("status") or {}
        if not told.get("authenticated"):
            return None
        found = told.get("user") or {}
        return User(
            found.get("username") or "",
            found.get("uid") or "",
            _groups(found.get("groups") or ()),
            tuple(sorted((key, tuple(values)) for key, values in (found.get("extra") or {}).items())),
        )

    async def _access(self, user: User, verb: str, subresource: str) -> bool:
        asked: dict[str, Any] = {
            "user": user.name,
            "uid": user.uid,
            "groups": list(user.groups),
            "extra": {key: list(values) for key, values in user.extra},
            "resourceAttributes": {
                "verb": verb,
                "version": "v1",
                "resource": "nodes",
                "subresource": subresource,
                "name": self._node_name,
            },
        }
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": asked}
        told = (await self._client.create(_ACCESS_REVIEWS, body)).get("status") or {}
        return told.get("allowed") is True


class _Answers(Generic[T]):
    """Answers by what was asked, each good for a time of its own."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kept: OrderedDict[object, tuple[float, T]] = OrderedDict()

    async def get(self, key: object, ask: Callable[[], Awaitable[T]], seconds: Callable[[T], float]) -> T:
        """The answer that is known, or a new one."""
        known = self._kept.get(key)
        if known is not None and known[0] > self._clock.monotonic():
            return known[1]
        answer = await ask()
        self._kept[key] = self._clock.monotonic() + seconds(answer), answer
        self._kept.move_to_end(key)
        if len(self._kept) > REMEMBERED:
            self._kept.popitem(last=False)
        return answer


def _groups(named: Any) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*named, EVERYBODY)))


def _certified(certificate: Any) -> User | None:
    """A certificate's common name is the user, its organizations are the groups; OpenSSL has verified it."""
    parts = [part for names in certificate.get("subject", ()) for part in names]
    name = next((value for key, value in parts if key == "commonName"), "")
    return User(name, groups=_groups(v for k, v in parts if k == "organizationName")) if name else None
