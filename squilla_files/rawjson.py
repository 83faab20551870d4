"""The members of a JSON object as they stand in its bytes: what is copied keeps its digits and unknown fields. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from typing import Any, Final

import orjson

from squilla_files.codec import decode_line, encode_line

_STRING: Final = rb'"[^"\\]*(?:\\.[^"\\]*)*"'
_NAME: Final = re.compile(rb"(%b)\s*:\s*" % _STRING, re.DOTALL)
_TOKEN: Final = re.compile(rb"%b|[\[\]{},]" % _STRING, re.DOTALL)
_DEEPER: Final = frozenset({b"[", b"{"})
_HIGHER: Final = frozenset({b"]", b"}"})
# How a line of an entry begins if this package wrote it, up to the members that stay.
_USUAL_HEAD: Final = re.compile(
    rb'\{"type":"message","id":\d+,(?:"epoch":\d+,)?(?:"generation":\d+,)?"message_id":"[^"\\]*",'
    rb'(?:"after":"[^"\\]*",)?(?="role":)'
)


def place_entry(line: bytes, first: Mapping[str, Any], dropped: frozenset[str]) -> bytes:
    """Return the entry in *line* as a line, LF included: the members *first*, then its own but for those *dropped*.

    What stays is copied as it stands: a number that no 64 bits hold keeps its digits.

    Args:
        line: the object of an entry, without LF.
        first: what places it: `type`, `id`, `message_id`, and what else there is.
        dropped: names of members that are left out, all of *first* among them.
    """
    head = encode_line(first)[:-2]
    usual = _USUAL_HEAD.match(line)
    if usual is not None:
        rest = line[usual.end() :]
        # Another program may write those members anywhere, and spell their names with escapes.
        if b"\\u" not in rest and not any(name in rest for name in _spelled(dropped)):
            return head + b"," + rest + b"\n"
    obj = _as_written(line)
    if obj is not None:
        return encode_line({**first, **{name: value for name, value in obj.items() if name not in dropped}})
    kept = [member for name, _, member in _members(line) if name not in dropped]
    return b",".join([head, *kept]) + b"}\n"


def items_of(line: bytes, name: str) -> list[bytes]:
    """Return the items of the array that stands under *name* in the object in *line*, each as it stands."""
    arrays = [value for found, value, _ in _members(line) if found == name]
    return list(_pieces(arrays[-1])) if arrays else []


@cache
def _spelled(names: Collection[str]) -> tuple[bytes, ...]:
    return tuple(b'"%b"' % name.encode() for name in sorted(names))


def _as_written(line: bytes) -> dict[str, Any] | None:
    """Return the object in *line* where this package would write it in just these bytes, so that it may do so again."""
    obj = decode_line(line)
    try:
        return obj if obj is not None and encode_line(obj)[:-1] == line else None
    except orjson.JSONEncodeError:
        return None  # nested deeper than the library writes


def _members(line: bytes) -> Iterator[tuple[str, bytes, bytes]]:
    """Yield (name, value, the whole member) for each member of the object in *line*."""
    for member in _pieces(line):
        name = _NAME.match(member)
        if name is not None:
            yield orjson.loads(name[1]), member[name.end() :], member


def _pieces(text: bytes) -> Iterator[bytes]:
    """Yield what stands between the commas of the object or array in *text*, however deep it nests."""
    depth = start = 0
    for token in _TOKEN.finditer(text):
        mark = token[0]
        if depth == 1 and (mark == b"," or mark in _HIGHER):
            piece = text[start : token.start()].strip()
            if piece:
                yield piece
            start = token.end()
        if mark in _DEEPER:
            depth += 1
            start = token.end() if depth == 1 else start
        elif mark in _HIGHER:
            depth -= 1
