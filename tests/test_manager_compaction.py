"""Compaction through the manager: one commit, nothing else touched, nothing written over a changed transcript."""

from __future__ import annotations

import errno
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from faulty_files import FaultyFiles

from squilla_files.compaction import CompactionConfig
from squilla_files.errors import StalePreimageError
from squilla_files.manager import SessionManager
from squilla_files.models import TranscriptEntry
from squilla_files.storage import SessionStorage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from squilla_files.models import SessionNode

KEY = "agent:main:main"
WINDOW_TOKENS = 1_000
"""Six messages of 200 tokens are too many; the last two fit into half of it."""


@pytest.fixture
async def manager(tmp_path: Path) -> AsyncIterator[SessionManager]:
    async with SessionStorage(tmp_path, device="desk", durability="os") as storage:
        manager = SessionManager(storage, inject_time_prefix=False)
        await manager.create(KEY)
        yield manager


async def chat(manager: SessionManager, count: int = 6, key: str = KEY) -> list[TranscriptEntry]:
    return [
        await manager.append_message(
            key,
            "assistant" if number % 2 else "user",
            f"message {number}",
            token_count=200,
            reasoning_content="hm",
            provenance="external_user",
        )
        for number in range(count)
    ]


async def said(manager: SessionManager, key: str = KEY) -> list[Any]:
    return [entry.content for entry in await manager.get_transcript(key)]


async def node(manager: SessionManager, key: str = KEY) -> SessionNode:
    found = await manager.get_session(key)
    assert found is not None
    return found


def logged(manager: SessionManager) -> bytes:
    return b"".join(path.read_bytes() for path in Path(manager.storage.root).rglob("transcript.*"))


async def everything(manager: SessionManager, key: str = KEY) -> tuple[object, ...]:
    return (
        await node(manager, key),
        await manager.get_transcript(key),
        await manager.get_canonical_transcript(key),
        await manager.get_summaries(key),
        await manager.get_context_states(key, valid_only=False),
    )


def summarizer_that(does: Callable[[], Awaitable[object]]) -> CompactionConfig:
    """Return a config whose summarizer does something to the store before it answers."""
    done: list[str] = []

    async def summarize(text: str, instructions: str) -> str:
        if not done:
            done.append(text)
            await does()
        return "summary"

    return CompactionConfig(summarizer=summarize)


# --- what a compaction does ------------------------------------------------------------------------------------------


async def test_a_compaction_keeps_the_tail_and_archives_the_rest(manager: SessionManager) -> None:
    entries = await chat(manager)
    result = await manager.compact_with_result(KEY, WINDOW_TOKENS)
    assert (result.removed_count, result.skip_reason) == (4, None)
    assert await manager.get_transcript(KEY) == entries[4:]
    assert await manager.get_canonical_transcript(KEY) == entries


async def test_the_summary_is_stored_with_all_that_is_known_of_it(manager: SessionManager) -> None:
    entries = await chat(manager)

    async def summarize(text: str, instructions: str) -> str:
        return f"They spoke. {instructions[:0]}"

    result = await manager.compact_with_result(
        KEY,
        WINDOW_TOKENS,
        CompactionConfig(summarizer=summarize),
        compaction_id="c-1",
        trigger_reason="context_overflow",
        flush_receipt_status="safe",
    )
    (summary,) = await manager.get_summaries(KEY)
    assert summary.id is not None
    assert (summary.session_id, summary.session_key) == ((await node(manager)).session_id, KEY)
    assert (summary.compaction_index, summary.compaction_id) == (0, "c-1")
    assert summary.trigger_reason == "context_overflow"
    assert summary.flush_receipt_status == "safe"
    assert summary.summary_text == result.summary != ""
    assert summary.summary_payload == result.summary_payload is not None
    assert summary.summary_format == result.summary_format == "structured_v1"
    assert summary.summary_source == result.summary_source == "llm"
    assert summary.coverage_status == result.coverage_status
    assert summary.missing_obligations == result.missing_obligations
    assert summary.critical_carry_forward == result.critical_carry_forward
    assert (summary.tokens_before, summary.tokens_after) == (result.tokens_before, result.tokens_after)
    assert (summary.removed_count, summary.kept_count) == (4, 2)
    assert summary.chunk_count == result.chunks_processed > 0
    assert summary.covered_through_id == entries[3].id


async def test_a_portable_context_state_goes_with_the_summary(manager: SessionManager) -> None:
    await chat(manager)
    result = await manager.compact_with_result(KEY, WINDOW_TOKENS, compaction_id="c-1")
    (state,) = await manager.get_context_states(KEY)
    (summary,) = await manager.get_summaries(KEY)
    assert (state.provider, state.state_kind) == ("portable", "structured_summary_v1")
    assert (state.portable, state.cacheable, state.valid) == (True, True, True)
    assert result.summary_payload is not None
    assert state.payload == {**result.summary_payload, "compaction_id": "c-1"}
    assert state.covered_through_id == summary.covered_through_id


async def test_a_compaction_is_counted_and_touches_no_other_field(manager: SessionManager) -> None:
    await chat(manager)
    before = await manager.update(KEY, updated_at=5)
    await manager.compact(KEY, WINDOW_TOKENS)
    before.compaction_count = 1
    assert await node(manager) == before


async def test_a_compaction_without_a_name_gets_one(manager: SessionManager) -> None:
    await chat(manager)
    await manager.compact(KEY, WINDOW_TOKENS)
    (summary,) = await manager.get_summaries(KEY)
    assert summary.compaction_id
    assert [entry.content for entry in await manager.get_compaction_preimage(summary)] == [
        f"message {number}" for number in range(4)
    ]


async def test_compactions_follow_each_other(manager: SessionManager) -> None:
    await chat(manager)
    await manager.compact(KEY, WINDOW_TOKENS)
    await chat(manager)
    await manager.compact(KEY, WINDOW_TOKENS)
    summaries = await manager.get_summaries(KEY)
    assert [summary.compaction_index for summary in summaries] == [0, 1]
    assert [summary.removed_count for summary in summaries] == [4, 6]
    preimages = [len(await manager.get_compaction_preimage(summary)) for summary in summaries]
    assert preimages == [4, 6]
    assert len(await manager.get_canonical_transcript(KEY)) == 12
    assert (await node(manager)).compaction_count == 2


async def test_compact_returns_the_summary_or_nothing(manager: SessionManager) -> None:
    assert await manager.compact(KEY, WINDOW_TOKENS) == ""
    await chat(manager)
    summary = await manager.compact(KEY, WINDOW_TOKENS)
    assert summary == (await manager.get_summaries(KEY))[0].summary_text != ""
    assert await manager.compact(KEY, WINDOW_TOKENS) == ""


async def test_a_previous_summary_in_the_instructions_goes_in_front(manager: SessionManager) -> None:
    await chat(manager)
    summary = await manager.compact(KEY, WINDOW_TOKENS, custom_instructions="__prev_summary__:Before that: greetings.")
    assert summary.startswith("Before that: greetings.")


async def test_nothing_to_do_writes_nothing(manager: SessionManager) -> None:
    await chat(manager, count=2)
    before = await everything(manager)
    result = await manager.compact_with_result(KEY, WINDOW_TOKENS)
    assert (result.removed_count, result.skip_reason) == (0, "within_compaction_budget")
    assert await everything(manager) == before


async def test_a_blocked_compaction_writes_nothing(manager: SessionManager) -> None:
    await manager.append_message(
        KEY, "user", "Goal: find report-7.pdf in /srv/reports/2026/report-7.pdf", token_count=200
    )
    await chat(manager)
    before = await everything(manager)

    async def forgetful(text: str, instructions: str) -> str:
        return "Nothing of note."

    config = CompactionConfig(summarizer=forgetful, coverage_blocking=True)
    result = await manager.compact_with_result(KEY, WINDOW_TOKENS, config)
    assert (result.removed_count, result.skip_reason) == (0, "coverage_blocked")
    assert await everything(manager) == before


async def test_compacting_a_missing_session_is_a_key_error(manager: SessionManager) -> None:
    with pytest.raises(KeyError):
        await manager.compact_with_result("agent:no:one", WINDOW_TOKENS)
    with pytest.raises(KeyError):
        await manager.compact("agent:no:one", WINDOW_TOKENS)


async def test_a_tool_result_is_never_kept_without_its_call(manager: SessionManager) -> None:
    await chat(manager, count=4)
    call = await manager.append_message(KEY, "assistant", "", tool_calls=[{"id": "c-1"}], token_count=300)
    result = await manager.append_message(KEY, "tool", "rain", tool_call_id="c-1", token_count=200)
    answer = await manager.append_message(KEY, "assistant", "It rains.", token_count=200)
    await manager.compact(KEY, WINDOW_TOKENS)
    live = await manager.get_transcript(KEY)
    assert answer in live
    assert (call in live) == (result in live)


# --- the world moves on meanwhile ------------------------------------------------------------------------------------


async def test_the_context_is_entered_for_reading_and_for_writing_and_never_around_the_summarizer(
    manager: SessionManager,
) -> None:
    await chat(manager)
    steps: list[str] = []

    @asynccontextmanager
    async def context() -> AsyncIterator[None]:
        steps.append("enter")
        # Were a lock of the store held here, this would wait for it for ever.
        await manager.update(KEY, label=f"step {len(steps)}")
        yield
        steps.append("exit")

    async def summarize(text: str, instructions: str) -> str:
        steps.append("summarize")
        return "summary"

    config = CompactionConfig(summarizer=summarize, base_chunk_ratio=1, default_parts=1)
    result = await manager.compact_with_result(KEY, WINDOW_TOKENS, config, mutation_context=context)
    assert result.removed_count == 4
    assert steps == ["enter", "exit", "summarize", "enter", "exit"]


async def test_a_change_at_the_entry_of_the_second_context_is_noticed(manager: SessionManager) -> None:
    await chat(manager)
    entered: list[int] = []

    @asynccontextmanager
    async def context() -> AsyncIterator[None]:
        entered.append(1)
        if len(entered) == 2:
            await manager.append_message(KEY, "user", "late", token_count=3)
        yield

    result = await manager.compact_with_result(KEY, WINDOW_TOKENS, mutation_context=context)
    assert (result.summary, result.summary_source, result.skip_reason) == ("", "skipped", "stale_preimage")
    assert await manager.get_summaries(KEY) == []


async def is_not_compacted(manager: SessionManager, config: CompactionConfig, **options: Any) -> None:
    result = await manager.compact_with_result(KEY, WINDOW_TOKENS, config, **options)
    assert (result.summary, result.removed_count, result.chunks_processed) == ("", 0, 0)
    assert (result.summary_source, result.skip_reason) == ("skipped", "stale_preimage")
    assert result.summary_payload is None
    assert result.tokens_after == result.tokens_before > WINDOW_TOKENS
    assert result.remaining_budget_tokens == 0
    assert len(result.kept_entries) == 6
    assert await manager.get_context_states(KEY) == []


async def test_a_message_that_comes_meanwhile_stops_the_compaction(manager: SessionManager) -> None:
    await chat(manager)
    await is_not_compacted(manager, summarizer_that(lambda: manager.append_message(KEY, "user", "late")))
    assert len(await said(manager)) == 7
    assert await manager.get_summaries(KEY) == []
    assert (await node(manager)).compaction_count == 0


async def test_compact_says_nothing_where_it_was_stopped(manager: SessionManager) -> None:
    await chat(manager)
    config = summarizer_that(lambda: manager.append_message(KEY, "user", "late"))
    assert await manager.compact(KEY, WINDOW_TOKENS, config) == ""


async def test_entries_that_come_meanwhile_can_be_kept_behind_the_others(manager: SessionManager) -> None:
    entries = await chat(manager)
    config = summarizer_that(lambda: manager.append_message(KEY, "user", "late", token_count=200))
    result = await manager.compact_with_result(KEY, WINDOW_TOKENS, config, keep_appended=True)
    assert result.removed_count == 4
    live = await manager.get_transcript(KEY)
    assert live[:2] == entries[4:]
    assert [entry.content for entry in live[2:]] == ["late"]
    assert [entry.content for entry in await manager.get_canonical_transcript(KEY)] == [
        *(f"message {number}" for number in range(6)),
        "late",
    ]


@pytest.mark.parametrize("keep_appended", [False, True])
async def test_after_a_removal_meanwhile_nothing_is_written(manager: SessionManager, keep_appended: bool) -> None:
    entries = await chat(manager)
    config = summarizer_that(lambda: manager.remove_message(KEY, entries[1].message_id))
    await is_not_compacted(manager, config, keep_appended=keep_appended)
    assert await manager.get_summaries(KEY) == []


@pytest.mark.parametrize("keep_appended", [False, True])
async def test_after_another_compaction_meanwhile_nothing_is_written(
    manager: SessionManager, keep_appended: bool
) -> None:
    await chat(manager)
    config = summarizer_that(lambda: manager.truncate(KEY, 1))
    await is_not_compacted(manager, config, keep_appended=keep_appended)
    assert await manager.get_summaries(KEY) == []
    assert await said(manager) == ["message 5"]


@pytest.mark.parametrize("keep_appended", [False, True])
async def test_after_a_reset_meanwhile_nothing_is_written(manager: SessionManager, keep_appended: bool) -> None:
    await chat(manager)
    config = summarizer_that(lambda: manager.apply_intent(KEY, "reset_same_key"))
    await is_not_compacted(manager, config, keep_appended=keep_appended)
    assert await manager.get_summaries(KEY) == []
    assert (await node(manager)).compaction_count == 0


@pytest.mark.parametrize("keep_appended", [False, True])
async def test_a_compaction_that_was_fenced_meanwhile_writes_nothing(
    manager: SessionManager, keep_appended: bool
) -> None:
    await chat(manager)
    config = summarizer_that(lambda: manager.storage.increment_epoch(KEY))
    await is_not_compacted(manager, config, keep_appended=keep_appended)
    assert await manager.get_summaries(KEY) == []


async def test_after_a_deletion_meanwhile_nothing_is_written(manager: SessionManager) -> None:
    await chat(manager)
    config = summarizer_that(lambda: manager.storage.delete_session(KEY))
    await is_not_compacted(manager, config)
    assert await manager.get_session(KEY) is None


@pytest.mark.parametrize("step", range(1, 40))
async def test_a_compaction_that_fails_at_any_step_changes_nothing(tmp_path: Path, step: int) -> None:
    files = FaultyFiles()
    async with SessionStorage(tmp_path, device="desk", files=files) as storage:
        manager = SessionManager(storage, inject_time_prefix=False)
        await manager.create(KEY)
        await chat(manager)
        before = await everything(manager)
        files.fail_at(step, errno.ENOSPC, matching=lambda call: call.name in ("write", "create", "sync", "rename"))
        try:
            failed = not await manager.compact(KEY, WINDOW_TOKENS)
        except OSError:
            failed = True
        files.heal()
    async with SessionStorage(tmp_path, device="desk") as storage:
        manager = SessionManager(storage)
        if failed:
            assert await everything(manager) == before
        else:
            # The failure came after the commit, or not at all.
            assert len(await manager.get_summaries(KEY)) == 1
            assert await said(manager) == ["message 4", "message 5"]


# --- what the application's memory took over -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "stored", "degraded"),
    [
        (None, "unknown", False),
        ("safe", "safe", False),
        ("unsafe", "degraded_forensic", True),
        ("degraded_forensic", "degraded_forensic", True),
        ("failed_retryable", "failed_retryable", True),
        ("noop_no_memory", "noop_no_memory", False),
        ("archive_only", "archive_only", False),
    ],
)
async def test_the_flush_status_says_whether_a_compaction_is_degraded(
    manager: SessionManager, given: str | None, stored: str, degraded: bool
) -> None:
    await chat(manager)
    await manager.compact(KEY, WINDOW_TOKENS, flush_receipt_status=given)
    await manager.persist_compaction_result(KEY, "more", [], flush_receipt_status=given)
    summaries = await manager.get_summaries(KEY)
    assert [summary.flush_receipt_status for summary in summaries] == [stored, stored]
    assert await manager.list_degraded_compactions(agent_id="main") == (summaries if degraded else [])


async def test_degraded_compactions_are_listed_by_agent_oldest_first(manager: SessionManager) -> None:
    for key in ("agent:other:main", "agent:main:two", "group:main"):
        await manager.create(key)
    for number, key in enumerate(["agent:main:two", "agent:other:main", KEY, "group:main"]):
        await chat(manager, 1, key)
        summary = await manager.persist_compaction_result(key, f"{number}", [], flush_receipt_status="unsafe")
        assert summary is not None

    async def texts(**choice: Any) -> list[str]:
        return [summary.summary_text for summary in await manager.list_degraded_compactions(**choice)]

    assert await texts() == ["0", "1", "2", "3"]
    assert await texts(agent_id="main") == ["0", "2"]
    assert await texts(agent_id=" MAIN ") == ["0", "2"]
    assert await texts(agent_id="other") == ["1"]
    assert await texts(agent_id="main", limit=1) == ["0"]
    assert await texts(agent_id="mai") == []


async def test_a_repaired_compaction_is_degraded_no_more(manager: SessionManager) -> None:
    await chat(manager)
    await manager.compact(KEY, WINDOW_TOKENS, flush_receipt_status="degraded_forensic")
    (summary,) = await manager.list_degraded_compactions(agent_id="main")
    assert await manager.mark_compaction_repair_status(summary, "repaired") == 1
    assert await manager.list_degraded_compactions(agent_id="main") == []
    (summary,) = await manager.get_summaries(KEY)
    assert summary.flush_receipt_status == "repaired"
    summary.id = None
    assert await manager.mark_compaction_repair_status(summary, "safe") == 0


async def test_the_flush_status_can_be_set_by_the_name_of_the_compaction(manager: SessionManager) -> None:
    await chat(manager)
    await manager.compact(KEY, WINDOW_TOKENS, compaction_id="c-1", flush_receipt_status="unsafe")
    await manager.persist_compaction_result(KEY, "more", [], compaction_id="c-2", flush_receipt_status="unsafe")
    assert await manager.mark_compaction_flush_receipt_status(KEY, "c-1", "safe") == 1
    assert await manager.mark_compaction_flush_receipt_status(KEY, "c-9", "safe") == 0
    first, second = await manager.get_summaries(KEY)
    assert (first.flush_receipt_status, second.flush_receipt_status) == ("safe", "degraded_forensic")
    assert await manager.mark_compaction_flush_receipt_status(KEY, "c-1", "unsafe") == 1
    assert len(await manager.list_degraded_compactions()) == 2


# --- compactions that the application made ---------------------------------------------------------------------------


async def test_what_the_application_keeps_unchanged_keeps_all_its_fields(manager: SessionManager) -> None:
    entries = await chat(manager, 4)
    kept = [{"role": entry.role, "content": entry.content} for entry in entries[2:]]
    summary = await manager.persist_compaction_result(
        KEY, "so far", kept, compaction_id="c-1", trigger_reason="manual", flush_receipt_status="safe"
    )
    assert summary is not None
    assert await manager.get_summaries(KEY) == [summary]
    assert (summary.summary_text, summary.compaction_id, summary.trigger_reason) == ("so far", "c-1", "manual")
    assert (summary.summary_format, summary.flush_receipt_status) == ("text", "safe")
    assert (summary.removed_count, summary.kept_count) == (2, 2)
    assert summary.covered_through_id == entries[1].id
    assert summary.tokens_before is not None
    assert summary.tokens_after is not None
    assert summary.tokens_before > summary.tokens_after > 0
    assert await manager.get_transcript(KEY) == entries[2:]
    assert await manager.get_canonical_transcript(KEY) == entries
    assert await manager.get_compaction_preimage(summary) == entries[:2]
    assert (await node(manager)).compaction_count == 1


async def test_other_text_replaces_the_entry_in_its_place(manager: SessionManager) -> None:
    entries = await chat(manager, 4)
    shortened = {"role": "assistant", "content": "in short", "token_count": 2, "tool_calls": [{"id": "c-1"}]}
    summary = await manager.persist_compaction_result(KEY, "so far", [shortened], compaction_id="c-1")
    assert summary is not None
    (entry,) = await manager.get_transcript(KEY)
    assert (entry.role, entry.content, entry.token_count) == ("assistant", "in short", 2)
    assert entry.tool_calls == [{"id": "c-1"}]
    assert entry.session_id == (await node(manager)).session_id
    assert entry.message_id not in {old.message_id for old in entries}
    assert await manager.get_canonical_transcript(KEY) == [*entries[:3], entry]
    assert await manager.get_compaction_preimage(summary) == entries[:3]
    assert (summary.removed_count, summary.kept_count) == (3, 1)
    assert b"message 3" in logged(manager)


async def test_a_replacement_between_kept_entries_stands_in_its_place(manager: SessionManager) -> None:
    entries = await chat(manager, 4)
    kept: list[Any] = [entries[1], {"role": "user", "content": "other"}, entries[3].model_dump()]
    await manager.persist_compaction_result(KEY, "so far", kept)
    assert await said(manager) == ["message 1", "other", "message 3"]
    live = await manager.get_transcript(KEY)
    assert [live[0], live[2]] == [entries[1], entries[3]]
    assert [entry.content for entry in await manager.get_canonical_transcript(KEY)] == [
        "message 0",
        "message 1",
        "other",
        "message 3",
    ]


async def test_the_same_content_in_another_role_is_another_entry(manager: SessionManager) -> None:
    entries = await chat(manager, 1)
    await manager.persist_compaction_result(KEY, "so far", [{"role": "system", "content": "message 0"}])
    (entry,) = await manager.get_transcript(KEY)
    assert entry.role == "system"
    assert entry.message_id != entries[0].message_id


async def test_keeping_nothing_archives_everything(manager: SessionManager) -> None:
    entries = await chat(manager, 3)
    assert await manager.persist_compaction_result(KEY, "all of it", [])
    assert await said(manager) == []
    assert await manager.get_canonical_transcript(KEY) == entries


async def test_more_kept_than_live_is_refused(manager: SessionManager) -> None:
    await chat(manager, 1)
    before = await everything(manager)
    kept = [{"role": "user", "content": "a"}, {"role": "user", "content": "message 0"}]
    with pytest.raises(ValueError, match="2 entries cannot be kept of the 1"):
        await manager.persist_compaction_result(KEY, "summary", kept)
    assert await everything(manager) == before


@pytest.mark.parametrize("summary", ["", "  \n"])
async def test_an_empty_summary_changes_nothing(manager: SessionManager, summary: str) -> None:
    await chat(manager, 2)
    before = await everything(manager)
    assert await manager.persist_compaction_result(KEY, summary, []) is None
    assert await everything(manager) == before


async def test_a_missing_session_changes_nothing(manager: SessionManager) -> None:
    assert await manager.persist_compaction_result("agent:no:one", "summary", []) is None
    assert await manager.get_session("agent:no:one") is None


class Racing:
    """A store to which something happens between the reading and the writing of a compaction."""

    def __init__(self, storage: SessionStorage, meanwhile: Callable[[], Awaitable[object]]) -> None:
        self._storage = storage
        self._meanwhile = meanwhile

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    async def snapshot(self, session_key: str) -> Any:
        snapshot = await self._storage.snapshot(session_key)
        await self._meanwhile()
        return snapshot


def racing(manager: SessionManager, meanwhile: Callable[[], Awaitable[object]]) -> SessionManager:
    return SessionManager(Racing(manager.storage, meanwhile))  # type: ignore[arg-type]


async def test_a_message_that_comes_while_the_result_is_stored_survives_as_it_is(manager: SessionManager) -> None:
    await chat(manager, 3)
    other = racing(manager, lambda: manager.append_message(KEY, "user", "late", token_count=7))
    assert await other.persist_compaction_result(KEY, "so far", [{"role": "user", "content": "in short"}])
    assert await said(manager) == ["in short", "late"]
    assert (await manager.get_transcript(KEY))[-1].token_count == 7


async def test_an_edit_while_the_result_is_stored_refuses_it(manager: SessionManager) -> None:
    entries = await chat(manager, 3)
    other = racing(manager, lambda: manager.remove_message(KEY, entries[0].message_id))
    with pytest.raises(StalePreimageError):
        await other.persist_compaction_result(KEY, "so far", [])
    assert await said(manager) == ["message 1", "message 2"]


async def test_a_deletion_while_the_result_is_stored_changes_nothing(manager: SessionManager) -> None:
    await chat(manager, 3)
    other = racing(manager, lambda: manager.storage.delete_session(KEY))
    assert await other.persist_compaction_result(KEY, "so far", []) is None
    assert await manager.get_session(KEY) is None
