"""The word that a node in the background gives to whoever started it."""

from __future__ import annotations

import os

import msgspec

from podwire.cli.detach import Started, Waiter


def test_the_first_word_counts_and_a_later_one_reaches_nobody() -> None:
    reader, writer = os.pipe()
    waiter = Waiter(writer)
    waiter.tell(Started())
    # The number is somebody else's by now: nothing of a second word may go there.
    stranger, other_end = os.pipe()
    taken = writer in (stranger, other_end)
    waiter.tell(Started(error="too late", exit_code=1))
    os.set_blocking(stranger, False)
    with os.fdopen(reader, "rb") as first:
        assert msgspec.json.decode(first.read(), type=Started) == Started()
    os.close(other_end)
    with os.fdopen(stranger, "rb") as second:
        assert second.read() == b""
    assert taken
