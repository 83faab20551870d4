"""Where a transcript may be cut: never between a tool's call and its result."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from squilla_files.dialogue import Message

WORK_PROFILES = frozenset({"coding", "research", "support"})
WORK_PROTECTED_MESSAGES = 12


class Cut(NamedTuple):
    """Where to cut.

    Attributes:
        first_kept: entries before it go, those from it on stay.
        skip_reason: why nothing can go, None if something does.
    """

    first_kept: int
    skip_reason: str | None


def choose_cut(messages: Sequence[Message], tokens: Sequence[int], window_tokens: int, protected: int) -> Cut:
    """Choose what stays: the tail that fits half the window, more where the rules ask for it.

    Args:
        messages: the transcript, oldest first.
        tokens: what each message weighs.
        window_tokens: the model's context window.
        protected: how many of the last messages must stay.
    """
    count = len(messages)
    fitting = _tail_start(tokens, window_tokens / 2)
    index = safe_cut(messages, min(fitting, count - protected))
    if index > 0:
        return Cut(index, None)
    if protected and (protected >= count or safe_cut(messages, fitting) > 0):
        return Cut(0, "protected_tail_exhausts_compaction_window")
    return Cut(0, "no_safe_turn_boundary")


def protected_messages(profile: str, configured: int) -> int:
    """Return how many of the last messages must stay: *configured*, or what the profile asks for where that is 0."""
    return configured or (WORK_PROTECTED_MESSAGES if profile in WORK_PROFILES else 0)


def safe_cut(messages: Sequence[Message], cut: int) -> int:
    """Return the last place, at or before *cut*, that parts no tool result from its call.

    What is kept never begins with a tool result either, even with one whose call nobody recorded. A cut at the end
    keeps nothing and is always safe. Linear in the number of messages.
    """
    count = len(messages)
    cut = min(max(cut, 0), count)
    if cut == count:
        return cut
    anchors = _call_anchors(messages)
    earliest = min(anchors[cut:])
    while cut > 0 and (earliest < cut or messages[cut].results):
        cut -= 1
        earliest = min(earliest, anchors[cut])
    return cut


def split_chunks(tokens: Sequence[int], ratio: float) -> list[slice]:
    """Split what goes into runs of at least *ratio* of its tokens each, the last one being what is left.

    Ending a chunk once it reaches its share, not before, bounds their number by ``ceil(1 / ratio)``, however unequal
    the messages are.
    """
    share = math.ceil(sum(tokens) * ratio - 1e-9)
    chunks: list[slice] = []
    start = size = 0
    for end, weight in enumerate(tokens, start=1):
        size += weight
        if size >= share:
            chunks.append(slice(start, end))
            start, size = end, 0
    if start < len(tokens):
        chunks.append(slice(start, len(tokens)))
    return chunks


def _tail_start(tokens: Sequence[int], budget: float) -> int:
    start = len(tokens)
    while start > 0 and tokens[start - 1] <= budget:
        start -= 1
        budget -= tokens[start]
    return start


def _call_anchors(messages: Sequence[Message]) -> list[int]:
    """Return for each message the index that must be kept with it: its own, or that of the earliest call it answers.

    A result without an id answers the latest run of calls, from the first of them on, since calls made at once are
    answered one after the other.
    """
    anchors: list[int] = []
    by_id: dict[str, int] = {}
    run: int | None = None
    nameless_run: int | None = None
    in_run = False
    for index, message in enumerate(messages):
        anchor = index
        for result in message.results:
            answered = run if result.id is None else by_id.get(result.id, nameless_run)
            if answered is not None:
                anchor = min(anchor, answered)
        anchors.append(anchor)
        in_text = message.calls_in_text
        if message.calls or in_text:
            run = run if in_run else index
            by_id.update((call.id, index) for call in message.calls if call.id)
            if in_text or any(call.id is None for call in message.calls):
                nameless_run = run
            in_run = True
        else:
            in_run = False
    return anchors
