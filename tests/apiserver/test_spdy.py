"""The SPDY codec and session, without I/O."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podwire.serving.streaming.spdy import frames, headers
from podwire.serving.streaming.spdy.frames import (
    LARGEST_CONTROL,
    WINDOW,
    Data,
    Decoder,
    Frame,
    GoAway,
    Headers,
    Ping,
    ProtocolError,
    RstStream,
    Settings,
    SynReply,
    SynStream,
    WindowUpdate,
)
from podwire.serving.streaming.spdy.headers import DICTIONARY, Compressor, Decompressor
from podwire.serving.streaming.spdy.session import Event, Opened, Received, Reset, Session, Widened

STREAM = st.integers(1, 0x7FFFFFFF)
WORD = st.integers(0, 0xFFFFFFFF)
BLOCK = st.binary(max_size=300)
FLAG = st.booleans()
FRAMES = st.one_of(
    st.builds(SynStream, STREAM, BLOCK, st.integers(0, 0x7FFFFFFF), st.integers(0, 7), FLAG, FLAG),
    st.builds(SynReply, STREAM, BLOCK, FLAG),
    st.builds(RstStream, STREAM, WORD),
    st.builds(Settings, st.lists(st.tuples(st.integers(0, 0xFFFFFF), WORD), max_size=5).map(tuple)),
    st.builds(Ping, WORD),
    st.builds(GoAway, st.integers(0, 0x7FFFFFFF), WORD),
    st.builds(Headers, STREAM, BLOCK, FLAG),
    st.builds(WindowUpdate, st.integers(0, 0x7FFFFFFF), st.integers(1, 0x7FFFFFFF)),
    st.builds(Data, STREAM, BLOCK, FLAG),
)


def decoded(pieces: Iterable[bytes]) -> list[Frame]:
    """The frames in these pieces, the data of a frame put together again."""
    decoder = Decoder()
    found: list[Frame] = []
    whole = True
    for piece in pieces:
        for frame in decoder.feed(piece):
            last = found[-1] if found else None
            if not whole and isinstance(frame, Data) and isinstance(last, Data):
                found[-1] = Data(last.stream, last.data + frame.data, frame.fin)
            else:
                found.append(frame)
            whole = not (isinstance(frame, Data) and decoder._left)
    return found


@given(st.lists(FRAMES, max_size=8), st.data())
def test_frames_come_back_however_their_bytes_are_cut(sent: list[Frame], data: st.DataObject) -> None:
    wire = b"".join(frame.encode() for frame in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=10)))
    bounds = [0, *cuts, len(wire)]
    assert decoded(wire[a:b] for a, b in itertools.pairwise(bounds)) == sent


@given(st.lists(FRAMES, max_size=4))
def test_frames_come_back_byte_by_byte(sent: list[Frame]) -> None:
    wire = b"".join(frame.encode() for frame in sent)
    assert decoded(wire[at : at + 1] for at in range(len(wire))) == sent


def _events(session: Session, pieces: Iterable[bytes]) -> tuple[list[Event], str]:
    """The events, data of a stream put together, and what the connection ended with."""
    found: list[Event] = []
    try:
        for piece in pieces:
            for event in session.receive(piece):
                last = found[-1] if found else None
                if (
                    isinstance(event, Received)
                    and isinstance(last, Received)
                    and last.stream == event.stream
                    and not last.fin
                ):
                    found[-1] = Received(last.stream, last.data + event.data, event.fin)
                else:
                    found.append(event)
    except ProtocolError as error:
        return found, str(error)
    return found, ""


@settings(max_examples=100)
@given(st.lists(st.one_of(st.binary(max_size=40), FRAMES.map(lambda frame: frame.encode())), max_size=12))
def test_garbage_is_a_protocol_error_or_nothing(pieces: list[bytes]) -> None:
    """Whatever comes, byte by byte or at once: the same, and little is kept."""
    wire = b"".join(pieces)
    at_once, slowly = Session(), Session()
    assert _events(at_once, [wire]) == _events(slowly, (wire[at : at + 1] for at in range(len(wire))))
    assert len(slowly._decoder._buffer) <= LARGEST_CONTROL + 8
    assert len(at_once.outgoing) <= 2 * len(wire)


def test_the_dictionary_is_that_of_the_protocol() -> None:
    # Section 2.6.10.1: its length, and the checksum by which zlib knows it.
    assert (len(DICTIONARY), zlib.adler32(DICTIONARY)) == (1423, 0xE3C6A7C2)


@given(
    st.lists(
        st.dictionaries(
            st.text(st.characters(codec="ascii", categories=["Ll", "Nd", "Pd"]), min_size=1, max_size=20),
            st.text(max_size=60),
            max_size=6,
        ),
        max_size=5,
    )
)
def test_header_blocks_come_back_in_their_order(sent: list[dict[str, str]]) -> None:
    writer, reader = Compressor(), Decompressor()
    assert [reader.headers(writer.block(one)) for one in sent] == sent


def _packed(plain: bytes) -> bytes:
    packer = zlib.compressobj(zdict=DICTIONARY)
    return packer.compress(plain) + packer.flush(zlib.Z_SYNC_FLUSH)


@pytest.mark.parametrize(
    ("plain", "message"),
    [
        (b"", "unpack_from"),
        (b"\0\0\0\1\0\0\0\5abc", "beyond the end"),
        (b"\xff\xff\xff\xff", "unpack_from"),
        (b"\0\0\0\2\0\0\0\1a\0\0\0\0\0\0\0\1A\0\0\0\0", "'A' twice"),
        (bytes(headers.LARGEST + 1), "more than"),
        (bytes(8 << 20), "more than"),
    ],
    ids=["empty", "short string", "endless count", "name twice", "large", "bomb"],
)
def test_a_bad_header_block_is_a_protocol_error(plain: bytes, message: str) -> None:
    with pytest.raises(ProtocolError, match=message):
        Decompressor().headers(_packed(plain))
    with pytest.raises(ProtocolError, match="header block: Error"):
        Decompressor().headers(b"no zlib at all")


def test_a_large_data_frame_comes_in_pieces_and_is_not_kept() -> None:
    decoder = Decoder()
    wire = Data(1, bytes(frames.LARGEST_DATA), True).encode()
    seen = 0
    for start in range(0, len(wire), 1 << 16):
        for frame in decoder.feed(wire[start : start + (1 << 16)]):
            assert isinstance(frame, Data)
            seen += len(frame.data)
            assert frame.fin == (seen == frames.LARGEST_DATA)
        assert len(decoder._buffer) < 8
    assert seen == frames.LARGEST_DATA


def test_unknown_frames_are_passed_over_and_other_versions_are_not() -> None:
    credential = b"\x80\x03\x00\x0a\x00\x00\x01\x00" + bytes(256)
    assert decoded([credential[:100], credential[100:] + Ping(1).encode()]) == [Ping(1)]
    with pytest.raises(ProtocolError, match="version 2"):
        list(Decoder().feed(b"\x80\x02\x00\x06\x00\x00\x00\x04\0\0\0\1"))
    with pytest.raises(ProtocolError, match="type 1 with"):
        list(Decoder().feed(b"\x80\x03\x00\x01\x00\xff\xff\xff"))


class Client:
    """Frames as a client writes them."""

    def __init__(self) -> None:
        self.session = Session(most_streams=3)
        self._compressor = Compressor()
        self._decompressor = Decompressor()

    def open(self, stream: int, *, fin: bool = False, **named: str) -> list[Event]:
        return self.send(SynStream(stream, self._compressor.block(named), fin=fin))

    def send(self, *sent: Frame) -> list[Event]:
        return list(self.session.receive(b"".join(frame.encode() for frame in sent)))

    def answers(self) -> list[Frame]:
        data = bytes(self.session.outgoing)
        self.session.outgoing.clear()
        return decoded([data])


def test_a_stream_opens_carries_and_ends() -> None:
    client = Client()
    assert client.open(1, streamType="stdin") == [Opened(1, {"streamtype": "stdin"}, False)]
    client.session.reply(1)
    assert client.send(Data(1, b"in"), Data(1, b"", True)) == [
        Received(1, b"in", False),
        Received(1, b"", True),
    ]
    client.session.send(1, b"out", fin=True)
    reply, data = client.answers()
    assert isinstance(reply, SynReply) and not client._decompressor.headers(reply.block)
    assert data == Data(1, b"out", True)
    assert not client.session.is_open(1)
    with pytest.raises(ConnectionResetError):
        client.session.send(1, b"more")
    # Late frames of a stream that was are no fault.
    assert client.send(Data(1, b"late"), RstStream(1, 5)) == []
    assert client.answers() == []


def test_streams_beyond_the_limit_are_refused_but_their_headers_are_read() -> None:
    client = Client()
    for number in (1, 3, 5):
        client.open(number, a="b")
    assert client.open(7, streamType="data", port="80") == []
    assert client.answers() == [RstStream(7, frames.REFUSED_STREAM)]
    assert client.send(RstStream(1, 5)) == [Reset(1, 5)]
    assert client.open(9, streamType="data", port="80") == [
        Opened(9, {"streamtype": "data", "port": "80"}, False)
    ]


@pytest.mark.parametrize("number", [2, 1])
def test_a_stream_of_a_wrong_number_ends_the_connection(number: int) -> None:
    client = Client()
    client.open(1)
    with pytest.raises(ProtocolError, match="a new stream with the number"):
        client.open(number)


def test_data_for_what_is_not_open_is_answered_with_a_reset() -> None:
    client = Client()
    client.open(1, fin=True)
    assert client.send(Data(1, b"x")) == [Reset(1, frames.STREAM_ALREADY_CLOSED)]
    assert client.send(Data(99, b"x")) == []
    assert client.answers() == [
        RstStream(1, frames.STREAM_ALREADY_CLOSED),
        RstStream(99, frames.INVALID_STREAM),
    ]


def test_pings_are_answered_and_own_ones_are_even() -> None:
    client = Client()
    client.send(Ping(7), Ping(8))
    client.session.ping()
    client.session.ping()
    assert client.answers() == [Ping(7), Ping(2), Ping(4)]


def test_windows_count_once_the_client_speaks_of_them() -> None:
    client = Client()
    client.open(1)
    client.open(3)
    client.session.send(1, bytes(1000))
    assert client.session.room(1) > WINDOW
    assert client.send(WindowUpdate(3, 10)) == [Widened(3)]
    assert (client.session.room(1), client.session.room(3)) == (WINDOW - 1000, WINDOW + 10)
    assert client.send(Settings(((frames.INITIAL_WINDOW_SIZE, 500),))) == [Widened(0)]
    assert (client.session.room(1), client.session.room(3)) == (0, 510)
    assert client.send(WindowUpdate(1, 600)) == [Widened(1)]
    assert client.session.room(1) == 100
    client.open(5)
    assert client.session.room(5) == 500
    assert client.send(WindowUpdate(0, 1)) == [Widened(0)]
    client.session.send(5, bytes(500))
    assert client.session.room(5) == 0


def test_a_window_too_large_ends_its_stream() -> None:
    client = Client()
    client.open(1)
    assert client.send(WindowUpdate(1, 0x7FFFFFFF)) == [Reset(1, frames.FLOW_CONTROL_ERROR)]
    assert client.answers() == [RstStream(1, frames.FLOW_CONTROL_ERROR)]


def test_what_was_used_may_be_sent_again() -> None:
    """A client that minds its windows stops after WINDOW bytes until it is told that they were used."""
    client = Client()
    client.open(1)
    client.send(Data(1, bytes(WINDOW)))
    client.session.consumed(1, WINDOW // 2 - 1)
    assert client.answers() == []
    client.session.consumed(1, 1)
    assert client.answers() == [WindowUpdate(1, WINDOW // 2)]
    client.send(Data(1, b"", True))
    client.session.consumed(1, WINDOW // 2)
    assert client.answers() == []
