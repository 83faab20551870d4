"""What is said of the messages that go: to a summarizer, without one, and as a structured payload."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from squilla_files.dialogue import Message, ToolCall
from squilla_files.facts import FactKind
from squilla_files.obligations import Coverage
from squilla_files.tokens import TokenEstimator, as_text

MAX_CARRIED_FORWARD: Final = 32
PAYLOAD_VERSION: Final = 1
LINE_CHARACTERS: Final = 200

_SHORT_CHARACTERS: Final = 1200
_HEAD_CHARACTERS: Final = 400
_TAIL_CHARACTERS: Final = 200
_SHORTEST_LINE: Final = 24

_TASK: Final = (
    "Summarize this part of a conversation between a user and an assistant, so that the work goes on without it. Keep "
    "the user's goals, constraints and preferences, decisions and their reasons, what was done and must not be "
    "repeated, results of tools, failures, files, open questions and the next step. Long tool texts are described "
    "only; do not guess what they held."
)
_KEEP_IDENTIFIERS: Final = (
    "Repeat identifiers, paths, commands, numbers and names exactly as they stand; never shorten or rephrase them."
)

# The order in which a payload is rendered, and the heading of each part.
_SECTIONS: Final = (
    ("user_goal", "User goal"),
    ("current_status", "Current status"),
    ("next_action", "Next action"),
    ("completed_steps", "Completed steps"),
    ("open_steps", "Open steps"),
    ("files_and_artifacts", "Files and artifacts"),
    ("tool_results_to_remember", "Tool results to remember"),
    ("decisions_and_rationale", "Decisions and rationale"),
    ("known_failures", "Known failures"),
    ("important_identifiers", "Important identifiers"),
    ("constraints_and_preferences", "Constraints and preferences"),
    ("do_not_repeat", "Do not repeat"),
    ("unresolved_questions", "Unresolved questions"),
    ("critical_carry_forward", "Must not be lost"),
)


def summarizer_instructions(part: int, parts: int, *, keep_identifiers: bool, custom: str) -> str:
    """Return what a summarizer is told about part *part* (from 1) of *parts*."""
    lines = [_TASK, f"This is part {part} of {parts}, oldest first."]
    if keep_identifiers:
        lines.append(_KEEP_IDENTIFIERS)
    if custom:
        lines.append(custom)
    return "\n".join(lines)


def summarizer_text(messages: Iterable[Message]) -> str:
    """Return what a summarizer is shown of *messages*: all that was said, long tool inputs and outputs described."""
    return "\n\n".join(_shown_to_summarizer(message) for message in messages)


def deterministic_summary(messages: Sequence[Message], max_tokens: int, estimate: TokenEstimator) -> str:
    """Return one line for each message: its role and the first 200 characters of its text.

    The newest messages are kept while they fit *max_tokens*, and a first line says how many were left out. That line
    stands even where *max_tokens* is too small for it. Reads no more messages than fit.
    """
    notice = _left_out(len(messages))
    room = max_tokens - _cost(notice, estimate)
    lines: list[str] = []
    for message in reversed(messages):
        line = _summary_line(message)
        while not lines and len(line) > _SHORTEST_LINE and _cost(line, estimate) > room:
            # The newest message is better said in part than not at all.
            line = line[: len(line) * 3 // 4]
        cost = _cost(line, estimate)
        if cost > room:
            break
        room -= cost
        lines.append(line)
    if len(lines) < len(messages):
        lines.append(_left_out(len(messages) - len(lines)))
    return "\n".join(reversed(lines))


def structured_payload(summary: str, coverage: Coverage) -> dict[str, Any]:
    """Return the payload ``structured_v1``: the summary, and every obligation where it belongs."""
    by_kind: dict[FactKind, list[str]] = {kind: [] for kind in FactKind}
    for obligation in coverage.checked:
        by_kind[obligation.kind].append(obligation.value)
    plans = by_kind[FactKind.PLAN]
    return {
        "schema_version": PAYLOAD_VERSION,
        "user_goal": "\n".join(by_kind[FactKind.USER_GOAL]),
        "current_status": summary,
        "next_action": plans[-1] if plans else "",
        "completed_steps": by_kind[FactKind.COMMAND],
        "open_steps": plans,
        "files_and_artifacts": [
            *({"path": path} for path in by_kind[FactKind.FILE_PATH]),
            *({"artifact": artifact} for artifact in by_kind[FactKind.ARTIFACT]),
        ],
        "tool_results_to_remember": [
            *({"id": result_id} for result_id in by_kind[FactKind.TOOL_RESULT_ID]),
            *({"fact": fact} for fact in by_kind[FactKind.TOOL_RESULT_FACT]),
        ],
        "decisions_and_rationale": by_kind[FactKind.DECISION],
        "known_failures": [{"detail": detail} for detail in by_kind[FactKind.FAILURE]],
        "important_identifiers": by_kind[FactKind.IDENTIFIER],
        "constraints_and_preferences": by_kind[FactKind.CONSTRAINT],
        "do_not_repeat": by_kind[FactKind.DO_NOT_REPEAT],
        "unresolved_questions": by_kind[FactKind.QUESTION],
        "critical_carry_forward": carried_forward(coverage),
        "source_coverage": {
            "status": coverage.status,
            "checked_obligations": len(coverage.checked),
            "covered_obligations": len(coverage.checked) - len(coverage.missing),
        },
    }


def carried_forward(coverage: Coverage) -> list[str]:
    """Return the missing obligations that are carried beside the summary, as ``kind: value``, at most 32."""
    return [str(obligation) for obligation in coverage.missing[:MAX_CARRIED_FORWARD]]


def render_structured_summary(payload: Mapping[str, Any]) -> str:
    """Return *payload* as text, the same for equal payloads whatever the order of their members.

    Parts that are absent or empty are left out; members that are not known are not shown.
    """
    parts: list[str] = []
    for name, heading in _SECTIONS:
        value = payload.get(name)
        if not value:
            continue
        lines = [f"- {_rendered(item)}" for item in value] if isinstance(value, list) else [_rendered(value)]
        parts.append("\n".join([f"## {heading}", *lines]))
    return "\n\n".join(parts)


def _rendered(item: Any) -> str:
    if isinstance(item, Mapping):
        return ", ".join(f"{name}: {as_text(item[name])}" for name in sorted(item))
    return as_text(item)


def _summary_line(message: Message) -> str:
    text = " ".join(message.shown.strip()[:LINE_CHARACTERS].split())
    return f"{message.role}: {text or '(no text)'}"


def _left_out(count: int) -> str:
    return f"({count} earlier messages left out)"


def _cost(line: str, estimate: TokenEstimator) -> int:
    # One more, since an estimate rounds each line down and the whole must not come out higher than its lines.
    return estimate(line + "\n") + 1


def _shown_to_summarizer(message: Message) -> str:
    lines = [f"[{message.role}]"]
    if message.reasoning:
        lines.append(f"[reasoning left out: {len(message.reasoning)} characters]")
    if message.text:
        lines.append(message.text)
    lines += [_shown_call(call) for call in message.calls]
    for result in message.results:
        lines.append(f"[result of {result.id or 'a tool'}] {_described(result.text)}")
    return "\n".join(lines)


def _shown_call(call: ToolCall) -> str:
    return f"[calls {call.name}{f' as {call.id}' if call.id else ''}] {_described(as_text(call.arguments))}"


def _described(text: str) -> str:
    """Return short text as it is, of long text its length, digest, head and tail."""
    if len(text) <= _SHORT_CHARACTERS:
        return text
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    head, tail = text[:_HEAD_CHARACTERS], text[-_TAIL_CHARACTERS:]
    return f"({len(text)} characters, sha256 {digest[:16]}) {head} […] {tail}"
