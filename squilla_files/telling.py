"""Records into events: what one record of a log tells a subscriber (FORMAT.md, "What the records mean").

A record tells the same events in the same order whenever it is told, so that a cursor between two of them can be
resumed: first what happened to messages and session, then context states, then fields and counters.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from squilla_files.attachments import Attachments
from squilla_files.events import Appended, Compacted, ContextChanged, Created, Event, Pending, Removed, Reset, Updated
from squilla_files.journal import COMPACTION, CONTEXT, MESSAGE, REMOVE, SESSION, SUMMARY, Record
from squilla_files.marks import MarkIndex, read_marks
from squilla_files.models import SESSION_COUNTERS, SessionNode, TranscriptEntry
from squilla_files.session_dir import SessionDir, node_of
from squilla_files.timeline import Attachment, Timeline

Untold = Callable[..., Event]
"""An event that lacks nothing but its cursor."""

_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


class Teller:
    """Makes events of records, for one session as it stands.

    Args:
        directory: the session, refreshed.
        attachments: its summaries and context states.
        records: those that will be told; their contents are read in one go.
        told: the identities of the records that were told before; it may grow meanwhile.

    Attributes:
        lacking: the ids of summaries and context states that the record told last names and that are not here.
    """

    def __init__(
        self, directory: SessionDir, attachments: Attachments, records: Sequence[Record], told: Collection[str]
    ) -> None:
        self._directory = directory
        self._attachments = attachments
        self._timeline: Timeline = directory.timeline
        self._node: SessionNode | None = None
        self._told = told
        self.lacking: list[str] = []
        self._session_ids: dict[int, str] | None = None
        self._first_takers: dict[str, str] | None = None
        self._entries = self._read(records)

    def _read(self, records: Sequence[Record]) -> dict[str, TranscriptEntry]:
        messages: list[Record] = []
        for record in records:
            messages += [record] if record.kind == MESSAGE else self._entries_of(record)
        return dict(zip([m.identity for m in messages], self._directory.entries(messages), strict=True))

    def _entries_of(self, record: Record) -> list[Record]:
        """Return the entries of a compaction's line that count; where another copy of one counts, that one."""
        known = self._timeline.records
        return [known[entry.identity] for entry in record.entries() if entry.identity in known]

    # --- events ------------------------------------------------------------------------------------------------

    def tell(self, record: Record) -> list[Untold]:
        """Return what *record* tells, in order; nothing for a record of a type that is not known."""
        self.lacking = []
        told = list(self._tell(record))
        return [*told, self.pending(self.lacking)] if self.lacking else told

    def _tell(self, record: Record) -> Iterator[Untold]:
        if record.kind == MESSAGE:
            if not self._is_told_gone(record):
                yield self._appended(record)
        elif record.kind == REMOVE:
            yield from (self._event(record, Removed, message_id=gone) for gone in self._removed(record))
        elif record.kind == COMPACTION:
            yield from self._compacted(record)
        elif record.kind in (SUMMARY, CONTEXT):
            yield from self._document(record)
        if record.kind == SESSION:
            yield self._session(record)
        elif self._changes(record):
            yield self._updated(record)

    def _event(self, record: Record, kind: Callable[..., Event], **members: object) -> Untold:
        epoch = self._timeline.epoch_of(record)
        return partial(kind, session_key=self._directory.key, epoch=epoch, **members)

    def _appended(self, record: Record) -> Untold:
        entry = self._entries[record.identity]
        generation = self._timeline.generation_of(record)
        if generation != self._timeline.generation:
            entry.session_id = self._session_id_of(generation)
        return self._event(record, Appended, entry=entry)

    def _is_told_gone(self, record: Record) -> bool:
        """Whether a message arrives after its removal was told: it never comes into the transcript."""
        return record.identity in self._timeline.gone and self._takers().get(record.identity) in self._told

    def _updated(self, record: Record, **more: object) -> Untold:
        fields = MappingProxyType({**self._changes(record), **more})
        return self._event(record, Updated, node=self.node(), fields=fields)

    def _session(self, record: Record) -> Untold:
        event = (record.data or {}).get("event")
        if event == "reset":
            return self._event(record, Reset, old_epoch=self._epoch_before(record), node=self.node())
        if event == "created" and self._is_first_creation(record):
            fields = MappingProxyType(self._changes(record))
            return self._event(record, Created, node=self.node(), fields=fields)
        return self._updated(record, **({"epoch": record.epoch} if event == "fenced" else {}))

    def _compacted(self, record: Record) -> Iterator[Untold]:
        data = record.data or {}
        found = [a for a in self._timeline.summaries if a.doc_id == data.get("summary")]
        yield from list(self.summary(record, found)) or [self._event(record, Compacted, summary=None)]
        for entry in self._entries_of(record):
            if entry.replaces is not None and self._takers().get(entry.replaces) == record.identity:
                yield self._event(record, Removed, message_id=entry.replaces)
            yield self._appended(entry)
        listed = data.get("contexts")
        states = {a.doc_id: a for a in self._timeline.contexts}
        for doc_id in listed if type(listed) is list else ():
            yield from self.context(record, [states[doc_id]] if doc_id in states else [])

    def _document(self, record: Record) -> Iterator[Untold]:
        data = record.data or {}
        known = self._timeline.summaries if record.kind == SUMMARY else self._timeline.contexts
        found = [a for a in known if a.doc_id == data.get(record.kind)]
        change = data.get("change")
        if type(change) is dict and change.get("removed") is True:
            yield self._event(record, Updated, node=self.node(), fields=_NOTHING)
        elif record.kind == SUMMARY:
            yield from self.summary(record, found)
        else:
            yield from self.context(record, found)

    def summary(self, record: Record, attachments: Iterable[Attachment]) -> Iterator[Untold]:
        """Yield an event for each summary that is here; others are `lacking`."""
        for attachment in attachments:
            found = self._attachments.summaries([attachment])
            self.lacking += [] if found else [attachment.doc_id]
            yield from (self._event(record, Compacted, summary=summary) for summary in found)

    def context(self, record: Record, attachments: Iterable[Attachment]) -> Iterator[Untold]:
        """Yield an event for each context state that is here; others are `lacking`."""
        for attachment in attachments:
            found = self._attachments.contexts([attachment])
            self.lacking += [] if found else [attachment.doc_id]
            yield from (self._event(record, ContextChanged, state=state) for state in found)

    def pending(self, missing: Sequence[str]) -> Untold:
        """Return the event that says what is not here."""
        return partial(
            Pending, session_key=self._directory.key, epoch=self._timeline.epoch, missing=tuple(sorted(missing))
        )

    # --- what they hold ----------------------------------------------------------------------------------------

    def node(self) -> SessionNode:
        """Return the session as it stands."""
        if self._node is None:
            timeline = self._timeline
            self._node = node_of(self._directory.key, timeline.epoch, timeline.values)
        return self._node

    def _changes(self, record: Record) -> dict[str, Any]:
        """Return name → value of what a record set, and of the counters that it raised."""
        data = record.data or {}
        given, raised = data.get("set"), data.get("add")
        changes = dict(given) if type(given) is dict else {}
        if type(raised) is dict:
            for name, amount in raised.items():
                changes[name] = getattr(self.node(), name) if name in SESSION_COUNTERS else amount
        return changes

    def _removed(self, record: Record) -> list[str]:
        """Return the messages that *record* takes out and none before it did, in transcript order."""
        timeline = self._timeline
        generation = timeline.generation_of(record)
        taken = {identity for identity, taker in self._takers().items() if taker == record.identity}
        entries = timeline.order
        if generation != timeline.generation:
            closed = (entry for entry in timeline.closed if timeline.generation_of(entry) == generation)
            entries = sorted(closed, key=lambda entry: entry.key)
        listed = [entry.identity for entry in entries if entry.identity in taken]
        named = (record.data or {}).get("message_id")
        # A message that is not here yet was removed all the same.
        return [*listed, named] if type(named) is str and named in taken and named not in listed else listed

    def _takers(self) -> dict[str, str]:
        """Return message id → the record that was the first to take it out, or to put another in its place."""
        if self._first_takers is None:
            found: dict[str, str] = {}
            index = MarkIndex(self._directory.logs.values())
            removals = (r for r in self._timeline.records.values() if r.kind in (REMOVE, COMPACTION))
            for record in sorted(removals, key=lambda r: r.key):
                for identity in _taken(record, index):
                    found.setdefault(identity, record.identity)
            self._first_takers = found
        return self._first_takers

    def _is_first_creation(self, record: Record) -> bool:
        """Whether no other device created the session, too, with a record that stands before this one."""
        timeline = self._timeline
        return not any(
            other.kind == SESSION
            and other.key < record.key
            and (other.data or {}).get("event") in ("created", "reset")
            and timeline.generation_of(other) == timeline.generation_of(record)
            for other in timeline.records.values()
        )

    def _epoch_before(self, record: Record) -> int:
        timeline = self._timeline
        epoch = timeline.epoch_of(record)
        lower = (timeline.epoch_of(other) for other in timeline.records.values())
        return max((other for other in lower if other < epoch), default=max(epoch - 1, 0))

    def _session_id_of(self, generation: int) -> str:
        """Return the session id that a closed generation had last."""
        if self._session_ids is None:
            timeline = self._timeline
            found: dict[int, str] = {}
            for record in sorted(timeline.records.values(), key=timeline.rank_of):
                given = (record.data or {}).get("set")
                session_id = given.get("session_id") if type(given) is dict else None
                if type(session_id) is str:
                    found[timeline.generation_of(record)] = session_id
            self._session_ids = found
        return self._session_ids.get(generation, "")


def _taken(record: Record, index: MarkIndex) -> set[str]:
    """Return the messages that a record takes out of the transcript; those that a compaction archives stay in it."""
    if record.kind == COMPACTION:
        return {entry.replaces for entry in record.entries() if entry.replaces is not None}
    data = record.data or {}
    taken = index.covered(read_marks(data.get("covers")))
    if type(data.get("message_id")) is str:
        taken.add(data["message_id"])
    return taken
