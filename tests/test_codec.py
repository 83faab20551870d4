"""The rules of FORMAT.md, "Lines", for single values."""

from __future__ import annotations

import json
import math
from enum import Enum, IntEnum, StrEnum
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from squilla_files.codec import (
    MAX_COUNTER,
    check_fields,
    check_value,
    counter_of,
    decode_document,
    decode_line,
    encode_document,
    encode_line,
)
from squilla_files.errors import UnstorableTypeError, UnstorableValueError

TEXT = st.text() | st.text(alphabet='\x85\u2028\u2029\r\n\x0b\x0c\x1c\x1d\x1e\x00"\\ aé😀', max_size=8)
ATOMS = (
    st.none()
    | st.booleans()
    | st.integers(min_value=-(2**63), max_value=2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT
)
VALUES = st.recursive(ATOMS, lambda v: st.lists(v, max_size=4) | st.dictionaries(TEXT, v, max_size=4), max_leaves=12)
OBJECTS = st.dictionaries(TEXT, VALUES, max_size=5)


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


@settings(max_examples=150)
@given(OBJECTS)
def test_what_is_accepted_comes_back_equal_with_its_types(record: dict[str, Any]) -> None:
    check_fields(record)
    # repr tells 1 from 1.0 and True, and 0.0 from -0.0.
    assert repr(decode_line(encode_line(record))) == repr(record)
    assert repr(decode_document(encode_document(record))) == repr(record)


@settings(max_examples=150)
@given(OBJECTS)
def test_a_record_is_one_line_for_every_tool(record: dict[str, Any]) -> None:
    line = encode_line(record)
    assert line.endswith(b"\n")
    assert len(line.decode().splitlines()) == 1
    assert line.count(b"\n") == 1


@settings(max_examples=100)
@given(OBJECTS)
def test_any_json_parser_reads_the_same_from_a_line(record: dict[str, Any]) -> None:
    assert repr(json.loads(encode_line(record))) == repr(record)


@pytest.mark.parametrize("break_", ["\x85", "\u2028", "\u2029"])
def test_line_breaks_of_unicode_are_escaped_in_values_and_names(break_: str) -> None:
    written = f"\\u{ord(break_):04x}".encode()
    assert encode_line({break_: f"\\{break_}"}) == b'{"%b":"\\\\%b"}\n' % (written, written)
    assert break_.encode() not in encode_document({break_: [break_]})


def test_a_document_is_indented_and_ends_in_lf() -> None:
    assert encode_document({"a": {"b": 1}}) == b'{\n  "a": {\n    "b": 1\n  }\n}\n'


@pytest.mark.parametrize(
    "value", [math.nan, math.inf, -math.inf, 2**64, -(2**63) - 1, "\ud800", "a\udfff", {"\ud800": 1}]
)
@pytest.mark.parametrize("wrap", [lambda v: v, lambda v: [v], lambda v: {"deep": [{"er": v}]}])
def test_a_value_that_would_not_come_back_equal_is_refused(value: object, wrap: Any) -> None:
    with pytest.raises(UnstorableValueError) as caught:
        check_value(wrap(value), "content")
    assert caught.value.where.startswith("content")
    assert isinstance(caught.value, ValueError)


class Colour(Enum):
    RED = "red"


class Level(IntEnum):
    LOW = 1


@pytest.mark.parametrize("value", [(1, 2), {1, 2}, b"x", object(), {1: 2}, {None: 2}, Colour.RED, Level.LOW, 1j])
@pytest.mark.parametrize("wrap", [lambda v: v, lambda v: [v], lambda v: {"deep": v}])
def test_a_type_that_json_lacks_is_refused(value: object, wrap: Any) -> None:
    with pytest.raises(UnstorableTypeError) as caught:
        check_value(wrap(value), "content")
    assert isinstance(caught.value, TypeError)


def test_the_refusal_names_the_place() -> None:
    with pytest.raises(UnstorableTypeError) as caught:
        check_fields({"label": "x", "tool_calls": [{}, {"arguments": {"ids": (1,)}}]})
    assert caught.value.where == "tool_calls[1].arguments.ids"
    assert "tuple" in str(caught.value)


def test_a_text_enum_is_stored_as_its_value() -> None:
    class Status(StrEnum):
        DONE = "done"

    check_value(Status.DONE, "status")
    back = decode_line(encode_line({"status": Status.DONE}))
    assert back == {"status": Status.DONE}
    assert type(back["status"]) is str


def test_250_levels_are_stored_wherever_a_value_may_stand() -> None:
    value = nested(250)
    check_value(value, "content")
    # The deepest place: an entry inside a compaction's line.
    record = {"entries": [{"content": value}]}
    assert decode_line(encode_line(record)) == record


@pytest.mark.parametrize("wrap", [lambda v: v, lambda v: {"deep": v}])
def test_more_than_250_levels_are_refused(wrap: Any) -> None:
    with pytest.raises(UnstorableTypeError, match="250 levels"):
        check_value(wrap(nested(251)), "content")


def test_a_value_that_holds_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(UnstorableTypeError, match="250 levels"):
        check_value(loop, "content")


@pytest.mark.parametrize(
    "line",
    [b"", b" ", b"[]", b"1", b"null", b'"x"', b"{", b'{"a":1}x', b"{'a':1}", b'{"a":NaN}', b'{"a":1e400}', b"\xff{}",
     b'{"a":"\xff"}', b'{"a":"\\ud800"}', b"\xef\xbb\xbf{}", b"\x00" * 9, b"[" * 5000],
)  # fmt: skip
def test_what_is_no_json_object_decodes_to_none(line: bytes) -> None:
    assert decode_line(line) is None


def test_white_space_around_an_object_is_accepted_and_the_last_of_two_members_counts() -> None:
    assert decode_line(b' {"a":1,"a":2}\r') == {"a": 2}


@pytest.mark.parametrize("value", [0, 1, MAX_COUNTER])
def test_counters_go_from_0_to_the_last_integer_that_a_double_holds(value: int) -> None:
    assert counter_of(value) == value
    assert int(float(value)) == value


@pytest.mark.parametrize("value", [-1, MAX_COUNTER + 1, 1.0, True, False, "1", None, [1]])
def test_nothing_else_is_a_counter(value: object) -> None:
    assert counter_of(value) is None
