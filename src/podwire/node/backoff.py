"""Delays that grow: between restarts of a container, and between tries of a worker.

Crash loop: 10 s doubling to 300 s, from the moment the container ended; forgotten after 10 minutes without a
restart (kubelet: kuberuntime doBackOff, client-go flowcontrol.Backoff). Failed syncs: 1 s doubling to 15 s;
the kubelet waits 10 to 15 s from the first failure on, which a person who watches would take for a hang.
"""

from __future__ import annotations

from podwire.node.clock import SECOND
from podwire.node.observed import BackOff

CRASH_INITIAL = 10.0
CRASH_MAX = 300.0
CRASH_RESET = 600.0
RETRY_INITIAL = 1.0
RETRY_MAX = 15.0


def after_restart(entry: BackOff | None, finished_at: int, now: int) -> BackOff:
    """The back-off that holds once a container that ended at ``finished_at`` is started again."""
    if entry is None or (finished_at - entry.since) / SECOND > CRASH_RESET:
        return BackOff(CRASH_INITIAL, now)
    return BackOff(min(entry.delay * 2, CRASH_MAX), now)


def remaining(entry: BackOff | None, finished_at: int, now: int) -> float:
    """Seconds until a container that ended at ``finished_at`` may start again; 0 for at once."""
    if entry is None or (finished_at - entry.since) / SECOND > CRASH_RESET:
        return 0.0
    return max(0.0, entry.delay - (now - finished_at) / SECOND)


def retry_delay(failures: int) -> float:
    """Seconds before the next try after that many failures in a row (at least 1)."""
    return min(RETRY_INITIAL * float(2 ** min(failures - 1, 10)), RETRY_MAX)
