"""Where a position lies in the logs that are here now: which of their lines were told already. Synchronous."""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from squilla_files.contents import read_range
from squilla_files.files import Files
from squilla_files.journal import COMPACTION, Log, Record
from squilla_files.layout import parse_log_name
from squilla_files.positions import (
    NOTHING_BEFORE,
    LogEnd,
    Position,
    chain_digest,
    check_of,
    log_digest,
    note_of,
)
from squilla_files.session_dir import SessionDir

_TAIL_BYTES: Final = 256
_DIGEST_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class Marks:
    """How far a session was there when its files were merely looked at: a position that needs no reading of logs."""

    files: tuple[tuple[str, int, bytes], ...] = ()
    """For each file its name, without its directory, its size in bytes, and a digest of its end; see `tail_digest`."""
    fence: int = 0
    """The epoch of its last deletion."""


Start: TypeAlias = Position | Marks | None
"""What was told: up to a position, up to marks, or (None) all that is here."""


@dataclass(slots=True)
class Placement:
    """What a start comes to in the logs that are here."""

    exact: bool = True
    """Whether it can be resumed exactly; if not, all else is as for a start without a position."""
    lines: dict[str, int] = field(default_factory=dict)
    """Path of a log below the session's directory → how many of its lines were told."""
    damaged: dict[bytes, int] = field(default_factory=dict)
    """Digest of a log → how many of its damaged lines were told."""
    partly: dict[str, int] = field(default_factory=dict)
    """Identity of a record → how many of its events were told."""
    kept: list[LogEnd] = field(default_factory=list)
    """Ends of other ways that a log went, of which no file here is one."""
    notes: set[bytes] = field(default_factory=set)
    """What else was told."""


def tail_digest(files: Files, path: str, size: int) -> bytes:
    """Return a digest of the last bytes among the first *size* bytes of a file: it shows one that was cut or replaced.

    Raises:
        OSError: the file cannot be read.
    """
    fd = files.open_read(path)
    try:
        start = max(0, size - _TAIL_BYTES)
        data = read_range(files, fd, size - start, start)
    finally:
        files.close(fd)
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()


# --- lines -------------------------------------------------------------------------------------------------------


def log_key(log: Log) -> bytes:
    """Return the 8 bytes that stand for a log."""
    return log_digest(log.log_id if log.log_id is not None else log.name)


def full_lines(log: Log) -> int:
    """Return how many lines of a log can be told; one that is still being written is not counted."""
    unfinished = not log.ended and bool(log.lines) and log.lines[-1] is None
    return len(log.lines) - unfinished


def identities(record: Record) -> Iterator[str]:
    """Yield the identities that count once a record counts: its own, and those of the entries in it."""
    yield record.identity
    if record.kind == COMPACTION:
        yield from (entry.identity for entry in record.entries())


def check_at(log: Log, lines: int) -> bytes:
    """Return what stands for the last record within the first *lines* lines of a log."""
    # Not by a slice: this is asked for every event, and logs are long.
    while lines and (record := log.lines[lines - 1]) is None:
        lines -= 1
    return check_of(record.identity if lines and record is not None else "")


def holds(log: Log, end: LogEnd) -> bool:
    """Whether a log has the lines that *end* speaks of."""
    return full_lines(log) >= end.lines and check_at(log, end.lines) == end.check


def whole_end(log: Log) -> LogEnd:
    """Return the end of a log of which all was told."""
    lines = full_lines(log)
    return LogEnd(log_key(log), lines, check_at(log, lines), damaged=len(log.damage))


class Sources:
    """Which logs continue which."""

    def __init__(self, logs: Mapping[str, Log]) -> None:
        self._logs = logs
        self._by_id: dict[str, list[str]] = defaultdict(list)
        for name, log in logs.items():
            if log.log_id is not None:
                self._by_id[log.log_id].append(name)
        self.continued = {log.source for log in logs.values()}
        """The ids of logs that others continue."""

    def named(self, log_id: str) -> list[str]:
        """Return the files that hold a log or a copy of it, its proper one first."""
        return sorted(self._by_id.get(log_id, ()), key=lambda name: (is_copy(name), name))

    def chain(self, name: str, stop: Collection[bytes]) -> list[str]:
        """Return the logs before one, the nearest first, up to one that is not here or that *stop* has."""
        found: list[str] = []
        source = self._logs[name].source
        while source is not None and log_digest(source) not in stop:
            files = self.named(source)
            # A log that continues itself, by whatever way, was not written by this format.
            if not files or files[0] in found or files[0] == name:
                break
            found.append(files[0])
            source = self._logs[files[0]].source
        return found


def is_copy(name: str) -> bool:
    """Whether the name of a log is one that only a sync service or a person gives."""
    return parse_log_name(name.rpartition("/")[2]) is None


# --- starts ------------------------------------------------------------------------------------------------------


def place(directory: SessionDir, logs: Mapping[str, Log], start: Start) -> Placement:
    """Find *start* in *logs*, the logs of *directory* that are of its session.

    Raises:
        OSError: a log cannot be read.
    """
    if start is None:
        return _present(directory, logs)
    found = _placed_marks(directory, logs, start) if isinstance(start, Marks) else _Placing(logs, start).place()
    if found.exact:
        return found
    present = _present(directory, logs)
    present.exact = False
    return present


def _present(directory: SessionDir, logs: Mapping[str, Log]) -> Placement:
    found = Placement()
    for name, log in logs.items():
        found.lines[name] = full_lines(log)
        found.damaged[log_key(log)] = len(log.damage)
    found.notes = set(standing_notes(directory))
    return found


def standing_notes(directory: SessionDir) -> dict[bytes, tuple[str, str]]:
    """Return what is the case besides records: note → (what kind, name) of copies, foreign and missing logs."""
    standing = [("copy", name) for name in directory.logs if name not in directory.foreign and is_copy(name)]
    standing += [("foreign", name) for name in directory.foreign]
    standing += [("log", log_id) for log_id in directory.missing]
    return {note_of(f"{kind}:{name}"): (kind, name) for kind, name in standing}


def _placed_marks(directory: SessionDir, logs: Mapping[str, Log], marks: Marks) -> Placement:
    found = Placement()
    names = {name.rpartition("/")[2]: name for name in logs}
    for base, size, digest in marks.files:
        name = names.get(base)
        log = logs.get(name) if name is not None else None
        path = os.path.join(directory.path, *(name or base).split("/"))
        if name is None or log is None:
            if parse_log_name(base) is not None:
                found.exact = False
            continue
        if log.size < size or (digest and tail_digest(directory.files, path, size) != digest):
            found.exact = False
            continue
        found.lines[name] = _lines_within(log, size)
        key = log_key(log)
        within = sum(damage.offset + damage.length <= size for damage in log.damage)
        found.damaged[key] = max(found.damaged.get(key, 0), within)
    marked = {base for base, _, _ in marks.files}
    for note, (kind, name) in standing_notes(directory).items():
        if kind == "log" or name.rpartition("/")[2] in marked:
            found.notes.add(note)
    return found


def _lines_within(log: Log, size: int) -> int:
    """Return how many lines lie within the first *size* bytes."""
    damage_ends = {damage.line: damage.offset + damage.length for damage in log.damage}
    lines = 0
    for number, record in enumerate(log.lines, 1):
        end = record.offset + record.length if record is not None else damage_ends.get(number, 1)
        if end > size:
            break
        lines = number
    return min(lines, full_lines(log))


class _Placing:
    """Finds the ends of a position in the logs that are here."""

    def __init__(self, logs: Mapping[str, Log], position: Position) -> None:
        self._logs = logs
        self._position = position
        self._sources = Sources(logs)
        self._by_key: dict[bytes, list[str]] = defaultdict(list)
        for name, log in logs.items():
            self._by_key[log_key(log)].append(name)
        self._found = Placement(notes=set(position.notes))

    def place(self) -> Placement:
        found = self._found
        settled = {end.log for end in self._position.logs if self._settle(end)}
        for end in self._position.logs:
            found.damaged[end.log] = max(found.damaged.get(end.log, 0), end.damaged)
            if end.log in settled:
                continue
            # All that was told of this log is not here, or not as it was: a backup, another way, or gone.
            found.exact = False
        return found

    def _settle(self, end: LogEnd) -> bool:
        """Find the files in which *end* lies. Returns whether there is one, or nothing to be found."""
        names = [name for name in self._by_key.get(end.log, ()) if holds(self._logs[name], end)]
        for name in names:
            self._found.lines[name] = max(self._found.lines.get(name, 0), end.lines)
            if end.told:
                self._note_partly(self._logs[name], end)
        if not names and end.lines:
            self._found.kept.append(end)
            return False
        if end.before == NOTHING_BEFORE:
            return True
        return any(self._settle_chain(name, end.before) for name in names)

    def _note_partly(self, log: Log, end: LogEnd) -> None:
        following = log.lines[end.lines] if len(log.lines) > end.lines else None
        if following is not None:
            self._found.partly[following.identity] = end.told

    def _settle_chain(self, name: str, before: bytes) -> bool:
        """Take the logs before one for told, if they are those for which the digest was made."""
        listed = {end.log for end in self._position.logs}
        chain = self._sources.chain(name, listed)
        ends = [whole_end(self._logs[other]) for other in chain]
        if chain_digest(ends) != before:
            return False
        for other, end in zip(chain, ends, strict=True):
            self._found.lines[other] = end.lines
            self._found.damaged[end.log] = end.damaged
        return True
