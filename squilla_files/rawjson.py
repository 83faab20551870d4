"""The members of a JSON object as they stand in its bytes: what is copied keeps its digits and unknown fields. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from typing import Any, Final

import orjson

from squilla_files.codec import decode_line, encode_line

_DECODER: Final = json.JSONDecoder()
_SPACE: Final = " \t\r\n"
# How a line of an entry begins if this package wrote it, up to the members that stay.
_USUAL_HEAD: Final = re.compile(
    rb'\{"type":"message","id":\d+,(?:"epoch":\d+,)?(?:"generation":\d+,)?"message_id":"[^"\\]*",'
    rb'(?:"after":"[^"\\]*",)?(?="role":)'
)


def place_entry(line: bytes, first: Mapping[str, Any], dropped: Collection[str]) -> bytes:
    """Return the entry in *line* as a line, LF included: the members *first*, then its own but for those *dropped*.

    The values that stay are copied as they stand: a number that no 64 bits hold keeps its digits.

    Args:
        line: the object of an entry, without LF.
        first: what places it: `type`, `id`, `message_id`, and what else there is.
        dropped: names of members that are left out.
    """
    usual = _USUAL_HEAD.match(line)
    if usual is not None and b'"set":' not in line and b'"add":' not in line:
        return orjson.dumps(dict(first))[:-1] + b"," + line[usual.end() :] + b"\n"
    obj = decode_line(line)
    left_out = {*dropped, *first}
    if obj is not None and orjson.dumps(obj) == line:
        return encode_line({**first, **{name: value for name, value in obj.items() if name not in left_out}})
    kept = [member for name, member in _members(line.decode("utf-8")) if name not in left_out]
    return b"{" + b",".join([orjson.dumps(dict(first))[1:-1], *(m.encode("utf-8") for m in kept)]) + b"}\n"


def _members(text: str) -> list[tuple[str, str]]:
    """Return (name, bytes of the whole member) for each member of the object in *text*."""
    found: list[tuple[str, str]] = []
    at = _skip(text, _skip(text, 0) + 1)
    while text[at] != "}":
        start = at
        name, at = _DECODER.raw_decode(text, at)
        at = _skip(text, _skip(text, at) + 1)
        _, at = _DECODER.raw_decode(text, at)
        found.append((name, text[start:at]))
        at = _skip(text, at)
        if text[at] == ",":
            at = _skip(text, at + 1)
    return found


def _skip(text: str, at: int) -> int:
    while text[at] in _SPACE:
        at += 1
    return at
