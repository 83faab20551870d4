"""The contents of records: read by offset, when they are asked for (FORMAT.md, "Reading")."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Final

from squilla_files.codec import decode_line
from squilla_files.errors import CorruptRecordError
from squilla_files.files import Files
from squilla_files.journal import Record

# Lines that lie closer together than this are read in one go.
_GAP_BYTES: Final = 64 * 1024


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
    found: list[bytes] = [b""] * len(records)
    by_log: dict[str, list[int]] = {}
    for position, record in enumerate(records):
        by_log.setdefault(record.log.name, []).append(position)
    for name, positions in by_log.items():
        positions.sort(key=lambda position: records[position].offset)
        fd = files.open_read(os.path.join(directory, name))
        try:
            _read_runs(files, fd, records, positions, found)
        finally:
            files.close(fd)
    return found


def _read_runs(files: Files, fd: int, records: Sequence[Record], positions: list[int], found: list[bytes]) -> None:
    start = 0
    while start < len(positions):
        begin = end = records[positions[start]].offset
        stop = start
        while stop < len(positions) and records[positions[stop]].offset - end <= _GAP_BYTES:
            end = max(end, records[positions[stop]].offset + records[positions[stop]].length)
            stop += 1
        data = read_range(files, fd, end - begin, begin)
        for position in positions[start:stop]:
            offset = records[position].offset - begin
            found[position] = data[offset : offset + records[position].length]
        start = stop


def read_objects(files: Files, directory: str, records: Sequence[Record]) -> list[dict[str, Any]]:
    """Return the JSON object of each record, or of the entry that it is in a compaction's line.

    Raises:
        CorruptRecordError: another line stands there now.
        OSError: a log cannot be read.
    """
    found = []
    for record, line in zip(records, read_lines(files, directory, records), strict=True):
        obj = decode_line(line)
        if obj is not None and record.position is not None:
            listed = obj.get("entries")
            obj = listed[record.position] if type(listed) is list and len(listed) > record.position else None
        if obj is None:
            path = os.path.join(directory, record.log.name)
            raise CorruptRecordError(path, record.offset, "the line changed since it was read")
        found.append(obj)
    return found
