"""The codec: what is written is read back, and no bytes do worse than a typed error."""

from __future__ import annotations

import struct
from ipaddress import IPv4Address, ip_address
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.kernel.attributes import (
    BE16,
    BINARY,
    FLAG,
    IFNAME,
    IP,
    MAC,
    NESTED_BYTES,
    S32,
    STRING,
    SWITCH,
    U8,
    U16,
    U32,
    U64,
    Table,
    attribute,
)
from podwire.kernel.errors import InvalidValue, MalformedReply

INNER = Table("inner", number=(1, U32), word=(2, STRING))
OUTER = Table(
    "outer",
    u8=(1, U8),
    u16=(2, U16),
    u32=(3, U32),
    s32=(4, S32),
    u64=(5, U64),
    be16=(6, BE16),
    switch=(7, SWITCH),
    flag=(8, FLAG),
    text=(9, STRING),
    name=(10, IFNAME),
    mac=(11, MAC),
    ip=(12, IP),
    raw=(13, BINARY),
    nest=(14, INNER),
    opaque=(15, NESTED_BYTES),
)

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=200)
NAMES = st.text("abcdefghijklmnopqrstuvwxyz0123456789._-@", min_size=1, max_size=15).filter(
    lambda name: name not in {".", ".."}
)
VALUES = st.fixed_dictionaries(
    {},
    optional={
        "u8": st.integers(0, 2**8 - 1),
        "u16": st.integers(0, 2**16 - 1),
        "u32": st.integers(0, 2**32 - 1),
        "s32": st.integers(-(2**31), 2**31 - 1),
        "u64": st.integers(0, 2**64 - 1),
        "be16": st.integers(0, 2**16 - 1),
        "switch": st.booleans(),
        "flag": st.just(True),
        "text": TEXT,
        "name": NAMES,
        "mac": st.binary(min_size=6, max_size=6).map(lambda raw: raw.hex(":")),
        "ip": st.ip_addresses(),
        "raw": st.binary(max_size=300),
        "nest": st.fixed_dictionaries({"number": st.integers(0, 2**32 - 1), "word": TEXT}),
        "opaque": st.binary(max_size=60),
    },
)


@given(VALUES)
def test_what_is_encoded_is_decoded(values: dict[str, Any]) -> None:
    data = OUTER.encode(values)
    assert len(data) % 4 == 0
    assert OUTER.decode(data) == values


@given(VALUES)
def test_attributes_that_a_table_does_not_know_are_passed_over(values: dict[str, Any]) -> None:
    strange = attribute(999, b"xyz")
    assert OUTER.decode(strange + OUTER.encode(values) + strange) == values


@given(st.binary(max_size=200))
def test_random_bytes_decode_or_raise_the_typed_error(data: bytes) -> None:
    try:
        decoded = OUTER.decode(data)
    except MalformedReply:
        return
    assert set(decoded) <= set(OUTER._writers)


@given(VALUES, st.data())
def test_a_damaged_encoding_decodes_or_raises_the_typed_error(
    values: dict[str, Any], data: st.DataObject
) -> None:
    raw = bytearray(OUTER.encode(values))
    for _ in range(data.draw(st.integers(1, 4))):
        if raw:
            raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(raw[: data.draw(st.integers(0, len(raw)))])
    try:
        decoded = OUTER.decode(cut)
    except MalformedReply:
        return
    assert set(decoded) <= set(OUTER._writers)


def test_the_wire_layout_is_that_of_struct_nlattr() -> None:
    assert U32.pack(7, 0x01020304) == struct.pack("=HHI", 8, 7, 0x01020304)
    assert STRING.pack(3, "lo") == struct.pack("=HH", 7, 3) + b"lo\0\0"
    assert U8.pack(5, 9) == struct.pack("=HHB3x", 5, 5, 9)
    assert BE16.pack(15, 4789) == struct.pack("=HH", 6, 15) + b"\x12\xb5\0\0"
    assert INNER.pack(18, {"number": 1}) == struct.pack("=HHHHI", 12, 18 | 0x8000, 8, 1, 1)
    assert IP.pack(1, IPv4Address("10.1.2.3")) == struct.pack("=HH", 8, 1) + b"\x0a\x01\x02\x03"
    assert FLAG.pack(8, False) == b""


def test_none_is_left_out_and_a_later_value_counts() -> None:
    assert OUTER.encode({"u8": None, "text": None}) == b""
    assert OUTER.decode(U8.pack(1, 1) + U8.pack(1, 2)) == {"u8": 2}


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("u8", 256, "outer u8 256"),
        ("u32", -1, "outer u32 -1"),
        ("u32", "7", "outer u32 '7'"),
        ("be16", 70000, "outer be16 70000"),
        ("be16", -1, "outer be16 -1"),
        ("text", "a\0b", "holds a NUL"),
        ("name", "", "1 to 15 bytes"),
        ("name", "sixteen-bytes-xx", "has 16"),
        ("name", "a/b", "no '/'"),
        ("name", "a b", "space"),
        ("name", "a:b", "':'"),
        ("name", "..", "nor is it '.' or '..'"),
        ("name", "é", "ASCII"),
        ("mac", "02:00:00:00:00", "six bytes"),
        ("mac", "020000000001", "six bytes"),
        ("mac", "zz:00:00:00:00:01", "outer mac 'zz"),
        ("ip", "10.0.0.1", "outer ip '10.0.0.1'"),
        ("raw", b"x" * 65532, "do not fit"),
        ("nest", {"number": -1}, "inner number -1"),
    ],
)
def test_a_value_that_does_not_fit_is_named(name: str, value: object, says: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        OUTER.encode({name: value})
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"\x03\x00\x01\x00", "3 bytes"),
        (b"\x09\x00\x01\x00\x01", "9 bytes"),
        (struct.pack("=HHH", 6, 3, 1), "u32"),
        (struct.pack("=HHB3x", 5, 6, 1), "be16"),
        (struct.pack("=HHB3x", 5, 12, 1), "ip"),
        (struct.pack("=HHHH", 8, 14, 3, 1), "inner"),
    ],
)
def test_malformed_bytes_are_named(data: bytes, says: str) -> None:
    with pytest.raises(MalformedReply) as caught:
        OUTER.decode(data)
    assert says in str(caught.value)


def test_longer_integers_of_a_newer_kernel_are_read() -> None:
    assert OUTER.decode(struct.pack("=HHQ", 12, 3, 5)) == {"u32": 5}


def test_names_that_are_not_utf8_survive() -> None:
    raw = attribute(9, b"\xff\xfe\0")
    value = OUTER.decode(raw)["text"]
    assert OUTER.encode({"text": value}) == raw


def test_addresses_of_other_lengths_are_read_as_hexadecimal() -> None:
    assert OUTER.decode(attribute(11, b"\x0a\0\0\1")) == {"mac": "0a:00:00:01"}
    assert OUTER.decode(IP.pack(12, ip_address("fe80::1"))) == {"ip": ip_address("fe80::1")}
