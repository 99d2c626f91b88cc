# ruff: noqa: E501 (tables of cases)

from __future__ import annotations

from decimal import Decimal

import pytest

from podwire.kube.quantity import QuantityError, parse_quantity


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", "0"), ("1", "1"), ("-1", "-1"), ("+1.5", "1.5"), (".5", "0.5"), ("1.", "1"), ("500m", "0.5"),
        ("10M", "10000000"), ("1k", "1000"), ("1P", "1e15"), ("1E", "1e18"), ("1Ki", "1024"), ("1.5Gi", "1610612736"),
        ("1e3", "1000"), ("1E3", "1000"), ("2e-3", "0.002"), ("1n", "1e-9"), ("1u", "1e-6"),
    ],
)  # fmt: skip
def test_quantities(text: str, value: str) -> None:
    assert parse_quantity(text) == Decimal(value)


@pytest.mark.parametrize(
    "text", ["", "m", "1K", "1 k", "1ki", "1e", "1e9999", "nan", "inf", "0x1", "1,5", "١", "1" * 65]
)
def test_what_is_no_quantity(text: str) -> None:
    with pytest.raises(QuantityError):
        parse_quantity(text)
