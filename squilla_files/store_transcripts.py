"""The transcripts of a store: appended, read, truncated, compacted, searched. Asynchronous; see `Engine`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from squilla_files.appending import Append, clear, remove
from squilla_files.clock import as_ms
from squilla_files.commits import CompactionCommit, Snapshot
from squilla_files.contents import read_steadily
from squilla_files.errors import MessageNotFoundError
from squilla_files.iteration import transcript_batches
from squilla_files.journal import Record
from squilla_files.keys import canonicalize_session_key
from squilla_files.models import SessionContextState, SessionNode, SessionSummary, TranscriptEntry
from squilla_files.rewriting import compact, rewrite, truncate
from squilla_files.search import compile_query, text_of
from squilla_files.session import Session
from squilla_files.store_sessions import NOTHING, StoredSessions, check_bounds
from squilla_files.timeline import Timeline


class StoredTranscripts(StoredSessions):
    """What a store does with messages."""

    # --- writing -----------------------------------------------------------------------------------------------

    async def append_transcript_entry(
        self, entry: TranscriptEntry, *, expected_epoch: int | None = None
    ) -> TranscriptEntry:
        """Append *entry* to the session that its `session_key` names, and return it with its `id` set.

        The same `message_id` with the same content is one entry: a retry is harmless. No field of the session is
        touched.

        Args:
            entry: the message.
            expected_epoch: the epoch that the writer has seen.

        Raises:
            StaleEpochError: the epoch is another; or, where none is given, the entry's `session_id` is not of the
                present generation. Nothing was written.
            SessionNotFoundError: there is no session, and no epoch was expected.
            MessageConflictError: the `message_id` is taken by other content, or was removed.
            UnstorableTypeError, UnstorableValueError: a value that would not come back equal.
            OSError: the disk refused; nothing was written.

        Durability: in the mode "full" the entry survives the death of the process and of the machine once this returns.
        Cancellation: the entry is written whole or not at all.
        """
        key = canonicalize_session_key(entry.session_key)
        await self.append(key, Append(entry, expected_epoch))
        return entry

    async def append_entry(
        self,
        session_key: str,
        entry: TranscriptEntry,
        *,
        fields: Mapping[str, object] = NOTHING,
        counters: Mapping[str, int | float] = NOTHING,
    ) -> TranscriptEntry:
        """Append *entry* to the present generation, whichever that is, and with it set *fields* and raise *counters*.

        All of it is one line. Raises and promises what `append_transcript_entry` does without an epoch.
        """
        key = canonicalize_session_key(session_key)
        await self.append(key, Append(entry, None, True, fields, counters))
        return entry

    async def delete_transcript(self, session_id: str) -> int:
        """Take every message out of the transcript; return how many there were. Summaries and the session stay.

        Durability: kept once this returns.
        """
        return await self.change_named(session_id, clear, 0)

    async def delete_transcript_entry(self, session_id: str, message_id: str) -> bool:
        """Take a live message out; return whether there was one."""
        return await self.change_named(session_id, lambda session: remove(session, message_id), False)

    async def remove_entry(self, session_key: str, message_id: str) -> bool:
        """Take a live message out; return whether there was one. False, too, where there is no session."""
        return await self.change(canonicalize_session_key(session_key), lambda session: remove(session, message_id))

    async def truncate_session(self, session_key: str, max_messages: int) -> tuple[int, int]:
        """Archive all but the last *max_messages* live messages; return how many were live before and after.

        Raises:
            SessionNotFoundError: there is no session.
            ValueError: *max_messages* is negative.
        """
        return await self.change(canonicalize_session_key(session_key), lambda session: truncate(session, max_messages))

    async def commit_compaction(self, session_key: str, commit: CompactionCommit) -> SessionSummary | None:
        """Write *commit*, whole or not at all; return its summary as it is stored.

        Raises:
            SessionNotFoundError: there is no session.
            StaleEpochError, StalePreimageError: the session or its transcript changed since it was read.
            MessageConflictError: a new message bears an id that is taken.

        Durability: kept once this returns.
        """
        return await self.change(canonicalize_session_key(session_key), lambda session: compact(session, commit))

    async def rewrite_compacted_session(
        self,
        *,
        node: SessionNode,
        summary: SessionSummary | None,
        entries: Sequence[TranscriptEntry],
        context_states: Sequence[SessionContextState] | None = None,
    ) -> SessionSummary | None:
        """Make *entries* the live transcript in one commit, with a summary of the rest; return the summary as stored.

        Live entries that are not in *entries* are archived; entries with a new `message_id` come to stand at the end;
        the fields and counters in which *node* differs from what is stored are set.

        Raises:
            SessionNotFoundError: there is no session.
            StaleEpochError: *node* is of another epoch.
            MessageConflictError: an entry bears the id of one that is not live.
        """

        def work(session: Session) -> SessionSummary | None:
            fields, counters = session.differences(node)
            commit = CompactionCommit(
                preimage=None,
                expected_epoch=node.epoch,
                kept=(),
                replacements={},
                summary=summary,
                context_states=tuple(context_states or ()),
                fields=fields,
                counters=counters,
            )
            return rewrite(session, commit, entries)

        return await self.change(canonicalize_session_key(node.session_key), work)

    # --- reading by key ----------------------------------------------------------------------------------------

    async def read_entries(
        self,
        session_key: str,
        *,
        canonical: bool = False,
        limit: int | None = None,
        offset: int = 0,
        last: int | None = None,
    ) -> list[TranscriptEntry]:
        """Return live, or canonical, entries of the present generation in transcript order.

        Args:
            session_key: the session.
            canonical: whether archived entries are wanted, too.
            limit: how many at most, from the oldest.
            offset: how many to pass over.
            last: only that many of the newest.

        Raises:
            SessionNotFoundError: there is no session.
        """

        def work(session: Session) -> list[TranscriptEntry]:
            chosen = _chosen(session.require(), canonical)
            return session.dir.entries(_slice(chosen, limit, offset, last))

        return await self.read(canonicalize_session_key(session_key), work)

    async def read_page(
        self, session_key: str, *, limit: int, before: str | None = None
    ) -> tuple[list[TranscriptEntry], bool, bool]:
        """Return the last *limit* canonical entries, before the message *before* where that is given.

        Returns:
            The entries, oldest first; whether older ones exist; whether all logs that the session names are here.

        Raises:
            SessionNotFoundError: there is no session.
            MessageNotFoundError: there is no message *before*.
            ValueError: *limit* is negative.
        """
        check_bounds(limit=limit)

        def work(session: Session) -> tuple[list[TranscriptEntry], bool, bool]:
            canonical = session.require().canonical
            end = len(canonical)
            if before is not None:
                end = next((n for n, record in enumerate(canonical) if record.identity == before), -1)
                if end < 0:
                    raise MessageNotFoundError(session.key, before)
            start = max(end - limit, 0)
            complete = not (session.dir.missing or session.dir.placeholders)
            return session.dir.entries(canonical[start:end]), start > 0, complete

        return await self.read(canonicalize_session_key(session_key), work)

    async def snapshot(self, session_key: str) -> Snapshot:
        """Return the session and its live transcript as they are at one moment.

        Raises:
            SessionNotFoundError: there is no session.
        """
        return await self.read(
            canonicalize_session_key(session_key),
            lambda session: Snapshot(session.node(), session.dir.entries(session.timeline.live)),
        )

    # --- reading by session id ---------------------------------------------------------------------------------

    async def get_transcript(self, session_id: str, limit: int | None = None, offset: int = 0) -> list[TranscriptEntry]:
        """Return the live transcript, oldest first, at most *limit* from *offset*; empty for an unknown id."""
        return await self.read_named(
            session_id, lambda s: s.dir.entries(_slice(s.timeline.live, limit, offset, None)), []
        )

    async def get_canonical_transcript(
        self, session_id: str, limit: int | None = None, offset: int = 0
    ) -> list[TranscriptEntry]:
        """Return archived and live entries in transcript order; empty for an unknown or closed id."""
        return await self.read_named(
            session_id, lambda s: s.dir.entries(_slice(s.timeline.canonical, limit, offset, None)), []
        )

    async def get_recent_transcript(self, session_id: str, n: int) -> list[TranscriptEntry]:
        """Return the last *n* live entries, oldest first."""
        return await self.read_named(session_id, lambda s: s.dir.entries(_slice(s.timeline.live, None, 0, n)), [])

    async def count_transcript_entries(self, session_id: str) -> int:
        """Return how many entries are live; 0 for an unknown or closed id."""
        return await self.read_named(session_id, lambda session: len(session.timeline.live), 0)

    async def count_transcript_entries_batch(self, session_ids: Sequence[str]) -> dict[str, int]:
        """Return session id → how many entries are live, 0 for an unknown or closed id."""
        listed = {session_id: item.live for item in await self.list_all() for session_id in item.session_ids}
        return {session_id: listed.get(session_id, 0) for session_id in session_ids}

    async def list_user_transcript_content_batch(
        self, session_ids: Sequence[str], *, limit_per_session: int = 3
    ) -> dict[str, list[str]]:
        """Return session id → the texts of the first live messages of the user, at most *limit_per_session* each.

        Raises:
            ValueError: *limit_per_session* is negative.
        """
        check_bounds(limit_per_session=limit_per_session)

        def work(session: Session) -> list[str]:
            records = [record for record in session.timeline.live if record.role == "user"][:limit_per_session]
            return [text_of(entry.content) for entry in session.dir.entries(records)]

        found: dict[str, list[str]] = {}
        for session_id in session_ids:
            found[session_id] = await self.read_named(session_id, work, [])
        return found

    async def get_compacted_transcript_entries(self, *, session_id: str, compaction_id: str) -> list[TranscriptEntry]:
        """Return the entries that a compaction archived, and no earlier one, in transcript order."""

        def work(session: Session) -> list[TranscriptEntry]:
            timeline = session.timeline
            wanted = {
                attachment.record.identity
                for attachment in timeline.current(timeline.summaries)
                for summary in session.attachments.summaries([attachment])
                if summary.compaction_id == compaction_id
            }
            return session.dir.entries(
                [r for r in timeline.canonical if timeline.archived_by.get(r.identity) in wanted]
            )

        return await self.read_named(session_id, work, [])

    async def iter_transcript(self, session_id: str, *, canonical: bool = False) -> AsyncIterator[TranscriptEntry]:
        """Yield the live, or canonical, transcript oldest first, in bounded memory.

        What is appended meanwhile is not yielded. Nothing is yielded for an unknown or closed id.

        Raises:
            CorruptRecordError: a log was replaced meanwhile.
        """
        key = await self.find_key(session_id)
        if key is None:
            return
        batches = await self.run(lambda: transcript_batches(self._directory_of(key), session_id, canonical=canonical))
        while batch := await self.run(lambda: next(batches, None)):
            for entry in batch:
                yield entry

    async def search_transcript(
        self, query: str, session_id: str | None = None, limit: int = 20
    ) -> list[dict[str, Any]]:
        """Return live messages in which every word of *query* occurs, in any case of any script, newest first.

        Args:
            query: words; an empty query finds nothing.
            session_id: only in this session; None: in all.
            limit: how many at most.

        Returns:
            Dicts with `id`, `session_key`, `session_id`, `message_id`, `role`, `created_at` and `snippet`, in which
            what was found is marked `>>>so<<<`.

        Raises:
            ValueError: *limit* is negative.
        """
        check_bounds(limit=limit)
        compiled = compile_query(query)

        def find(key: str) -> list[dict[str, Any]]:
            directory = self._directory_of(key)
            with directory.mutex:
                timeline = directory.refresh()
                named = session_id is None or session_id in timeline.session_ids
                records = list(timeline.live) if named else []
            hits = []
            # Not under the mutex: a long transcript must not keep appends waiting.
            for start in range(0, len(records), _BATCH):
                for entry in directory.entries(records[start : start + _BATCH]):
                    text = text_of(entry.content)
                    if compiled.matches(text):
                        hits.append(_hit(entry, compiled.snippet(text)))
            return hits

        if session_id is None:
            keys = [item.key for item in await self.list_all()]
        else:
            key = await self.find_key(session_id)
            keys = [] if key is None else [key]
        hits: list[dict[str, Any]] = []
        for key in keys:
            hits += await self.run(lambda key=key: read_steadily(lambda: find(key)))  # type: ignore[misc]
            hits.sort(key=lambda hit: (-as_ms(hit["created_at"]), -hit["id"], hit["session_key"]))
            del hits[limit:]
        return hits


_BATCH = 512


def _hit(entry: TranscriptEntry, snippet: str) -> dict[str, Any]:
    names = ("id", "session_key", "session_id", "message_id", "role", "created_at")
    return {**{name: getattr(entry, name) for name in names}, "snippet": snippet}


def _chosen(timeline: Timeline, canonical: bool) -> list[Record]:
    return timeline.canonical if canonical else timeline.live


def _slice(records: list[Record], limit: int | None, offset: int, last: int | None) -> list[Record]:
    check_bounds(limit=limit, offset=offset, last=last)
    if last is not None:
        return records[-last:] if last else []
    return records[offset : None if limit is None else offset + limit]
