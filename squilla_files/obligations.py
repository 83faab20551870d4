"""The facts that must survive a compaction, and whether a summary holds them.

They are collected before anything is removed, from what is to be removed, and then looked for in the summary. What the
summary lacks is carried beside it, so that no summarizer can lose it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from squilla_files.dialogue import Message, ToolCall
from squilla_files.facts import FACT_CHARACTERS, FactKind, result_facts, spoken_facts, token_facts
from squilla_files.tokens import as_text

MAX_OBLIGATIONS: Final = 64
_COMMAND_ARGUMENTS: Final = ("command", "cmd", "script")


@dataclass(frozen=True, slots=True)
class Obligation:
    """One fact that must survive.

    Attributes:
        kind: what sort of fact it is.
        value: the fact, white space collapsed, at most 240 characters.
    """

    kind: FactKind
    value: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.value}"


@dataclass(frozen=True, slots=True)
class Coverage:
    """What a summary holds of the obligations.

    Attributes:
        checked: all of them, oldest first.
        missing: those that the summary lacks, oldest first.
    """

    checked: tuple[Obligation, ...]
    missing: tuple[Obligation, ...]

    @property
    def status(self) -> str:
        """`unknown` without obligations, `pass` where none is missing, else `pass_with_backfill`."""
        if not self.checked:
            return "unknown"
        return "pass_with_backfill" if self.missing else "pass"


def collect_obligations(messages: Iterable[Message], limit: int = MAX_OBLIGATIONS) -> tuple[Obligation, ...]:
    """Return the facts in *messages*, oldest first, each once, at most *limit*; what comes after is not even read."""
    found: dict[tuple[FactKind, str], Obligation] = {}
    for message in messages:
        for kind, raw in _facts_of(message):
            value = _collapse(raw)
            if value:
                found.setdefault((kind, value.casefold()), Obligation(kind, value))
            if len(found) >= limit:
                return tuple(found.values())
    return tuple(found.values())


def check_coverage(obligations: tuple[Obligation, ...], summary: str) -> Coverage:
    """Look for each of *obligations* in *summary*, ignoring case and the amount of white space."""
    held = " ".join(summary.split()).casefold()
    return Coverage(obligations, tuple(fact for fact in obligations if fact.value.casefold() not in held))


def _facts_of(message: Message) -> Iterator[tuple[FactKind, str]]:
    if message.text:
        for _, kind, value in spoken_facts(message.text, by_user=message.role == "user"):
            yield kind, value
    for call in message.calls:
        yield from _facts_of_call(call)
    for result in message.results:
        if result.id:
            yield FactKind.TOOL_RESULT_ID, result.id
        for _, kind, value in result_facts(result.text):
            yield kind, value


def _facts_of_call(call: ToolCall) -> Iterator[tuple[FactKind, str]]:
    if call.id:
        yield FactKind.TOOL_RESULT_ID, call.id
    for name, value in _arguments(call.arguments).items():
        text = as_text(value)
        if name in _COMMAND_ARGUMENTS:
            yield FactKind.COMMAND, text
        for _, kind, token in token_facts(text):
            yield kind, token


def _arguments(arguments: Any) -> Mapping[str, Any]:
    """Return the arguments by name. Text that is no JSON object, as a truncated call leaves it, has no names."""
    if isinstance(arguments, str) and arguments.lstrip().startswith("{"):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return {"": arguments}
    return arguments if isinstance(arguments, Mapping) else {"": arguments}


def _collapse(text: str) -> str:
    # A fact may be the whole of a long line: only its beginning is read.
    return " ".join(text[: FACT_CHARACTERS * 4].split())[:FACT_CHARACTERS].rstrip()
