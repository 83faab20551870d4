"""Transcripts in a store on a real disk: appended, retried, read in order, removed, rewritten."""

from __future__ import annotations

import asyncio
import errno
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from faulty_files import FaultyFiles
from stores import KEY, entry, filled, kept, logs, records, said, say, state, stored, summary, tree

from squilla_files.errors import MessageConflictError, SessionNotFoundError
from squilla_files.models import SESSION_COUNTERS, SessionNode, TranscriptEntry, new_id
from squilla_files.storage import SessionStorage, StaleEpochError

OTHER = "agent:main:subagent:one"


async def canonical(store: SessionStorage, session_id: str) -> list[Any]:
    return [found.content for found in await store.get_canonical_transcript(session_id)]


async def refused(
    store: SessionStorage, root: Path, given: TranscriptEntry, kind: type[Exception], **epoch: Any
) -> Any:
    """Append what must be refused; return the error, and see that nothing was written."""
    before = kept(root)
    with pytest.raises(kind) as raised:
        await store.append_transcript_entry(given, **epoch)
    assert kept(root) == before
    assert given.id is None
    return raised.value


# --- appending -------------------------------------------------------------------------------------------------------


async def test_an_entry_comes_back_with_every_field_as_given(
    root: Path, store: SessionStorage, node: SessionNode
) -> None:
    samples: dict[str, Any] = {
        "content": [{"type": "text", "text": "hello"}, None, 1.5],
        "tool_calls": [{"id": "c-1", "arguments": {"a": [True, None]}}],
        "turn_usage": {"input": 1, "cost": 0.25},
        "created_at": 12,
        "token_count": 0,
        "schema_version": 3,
        "role": "assistant",
    }
    given = entry(node, None, "user")
    for declared in fields(TranscriptEntry):
        if declared.name not in ("id", "session_id", "session_key"):
            setattr(given, declared.name, samples.get(declared.name, f"some {declared.name}"))
    assert await store.append_transcript_entry(given) is given
    assert isinstance(given.id, int)
    assert await store.get_transcript(node.session_id) == [given]
    async with SessionStorage(root, device="laptop") as other:
        assert await other.get_transcript(node.session_id) == [given]
        assert [found async for found in other.iter_transcript(node.session_id)] == [given]
    (message,) = [record for record in records(root) if record["type"] == "message"]
    assert next(iter(message)) == "type"
    assert list(message)[-1] == "content"


async def test_append_sets_an_id_that_grows_strictly(store: SessionStorage, node: SessionNode) -> None:
    appended = await say(store, node, *"abcde")
    ids = [found.id for found in appended]
    assert ids == sorted({found.id for found in await store.get_transcript(node.session_id)})
    together = await asyncio.gather(*(store.append_transcript_entry(entry(node, number)) for number in range(5)))
    ids += [found.id for found in together]
    assert ids == sorted(set(ids))
    assert [found.id for found in await store.get_transcript(node.session_id)] == ids


async def test_equal_and_falling_times_keep_the_order_of_insertion(
    root: Path, store: SessionStorage, node: SessionNode
) -> None:
    for number, at in enumerate((50, 50, 10, 99, 0, -5)):
        await store.append_transcript_entry(entry(node, number, created_at=at))
    assert await said(store, node.session_id) == [0, 1, 2, 3, 4, 5]
    async with SessionStorage(root) as other:
        assert await said(other, node.session_id) == [0, 1, 2, 3, 4, 5]


async def test_a_given_message_id_is_kept_and_another_is_made(store: SessionStorage, node: SessionNode) -> None:
    await say(store, node, "one", message_id="chosen")
    await say(store, node, "two")
    first, second = await store.get_transcript(node.session_id)
    assert first.message_id == "chosen"
    assert len(second.message_id) == 36


@pytest.mark.parametrize("name", ["message_id", "role"])
@pytest.mark.parametrize("value", ["", None, 7, ["a"]])
async def test_an_entry_without_identity_or_role_is_refused(
    root: Path, store: SessionStorage, node: SessionNode, name: str, value: Any
) -> None:
    await refused(store, root, entry(node, "x", **{name: value}), ValueError)


async def test_the_expected_epoch_must_be_the_one_in_force(
    root: Path, store: SessionStorage, node: SessionNode
) -> None:
    await store.append_transcript_entry(entry(node, "one"), expected_epoch=0)
    await store.increment_epoch(KEY)
    for expected in (0, 2):
        error = await refused(store, root, entry(node, "no"), StaleEpochError, expected_epoch=expected)
        assert (error.session_key, error.expected_epoch, error.actual_epoch) == (KEY, expected, 1)
    await store.append_transcript_entry(entry(node, "two"), expected_epoch=1)
    assert await said(store, node.session_id) == ["one", "two"]


async def test_an_expected_epoch_of_a_missing_session_is_stale_with_no_actual_epoch(
    root: Path, store: SessionStorage, node: SessionNode
) -> None:
    await store.upsert_session(SessionNode(session_key=OTHER))
    await store.delete_session(OTHER)
    missing = SessionNode(session_key=OTHER)
    error = await refused(store, root, entry(missing, "no"), StaleEpochError, expected_epoch=0)
    assert (error.session_key, error.expected_epoch, error.actual_epoch) == (OTHER, 0, None)


async def test_without_an_expected_epoch_a_missing_session_is_a_key_error(
    root: Path, store: SessionStorage, node: SessionNode
) -> None:
    await store.upsert_session(SessionNode(session_key=OTHER))
    await store.delete_session(OTHER)
    error = await refused(store, root, entry(SessionNode(session_key=OTHER), "no"), SessionNotFoundError)
    assert isinstance(error, KeyError)
    assert error.session_key == OTHER


async def test_without_an_expected_epoch_a_foreign_session_id_is_stale(
    root: Path, store: SessionStorage, node: SessionNode
) -> None:
    error = await refused(store, root, entry(node, "no", session_id=new_id()), StaleEpochError)
    assert (error.session_key, error.expected_epoch, error.actual_epoch) == (KEY, None, 0)


async def test_a_writer_that_read_the_session_before_a_reset_cannot_append_after_it(
    root: Path, store: SessionStorage, node: SessionNode
) -> None:
    await say(store, node, "one")
    async with SessionStorage(root, device="laptop", durability="os") as other:
        await other.reset_session(KEY, reason="test")
    await refused(store, root, entry(node, "late"), StaleEpochError)
    await refused(store, root, entry(node, "late"), StaleEpochError, expected_epoch=0)
    assert await said(store, (await stored(store)).session_id) == []


async def test_a_refused_append_does_not_stop_those_that_are_written_with_it(
    store: SessionStorage, node: SessionNode
) -> None:
    given = [
        entry(node, "a"),
        entry(node, {1, 2}),  # type: ignore[arg-type]
        entry(node, "b"),
        entry(node, "no", session_id="another"),
        entry(node, "c", message_id="m"),
        entry(node, "other", message_id="m"),
    ]
    results = await asyncio.gather(*map(store.append_transcript_entry, given), return_exceptions=True)
    kinds = [type(result).__name__ for result in results]
    assert kinds == [
        "TranscriptEntry",
        "UnstorableTypeError",
        "TranscriptEntry",
        "StaleEpochError",
        "TranscriptEntry",
        "MessageConflictError",
    ]
    assert await said(store, node.session_id) == ["a", "b", "c"]


async def test_an_append_touches_no_field_of_the_session(root: Path, store: SessionStorage) -> None:
    node = await store.upsert_session(filled(SessionNode(session_key=KEY)))
    await say(store, node, "one", token_count=50, turn_usage={"input_tokens": 5})
    assert await store.get_session(KEY) == node
    async with SessionStorage(root) as other:
        assert await other.get_session(KEY) == node


async def test_appends_that_wait_together_share_a_sync_and_a_write(root: Path) -> None:
    disk = FaultyFiles("full")
    async with SessionStorage(root, files=disk) as store:
        node = await store.upsert_session(SessionNode(session_key=KEY))
        disk.calls.clear()
        await asyncio.gather(*(store.append_transcript_entry(entry(node, number)) for number in range(100)))
        names = [call.name for call in disk.calls]
        assert names.count("sync") == names.count("write") == 1
        assert await said(store, node.session_id) == list(range(100))


async def test_what_a_failed_write_was_to_hold_is_refused_and_can_be_written_again(root: Path) -> None:
    disk = FaultyFiles("os")
    async with SessionStorage(root, files=disk) as store:
        node = await store.upsert_session(SessionNode(session_key=KEY))
        await say(store, node, "one")
        (log,) = logs(root)
        before = log.read_bytes()
        disk.fail_at(1, "short")
        given = entry(node, "two")
        with pytest.raises(OSError, match="space"):
            await store.append_transcript_entry(given)
        assert given.id is None
        disk.heal()
        assert log.read_bytes() == before
        assert await said(store, node.session_id) == ["one"]
        await store.append_transcript_entry(given)
        assert await said(store, node.session_id) == ["one", "two"]


async def test_append_entry_sets_fields_and_counters_in_the_line_of_the_message(
    root: Path, store: SessionStorage, node: SessionNode
) -> None:
    lines = len(records(root))
    appended = await store.append_entry(
        f" {KEY}", entry(node, "x", session_id=""), fields={"updated_at": 9}, counters={"total_tokens": 4}
    )
    assert appended.session_id == node.session_id
    assert len(records(root)) == lines + 1
    after = await stored(store)
    assert (after.updated_at, after.total_tokens) == (9, 4)
    with pytest.raises(ValueError, match="shoe_size"):
        await store.append_entry(KEY, entry(node, "no"), fields={"shoe_size": 4})
    with pytest.raises(SessionNotFoundError):
        await store.append_entry(OTHER, entry(node, "no"))
    assert await said(store, node.session_id) == ["x"]


# --- the same message again ------------------------------------------------------------------------------------------


async def test_the_same_message_again_is_one_entry(root: Path, store: SessionStorage, node: SessionNode) -> None:
    (first,) = await say(store, node, {"a": [1]}, message_id="m", token_count=3)
    await say(store, node, "between")
    before = tree(root)
    again = entry(node, {"a": [1]}, message_id="m", token_count=3, created_at=1)
    assert (await store.append_transcript_entry(again)).id == first.id
    assert tree(root) == before
    assert await said(store, node.session_id) == [{"a": [1]}, "between"]


async def test_the_same_message_again_is_one_entry_for_another_store_and_once_archived(
    root: Path, store: SessionStorage, node: SessionNode
) -> None:
    (first,) = await say(store, node, "one", message_id="m")
    async with SessionStorage(root, device="laptop", durability="os") as other:
        assert (await say(other, node, "one", message_id="m"))[0].id == first.id
    await store.truncate_session(KEY, 0)
    assert (await say(store, node, "one", message_id="m"))[0].id == first.id
    assert await said(store, node.session_id) == []
    assert await canonical(store, node.session_id) == ["one"]


async def test_the_same_message_twice_in_one_write_is_one_entry(store: SessionStorage, node: SessionNode) -> None:
    pair = await asyncio.gather(
        *(store.append_transcript_entry(entry(node, "one", message_id="m", created_at=at)) for at in (1, 2))
    )
    assert pair[0].id == pair[1].id
    assert await said(store, node.session_id) == ["one"]


@pytest.mark.parametrize(
    "other",
    [
        {"content": "two"},
        {"content": None},
        {"role": "system"},
        {"token_count": 1},
        {"tool_calls": []},
        {"tool_call_id": "c"},
        {"reasoning_content": "r"},
        {"turn_usage": {}},
        {"provenance_kind": "external_user"},
        {"schema_version": 2},
    ],
)
async def test_a_message_id_with_other_content_is_refused(
    root: Path, store: SessionStorage, node: SessionNode, other: dict[str, Any]
) -> None:
    await say(store, node, "one", message_id="m")
    given = {"content": "one", "message_id": "m", **other}
    error = await refused(store, root, entry(node, **given), MessageConflictError)
    assert isinstance(error, ValueError)
    assert (error.session_key, error.message_id) == (KEY, "m")


@pytest.mark.parametrize(
    ("stored_value", "given"), [(1, True), (0, False), (1, 1.0), ([1], [True]), ({"a": 0}, {"a": -0.0})]
)
async def test_values_that_only_python_calls_equal_are_other_content(
    root: Path, store: SessionStorage, node: SessionNode, stored_value: Any, given: Any
) -> None:
    await say(store, node, stored_value, message_id="m")
    await refused(store, root, entry(node, given, message_id="m"), MessageConflictError)


@pytest.mark.parametrize("way", ["entry", "transcript", "reset"])
async def test_a_message_id_that_was_removed_is_refused(
    root: Path, store: SessionStorage, node: SessionNode, way: str
) -> None:
    await say(store, node, "one", message_id="m")
    if way == "entry":
        await store.delete_transcript_entry(node.session_id, "m")
    elif way == "transcript":
        await store.delete_transcript(node.session_id)
    else:
        node = await store.reset_session(KEY, reason="test")
    error = await refused(store, root, entry(node, "one", message_id="m"), MessageConflictError)
    assert error.message_id == "m"
    assert await said(store, node.session_id) == []


async def test_the_same_message_id_may_stand_in_two_sessions(store: SessionStorage, node: SessionNode) -> None:
    other = await store.upsert_session(SessionNode(session_key=OTHER))
    await say(store, node, "one", message_id="m")
    await say(store, other, "two", message_id="m")
    assert await said(store, node.session_id) == ["one"]
    assert await said(store, other.session_id) == ["two"]


# --- reading ---------------------------------------------------------------------------------------------------------


async def test_limit_counts_from_the_oldest_and_offset_passes_over(store: SessionStorage, node: SessionNode) -> None:
    await say(store, node, *range(6))
    await store.truncate_session(KEY, 4)

    async def live(**given: int | None) -> list[Any]:
        return [found.content for found in await store.get_transcript(node.session_id, **given)]

    assert await live(limit=2) == [2, 3]
    assert await live(limit=2, offset=1) == [3, 4]
    assert await live(offset=3) == [5]
    assert await live(limit=None) == [2, 3, 4, 5]
    assert await live(limit=0) == await live(offset=4) == []
    found = await store.get_canonical_transcript(node.session_id, 2, 1)
    assert [each.content for each in found] == [1, 2]
    assert [each.content for each in await store.get_recent_transcript(node.session_id, 2)] == [4, 5]
    assert len(await store.get_recent_transcript(node.session_id, 9)) == 4
    assert await store.get_recent_transcript(node.session_id, 0) == []


async def test_negative_bounds_are_refused(store: SessionStorage, node: SessionNode) -> None:
    await say(store, node, "one")
    session_id = node.session_id
    for reading in (
        lambda: store.get_transcript(session_id, -1),
        lambda: store.get_transcript(session_id, 1, -1),
        lambda: store.get_canonical_transcript(session_id, -1),
        lambda: store.get_recent_transcript(session_id, -1),
        lambda: store.read_entries(KEY, last=-1),
        lambda: store.read_page(KEY, limit=-1),
        lambda: store.list_user_transcript_content_batch([session_id], limit_per_session=-1),
    ):
        with pytest.raises(ValueError, match="must not be negative"):
            await reading()


async def test_the_canonical_transcript_holds_archived_and_live_entries_in_order(
    store: SessionStorage, node: SessionNode
) -> None:
    entries = await say(store, node, *range(4))
    await store.truncate_session(KEY, 2)
    await say(store, node, 4)
    await store.delete_transcript_entry(node.session_id, entries[3].message_id)
    assert await said(store, node.session_id) == [2, 4]
    assert await canonical(store, node.session_id) == [0, 1, 2, 4]
    assert await store.count_transcript_entries(node.session_id) == 2
    for is_canonical in (False, True):
        iterated = [e.content async for e in store.iter_transcript(node.session_id, canonical=is_canonical)]
        assert iterated == ([0, 1, 2, 4] if is_canonical else [2, 4])


async def test_what_one_store_appends_another_reads_at_once(
    root: Path, store: SessionStorage, node: SessionNode
) -> None:
    async with SessionStorage(root, device="desk", durability="os") as other:
        for number in range(10):
            writer, reader = (store, other) if number % 2 else (other, store)
            await say(writer, node, number)
            assert await said(reader, node.session_id) == list(range(number + 1))


async def test_entries_are_counted_in_batches(store: SessionStorage, node: SessionNode) -> None:
    other = await store.upsert_session(SessionNode(session_key=OTHER))
    await say(store, node, "a", "b")
    assert await store.count_transcript_entries_batch([node.session_id, "unknown", other.session_id]) == {
        node.session_id: 2,
        "unknown": 0,
        other.session_id: 0,
    }
    await store.truncate_session(KEY, 1)
    assert await store.count_transcript_entries_batch([node.session_id]) == {node.session_id: 1}
    assert await store.count_transcript_entries_batch([]) == {}


async def test_the_first_user_texts_of_many_sessions_come_in_one_call(store: SessionStorage, node: SessionNode) -> None:
    other = await store.upsert_session(SessionNode(session_key=OTHER))
    await say(store, node, "no", role="assistant")
    await say(store, node, "1", [{"type": "text", "text": "2"}], "3", "4")
    await say(store, node, "no", role="tool")
    ids = [node.session_id, other.session_id, "unknown"]
    assert await store.list_user_transcript_content_batch(ids) == {ids[0]: ["1", "2", "3"], ids[1]: [], ids[2]: []}
    assert await store.list_user_transcript_content_batch(ids[:1], limit_per_session=1) == {ids[0]: ["1"]}
    assert await store.list_user_transcript_content_batch(ids[:1], limit_per_session=9) == {
        ids[0]: ["1", "2", "3", "4"]
    }


NAMED = {
    "get_transcript": [],
    "get_canonical_transcript": [],
    "count_transcript_entries": 0,
    "get_all_summaries": [],
    "get_latest_summary": None,
    "delete_transcript": 0,
    "delete_summaries": 0,
}


async def read_as_empty(store: SessionStorage, session_id: str) -> None:
    for name, nothing in NAMED.items():
        assert await getattr(store, name)(session_id) == nothing, name
    assert await store.get_recent_transcript(session_id, 9) == []
    assert await store.count_transcript_entries_batch([session_id]) == {session_id: 0}
    assert await store.list_user_transcript_content_batch([session_id]) == {session_id: []}
    assert await store.get_compacted_transcript_entries(session_id=session_id, compaction_id="c") == []
    assert await store.search_transcript("word", session_id) == []
    assert await store.delete_transcript_entry(session_id, "m") is False
    for is_canonical in (False, True):
        assert [found async for found in store.iter_transcript(session_id, canonical=is_canonical)] == []


async def write_something(store: SessionStorage, node: SessionNode) -> None:
    await say(store, node, "word")
    kept = await say(store, node, "word", message_id=f"m-{node.session_id}")
    await store.rewrite_compacted_session(
        node=await stored(store), summary=summary(node, "s", compaction_id="c"), entries=kept
    )


@pytest.mark.parametrize("fresh", [False, True])
async def test_an_unknown_session_id_and_one_of_a_closed_generation_read_as_empty(
    root: Path, store: SessionStorage, node: SessionNode, fresh: bool
) -> None:
    await read_as_empty(store, "unknown")
    await write_something(store, node)
    after = await store.reset_session(KEY, reason="test")
    await write_something(store, after)
    before = tree(root)
    if fresh:
        async with SessionStorage(root, device="desk") as other:
            await read_as_empty(other, node.session_id)
    else:
        await read_as_empty(store, node.session_id)
    assert tree(root) == before
    assert await said(store, after.session_id) == ["word"]


@pytest.mark.parametrize("fresh", [False, True])
async def test_every_session_id_that_the_generation_has_had_names_it(
    root: Path, store: SessionStorage, node: SessionNode, fresh: bool
) -> None:
    first = node.session_id
    await say(store, node, "one")
    node.session_id = new_id()
    await store.upsert_session(node)
    await say(store, node, "two")
    await store.append_transcript_entry(entry(node, "three", session_id=first))
    reader = await SessionStorage.open(root, device="desk") if fresh else store
    for session_id in (first, node.session_id):
        assert await said(reader, session_id) == ["one", "two", "three"]
        assert await reader.count_transcript_entries(session_id) == 3
        assert await reader.count_transcript_entries_batch([session_id]) == {session_id: 3}
        iterated = [each.content async for each in reader.iter_transcript(session_id)]
        assert iterated == ["one", "two", "three"]
    if fresh:
        await reader.close()


async def test_a_session_id_that_another_store_closed_reads_as_empty_at_once(
    root: Path, store: SessionStorage, node: SessionNode
) -> None:
    await say(store, node, "one")
    assert await said(store, node.session_id) == ["one"]
    async with SessionStorage(root, device="laptop") as other:
        after = await other.reset_session(KEY, reason="test")
    assert await said(store, node.session_id) == []
    assert await store.get_transcript(after.session_id) == []
    await say(store, after, "two")
    assert await said(store, after.session_id) == ["two"]


async def test_reading_by_key_takes_the_present_generation(store: SessionStorage, node: SessionNode) -> None:
    await say(store, node, *range(4))
    await store.truncate_session(KEY, 2)
    entries = await store.read_entries(KEY)
    assert [each.content for each in entries] == [2, 3]
    assert [each.content for each in await store.read_entries(KEY, canonical=True, limit=2, offset=1)] == [1, 2]
    assert [each.content for each in await store.read_entries(KEY, last=1)] == [3]
    snapshot = await store.snapshot(KEY)
    assert (snapshot.node, snapshot.entries) == (await stored(store), entries)
    page, more, complete = await store.read_page(KEY, limit=2, before=entries[1].message_id)
    assert ([each.content for each in page], more, complete) == ([1, 2], True, True)
    for missing in (store.read_entries(OTHER), store.snapshot(OTHER), store.read_page(OTHER, limit=1)):
        with pytest.raises(SessionNotFoundError):
            await missing


# --- taking out ------------------------------------------------------------------------------------------------------


async def test_deleting_a_transcript_takes_every_message_and_leaves_session_and_summaries(
    root: Path, store: SessionStorage, node: SessionNode
) -> None:
    await say(store, node, *range(4))
    await store.truncate_session(KEY, 2)
    await store.save_summary(summary(node, "so far"))
    assert await store.delete_transcript(node.session_id) == 4
    assert await canonical(store, node.session_id) == []
    assert await store.get_session(KEY) == node
    assert len(await store.get_all_summaries(node.session_id)) == 1
    assert await store.delete_transcript(node.session_id) == 0
    await say(store, node, "again")
    async with SessionStorage(root) as other:
        assert await canonical(other, node.session_id) == ["again"]


async def test_deleting_an_entry_takes_a_live_message_of_that_session(store: SessionStorage, node: SessionNode) -> None:
    other = await store.upsert_session(SessionNode(session_key=OTHER))
    archived, live = await say(store, node, "one", "two")
    await store.truncate_session(KEY, 1)
    assert await store.delete_transcript_entry(node.session_id, archived.message_id) is False
    assert await store.delete_transcript_entry(node.session_id, "unknown") is False
    assert await store.delete_transcript_entry(other.session_id, live.message_id) is False
    assert await store.delete_transcript_entry(node.session_id, live.message_id) is True
    assert await store.delete_transcript_entry(node.session_id, live.message_id) is False
    assert await canonical(store, node.session_id) == ["one"]
    assert await store.remove_entry(OTHER, "unknown") is False
    assert await store.remove_entry("no-such-session", "unknown") is False


# --- rewriting -------------------------------------------------------------------------------------------------------


async def test_rewriting_archives_what_is_not_listed_and_puts_what_is_new_at_the_end(
    root: Path, store: SessionStorage, node: SessionNode
) -> None:
    old = await say(store, node, *"abcd")
    node.label, node.input_tokens, node.compaction_count = "x", 7, 1
    fresh = [entry(node, "e"), entry(node, "f")]
    saved = await store.rewrite_compacted_session(
        node=node,
        summary=summary(node, "so far", compaction_id="c"),
        entries=[old[1], fresh[0], old[3], fresh[1]],
        context_states=[state(node, payload={"a": 1}), state(node, "other")],
    )
    assert await said(store, node.session_id) == ["b", "d", "e", "f"]
    assert await canonical(store, node.session_id) == ["a", "b", "c", "d", "e", "f"]
    assert await store.get_session(KEY) == node
    assert saved is not None
    assert await store.get_all_summaries(node.session_id) == [saved]
    assert (saved.summary_text, saved.compaction_index) == ("so far", 0)
    assert [found.state_kind for found in await store.get_context_states(KEY)] == ["kind", "other"]
    compacted = await store.get_compacted_transcript_entries(session_id=node.session_id, compaction_id="c")
    assert [found.content for found in compacted] == ["a", "c"]
    live = await store.get_transcript(node.session_id)
    assert live[:2] == [old[1], old[3]]
    ids = [found.id for found in live]
    assert ids == sorted(set(ids))
    async with SessionStorage(root) as other:
        assert await other.get_transcript(node.session_id) == live
        assert await other.get_session(KEY) == node


async def test_each_compaction_has_the_entries_that_it_archived_and_no_earlier_one(
    store: SessionStorage, node: SessionNode
) -> None:
    entries = await say(store, node, *"abcd")
    for number, staying in enumerate((entries[2:], entries[3:])):
        await store.rewrite_compacted_session(
            node=node, summary=summary(node, "s", compaction_id=f"c{number}"), entries=staying
        )
    for compaction_id, expected in (("c0", ["a", "b"]), ("c1", ["c"]), ("c2", [])):
        found = await store.get_compacted_transcript_entries(session_id=node.session_id, compaction_id=compaction_id)
        assert [each.content for each in found] == expected


async def test_rewriting_without_a_summary_or_without_entries(store: SessionStorage, node: SessionNode) -> None:
    await say(store, node, *"ab")
    assert await store.rewrite_compacted_session(node=node, summary=None, entries=[]) is None
    assert await said(store, node.session_id) == []
    assert await canonical(store, node.session_id) == ["a", "b"]
    assert await store.get_all_summaries(node.session_id) == []


async def test_rewriting_is_one_commit_whatever_call_of_the_disk_fails(tmp_path: Path) -> None:
    outcomes = []
    for k in range(1, 200):
        disk = FaultyFiles("os")
        async with SessionStorage(tmp_path / str(k), device="desk", files=disk) as store:
            node = await store.upsert_session(SessionNode(session_key=KEY))
            old = await say(store, node, *"abc")
            before = await stored(store)
            node.label, node.compaction_count = "x", 1
            disk.fail_at(k, errno.EIO)
            try:
                await store.rewrite_compacted_session(
                    node=node,
                    summary=summary(node, "so far"),
                    entries=[old[2], entry(node, "d")],
                    context_states=[state(node)],
                )
            except OSError:
                failed = True
            else:
                failed = False
            reached = not disk._faults
            disk.heal()
            seen = (
                await said(store, node.session_id),
                await canonical(store, node.session_id),
                await store.get_session(KEY),
                len(await store.get_all_summaries(node.session_id)),
                len(await store.get_context_states(KEY)),
            )
            after = (["c", "d"], ["a", "b", "c", "d"], node, 1, 1)
            assert seen in ((["a", "b", "c"], ["a", "b", "c"], before, 0, 0), after), k
            assert failed or seen == after, k
            outcomes.append((failed, seen == after))
            await say(store, node, "more")
        if not reached:
            break
    assert (True, False) in outcomes
    assert outcomes[-1] == (False, True)


async def test_rewriting_with_a_node_of_another_epoch_is_refused(
    root: Path, store: SessionStorage, node: SessionNode
) -> None:
    entries = await say(store, node, *"ab")
    await store.increment_epoch(KEY)
    before = tree(root)
    with pytest.raises(StaleEpochError) as raised:
        await store.rewrite_compacted_session(node=node, summary=summary(node, "s"), entries=entries[1:])
    assert (raised.value.expected_epoch, raised.value.actual_epoch) == (0, 1)
    assert tree(root) == before


async def test_rewriting_a_missing_session_is_a_key_error(store: SessionStorage, node: SessionNode) -> None:
    with pytest.raises(SessionNotFoundError):
        await store.rewrite_compacted_session(node=SessionNode(session_key=OTHER), summary=None, entries=[])


@pytest.mark.parametrize("which", ["removed", "archived", "twice"])
async def test_rewriting_with_an_entry_whose_id_is_taken_is_refused(
    root: Path, store: SessionStorage, node: SessionNode, which: str
) -> None:
    first, second, third = await say(store, node, *"abc")
    await store.truncate_session(KEY, 2)
    await store.delete_transcript_entry(node.session_id, second.message_id)
    new = entry(node, "n")
    entries = {"removed": [third, second], "archived": [first, third], "twice": [third, new, new]}[which]
    before = tree(root)
    with pytest.raises(MessageConflictError):
        await store.rewrite_compacted_session(node=node, summary=summary(node, "s"), entries=entries)
    assert tree(root) == before


async def test_counters_of_a_rewriting_are_written_as_the_difference(
    root: Path, store: SessionStorage, node: SessionNode
) -> None:
    await store.update_session(KEY, {}, {"total_tokens": 5})
    node = await stored(store)
    node.total_tokens, node.compaction_count = 2, 3
    await store.rewrite_compacted_session(node=node, summary=None, entries=[])
    (line,) = [record for record in records(root) if record["type"] == "compaction"]
    assert line["add"] == {"total_tokens": -3, "compaction_count": 3}
    assert {"total_tokens", "compaction_count"} <= SESSION_COUNTERS
    assert await store.get_session(KEY) == node


async def test_truncating_says_how_many_were_live_before_and_after(store: SessionStorage, node: SessionNode) -> None:
    await say(store, node, *range(5))
    assert await store.truncate_session(KEY, 3) == (5, 3)
    assert await store.truncate_session(KEY, 9) == (3, 3)
    with pytest.raises(ValueError, match="negative"):
        await store.truncate_session(KEY, -1)
    with pytest.raises(SessionNotFoundError):
        await store.truncate_session(OTHER, 1)
    assert await store.truncate_session(KEY, 0) == (3, 0)
    assert await canonical(store, node.session_id) == list(range(5))


async def test_rewriting_refuses_other_content_under_the_id_of_a_live_message(
    store: SessionStorage, node: SessionNode
) -> None:
    one, two = await say(store, node, "one", "two")
    changed = replace(two, content="another")
    with pytest.raises(MessageConflictError):
        await store.rewrite_compacted_session(node=await stored(store), summary=None, entries=[one, changed])
    assert await said(store, node.session_id) == ["one", "two"]


async def test_a_foreign_value_too_deep_to_be_written_again_stops_no_write(
    root: Path, store: SessionStorage, node: SessionNode, caplog: pytest.LogCaptureFixture
) -> None:
    await say(store, node, "one")
    await store.close()
    deep = '{"a":' * 300 + "1" + "}" * 300
    (log,) = logs(root)
    with log.open("a") as file:
        file.write(f'{{"type":"session","id":9,"record":"deep","set":{{"origin":{deep}}}}}\n')
    async with SessionStorage(root, device="desk") as again:
        await again.update_session(KEY, {"label": "shown"})
        assert (await stored(again)).label == "shown"
        assert (await stored(again)).origin is not None
        await again.reset_session(KEY, reason="test")
        assert await said(again, (await stored(again)).session_id) == []
    assert "checkpoint failed" in caplog.text
