"""Fixtures of the end-to-end tests."""

from __future__ import annotations

from tests.cli.conftest import machine

__all__ = ["machine"]
