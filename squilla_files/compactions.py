"""Compacting a session: reading it, summarising without a lock, and writing the outcome in one commit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TYPE_CHECKING, Any, TypeAlias

from squilla_files.compaction import CompactionConfig, CompactionRequest, CompactionResult, compact_context
from squilla_files.conversations import Conversations
from squilla_files.errors import SessionNotFoundError, StaleEpochError, StalePreimageError
from squilla_files.keys import normalize_agent_id
from squilla_files.rewrites import as_request_entry, commit_of_kept, commit_of_result, stored_flush_status

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from squilla_files.models import SessionSummary, TranscriptEntry

MutationContext: TypeAlias = Callable[[], AbstractAsyncContextManager[object]]
"""Makes the context in which the application wants a session to be read and to be rewritten."""


class Compactions(Conversations):
    """The verbs on compactions and their summaries."""

    async def compact_with_result(
        self,
        session_key: str,
        context_window_tokens: int,
        config: CompactionConfig | None = None,
        custom_instructions: str | None = None,
        *,
        compaction_id: str | None = None,
        trigger_reason: str | None = None,
        flush_receipt_status: str | None = None,
        mutation_context: MutationContext | None = None,
        keep_appended: bool = False,
    ) -> CompactionResult:
        """Put a summary in the place of the older live entries, so that the rest fits the window.

        Only the live entries that go are summarized; the summaries of earlier compactions stay beside the new one. So a
        model is given all of `get_summaries` in order, and then the live entries. Where the summary is to stand for the
        earlier ones as well, hand their text over in *custom_instructions*.

        The summarizer is called once for each part of what goes; blank lines join what it returns. It runs outside
        every lock. What it worked on is checked when its summary is written.

        Args:
            session_key: the session.
            context_window_tokens: tokens that the model can take.
            config: how to cut and how to say it.
            custom_instructions: what the summarizer is told besides, at most 2,000 characters. A first line
                ``__prev_summary__:TEXT`` is not told: TEXT, as far as that line goes and of any length, stands in front
                of the new summary. It weighs with the summary where it is judged whether the transcript shrinks.
            compaction_id: the application's name for the compaction; one is made otherwise.
            trigger_reason: why it is made.
            flush_receipt_status: whether the application's memory took over what goes away.
            mutation_context: wrapped around the reading and again around the writing, outside the store's locks.
            keep_appended: whether entries that come in meanwhile, and nothing else, are accepted; they stay live.

        Returns:
            What was done. Where nothing was: ``removed_count`` 0 and a ``skip_reason``; ``stale_preimage`` if the
            session changed meanwhile.

        Raises:
            SessionNotFoundError: there is no such session.

        Durability: the summary, its context state and ``compaction_count`` are one commit, on disk when this returns.
        """
        around = mutation_context or nullcontext
        async with around():
            snapshot = await self._storage.snapshot(session_key)
        # A long transcript takes a while: not on the event loop.
        entries = await asyncio.to_thread(lambda: [as_request_entry(entry) for entry in snapshot.entries])
        request = CompactionRequest(
            session_id=snapshot.node.session_id,
            entries=entries,
            context_window_tokens=context_window_tokens,
            config=config or CompactionConfig(),
            custom_instructions=custom_instructions,
        )
        result = await compact_context(request)
        if not result.removed_count:
            return result
        commit = commit_of_result(
            snapshot,
            result,
            compaction_id=compaction_id,
            trigger_reason=trigger_reason,
            flush_receipt_status=flush_receipt_status,
            keep_appended=keep_appended,
        )
        async with around():
            try:
                await self._storage.commit_compaction(session_key, commit)
            except (StalePreimageError, StaleEpochError, SessionNotFoundError):
                return _stale(request, result.tokens_before)
        return result

    async def compact(
        self,
        session_key: str,
        context_window_tokens: int,
        config: CompactionConfig | None = None,
        custom_instructions: str | None = None,
        *,
        compaction_id: str | None = None,
        trigger_reason: str | None = None,
        flush_receipt_status: str | None = None,
        mutation_context: MutationContext | None = None,
        keep_appended: bool = False,
    ) -> str:
        """Do what `compact_with_result` does and return the summary, "" if nothing was removed.

        The arguments are the same, *custom_instructions* and its first line ``__prev_summary__:TEXT`` included: TEXT
        then stands in front of the summary that is returned.

        Raises:
            SessionNotFoundError: there is no such session.
        """
        result = await self.compact_with_result(
            session_key,
            context_window_tokens,
            config,
            custom_instructions,
            compaction_id=compaction_id,
            trigger_reason=trigger_reason,
            flush_receipt_status=flush_receipt_status,
            mutation_context=mutation_context,
            keep_appended=keep_appended,
        )
        return result.summary if result.removed_count else ""

    async def persist_compaction_result(
        self,
        session_key: str,
        summary: str,
        kept_entries: Sequence[Mapping[str, Any] | TranscriptEntry],
        *,
        compaction_id: str | None = None,
        trigger_reason: str | None = None,
        flush_receipt_status: str | None = None,
    ) -> SessionSummary | None:
        """Store a compaction that the application made.

        Args:
            session_key: the session.
            summary: what stands for the entries that go away; an empty one changes nothing.
            kept_entries: what stays, in order, for the last live entries one for one. The same role and content keeps
                the entry with all its fields, any other takes its place.
            compaction_id: the application's name for the compaction; one is made otherwise.
            trigger_reason: why it was made.
            flush_receipt_status: whether the application's memory took over what goes away.

        Returns:
            The summary as stored; None where nothing was, because it is empty or the session is missing.

        Raises:
            ValueError: more is kept than is live. Nothing was changed.
            StalePreimageError, StaleEpochError: the session was changed at the same time. Nothing was changed.
        """
        if not summary.strip():
            return None
        try:
            snapshot = await self._storage.snapshot(session_key)
            commit = commit_of_kept(
                snapshot,
                summary,
                kept_entries,
                compaction_id=compaction_id,
                trigger_reason=trigger_reason,
                flush_receipt_status=flush_receipt_status,
            )
            return await self._storage.commit_compaction(session_key, commit)
        except SessionNotFoundError:
            return None

    async def get_summaries(self, session_key: str) -> list[SessionSummary]:
        """Return the summaries by ``compaction_index``.

        Together they stand for what compactions archived: each for the entries that its own took away. What a text
        lacks of the facts that must survive stands in ``critical_carry_forward``.

        Raises:
            SessionNotFoundError: there is no such session.
        """
        return await self._storage.read_summaries(session_key)

    async def list_degraded_compactions(
        self, *, agent_id: str | None = None, limit: int | None = 50
    ) -> list[SessionSummary]:
        """Return summaries whose entries the application's memory did not take over, oldest first, at most *limit*.

        Args:
            agent_id: only those of keys ``agent:ID:…``.
            limit: None for all.
        """
        if agent_id is None:
            return await self._storage.list_degraded_summaries(limit)
        prefix = f"agent:{normalize_agent_id(agent_id)}:"
        found = await self._storage.list_degraded_summaries(None)
        return [summary for summary in found if summary.session_key.startswith(prefix)][:limit]

    async def get_compaction_preimage(self, summary: SessionSummary) -> list[TranscriptEntry]:
        """Return the entries that *summary* replaced, in transcript order."""
        if summary.compaction_id is None:
            return []
        return await self._storage.get_compacted_transcript_entries(
            session_id=summary.session_id, compaction_id=summary.compaction_id
        )

    async def mark_compaction_repair_status(self, summary: SessionSummary, status: str) -> int:
        """Set the flush status of *summary*; return how many were set, 0 if it is not stored any more."""
        if summary.id is None:
            return 0
        return int(await self._storage.update_summary_flush_receipt_status(summary.id, stored_flush_status(status)))

    async def mark_compaction_flush_receipt_status(self, session_key: str, compaction_id: str, status: str) -> int:
        """Set the flush status of the session's summaries of this compaction; return how many were set."""
        return await self._storage.update_summary_flush_receipt_status_by_compaction(
            session_key, compaction_id, stored_flush_status(status)
        )


def _stale(request: CompactionRequest, tokens: int) -> CompactionResult:
    return CompactionResult(
        summary="",
        kept_entries=list(request.entries),
        removed_count=0,
        tokens_before=tokens,
        tokens_after=tokens,
        remaining_budget_tokens=max(0, request.context_window_tokens - tokens),
        skip_reason="stale_preimage",
    )
