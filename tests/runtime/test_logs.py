from __future__ import annotations

import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from podwire.runtime.logs import LINE_LIMIT, LogFile, Stream, stamp
from tests.runtime import helpers


def joined(entries: list[tuple[bytes, bytes, bytes]], stream: bytes) -> bytes:
    return b"".join(text + b"\n" * (tag == b"F") for name, tag, text in entries if name == stream)


def test_stamp_has_nine_digits_and_utc() -> None:
    assert stamp(1_700_000_000_000_000_042) == "2023-11-14T22:13:20.000000042Z"


def test_lines_of_both_streams(tmp_path: Path) -> None:
    log = LogFile(str(tmp_path / "deep" / "c.log"))
    out, err = Stream("stdout", log), Stream("stderr", log)
    out.feed(b"one\ntw")
    err.feed(b"bad\n")
    out.feed(b"o\n\n")
    log.close()
    assert helpers.parse((tmp_path / "deep" / "c.log").read_bytes()) == [
        (b"stdout", b"F", b"one"),
        (b"stderr", b"F", b"bad"),
        (b"stdout", b"F", b"two"),
        (b"stdout", b"F", b""),
    ]


def test_a_long_line_is_cut_at_16_kib(tmp_path: Path) -> None:
    log = LogFile(str(tmp_path / "c.log"))
    out = Stream("stdout", log)
    out.feed(b"x" * 40000 + b"\n")
    out.feed(b"y" * LINE_LIMIT + b"\n")
    log.close()
    entries = helpers.parse((tmp_path / "c.log").read_bytes())
    assert [(tag, len(text)) for _, tag, text in entries] == [
        (b"P", 16384),
        (b"P", 16384),
        (b"F", 7232),
        (b"F", 16384),
    ]


def test_what_has_no_newline_at_the_end_is_partial(tmp_path: Path) -> None:
    log = LogFile(str(tmp_path / "c.log"))
    out = Stream("stdout", log)
    out.feed(b"no newline")
    assert (tmp_path / "c.log").read_bytes() == b""
    out.end()
    out.end()
    log.close()
    assert helpers.parse((tmp_path / "c.log").read_bytes()) == [(b"stdout", b"P", b"no newline")]


@given(st.lists(st.binary(max_size=40) | st.integers(0, 40000).map(lambda size: b"z" * size), max_size=8))
def test_every_byte_comes_back_however_it_was_cut(pieces: list[bytes]) -> None:
    collected = bytearray()

    class Memory(LogFile):
        def __init__(self) -> None:
            self.path = ""

        def write(self, entries: bytes) -> None:
            collected.extend(entries)

    stream = Stream("stderr", Memory())
    for piece in pieces:
        stream.feed(piece)
    stream.end()
    entries = helpers.parse(bytes(collected))
    assert joined(entries, b"stderr") == b"".join(pieces)
    assert all(len(text) <= LINE_LIMIT for _, _, text in entries)


def test_rotation_keeps_so_many_files_and_cuts_no_entry(tmp_path: Path) -> None:
    path = tmp_path / "c.log"
    log = LogFile(str(path), limit=1000, files=3)
    out = Stream("stdout", log)
    for number in range(200):
        out.feed(b"line %d\n" % number)
    log.close()
    files = [tmp_path / "c.log.2", tmp_path / "c.log.1", path]
    assert sorted(tmp_path.iterdir()) == sorted(files)
    kept = [text for file in files for _, _, text in helpers.parse(file.read_bytes())]
    assert kept == [b"line %d" % number for number in range(200 - len(kept), 200)]
    assert all(file.stat().st_size <= 1000 for file in files)
    assert len(kept) > 40


def test_a_file_that_is_there_is_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "c.log"
    for word in (b"first", b"second"):
        log = LogFile(str(path))
        Stream("stdout", log).feed(word + b"\n")
        log.close()
    assert [text for _, _, text in helpers.parse(path.read_bytes())] == [b"first", b"second"]


def test_a_full_disk_loses_lines_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "c.log").symlink_to("/dev/full")
    log = LogFile(str(tmp_path / "c.log"))
    Stream("stdout", log).feed(b"lost\n")
    log.close()
    assert log.lost > 0
    assert re.search("No space left", log.error)
