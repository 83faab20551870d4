"""The members of a JSON object as they stand in its bytes: what is copied keeps its digits and unknown fields. Pure."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any, Final

import orjson

from squilla_files.codec import decode_line, encode_line

_DECODER: Final = json.JSONDecoder()
_SPACE: Final = " \t\r\n"


def replace_members(line: bytes, dropped: Collection[str], first: Mapping[str, Any]) -> bytes:
    """Return the object in *line* as a line, LF included: the members *first*, then its own but for those *dropped*.

    The values that stay are copied as they stand: a number that no 64 bits hold keeps its digits.
    """
    obj = decode_line(line)
    if obj is not None and orjson.dumps(obj) == line:
        kept = {name: value for name, value in obj.items() if name not in dropped and name not in first}
        return encode_line({**first, **kept})
    head = orjson.dumps(dict(first))[1:-1]
    kept_members = [
        member for name, member in _members(line.decode("utf-8")) if name not in dropped and name not in first
    ]
    return b"{" + b",".join([head, *(member.encode("utf-8") for member in kept_members)]) + b"}\n"


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
