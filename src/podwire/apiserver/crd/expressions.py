"""Regular expressions in the syntax of Go (RE2), for Python.

Source: https://github.com/google/re2/wiki/Syntax. Classes of Unicode (``\\pL``) are refused.
"""

from __future__ import annotations

import re

_NAMED = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "ascii": r"\x00-\x7f",
    "blank": r"\t ",
    "cntrl": r"\x00-\x1f\x7f",
    "digit": "0-9",
    "graph": "!-~",
    "lower": "a-z",
    "print": " -~",
    "punct": r"!-/:-@\[-`{-~",
    "space": r"\t\n\v\f\r ",
    "upper": "A-Z",
    "word": "0-9A-Za-z_",
    "xdigit": "0-9A-Fa-f",
}
_CLASS = re.compile(r"\[:(\w+):\]")


def compiled(text: str) -> re.Pattern[str]:
    """The pattern. Raise re.error."""
    return re.compile(_translated(text), re.ASCII)


def _translated(text: str) -> str:
    out: list[str] = []
    at = 0
    while at < len(text):
        character = text[at]
        if character == "\\":
            pair = text[at : at + 2]
            out.append(r"\Z" if pair == r"\z" else pair)
            at += 2
        elif character == "[":
            at = _set(text, at, out)
        else:
            # In Go the end is the end, not also the place before a last line feed.
            out.append(r"\Z" if character == "$" else character)
            at += 1
    return "".join(out)


def _set(text: str, at: int, out: list[str]) -> int:
    """Translate the set of characters that begins here; the place behind it."""
    start = at
    at += 1
    out.append("[")
    if text.startswith("^", at):
        out.append("^")
        at += 1
    first = True
    while at < len(text):
        character = text[at]
        named = _CLASS.match(text, at)
        if character == "]" and not first:
            out.append("]")
            return at + 1
        if named and named[1] in _NAMED:
            out.append(_NAMED[named[1]])
            at = named.end()
        elif character == "\\":
            out.append(text[at : at + 2])
            at += 2
        else:
            # What Python may come to read as operations on sets is meant as it stands.
            out.append(f"\\{character}" if character in "[]&|~" else character)
            at += 1
        first = False
    raise re.error("missing closing ]", text, start)
