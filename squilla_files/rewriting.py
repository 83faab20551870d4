"""Compaction and truncation of one session (FORMAT.md, "Compaction"). Synchronous, under the session's lock.

Both are one line: which entries are archived, which come in the place of others, and the summary. The old entries stay
where they are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any

from squilla_files.attachments import number_of, stored_values
from squilla_files.clock import now_ms
from squilla_files.codec import check_counter
from squilla_files.commits import CompactionCommit
from squilla_files.drafting import Draft, Members, counter_changes, entry_members, field_changes, same_message
from squilla_files.errors import MessageConflictError, StaleEpochError, StalePreimageError
from squilla_files.journal import COMPACTION, Log, Record
from squilla_files.marks import Mark, MarkIndex
from squilla_files.models import SessionSummary, TranscriptEntry
from squilla_files.session import Session
from squilla_files.timeline import Timeline


def archive_marks(timeline: Timeline, logs: Collection[Log], archived: Collection[str]) -> tuple[list[Mark], list[str]]:
    """Return the marks that archive just *archived*, and the entries before them that must be named as kept.

    Args:
        timeline: what *logs* say.
        logs: all logs of the session.
        archived: identities of live entries.
    """
    marks: set[Mark] = set()
    done: defaultdict[str, set[str]] = defaultdict(set)
    # Longest first: a shorter copy of a log needs a mark of its own only if it went another way.
    for log in sorted(logs, key=lambda log: -len(log.lines)):
        if log.log_id is None:
            continue
        standing: set[str] = set()
        last: Record | None = None
        for record in log.lines:
            found = _archived_in(record, archived) if record is not None else ()
            if found:
                standing.update(found)
                last = record
        if last is not None and not standing <= done[log.log_id]:
            done[log.log_id] |= standing
            marks.add((log.log_id, last.line, last.identity))
    covered = MarkIndex(logs).covered(marks)
    live = {record.identity for record in timeline.live}
    # A result is archived exactly when its call is, be it that the call was removed.
    live |= {timeline.call_of[i] for i in live if i in timeline.call_of and i not in archived}
    staying = (live & covered).difference(archived)
    kept = [r.identity for r in timeline.order if r.identity in staying]
    return sorted(marks), kept


def _archived_in(record: Record, archived: Collection[str]) -> list[str]:
    """Return which of *archived* stand in the line of *record*."""
    found = [record.identity] if record.identity in archived else []
    return found + [entry.identity for entry in record.entries() if entry.identity in archived]


def compact(session: Session, commit: CompactionCommit) -> SessionSummary | None:
    """Write *commit* as one line. Returns the summary as it is stored, None where there is none.

    Raises:
        SessionNotFoundError: there is no session.
        StaleEpochError: the epoch is another than the one that was read.
        StalePreimageError: the live transcript is another than the one that was read.
        MessageConflictError: a new entry bears an id that is taken.
        ValueError: a replaced entry is not live.
        OSError: nothing was written.

    Durability: all of it is kept once this returns, or none of it.
    """
    timeline = session.require()
    if commit.expected_epoch is not None and commit.expected_epoch != timeline.epoch:
        raise StaleEpochError(session.key, commit.expected_epoch, timeline.epoch)
    staying = _staying(session, commit)
    live = [record.identity for record in timeline.live]
    unknown = [identity for identity in commit.replacements if identity not in set(live)]
    if unknown:
        raise ValueError(f"only live entries of session {session.key!r} can be replaced, not {unknown[0]!r}")
    archived = {identity for identity in live if identity not in staying and identity not in commit.replacements}
    entries = _new_entries(session, commit)
    fields, counters = field_changes(commit.fields), counter_changes(commit.counters)
    members: dict[str, Any] = {}
    for document in (commit.summary, *commit.context_states):
        if document is not None:
            stored_values(document)  # refuses what cannot be stored before the first of them is written
    if commit.summary is not None:
        members["summary"] = session.attachments.write(commit.summary, session.writer.device)
    if commit.context_states:
        device = session.writer.device
        members["contexts"] = [session.attachments.write(state, device) for state in commit.context_states]
    marks, kept = archive_marks(timeline, list(session.dir.logs.values()), archived)
    draft = session.draft()
    record = draft.record(COMPACTION, at=now_ms(), covers=[list(mark) for mark in marks], kept=kept, **members)
    record.update({name: value for name, value in (("set", fields), ("add", counters)) if value})
    if entries:
        record["entries"] = _placed(draft, record, entries)
    session.commit(draft)
    session.writer.settle(seal=True)
    return None if commit.summary is None else _as_stored(session, commit.summary, members["summary"])


def _staying(session: Session, commit: CompactionCommit) -> set[str]:
    """Return the identities that stay live: those kept, and those that came since the transcript was read."""
    timeline = session.timeline
    live = [record.identity for record in timeline.live]
    staying = set(commit.kept)
    if commit.preimage is not None:
        read = list(commit.preimage)
        same = live[: len(read)] == read if commit.keep_appended else live == read
        if not same:
            raise StalePreimageError(session.key)
        staying.update(live[len(read) :])
    # A result is archived exactly when its call is: what stays keeps its call with it.
    return staying | {timeline.call_of[identity] for identity in staying if identity in timeline.call_of}


def _new_entries(session: Session, commit: CompactionCommit) -> list[tuple[str | None, Members]]:
    """Return (what it replaces, members) of each new entry."""
    found: list[tuple[str | None, Members]] = []
    taken: set[str] = set()
    replacing: Iterable[tuple[str | None, TranscriptEntry]] = [
        *commit.replacements.items(),
        *((None, entry) for entry in commit.appended),
    ]
    for replaces, entry in replacing:
        members = entry_members(entry)
        if entry.message_id in session.timeline.records or entry.message_id in taken:
            raise MessageConflictError(session.key, entry.message_id, "exists already")
        taken.add(entry.message_id)
        found.append((replaces, members))
    return found


def _placed(draft: Draft, record: Members, entries: list[tuple[str | None, Members]]) -> list[Members]:
    """Return the `entries` member: those that replace others, and those at the end, each behind the one before."""
    placed: list[Members] = []
    after = draft.place({})
    identifier = record["id"]
    for replaces, members in entries:
        if replaces is not None:
            placed.append({"message_id": members["message_id"], "replaces": replaces, **members})
            continue
        identifier = check_counter(identifier + 1, "id")
        links: Mapping[str, Any] = {"id": identifier} if after is None else {"id": identifier, "after": after}
        placed.append({"message_id": members["message_id"], **links, **members})
        after = members["message_id"]
    return placed


def _as_stored(session: Session, summary: SessionSummary, doc_id: str) -> SessionSummary:
    # Not read back: what is committed cannot fail any more.
    stored = deepcopy(summary)
    stored.id, stored.session_key = number_of(session.dir.dir_name, doc_id), session.key
    stored.compaction_index = session.attachments.index_of(doc_id)
    return stored


def truncate(session: Session, max_messages: int) -> tuple[int, int]:
    """Archive all but the last *max_messages* live entries, without a summary.

    Where the cut would part a tool result from its call, more is kept.

    Returns:
        How many entries were live before and after.

    Raises:
        SessionNotFoundError: there is no session.
        ValueError: *max_messages* is negative.
    """
    if max_messages < 0:
        raise ValueError(f"max_messages must not be negative, but is {max_messages}")
    timeline = session.require()
    live = [record.identity for record in timeline.live]
    cut = _cut(timeline, live, max(len(live) - max_messages, 0))
    if cut > 0:
        marks, kept = archive_marks(timeline, list(session.dir.logs.values()), set(live[:cut]))
        draft = session.draft()
        draft.record(COMPACTION, at=now_ms(), covers=[list(mark) for mark in marks], kept=kept)
        session.commit(draft)
        session.writer.settle(seal=False)
    return len(live), len(session.timeline.live)


def _cut(timeline: Timeline, live: list[str], cut: int) -> int:
    """Move a cut back until no result behind it answers a call before it."""
    position = {identity: number for number, identity in enumerate(live)}
    number = len(live)
    while number > cut:
        number -= 1
        call = timeline.call_of.get(live[number])
        if call is not None:
            cut = min(cut, position.get(call, cut))
    return cut


def rewrite(session: Session, commit: CompactionCommit, entries: Iterable[TranscriptEntry]) -> SessionSummary | None:
    """Write *commit* so that *entries* are the live transcript: others are archived, new ones stand at the end.

    Raises:
        MessageConflictError: an entry bears the id of one that is not live, or of a live one with other content.
    """
    timeline = session.require()
    live = {record.identity: record for record in timeline.live}
    listed = list(entries)
    known = [entry for entry in listed if entry.message_id in live]
    stored = session.dir.objects([live[entry.message_id] for entry in known])
    for entry, obj in zip(known, stored, strict=True):
        # Not by `entry_members`: what another program wrote may be less than this one would write.
        if not same_message(entry.__dict__, obj):
            raise MessageConflictError(session.key, entry.message_id, "has other content")
    fresh = [entry for entry in listed if entry.message_id not in live]
    return compact(session, replace(commit, kept=[entry.message_id for entry in known], appended=fresh))
