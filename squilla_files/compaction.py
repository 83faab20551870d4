"""Compaction: what of a transcript is to go, and what is said of it instead.

Pure but for the summarizer that the application passes in: entries go in as dicts, a decision comes out, and nothing is
stored. Where to cut is in `turns`, the facts that must survive in `obligations`, the words in `summaries`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import isawaitable
from itertools import groupby
from typing import Any, Final, TypeAlias

from squilla_files.dialogue import Message, read_messages
from squilla_files.obligations import Coverage, Obligation, check_coverage, collect_obligations
from squilla_files.summaries import (
    carried_forward,
    deterministic_summary,
    render_structured_summary,
    structured_payload,
    summarizer_instructions,
    summarizer_text,
)
from squilla_files.tokens import TokenEstimator, entry_tokens, estimate_tokens
from squilla_files.turns import choose_cut, protected_messages, split_chunks

__all__ = [
    "CompactionConfig",
    "CompactionRequest",
    "CompactionResult",
    "Summarizer",
    "compact_context",
    "render_structured_summary",
]

Summarizer: TypeAlias = Callable[[str, str], Awaitable[str]]
"""Takes the text of a part of the conversation and instructions, returns its summary."""

MAX_INSTRUCTION_CHARACTERS: Final = 2000
_PREVIOUS_SUMMARY: Final = "__prev_summary__:"

_logger = logging.getLogger(__name__)


@dataclass(kw_only=True)
class CompactionConfig:
    """How to cut and how to say it.

    Attributes:
        base_chunk_ratio: share of what goes that is summarized together, before it is divided by *default_parts*.
        min_chunk_ratio: the least share.
        safety_margin: a transcript is too long once its tokens times this exceed the window.
        default_parts: what *base_chunk_ratio* is divided by.
        identifier_policy: "strict" asks the summarizer to repeat identifiers exactly; anything else does not.
        coverage_blocking: whether a fact that the summary lacks stops the compaction.
        compaction_profile: coding, research and support protect the last 12 messages.
        protected_recent_messages: how many of the last messages must stay; 0 leaves that to the profile.
        timeout_seconds: how long the summarizer may take for one chunk.
        summarizer: writes the summaries; None makes deterministic ones.
        token_estimator: counts what carries no count of its own.

    Raises:
        ValueError: a ratio outside of (0, 1], or a number that must be positive is not.
    """

    base_chunk_ratio: float = 0.4
    min_chunk_ratio: float = 0.15
    safety_margin: float = 1.2
    default_parts: int = 2
    identifier_policy: str = "strict"
    coverage_blocking: bool = False
    compaction_profile: str = "conversation"
    protected_recent_messages: int = 0
    timeout_seconds: float = 90.0
    summarizer: Summarizer | None = None
    token_estimator: TokenEstimator = estimate_tokens

    def __post_init__(self) -> None:
        for name in ("base_chunk_ratio", "min_chunk_ratio"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name} must be above 0 and at most 1, not {getattr(self, name)!r}.")
        for name in ("safety_margin", "default_parts", "timeout_seconds"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, not {getattr(self, name)!r}.")
        if self.protected_recent_messages < 0:
            raise ValueError(f"protected_recent_messages must not be negative: {self.protected_recent_messages!r}.")
        if self.summarizer is not None and not callable(self.summarizer):
            raise TypeError(f"summarizer must be async (text, instructions) -> str, not {self.summarizer!a:.40}.")

    @property
    def chunk_ratio(self) -> float:
        """The share of what goes that one chunk holds."""
        return max(self.min_chunk_ratio, self.base_chunk_ratio / self.default_parts)


@dataclass(kw_only=True)
class CompactionRequest:
    """A transcript that may have to shrink.

    Attributes:
        session_id: the session, for the log only.
        entries: the live entries as dicts, oldest first (role, content, token_count, tool_calls, tool_call_id,
            reasoning_content, turn_usage); they are not changed.
        context_window_tokens: tokens that the model can take.
        config: how to cut and how to say it.
        custom_instructions: for the summarizer, at most 2,000 characters; a first line ``__prev_summary__:TEXT`` is
            none of them and goes in front of the summary.
    """

    session_id: str
    entries: Sequence[Mapping[str, Any]]
    context_window_tokens: int
    config: CompactionConfig = field(default_factory=CompactionConfig)
    custom_instructions: str | None = None


@dataclass(kw_only=True)
class CompactionResult:
    """What is to go and what is to stay.

    Attributes:
        summary: what stands for the entries that go, "" if none does.
        kept_entries: the last entries, as they were given.
        removed_count: how many of the first entries go.
        chunks_processed: in how many parts they were summarized.
        summary_source: llm, fallback, mixed, or skipped.
        tokens_before: tokens of all entries.
        tokens_after: tokens of the summary and the kept entries.
        remaining_budget_tokens: what then is free of the window, at least 0.
        summary_payload: the structured summary, None if nothing goes.
        summary_format: structured_v1, or text without a payload.
        coverage_status: unknown, pass, pass_with_backfill or fail_blocked.
        missing_obligations: facts that the summary lacks, as ``kind: value``, oldest first.
        critical_carry_forward: those of them that the payload carries.
        skip_reason: why nothing goes, None if something does.
        quality_report: tokens before, after and of the summary alone, obligations checked and covered; None where no
            summary was made.
    """

    summary: str
    kept_entries: list[Mapping[str, Any]]
    removed_count: int
    chunks_processed: int = 0
    summary_source: str = "skipped"
    tokens_before: int = 0
    tokens_after: int = 0
    remaining_budget_tokens: int = 0
    summary_payload: dict[str, Any] | None = None
    summary_format: str = "text"
    coverage_status: str = "unknown"
    missing_obligations: list[str] = field(default_factory=list)
    critical_carry_forward: list[str] = field(default_factory=list)
    skip_reason: str | None = None
    quality_report: dict[str, int] | None = None


async def compact_context(request: CompactionRequest) -> CompactionResult:
    """Decide what of a transcript goes, and summarize it.

    Returns:
        The decision; where nothing goes, ``skip_reason`` says why and ``kept_entries`` are all entries.

    Raises:
        ValueError: the custom instructions are too long, or the window is not positive.

    Cancellation: goes through to the summarizer and out again; nothing was stored, so nothing is to be undone.
    """
    # A long transcript takes a tenth of a second: not on the event loop.
    plan = await asyncio.to_thread(_plan, request)
    if isinstance(plan, CompactionResult):
        return plan
    written = await _ask_summarizer(request, plan.chunks, plan.custom)
    return await asyncio.to_thread(_conclude, request, plan, written)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """What is to go, and what must survive it."""

    previous: str
    custom: str
    tokens: list[int]
    first_kept: int
    obligations: tuple[Obligation, ...]
    chunks: list[Sequence[Message]]


def _plan(request: CompactionRequest) -> _Plan | CompactionResult:
    """Return what is to go, or the result where nothing is."""
    previous, custom = _split_instructions(request.custom_instructions or "")
    config, window = request.config, request.context_window_tokens
    if not isinstance(config, CompactionConfig):
        raise TypeError(f"config must be a CompactionConfig, not {config!a:.40}.")
    if type(window) is not int:
        raise TypeError(f"context_window_tokens must be a whole number, not {window!a:.40}.")
    if window <= 0:
        raise ValueError(f"context_window_tokens must be positive, not {window!r}.")
    tokens = [entry_tokens(entry, config.token_estimator) for entry in request.entries]
    before = sum(tokens)
    if not tokens:
        return _skipped(request, before, "no_entries")
    if before * config.safety_margin <= window:
        return _skipped(request, before, "within_compaction_budget")
    messages = read_messages(request.entries)
    protected = protected_messages(config.compaction_profile, config.protected_recent_messages)
    cut = choose_cut(messages, tokens, window, protected)
    if cut.skip_reason:
        return _skipped(request, before, cut.skip_reason)

    removed = messages[: cut.first_kept]
    return _Plan(
        previous=previous,
        custom=custom,
        tokens=tokens,
        first_kept=cut.first_kept,
        obligations=collect_obligations(removed),
        chunks=[removed[chunk] for chunk in split_chunks(tokens[: cut.first_kept], config.chunk_ratio)],
    )


def _conclude(request: CompactionRequest, plan: _Plan, written: Sequence[str | None]) -> CompactionResult:
    """Return the result of what was planned and written."""
    config, window = request.config, request.context_window_tokens
    parts = _fill_in(plan.chunks, written, window // 4, config.token_estimator)
    summary = "\n\n".join([plan.previous, *parts] if plan.previous else parts)
    coverage = check_coverage(plan.obligations, summary)
    before = sum(plan.tokens)
    after = sum(plan.tokens[plan.first_kept :]) + config.token_estimator(summary)
    result = CompactionResult(
        summary=summary,
        kept_entries=list(request.entries[plan.first_kept :]),
        removed_count=plan.first_kept,
        chunks_processed=len(plan.chunks),
        summary_source=_source_of(written),
        tokens_before=before,
        tokens_after=after,
        remaining_budget_tokens=max(0, window - after),
        summary_payload=structured_payload(summary, coverage),
        summary_format="structured_v1",
        coverage_status=coverage.status,
        missing_obligations=[str(obligation) for obligation in coverage.missing],
        critical_carry_forward=carried_forward(coverage),
        quality_report=_quality(before, after, config.token_estimator(summary), coverage),
    )
    return _refuse_if_worse(request, result)


def _refuse_if_worse(request: CompactionRequest, result: CompactionResult) -> CompactionResult:
    """Return *result*, or a skipped one where it would lose a fact that must not be lost, or would not shrink."""
    if request.config.coverage_blocking and result.missing_obligations:
        reason, status = "coverage_blocked", "fail_blocked"
    elif result.tokens_after >= result.tokens_before:
        reason, status = "quality_gate_failed", result.coverage_status
    else:
        return result
    skipped = _skipped(request, result.tokens_before, reason)
    skipped.coverage_status = status
    skipped.missing_obligations = result.missing_obligations
    skipped.critical_carry_forward = result.critical_carry_forward
    skipped.quality_report = result.quality_report
    return skipped


def _skipped(request: CompactionRequest, tokens: int, reason: str) -> CompactionResult:
    return CompactionResult(
        summary="",
        kept_entries=list(request.entries),
        removed_count=0,
        tokens_before=tokens,
        tokens_after=tokens,
        remaining_budget_tokens=max(0, request.context_window_tokens - tokens),
        skip_reason=reason,
    )


def _split_instructions(instructions: str) -> tuple[str, str]:
    """Return the previous summary and the other instructions.

    Raises:
        ValueError: the others are longer than 2,000 characters.
    """
    previous = ""
    if instructions.startswith(_PREVIOUS_SUMMARY):
        first, _, instructions = instructions.partition("\n")
        previous = first.removeprefix(_PREVIOUS_SUMMARY).strip()
    if len(instructions) > MAX_INSTRUCTION_CHARACTERS:
        raise ValueError(
            f"custom_instructions may have {MAX_INSTRUCTION_CHARACTERS} characters, these have {len(instructions)}."
        )
    return previous, instructions.strip()


async def _ask_summarizer(
    request: CompactionRequest, chunks: Sequence[Sequence[Message]], custom: str
) -> list[str | None]:
    """Return a summary for each chunk, None where there is no summarizer or it gave none."""
    summarizer = request.config.summarizer
    if summarizer is None:
        return [None] * len(chunks)
    written: list[str | None] = []
    for part, chunk in enumerate(chunks, start=1):
        instructions = summarizer_instructions(
            part, len(chunks), keep_identifiers=request.config.identifier_policy == "strict", custom=custom
        )
        text: object = None
        try:
            async with asyncio.timeout(request.config.timeout_seconds):
                answer: Any = summarizer(summarizer_text(chunk), instructions)
                # A function that is not async gives its text at once.
                text = await answer if isawaitable(answer) else answer
        except Exception:
            # The application's own code, a client of some service: it may raise anything, and whatever it raises, the
            # transcript must still shrink. A cancellation is no Exception and goes through.
            _logger.warning(
                "Summarizer failed on part %d of %d of session %s; a deterministic summary stands in.",
                part,
                len(chunks),
                request.session_id,
                exc_info=None not in written,  # the trace of the first failure tells about the others
            )
        written.append(text.strip() if isinstance(text, str) and text.strip() else None)
    return written


def _fill_in(
    chunks: Sequence[Sequence[Message]], written: Sequence[str | None], max_tokens: int, estimate: TokenEstimator
) -> list[str]:
    """Return the summaries oldest first, with a deterministic one for each run of chunks that have none.

    All deterministic ones together stay within *max_tokens*; the newest run takes what it needs first.
    """
    parts: list[str] = []
    for missing, run in groupby(reversed(range(len(chunks))), key=lambda index: written[index] is None):
        indexes = sorted(run)
        if missing:
            messages = [message for index in indexes for message in chunks[index]]
            part = deterministic_summary(messages, max_tokens, estimate)
            max_tokens -= estimate(part) + 1
            parts.append(part)
        else:
            parts.append("\n\n".join(written[index] or "" for index in indexes))
    return parts[::-1]


def _source_of(written: Sequence[str | None]) -> str:
    if None not in written:
        return "llm"
    return "mixed" if any(written) else "fallback"


def _quality(before: int, after: int, summary: int, coverage: Coverage) -> dict[str, int]:
    return {
        "tokens_before": before,
        "tokens_after": after,
        "summary_tokens": summary,
        "checked_obligations": len(coverage.checked),
        "covered_obligations": len(coverage.checked) - len(coverage.missing),
    }
