"""Patches and who manages which field: merge, JSON, strategic merge and server-side apply.

:func:`apply_patch` and :func:`track` are what a registry uses.
"""

from podwire.apiserver.patch.hook import apply_patch, track

__all__ = ["apply_patch", "track"]
