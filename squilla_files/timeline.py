"""What the logs of a session say together (FORMAT.md, "What the records mean"). Pure: records in, answers out.

Two devices that hold the same files compute the same timeline, whatever the order in which the files arrived.
"""

from __future__ import annotations

import math
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from operator import attrgetter
from typing import Any

from squilla_files.codec import counter_of
from squilla_files.journal import COMPACTION, CONTEXT, MESSAGE, REMOVE, SESSION, SUMMARY, Log, Record
from squilla_files.marks import Mark, MarkIndex, read_marks
from squilla_files.ordering import Ordered, order_entries

ReadLine = Callable[[Record], bytes]
Number = int | float

# How far a tool result may look up for its call before the whole order is computed anew.
_NEAR = 64

_by_key = attrgetter("key")
_by_rank = attrgetter("rank")


@dataclass(frozen=True, slots=True)
class Deletion:
    """One file of `deleted/`: the commit of a deletion."""

    epoch: int
    """One above the session's epoch when it was deleted."""
    generation: int
    """The generation that was deleted."""
    seen: tuple[Mark, ...]
    """Marks, one for each log as far as it was there."""

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Deletion | None:
        """Return the deletion that *document* records, None where it is none."""
        epoch = counter_of(document.get("epoch"))
        if not epoch:
            return None
        generation = counter_of(document.get("generation", epoch - 1))
        return None if generation is None else cls(epoch, generation, tuple(read_marks(document.get("seen"))))


@dataclass(slots=True)
class Attachment:
    """A summary or a context state, as far as the logs tell: its file holds the rest."""

    doc_id: str
    """The id that stands in its file."""
    record: Record
    """The record that made it visible."""
    index: int = 0
    """Its number within its generation, from 0, in the order of records."""
    changes: dict[str, Any] = field(default_factory=dict)
    """Fields that were changed since, such as a flush status or a validity."""
    removed: bool = False
    """Whether a later record took it away."""


class Timeline:
    """The state of one session.

    Attributes:
        exists: whether a message, a creation or a reset counts.
        back: whether it exists although it was deleted, because records came that the deletion had not seen.
        epoch: the highest of any record or deletion, and not below the floor that was given.
        generation: the highest of any record that counts.
        last_id: the highest id of any record, counting or not.
        records: identity → the record that counts under it.
        order: entries of the generation in order, removed and replaced ones included.
        canonical: entries of the generation in order, archived and live.
        live: the canonical entries that no compaction archived.
        archived_by: identity of an archived entry → identity of the compaction that archived it.
        gone: identities that were removed or replaced.
        call_of: identity of a tool result → identity of the entry that stands where its call was made.
        fields: name → value, as last set.
        setters: name → the record that set it.
        session_ids: every session id that the generation has had, in the order of records, or one that is borrowed.
        closed: entries of closed generations.
        stands: identity → the epoch and generation in which a record counts that a deletion had not seen.
        call_ids: the ids of all calls of the generation.
        writers: the devices that wrote the entries of the generation.
        summaries: in the order of records; all generations.
        contexts: in the order of records; all generations.
    """

    def __init__(self) -> None:
        self.exists = False
        self.back = False
        self.epoch = 0
        self.generation = 0
        self.last_id = 0
        self.records: dict[str, Record] = {}
        self.order: list[Record] = []
        self.canonical: list[Record] = []
        self.live: list[Record] = []
        self.archived_by: dict[str, str] = {}
        self.gone: set[str] = set()
        self.call_of: dict[str, str] = {}
        self.fields: dict[str, Any] = {}
        self.setters: dict[str, Record] = {}
        self.session_ids: list[str] = []
        self.closed: list[Record] = []
        self.writers: set[str] = set()
        self.summaries: list[Attachment] = []
        self.contexts: list[Attachment] = []
        self.stands: dict[str, tuple[int, int]] = {}
        self._sums: dict[str, Number] = {}
        self._floats: dict[str, list[float]] = {}
        self.call_ids: set[str] = set()

    # What a deletion that had not seen a record makes of it.

    def epoch_of(self, record: Record) -> int:
        """Return the epoch in which *record* counts: its own, or that of a deletion that had not seen it."""
        stand = self.stands.get(record.identity)
        return record.epoch if stand is None else stand[0]

    def generation_of(self, record: Record) -> int:
        """Return the generation in which *record* counts."""
        stand = self.stands.get(record.identity)
        return record.generation if stand is None else stand[1]

    def rank_of(self, record: Record) -> tuple[int, int, str, str]:
        """Return what decides which of several records counts last."""
        return (self.epoch_of(record), *record.key)

    @property
    def counters(self) -> dict[str, Number]:
        """Name → sum over the generation; sums of floats do not depend on the order of records."""
        return {name: total(self.amounts(name)) for name in self._sums | self._floats}

    @property
    def values(self) -> dict[str, Any]:
        """Fields and counters, and the session id that is the generation's own."""
        named = {"session_id": self.session_ids[-1]} if self.session_ids else {}
        return {**self.fields, **self.counters, **named}

    def amounts(self, name: str) -> list[Number]:
        """Return the numbers that a counter is the `total` of."""
        return [*self._floats.get(name, ()), *((self._sums[name],) if name in self._sums else ())]

    def current(self, attachments: Iterable[Attachment]) -> list[Attachment]:
        """Return those of *attachments* that belong to the generation and were not removed."""
        return [a for a in attachments if not a.removed and self.generation_of(a.record) == self.generation]

    # Going on from here: what one device writes at the end needs no new fold.

    def extend(self, record: Record) -> bool:
        """Take in *record* if it merely continues what is here.

        Returns:
            False where the whole must be folded anew; nothing was changed then.
        """
        known = record.identity in self.records or record.identity in self.gone
        if known or record.id <= self.last_id or not self.exists:
            return False
        given = (record.data or {}).get("set")
        renames = type(given) is dict and "session_id" in given
        if renames or record.epoch != self.epoch or record.generation != self.generation:
            return False
        if record.kind == MESSAGE:
            last = self.order[-1].identity if self.order else None
            if record.after != last or not self._answers_live(record):
                return False
            self.order.append(record)
            self.canonical.append(record)
            self.live.append(record)
            self.writers.add(record.device)
            self.call_ids.update(record.calls)
        elif record.kind != SESSION or (record.data or {}).get("event") is not None:
            return False
        self.last_id = record.id
        self.records[record.identity] = record
        self.count(record)
        return True

    def _answers_live(self, record: Record) -> bool:
        """Note the call that *record* answers. False where that takes the whole order, or the call is archived."""
        if record.call_id is None or record.call_id not in self.call_ids:
            return True
        above = record.after
        for _ in range(_NEAR):
            entry = self.records.get(above) if above is not None else None
            if entry is None or entry.replaces is not None or entry.identity in self.gone:
                return False
            if record.call_id in entry.calls:
                if entry.identity in self.archived_by:
                    return False
                self.call_of[record.identity] = entry.identity
                return True
            above = entry.after
        return False

    def count(self, record: Record) -> None:
        """Let the fields and counters of *record* count, which ranks above all that counted before."""
        data = record.data
        if data is None:
            return
        given = data.get("set")
        if type(given) is dict:
            for name, value in given.items():
                self.setters[name] = record
                self.fields[name] = value
            session_id = given.get("session_id")
            if type(session_id) is str and self.generation_of(record) == self.generation:
                self.session_ids += [session_id] if session_id not in self.session_ids else []
        raised = data.get("add")
        if type(raised) is dict and self.generation_of(record) == self.generation:
            for name, amount in raised.items():
                for part in amount if type(amount) is list else (amount,):
                    if type(part) is int:
                        self._sums[name] = self._sums.get(name, 0) + part
                    elif type(part) is float:
                        self._floats.setdefault(name, []).append(part)


def total(parts: Sequence[Number]) -> Number:
    """Return the sum of integers, or where floats are among them, the exact sum rounded once."""
    if all(type(part) is int for part in parts):
        return sum(parts)
    try:
        return math.fsum(parts)
    except OverflowError:
        # It gives up, in some orders and not in others, where a partial sum is beyond a float.
        exact = sum(map(Fraction, parts))
        return float(max(-Fraction(sys.float_info.max), min(exact, Fraction(sys.float_info.max))))


def fold(logs: Sequence[Log], deletions: Sequence[Deletion], floor_epoch: int, read_line: ReadLine) -> Timeline:
    """Compute the state of a session from all of its logs.

    Args:
        logs: every file that is a log of the session, copies included, in any order.
        deletions: the deletions of its key, in any order.
        floor_epoch: the epoch below which the answer must not fall.
        read_line: gives the bytes of a record's line, where two contents claim one identity.
    """
    timeline = Timeline()
    index = MarkIndex(logs)
    timeline.last_id = max((log.begun_id for log in logs), default=0)
    winners = _winners(logs, read_line)
    timeline.last_id = max([timeline.last_id, *(record.id for record in winners.values())])
    begun = (log.begun_epoch for log in logs)
    timeline.epoch = max([floor_epoch, *begun, *(deletion.epoch for deletion in deletions)])
    ascending = sorted(deletions, key=lambda d: (d.epoch, d.generation, d.seen))
    known = [(deletion, index.covered(deletion.seen)) for deletion in ascending]
    for deletion, seen in known:
        _delete(timeline, winners, deletion, seen)
        index.dropped |= dict.fromkeys(seen, deletion.epoch)
    timeline.records = winners
    fence = max((deletion.epoch for deletion in deletions), default=0)
    _begin(timeline, fence)
    ordered = _arrange(timeline)
    _take_out(timeline, ordered, index)
    _archive(timeline, ordered, index)
    gone, archived = timeline.gone, timeline.archived_by
    timeline.canonical = [r for r in timeline.order if r.identity not in gone] if gone else list(timeline.order)
    timeline.live = [r for r in timeline.canonical if r.identity not in archived]
    _attach(timeline)
    return timeline


def _winners(logs: Iterable[Log], read_line: ReadLine) -> dict[str, Record]:
    """Return one record for each identity, whatever number of copies and of contents claim it."""
    winners: dict[str, Record] = {}
    for log in logs:
        for record in log.lines:
            if record is not None:
                _claim(winners, record, read_line)
    for record in [r for r in winners.values() if r.kind == COMPACTION]:
        for entry in record.entries():
            _claim(winners, entry, read_line)
    return winners


def _claim(winners: dict[str, Record], record: Record, read_line: ReadLine) -> None:
    other = winners.setdefault(record.identity, record)
    if other is record:
        return
    mine, theirs = (-record.epoch, record.id, record.device), (-other.epoch, other.id, other.device)
    # Every seal makes copies: they are told by their hash, so that a fold reads nothing.
    differ = mine == theirs and record.content_hash != other.content_hash
    if mine < theirs or (differ and read_line(record) < read_line(other)):
        winners[record.identity] = record


def _delete(timeline: Timeline, winners: dict[str, Record], deletion: Deletion, seen: set[str]) -> None:
    """Drop what *deletion* had seen, and lift what it had not seen over it."""
    for identity, record in list(winners.items()):
        epoch, generation = timeline.epoch_of(record), timeline.generation_of(record)
        if identity in seen:
            if record.epoch < deletion.epoch:
                del winners[identity]
                timeline.stands.pop(identity, None)
        elif generation >= deletion.generation and (epoch < deletion.epoch or generation < deletion.epoch):
            timeline.stands[identity] = (max(epoch, deletion.epoch), max(generation, deletion.epoch))


def _begin(timeline: Timeline, fence: int) -> None:
    """Settle existence, the generation, fields and counters."""
    timeline.generation = max(map(timeline.generation_of, timeline.records.values()), default=0)
    timeline.epoch = max([timeline.epoch, *map(timeline.epoch_of, timeline.records.values())])
    founding = (r for r in timeline.records.values() if _founds(r) and timeline.epoch_of(r) >= fence)
    timeline.exists = next(founding, None) is not None
    timeline.back = fence > 0 and any(
        r.epoch < fence <= timeline.epoch_of(r) for r in timeline.records.values() if _founds(r)
    )
    counting = [record for record in timeline.records.values() if record.data is not None]
    # In the order of records, so that session ids stand in it, too.
    counting.sort(key=timeline.rank_of if timeline.stands else _by_rank)
    for record in counting:
        timeline.count(record)
    if timeline.exists and not timeline.session_ids:
        timeline.session_ids = [_borrowed_name(timeline)]


def _borrowed_name(timeline: Timeline) -> str:
    """Name a generation of which no record that is here does: by the field, or alike on every device."""
    named = timeline.fields.get("session_id")
    key = next((r.log.session_key for r in timeline.records.values() if r.log.session_key is not None), "")
    made = uuid.uuid5(uuid.NAMESPACE_URL, f"squilla-files:{key}#{timeline.generation}")
    return named if type(named) is str else str(made)


def _founds(record: Record) -> bool:
    if record.kind == MESSAGE:
        return True
    return record.kind == SESSION and (record.data or {}).get("event") in ("created", "reset")


def _arrange(timeline: Timeline) -> Ordered:
    mine: list[Record] = []
    for record in timeline.records.values():
        if record.kind == MESSAGE:
            (mine if timeline.generation_of(record) == timeline.generation else timeline.closed).append(record)
    ordered = order_entries(mine, {record.identity for record in timeline.closed})
    timeline.order = ordered.order
    timeline.call_of = ordered.call_of
    timeline.writers = {record.device for record in mine}
    timeline.call_ids = {call for record in mine for call in record.calls}
    return ordered


def _of_kind(timeline: Timeline, kind: str) -> list[Record]:
    found = [record for record in timeline.records.values() if record.kind == kind]
    found.sort(key=_by_key)
    return found


def _take_out(timeline: Timeline, ordered: Ordered, index: MarkIndex) -> None:
    timeline.gone = set(ordered.replaced)
    for record in _of_kind(timeline, REMOVE):
        data = record.data or {}
        if type(data.get("message_id")) is str:
            timeline.gone.add(data["message_id"])
        timeline.gone.update(index.covered(read_marks(data.get("covers"))))


def _archive(timeline: Timeline, ordered: Ordered, index: MarkIndex) -> None:
    """Find for every entry the first compaction that archived it."""
    archived = timeline.archived_by
    done: dict[int, int] = {}
    spared: dict[int, list[tuple[int, str]]] = {}
    for record in _of_kind(timeline, COMPACTION):
        if timeline.generation_of(record) != timeline.generation:
            continue
        data = record.data or {}
        kept = {k for k in data["kept"] if type(k) is str} if type(data.get("kept")) is list else set()
        for mark in read_marks(data.get("covers")):
            for log, bound in index.bounds(mark):
                waiting = spared.setdefault(id(log), [])
                fresh = _standing(index, log, done.get(id(log), 1), bound)
                left: list[tuple[int, str]] = []
                for line, identity in (*waiting, *fresh):
                    if line <= bound and identity not in kept:
                        archived.setdefault(identity, record.identity)
                    else:
                        left.append((line, identity))
                spared[id(log)] = left
                done[id(log)] = max(done.get(id(log), 1), bound)
    # A tool result is archived exactly when its call is. In the transcript a call stands before its results.
    for entry in ordered.order if ordered.call_of else ():
        call = ordered.call_of.get(entry.identity)
        by = archived.get(call) if call is not None else None
        if by is not None:
            archived[entry.identity] = by
        elif call is not None:
            archived.pop(entry.identity, None)


def _standing(index: MarkIndex, log: Log, after_line: int, bound: int) -> Iterator[tuple[int, str]]:
    """Yield (line, identity) of the entries that stand behind *after_line* and not behind *bound*."""
    for record in log.lines[after_line:bound]:
        if record is None or (index.dropped and index.is_dropped(record)):
            continue
        if record.kind == MESSAGE:
            yield record.line, record.identity
        for entry in record.entries():
            yield record.line, entry.identity


def _attach(timeline: Timeline) -> None:
    """List summaries and context states, with what was changed of them since."""
    known: dict[tuple[str, str], Attachment] = {}
    changes: list[Record] = []
    rank = timeline.rank_of
    relevant = (r for r in timeline.records.values() if r.kind in (COMPACTION, SUMMARY, CONTEXT))
    for record in sorted(relevant, key=rank):
        data = record.data or {}
        if "change" in data:
            changes.append(record)
            continue
        for kind, doc_id in _named(record, data):
            known.setdefault((kind, doc_id), Attachment(doc_id, record))
    for record in changes:
        data = record.data or {}
        named = data.get(record.kind)
        for name in named if type(named) is list else (named,):
            attachment = known.get((record.kind, name)) if type(name) is str else None
            if attachment is not None and type(data["change"]) is dict:
                attachment.removed = attachment.removed or data["change"].get("removed") is True
                attachment.changes.update({k: v for k, v in data["change"].items() if k != "removed"})
    timeline.summaries = [a for (kind, _), a in known.items() if kind == SUMMARY]
    timeline.contexts = [a for (kind, _), a in known.items() if kind == CONTEXT]
    numbers: dict[int, int] = {}
    for attachment in timeline.summaries:
        generation = timeline.generation_of(attachment.record)
        attachment.index = numbers.get(generation, 0)
        numbers[generation] = attachment.index + 1


def _named(record: Record, data: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (kind, id) of the summaries and context states that *record* makes visible."""
    if type(data.get("summary")) is str and record.kind in (SUMMARY, COMPACTION):
        yield SUMMARY, data["summary"]
    if type(data.get("context")) is str and record.kind == CONTEXT:
        yield CONTEXT, data["context"]
    for doc_id in data["contexts"] if type(data.get("contexts")) is list and record.kind == COMPACTION else ():
        if type(doc_id) is str:
            yield CONTEXT, doc_id
