"""Kubernetes quantities: ``500m``, ``10M``, ``1.5Gi``, ``1e3``.

Source: k8s.io/apimachinery/pkg/api/resource/quantity.go.
"""

from __future__ import annotations

import re
from decimal import Decimal

_FORM = re.compile(r"([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))([eE][+-]?[0-9]{1,3}|[numkMGTPE]|[KMGTPE]i|)")
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}


class QuantityError(ValueError):
    """Text that is no quantity."""


def parse_quantity(text: str) -> Decimal:
    """The number that a quantity stands for. Raises QuantityError."""
    match = _FORM.fullmatch(text)
    if match is None or len(text) > 64:
        raise QuantityError(
            f'"{text[:64]}" is not a quantity: write a number with a suffix such as 500m, 10M or 1Gi'
        )
    number, suffix = Decimal(match[1]), match[2]
    if suffix in _DECIMAL:
        return number.scaleb(_DECIMAL[suffix])
    if suffix in _BINARY:
        return number * (1 << _BINARY[suffix])
    return number.scaleb(int(suffix[1:]))
