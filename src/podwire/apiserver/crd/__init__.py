"""CustomResourceDefinitions: resources that users define, and their objects.

:data:`DEFINITIONS` is the kind of the definitions, :class:`Definitions` serves what they define.
"""

from podwire.apiserver.crd.controller import Definitions
from podwire.apiserver.crd.definition import DEFINITIONS

__all__ = ["DEFINITIONS", "Definitions"]
