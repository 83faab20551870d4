"""Sessions that other programs recorded go through the whole lifecycle, and every field comes back equal.

The recordings lie beside the checkout, not in it; without them these tests are skipped.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from squilla_files import SessionIntent, SessionManager, SessionNode, SessionStorage, TranscriptEntry
from squilla_files.tokens import entry_tokens

DATA = Path(__file__).parents[2] / "shared" / "data"
# Lines, and how many of them are messages.
RECORDINGS = {
    "pi-session.jsonl": (1019, 914),
    "claude-code-edge_cases.jsonl": (19, 13),
    "claude-code-representative_messages.jsonl": (12, 11),
    "claude-code-todowrite_examples.jsonl": (12, 11),
}
KEY = "agent:main:recorded"

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="the recordings are not here")


@dataclass
class Recording:
    """A store that holds a recording, line by line."""

    root: Path
    store: SessionStorage
    manager: SessionManager
    lines: list[Any]
    entries: list[TranscriptEntry]


def is_message(line: Any) -> bool:
    return isinstance(line, dict) and isinstance(line.get("message"), dict) and "role" in line["message"]


def entry_of(line: Any, node: SessionNode) -> TranscriptEntry:
    """Return the entry for a line: calls, thoughts and usage in their fields, everything in the content.

    A line that is no message, of whatever JSON it is, is an entry of the system.
    """
    given: dict[str, Any] = {"session_id": node.session_id, "session_key": node.session_key}
    if not is_message(line):
        return TranscriptEntry(role="system", content=line, **given)
    message = line["message"]
    blocks = [block for block in message.get("content", ()) if isinstance(block, dict)]
    results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
    answered = message.get("toolCallId") or next(iter(results), None)
    return TranscriptEntry(
        role="tool" if answered else message["role"],
        content=line,
        tool_calls=[block for block in blocks if block["type"] in ("toolCall", "tool_use")] or None,
        tool_call_id=answered,
        reasoning_content="".join(block["thinking"] for block in blocks if block["type"] == "thinking") or None,
        turn_usage=message.get("usage"),
        created_at=int(datetime.fromisoformat(line["timestamp"]).timestamp() * 1000),
        **given,
    )


@pytest.fixture(params=RECORDINGS)
async def recording(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Recording]:
    text = (DATA / request.param).read_text(encoding="utf-8")
    lines = [json.loads(line) for line in text.split("\n") if line.strip()]
    assert (len(lines), sum(map(is_message, lines))) == RECORDINGS[request.param]
    async with SessionStorage(tmp_path, device="laptop") as store:
        manager = SessionManager(store)
        node = await manager.create(KEY)
        entries = [entry_of(line, node) for line in lines]
        await asyncio.gather(*(store.append_transcript_entry(entry) for entry in entries))
        yield Recording(tmp_path, store, manager, lines, entries)


def moved(entries: list[TranscriptEntry], node: SessionNode) -> list[TranscriptEntry]:
    """Return *entries* as they stand in another session."""
    return [replace(entry, session_id=node.session_id, session_key=node.session_key) for entry in entries]


def weight(entry: TranscriptEntry) -> int:
    return entry_tokens(entry.model_dump())


def calls_of(entries: list[TranscriptEntry]) -> set[str]:
    return {call["id"] for entry in entries for call in entry.tool_calls or ()}


async def test_what_was_recorded_reads_back_equal_from_a_store_that_is_opened_anew(recording: Recording) -> None:
    assert await recording.manager.get_transcript(KEY) == recording.entries
    async with SessionStorage(recording.root) as cold:
        entries = await cold.get_transcript(recording.entries[0].session_id)
    assert entries == recording.entries
    assert [entry.content for entry in entries] == recording.lines
    assert [entry.id for entry in entries] == sorted({entry.id for entry in entries if entry.id})


async def test_reading_piece_by_piece_gives_the_same(recording: Recording) -> None:
    session_id = recording.entries[0].session_id
    assert [entry async for entry in recording.store.iter_transcript(session_id)] == recording.entries


async def test_a_retry_of_every_message_adds_none(recording: Recording) -> None:
    again = [replace(entry, id=None) for entry in recording.entries]
    await asyncio.gather(*(recording.store.append_transcript_entry(entry) for entry in again))
    assert again == recording.entries == await recording.manager.get_transcript(KEY)


async def test_a_branch_takes_all_or_what_was_before_a_message(recording: Recording) -> None:
    whole = await recording.manager.branch(KEY, "agent:main:whole", fork_transcript=True)
    assert await recording.manager.get_transcript("agent:main:whole") == moved(recording.entries, whole)
    half = len(recording.entries) // 2
    before = recording.entries[half].message_id
    child = await recording.manager.branch(KEY, "agent:main:half", fork_before_message_id=before)
    assert await recording.manager.get_transcript("agent:main:half") == moved(recording.entries[:half], child)


async def test_a_compaction_changes_what_is_live_and_nothing_of_the_canonical(recording: Recording) -> None:
    manager, entries = recording.manager, recording.entries
    result = await manager.compact_with_result(KEY, sum(map(weight, entries)) // 2)
    live = await manager.get_transcript(KEY)
    assert result.skip_reason is None
    assert 0 < result.removed_count < len(entries)
    assert live == entries[result.removed_count :]
    assert await manager.get_canonical_transcript(KEY) == entries
    assert {entry.tool_call_id for entry in live if entry.tool_call_id} <= calls_of(live)
    (summary,) = await manager.get_summaries(KEY)
    assert await manager.get_compaction_preimage(summary) == entries[: result.removed_count]

    child = await manager.branch(KEY, "agent:main:child", fork_transcript=True)
    assert await manager.get_transcript("agent:main:child") == moved(live, child)
    assert await manager.get_canonical_transcript("agent:main:child") == moved(entries, child)


async def test_a_reset_leaves_the_recording_as_one_readable_document(recording: Recording) -> None:
    await recording.manager.truncate(KEY, 3)
    node, _ = await recording.manager.apply_intent(KEY, SessionIntent.RESET_SAME_KEY)
    assert await recording.manager.get_canonical_transcript(KEY) == []
    (document,) = recording.root.glob("archives/*.json")
    closed = json.loads(document.read_text(encoding="utf-8"))
    assert closed["transcript_entries"] == [entry.model_dump(mode="json") for entry in recording.entries]
    assert closed["session_id"] == recording.entries[0].session_id != node.session_id
