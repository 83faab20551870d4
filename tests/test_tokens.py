from __future__ import annotations

import json

import pytest

from squilla_files.tokens import as_text, entry_tokens, estimate_tokens


@pytest.mark.parametrize(("text", "tokens"), [("", 1), ("abc", 1), ("abcd", 1), ("abcdefgh", 2), ("字" * 40, 10)])
def test_an_estimate_is_a_quarter_of_the_characters_and_at_least_one(text: str, tokens: int) -> None:
    assert estimate_tokens(text) == tokens


def test_a_recorded_count_stands_for_the_content() -> None:
    assert entry_tokens({"role": "user", "content": "x" * 4000, "token_count": 7}) == 7


@pytest.mark.parametrize("count", [None, 0, -3, "12"])
def test_without_a_usable_count_the_content_is_estimated(count: object) -> None:
    assert entry_tokens({"role": "user", "content": "x" * 400, "token_count": count}) == 100


def test_an_entry_without_content_weighs_one() -> None:
    assert entry_tokens({"role": "assistant", "content": None}) == 1
    assert entry_tokens({}) == 1


def test_an_understated_count_hides_no_tool_call() -> None:
    calls = [{"id": "c1", "type": "function", "function": {"name": "write", "arguments": "x" * 8000}}]
    expected = 1 + len(json.dumps(calls, ensure_ascii=False)) // 4
    assert entry_tokens({"role": "assistant", "content": "", "token_count": 1, "tool_calls": calls}) == expected


def test_the_call_id_and_the_reasoning_are_counted_on_top() -> None:
    entry = {"role": "tool", "content": "x" * 40, "tool_call_id": "i" * 40, "reasoning_content": "r" * 400}
    assert entry_tokens(entry) == 10 + 10 + 100


def test_blocks_are_counted_as_their_json() -> None:
    blocks = [{"type": "text", "text": "字" * 100}]
    assert entry_tokens({"role": "user", "content": blocks}) == len(json.dumps(blocks, ensure_ascii=False)) // 4


def test_the_estimator_can_be_replaced() -> None:
    entry = {"role": "user", "content": "one two three", "tool_call_id": "four five"}
    assert entry_tokens(entry, lambda text: len(text.split())) == 5


def test_a_value_that_json_cannot_hold_is_counted_as_its_text() -> None:
    assert as_text({"at": complex(1, 2)}) == '{"at": "(1+2j)"}'
