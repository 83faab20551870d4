"""A transcript piece by piece, in memory that does not grow with it.

A session that one device wrote into one log, and that was never compacted, is that log's order: such a log is streamed,
and no index of it is made. Any other session is read by its index, which is small against its contents.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Final

from squilla_files.codec import counter_of, decode_line
from squilla_files.errors import CorruptRecordError
from squilla_files.files import Files
from squilla_files.journal import FORMAT, MESSAGE, SESSION
from squilla_files.models import TranscriptEntry, adopt_entries
from squilla_files.session_dir import SessionDir

_BATCH: Final = 256
_CHUNK_BYTES: Final = 1 << 20


def transcript_batches(directory: SessionDir, session_id: str, *, canonical: bool) -> Iterator[list[TranscriptEntry]]:
    """Yield a transcript in batches, none of them empty; nothing where *session_id* does not name the generation."""
    opened = None if directory.is_read else _open_only_log(directory)
    if opened is not None:
        fd, path = opened
        try:
            # One file from beginning to end, whatever name it is given meanwhile.
            size = _plain_size(directory, fd, session_id)
            if size is not None:
                yield from _stream(directory, fd, path, session_id, size)
                return
        finally:
            directory.files.close(fd)
    timeline = directory.refresh()
    if session_id not in timeline.session_ids:
        return
    records = list(timeline.canonical if canonical else timeline.live)
    for start in range(0, len(records), _BATCH):
        yield directory.entries(records[start : start + _BATCH])


def _open_only_log(directory: SessionDir) -> tuple[int, str] | None:
    """Open the only log of a session that was never deleted; None where that is not what is here."""
    names = directory.log_names()
    if len(names) != 1 or directory.deletions.names(directory.dir_name):
        return None
    path = os.path.join(directory.path, names[0])
    try:
        return directory.files.open_read(path), path
    except FileNotFoundError:
        return None  # moved by a seal: there are two by now


def _lines(files: Files, fd: int, size: int) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, line) of the first *size* bytes of a log."""
    offset, rest = 0, b""
    while offset + len(rest) < size:
        start = offset + len(rest)
        data = files.pread(fd, min(_CHUNK_BYTES, size - start), start)
        if not data:
            break
        *whole, rest = (rest + data).split(b"\n")
        for line in whole:
            yield offset, line
            offset += len(line) + 1
    if rest:
        yield offset, rest


class _PlainLog:
    """Whether the lines of a log are a transcript just as they stand."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._head: tuple[object, object] | None = None
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
        identifier = counter_of(obj.get("id"))
        if self._head is None:
            self._head = head
        if head != self._head or identifier is None or identifier <= self._last_id:
            return False
        self._last_id = identifier
        kind = obj.get("type")
        identity = obj.get("message_id") if kind == MESSAGE else obj.get("record")
        if type(identity) is not str or not identity or None in map(counter_of, head):
            return False  # a damaged line
        if kind == MESSAGE:
            if obj.get("after") != self._last:
                return False
            self._last = identity
        elif kind != SESSION or obj.get("event", "created") != "created":
            return False
        given = obj.get("set")
        if type(given) is dict and type(given.get("session_id")) is str:
            self.session_ids.add(given["session_id"])
        return True


def _plain_size(directory: SessionDir, fd: int, session_id: str) -> int | None:
    """Return how many bytes can be streamed, None where the index is needed."""
    plain = _PlainLog(directory.key)
    for offset, line in _lines(directory.files, fd, directory.files.fstat(fd).st_size):
        obj = decode_line(line)
        if obj is None or not (plain.begins(obj) if offset == 0 else plain.goes_on(obj)):
            return None
        plain.size = offset + len(line)
    return plain.size if plain.session_ids == {session_id} else None


def _stream(directory: SessionDir, fd: int, path: str, session_id: str, size: int) -> Iterator[list[TranscriptEntry]]:
    batch: list[dict[str, Any]] = []
    end = 0
    for offset, line in _lines(directory.files, fd, size):
        obj = decode_line(line)
        if obj is None:
            raise CorruptRecordError(path, offset, "the line changed since it was read")
        end = offset + len(line)
        if obj.get("type") != MESSAGE:
            continue
        batch.append(obj)
        if len(batch) == _BATCH:
            yield _entries(directory, batch, session_id)
            batch = []
    if end != size:
        raise CorruptRecordError(path, end, "the log is shorter than it was")
    if batch:
        yield _entries(directory, batch, session_id)


def _entries(directory: SessionDir, batch: list[dict[str, Any]], session_id: str) -> list[TranscriptEntry]:
    return adopt_entries(batch, [obj["id"] for obj in batch], session_id, directory.key)
