"""An agent that may be killed at any moment: started again, it goes on where it was.

``python examples/agent_loop.py DIRECTORY`` answers all questions and prints each message. Kill it and start it again as
often as you like: no message is lost and none is there twice, for the session is the agent's only state. What to do
next follows from the live messages and the summaries, and a message is in the transcript whole or not at all.
"""

from __future__ import annotations

import argparse
import asyncio
import re
from typing import Any

from squilla_files import SessionManager, SessionStorage, SessionSummary, TranscriptEntry

KEY = "agent:main:sums"
WINDOW_TOKENS = 220
QUESTIONS = [f"What is {n} * {n + 3}, and {n} + {n + 3}?" for n in range(2, 14)]
MESSAGES_OF_A_TURN = 5  # a question, two calls in one message, two results, an answer


def build_prompt(summaries: list[SessionSummary], live: list[TranscriptEntry]) -> list[dict[str, Any]]:
    """Return what a model is given: what the summaries say and the facts that they lack, then the live messages."""
    earlier = [text for s in summaries for text in (s.summary_text, *(s.critical_carry_forward or ()))]
    names = ("role", "content", "tool_calls", "tool_call_id")
    said = [{name: value for name in names if (value := getattr(entry, name)) is not None} for entry in live]
    return [{"role": "system", "content": "\n".join(earlier)}, *said] if earlier else said


def ask_model(prompt: list[dict[str, Any]]) -> dict[str, Any]:
    """Stand in for a model: call a tool for each sum in the question, then answer with the results."""
    last = max(n for n, message in enumerate(prompt) if message["role"] == "user")
    results = [message["content"] for message in prompt[last:] if message["role"] == "tool"]
    if results:
        return {"content": f"The results are {' and '.join(results)}."}
    sums = re.findall(r"\d+ [*+] \d+", prompt[last]["content"])
    calls = [{"id": f"call {text}", "name": "calculate", "arguments": {"sum": text}} for text in sums]
    return {"content": "I calculate.", "tool_calls": calls}


def calculate(text: str) -> str:
    """Stand in for a tool. It may run twice for one call, if the agent dies before the result is stored."""
    left, operator, right = text.split()
    return str(int(left) * int(right) if operator == "*" else int(left) + int(right))


def next_message(summaries: list[SessionSummary], live: list[TranscriptEntry]) -> dict[str, Any]:
    """Return the message that comes next in a turn that has begun: a tool's result, or what the model says."""
    calls = next((entry.tool_calls for entry in reversed(live) if entry.role == "assistant"), None) or []
    answered = {entry.tool_call_id for entry in live}
    for call in calls:
        if call["id"] not in answered:
            return {"role": "tool", "content": calculate(call["arguments"]["sum"]), "tool_call_id": call["id"]}
    return {"role": "assistant", **ask_model(build_prompt(summaries, live))}


async def main(root: str) -> None:
    """Go on from what the store in *root* says until there is nothing left to do."""
    async with SessionStorage(root) as store:
        manager = SessionManager(store, inject_time_prefix=False)
        await manager.get_or_create(KEY)
        while True:
            live, summaries = await manager.get_transcript(KEY), await manager.get_summaries(KEY)
            said = sum(summary.removed_count for summary in summaries) + len(live)
            turn, within = divmod(said, MESSAGES_OF_A_TURN)
            if within:
                message = next_message(summaries, live)
            elif turn < len(QUESTIONS):
                await manager.compact(KEY, WINDOW_TOKENS)  # between turns, so that a turn is never cut
                message = {"role": "user", "content": QUESTIONS[turn]}
            else:
                return
            await manager.append_message(KEY, **message)
            print(said + 1, message["role"], message["content"], flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="An agent that may be killed and goes on where it was.")
    parser.add_argument("directory", help="the store; the first write makes it")
    asyncio.run(main(parser.parse_args().directory))
