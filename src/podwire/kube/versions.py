"""Which of two states is the later one.

Resource versions of one resource on one server are revisions of its store: decimal numbers that only grow,
which since Kubernetes 1.35 clients may compare (KEP-5504). Versions that are no numbers are not compared.
"""

from __future__ import annotations


def revision(version: str) -> int | None:
    """The number; None for a version that is none."""
    return int(version) if version.isascii() and version.isdigit() else None


def is_older(version: str, than: str) -> bool:
    """Whether ``version`` is certainly older than ``than``."""
    left, right = revision(version), revision(than)
    return left is not None and right is not None and left < right


def is_newer(version: str, than: str) -> bool:
    """Whether ``version`` is certainly newer than ``than``."""
    return is_older(than, version)
