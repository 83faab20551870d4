"""A day of an agent: a program that knows only the public surface, from the first message to the last prune."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from squilla_files.compaction import CompactionConfig, CompactionRequest, compact_context
from squilla_files.keys import build_direct_key, build_main_key, build_subagent_session_key, parse_agent_id
from squilla_files.manager import SessionManager
from squilla_files.models import SessionContextState, SessionIntent, SessionStatus, TranscriptEntry
from squilla_files.storage import SessionStorage, StaleEpochError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

PATIENCE_SECONDS = 30


class Runtime:
    """Runs the tasks of sessions, one each."""

    def __init__(self) -> None:
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def cancel(self, *, session_key: str, source: str, reason: str) -> None:
        task = self.tasks.pop(session_key, None)
        if task is not None:
            task.cancel()


class Registry:
    async def list_agents(self, *, include_builtin: bool = False) -> list[dict[str, Any]]:
        return [{"id": "main", "subagents": {"cascade_on_parent_kill": True}}]


@pytest.fixture
async def storage(tmp_path: Path) -> AsyncIterator[SessionStorage]:
    async with SessionStorage(tmp_path / "sessions", device="laptop") as storage:
        yield storage


class Agent:
    """Answers every question with the help of one tool."""

    def __init__(self, manager: SessionManager) -> None:
        self.manager = manager

    async def turn(self, key: str, question: str, answer: str) -> None:
        number = len(await self.manager.get_canonical_transcript(key))
        await self.manager.append_message(
            key, "user", question, token_count=60, provenance={"kind": "external_user", "source_channel": "cli"}
        )
        call_id = f"call-{number}"
        call = {"id": call_id, "name": "search", "arguments": {"query": question}}
        await self.manager.append_message(
            key, "assistant", "", tool_calls=[call], reasoning_content="I look it up.", token_count=20
        )
        await self.manager.append_message(key, "tool", f"found: {answer}", tool_call_id=call_id, token_count=60)
        node = await self.manager.get_session(key)
        assert node is not None
        usage = {"model": "large", "input_tokens": 140, "output_tokens": 60}
        await self.manager.append_message(key, "assistant", answer, turn_usage=usage, token_count=60)
        await self.manager.update(
            key,
            input_tokens=node.input_tokens + 140,
            output_tokens=node.output_tokens + 60,
            total_tokens=node.total_tokens + 200,
            total_tokens_fresh=True,
        )


async def test_a_day_of_an_agent(storage: SessionStorage, tmp_path: Path) -> None:
    notified: list[int] = []
    runtime = Runtime()
    manager = SessionManager(storage, notified.append, time_prefix_tz="UTC", agent_registry=Registry())
    manager.attach_task_runtime(runtime)
    agent = Agent(manager)
    key = build_main_key("main")

    # Morning: a conversation begins, and the next message goes on with it.
    node, began = await manager.apply_intent(key, SessionIntent.CONTINUE)
    assert began
    assert node.agent_id == parse_agent_id(key) == "main"
    await agent.turn(key, "When does the museum open?", "It opens at 10.")
    assert await manager.apply_intent(key, "continue") == (await manager.get_session(key), False)
    transcript = await manager.read_transcript(key)
    assert [entry["role"] for entry in transcript] == ["user", "assistant", "tool", "assistant"]
    assert transcript[0]["content"].endswith(" UTC]\nWhen does the museum open?")
    assert transcript[0]["provenance_source_channel"] == "cli"
    assert transcript[1]["tool_calls"][0]["id"] == transcript[2]["tool_call_id"]
    node = await manager.resume(key)
    assert (node.input_tokens, node.output_tokens) == (140, 60)
    assert (node.total_tokens, node.total_tokens_fresh) == (60 + 20 + 60 + 200, True)
    assert len(notified) == 4

    # The user wants a fresh start; a turn that was still running is refused.
    before = node
    node, rotated = await manager.apply_intent(key, SessionIntent.RESET_SAME_KEY)
    assert rotated
    late = TranscriptEntry(session_id=before.session_id, session_key=key, role="assistant", content="Also, ...")
    with pytest.raises(StaleEpochError):
        await storage.append_transcript_entry(late, expected_epoch=before.epoch)
    assert await manager.get_transcript(key) == []
    assert node.total_tokens == 0
    (document,) = (tmp_path / "sessions" / "archives").glob("*.json")
    archived = json.loads(document.read_text(encoding="utf-8"))
    assert [entry["role"] for entry in archived["transcript_entries"]] == ["user", "assistant", "tool", "assistant"]

    # Noon: a long conversation, and a branch to try something out.
    for number in range(6):
        await agent.turn(key, f"Question {number}?", f"Answer {number}.")
    question = (await manager.get_transcript(key))[8]
    draft_key = build_direct_key("main", "draft", dm_scope="per_peer")
    draft = await manager.branch(key, draft_key, fork_transcript=True, fork_before_message_id=question.message_id)
    assert (draft.parent_session_key, draft.spawn_depth, draft.forked_from_parent) == (key, 1, True)
    await agent.turn(draft_key, "Question 2, put better?", "A better answer.")
    assert len(await manager.get_transcript(draft_key)) == 8 + 4

    # The context is full: it is compacted, and nothing is lost.
    asked: list[str] = []

    async def summarize(text: str, instructions: str) -> str:
        asked.append(text)
        return f"Part {len(asked)} of the questions was answered."

    canonical = await manager.get_canonical_transcript(key)
    config = CompactionConfig(summarizer=summarize)
    result = await manager.compact_with_result(
        key, 1_000, config, compaction_id="noon", trigger_reason="context_overflow", flush_receipt_status="unsafe"
    )
    assert result.summary_source == "llm"
    assert 0 < result.removed_count < len(canonical)
    assert await manager.get_canonical_transcript(key) == canonical
    assert await manager.get_transcript(key) == canonical[result.removed_count :]
    (summary,) = await manager.get_summaries(key)
    (degraded,) = await manager.list_degraded_compactions(agent_id="main")
    assert degraded == summary
    assert await manager.get_compaction_preimage(summary) == canonical[: result.removed_count]
    await manager.mark_compaction_flush_receipt_status(key, "noon", "safe")
    assert await manager.list_degraded_compactions() == []
    (state,) = await manager.get_context_states(key, provider="portable")
    assert state.payload is not None
    assert state.payload["compaction_id"] == "noon"

    # An application that compacts by itself stores what it made.
    request = CompactionRequest(
        session_id=draft.session_id,
        entries=await manager.read_transcript(draft_key),
        context_window_tokens=500,
        config=CompactionConfig(),
        custom_instructions=None,
    )
    decided = await compact_context(request)
    assert decided.removed_count > 0
    stored = await manager.persist_compaction_result(draft_key, decided.summary, decided.kept_entries)
    assert stored is not None
    assert stored.removed_count == decided.removed_count
    assert len(await manager.get_canonical_transcript(draft_key)) == 12
    page = await manager.get_canonical_transcript_page(draft_key, limit=5)
    assert (len(page.entries), page.has_more, page.canonical_complete) == (5, True, True)

    # Afternoon: a subagent works, and its parent waits for it.
    run_key = build_subagent_session_key("main", "run-1")
    await manager.create(run_key, spawned_by=key, spawn_depth=1)

    async def work() -> None:
        await manager.append_message(run_key, "assistant", "done", token_count=1)
        await manager.finish(run_key)

    waiting = asyncio.ensure_future(manager.wait_for_completion(run_key))
    await work()
    ended = await asyncio.wait_for(waiting, PATIENCE_SECONDS)
    assert (ended["status"], ended["waited"]) == ("done", True)

    # Another one never ends; the user kills the parent, and it goes with it.
    stuck_key = build_subagent_session_key("main", "run-2")
    await manager.create(stuck_key, spawned_by=key)
    stuck = asyncio.ensure_future(asyncio.Event().wait())
    runtime.tasks[stuck_key] = stuck  # type: ignore[assignment]
    await manager.kill_session(key)
    statuses = {each["session_key"]: each["status"] for each in await manager.list_sessions()}
    assert statuses == {key: "killed", stuck_key: "killed", run_key: "done", draft_key: "killed"}
    with pytest.raises(asyncio.CancelledError):
        await stuck

    # What was said is found again.
    hits = await storage.search_transcript("better answer")
    assert [hit["session_key"] if isinstance(hit, dict) else hit.session_key for hit in hits]

    # Night: what is old goes, and everything is still there after a restart.
    await manager.update(run_key, updated_at=1_000)
    await manager.update(stuck_key, updated_at=2_000)
    assert [gone for gone, _ in await manager.prune_stale(86_400_000, dry_run=True)] == [run_key, stuck_key]
    assert await manager.prune_stale(86_400_000) == 2
    assert await manager.cap_entries(500) == 0
    survivors = await manager.list_sessions()
    await storage.close()
    async with SessionStorage(tmp_path / "sessions", device="laptop") as again:
        tomorrow = SessionManager(again)
        assert await tomorrow.list_sessions() == survivors
        assert await tomorrow.get_canonical_transcript(key) == canonical
        report = await again.verify()
        assert report.ok
        resumed = await tomorrow.resume(key)
        assert resumed.status == SessionStatus.KILLED


async def test_a_store_in_memory_is_gone_when_it_is_closed() -> None:
    async with SessionStorage(":memory:") as storage:
        manager = SessionManager(storage)
        node = await manager.create("webchat:default")
        await manager.append_message("webchat:default", "user", "hello")
        state = SessionContextState(session_id=node.session_id, session_key=node.session_key, state_kind="native")
        assert (await manager.save_context_state(state)).id is not None
        root = storage.root
        assert await asyncio.to_thread(os.path.exists, root)
    assert not await asyncio.to_thread(os.path.exists, root)
