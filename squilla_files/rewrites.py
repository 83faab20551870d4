"""From what a compaction decided to the one commit that carries it out.

Pure: a `Snapshot` and a decision go in, a `CompactionCommit` comes out; the store writes it or refuses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from squilla_files.commits import CompactionCommit
from squilla_files.models import SessionContextState, SessionSummary, TranscriptEntry, new_id
from squilla_files.tokens import entry_tokens, estimate_tokens

if TYPE_CHECKING:
    from collections.abc import Sequence

    from squilla_files.commits import Snapshot
    from squilla_files.compaction import CompactionResult

# What a compaction sees of an entry, and what an application may hand back of one.
_SEEN: Final = (
    "role",
    "content",
    "token_count",
    "tool_calls",
    "tool_call_id",
    "reasoning_content",
    "turn_usage",
)
_STORED_FLUSH_STATUS: Final[Mapping[str | None, str]] = {None: "unknown", "unsafe": "degraded_forensic"}


def stored_flush_status(status: str | None) -> str:
    """Return what is stored for a compaction's flush status: ``unsafe`` is a degraded one, none is unknown."""
    return _STORED_FLUSH_STATUS.get(status) or str(status)


def as_request_entry(entry: TranscriptEntry) -> dict[str, Any]:
    """Return what a compaction is to see of *entry*."""
    return {name: getattr(entry, name) for name in _SEEN}


def commit_of_result(
    snapshot: Snapshot,
    result: CompactionResult,
    *,
    compaction_id: str | None,
    trigger_reason: str | None,
    flush_receipt_status: str | None,
    keep_appended: bool,
) -> CompactionCommit:
    """Return the commit of a compaction that was worked out from *snapshot*."""
    removed = snapshot.entries[: result.removed_count]
    kept = snapshot.entries[result.removed_count :]
    identity = compaction_id or new_id()
    summary = SessionSummary(
        session_id=snapshot.node.session_id,
        session_key=snapshot.node.session_key,
        compaction_id=identity,
        trigger_reason=trigger_reason,
        summary_text=result.summary,
        summary_payload=result.summary_payload,
        summary_format=result.summary_format,
        summary_source=result.summary_source,
        coverage_status=result.coverage_status,
        missing_obligations=result.missing_obligations,
        critical_carry_forward=result.critical_carry_forward,
        tokens_before=result.tokens_before,
        tokens_after=result.tokens_after,
        removed_count=len(removed),
        kept_count=len(kept),
        chunk_count=result.chunks_processed,
        flush_receipt_status=stored_flush_status(flush_receipt_status),
        covered_through_id=_covered_through(removed),
    )
    return CompactionCommit(
        preimage=[entry.message_id for entry in snapshot.entries],
        keep_appended=keep_appended,
        expected_epoch=snapshot.node.epoch,
        kept=[entry.message_id for entry in kept],
        summary=summary,
        context_states=[_portable_state(summary)],
        counters={"compaction_count": 1},
    )


def commit_of_kept(
    snapshot: Snapshot,
    summary_text: str,
    kept_entries: Sequence[Mapping[str, Any] | TranscriptEntry],
    *,
    compaction_id: str | None,
    trigger_reason: str | None,
    flush_receipt_status: str | None,
) -> CompactionCommit:
    """Return the commit of a compaction that the application made.

    The kept items stand for the last live entries, one for one. An item that says the same as its entry keeps it with
    all its fields, any other takes its place.

    Raises:
        ValueError: there are more kept items than live entries.
    """
    live = snapshot.entries
    removed_count = len(live) - len(kept_entries)
    if removed_count < 0:
        raise ValueError(
            f"{len(kept_entries)} entries cannot be kept of the {len(live)} live ones of session "
            f"{snapshot.node.session_key!r}. Nothing was changed."
        )
    items = [as_request_entry(item) if isinstance(item, TranscriptEntry) else item for item in kept_entries]
    pairs = [*zip(live[removed_count:], items, strict=True)]
    kept = {entry.message_id for entry, item in pairs if _says_the_same(entry, item)}
    summary = SessionSummary(
        session_id=snapshot.node.session_id,
        session_key=snapshot.node.session_key,
        compaction_id=compaction_id or new_id(),
        trigger_reason=trigger_reason,
        summary_text=summary_text,
        tokens_before=sum(entry_tokens(as_request_entry(entry)) for entry in live),
        tokens_after=estimate_tokens(summary_text) + sum(map(entry_tokens, items)),
        removed_count=removed_count,
        kept_count=len(items),
        flush_receipt_status=stored_flush_status(flush_receipt_status),
        covered_through_id=_covered_through(live[:removed_count]),
    )
    return CompactionCommit(
        preimage=[entry.message_id for entry in live],
        # An entry that comes in just now is nothing that the application could have meant: it stays.
        keep_appended=True,
        expected_epoch=snapshot.node.epoch,
        kept=kept,
        replacements={
            entry.message_id: _replacement(entry, item) for entry, item in pairs if entry.message_id not in kept
        },
        summary=summary,
        counters={"compaction_count": 1},
    )


def _says_the_same(entry: TranscriptEntry, item: Mapping[str, Any]) -> bool:
    return bool(item.get("role") == entry.role and item.get("content") == entry.content)


def _replacement(entry: TranscriptEntry, item: Mapping[str, Any]) -> TranscriptEntry:
    given = {name: item[name] for name in _SEEN if name in item}
    # Without a role of its own it speaks with the voice of the entry whose place it takes.
    return TranscriptEntry(**{"role": entry.role, **given}, session_id=entry.session_id, session_key=entry.session_key)


def _covered_through(removed: Sequence[TranscriptEntry]) -> int:
    # Entries of two devices interleave: the last one need not have the highest id.
    return max((entry.id or 0 for entry in removed), default=0)


def _portable_state(summary: SessionSummary) -> SessionContextState:
    return SessionContextState(
        session_id=summary.session_id,
        session_key=summary.session_key,
        state_kind="structured_summary_v1",
        payload={**(summary.summary_payload or {}), "compaction_id": summary.compaction_id},
        covered_through_id=summary.covered_through_id,
        portable=True,
        cacheable=True,
    )
