"""Cursors: short, printable, the same for the same position, and refused where they belong elsewhere."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from squilla_files.errors import InvalidCursorError
from squilla_files.positions import (
    Checkpoint,
    Cursors,
    LogEnd,
    Position,
    chain_digest,
    decode_position,
    encode_position,
    log_digest,
    note_of,
    place_of,
)

CURSORS = Cursors(place_of("/store"))
KEY = log_digest("agent:main:main")
CURSOR = CURSORS.of_session(KEY, encode_position(Position(True, 3, (LogEnd(log_digest("a"), 7, b"abcd"),))))

counts = st.integers(0, 2**53 - 1)
ends = st.builds(
    LogEnd,
    st.binary(min_size=8, max_size=8),
    counts,
    st.binary(min_size=4, max_size=4),
    counts,
    counts,
    st.binary(min_size=4, max_size=4),
)
positions = st.builds(
    Position,
    st.booleans(),
    counts,
    st.lists(ends, max_size=4).map(tuple),
    st.lists(st.text(max_size=5).map(note_of), max_size=3).map(tuple),
)


@given(positions)
def test_a_position_comes_back_from_its_cursor(position: Position) -> None:
    data = encode_position(position)
    assert decode_position(data) == position
    cursor = CURSORS.of_session(KEY, data)
    assert CURSORS.read_session(cursor, KEY) == position
    assert CURSORS.position_in(cursor) == data


@given(st.binary(min_size=8, max_size=8), counts)
def test_a_checkpoint_comes_back_from_its_cursor(file: bytes, line: int) -> None:
    assert CURSORS.read_store(CURSORS.of_store(Checkpoint(file, line))) == Checkpoint(file, line)


@pytest.mark.parametrize("cursor", ["", "x", "!!!", CURSOR[:-1], CURSOR + "A", "é" * 8, CURSOR.lower(), 7, None, b"x"])
def test_a_malformed_cursor_is_refused(cursor: Any) -> None:
    for read in (lambda: CURSORS.read_session(cursor, KEY), lambda: CURSORS.read_store(cursor)):
        with pytest.raises(InvalidCursorError, match="malformed") as caught:
            read()
        assert caught.value.cursor == cursor


@given(st.data())
def test_a_cursor_with_one_character_changed_is_refused(data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(CURSOR) - 2))
    other = data.draw(st.sampled_from("ABYZabyz0189-_").filter(lambda letter: letter != CURSOR[at]))
    with pytest.raises(InvalidCursorError):
        CURSORS.read_session(CURSOR[:at] + other + CURSOR[at + 1 :], KEY)


def test_a_cursor_of_another_store_is_refused() -> None:
    with pytest.raises(InvalidCursorError, match="another store"):
        Cursors(place_of("/other")).read_session(CURSOR, KEY)


def test_a_cursor_of_another_session_is_refused() -> None:
    with pytest.raises(InvalidCursorError, match="another session"):
        CURSORS.read_session(CURSOR, log_digest("agent:main:other"))


def test_cursors_of_a_session_and_of_the_store_are_not_mixed_up() -> None:
    with pytest.raises(InvalidCursorError, match="one session"):
        CURSORS.read_store(CURSOR)
    with pytest.raises(InvalidCursorError, match="whole store"):
        CURSORS.read_session(CURSORS.of_store(Checkpoint(bytes(8), 1)), KEY)


def test_a_cursor_whose_content_is_cut_off_is_refused_although_its_checksum_is_right() -> None:
    whole = encode_position(Position(True, 3, (LogEnd(log_digest("a"), 7, b"abcd"),)))
    for length in range(len(whole)):
        with pytest.raises(InvalidCursorError, match="malformed"):
            CURSORS.read_session(CURSORS.of_session(KEY, whole[:length]), KEY)


def test_a_digest_of_logs_tells_their_ends_and_their_order() -> None:
    a, b = LogEnd(log_digest("a"), 3, b"aaaa"), LogEnd(log_digest("b"), 3, b"bbbb")
    digests = {chain_digest(ends) for ends in ([], [a], [b], [a, b], [b, a], [LogEnd(a.log, 4, a.check)])}
    assert len(digests) == 6
