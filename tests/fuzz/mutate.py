"""Mutations of bytes: what breaks parsers, drawn from a seeded random source."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator, Sequence
from typing import Any

NUMBERS = (0, 1, 2, 3, 4, 7, 8, 15, 16, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF)
TOKENS = (
    *(b"", b"\0", b"\n", b"\r\n", b"\t", b" ", b"..", b"/", b"../", b"\xff", b"\xc3\x28", b"\xed\xa0\x80"),
    *(b"null", b"true", b"-1", b"0", b"1e999", b"NaN", b"18446744073709551616", b"0x1F", b"-0", b"010"),
    *(
        b"{",
        b"}",
        b"[",
        b"]",
        b"{}",
        b"[]",
        b'"',
        b"'",
        b":",
        b",",
        b";",
        b"=",
        b"&a ",
        b"*a",
        b"<<: ",
        b"!!",
    ),
    *(b"?", b"%2e%2e%2f", b"%00", b"%", b"+", b"\xe2\x80\xa8", b"\xef\xbb\xbf", b"::1", b"::ffff:1.2.3.4"),
    *(
        b"255.255.255.255/32",
        b"fe80::1%lo",
        b"1.2.3.4/0",
        b'"\\ud800"',
        b"\\u0000",
        b"[" * 2000,
        b'{"a":' * 500,
    ),
)
VALUES: tuple[Any, ...] = (
    *("", "x", "a/b", "..", "\0", "10.1.0.0/33", "fd00::1", "type", "\ud800", "1" * 300),
    *(None, True, False, 0, -1, 1 << 70, 1.5, [], {}, [[]], [{}], {"type": "x"}, {"subnet": "10.1.0.0/24"}),
)
LONGEST = 1 << 16


def mutated(source: random.Random, corpus: Sequence[bytes], longest: int = LONGEST) -> bytes:
    """An input of the corpus with one to six changes, or two of them spliced; JSON also in its structure."""
    chosen = source.choice(corpus)
    if chosen[:1] == b"{" and len(chosen) < longest and source.random() < 0.7:
        return _reshaped(source, chosen)
    data = bytearray(chosen)
    if source.random() < 0.1:
        other = source.choice(corpus)
        data = data[: source.randint(0, len(data))] + other[source.randint(0, len(other)) :]
    for _ in range(source.randint(1, 6)):
        _change(source, data, corpus)
    return bytes(data[:longest])


def _reshaped(source: random.Random, text: bytes) -> bytes:
    """The JSON with one to three values replaced, taken away, doubled or renamed."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return text
    for _ in range(source.randint(1, 3)):
        places = list(_places(document))
        if not places:
            break
        holder, key = source.choice(places)
        match source.randrange(4):
            case 0 if isinstance(holder, dict):
                holder[source.choice(VALUES[:8])] = holder.pop(key)
            case 1:
                del holder[key]
            case 2 if isinstance(holder, list):
                holder.append(copy.deepcopy(holder[key]))
            case _:
                other = source.choice(VALUES) if source.random() < 0.8 else source.choice(places)[0]
                holder[key] = copy.deepcopy(other)
    try:
        return json.dumps(document).encode()
    except (ValueError, RecursionError):
        return text


def _places(node: Any) -> Iterator[tuple[Any, Any]]:
    """Each container in a JSON document with each of its keys."""
    for key, value in (
        list(node.items())
        if isinstance(node, dict)
        else list(enumerate(node))
        if isinstance(node, list)
        else []
    ):
        yield node, key
        yield from _places(value)


def _change(source: random.Random, data: bytearray, corpus: Sequence[bytes]) -> None:
    start = source.randint(0, len(data))
    end = min(len(data), start + source.choice((0, 1, 1, 2, 4, 8, 16, 64)))
    match source.randrange(8):
        case 0 if data:
            data[start % len(data)] ^= 1 << source.randrange(8)
        case 1 if data:
            data[start % len(data)] = source.randrange(256)
        case 2:
            del data[start:end]
        case 3:
            data[start:end] = source.choice(TOKENS)
        case 4:
            data[start:start] = data[start:end] * source.choice((1, 2, 50))
        case 5:
            size, order = source.choice((1, 2, 4)), source.choice(("little", "big"))
            number = source.choice(NUMBERS) & (256**size - 1)
            data[start : start + size] = number.to_bytes(size, "big" if order == "big" else "little")
        case 6:
            del data[start:]
        case _:
            other = source.choice(corpus)
            begin = source.randint(0, len(other))
            data[start:end] = other[begin : begin + source.randint(0, 32)]


def smaller(data: bytes) -> list[bytes]:
    """Candidates to replace an input that failed: pieces of it left out, big pieces first."""
    found: list[bytes] = []
    size = len(data) // 2
    while size >= 1 and len(found) < 200:
        found += [data[:at] + data[at + size :] for at in range(0, len(data), size)]
        size //= 2
    return found
