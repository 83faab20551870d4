"""What the bytes are: a value to one line of JSON and back (FORMAT.md, "Lines").

A line is one JSON object in UTF-8 that ends in LF. Characters at which text tools break lines are written escaped, so
that one record is one line for every tool. Encoding refuses whatever would not come back equal; decoding answers None
for bytes that are no such object, and the caller reports them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import orjson

from squilla_files.errors import UnstorableTypeError, UnstorableValueError

# JSON has no limit, but jq and JavaScript read numbers as doubles: ids beyond this would not survive them.
MAX_COUNTER = 2**53 - 1
_MAX_INT = 2**64 - 1
_MIN_INT = -(2**63)
# orjson stops at 254 levels when it writes. One level is the record itself.
_MAX_DEPTH = 250

# The control characters among the line breaks are escaped by JSON itself; these three stand in UTF-8 as they are.
_BREAKS = ((b"\xc2\x85", b"\\u0085"), (b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"))


def check_value(value: object, where: str, depth: int = 0) -> None:
    """Refuse a value that would not come back equal from JSON.

    Args:
        value: what is to be stored.
        where: its name, for the message.
        depth: how many containers it stands in.

    Raises:
        UnstorableTypeError: a type that JSON does not have (sets, bytes, tuples, keys that are not strings), or nesting
            deeper than 250 levels.
        UnstorableValueError: NaN, an infinity, an integer beyond 64 bit, a lone surrogate.
    """
    kind = type(value)
    if kind is str:
        _check_text(value, where)  # type: ignore[arg-type]
    elif value is None or kind is bool:
        return
    elif kind is int:
        if not _MIN_INT <= value <= _MAX_INT:  # type: ignore[operator]
            raise UnstorableValueError(where, "an integer beyond 64 bit")
    elif kind is float:
        if not math.isfinite(value):  # type: ignore[arg-type]
            raise UnstorableValueError(where, f"{value!r} is not a number in JSON")
    elif kind is dict:
        if depth >= _MAX_DEPTH:
            raise UnstorableTypeError(where, f"nested deeper than {_MAX_DEPTH} levels")
        for key, item in value.items():  # type: ignore[attr-defined]
            if type(key) is not str:
                raise UnstorableTypeError(where, f"the key {key!a:.40} is not a string")
            _check_text(key, where)
            check_value(item, f"{where}.{key}", depth + 1)
    elif kind is list:
        if depth >= _MAX_DEPTH:
            raise UnstorableTypeError(where, f"nested deeper than {_MAX_DEPTH} levels")
        for position, item in enumerate(value):  # type: ignore[arg-type]
            check_value(item, f"{where}[{position}]", depth + 1)
    elif isinstance(value, str):
        # A str enum is written as its value, and equals it when it comes back.
        _check_text(str.__str__(value), where)
    else:
        raise UnstorableTypeError(where, f"{kind.__name__} has no form in JSON that would come back equal")


def _check_text(text: str, where: str) -> None:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise UnstorableValueError(where, f"a lone surrogate at character {error.start}") from None


def check_fields(fields: Mapping[str, object]) -> None:
    """Apply `check_value` to every item of *fields*; see there for what is raised."""
    for name, value in fields.items():
        check_value(value, name)


def _escaped(data: bytes) -> bytes:
    if not data.isascii():
        for raw, escape in _BREAKS:
            if raw in data:
                data = data.replace(raw, escape)
    return data


def encode_line(record: Mapping[str, Any]) -> bytes:
    """Return *record* as one line, LF included. Its values must have passed `check_value`."""
    return _escaped(orjson.dumps(record)) + b"\n"


def encode_document(document: Mapping[str, Any]) -> bytes:
    """Return *document* as indented JSON that ends in LF. Its values must have passed `check_value`, or been read.

    Raises:
        UnstorableTypeError: what another program wrote is nested deeper than the library writes.
    """
    try:
        return _escaped(orjson.dumps(document, option=orjson.OPT_INDENT_2)) + b"\n"
    except orjson.JSONEncodeError as error:
        raise UnstorableTypeError("a document", str(error)) from error


def decode_line(line: bytes | memoryview) -> dict[str, Any] | None:
    """Return the object that stands in *line*, or None where it is no JSON object."""
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return value if type(value) is dict else None


decode_document = decode_line


def same_value(one: object, other: object) -> bool:
    """Say whether two values are the same in JSON, where ``True``, ``1`` and ``1.0`` are three."""
    if one != other:
        return False
    try:
        return orjson.dumps(one, option=orjson.OPT_SORT_KEYS) == orjson.dumps(other, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError:
        return True  # another program's value, nested deeper than the library writes


def counter_of(value: object) -> int | None:
    """Return *value* where it is an integer from 0 to 2**53 - 1, else None: ids, epochs and line numbers are that."""
    return value if type(value) is int and 0 <= value <= MAX_COUNTER else None


def check_counter(value: int, where: str) -> int:
    """Return *value* where an id, epoch or line number can be that; a line with another would be a damaged one.

    Raises:
        UnstorableValueError: it is beyond 2**53 - 1.
    """
    if counter_of(value) is None:
        raise UnstorableValueError(where, f"{value} is beyond 2^53-1, and no further one can follow")
    return value
