"""API servers for tests: one that misbehaves on demand, and one that keeps objects.

See :mod:`podwire.kube.testing.server` and, for ways to misbehave, :mod:`podwire.kube.testing.misbehaviour`.
"""

from podwire.kube.testing.objects import ObjectServer
from podwire.kube.testing.server import (
    Abilities,
    Behaviour,
    Exchange,
    Request,
    Script,
    ScriptedServer,
    event_line,
    failure,
)
from podwire.kube.testing.world import Change, Object, World

__all__ = [
    "Abilities",
    "Behaviour",
    "Change",
    "Exchange",
    "Object",
    "ObjectServer",
    "Request",
    "Script",
    "ScriptedServer",
    "World",
    "event_line",
    "failure",
]
