from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from squilla_files.dialogue import Message, read_message
from squilla_files.facts import FactKind
from squilla_files.obligations import MAX_OBLIGATIONS, Coverage, Obligation, check_coverage, collect_obligations


def collected(*entries: dict[str, Any]) -> list[str]:
    return [str(obligation) for obligation in collect_obligations(read_message(entry) for entry in entries)]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def test_facts_come_oldest_first() -> None:
    assert collected(user("Goal: b"), user("Constraint: a\nGoal: c")) == [
        "user_goal: b",
        "user_constraint_or_preference: a",
        "user_goal: c",
    ]


def test_each_fact_counts_once_ignoring_case_and_white_space() -> None:
    assert collected(user("Goal: ship  it"), user("Goal: Ship it"), user("goal:\tship it ")) == ["user_goal: ship it"]


def test_white_space_is_collapsed_and_a_long_fact_cut() -> None:
    (fact,) = collect_obligations([read_message(user(f"Goal: {'word   ' * 1000}"))])
    assert fact.value.startswith("word word word")
    assert "  " not in fact.value
    assert 230 < len(fact.value) <= 240


def test_at_most_sixty_four_are_collected_and_nothing_is_read_after_them() -> None:
    def messages() -> Iterator[Message]:
        for number in range(MAX_OBLIGATIONS):
            yield Message("user", f"Goal: number {number}")
        raise AssertionError("read on")

    obligations = collect_obligations(messages())
    assert [obligation.value for obligation in obligations] == [f"number {number}" for number in range(64)]


def test_only_the_users_own_words_are_labelled_by_the_user() -> None:
    assert collected({"role": "assistant", "content": "Goal: ship it\nConstraint: none"}) == []
    assert collected({"role": "user", "content": [{"type": "tool_result", "content": "Goal: ship it\nBye"}]}) == []


@pytest.mark.parametrize("as_json", [False, True])
def test_of_a_call_the_id_the_command_and_the_paths_are_kept(as_json: bool) -> None:
    arguments = {"command": "make  all", "path": "src/a/b.py", "lines": [1, "lib/c/d.py"], "note": None}
    call = {"id": "call_1", "name": "run", "arguments": json.dumps(arguments) if as_json else arguments}
    assert collected({"role": "assistant", "content": "", "tool_calls": [call]}) == [
        "tool_result_id: call_1",
        "command: make all",
        "file_path: src/a/b.py",
        "file_path: lib/c/d.py",
    ]


@pytest.mark.parametrize("arguments", ['{"path": "src/a/b.py", "content": "cut o', "src/a/b.py", ["src/a/b.py"]])
def test_arguments_that_are_no_object_are_searched_as_text(arguments: object) -> None:
    call = {"name": "run", "arguments": arguments}
    assert collected({"role": "assistant", "content": None, "tool_calls": [call]}) == ["file_path: src/a/b.py"]


def test_of_a_result_the_id_and_the_facts_are_kept() -> None:
    assert collected({"role": "tool", "content": "42 rows", "tool_call_id": "call_1"}) == [
        "tool_result_id: call_1",
        "tool_result_fact: 42 rows",
    ]


def test_the_bytes_of_an_attachment_hold_no_facts() -> None:
    envelope = {"text": "look", "attachments": [{"name": "a.png", "data": "0a1b2c3d4e5f60718293 /x/y/z.py"}]}
    assert collected(user(json.dumps(envelope))) == ["artifact_path_or_name: a.png"]


def test_a_fact_is_looked_for_ignoring_case_and_white_space() -> None:
    goal = Obligation(FactKind.USER_GOAL, "Ship the ÄPFEL")
    assert check_coverage((goal,), "we must ship\n  the äpfel today").missing == ()
    assert check_coverage((goal,), "we must ship apples").missing == (goal,)


def test_the_status_tells_what_the_summary_holds() -> None:
    fact = Obligation(FactKind.USER_GOAL, "x")
    assert Coverage((), ()).status == "unknown"
    assert Coverage((fact,), ()).status == "pass"
    assert Coverage((fact,), (fact,)).status == "pass_with_backfill"
