from __future__ import annotations

import asyncio
import copy
import json
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from squilla_files.compaction import (
    CompactionConfig,
    CompactionRequest,
    CompactionResult,
    compact_context,
    render_structured_summary,
)
from squilla_files.dialogue import read_messages
from squilla_files.tokens import entry_tokens, estimate_tokens

Entry = dict[str, Any]
TRANSCRIPTS = Path(__file__).parents[2] / "shared" / "data"


def talk(count: int, tokens: int = 100, words: str = "") -> list[Entry]:
    roles = ("user", "assistant")
    return [
        {"role": roles[number % 2], "content": f"message {number} {words}", "token_count": tokens}
        for number in range(count)
    ]


async def compact(
    entries: list[Entry], window: int, instructions: str | None = None, **config: Any
) -> CompactionResult:
    return await compact_context(
        CompactionRequest(
            session_id="session-1",
            entries=entries,
            context_window_tokens=window,
            config=CompactionConfig(**config),
            custom_instructions=instructions,
        )
    )


def saying(*answers: Any) -> tuple[Callable[[str, str], Awaitable[str]], list[tuple[str, str]]]:
    """A summarizer that gives *answers* one after the other, the last one again and again, and what it was asked."""
    asked: list[tuple[str, str]] = []

    async def summarizer(text: str, instructions: str) -> str:
        answer = answers[min(len(asked), len(answers) - 1)]
        asked.append((text, instructions))
        if isinstance(answer, BaseException):
            raise answer
        return answer  # type: ignore[no-any-return]

    return summarizer, asked


def assert_nothing_done(result: CompactionResult, entries: list[Entry], reason: str) -> None:
    assert result.skip_reason == reason
    assert result.summary_source == "skipped"
    assert result.summary == ""
    assert result.summary_payload is None
    assert result.summary_format == "text"
    assert result.kept_entries == entries
    assert (result.removed_count, result.chunks_processed) == (0, 0)
    assert result.tokens_before == result.tokens_after == sum(map(entry_tokens, entries))


# When there is nothing to do


async def test_without_entries_there_is_nothing_to_do() -> None:
    result = await compact([], 100)
    assert_nothing_done(result, [], "no_entries")
    assert result.remaining_budget_tokens == 100


async def test_what_fits_with_the_safety_margin_is_left_alone() -> None:
    assert_nothing_done(await compact(talk(10), 1200), talk(10), "within_compaction_budget")
    assert (await compact(talk(10), 1199)).removed_count > 0
    assert (await compact(talk(10), 1199, safety_margin=1.0)).skip_reason == "within_compaction_budget"


async def test_without_a_safe_boundary_nothing_goes() -> None:
    entries = [
        {"role": "assistant", "content": "x" * 4000, "tool_calls": [{"id": "c1", "name": "read", "arguments": {}}]},
        {"role": "tool", "content": "out", "tool_call_id": "c1"},
    ]
    assert_nothing_done(await compact(entries, 500), entries, "no_safe_turn_boundary")


async def test_a_protected_tail_that_is_everything_stops_the_compaction() -> None:
    entries = talk(12)
    reason = "protected_tail_exhausts_compaction_window"
    assert_nothing_done(await compact(entries, 500, compaction_profile="coding"), entries, reason)
    assert_nothing_done(await compact(entries, 500, protected_recent_messages=12), entries, reason)


async def test_an_understated_count_does_not_hide_a_large_tool_call() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "write", "arguments": "x" * 8000}}
    entries: list[Entry] = [
        {"role": "user", "content": "go", "token_count": 1},
        {"role": "assistant", "content": "", "token_count": 1, "tool_calls": [call]},
    ]
    result = await compact(entries, 1000)
    assert result.skip_reason is None
    assert result.tokens_before > 2000
    assert result.removed_count == 2


# What stays


async def test_the_tail_that_fits_half_the_window_stays_as_it_was_given() -> None:
    entries = talk(20)
    untouched = copy.deepcopy(entries)
    result = await compact(entries, 1000)
    assert result.removed_count == 15
    assert result.kept_entries == entries[15:]
    assert entries == untouched


async def test_the_tail_may_be_empty() -> None:
    entries = [*talk(3), {"role": "user", "content": "x", "token_count": 900}]
    result = await compact(entries, 1000)
    assert (result.removed_count, result.kept_entries) == (4, [])


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        (
            {"tool_calls": [{"id": "c1", "type": "function", "function": {"name": "read", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "c1"},
        ),
        ({"tool_calls": [{"id": "c1", "name": "read", "input": {}}]}, {"role": "user", "tool_call_id": "c1"}),
        ({"content": "[tool_call: read]"}, {"content": "[Tool result read] out"}),
        ({"content": "[Used tool: read]"}, {"role": "tool"}),
    ],
)
async def test_a_kept_result_keeps_its_call(call: Entry, answer: Entry) -> None:
    entries = talk(20)
    entries[12].update(role="assistant", **call)
    entries[16].update(answer)
    result = await compact(entries, 1000)
    assert result.kept_entries == entries[12:]


@pytest.mark.parametrize("profile", ["coding", "research", "support"])
async def test_profiles_of_work_protect_the_last_twelve(profile: str) -> None:
    assert (await compact(talk(20), 1000, compaction_profile=profile)).removed_count == 8


async def test_the_number_of_protected_messages_can_be_said() -> None:
    result = await compact(talk(20), 1000, compaction_profile="coding", protected_recent_messages=9)
    assert result.removed_count == 11
    assert (await compact(talk(20), 1000, compaction_profile="conversation")).removed_count == 15


# Chunks and summarizers


async def test_the_chunks_are_summarized_in_order_and_joined_the_latest_last() -> None:
    summarizer, asked = saying("one", "two", "three", "four", "five")
    result = await compact(talk(20), 1000, summarizer=summarizer)
    assert result.summary == "one\n\ntwo\n\nthree\n\nfour\n\nfive"
    assert (result.chunks_processed, result.summary_source, result.summary_format) == (5, "llm", "structured_v1")
    assert [text.count("message") for text, _ in asked] == [3] * 5
    assert asked[0][0].startswith("[user]\nmessage 0")
    assert "part 2 of 5" in asked[1][1]


@pytest.mark.parametrize(
    ("config", "chunks"),
    [
        ({}, 5),
        ({"default_parts": 1}, 3),
        ({"default_parts": 8}, 7),
        ({"min_chunk_ratio": 0.5}, 2),
        ({"min_chunk_ratio": 1, "base_chunk_ratio": 1}, 1),
    ],
)
async def test_the_ratios_say_how_much_a_chunk_holds(config: dict[str, Any], chunks: int) -> None:
    assert (await compact(talk(205, tokens=10), 100, **config)).chunks_processed == chunks


@pytest.mark.parametrize("failure", [RuntimeError("no service"), "", "  \n", None, 5, TimeoutError()])
async def test_where_the_summarizer_gives_nothing_a_deterministic_summary_is_made(failure: Any) -> None:
    summarizer, asked = saying(failure)
    result = await compact(talk(20), 1000, summarizer=summarizer)
    assert len(asked) == 5
    assert result.summary_source == "fallback"
    assert result.summary == (await compact(talk(20), 1000)).summary
    assert "message 14" in result.summary


async def test_without_a_summarizer_the_summary_is_deterministic() -> None:
    result = await compact(talk(20), 1000)
    assert (result.summary_source, result.chunks_processed) == ("fallback", 5)
    assert result.summary.splitlines()[-1] == "user: message 14"


async def test_a_failure_of_the_summarizer_is_logged_with_its_cause(caplog: pytest.LogCaptureFixture) -> None:
    summarizer, _ = saying(RuntimeError("no service"), "fine")
    with caplog.at_level(logging.WARNING, "squilla_files.compaction"):
        result = await compact(talk(20), 1000, summarizer=summarizer)
    (record,) = caplog.records
    assert "part 1 of 5 of session session-1" in record.getMessage()
    assert record.exc_info is not None
    assert str(record.exc_info[1]) == "no service"
    assert result.summary_source == "mixed"


async def test_deterministic_parts_stand_where_their_chunks_stood() -> None:
    summarizer, _ = saying("one", "", "", "four", "")
    result = await compact(talk(20), 1000, summarizer=summarizer)
    assert result.summary.split("\n\n") == [
        "one",
        "\n".join(f"{'assistant' if number % 2 else 'user'}: message {number}" for number in range(3, 9)),
        "four",
        "user: message 12\nassistant: message 13\nuser: message 14",
    ]


async def test_a_summarizer_that_takes_too_long_is_cancelled() -> None:
    ended: list[str] = []

    async def summarizer(text: str, instructions: str) -> str:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(text)
        return "never"

    result = await compact(talk(20), 1000, summarizer=summarizer, timeout_seconds=0.001)
    assert (len(ended), result.summary_source) == (5, "fallback")


async def test_a_cancelled_compaction_is_cancelled() -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    async def summarizer(text: str, instructions: str) -> str:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return "never"

    task = asyncio.create_task(compact(talk(20), 1000, summarizer=summarizer))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()


async def test_a_summarizer_sees_long_tool_texts_described_and_no_reasoning() -> None:
    call = {"id": "c1", "name": "write", "arguments": {"content": "i" * 5000}}
    entries = [
        {"role": "assistant", "content": "Writing.", "tool_calls": [call], "reasoning_content": "secret thought"},
        {"role": "tool", "content": "o" * 5000, "tool_call_id": "c1"},
        {"role": "user", "content": json.dumps({"text": "look", "attachments": [{"name": "a.png", "data": "QUJD"}]})},
        *talk(4),
    ]
    summarizer, asked = saying("short")
    await compact(entries, 600, summarizer=summarizer)
    shown = "\n".join(text for text, _ in asked)
    assert "i" * 1000 not in shown
    assert "o" * 1000 not in shown
    assert "(5000 characters, sha256 " in shown
    assert "secret thought" not in shown
    assert "[reasoning left out: 14 characters]" in shown
    assert "look\n[attachments: a.png]" in shown


# Instructions


async def test_a_previous_summary_goes_in_front_and_not_to_the_summarizer() -> None:
    summarizer, asked = saying("new")
    result = await compact(
        talk(20), 1000, "__prev_summary__: what was before \nIn French.", summarizer=summarizer, default_parts=1
    )
    assert result.summary == "what was before\n\nnew\n\nnew\n\nnew"
    assert all(told.endswith("\nIn French.") and "what was before" not in told for _, told in asked)


async def test_other_instructions_are_limited_to_two_thousand_characters() -> None:
    summarizer, asked = saying("new")
    await compact(talk(20), 1000, "x" * 2000, summarizer=summarizer)
    assert asked[0][1].endswith("x" * 2000)
    with pytest.raises(ValueError, match="2000"):
        await compact([], 1000, "x" * 2001)
    with pytest.raises(ValueError, match="2000"):
        await compact(talk(20), 1000, "__prev_summary__:short\n" + "x" * 2001)


async def test_a_previous_summary_is_not_limited() -> None:
    result = await compact(talk(20), 1000, "__prev_summary__:" + "y" * 2500)
    assert result.summary.startswith("y" * 2500 + "\n\n")


async def test_the_identifier_policy_is_told_to_the_summarizer() -> None:
    strict, asked_strictly = saying("new")
    loose, asked_loosely = saying("new")
    await compact(talk(20), 1000, summarizer=strict)
    await compact(talk(20), 1000, summarizer=loose, identifier_policy="off")
    assert "identifiers" in asked_strictly[0][1]
    assert "identifiers" not in asked_loosely[0][1]


# The deterministic summary


@pytest.mark.parametrize("window", [100, 400, 1000, 4000])
async def test_the_deterministic_summary_stays_within_a_quarter_of_the_window(window: int) -> None:
    result = await compact(talk(200, words="word " * 50), window)
    assert estimate_tokens(result.summary) <= window // 4
    assert result.summary.startswith("(")
    assert f"message {result.removed_count - 1} word" in result.summary


async def test_deterministic_parts_between_others_share_that_quarter() -> None:
    summarizer, _ = saying("", "x", "", "x", "")
    result = await compact(talk(200, words="word " * 50), 1000, summarizer=summarizer)
    assert result.summary_source == "mixed"
    assert estimate_tokens(result.summary) <= 250 + 20


# Obligations and coverage


def with_facts() -> list[Entry]:
    entries = talk(20, words="word " * 60)
    entries[0]["content"] = f"{'word ' * 60}\nGoal: ship by Friday\n约束：不能联网"
    entries[1]["content"] = f"{'word ' * 300}srv/late/file.py"
    return entries


FACTS = ["user_goal: ship by Friday", "user_constraint_or_preference: 不能联网", "file_path: srv/late/file.py"]


async def test_a_summary_that_holds_every_fact_passes() -> None:
    summarizer, _ = saying("SHIP by\n Friday, 不能联网, SRV/late/file.py", "more")
    result = await compact(with_facts(), 1000, summarizer=summarizer)
    assert (result.coverage_status, result.missing_obligations, result.critical_carry_forward) == ("pass", [], [])


async def test_facts_that_the_summary_lacks_are_carried_in_the_payload() -> None:
    summarizer, _ = saying("Ship by Friday.")
    result = await compact(with_facts(), 1000, summarizer=summarizer)
    assert result.coverage_status == "pass_with_backfill"
    assert result.missing_obligations == result.critical_carry_forward == FACTS[1:]
    assert result.summary_payload is not None
    assert result.summary_payload["critical_carry_forward"] == FACTS[1:]
    assert result.summary_payload["files_and_artifacts"] == [{"path": "srv/late/file.py"}]
    assert result.summary_payload["user_goal"] == "ship by Friday"
    assert result.summary_payload["source_coverage"] == {
        "status": "pass_with_backfill",
        "checked_obligations": 3,
        "covered_obligations": 1,
    }
    assert "不能联网" in render_structured_summary(result.summary_payload)


async def test_without_any_fact_the_coverage_is_unknown() -> None:
    assert (await compact(talk(20), 1000)).coverage_status == "unknown"


async def test_facts_of_what_stays_are_no_obligations() -> None:
    entries = talk(20)
    entries[18]["content"] = "Goal: ship by Friday"
    assert (await compact(entries, 1000)).coverage_status == "unknown"


async def test_a_previous_summary_may_hold_the_facts() -> None:
    summarizer, _ = saying("new")
    previous = "__prev_summary__:ship by Friday, 不能联网, srv/late/file.py"
    assert (await compact(with_facts(), 1000, previous, summarizer=summarizer)).coverage_status == "pass"


async def test_at_most_thirty_two_facts_are_carried_and_all_missing_ones_listed() -> None:
    entries = talk(20)
    entries[0]["content"] = "\n".join(f"Goal: aim {number}." for number in range(100))
    summarizer, _ = saying("new")
    result = await compact(entries, 1000, summarizer=summarizer)
    assert result.missing_obligations == [f"user_goal: aim {number}." for number in range(64)]
    assert result.critical_carry_forward == result.missing_obligations[:32]


async def test_with_coverage_blocking_a_missing_fact_stops_the_compaction() -> None:
    summarizer, _ = saying("Ship by Friday.")
    result = await compact(with_facts(), 1000, summarizer=summarizer, coverage_blocking=True)
    assert_nothing_done(result, with_facts(), "coverage_blocked")
    assert result.coverage_status == "fail_blocked"
    assert result.missing_obligations == FACTS[1:]


async def test_with_coverage_blocking_a_complete_summary_goes_through() -> None:
    summarizer, _ = saying("ship by Friday, 不能联网, srv/late/file.py")
    result = await compact(with_facts(), 1000, summarizer=summarizer, coverage_blocking=True)
    assert (result.coverage_status, result.skip_reason) == ("pass", None)


# The outcome


async def test_a_compaction_that_would_not_shrink_the_transcript_is_not_made() -> None:
    summarizer, _ = saying("s" * 1200)
    result = await compact(talk(20), 1000, summarizer=summarizer)
    assert_nothing_done(result, talk(20), "quality_gate_failed")
    assert result.quality_report is not None
    assert result.quality_report["tokens_after"] == 500 + result.quality_report["summary_tokens"]
    assert result.quality_report["tokens_after"] >= result.quality_report["tokens_before"] == 2000


async def test_a_summary_exactly_as_long_as_what_goes_does_not_shrink() -> None:
    too_long, _ = saying("s" * 6000)
    just_right, _ = saying("s" * 5996)
    single = {"min_chunk_ratio": 1.0, "base_chunk_ratio": 1.0}
    assert (await compact(talk(20), 1000, summarizer=too_long, **single)).skip_reason == "quality_gate_failed"
    assert (await compact(talk(20), 1000, summarizer=just_right, **single)).skip_reason is None


async def test_the_tokens_after_are_those_of_the_summary_and_of_what_stays() -> None:
    summarizer, _ = saying("s" * 40)
    result = await compact(talk(20), 1000, summarizer=summarizer)
    assert result.tokens_before == 2000
    assert result.tokens_after == 500 + estimate_tokens(result.summary)
    assert result.remaining_budget_tokens == 1000 - result.tokens_after
    assert result.quality_report == {
        "tokens_before": 2000,
        "tokens_after": result.tokens_after,
        "summary_tokens": estimate_tokens(result.summary),
        "checked_obligations": 0,
        "covered_obligations": 0,
    }


async def test_the_remaining_budget_is_never_negative() -> None:
    skipped = await compact(talk(12), 500, protected_recent_messages=12)
    made = await compact(talk(20), 500, protected_recent_messages=12)
    assert (skipped.removed_count, made.removed_count) == (0, 8)
    assert skipped.remaining_budget_tokens == made.remaining_budget_tokens == 0


async def test_the_estimator_can_be_replaced() -> None:
    entries = [{"role": "user", "content": "one two three four"} for _ in range(10)]
    result = await compact(entries, 30, token_estimator=lambda text: max(1, len(text.split())))
    assert result.tokens_before == 40
    assert result.removed_count == 7


@pytest.mark.parametrize("window", [0, -5])
async def test_a_window_must_be_positive(window: int) -> None:
    with pytest.raises(ValueError, match="context_window_tokens"):
        await compact(talk(2), window)


@pytest.mark.parametrize(
    "config",
    [
        {"base_chunk_ratio": 0},
        {"min_chunk_ratio": 1.5},
        {"safety_margin": 0},
        {"default_parts": 0},
        {"timeout_seconds": -1},
        {"protected_recent_messages": -1},
    ],
)
def test_a_configuration_that_makes_no_sense_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(config))):
        CompactionConfig(**config)


def test_the_defaults_are_those_that_programs_rely_on() -> None:
    config = CompactionConfig()
    assert (config.base_chunk_ratio, config.min_chunk_ratio, config.safety_margin) == (0.4, 0.15, 1.2)
    assert (config.default_parts, config.identifier_policy, config.coverage_blocking) == (2, "strict", False)
    assert (config.compaction_profile, config.protected_recent_messages) == ("conversation", 0)
    assert (config.timeout_seconds, config.summarizer) == (90.0, None)


# Transcripts of real programs


def recorded(path: Path) -> list[Entry]:
    entries: list[Entry] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        message = record.get("message") if isinstance(record, dict) else None
        if isinstance(message, dict):
            role = "tool" if message.get("role") == "toolResult" else message.get("role")
            call_id = message.get("toolCallId")
            entries.append({"role": role, "content": message.get("content"), "tool_call_id": call_id})
    return entries


@pytest.mark.skipif(not TRANSCRIPTS.is_dir(), reason="the recorded transcripts are not here")
@pytest.mark.parametrize("window", [300, 3000, 30_000])
async def test_recorded_transcripts_shrink_and_part_no_result_from_its_call(window: int) -> None:
    for path in sorted(TRANSCRIPTS.glob("*.jsonl")):
        entries = recorded(path)
        assert entries, path.name
        result = await compact(entries, window)
        assert result.removed_count + len(result.kept_entries) == len(entries)
        if result.skip_reason:
            continue
        assert result.tokens_after < result.tokens_before
        assert estimate_tokens(result.summary) <= window // 4
        removed = read_messages(entries[: result.removed_count])
        calls = {call.id for message in removed for call in message.calls if call.id}
        assert not calls & {answer.id for message in read_messages(result.kept_entries) for answer in message.results}
        json.dumps(result.summary_payload)


@pytest.mark.parametrize("summarizer", ["gpt-4", 5, object()])
def test_a_summarizer_that_cannot_be_called_is_refused_at_once(summarizer: object) -> None:
    with pytest.raises(TypeError, match="summarizer must be async"):
        CompactionConfig(summarizer=summarizer)  # type: ignore[arg-type]


async def test_a_summarizer_that_is_not_async_is_taken_at_its_word() -> None:
    entries = [{"role": "user", "content": "words " * 40} for _ in range(12)]
    config = CompactionConfig(summarizer=lambda text, instructions: "short")  # type: ignore[arg-type, return-value]
    request = CompactionRequest(session_id="s", entries=entries, context_window_tokens=200, config=config)
    result = await compact_context(request)
    assert (result.summary_source, set(result.summary.split())) == ("llm", {"short"})


@pytest.mark.parametrize(("name", "value"), [("config", {"summarizer": None}), ("context_window_tokens", "900")])
async def test_an_argument_of_another_type_is_named(name: str, value: object) -> None:
    given = {"config": CompactionConfig(), "context_window_tokens": 900, name: value}
    request = CompactionRequest(session_id="s", entries=[{"role": "user", "content": "hi"}], **given)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=name):
        await compact_context(request)
