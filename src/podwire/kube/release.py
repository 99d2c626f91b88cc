"""The release of Kubernetes whose API Podwire speaks, and Podwire's own version in its terms."""

from __future__ import annotations

from podwire import __version__

MAJOR, MINOR = "1", "33"

VERSION = f"v{MAJOR}.{MINOR}.0+podwire-{__version__}"
"""A semantic version: clients and installers parse those of servers and nodes."""
