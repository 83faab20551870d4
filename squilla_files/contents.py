"""The contents of records: read by offset, when they are asked for (FORMAT.md, "Reading")."""

from __future__ import annotations

import contextlib
import os
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Any, Final, TypeVar

import orjson

from squilla_files.errors import CorruptRecordError
from squilla_files.files import Files
from squilla_files.journal import Record

_T = TypeVar("_T")

# What is gone once it is to be read, because others are at work, is looked for again this often.
_TRIES: Final = 4
# Lines that lie closer together than this are read in one go.
_GAP_BYTES: Final = 64 * 1024
# Objects are read in runs of about so many bytes; so few lines between two that are wanted are read along.
_RUN_BYTES: Final = 256 * 1024
_GAP_LINES: Final = 8
_by_offset = attrgetter("offset")


def read_steadily(read: Callable[[], _T]) -> _T:
    """Return what *read* gives. Where a log was deleted or edited between listing and reading it, it looks again.

    Raises:
        FileNotFoundError, CorruptRecordError: that happened again and again.
    """
    for _ in range(_TRIES):
        with contextlib.suppress(FileNotFoundError, CorruptRecordError):
            return read()
    return read()


def read_range(files: Files, fd: int, length: int, offset: int) -> bytes:
    """Return *length* bytes of an open file from *offset*, fewer only at its end."""
    pieces = []
    while length > 0:
        piece = files.pread(fd, length, offset)
        if not piece:
            break
        pieces.append(piece)
        length -= len(piece)
        offset += len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def read_lines(files: Files, directory: str, records: Sequence[Record]) -> list[bytes]:
    """Return the bytes of the line in which each record stands, without LF, in the order of *records*.

    Args:
        files: the disk.
        directory: the session's directory.
        records: records of any of its logs.

    Raises:
        OSError: a log cannot be read.
    """
    by_log: dict[str, list[Record]] = {}
    for record in records:
        by_log.setdefault(record.log.name, []).append(record)
    found = {name: _lines_of(files, os.path.join(directory, name), group) for name, group in by_log.items()}
    if len(found) == 1:
        return next(iter(found.values()))
    waiting = {name: iter(lines) for name, lines in found.items()}
    return [next(waiting[record.log.name]) for record in records]


def _lines_of(files: Files, path: str, records: list[Record]) -> list[bytes]:
    """Return the lines of records that stand in one file."""
    spans = _spans(sorted(records, key=_by_offset))
    fd = files.open_read(path)
    try:
        read = [read_range(files, fd, end - begin, begin) for begin, end in spans]
    finally:
        files.close(fd)
    if len(spans) == 1:
        data, base = read[0], spans[0][0]
        return [data[record.offset - base : record.offset - base + record.length] for record in records]
    starts = [begin for begin, _ in spans]
    lines = []
    for record in records:
        at = bisect_right(starts, record.offset) - 1
        start = record.offset - starts[at]
        lines.append(read[at][start : start + record.length])
    return lines


def _spans(records: list[Record]) -> list[tuple[int, int]]:
    """Return (begin, end) of the pieces of a file to be read for records in the order of their offsets."""
    spans: list[tuple[int, int]] = []
    begin = end = records[0].offset
    for record in records:
        offset = record.offset
        if offset - end > _GAP_BYTES:
            spans.append((begin, end))
            begin = offset
        end = offset + record.length
    spans.append((begin, end))
    return spans


def read_objects(files: Files, directory: str, records: Sequence[Record]) -> list[dict[str, Any]]:
    """Return the JSON object of each record, or of the entry that it is in a compaction's line.

    Raises:
        CorruptRecordError: another line stands there now.
        OSError: a log cannot be read.
    """
    found: list[Any] = []
    opened: dict[str, int] = {}
    try:
        for run in _runs(records):
            name = run[0].log.name
            if name not in opened:
                opened[name] = files.open_read(os.path.join(directory, name))
            found += _objects_of(files, opened[name], run)
    finally:
        for fd in opened.values():
            files.close(fd)
    if not set(map(type, found)) <= {dict}:
        raise _changed(directory, records[next(n for n, obj in enumerate(found) if type(obj) is not dict)])
    return found


def _runs(records: Sequence[Record]) -> Iterator[Sequence[Record]]:
    """Yield pieces of *records* that stand in one compaction's line, or in neighbouring lines of one log.

    There is no damaged line between those of a piece.
    """
    start = 0
    before: Record | None = None
    size = 0
    for number, record in enumerate(records):
        if before is not None:
            gap = record.line - before.line
            if record.position is None and before.position is None:
                near = (gap == 1 or (1 < gap <= _GAP_LINES and _is_whole(before, record))) and size <= _RUN_BYTES
            else:
                # The line of a compaction is read once, however many entries stand in it.
                near = gap == 0 and None not in (record.position, before.position)
            if not near or record.log is not before.log:
                yield records[start:number]
                start, size = number, 0
        before = record
        size += record.length
    if before is not None:
        yield records[start:]


def _is_whole(before: Record, record: Record) -> bool:
    return None not in before.log.lines[before.line : record.line - 1]


def _objects_of(files: Files, fd: int, run: Sequence[Record]) -> list[Any]:
    """Return the objects of records that `_runs` put together; None for what is no object any more."""
    first, last = run[0], run[-1]
    data = read_range(files, fd, last.offset + last.length - first.offset, first.offset)
    try:
        # Lines of JSON are an array but for its punctuation: read at once in half the time that it takes one by one.
        objects = orjson.loads(b"[" + data.replace(b"\n", b",") + b"]")
    except orjson.JSONDecodeError:
        return [None] * len(run)
    if len(objects) != last.line - first.line + 1:
        return [None] * len(run)
    if first.position is not None:
        listed = objects[0].get("entries") if type(objects[0]) is dict else None
        within: list[Any] = listed if type(listed) is list else []
        return [within[r.position] if r.position is not None and r.position < len(within) else None for r in run]
    if len(objects) == len(run):
        return objects  # type: ignore[no-any-return]
    return [objects[record.line - first.line] for record in run]


def _changed(directory: str, record: Record) -> CorruptRecordError:
    path = os.path.join(directory, record.log.name)
    return CorruptRecordError(path, record.offset, "the line changed since it was read")
