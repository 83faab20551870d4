"""An agent that may be killed at any moment: started again, it goes on where it was.

``python examples/agent_loop.py DIRECTORY`` answers all questions and prints each message. Kill it and start it again as
often as you like: no message is lost and none is there twice, for the transcript is the agent's only state. What to do
next follows from the last messages, and a message is in the transcript whole or not at all.
"""

from __future__ import annotations

import asyncio
import re
import sys
from typing import Any

from squilla_files import SessionManager, SessionStorage, TranscriptEntry

KEY = "agent:main:sums"
WINDOW_TOKENS = 220
QUESTIONS = [f"What is {n} * {n + 3}, and {n} + {n + 3}?" for n in range(2, 14)]


def ask_model(transcript: list[TranscriptEntry]) -> dict[str, Any]:
    """Stand in for a model: call a tool for each sum in the question, then answer with the results."""
    last = max(n for n, entry in enumerate(transcript) if entry.role == "user")
    results = [str(entry.content) for entry in transcript[last:] if entry.role == "tool"]
    if results:
        return {"content": f"The results are {' and '.join(results)}."}
    sums = re.findall(r"\d+ [*+] \d+", str(transcript[last].content))
    return {
        "content": "I calculate.",
        "tool_calls": [
            {"id": f"call_{last}_{n}", "name": "calculate", "arguments": {"sum": text}} for n, text in enumerate(sums)
        ],
    }


def calculate(text: str) -> str:
    """Stand in for a tool. It may run twice for one call, if the agent dies before the result is stored."""
    left, operator, right = text.split()
    return str(int(left) * int(right) if operator == "*" else int(left) + int(right))


def next_message(transcript: list[TranscriptEntry]) -> dict[str, Any] | None:
    """Return the message that comes after *transcript*, None when all questions are answered."""
    asked = sum(entry.role == "user" for entry in transcript)
    calls = next((entry.tool_calls for entry in reversed(transcript) if entry.role == "assistant"), None) or []
    answered = {entry.tool_call_id for entry in transcript}
    for call in calls:
        if call["id"] not in answered:
            return {"role": "tool", "content": calculate(call["arguments"]["sum"]), "tool_call_id": call["id"]}
    if transcript and transcript[-1].role in ("user", "tool"):
        return {"role": "assistant", **ask_model(transcript)}
    return {"role": "user", "content": QUESTIONS[asked]} if asked < len(QUESTIONS) else None


async def main(root: str) -> None:
    """Go on from what the store in *root* says until there is nothing left to do."""
    async with SessionStorage(root) as store:
        manager = SessionManager(store, inject_time_prefix=False)
        await manager.get_or_create(KEY)
        transcript = await manager.get_canonical_transcript(KEY)
        while message := next_message(transcript):
            transcript.append(await manager.append_message(KEY, **message))
            print(len(transcript), message["role"], message["content"], flush=True)
            await manager.compact(KEY, WINDOW_TOKENS)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
