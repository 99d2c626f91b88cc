"""How long ago, in the short form of kubectl's tables.

Source: k8s.io/apimachinery/pkg/util/duration/duration.go.
"""

from __future__ import annotations

from datetime import datetime


def since(time: str | None, at: datetime) -> str:
    """How long before ``at`` the RFC 3339 time was."""
    if not time:
        return "<unknown>"
    return duration((at - datetime.fromisoformat(time)).total_seconds())


def duration(seconds: float) -> str:
    """Seconds as ``42s``, ``3m5s``, ``4h10m``, ``2d3h``, ``12d``."""
    if seconds < -1:
        return "<invalid>"
    total = max(0, int(seconds))
    if total < 120:
        return f"{total}s"
    minutes, rest = divmod(total, 60)
    if minutes < 10:
        return f"{minutes}m{rest}s" if rest else f"{minutes}m"
    if minutes < 180:
        return f"{minutes}m"
    hours, rest = divmod(minutes, 60)
    if hours < 8:
        return f"{hours}h{rest}m" if rest else f"{hours}h"
    if hours < 48:
        return f"{hours}h"
    days, rest = divmod(hours, 24)
    if days < 8:
        return f"{days}d{rest}h" if rest else f"{days}d"
    if days < 2 * 365:
        return f"{days}d"
    years, rest = divmod(days, 365)
    return f"{years}y{rest}d" if rest and years < 8 else f"{years}y"
