"""The summaries and context states of a store. Asynchronous; see `Engine`."""

from __future__ import annotations

from collections.abc import Callable

from squilla_files.attachments import belongs_to, number_of
from squilla_files.clock import as_ms
from squilla_files.documents import change, delete_summaries, save_context, save_summary
from squilla_files.journal import CONTEXT, SUMMARY
from squilla_files.keys import canonicalize_session_key
from squilla_files.models import SessionContextState, SessionSummary
from squilla_files.session import Session
from squilla_files.store_sessions import check_bounds
from squilla_files.store_transcripts import StoredTranscripts
from squilla_files.timeline import Attachment

DEGRADED = frozenset({"degraded_forensic", "failed_retryable"})
"""The flush statuses of summaries whose compaction the application's memory did not take over."""


class StoredDocuments(StoredTranscripts):
    """What a store does with summaries and context states."""

    # --- summaries ---------------------------------------------------------------------------------------------

    async def save_summary(self, summary: SessionSummary) -> SessionSummary:
        """Save *summary* on its own, and return it with `id` and `compaction_index` set.

        Raises:
            SessionNotFoundError: there is no session under its key.
            StaleEpochError: its `session_id` is not of the present generation.

        Durability: kept once this returns.
        """
        key = canonicalize_session_key(summary.session_key)
        return await self.change(key, lambda session: save_summary(session, summary))

    async def get_latest_summary(self, session_id: str) -> SessionSummary | None:
        """Return the summary with the highest `compaction_index`, None where there is none."""
        found = await self.get_all_summaries(session_id)
        return found[-1] if found else None

    async def get_all_summaries(self, session_id: str) -> list[SessionSummary]:
        """Return the summaries of the present generation by `compaction_index`; empty for an unknown or closed id."""
        return await self.read_named(session_id, _summaries, [])

    async def read_summaries(self, session_key: str) -> list[SessionSummary]:
        """Return the summaries of the present generation by `compaction_index`.

        Raises:
            SessionNotFoundError: there is no session.
        """

        def work(session: Session) -> list[SessionSummary]:
            session.require()
            return _summaries(session)

        return await self.read(canonicalize_session_key(session_key), work)

    async def delete_summaries(self, session_id: str) -> int:
        """Take the summaries of the present generation away; return how many. What they archived stays archived."""
        return await self.change_named(session_id, delete_summaries, 0)

    async def list_degraded_summaries(self, limit: int | None = 50) -> list[SessionSummary]:
        """Return the summaries of all sessions whose flush status is degraded, oldest first, at most *limit*.

        Raises:
            ValueError: *limit* is negative.
        """
        check_bounds(limit=limit)
        found: list[SessionSummary] = []
        for item in await self.list_all():
            found += [s for s in await self.read(item.key, _summaries) if s.flush_receipt_status in DEGRADED]
        found.sort(key=lambda summary: (as_ms(summary.created_at), summary.session_key, summary.compaction_index))
        return found if limit is None else found[:limit]

    async def update_summary_flush_receipt_status(self, summary_id: int, status: str) -> bool:
        """Set the flush status of one summary; return whether there is one with this id."""
        for item in await self.list_all():
            if belongs_to(summary_id, self._directory_of(item.key).dir_name):
                found = await self._set_status(item.key, status, lambda _, number: number == summary_id)
                if found:
                    return True
        return False

    async def update_summary_flush_receipt_status_by_compaction(
        self, session_key: str, compaction_id: str, status: str
    ) -> int:
        """Set the flush status of the summaries of one compaction; return how many there are."""
        key = canonicalize_session_key(session_key)
        return await self._set_status(key, status, lambda summary, _: summary.compaction_id == compaction_id)

    async def _set_status(self, key: str, status: str, wanted: Callable[[SessionSummary, int], bool]) -> int:
        def work(session: Session) -> int:
            timeline = session.timeline
            chosen = [
                attachment
                for attachment in timeline.current(timeline.summaries)
                for summary in session.attachments.summaries([attachment])
                if wanted(summary, number_of(session.dir.dir_name, attachment.doc_id))
            ]
            return change(session, SUMMARY, chosen, {"flush_receipt_status": str(status)})

        return await self.change(key, work)

    # --- context states ----------------------------------------------------------------------------------------

    async def save_context_state(self, state: SessionContextState) -> SessionContextState:
        """Save *state*, and return it with its `id` set. Raises and promises what `save_summary` does."""
        key = canonicalize_session_key(state.session_key)
        return await self.change(key, lambda session: save_context(session, state))

    async def get_context_states(
        self,
        session_key: str,
        *,
        provider: str | None = None,
        state_kind: str | None = None,
        valid_only: bool = True,
    ) -> list[SessionContextState]:
        """Return the context states of a session in the order in which they were saved.

        Those of closed generations are invalid, with the reason ``session_reset``. `expires_at` is not looked at. Empty
        where there is no session.
        """

        def work(session: Session) -> list[SessionContextState]:
            return [state for _, state in _states(session, provider, state_kind) if state.valid or not valid_only]

        return await self.read(canonicalize_session_key(session_key), work)

    async def invalidate_context_states(
        self, session_key: str, *, provider: str | None = None, state_kind: str | None = None, reason: str
    ) -> int:
        """Mark the valid context states of a session as invalid; return how many. They stay readable, with *reason*.

        Durability: kept once this returns, all in one commit.
        """

        def work(session: Session) -> int:
            chosen = [attachment for attachment, state in _states(session, provider, state_kind) if state.valid]
            return change(session, CONTEXT, chosen, {"valid": False, "invalid_reason": reason})

        return await self.change(canonicalize_session_key(session_key), work)


def _summaries(session: Session) -> list[SessionSummary]:
    timeline = session.timeline
    return session.attachments.summaries(timeline.current(timeline.summaries))


def _states(
    session: Session, provider: str | None, state_kind: str | None
) -> list[tuple[Attachment, SessionContextState]]:
    if not session.timeline.exists:
        return []
    return [
        (attachment, state)
        for attachment in session.timeline.contexts
        if not attachment.removed
        for state in session.attachments.contexts([attachment])
        if provider in (None, state.provider) and state_kind in (None, state.state_kind)
    ]
