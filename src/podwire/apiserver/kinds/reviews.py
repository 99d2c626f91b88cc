"""Questions about who one is and what one may do: whoever may ask here may do everything.

Source: k8s.io/api/authorization/v1 and k8s.io/api/authentication/v1.
"""

from __future__ import annotations

import hmac
from typing import Any

from podwire.apiserver.kind import Kind

Object = dict[str, Any]

GROUPS = ["system:masters", "system:authenticated"]
_EVERYTHING = "the holder of the token may do everything"


def _access(review: Object, user: str) -> Object:
    return {**review, "status": {"allowed": True, "reason": _EVERYTHING}}


def _subject(review: Object, user: str) -> Object:
    spec = review.get("spec") or {}
    ours = spec.get("user") == user or "system:masters" in (spec.get("groups") or [])
    if ours:
        return {**review, "status": {"allowed": True, "reason": _EVERYTHING}}
    return {**review, "status": {"allowed": False, "reason": "there are no other users here"}}


def _rules(review: Object, user: str) -> Object:
    return {
        **review,
        "status": {
            "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}],
            "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
            "incomplete": False,
        },
    }


def user_info(user: str) -> Object:
    """Who the holder of the token is."""
    return {"username": user, "groups": GROUPS}


def _self(review: Object, user: str) -> Object:
    return {**review, "status": {"userInfo": user_info(user)}}


def token_reviews(token: str) -> Kind:
    """The kind that tells whose a token is: there is one that is anybody's."""

    def review(obj: Object, user: str) -> Object:
        given = str((obj.get("spec") or {}).get("token") or "")
        known = bool(token) and hmac.compare_digest(given.encode(), token.encode())
        said = {"authenticated": True, "user": user_info(user)} if known else {"authenticated": False}
        return {**obj, "status": said}

    return _kind("authentication", "TokenReview", review)


def _kind(group: str, kind: str, review: Any, *, version: str = "v1", namespaced: bool = False) -> Kind:
    return Kind(
        group=f"{group}.k8s.io",
        version=version,
        kind=kind,
        plural=f"{kind.lower()}s",
        namespaced=namespaced,
        verbs=("create",),
        message=f"{group}.{kind}",
        review=review,
    )


KINDS = (
    _kind("authentication", "SelfSubjectReview", _self),
    # kubectl 1.27 asks for no newer one.
    _kind("authentication", "SelfSubjectReview", _self, version="v1beta1"),
    _kind("authorization", "LocalSubjectAccessReview", _subject, namespaced=True),
    _kind("authorization", "SelfSubjectAccessReview", _access),
    _kind("authorization", "SelfSubjectRulesReview", _rules),
    _kind("authorization", "SubjectAccessReview", _subject),
)
