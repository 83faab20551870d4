"""What is new in one session since a position: each record once, in the order of its log. Synchronous.

A record has been told if any log of the session holds it within the lines that were told of that log. So it does not
matter how often a log is read, whether a record stands in copies or was carried over to a log that continues another,
and what a file system reports, or does not. The work of one step is proportional to what is new, except where logs
came, went or were read anew.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from squilla_files import findings
from squilla_files.attachments import Attachments
from squilla_files.events import ConflictFound, DamageFound, Deleted, Event, Gap
from squilla_files.journal import Log, Record
from squilla_files.placing import (
    Marks,
    Sources,
    Start,
    check_at,
    full_lines,
    holds,
    identities,
    log_key,
    place,
    standing_notes,
    whole_end,
)
from squilla_files.positions import (
    NOTHING_BEFORE,
    Cursors,
    LogEnd,
    Position,
    chain_digest,
    encode_position,
    log_digest,
    note_of,
)
from squilla_files.session_dir import SessionDir
from squilla_files.telling import Teller

# One step tells so many records, or so many bytes of them, so that a subscriber that lags never needs much memory.
_RECORDS: Final = 256
_BYTES: Final = 1 << 20


@dataclass(slots=True)
class _Reading:
    """How far one file was told."""

    log: Log
    key: bytes
    lines: int


@dataclass(frozen=True, slots=True)
class _Line:
    """The next line of a file: told by the record that stands in it, or passed over."""

    reading: _Reading
    number: int
    record: Record | None


class Follower:
    """Tells one session from a position on.

    The caller may share it between threads: every method takes the session's own lock.

    Args:
        directory: the session.
        attachments: its summaries and context states.
        cursors: makes the store's cursors.
        start: what was told already.

    Attributes:
        position: how far it has told, as bytes that are the same for the same position.
        is_done: whether the last step told all that is here.
        step_bytes: how many bytes of records it told.
    """

    def __init__(self, directory: SessionDir, attachments: Attachments, cursors: Cursors, start: Start) -> None:
        self._directory = directory
        self._attachments = attachments
        self._cursors = cursors
        self._start = start
        self._key_digest = log_digest(directory.key)
        self._readings: dict[str, _Reading] = {}
        self._told: set[str] = set()
        self._kept: list[LogEnd] = []
        self._damaged: dict[bytes, int] = {}
        self._partly: dict[str, int] = {}
        self._notes: set[bytes] = set()
        self._fence = 0
        self._exists = False
        self._listed: list[tuple[_Reading, bytes]] | None = None
        self._is_placed = False
        self.position = b""
        self.is_done = False
        self.step_bytes = 0

    @property
    def cursor(self) -> str:
        """The cursor of `position`."""
        return self._cursors.of_session(self._key_digest, self.position)

    def advance(self) -> list[Event]:
        """Catch up with the disk and return what is new, as much as one step tells; empty where nothing is.

        Raises:
            OSError: something cannot be read.
            SquillaFilesError: see `SessionDir.refresh`.

        A follower that raised is of no use any more: begin another at the last cursor.
        """
        directory = self._directory
        with directory.mutex:
            directory.refresh()
            events: list[Event] = []
            if not self._is_placed:
                self._place(events)
            self._delete(events)
            self._exists = directory.timeline.exists
            self._look()
            self._tell_notes(events)
            self._tell_records(events)
            self.position = self._position()
            return events

    # --- the beginning -----------------------------------------------------------------------------------------

    def _place(self, events: list[Event]) -> None:
        start = self._start
        fence = self._last_fence()
        self._is_placed = True
        if isinstance(start, Position | Marks) and fence > start.fence:
            self._fence = start.fence
            self._exists = start.exists if isinstance(start, Position) else bool(start.files)
            if self._exists:
                events.append(self._gap())
            return
        self._fence = fence
        logs = self._logs()
        found = place(self._directory, logs, start)
        self._exists = self._directory.timeline.exists
        self._damaged, self._partly, self._kept, self._notes = found.damaged, found.partly, found.kept, found.notes
        for name, log in logs.items():
            lines = found.lines.get(name, 0)
            self._readings[name] = _Reading(log, log_key(log), lines)
            for record in log.lines[:lines]:
                if record is not None:
                    self._told.update(identities(record))
        if not found.exact:
            events.append(self._gap())

    def _logs(self) -> dict[str, Log]:
        directory = self._directory
        return {name: log for name, log in directory.logs.items() if name not in directory.foreign}

    def _last_fence(self) -> int:
        deletions = self._directory.deletions.read(self._directory.dir_name)
        return max((deletion.epoch for deletion in deletions), default=0)

    def _gap(self) -> Gap:
        directory = self._directory
        return Gap(session_key=directory.key, epoch=directory.timeline.epoch, cursor=self._cursor())

    # --- the end -----------------------------------------------------------------------------------------------

    def _delete(self, events: list[Event]) -> None:
        """Tell a deletion; what comes under the key from then on, or survived it, is told from the beginning."""
        directory = self._directory
        if not directory.deletions.names(directory.dir_name):
            return
        fence = self._last_fence()
        if fence <= self._fence:
            return
        # What was lost by a deletion since a cursor was said already.
        was_there, lost = self._exists, not events and self._lost_by_deletion()
        self._readings, self._told, self._kept, self._listed = {}, set(), [], None
        self._damaged, self._partly, self._notes = {}, {}, set()
        self._fence, self._exists = fence, directory.timeline.exists
        if lost:
            events.append(self._gap())
        if was_there or lost:
            events.append(Deleted(session_key=directory.key, epoch=fence, cursor=self._cursor()))

    def _lost_by_deletion(self) -> bool:
        """Whether a deletion took away something that was not told before."""
        deletions = self._directory.deletions.read(self._directory.dir_name)
        fresh = [deletion for deletion in deletions if deletion.epoch > self._fence]
        return any(identity not in self._told for deletion in fresh for _, _, identity in deletion.seen)

    # --- files -------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Take up logs that came or were read anew, and remember how far those that went were told."""
        logs = self._logs()
        before = self._readings
        if len(logs) == len(before) and all(
            (known := before.get(name)) is not None and known.log is log for name, log in logs.items()
        ):
            return
        self._listed = None
        gone = [r for name, r in before.items() if r.lines and (name not in logs or logs[name] is not r.log)]
        self._readings = {
            name: known
            if (known := before.get(name)) is not None and known.log is log
            else _Reading(log, log_key(log), self._told_lines(log))
            for name, log in logs.items()
        }
        # What was told of a log that is away, or was cut back, is not told again when it comes back.
        lost = [*self._kept, *(self._end(reading, NOTHING_BEFORE, 0) for reading in gone)]
        self._kept = []
        for end in lost:
            here = any(r.key == end.log and holds(r.log, end) for r in self._readings.values())
            if not here and end not in self._kept:
                self._kept.append(end)

    def _told_lines(self, log: Log) -> int:
        """Return how many lines of a log that came hold only what was told: copied, carried over, moved, put back."""
        end = full_lines(log)
        return next(
            (n for n, r in enumerate(log.lines[:end]) if r is not None and r.identity not in self._told),
            end,
        )

    # --- what is no record -------------------------------------------------------------------------------------

    def _tell_notes(self, events: list[Event]) -> None:
        for name, reading in self._readings.items():
            told = self._damaged.get(reading.key, 0)
            damage = reading.log.damage
            if len(damage) > told:
                self._tell_damage(events, name, reading, told)
        standing = standing_notes(self._directory) if self._notes or self._is_irregular() else {}
        fresh = {note: what for note, what in standing.items() if note not in self._notes}
        if self._notes:
            self._notes &= standing.keys() | self._tell_documents(events)
        missing = [name for kind, name in fresh.values() if kind == "log"]
        for note, (kind, name) in fresh.items():
            self._notes.add(note)
            if kind != "log":
                events.append(self._conflict(kind, name))
        if missing:
            events.append(self._teller([]).pending(missing)(cursor=self._cursor()))

    def _is_irregular(self) -> bool:
        directory = self._directory
        return bool(directory.missing or directory.foreign) or self._listed is None

    def _tell_damage(self, events: list[Event], name: str, reading: _Reading, told: int) -> None:
        directory = self._directory
        end = full_lines(reading.log)
        for damage in reading.log.damage[told:]:
            if damage.line > end:
                break  # a line that is still being written
            self._damaged[reading.key] = self._damaged.get(reading.key, 0) + 1
            self._listed = None
            found = findings.finding(
                findings.DAMAGED_LINE,
                self._relative(name),
                f"line {damage.line}: {damage.reason}",
                session_key=directory.key,
                offset=damage.offset,
            )
            epoch = directory.timeline.epoch
            events.append(DamageFound(session_key=directory.key, epoch=epoch, cursor=self._cursor(), finding=found))

    def _conflict(self, kind: str, name: str) -> ConflictFound:
        directory = self._directory
        if kind == "foreign":
            detail = f"it holds the session {directory.foreign[name]!r}"
            found = findings.finding(findings.FOREIGN, self._relative(name), detail, session_key=directory.key)
        else:
            found = findings.finding(*self._compared(name), session_key=directory.key)
        epoch = directory.timeline.epoch
        return ConflictFound(session_key=directory.key, epoch=epoch, cursor=self._cursor(), finding=found)

    def _compared(self, name: str) -> tuple[str, str, str]:
        """Return what kind of copy a log under a strange name is, where it lies, and of what it is one."""
        copy = self._readings[name]
        others = [(n, r) for n, r in self._readings.items() if r.key == copy.key and n != name]
        path = self._relative(name)
        end = whole_end(copy.log)
        for other, reading in others:
            if holds(reading.log, end):
                kind = findings.IDENTICAL if full_lines(reading.log) == end.lines else findings.SHORTER
                return kind, path, f"a copy of {other}"
        return findings.DIVERGED, path, f"a copy of {others[0][0]}" if others else "a log under a name that is none"

    def _relative(self, name: str) -> str:
        return f"sessions/{self._directory.dir_name}/{name}"

    def _tell_documents(self, events: list[Event]) -> set[bytes]:
        """Tell documents that came after the records that name them; return the notes of those that did not come."""
        timeline = self._directory.timeline
        teller = self._teller([])
        waiting: set[bytes] = set()
        for listed, tell in ((timeline.summaries, teller.summary), (timeline.contexts, teller.context)):
            for attachment in listed:
                note = note_of(f"document:{attachment.doc_id}")
                if note not in self._notes:
                    continue
                came = list(tell(attachment.record, [attachment]))
                if not came:
                    waiting.add(note)
                for untold in came:
                    self._notes.discard(note)
                    events.append(untold(cursor=self._cursor()))
        return waiting

    # --- records -----------------------------------------------------------------------------------------------

    def _teller(self, records: list[Record]) -> Teller:
        return Teller(self._directory, self._attachments, records, self._told)

    def _tell_records(self, events: list[Event]) -> None:
        lines = self._next_lines()
        records = [line.record for line in lines if line.record is not None]
        teller = self._teller(records) if records else None
        for line in lines:
            record = line.record
            if record is None or teller is None:
                self._pass(line)
                continue
            told = teller.tell(record)
            for number, untold in enumerate(told[:-1], 1):
                if number > self._partly.get(record.identity, 0):
                    events.append(untold(cursor=self._cursor((line.reading, number))))
            self._told.update(identities(record))
            self._notes.update(note_of(f"document:{doc_id}") for doc_id in teller.lacking)
            self._pass(line)
            if len(told) > self._partly.pop(record.identity, 0):
                events.append(told[-1](cursor=self._cursor()))

    def _pass(self, line: _Line) -> None:
        line.reading.lines = line.number
        if line.number == full_lines(line.reading.log):
            self._listed = None  # it may be one that a digest stands for from now on

    def _next_lines(self) -> list[_Line]:
        """Return what one step passes over: records in the order of their logs, merged by their own order."""
        counting = self._directory.timeline.records
        lines: list[_Line] = []
        chosen: set[str] = set()
        self.step_bytes = 0
        self.is_done = True
        for reading, number, record in self._merged():
            if record is None or record.identity in self._told or record.identity in chosen:
                lines.append(_Line(reading, number, None))
                continue
            winner = counting.get(record.identity)
            lines.append(_Line(reading, number, winner))
            if winner is not None:
                chosen.update(identities(winner))
                self.step_bytes += winner.length
                if len(chosen) >= _RECORDS or self.step_bytes >= _BYTES:
                    self.is_done = False
                    break
        return lines

    def _merged(self) -> Iterator[tuple[_Reading, int, Record | None]]:
        """Yield (file, line number, record) of all lines that were not told, those of each file in its order."""
        heads: list[tuple[tuple[int, str, str], str, int]] = []
        for name, reading in self._readings.items():
            if reading.lines < full_lines(reading.log):
                heads.append((_order(reading.log, reading.lines), name, reading.lines))
        heapq.heapify(heads)
        while heads:
            _, name, index = heads[0]
            reading = self._readings[name]
            yield reading, index + 1, reading.log.lines[index]
            if index + 1 < full_lines(reading.log):
                heapq.heapreplace(heads, (_order(reading.log, index + 1), name, index + 1))
            else:
                heapq.heappop(heads)

    # --- the position ------------------------------------------------------------------------------------------

    def _cursor(self, partly: tuple[_Reading, int] | None = None) -> str:
        return self._cursors.of_session(self._key_digest, self._position(partly))

    def _position(self, partly: tuple[_Reading, int] | None = None) -> bytes:
        if self._listed is None:
            self._listed = self._list_ends()
        ends = [
            self._end(reading, before, partly[1] if partly is not None and partly[0] is reading else 0)
            for reading, before in self._listed
        ]
        ends += self._kept
        known = {end.log for end in ends}
        for log_id in self._directory.missing:
            digest = log_digest(log_id)
            # Listed, so that no digest is made over what is not here.
            ends += [LogEnd(digest, 0, NOTHING_BEFORE)] if digest not in known else []
        return encode_position(
            Position(self._exists, self._fence, tuple(sorted(set(ends), key=_end_order)), tuple(sorted(self._notes)))
        )

    def _end(self, reading: _Reading, before: bytes, told: int) -> LogEnd:
        check = check_at(reading.log, reading.lines)
        return LogEnd(reading.key, reading.lines, check, told, self._damaged.get(reading.key, 0), before)

    def _list_ends(self) -> list[tuple[_Reading, bytes]]:
        """Choose the files that a position lists, each with the digest of those that it stands for."""
        readings = self._readings
        sources = Sources({name: reading.log for name, reading in readings.items()})
        folded = {name for name, reading in readings.items() if self._can_be_folded(reading, sources)}
        stop = {reading.key for name, reading in readings.items() if name not in folded}
        stop |= {end.log for end in self._kept}
        listed: list[tuple[_Reading, bytes]] = []
        covered: set[str] = set()
        for name, reading in readings.items():
            if name not in folded:
                chain = sources.chain(name, stop)
                covered.update(chain)
                ends = [whole_end(readings[other].log) for other in chain]
                listed.append((reading, chain_digest(ends)))
        # Logs that continue each other in a circle are in no chain.
        listed += [(readings[name], NOTHING_BEFORE) for name in sorted(folded - covered)]
        return listed

    def _can_be_folded(self, reading: _Reading, sources: Sources) -> bool:
        log = reading.log
        return (
            log.log_id in sources.continued
            and log.log_id is not None
            and len(sources.named(log.log_id)) == 1
            and reading.lines == full_lines(log)
            and self._damaged.get(reading.key, 0) == len(log.damage)
        )


def _order(log: Log, index: int) -> tuple[int, str, str]:
    record = log.lines[index]
    # A line that holds no record is passed over at once.
    return record.key if record is not None else (-1, "", "")


def _end_order(end: LogEnd) -> tuple[bytes, int, bytes, int, int, bytes]:
    return end.log, end.lines, end.check, end.told, end.damaged, end.before
