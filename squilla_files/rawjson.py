"""The members of a JSON object as they stand in its bytes: what is copied keeps its digits and unknown fields. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import orjson

from squilla_files.codec import decode_line, encode_line

_STRING: Final = rb'"[^"\\]*(?:\\.[^"\\]*)*"'
_NAME: Final = re.compile(rb"(%b)\s*:\s*" % _STRING, re.DOTALL)
_TOKEN: Final = re.compile(rb"%b|[\[\]{},]" % _STRING, re.DOTALL)
_DEEPER: Final = frozenset({b"[", b"{"})
_HIGHER: Final = frozenset({b"]", b"}"})

# What places an entry in a session, and what it did to the fields and counters of that one.
_PLACING: Final = frozenset({"type", "id", "epoch", "generation", "message_id", "after", "replaces", "set", "add"})

# A line of an entry as this package writes most of them, up to its content.
_USUAL: Final = re.compile(
    rb'\{"type":"message","id":\d+,(?:"epoch":\d+,)?(?:"generation":\d+,)?"message_id":%(plain)b,(?:"after":%(plain)b,)?'
    rb'("role":%(plain)b,(?:"tool_call_id":%(plain)b,)?"created_at":\d+,(?:"token_count":\d+,)?)'
    rb'(?:"set":\{[^{}\\]*\},)?(?:"add":\{[^{}\\]*\},)?(?="content":")' % {b"plain": rb'"[^"\\]*"'}
)


def place_entry(line: bytes, first: Mapping[str, Any]) -> bytes:
    """Return the entry in *line* as a line, LF included: the members *first*, then its own but for those that place it.

    What stays is copied as it stands: a number that no 64 bits hold keeps its digits.

    Args:
        line: the object of an entry, without LF.
        first: what places it: `type`, `id`, `message_id`, and what else there is.
    """
    head = encode_line(first)[:-2]
    usual = _USUAL.match(line)
    if usual is not None:
        content = line[usual.end() :]
        # Four quotes without a backslash before them are the name and the text: another member would bring two more.
        if content.endswith(b'"}') and content.count(b'"') - content.count(b'\\"') == 4:
            return b"%b,%b%b\n" % (head, usual[1], content)
    obj = _as_written(line)
    if obj is not None:
        return encode_line({**first, **{name: value for name, value in obj.items() if name not in _PLACING}})
    # Another program may write members anywhere, twice, and spell their names with escapes.
    kept = [member for name, _, member in _members(line) if name not in _PLACING]
    return b",".join([head, *kept]) + b"}\n"


def items_of(line: bytes, name: str) -> list[bytes]:
    """Return the items of the array that stands under *name* in the object in *line*, each as it stands."""
    arrays = [value for found, value, _ in _members(line) if found == name]
    return list(_pieces(arrays[-1])) if arrays else []


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
