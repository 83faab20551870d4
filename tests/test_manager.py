"""The lifecycle: how sessions begin, go on, are reset, branch and end."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from squilla_files.manager import SessionManager
from squilla_files.models import (
    SESSION_COUNTERS,
    SessionContextState,
    SessionIntent,
    SessionStatus,
    SessionSummary,
    TranscriptEntry,
)
from squilla_files.storage import SessionStorage, StaleEpochError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from squilla_files.models import SessionNode

KEY = "agent:main:main"
CHILD = "agent:main:subagent:one"


@pytest.fixture
async def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SessionManager]:
    monkeypatch.delenv("SQUILLA_FILES_ARCHIVE_DIR", raising=False)
    monkeypatch.delenv("OPENSQUILLA_SESSION_ARCHIVE_DIR", raising=False)
    async with SessionStorage(tmp_path / "store", device="desk", durability="os") as storage:
        yield SessionManager(storage, inject_time_prefix=False)


async def say(manager: SessionManager, *texts: str, key: str = KEY) -> list[TranscriptEntry]:
    return [await manager.append_message(key, "user", text, token_count=10) for text in texts]


async def said(manager: SessionManager, key: str = KEY) -> list[Any]:
    return [entry.content for entry in await manager.get_transcript(key)]


def archives(manager: SessionManager) -> list[Path]:
    return [*(Path(manager.storage.root) / "archives").glob("*.json")]


async def canonical(manager: SessionManager, key: str = KEY) -> list[Any]:
    return [entry.content for entry in await manager.get_canonical_transcript(key)]


async def stored(manager: SessionManager, key: str = KEY) -> SessionNode:
    node = await manager.storage.get_session(key)
    assert node is not None
    return node


def context_state(node: SessionNode, **fields: Any) -> SessionContextState:
    return SessionContextState(
        session_id=node.session_id, session_key=node.session_key, state_kind="structured_summary_v1", **fields
    )


# --- beginning -------------------------------------------------------------------------------------------------------


async def test_the_storage_is_reached_by_both_names(manager: SessionManager) -> None:
    assert manager.storage is manager._storage


async def test_a_session_begins_running_with_its_times_set(manager: SessionManager) -> None:
    node = await manager.create(KEY, label="Errands")
    assert node == await stored(manager)
    assert (node.status, node.agent_id, node.label, node.epoch) == ("running", "main", "Errands", 0)
    assert node.started_at == node.created_at == node.updated_at > 0
    assert (await manager.create(CHILD)).session_id != node.session_id


async def test_a_session_begins_with_the_agent_that_is_given(manager: SessionManager) -> None:
    assert (await manager.create(KEY, "research")).agent_id == "research"
    assert (await manager.create(CHILD, agent_id="research")).agent_id == "research"


async def test_neither_agent_nor_chat_type_is_derived_from_the_key(manager: SessionManager) -> None:
    node = await manager.create("agent:research:telegram:group:7")
    assert (node.agent_id, node.chat_type) == ("main", "unknown")


async def test_a_taken_key_cannot_begin_again(manager: SessionManager) -> None:
    node = await manager.create(KEY)
    with pytest.raises(ValueError, match="already exists"):
        await manager.create(f"  {KEY} ", label="another")
    assert await stored(manager) == node


async def test_a_field_that_does_not_exist_begins_nothing(manager: SessionManager) -> None:
    with pytest.raises(TypeError, match="shoe_size"):
        await manager.create(KEY, shoe_size=43)
    assert await manager.get_session(KEY) is None


async def test_get_or_create_begins_only_what_is_missing(manager: SessionManager) -> None:
    node, created = await manager.get_or_create(KEY, "research", label="first")
    assert (created, node.label, node.agent_id) == (True, "first", "research")
    assert await manager.get_or_create(KEY, "other", label="second", no_such_field=1) == (node, False)
    assert await stored(manager) == node


async def test_getting_a_session_touches_nothing(manager: SessionManager) -> None:
    assert await manager.get_session(KEY) is None
    await manager.create(KEY)
    await manager.update(KEY, updated_at=5)
    node = await manager.get_session(KEY)
    assert node is not None
    assert node.updated_at == 5
    assert await manager.get_session(KEY) == node


@pytest.mark.parametrize("spelling", [" agent:main:webchat:default ", "webchat:default", "agent:MAIN:webchat:default"])
async def test_every_method_takes_every_spelling_of_a_key(manager: SessionManager, spelling: str) -> None:
    node = await manager.create(spelling)
    assert node.session_key == "agent:main:webchat:default"
    await manager.append_message(spelling, "user", "hi")
    assert len(await manager.get_transcript(spelling)) == 1
    assert await manager.resume(spelling) == await manager.get_session(spelling)
    assert (await manager.branch(spelling, f" {CHILD}")).parent_session_key == node.session_key
    assert await manager.get_summaries(spelling) == []
    assert manager.get_cached_epoch(spelling) == 0


@pytest.mark.parametrize("key", ["", "  ", "a\0b", "\ud800", "x" * 513])
async def test_a_key_that_no_session_can_have_is_a_value_error_in_every_method(
    manager: SessionManager, key: str
) -> None:
    await manager.create(KEY)
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: manager.create(key),
        lambda: manager.get_or_create(key),
        lambda: manager.get_session(key),
        lambda: manager.apply_intent(key, "continue"),
        lambda: manager.apply_intent(key, "new_chat"),
        lambda: manager.apply_intent(key, "reset_same_key"),
        lambda: manager.resume(key),
        lambda: manager.update(key, label="x"),
        lambda: manager.finish(key),
        lambda: manager.archive(key),
        lambda: manager.append_message(key, "user", "x"),
        lambda: manager.inject_message(key, "x"),
        lambda: manager.remove_message(key, "m"),
        lambda: manager.get_transcript(key),
        lambda: manager.read_transcript(key),
        lambda: manager.get_canonical_transcript(key),
        lambda: manager.get_canonical_transcript_page(key, limit=1),
        lambda: manager.get_summaries(key),
        lambda: manager.truncate(key),
        lambda: manager.branch(key, CHILD),
        lambda: manager.branch(KEY, key),
        lambda: manager.kill_session(key),
        lambda: manager.wait_for_completion(key),
        lambda: manager.get_context_states(key),
        lambda: manager.invalidate_context_states(key, reason="x"),
        lambda: manager.mark_compaction_flush_receipt_status(key, "c", "safe"),
        lambda: manager.compact(key, 100),
        lambda: manager.persist_compaction_result(key, "s", []),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="key"):
            await call()
    with pytest.raises(ValueError, match="key"):
        manager.get_cached_epoch(key)
    with pytest.raises(ValueError, match="key"):
        manager.set_cached_epoch(key, 1)


# --- intents ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("intent", list(SessionIntent))
async def test_a_missing_session_is_begun_by_every_intent(manager: SessionManager, intent: SessionIntent) -> None:
    node, rotated = await manager.apply_intent(KEY, intent)
    assert rotated
    assert (node.status, node.epoch) == ("running", 0)
    assert await stored(manager) == node


async def test_continue_touches_the_same_session(manager: SessionManager) -> None:
    await manager.create(KEY, label="Errands")
    before = await manager.update(KEY, updated_at=5)
    node, rotated = await manager.apply_intent(KEY, "continue")
    assert not rotated
    assert node.updated_at > 5
    before.updated_at = node.updated_at
    assert node == before == await stored(manager)


async def test_a_new_chat_wants_a_free_key(manager: SessionManager) -> None:
    node = await manager.create(KEY)
    with pytest.raises(ValueError, match=r"^session_key conflict$"):
        await manager.apply_intent(KEY, SessionIntent.NEW_CHAT)
    assert await stored(manager) == node


async def test_an_unknown_intent_is_a_value_error(manager: SessionManager) -> None:
    with pytest.raises(ValueError, match="explode"):
        await manager.apply_intent(KEY, "explode")
    assert await manager.get_session(KEY) is None


# --- reset -----------------------------------------------------------------------------------------------------------


async def test_a_reset_gives_a_new_identity_and_counts_from_zero(manager: SessionManager) -> None:
    await manager.create(KEY, label="Errands", model="large")
    await say(manager, "one")
    counters = dict.fromkeys(SESSION_COUNTERS, 7)
    await manager.update(KEY, **counters, context_tokens=70, total_tokens_fresh=True, cost_source="mixed")
    before = await manager.finish(KEY, "failed")
    node, rotated = await manager.apply_intent(KEY, "reset_same_key")
    assert rotated
    assert node == await stored(manager)
    assert node.session_id != before.session_id
    assert node.epoch == before.epoch + 1
    assert {name: getattr(node, name) for name in SESSION_COUNTERS} == dict.fromkeys(SESSION_COUNTERS, 0)
    assert (node.context_tokens, node.total_tokens_fresh, node.cost_source) == (None, False, "none")
    for name in ("status", "started_at", "ended_at", "runtime_ms", "created_at", "label", "model"):
        assert getattr(node, name) == getattr(before, name), name


async def test_after_a_reset_the_transcript_is_empty_by_either_id(manager: SessionManager) -> None:
    before = await manager.create(KEY)
    await say(manager, "one", "two", "three")
    assert await manager.persist_compaction_result(KEY, "summary", [{"role": "user", "content": "three"}])
    node, _ = await manager.apply_intent(KEY, "reset_same_key")
    assert await said(manager) == await canonical(manager) == await manager.get_summaries(KEY) == []
    for session_id in (before.session_id, node.session_id):
        assert await manager.storage.get_transcript(session_id) == []
        assert await manager.storage.get_canonical_transcript(session_id) == []
        assert await manager.storage.get_all_summaries(session_id) == []


async def test_a_reset_invalidates_the_context_states(manager: SessionManager) -> None:
    node = await manager.create(KEY)
    state = await manager.save_context_state(context_state(node, payload={"a": 1}))
    await manager.apply_intent(KEY, "reset_same_key")
    assert await manager.get_context_states(KEY) == []
    (invalid,) = await manager.get_context_states(KEY, valid_only=False)
    assert (invalid.id, invalid.valid, invalid.invalid_reason) == (state.id, False, "session_reset")


async def test_a_writer_that_read_before_the_reset_can_neither_append_nor_roll_it_back(manager: SessionManager) -> None:
    before = await manager.create(KEY)
    node, _ = await manager.apply_intent(KEY, "reset_same_key")

    def late(**fields: Any) -> TranscriptEntry:
        return TranscriptEntry(
            session_id=before.session_id, session_key=KEY, role="assistant", content="late", **fields
        )

    with pytest.raises(StaleEpochError) as refused:
        await manager.storage.append_transcript_entry(late(), expected_epoch=before.epoch)
    assert (refused.value.expected_epoch, refused.value.actual_epoch) == (0, 1)
    with pytest.raises(StaleEpochError):
        await manager.storage.append_transcript_entry(late())
    await manager.storage.upsert_session(before)
    after = await stored(manager)
    assert (after.session_id, after.epoch) == (node.session_id, node.epoch)
    assert await said(manager) == []


async def test_a_reset_archives_the_generation_as_one_readable_document(manager: SessionManager) -> None:
    before = await manager.create(KEY, label="Errands")
    await say(manager, "one", "two", "three")
    await manager.persist_compaction_result(KEY, "so far", [{"role": "user", "content": "three"}])
    await manager.apply_intent(KEY, "reset_same_key")
    (path,) = archives(manager)
    document = json.loads(path.read_text(encoding="utf-8"))
    assert document.keys() == {
        "schema_version",
        "archived_at",
        "reason",
        "session_key",
        "session_id",
        "session",
        "transcript_entries",
        "summaries",
    }
    assert (document["session_key"], document["session_id"]) == (KEY, before.session_id)
    assert document["reason"] == "reset_same_key"
    assert document["session"]["label"] == "Errands"
    assert [entry["content"] for entry in document["transcript_entries"]] == ["one", "two", "three"]
    assert [summary["summary_text"] for summary in document["summaries"]] == ["so far"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_an_empty_generation_is_not_archived(manager: SessionManager) -> None:
    await manager.create(KEY)
    _, rotated = await manager.apply_intent(KEY, "reset_same_key")
    assert rotated
    assert archives(manager) == []


@pytest.mark.parametrize("name", ["SQUILLA_FILES_ARCHIVE_DIR", "OPENSQUILLA_SESSION_ARCHIVE_DIR"])
async def test_the_environment_says_at_the_time_of_the_reset_where_to_archive(
    manager: SessionManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    await manager.create(KEY)
    await say(manager, "one")
    elsewhere = tmp_path / "elsewhere"
    monkeypatch.setenv(name, str(elsewhere))
    await manager.apply_intent(KEY, "reset_same_key")
    assert len(list(elsewhere.glob("*.json"))) == 1
    assert stat.S_IMODE(elsewhere.stat().st_mode) == 0o700
    assert archives(manager) == []


async def test_the_argument_says_where_to_archive_before_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SQUILLA_FILES_ARCHIVE_DIR", str(tmp_path / "environment"))
    monkeypatch.setenv("OPENSQUILLA_SESSION_ARCHIVE_DIR", str(tmp_path / "older"))
    async with SessionStorage(tmp_path / "store", archive_dir=tmp_path / "argument", durability="os") as storage:
        manager = SessionManager(storage)
        await manager.create(KEY)
        await say(manager, "one")
        await manager.apply_intent(KEY, "reset_same_key")
    assert len(list((tmp_path / "argument").glob("*.json"))) == 1
    assert not (tmp_path / "environment").exists()
    assert not (tmp_path / "older").exists()


async def test_a_reset_goes_on_where_the_archive_cannot_be_written(
    manager: SessionManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    monkeypatch.setenv("SQUILLA_FILES_ARCHIVE_DIR", str(tmp_path / "file"))
    await manager.create(KEY)
    await say(manager, "one")
    node, rotated = await manager.apply_intent(KEY, "reset_same_key")
    assert (rotated, node.epoch) == (True, 1)
    assert await said(manager) == []


# --- going on and ending ---------------------------------------------------------------------------------------------


async def test_resume_touches_and_changes_nothing_else(manager: SessionManager) -> None:
    await manager.create(KEY)
    await manager.finish(KEY)
    before = await manager.update(KEY, updated_at=5)
    node = await manager.resume(KEY)
    assert node.updated_at > 5
    before.updated_at = node.updated_at
    assert node == before == await stored(manager)


async def test_update_sets_the_fields_given_and_no_others(manager: SessionManager) -> None:
    before = await manager.create(KEY)
    node = await manager.update(KEY, label="Errands", delivery_context={"a": [1]}, status="failed", total_tokens=12)
    before.label, before.delivery_context, before.status = "Errands", {"a": [1]}, "failed"
    before.total_tokens = 12
    assert node == before == await stored(manager)


async def test_update_sets_a_counter_to_the_value_whatever_it_was(manager: SessionManager) -> None:
    await manager.create(KEY)
    await say(manager, "one", "two")
    assert (await manager.update(KEY, total_tokens=5, total_cost_usd=0.25)).total_tokens == 5
    assert (await manager.update(KEY, total_tokens=8)).total_cost_usd == 0.25
    assert (await stored(manager)).total_tokens == 8


@pytest.mark.parametrize("name", ["shoe_size", "epoch"])
async def test_update_refuses_what_is_no_field_to_set(manager: SessionManager, name: str) -> None:
    node = await manager.create(KEY)
    with pytest.raises(TypeError, match=name):
        await manager.update(KEY, **{"label": "x", name: 1})
    assert await stored(manager) == node


@pytest.mark.parametrize("status", ["done", "failed", "timeout"])
async def test_finish_sets_status_end_and_running_time(manager: SessionManager, status: str) -> None:
    await manager.create(KEY)
    await manager.update(KEY, started_at=1_000)
    node = await manager.finish(KEY, status)
    assert node == await stored(manager)
    assert node.status == status
    assert node.ended_at is not None
    assert node.runtime_ms == node.ended_at - 1_000


async def test_finish_ends_as_done_unless_it_is_told_otherwise(manager: SessionManager) -> None:
    await manager.create(KEY)
    assert (await manager.finish(KEY)).status == SessionStatus.DONE


async def test_a_clock_that_was_set_back_gives_no_negative_running_time(manager: SessionManager) -> None:
    await manager.create(KEY)
    await manager.update(KEY, started_at=2**52)
    assert (await manager.finish(KEY)).runtime_ms == 0


async def test_a_session_that_never_started_has_no_running_time(manager: SessionManager) -> None:
    await manager.create(KEY, started_at=None)
    assert (await manager.finish(KEY)).runtime_ms is None


async def test_finish_refuses_a_status_that_does_not_exist(manager: SessionManager) -> None:
    node = await manager.create(KEY)
    with pytest.raises(ValueError, match="asleep"):
        await manager.finish(KEY, "asleep")
    assert await stored(manager) == node


async def test_archive_finishes_as_done(manager: SessionManager) -> None:
    await manager.create(KEY)
    node = await manager.archive(KEY)
    assert node.status == "done"
    assert node.ended_at is not None


async def test_what_needs_a_session_says_so_with_a_key_error(manager: SessionManager) -> None:
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: manager.resume(KEY),
        lambda: manager.update(KEY, label="x"),
        lambda: manager.finish(KEY),
        lambda: manager.archive(KEY),
        lambda: manager.branch(KEY, CHILD),
        lambda: manager.kill_session(KEY),
        lambda: manager.wait_for_completion(KEY),
    ]
    for call in calls:
        with pytest.raises(KeyError, match="Session not found"):
            await call()
    assert await manager.list_sessions() == []


async def test_sessions_are_listed_as_dicts_the_one_last_used_first(manager: SessionManager) -> None:
    for number, (key, agent_id) in enumerate([(KEY, "main"), (CHILD, "main"), ("agent:other:main", "other")]):
        await manager.create(key, agent_id)
        await manager.update(key, updated_at=1_000 + number)
    await manager.update(CHILD, spawned_by=KEY, status="done")

    async def keys(**choice: Any) -> list[str]:
        return [node["session_key"] for node in await manager.list_sessions(**choice)]

    assert await keys() == ["agent:other:main", CHILD, KEY]
    assert await keys(agent_id="main") == [CHILD, KEY]
    assert await keys(status="done") == [CHILD]
    assert await keys(spawned_by=KEY) == [CHILD]
    assert await keys(limit=1, offset=1) == [CHILD]
    first = (await manager.list_sessions(limit=1))[0]
    assert json.loads(json.dumps(first)) == first == (await stored(manager, "agent:other:main")).model_dump(mode="json")


# --- epochs ----------------------------------------------------------------------------------------------------------


async def test_the_last_epoch_seen_in_this_process_is_remembered(manager: SessionManager) -> None:
    assert manager.get_cached_epoch(KEY) is None
    await manager.create(KEY)
    assert manager.get_cached_epoch(KEY) == 0
    await manager.apply_intent(KEY, "reset_same_key")
    assert manager.get_cached_epoch(KEY) == 1
    manager.set_cached_epoch(f" {KEY}", 7)
    assert manager.get_cached_epoch(KEY) == 7
    await manager.storage.increment_epoch(KEY)
    assert manager.get_cached_epoch(KEY) == 7
    await manager.get_session(KEY)
    assert manager.get_cached_epoch(KEY) == 2


# --- branching -------------------------------------------------------------------------------------------------------


async def test_a_branch_takes_over_who_answers_and_where(manager: SessionManager) -> None:
    await manager.create(
        KEY,
        "research",
        model="large",
        model_provider="cloud",
        channel="telegram",
        chat_type="group",
        spawn_depth=2,
        label="mine",
        total_tokens=5,
    )
    await say(manager, "one")
    child = await manager.branch(KEY, CHILD, status="done")
    assert child == await stored(manager, CHILD)
    assert (child.agent_id, child.model, child.model_provider) == ("research", "large", "cloud")
    assert (child.channel, child.chat_type) == ("telegram", "group")
    assert (child.parent_session_key, child.spawned_by, child.spawn_depth) == (KEY, KEY, 3)
    assert (child.status, child.forked_from_parent, child.label, child.total_tokens) == ("done", False, None, 0)
    assert child.session_id != (await stored(manager)).session_id
    assert child.started_at is not None
    assert await said(manager, CHILD) == []


async def test_a_branch_runs_unless_it_is_told_otherwise(manager: SessionManager) -> None:
    await manager.create(KEY)
    assert (await manager.branch(KEY, CHILD)).status == "running"


async def test_a_fork_takes_the_whole_conversation_along(manager: SessionManager) -> None:
    node = await manager.create(KEY)
    await say(manager, "one", "two", "three", "four")
    kept = [{"role": "user", "content": "three"}, {"role": "user", "content": "four"}]
    await manager.persist_compaction_result(KEY, "one and two", kept, compaction_id="c-1")
    await manager.save_context_state(context_state(node, provider="cloud", payload={"old": 1}))
    await manager.invalidate_context_states(KEY, provider="cloud", reason="switched")
    await manager.save_context_state(context_state(node, payload={"fresh": 1}))
    child = await manager.branch(KEY, CHILD, fork_transcript=True)
    assert child.forked_from_parent

    def plain(entries: list[TranscriptEntry]) -> list[dict[str, Any]]:
        dumps = [entry.model_dump() for entry in entries]
        return [{**dump, "session_id": "", "session_key": ""} for dump in dumps]

    assert plain(await manager.get_transcript(CHILD)) == plain(await manager.get_transcript(KEY))
    assert plain(await manager.get_canonical_transcript(CHILD)) == plain(await manager.get_canonical_transcript(KEY))
    assert await canonical(manager, CHILD) == ["one", "two", "three", "four"]
    (summary,) = await manager.get_summaries(CHILD)
    assert (summary.summary_text, summary.session_id) == ("one and two", child.session_id)
    assert [entry.content for entry in await manager.get_compaction_preimage(summary)] == ["one", "two"]
    (state,) = await manager.get_context_states(CHILD, valid_only=False)
    assert (state.payload, state.session_id) == ({"fresh": 1}, child.session_id)
    assert child.total_tokens == child.compaction_count == 0


async def test_parent_and_fork_go_their_own_ways(manager: SessionManager) -> None:
    await manager.create(KEY)
    await say(manager, "one")
    await manager.branch(KEY, CHILD, fork_transcript=True)
    await say(manager, "parent's")
    await say(manager, "child's", key=CHILD)
    assert await said(manager) == ["one", "parent's"]
    assert await said(manager, CHILD) == ["one", "child's"]


async def test_a_fork_that_weighs_too_much_is_an_empty_child(manager: SessionManager) -> None:
    await manager.create(KEY)
    await say(manager, "one", "two")
    await manager.append_message(KEY, "user", "x" * 4_000)
    child = await manager.branch(KEY, CHILD, fork_transcript=True, max_fork_tokens=19)
    assert not child.forked_from_parent
    assert await canonical(manager, CHILD) == []
    fitting = await manager.branch(KEY, "agent:main:fits", fork_transcript=True, max_fork_tokens=20)
    assert fitting.forked_from_parent
    assert len(await said(manager, "agent:main:fits")) == 3


async def test_the_summaries_count_against_the_weight_of_a_fork(manager: SessionManager) -> None:
    await manager.create(KEY)
    await say(manager, "one", "two")
    await manager.persist_compaction_result(KEY, "s" * 4_000, [{"role": "user", "content": "two"}])
    child = await manager.branch(KEY, CHILD, fork_transcript=True, max_fork_tokens=100)
    assert not child.forked_from_parent
    assert await manager.get_summaries(CHILD) == []


async def test_a_fork_before_a_message_holds_what_was_said_before_it(manager: SessionManager) -> None:
    node = await manager.create(KEY)
    entries = await say(manager, "one", "two", "three", "four")
    await manager.persist_compaction_result(KEY, "one, two, three", [{"role": "user", "content": "four"}])
    await manager.save_context_state(context_state(node))
    child = await manager.branch(KEY, CHILD, fork_transcript=True, fork_before_message_id=entries[2].message_id)
    assert child.forked_from_parent
    assert await said(manager, CHILD) == await canonical(manager, CHILD) == ["one", "two"]
    assert await manager.get_summaries(CHILD) == []
    assert await manager.get_context_states(CHILD, valid_only=False) == []


async def test_a_fork_before_an_unknown_message_makes_no_child(manager: SessionManager) -> None:
    await manager.create(KEY)
    await say(manager, "one")
    with pytest.raises(KeyError, match="Transcript message not found"):
        await manager.branch(KEY, CHILD, fork_transcript=True, fork_before_message_id="nowhere")
    assert await manager.get_session(CHILD) is None


async def test_a_branch_onto_a_taken_key_changes_nothing(manager: SessionManager) -> None:
    await manager.create(KEY)
    await say(manager, "one")
    taken = await manager.create(CHILD)
    with pytest.raises(ValueError, match="already exists"):
        await manager.branch(KEY, CHILD, fork_transcript=True)
    assert await stored(manager, CHILD) == taken
    assert await said(manager, CHILD) == []


# --- context states --------------------------------------------------------------------------------------------------


async def test_context_states_are_chosen_by_provider_and_kind(manager: SessionManager) -> None:
    node = await manager.create(KEY)
    portable = await manager.save_context_state(context_state(node, payload={"n": 1}))
    cloud = await manager.save_context_state(context_state(node, provider="cloud", expires_at=1))
    assert portable.id is not None
    assert portable.id != cloud.id
    assert await manager.get_context_states(KEY) == [portable, cloud]
    assert await manager.get_context_states(KEY, "cloud") == [cloud]
    assert await manager.get_context_states(KEY, state_kind="structured_summary_v1") == [portable, cloud]
    assert await manager.get_context_states(KEY, state_kind="other") == []


async def test_an_invalid_context_state_stays_readable_with_its_reason(manager: SessionManager) -> None:
    node = await manager.create(KEY)
    await manager.save_context_state(context_state(node, provider="cloud"))
    portable = await manager.save_context_state(context_state(node))
    assert await manager.invalidate_context_states(KEY, provider="cloud", reason="provider switched") == 1
    assert await manager.get_context_states(KEY) == [portable]
    (invalid,) = await manager.get_context_states(KEY, provider="cloud", valid_only=False)
    assert (invalid.valid, invalid.invalid_reason) == (False, "provider switched")
    assert await manager.invalidate_context_states(KEY, state_kind="structured_summary_v1", reason="all") == 1
    assert await manager.get_context_states(KEY) == []


async def test_context_states_of_a_missing_key_are_none(manager: SessionManager) -> None:
    assert await manager.get_context_states(KEY, valid_only=False) == []


async def test_summaries_come_in_the_order_of_their_index(manager: SessionManager) -> None:
    node = await manager.create(KEY)
    for text in ("first", "second", "third"):
        await manager.storage.save_summary(
            SessionSummary(session_id=node.session_id, session_key=KEY, summary_text=text)
        )
    summaries = await manager.get_summaries(KEY)
    assert [(each.compaction_index, each.summary_text) for each in summaries] == [
        (0, "first"),
        (1, "second"),
        (2, "third"),
    ]
    with pytest.raises(KeyError):
        await manager.get_summaries(CHILD)
