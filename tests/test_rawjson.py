"""Entries that are copied: what places them is exchanged, and all else stands byte for byte."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from squilla_files.codec import encode_line
from squilla_files.rawjson import items_of, place_entry

DROPPED = frozenset({"type", "id", "message_id", "epoch", "generation", "after", "replaces", "set", "add"})
FIRST = {"type": "message", "id": 9, "epoch": 2, "message_id": "m", "after": "before"}
HEAD = b'{"type":"message","id":9,"epoch":2,"message_id":"m","after":"before"'
USUAL = b'{"type":"message","id":3,"message_id":"m","after":"k","role":"user"'


def place(line: bytes) -> bytes:
    return place_entry(line, FIRST)


def own(line: bytes) -> dict[str, Any]:
    """What is left of a line's members when those that place it are taken away; of two the last counts."""
    return {name: value for name, value in json.loads(line).items() if name not in DROPPED}


@pytest.mark.parametrize(
    "head",
    [
        b'{"type":"message","id":3,"message_id":"m",',
        b'{"type":"message","id":3,"message_id":"m","after":"k",',
        b'{"type":"message","id":3,"epoch":1,"generation":0,"message_id":"m","after":"k",',
        b'{"message_id":"m","type":"message","id":3,',
        b' { "type" : "message" , "id":3,\t"message_id":"m", "after" :"k", ',
        b'{"type":"message","id":3,"message_id":"m","set":{"label":"x"},"add":{"total_tokens":3},',
        b'{"type":"message","id":3,"message_id":"m","set":{"id":[{"add":"}"}]},',
    ],
)
@pytest.mark.parametrize(
    "rest",
    [
        b'"role":"user","content":"text"',
        b'"role":"user","content":123456789012345678901234567890',
        b'"role":"user","content":[1e400,-0.0,1.50,1E5]',
        b'"role":"user","color":[1.50,{"x":1e2}],"content":"text"',
        b'"role":"user","content":"raw \xe2\x80\xa8 break"',
        b'"role":"user","content":"\\u00e9\\/\\"after\\":\\\\"',
        b'"role":"user","role":"tool","content":"twice"',
        b'"role":"user","content":{"id":1,"after":"x","set":{"add":2}}',
        b'"role":"user","tool_calls":[{"id":"c-1","type":"function"}],"content":""',
        b'"role":"user","content":' + b"[" * 1000 + b"]" * 1000,
        b'"role":"user","content":{"a, b":"]}{[,"}',
    ],
)
def test_what_stays_is_copied_byte_for_byte_behind_what_places_it(head: bytes, rest: bytes) -> None:
    assert place(head + rest + b"}") == HEAD + b"," + rest + b"}\n"


@pytest.mark.parametrize(
    "member",
    [
        b'"after":"other"',
        b'"after" :"other"',
        b'"\\u0061fter":"other"',
        b'"epoch":7',
        b'"id":7',
        b'"message_id":"n"',
        b'"type":"session"',
        b'"set":{"label":"x"}',
        b'"set" : {"label":"x"}',
        b'"s\\u0065t":{"label":"x"}',
        b'"add":{"total_tokens":1e400}',
    ],
)
def test_what_places_an_entry_is_left_out_wherever_it_stands_and_however_it_is_spelled(member: bytes) -> None:
    assert place(USUAL + b"," + member + b',"content":1}') == HEAD + b',"role":"user","content":1}\n'
    assert place(USUAL + b',"content":1, ' + member + b" }") == HEAD + b',"role":"user","content":1}\n'


PLAIN = b'"role":"user","tool_call_id":"c","created_at":5,"token_count":3,'


@pytest.mark.parametrize(
    "did",
    [
        b"",
        b'"set":{"label":"x","n":1},',
        b'"add":{"total_tokens":3},',
        b'"set":{"label":"x"},"add":{"total_tokens":3,"total_cost_usd":0.1},',
        b'"set":{},"add":{},',
        b'"set":{"origin":{"a":"}"}},"add":{"total_cost_usd":[0.1,-1e17]},',
        b'"set":{"label":"x},"},"add":{"total_tokens":3},',
        b'"set":{"label":"x},\\"content\\":\\"y\\"}"},',
        b'"add":{"total_tokens":3},"set":{"label":"x"},',
        b'"set":{"label":"x"},"set":{"label":"y"},',
        b'"set" :{"label":"x"},',
    ],
)
@pytest.mark.parametrize("text", [b"", b"text", b"a\nb", b'\\"},\\"set\\":{', b"\\\\", b"\xe2\x80\xa8", b"x" * 100_000])
def test_what_a_usual_message_did_to_its_session_is_left_out(did: bytes, text: bytes) -> None:
    text = text.replace(b"\n", b"\\n")
    line = USUAL.replace(b'"role":"user"', PLAIN) + did + b'"content":"' + text + b'"'
    assert place(line + b"}") == HEAD + b"," + PLAIN + b'"content":"' + text + b'"}\n'
    for more in (b',"after":"z"', b',"epoch":7', b',"set":{}'):
        assert place(line + more + b"}") == HEAD + b"," + PLAIN + b'"content":"' + text + b'"}\n'
    behind = place(line + b',"color":1}')
    assert behind == HEAD + b"," + PLAIN + b'"content":"' + text + b'","color":1}\n'


def test_white_space_between_members_goes_and_inside_of_values_stays() -> None:
    line = b'{ "role" : "user" ,\t"message_id":"m","content" :[ 1 , { "a" : 2 } ]\r} \r'
    assert place(line) == HEAD + b',"role" : "user","content" :[ 1 , { "a" : 2 } ]}\n'


def test_an_entry_may_have_no_members_of_its_own() -> None:
    assert place(b'{"message_id":"m"}') == HEAD + b"}\n"
    assert place(b"{}") == HEAD + b"}\n"


def test_line_breaks_in_what_is_put_in_front_are_escaped() -> None:
    first = {**FIRST, "message_id": "a\u2028b"}
    assert b'"message_id":"a\\u2028b"' in place_entry(USUAL + b',"content":1}', first)
    assert b'"message_id":"a\\u2028b"' in place_entry(b'{"content":1}', first)


NAMES = st.sampled_from([*sorted(DROPPED), "role", "content", 'a"b', "\\", "{", "é"]) | st.text(max_size=3)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)


@st.composite
def foreign_lines(draw: st.DrawFn) -> bytes:
    """An object as any JSON library may write it; names may be there twice."""
    space = draw(st.sampled_from(["", " ", "\t"]))
    escaped = draw(st.booleans())
    members = draw(st.lists(st.tuples(NAMES, JSON), max_size=6))
    texts = [
        f"{json.dumps(name, ensure_ascii=escaped)}{space}:{space}{json.dumps(value, ensure_ascii=escaped)}"
        for name, value in members
    ]
    return ("{" + f"{space},{space}".join(texts) + "}").encode("utf-8", "surrogatepass")


@given(foreign_lines())
def test_whatever_is_copied_means_what_it_meant(line: bytes) -> None:
    placed = place(line)
    assert placed.startswith(HEAD)
    assert placed.count(b"\n") == 1
    assert json.loads(placed) == {**FIRST, **own(line)}


@given(st.dictionaries(NAMES, JSON.filter(lambda value: len(json.dumps(value)) < 200), max_size=5))
def test_what_this_package_wrote_is_copied_as_it_would_write_it(members: dict[str, Any]) -> None:
    try:
        line = encode_line({"type": "message", "id": 3, "message_id": "m", **members})[:-1]
    except (TypeError, orjson.JSONEncodeError):
        return  # an integer beyond 64 bit
    kept = {name: value for name, value in members.items() if name not in DROPPED}
    assert place(line) == encode_line({**FIRST, **kept})


def test_items_are_found_as_they_stand_in_the_last_array_of_the_name() -> None:
    line = b'{"other":[0],"entries":[9], "entries" : [ {"a":1e400} , "x,]" ,[ 2,3 ]]}'
    assert items_of(line, "entries") == [b'{"a":1e400}', b'"x,]"', b"[ 2,3 ]"]


@pytest.mark.parametrize("line", [b"{}", b'{"entries":[]}', b'{"entries":[ ]}', b'{"x":{"entries":[1]}}'])
def test_without_items_there_are_none(line: bytes) -> None:
    assert items_of(line, "entries") == []
