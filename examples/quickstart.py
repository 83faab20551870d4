"""A conversation with tools from its first message to its reset: create, append, fork, compact, reset, read, look.

``python examples/quickstart.py DIRECTORY`` makes a store in DIRECTORY. Without one it is a temporary store.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from pathlib import Path

from squilla_files import CompactionConfig, SessionIntent, SessionManager, SessionStorage, TranscriptEntry

KEY = "agent:main:main"
WINDOW_TOKENS = 900
MESSAGES = json.loads(Path(__file__).with_name("transcript.json").read_text(encoding="utf-8"))


async def summarize(text: str, _instructions: str) -> str:
    """Return a summary of a part of the transcript. An application asks its model here."""
    about_money = [line[:90] for line in text.splitlines() if "euro" in line]
    return "\n".join(about_money) or f"{len(text.splitlines())} lines, none about money."


def show(title: str, entries: list[TranscriptEntry]) -> None:
    """Print entries, one a line."""
    print(f"\n{title} ({len(entries)}):")
    for entry in entries:
        calls = ", ".join(f"{call['name']}()" for call in entry.tool_calls or ())
        text = " ".join(str(entry.content).split())
        print(f"  {entry.role:9} {text[:70]}{'…' if len(text) > 70 else ''}{' -> ' + calls if calls else ''}")


def show_files(root: Path) -> None:
    """Print the tree of the store, and the beginning of each line of its logs."""
    print(f"\nThe files of {root.name}/:")
    for path in sorted(root.rglob("*")):
        within = path.relative_to(root)
        if within.parts[0] != ".local":
            print(f"  {'  ' * (len(within.parts) - 1)}{path.name}{'/' if path.is_dir() else ''}")
    for log in sorted(root.glob("sessions/agent-main-main~*/transcript.*.jsonl")):
        print(f"\n{log.name}:")
        for line in log.read_text(encoding="utf-8").splitlines():
            print(f"  {line[:110]}…")


async def converse(manager: SessionManager) -> None:
    """Lead the conversation from its beginning to its end."""
    await manager.create(KEY, display_name="Water bill")
    stored = [await manager.append_message(KEY, **message) for message in MESSAGES]
    show("Transcript", stored)

    # A fork takes along what was said before a message: here, before the user decides about small sums.
    decision = next(entry for entry in stored if "Decision:" in str(entry.content))
    await manager.branch(KEY, "agent:main:other-way", fork_before_message_id=decision.message_id)
    await manager.append_message("agent:main:other-way", "user", "Remind all three, please.")
    show("Fork, with another decision", (await manager.get_transcript("agent:main:other-way"))[-2:])

    # A compaction archives the older messages and puts a summary beside the rest. Nothing is thrown away.
    result = await manager.compact_with_result(KEY, WINDOW_TOKENS, CompactionConfig(summarizer=summarize))
    print(f"\nSummary ({result.tokens_before} tokens before, {result.tokens_after} after):\n{result.summary}")
    show("Live transcript: what a model is given after the summary", await manager.get_transcript(KEY))
    canonical = await manager.get_canonical_transcript(KEY)
    print(f"\nThe canonical transcript has all {len(canonical)} messages: {canonical == stored}")

    # A reset begins another generation under the same key. The closed one becomes a document that can be read alone.
    node, _ = await manager.apply_intent(KEY, SessionIntent.RESET_SAME_KEY)
    await manager.append_message(KEY, "user", "Good morning! What is due this week?")
    show(f"After the reset, in epoch {node.epoch}", await manager.get_canonical_transcript(KEY))


async def run(root: Path) -> None:
    """Open a store in *root*, a directory that need not exist, and close it when all is said."""
    async with SessionStorage(root) as store:
        await converse(SessionManager(store))


def main(root: Path) -> None:
    """Make a store in *root* and show what becomes of it."""
    asyncio.run(run(root))
    show_files(root)
    document = next(root.glob("archives/*.json"))
    closed = json.loads(document.read_text(encoding="utf-8"))
    print(f"\n{document.name}: {len(closed['transcript_entries'])} messages, {len(closed['summaries'])} summary")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as directory:
            main(Path(directory, "store"))
