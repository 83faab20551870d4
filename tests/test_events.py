"""What each change tells: the kinds of events and what they carry."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import FrozenInstanceError, asdict
from pathlib import Path

import pytest
from followed import KEY, all_of, brief, briefs, follower_of, resumes_everywhere, said, told_by
from stores import entry, say, state, summary

from squilla_files.commits import CompactionCommit
from squilla_files.models import SessionNode
from squilla_files.storage import SessionStorage


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SessionStorage]:
    async with SessionStorage(tmp_path / "store", device="desk") as opened:
        yield opened


@pytest.fixture
async def node(store: SessionStorage) -> SessionNode:
    return await store.create_session(SessionNode(session_key=KEY, label="first"))


async def test_a_creation_tells_the_session_and_what_was_set(store: SessionStorage, node: SessionNode) -> None:
    (created,) = all_of(store)
    assert created.kind == "created"
    assert (created.session_key, created.epoch, created.node) == (KEY, 0, node)
    assert created.fields["label"] == "first"


async def test_a_message_is_told_whole(store: SessionStorage, node: SessionNode) -> None:
    written = await store.append_transcript_entry(
        entry(node, "text", "assistant", tool_calls=[{"id": "c"}], turn_usage={"cost": 1.5}, reasoning_content="why")
    )
    appended = all_of(store)[-1]
    assert appended.kind == "appended"
    assert appended.entry == written


async def test_a_message_that_raises_counters_tells_them_behind_it(store: SessionStorage, node: SessionNode) -> None:
    await store.append_entry(KEY, entry(node, "m"), fields={"label": "x"}, counters={"total_tokens": 3})
    events = all_of(store)
    assert briefs(events)[1:] == ["appended m", "updated label,total_tokens"]
    assert events[-1].kind == "updated"
    assert dict(events[-1].fields) == {"label": "x", "total_tokens": 3}
    assert events[-1].node.total_tokens == 3
    resumes_everywhere(store, events)


async def test_an_update_tells_what_changed_and_nothing_else(store: SessionStorage, node: SessionNode) -> None:
    await store.update_session(KEY, {"label": "second"}, {"input_tokens": 2})
    await store.update_session(KEY, {}, {"input_tokens": 5})
    updated = all_of(store)[1:]
    assert [dict(event.fields) for event in updated if event.kind == "updated"] == [
        {"label": "second", "input_tokens": 7},
        {"input_tokens": 7},
    ]


async def test_a_fence_tells_the_new_epoch(store: SessionStorage, node: SessionNode) -> None:
    await store.increment_epoch(KEY)
    updated = all_of(store)[-1]
    assert updated.kind == "updated"
    assert (updated.epoch, dict(updated.fields), updated.node.epoch) == (1, {"epoch": 1}, 1)


async def test_a_removal_tells_the_message_once(store: SessionStorage, node: SessionNode) -> None:
    first, second = await say(store, node, "a", "b")
    await store.remove_entry(KEY, first.message_id)
    await store.delete_transcript(node.session_id)
    assert briefs(all_of(store))[1:] == [
        "appended a", "appended b", f"removed {first.message_id}", f"removed {second.message_id}",
    ]  # fmt: skip


async def test_clearing_tells_each_message_in_transcript_order(store: SessionStorage, node: SessionNode) -> None:
    entries = await say(store, node, *"abcd")
    await store.truncate_session(KEY, 2)
    await store.delete_transcript(node.session_id)
    events = all_of(store)
    assert [event.message_id for event in events if event.kind == "removed"] == [e.message_id for e in entries]
    resumes_everywhere(store, events)


async def test_a_compaction_tells_its_summary_its_states_and_what_took_a_place(
    store: SessionStorage, node: SessionNode
) -> None:
    entries = await say(store, node, *"abc")
    await store.commit_compaction(
        KEY,
        CompactionCommit(
            preimage=None,
            kept=(),
            replacements={entries[2].message_id: entry(node, "C")},
            summary=summary(node, "so far"),
            context_states=[state(node, "portable")],
            counters={"compaction_count": 1},
        ),
    )
    events = all_of(store)
    assert briefs(events)[4:] == [
        "compacted so far", f"removed {entries[2].message_id}", "appended C", "context", "updated compaction_count",
    ]  # fmt: skip
    (compacted,) = (event for event in events if event.kind == "compacted")
    assert compacted.summary == await store.get_latest_summary(node.session_id)
    (context,) = (event for event in events if event.kind == "context")
    assert [context.state] == await store.get_context_states(KEY)
    resumes_everywhere(store, events)


async def test_a_truncation_tells_a_compaction_without_a_summary(store: SessionStorage, node: SessionNode) -> None:
    await say(store, node, *"abc")
    await store.truncate_session(KEY, 1)
    compacted = all_of(store)[-1]
    assert compacted.kind == "compacted"
    assert compacted.summary is None


async def test_a_reset_tells_both_epochs_and_the_session(store: SessionStorage, node: SessionNode) -> None:
    await store.increment_epoch(KEY)
    await say(store, node, "old")
    opened = await store.reset_session(KEY, reason="test")
    reset = all_of(store)[-1]
    assert reset.kind == "reset"
    assert (reset.old_epoch, reset.epoch, reset.node) == (1, 2, opened)


async def test_a_message_of_a_closed_generation_bears_its_own_epoch_and_session_id(
    store: SessionStorage, node: SessionNode
) -> None:
    await say(store, node, "old")
    await store.reset_session(KEY, reason="test")
    (old,) = (event for event in all_of(store) if event.kind == "appended")
    assert (old.epoch, old.entry.session_id) == (0, node.session_id)


async def test_summaries_and_states_tell_each_change(store: SessionStorage, node: SessionNode) -> None:
    saved = await store.save_summary(summary(node, "one"))
    await store.save_context_state(state(node))
    await store.update_summary_flush_receipt_status(saved.id or 0, "failed_retryable")
    await store.invalidate_context_states(KEY, reason="old")
    await store.delete_summaries(node.session_id)
    follower = follower_of(store, all_of(store)[0].cursor)
    events = told_by(follower)
    assert briefs(events) == ["compacted one", "context", "compacted one", "context", "updated"]
    assert [(e.state.valid, e.state.invalid_reason) for e in events if e.kind == "context"] == [(False, "old")] * 2
    resumes_everywhere(store, all_of(store))


async def test_a_deletion_is_told_and_what_comes_after_it_from_the_beginning(
    store: SessionStorage, node: SessionNode
) -> None:
    follower = follower_of(store)
    follower.advance()
    await store.delete_session(KEY)
    (deleted,) = told_by(follower)
    assert (deleted.kind, deleted.epoch) == ("deleted", 1)
    again = await store.create_session(SessionNode(session_key=KEY))
    await say(store, again, "new")
    events = told_by(follower)
    assert [brief(event).split()[0] for event in events] == ["created", "appended"]
    assert {event.epoch for event in events} == {1}


async def test_an_event_cannot_be_changed_and_shows_all_that_it_carries(
    store: SessionStorage, node: SessionNode
) -> None:
    await say(store, node, "a")
    (appended,) = all_of(store)[1:]
    with pytest.raises(FrozenInstanceError):
        appended.cursor = ""  # type: ignore[misc]
    assert set(asdict(appended)) == {"kind", "session_key", "epoch", "cursor", "entry"}
    assert said([appended]) == ["a"]


async def test_a_cursor_is_short_and_printable_whatever_the_session_went_through(
    store: SessionStorage, node: SessionNode
) -> None:
    lengths = []
    for turn in range(6):
        await say(store, node, *(f"{turn} {number}" for number in range(4)))
        await store.commit_compaction(KEY, CompactionCommit(preimage=None, kept=(), summary=summary(node, "s")))
        lengths.append(len(all_of(store)[-1].cursor))
    cursor = all_of(store)[-1].cursor
    assert cursor.isascii()
    assert cursor.isprintable()
    assert " " not in cursor
    assert max(lengths) < 100
    assert lengths[-1] <= lengths[1] + 4
