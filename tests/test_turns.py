from __future__ import annotations

import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from squilla_files.dialogue import Message, ToolCall, ToolResult, read_messages
from squilla_files.turns import choose_cut, protected_messages, safe_cut, split_chunks

TALK = Message("user", "hello")


def call(*ids: str | None) -> Message:
    return Message("assistant", "", calls=tuple(ToolCall(call_id, "read", {}) for call_id in ids))


def result(call_id: str | None) -> Message:
    return Message("tool", "", results=(ToolResult(call_id, "out"),))


def test_the_tail_that_fits_half_the_window_is_kept() -> None:
    messages = [TALK] * 10
    assert choose_cut(messages, [10] * 10, 100, 0) == (5, None)
    assert choose_cut(messages, [10] * 10, 99, 0) == (6, None)


def test_the_tail_may_be_empty() -> None:
    assert choose_cut([TALK] * 3, [10, 10, 60], 100, 0) == (3, None)


def test_a_result_is_not_kept_without_the_call_it_answers() -> None:
    messages = [TALK, call("a", "b"), result("a"), TALK, result("b"), TALK]
    assert [safe_cut(messages, cut) for cut in range(7)] == [0, 1, 1, 1, 1, 5, 6]


def test_the_call_that_counts_is_the_nearest_with_the_id() -> None:
    messages = [call("a"), result("a"), TALK, call("a"), result("a")]
    assert safe_cut(messages, 4) == 3


def test_a_result_far_behind_its_call_holds_the_cut_back() -> None:
    messages = [TALK, call("a"), *[TALK] * 50, result("a"), TALK]
    assert safe_cut(messages, 40) == 1


def test_a_call_without_an_id_is_answered_by_what_follows() -> None:
    messages = [TALK, call(None), TALK, result("x"), TALK]
    assert safe_cut(messages, 2) == 1


def test_results_without_ids_answer_the_latest_run_of_calls() -> None:
    messages = [call(None), result(None), TALK, call(None), call(None), result(None), result(None)]
    assert safe_cut(messages, 6) == 3
    assert safe_cut(messages, 4) == 3
    assert safe_cut(messages, 2) == 2


@pytest.mark.parametrize("text", ["[tool_call: read]", "On it. [Used tool: read]"])
def test_calls_and_results_recorded_as_text_stay_together(text: str) -> None:
    entries: list[dict[str, Any]] = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": text},
        {"role": "user", "content": "and?"},
        {"role": "user", "content": "[Tool result read]: out"},
    ]
    assert safe_cut(read_messages(entries), 3) == 1


def test_what_is_kept_never_begins_with_a_result() -> None:
    messages = [TALK, TALK, result("nobody"), result(None), TALK]
    assert safe_cut(messages, 3) == 1


def test_a_stray_result_inside_the_tail_holds_nothing_back() -> None:
    messages = [TALK, call("a"), result("a"), *[TALK] * 5, result("nobody"), TALK]
    assert safe_cut(messages, 5) == 5


@pytest.mark.parametrize("cut", [-5, 0])
def test_a_cut_before_the_beginning_is_the_beginning(cut: int) -> None:
    assert safe_cut([TALK, TALK], cut) == 0
    assert safe_cut([], cut) == 0


def test_without_a_place_to_cut_there_is_no_safe_turn_boundary() -> None:
    messages = [call("a"), result("a"), result("a")]
    assert choose_cut(messages, [80, 20, 20], 100, 0) == (0, "no_safe_turn_boundary")


def test_protected_messages_stay_though_they_do_not_fit() -> None:
    assert choose_cut([TALK] * 10, [100] * 10, 100, 4) == (6, None)


def test_nothing_goes_where_the_protected_tail_is_everything() -> None:
    assert choose_cut([TALK] * 4, [100] * 4, 100, 4) == (0, "protected_tail_exhausts_compaction_window")


def test_nothing_goes_where_protection_and_a_call_together_hold_everything() -> None:
    messages = [call("a"), result("a"), TALK, TALK]
    assert choose_cut(messages, [10, 10, 100, 10], 100, 3) == (0, "protected_tail_exhausts_compaction_window")


@pytest.mark.parametrize(
    ("profile", "configured", "count"),
    [("conversation", 0, 0), ("coding", 0, 12), ("research", 0, 12), ("support", 0, 12), ("coding", 3, 3), ("x", 5, 5)],
)
def test_profiles_of_work_protect_the_last_twelve(profile: str, configured: int, count: int) -> None:
    assert protected_messages(profile, configured) == count


def test_chunks_hold_their_share_of_the_tokens() -> None:
    assert split_chunks([10] * 10, 0.2) == [slice(0, 2), slice(2, 4), slice(4, 6), slice(6, 8), slice(8, 10)]
    assert split_chunks([100, 1, 1, 1, 1], 0.5) == [slice(0, 1), slice(1, 5)]


@given(st.lists(st.integers(1, 500), max_size=60), st.floats(0.05, 1))
@settings(max_examples=60)
def test_chunks_are_everything_in_order_and_no_more_than_the_ratio_allows(tokens: list[int], ratio: float) -> None:
    chunks = split_chunks(tokens, ratio)
    assert [index for chunk in chunks for index in range(len(tokens))[chunk]] == list(range(len(tokens)))
    assert len(chunks) <= -(-1 // ratio)


moves = st.lists(st.sampled_from([TALK, call("a"), call("b"), call(None), result("a"), result("b")]), max_size=30)


@given(moves, st.integers(0, 30))
@settings(max_examples=100)
def test_no_cut_parts_a_result_from_its_call(messages: list[Message], wanted: int) -> None:
    cut = safe_cut(messages, wanted)
    assert 0 <= cut <= min(wanted, len(messages))
    seen: dict[str, int] = {}
    for index, message in enumerate(messages):
        for answer in message.results:
            assert not (index >= cut > seen.get(answer.id or "", index))
        seen.update((made.id, index) for made in message.calls if made.id)


def steps_of(messages: list[Message]) -> int:
    steps = 0

    def count(*_: object) -> None:
        nonlocal steps
        steps += 1

    sys.setprofile(count)
    try:
        safe_cut(messages, len(messages) - 1)
    finally:
        sys.setprofile(None)
    return steps


def test_the_search_for_a_cut_grows_with_the_transcript_not_with_its_square() -> None:
    def chained(count: int) -> list[Message]:
        return [call("first"), *[Message("tool", "", (ToolCall("x", "y", {}),), (ToolResult("first", ""),))] * count]

    assert steps_of(chained(2000)) < 2.2 * steps_of(chained(1000))
