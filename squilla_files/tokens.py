"""How many tokens a text or a transcript entry weighs, without a tokenizer.

The estimate is coarse on purpose: it needs no model, no download and no time. Whoever has a tokenizer passes it as a
`TokenEstimator` wherever tokens are counted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

TokenEstimator = Callable[[str], int]
"""Text in, tokens out; never below 1."""

CHARACTERS_PER_TOKEN = 4


def estimate_tokens(text: str) -> int:
    """Return a quarter of the characters of *text*, rounded down, and at least 1."""
    return max(1, len(text) // CHARACTERS_PER_TOKEN)


def entry_tokens(entry: Mapping[str, Any], estimate: TokenEstimator = estimate_tokens) -> int:
    """Return the tokens that one transcript entry weighs, at least 1.

    The recorded ``token_count`` stands for the content only (none or zero: the content is estimated). Tool calls, the
    tool call id and the reasoning are always estimated on top, so that an understated count hides no large tool call.

    Args:
        entry: a transcript entry as a dict; absent fields weigh nothing.
        estimate: the estimator for whatever was not counted.
    """
    counted = entry.get("token_count")
    total = counted if isinstance(counted, int) and counted > 0 else estimate(as_text(entry.get("content")))
    for name in ("tool_calls", "tool_call_id", "reasoning_content"):
        value = entry.get(name)
        if value:
            total += estimate(as_text(value))
    return total


def as_text(value: Any) -> str:
    """Return text as it is, None as "", and everything else as JSON: what is counted, and what is shown."""
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value, ensure_ascii=False, default=str)
