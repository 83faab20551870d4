from __future__ import annotations

import hashlib
import json

import pytest

from squilla_files.dialogue import Message, ToolCall, ToolResult, read_message
from squilla_files.facts import FactKind
from squilla_files.obligations import Coverage, Obligation
from squilla_files.summaries import (
    MAX_CARRIED_FORWARD,
    carried_forward,
    deterministic_summary,
    render_structured_summary,
    structured_payload,
    summarizer_instructions,
    summarizer_text,
)
from squilla_files.tokens import estimate_tokens


def by_words(text: str) -> int:
    return max(1, len(text.split()))


def test_the_deterministic_summary_says_role_and_the_first_two_hundred_characters() -> None:
    messages = [Message("user", "x" * 300), Message("assistant", "line one\n\n  line two")]
    assert deterministic_summary(messages, 1000, estimate_tokens) == (
        f"user: {'x' * 200}\nassistant: line one line two"
    )


def test_the_deterministic_summary_holds_no_calls_ids_or_reasoning() -> None:
    messages = [
        Message("assistant", "", calls=(ToolCall("call_1", "read", {"path": "secret"}),), reasoning="thought"),
        Message("tool", "", results=(ToolResult("call_1", "42 rows"),)),
    ]
    assert deterministic_summary(messages, 1000, estimate_tokens) == "assistant: (no text)\ntool: 42 rows"


@pytest.mark.parametrize("estimate", [estimate_tokens, by_words])
@pytest.mark.parametrize("max_tokens", [12, 25, 60, 300, 3000])
def test_the_deterministic_summary_stays_within_its_tokens_and_keeps_the_newest(
    estimate: type[int], max_tokens: int
) -> None:
    messages = [Message("user", f"number {number} " + "word " * 20) for number in range(200)]
    summary = deterministic_summary(messages, max_tokens, estimate)
    assert estimate(summary) <= max_tokens
    lines = summary.splitlines()
    assert lines[0] == f"({200 - len(lines) + 1} earlier messages left out)"
    numbers = [int(line.split()[2]) for line in lines[1:] if line.startswith("user: number ")]
    assert numbers == list(range(200 - len(numbers), 200))


def test_a_message_that_does_not_fit_is_said_in_part() -> None:
    summary = deterministic_summary([Message("user", "first"), Message("user", "y" * 500)], 30, estimate_tokens)
    notice, line = summary.splitlines()
    assert notice == "(1 earlier messages left out)"
    assert line.startswith("user: yyyyyyyyyyyyyyyy")


def test_the_number_left_out_stands_where_nothing_fits() -> None:
    assert deterministic_summary([Message("user", "hello")] * 3, 0, estimate_tokens) == "(3 earlier messages left out)"


def test_a_summarizer_sees_all_that_was_said() -> None:
    text = summarizer_text([Message("user", "a" * 5000), Message("assistant", "yes")])
    assert text == f"[user]\n{'a' * 5000}\n\n[assistant]\nyes"


def test_a_summarizer_sees_short_tool_texts_as_they_are() -> None:
    messages = [
        Message("assistant", "Reading.", calls=(ToolCall("c1", "read", {"path": "a"}), ToolCall(None, "ls", "-l"))),
        Message("tool", "", results=(ToolResult("c1", "out"), ToolResult(None, "none"))),
    ]
    assert summarizer_text(messages) == (
        '[assistant]\nReading.\n[calls read as c1] {"path": "a"}\n[calls ls] -l\n\n'
        "[tool]\n[result of c1] out\n[result of a tool] none"
    )


def test_a_summarizer_sees_long_tool_texts_described() -> None:
    long = "HEAD" + "\udc80middle" * 1000 + "TAIL"
    digest = hashlib.sha256(long.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    for message in (
        Message("assistant", "", calls=(ToolCall("c1", "write", long),)),
        Message("tool", "", results=(ToolResult("c1", long),)),
    ):
        text = summarizer_text([message])
        assert f"({len(long)} characters, sha256 {digest}) HEAD" in text
        assert text.endswith("TAIL")
        assert len(text) < 800


def test_a_summarizer_sees_only_the_length_of_reasoning() -> None:
    text = summarizer_text([Message("assistant", "yes", reasoning="secret" * 10)])
    assert text == "[assistant]\n[reasoning left out: 60 characters]\nyes"


def test_a_summarizer_sees_of_an_envelope_its_text_and_file_names() -> None:
    envelope = {"text": "look", "attachments": [{"name": "a.png", "data": "QUJD"}]}
    text = summarizer_text([read_message({"role": "user", "content": json.dumps(envelope)})])
    assert text == "[user]\nlook\n[attachments: a.png]"


def test_the_instructions_name_the_part_and_end_with_the_applications_own() -> None:
    told = summarizer_instructions(2, 5, keep_identifiers=True, custom="In French.")
    assert "part 2 of 5" in told
    assert told.endswith("\nIn French.")
    assert "identifiers" in told
    assert "identifiers" not in summarizer_instructions(2, 5, keep_identifiers=False, custom="")


def obligation_of_each_kind() -> tuple[Obligation, ...]:
    return tuple(Obligation(kind, f"the {kind}") for kind in FactKind)


def test_the_payload_puts_every_obligation_where_it_belongs() -> None:
    checked = (*obligation_of_each_kind(), Obligation(FactKind.PLAN, "last"), Obligation(FactKind.USER_GOAL, "more"))
    payload = structured_payload("the summary", Coverage(checked, checked[:2]))
    assert payload == {
        "schema_version": 1,
        "user_goal": "the user_goal\nmore",
        "current_status": "the summary",
        "next_action": "last",
        "completed_steps": ["the command"],
        "open_steps": ["the current_plan_or_next_action", "last"],
        "files_and_artifacts": [{"path": "the file_path"}, {"artifact": "the artifact_path_or_name"}],
        "tool_results_to_remember": [{"id": "the tool_result_id"}, {"fact": "the tool_result_fact"}],
        "decisions_and_rationale": ["the decision_or_rationale"],
        "known_failures": [{"detail": "the failed_command_or_error"}],
        "important_identifiers": ["the important_identifier"],
        "constraints_and_preferences": ["the user_constraint_or_preference"],
        "do_not_repeat": ["the do_not_repeat_action"],
        "unresolved_questions": ["the unresolved_question"],
        "critical_carry_forward": [
            "user_goal: the user_goal",
            "user_constraint_or_preference: the user_constraint_or_preference",
        ],
        "source_coverage": {"status": "pass_with_backfill", "checked_obligations": 15, "covered_obligations": 13},
    }
    assert json.loads(json.dumps(payload)) == payload


def test_a_payload_without_obligations_has_all_its_members() -> None:
    payload = structured_payload("the summary", Coverage((), ()))
    assert payload.keys() == structured_payload("", Coverage(obligation_of_each_kind(), ())).keys()
    assert payload["source_coverage"] == {"status": "unknown", "checked_obligations": 0, "covered_obligations": 0}


def test_at_most_thirty_two_are_carried_forward() -> None:
    missing = tuple(Obligation(FactKind.USER_GOAL, str(number)) for number in range(40))
    assert carried_forward(Coverage(missing, missing)) == [f"user_goal: {number}" for number in range(32)]
    assert MAX_CARRIED_FORWARD == 32


def test_a_rendered_payload_is_the_same_whatever_the_order_of_its_members() -> None:
    checked = obligation_of_each_kind()
    payload = structured_payload("the summary", Coverage(checked, checked[:1]))
    text = render_structured_summary(payload)
    assert text == render_structured_summary(dict(reversed(payload.items())))
    assert text.startswith("## User goal\nthe user_goal\n\n## Current status\nthe summary\n\n## Next action\n")
    assert "## Files and artifacts\n- path: the file_path\n- artifact: the artifact_path_or_name\n" in text
    assert text.endswith("## Must not be lost\n- user_goal: the user_goal")
    for obligation in checked:
        assert obligation.value in text


def test_a_payload_of_another_program_is_rendered_as_far_as_it_is_known() -> None:
    payload = {"current_status": "fine", "open_steps": [], "unknown": "x", "known_failures": [{"b": 1, "a": [2]}, None]}
    assert render_structured_summary(payload) == "## Current status\nfine\n\n## Known failures\n- a: [2], b: 1\n- "
    assert render_structured_summary({}) == ""
