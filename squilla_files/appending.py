"""Messages of one session: appended, removed, cleared (FORMAT.md, "Writing"). Synchronous, under the session's lock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from squilla_files.drafting import Draft, Members, counter_changes, entry_members, field_changes, same_message
from squilla_files.errors import MessageConflictError, SessionNotFoundError, SquillaFilesError, StaleEpochError
from squilla_files.journal import MESSAGE, REMOVE
from squilla_files.models import TranscriptEntry
from squilla_files.session import Session


@dataclass(slots=True)
class Append:
    """One message on its way into a session.

    Attributes:
        entry: what is appended; its `id` is set when it is.
        expected_epoch: the epoch that the writer has seen, None where its session id is checked instead.
        any_generation: whether neither is checked: the entry belongs to the present generation, whichever that is.
        fields: what the message sets of the session.
        counters: what it raises.
        error: why it was refused, None where it was not.
        done: whether it is kept.
    """

    entry: TranscriptEntry
    expected_epoch: int | None = None
    any_generation: bool = False
    fields: Mapping[str, object] = field(default_factory=dict)
    counters: Mapping[str, int | float] = field(default_factory=dict)
    error: Exception | None = None
    done: bool = False


def append(session: Session, appends: Sequence[Append]) -> None:
    """Append messages in one write. Each that cannot be appended bears its own `error`, and stops no other.

    Raises:
        OSError: nothing was written of those that bear no error.

    Durability: those without an error are kept once this returns, as the store's durability mode says.
    """
    draft = session.draft()
    waiting: list[tuple[Append, Members]] = []
    retried: list[Append] = []
    for item in appends:
        is_result = item.entry.tool_call_id is not None
        if not draft.settled or (draft.records and is_result and draft.needs_order()):
            # Where it hangs depends on entries that the timeline does not know before they are written.
            _write(session, draft, waiting)
            draft, waiting = session.draft(), []
        try:
            members = entry_members(item.entry)
            record = _draft(session, draft, item, members)
        except (SquillaFilesError, ValueError, TypeError) as error:
            item.error = error
            continue
        if record is not None:
            waiting.append((item, record))
        else:
            retried.append(item)
    if retried and not draft.records:
        # What is there already may be what a process wrote that died before its sync.
        session.writer.secure()
    _write(session, draft, waiting)
    for item in retried:
        item.done = True


def _write(session: Session, draft: Draft, waiting: Iterable[tuple[Append, Members]]) -> None:
    session.commit(draft)
    for item, record in waiting:
        item.done = True
        item.entry.id = record["id"]
        item.entry.session_key = session.key
        if item.any_generation:
            item.entry.session_id = session.timeline.session_ids[-1]


def _draft(session: Session, draft: Draft, item: Append, members: Members) -> Members | None:
    """Put a message into *draft*; None where it is there already, and the append is a retry."""
    timeline = session.timeline
    entry = item.entry
    if item.expected_epoch is not None:
        if not timeline.exists or timeline.epoch != item.expected_epoch:
            raise StaleEpochError(session.key, item.expected_epoch, timeline.epoch if timeline.exists else None)
    elif not timeline.exists:
        raise SessionNotFoundError(session.key)
    elif not item.any_generation and entry.session_id not in timeline.session_ids:
        raise StaleEpochError(session.key, None, timeline.epoch)
    pending = draft.messages.get(entry.message_id)
    if pending is not None:
        if not same_message(members, pending):
            raise MessageConflictError(session.key, entry.message_id, "has other content")
        entry.id = pending["id"]
        return None
    if entry.message_id in timeline.records:
        _check_retry(session, entry, members)
        return None
    if entry.message_id in timeline.gone:
        raise MessageConflictError(session.key, entry.message_id, "was removed")
    return draft.message(members, set_fields=field_changes(item.fields), add=counter_changes(item.counters))


def _check_retry(session: Session, entry: TranscriptEntry, members: Members) -> None:
    """Let pass a message that is there already, and refuse another one under its id."""
    timeline = session.timeline
    record = timeline.records[entry.message_id]
    if record.kind != MESSAGE or timeline.generation_of(record) != timeline.generation:
        raise MessageConflictError(session.key, entry.message_id, "belongs to a closed generation")
    if record.identity in timeline.gone:
        raise MessageConflictError(session.key, entry.message_id, "was removed")
    if not same_message(members, session.dir.objects([record])[0]):
        raise MessageConflictError(session.key, entry.message_id, "has other content")
    entry.id = record.id


def remove(session: Session, message_id: str) -> bool:
    """Take a live entry out. Returns whether there was one; the bytes stay in the log until the session is deleted."""
    timeline = session.timeline
    if not timeline.exists or not any(record.identity == message_id for record in timeline.live):
        return False
    draft = session.draft()
    draft.record(REMOVE, message_id=message_id)
    session.commit(draft)
    return True


def clear(session: Session) -> int:
    """Take all entries out, archived ones included. Returns how many there were."""
    count = len(session.timeline.canonical)
    if count:
        draft = session.draft()
        draft.record(REMOVE, covers=[list(mark) for mark in session.end_marks()])
        session.commit(draft)
    return count
