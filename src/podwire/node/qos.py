"""Quality of service class of a pod, from its resource requests and limits (core/v1 PodQOSClass)."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import Any

from podwire.kube.objects import Pod

_SUFFIXES = {
    "m": Decimal("0.001"),
    "k": Decimal(10) ** 3,
    "M": Decimal(10) ** 6,
    "G": Decimal(10) ** 9,
    "T": Decimal(10) ** 12,
    "P": Decimal(10) ** 15,
    "E": Decimal(10) ** 18,
    "Ki": Decimal(2) ** 10,
    "Mi": Decimal(2) ** 20,
    "Gi": Decimal(2) ** 30,
    "Ti": Decimal(2) ** 40,
    "Pi": Decimal(2) ** 50,
    "Ei": Decimal(2) ** 60,
}
_RESOURCES = ("cpu", "memory")


def quantity(value: object) -> Decimal | None:
    """A Kubernetes quantity such as ``500m`` or ``1Gi``; None if it is not one."""
    text = str(value).strip()
    for suffix in sorted(_SUFFIXES, key=len, reverse=True):
        if text.endswith(suffix):
            number, factor = text.removesuffix(suffix), _SUFFIXES[suffix]
            break
    else:
        number, factor = text, Decimal(1)
    try:
        result = Decimal(number) * factor
    except InvalidOperation:
        return None
    return result if result.is_finite() else None


def _amounts(resources: object, kind: str) -> dict[str, Decimal]:
    values: Any = resources.get(kind) if isinstance(resources, dict) else None
    if not isinstance(values, dict):
        return {}
    amounts = {name: quantity(values[name]) for name in _RESOURCES if name in values}
    return {name: amount for name, amount in amounts.items() if amount}


def qos_class(pod: Pod) -> str:
    """``Guaranteed``, ``Burstable`` or ``BestEffort``."""
    guaranteed, anything = True, False
    for container in [*pod.spec.init_containers, *pod.spec.containers]:
        limits = _amounts(container.resources, "limits")
        requests = {**limits, **_amounts(container.resources, "requests")}
        anything = anything or bool(limits or requests)
        guaranteed = guaranteed and len(limits) == len(_RESOURCES) and limits == requests
    if not anything:
        return "BestEffort"
    return "Guaranteed" if guaranteed else "Burstable"
