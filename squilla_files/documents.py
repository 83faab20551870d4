"""Summaries and context states of one session: saved on their own, changed, taken away. Synchronous, under its lock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from squilla_files.attachments import number_of
from squilla_files.codec import check_fields
from squilla_files.errors import StaleEpochError
from squilla_files.journal import CONTEXT, SUMMARY
from squilla_files.models import SessionContextState, SessionSummary
from squilla_files.session import Session
from squilla_files.timeline import Attachment


def save_summary(session: Session, summary: SessionSummary) -> SessionSummary:
    """Save a summary on its own; `id` and `compaction_index` are set on it.

    Raises:
        SessionNotFoundError: there is no session.
        StaleEpochError: it belongs to a closed generation.
        OSError: it was not saved.

    Durability: kept once this returns.
    """
    doc_id = _save(session, SUMMARY, summary)
    summary.id, summary.compaction_index = number_of(session.dir.dir_name, doc_id), session.attachments.index_of(doc_id)
    return summary


def save_context(session: Session, state: SessionContextState) -> SessionContextState:
    """Save a context state on its own; `id` is set on it. Raises as `save_summary` does."""
    doc_id = _save(session, CONTEXT, state)
    state.id = number_of(session.dir.dir_name, doc_id)
    return state


def _save(session: Session, kind: str, record: SessionSummary | SessionContextState) -> str:
    timeline = session.require()
    if record.session_id not in timeline.session_ids:
        raise StaleEpochError(session.key, None, timeline.epoch)
    doc_id = session.attachments.write(record, session.writer.device)
    record.session_key = session.key
    draft = session.draft()
    draft.record(kind, **{kind: doc_id})
    session.commit(draft)
    return doc_id


def change(session: Session, kind: str, attachments: Iterable[Attachment], changes: Mapping[str, object]) -> int:
    """Change summaries or states, whoever wrote them, in one commit. Returns how many."""
    check_fields(changes)
    doc_ids = [attachment.doc_id for attachment in attachments]
    if doc_ids:
        draft = session.draft()
        # One record however many they are: several could be torn apart.
        draft.record(kind, **{kind: doc_ids[0] if len(doc_ids) == 1 else doc_ids}, change=dict(changes))
        session.commit(draft)
    return len(doc_ids)


def delete_summaries(session: Session) -> int:
    """Take the summaries of the present generation away. Returns how many; the numbers of others do not change."""
    timeline = session.timeline
    return change(session, SUMMARY, timeline.current(timeline.summaries), {"removed": True})
