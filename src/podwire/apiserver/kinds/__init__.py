"""The kinds that are built in."""

from __future__ import annotations

from collections.abc import Sequence

from podwire.apiserver.kind import Kind


def builtin(cluster_ranges: Sequence[str] = (), token: str = "") -> list[Kind]:
    """All built-in kinds, in the order of discovery; ``cluster_ranges`` are those of service addresses.

    ``token`` is what a tokenreview answers for.
    """
    from podwire.apiserver.crd.definition import DEFINITIONS
    from podwire.apiserver.kinds import core, events, networking, pods, reviews, services

    return [
        *core.KINDS,
        pods.PODS,
        services.addresses(cluster_ranges or services.CLUSTER_RANGES),
        events.EVENTS,
        events.NEW_EVENTS,
        *networking.KINDS,
        *reviews.KINDS,
        reviews.token_reviews(token),
        DEFINITIONS,
    ]
