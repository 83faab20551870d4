"""A transcript piece by piece, in memory that does not grow with it.

A session that one device wrote into one log, and that was never compacted, is that log's order: such a log is streamed,
and no index of it is made. Any other session is read by its index, which is small against its contents.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Final

from squilla_files.codec import decode_line
from squilla_files.errors import CorruptRecordError
from squilla_files.journal import FORMAT, MESSAGE, SESSION
from squilla_files.models import TranscriptEntry, adopt_entries
from squilla_files.session_dir import SessionDir

_BATCH: Final = 256
_CHUNK_BYTES: Final = 1 << 20


def transcript_batches(directory: SessionDir, session_id: str, *, canonical: bool) -> Iterator[list[TranscriptEntry]]:
    """Yield a transcript in batches, none of them empty; nothing where *session_id* does not name the generation."""
    size = None if directory.is_read else _plain_size(directory, session_id)
    if size is not None:
        yield from _stream(directory, session_id, size)
        return
    timeline = directory.refresh()
    if session_id not in timeline.session_ids:
        return
    records = list(timeline.canonical if canonical else timeline.live)
    for start in range(0, len(records), _BATCH):
        yield directory.entries(records[start : start + _BATCH])


def _lines(directory: SessionDir, name: str, size: int | None) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, line) of a log, up to *size* bytes."""
    fd = directory.files.open_read(os.path.join(directory.path, name))
    try:
        size = directory.files.fstat(fd).st_size if size is None else size
        offset, rest = 0, b""
        while offset + len(rest) < size:
            start = offset + len(rest)
            data = directory.files.pread(fd, min(_CHUNK_BYTES, size - start), start)
            if not data:
                break
            *whole, rest = (rest + data).split(b"\n")
            for line in whole:
                yield offset, line
                offset += len(line) + 1
        if rest:
            yield offset, rest
    finally:
        directory.files.close(fd)


class _PlainLog:
    """Whether the lines of a log are a transcript just as they stand."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._head: tuple[int, int] | None = None
        self._last: str | None = None
        self._last_id = 0
        self.session_ids: set[str] = set()
        self.size = 0

    def begins(self, header: dict[str, Any] | None) -> bool:
        """Whether the first line is that of a log that continues no other."""
        return (
            header is not None
            and header.get("type") == "log"
            and header.get("session_key") == self._key
            and header.get("format") == FORMAT
            and "from" not in header
        )

    def goes_on(self, obj: dict[str, Any]) -> bool:
        """Whether a record leaves the order of lines what it is."""
        epoch = obj.get("epoch", 0)
        head = (epoch, obj.get("generation", epoch))
        identifier = obj.get("id")
        if self._head is None:
            self._head = head
        if head != self._head or type(identifier) is not int or identifier <= self._last_id:
            return False
        self._last_id = identifier
        kind = obj.get("type")
        if kind == MESSAGE:
            if obj.get("after") != self._last or type(obj.get("message_id")) is not str:
                return False
            self._last = obj["message_id"]
        elif kind != SESSION or obj.get("event", "created") != "created":
            return False
        given = obj.get("set")
        if type(given) is dict and type(given.get("session_id")) is str:
            self.session_ids.add(given["session_id"])
        return True


def _plain_size(directory: SessionDir, session_id: str) -> int | None:
    """Return how many bytes can be streamed, None where the index is needed."""
    names = directory.log_names()
    if len(names) != 1 or directory.deletions.names(directory.dir_name):
        return None
    plain = _PlainLog(directory.key)
    for offset, line in _lines(directory, names[0], None):
        obj = decode_line(line)
        if obj is None or not (plain.begins(obj) if offset == 0 else plain.goes_on(obj)):
            return None
        plain.size = offset + len(line)
    return plain.size if plain.session_ids == {session_id} else None


def _stream(directory: SessionDir, session_id: str, size: int) -> Iterator[list[TranscriptEntry]]:
    (name,) = directory.log_names()
    batch: list[dict[str, Any]] = []
    for offset, line in _lines(directory, name, size):
        obj = decode_line(line)
        if obj is None:
            raise CorruptRecordError(os.path.join(directory.path, name), offset, "the line changed since it was read")
        if obj.get("type") != MESSAGE:
            continue
        batch.append(obj)
        if len(batch) == _BATCH:
            yield _entries(directory, batch, session_id)
            batch = []
    if batch:
        yield _entries(directory, batch, session_id)


def _entries(directory: SessionDir, batch: list[dict[str, Any]], session_id: str) -> list[TranscriptEntry]:
    return adopt_entries(batch, [obj["id"] for obj in batch], session_id, directory.key)
