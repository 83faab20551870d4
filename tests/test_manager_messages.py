"""What is said in a session: adding, removing, reading and shortening."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from squilla_files.manager import SessionManager
from squilla_files.models import InputProvenanceKind, TranscriptEntry
from squilla_files.storage import SessionStorage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from squilla_files.models import SessionNode

KEY = "agent:main:main"


@pytest.fixture
async def storage(tmp_path: Path) -> AsyncIterator[SessionStorage]:
    async with SessionStorage(tmp_path, device="desk", durability="os") as storage:
        yield storage


@pytest.fixture
async def manager(storage: SessionStorage) -> SessionManager:
    manager = SessionManager(storage, inject_time_prefix=False)
    await manager.create(KEY)
    return manager


async def said(manager: SessionManager) -> list[Any]:
    return [entry.content for entry in await manager.get_transcript(KEY)]


async def node(manager: SessionManager) -> SessionNode:
    found = await manager.get_session(KEY)
    assert found is not None
    return found


# --- adding ----------------------------------------------------------------------------------------------------------


async def test_a_message_comes_back_as_it_was_given(manager: SessionManager) -> None:
    calls = [{"id": "c-1", "name": "weather", "arguments": {"city": "Ōsaka"}}]
    added = [
        await manager.append_message(KEY, "user", "how is the weather?"),
        await manager.append_message(KEY, role="assistant", content="", tool_calls=calls, reasoning_content="look"),
        await manager.append_message(KEY, "tool", "rain", tool_call_id="c-1"),
        await manager.append_message(KEY, "assistant", [{"type": "text", "text": "It rains."}], turn_usage={"in": 3}),
    ]
    entries = await manager.get_transcript(KEY)
    assert entries == added
    assert [entry.role for entry in entries] == ["user", "assistant", "tool", "assistant"]
    assert entries[1].tool_calls == calls
    assert entries[1].reasoning_content == "look"
    assert entries[2].tool_call_id == "c-1"
    assert entries[3].content == [{"type": "text", "text": "It rains."}]
    assert entries[3].turn_usage == {"in": 3}


async def test_an_entry_belongs_to_the_session_and_its_id_grows(manager: SessionManager) -> None:
    first = await manager.append_message(KEY, "user", "one")
    second = await manager.append_message(f" {KEY}", "user", "two")
    assert first.session_id == (await node(manager)).session_id
    assert second.session_key == KEY
    assert first.id is not None
    assert second.id is not None
    assert first.id < second.id
    assert first.message_id != second.message_id


@pytest.mark.parametrize("role", ["user", "system", "tool"])
async def test_reasoning_and_usage_are_kept_for_assistants_only(manager: SessionManager, role: str) -> None:
    entry = await manager.append_message(KEY, role, "x", reasoning_content="secret", turn_usage={"in": 1})
    assert (entry.reasoning_content, entry.turn_usage) == (None, None)
    assert await manager.get_transcript(KEY) == [entry]


async def test_tokens_of_a_message_are_added_and_the_total_is_not_fresh(manager: SessionManager) -> None:
    await manager.update(KEY, total_tokens=100, total_tokens_fresh=True)
    entry = await manager.append_message(KEY, "user", "x", token_count=7)
    await manager.append_message(KEY, "user", "y", token_count=5)
    assert entry.token_count == 7
    after = await node(manager)
    assert (after.total_tokens, after.total_tokens_fresh) == (112, False)


async def test_a_message_without_tokens_leaves_the_total_as_it_is(manager: SessionManager) -> None:
    await manager.update(KEY, total_tokens=100, total_tokens_fresh=True)
    await manager.append_message(KEY, "user", "x")
    after = await node(manager)
    assert (after.total_tokens, after.total_tokens_fresh) == (100, True)


async def test_who_gives_the_usage_of_a_turn_accounts_for_it(manager: SessionManager) -> None:
    await manager.update(KEY, total_tokens=100, total_tokens_fresh=True)
    entry = await manager.append_message(KEY, "assistant", "x", token_count=7, turn_usage={"output_tokens": 7})
    assert (entry.token_count, entry.turn_usage) == (7, {"output_tokens": 7})
    after = await node(manager)
    assert (after.total_tokens, after.total_tokens_fresh) == (100, True)


async def test_a_message_says_that_the_session_is_in_use(manager: SessionManager) -> None:
    await manager.update(KEY, updated_at=5)
    entry = await manager.append_message(KEY, "user", "x")
    assert (await node(manager)).updated_at == entry.created_at > 5


async def test_an_append_at_the_store_touches_no_field_of_the_session(manager: SessionManager) -> None:
    before = await manager.update(KEY, updated_at=5, total_tokens_fresh=True)
    await manager.storage.append_transcript_entry(
        TranscriptEntry(session_id=before.session_id, session_key=KEY, role="user", content="x", token_count=7)
    )
    assert await node(manager) == before


async def test_message_and_counter_are_one_line_of_the_log(manager: SessionManager) -> None:
    def lines() -> list[bytes]:
        logs = Path(manager.storage.root).rglob("transcript.*")
        return [line for path in logs for line in path.read_bytes().splitlines()]

    before = lines()
    await manager.append_message(KEY, "user", "x", token_count=7)
    (line,) = lines()[len(before) :]
    assert json.loads(line)["add"] == {"total_tokens": 7}
    assert json.loads(line)["content"] == "x"


async def test_what_json_cannot_hold_changes_nothing(manager: SessionManager) -> None:
    before = await node(manager)
    for value in ("\ud800", float("nan"), {"a": {1}}):
        with pytest.raises((TypeError, ValueError)):
            await manager.append_message(KEY, "user", value, token_count=7)  # type: ignore[arg-type]
    assert await said(manager) == []
    assert await node(manager) == before


async def test_a_message_to_a_missing_session_is_a_key_error(manager: SessionManager) -> None:
    with pytest.raises(KeyError):
        await manager.append_message("agent:no:one", "user", "x")
    with pytest.raises(KeyError):
        await manager.inject_message("agent:no:one", "x")
    assert await manager.get_session("agent:no:one") is None


PROVENANCE = {
    "kind": InputProvenanceKind.INTER_SESSION,
    "origin_session_id": "o-1",
    "source_session_key": "agent:main:other",
    "source_channel": "telegram",
    "source_tool": "send",
}


@pytest.mark.parametrize("provenance", [PROVENANCE, SimpleNamespace(**PROVENANCE)])
async def test_provenance_fills_the_fields_of_the_entry(manager: SessionManager, provenance: object) -> None:
    await manager.append_message(KEY, "user", "x", provenance=provenance)
    (entry,) = await manager.get_transcript(KEY)
    assert entry.provenance_kind == "inter_session"
    assert entry.provenance_origin_session_id == "o-1"
    assert entry.provenance_source_session_key == "agent:main:other"
    assert entry.provenance_source_channel == "telegram"
    assert entry.provenance_source_tool == "send"


@pytest.mark.parametrize(
    "provenance", [{"kind": "internal_system"}, "internal_system", InputProvenanceKind.INTERNAL_SYSTEM]
)
async def test_the_kind_alone_is_provenance_enough(manager: SessionManager, provenance: object) -> None:
    entry = await manager.append_message(KEY, "user", "x", provenance=provenance)
    assert type(entry.provenance_kind) is str
    assert (entry.provenance_kind, entry.provenance_source_tool) == ("internal_system", None)


async def test_no_provenance_leaves_the_fields_empty(manager: SessionManager) -> None:
    assert (await manager.append_message(KEY, "user", "x")).provenance_kind is None


async def test_an_injected_message_is_a_users_and_names_its_origin(manager: SessionManager) -> None:
    injected = await manager.inject_message(KEY, "stop that", provenance="internal_system")
    assert json.loads(json.dumps(injected)) == injected
    (entry,) = await manager.get_transcript(KEY)
    assert entry.model_dump(mode="json") == injected
    assert (entry.role, entry.content, entry.provenance_kind) == ("user", "stop that", "internal_system")
    assert (await manager.inject_message(KEY, "go on"))["provenance_kind"] == "inter_session"


async def test_the_memory_is_told_the_length_of_what_was_added_in_bytes(storage: SessionStorage) -> None:
    lengths: list[int] = []
    manager = SessionManager(storage, lengths.append, inject_time_prefix=False)
    await manager.create(KEY)
    await manager.append_message(KEY, "user", "höher")
    await manager.append_message(KEY, "assistant", ["ö"])
    assert lengths == [6, 6]
    with pytest.raises(KeyError):
        await manager.append_message("agent:no:one", "user", "x")
    assert lengths == [6, 6]


# --- the time --------------------------------------------------------------------------------------------------------


async def test_a_users_text_is_stored_with_the_time_in_front(storage: SessionStorage) -> None:
    manager = SessionManager(storage, time_prefix_tz="Asia/Kolkata")
    await manager.create(KEY)
    entry = await manager.append_message(KEY, "user", "hello")
    assert isinstance(entry.content, str)
    assert entry.content.startswith("[")
    assert entry.content.endswith(" Asia/Kolkata]\nhello")
    assert "+05:30" in entry.content
    assert (await manager.append_message(KEY, "user", entry.content)).content == entry.content
    for role in ("assistant", "system", "tool"):
        assert (await manager.append_message(KEY, role, "hello")).content == "hello"
    assert (await manager.append_message(KEY, "user", ["hello"])).content == ["hello"]
    assert (await manager.append_message(KEY, "user", "")).content == ""
    assert (await manager.append_message(KEY, "user", '{"text": "hello"}')).content == '{"text": "hello"}'


async def test_stamping_alone_is_what_an_append_does(storage: SessionStorage) -> None:
    manager = SessionManager(storage, time_prefix_tz="UTC")
    stamped = manager.stamp_user_text("hello")
    assert stamped.endswith(" UTC]\nhello")
    assert manager.stamp_user_text(stamped) == stamped
    assert SessionManager(storage, inject_time_prefix=False).stamp_user_text("hello") == "hello"


async def test_a_zone_that_does_not_exist_is_refused_at_once(storage: SessionStorage) -> None:
    with pytest.raises(KeyError, match="Mars"):
        SessionManager(storage, time_prefix_tz="Mars/Olympus")


# --- removing and reading --------------------------------------------------------------------------------------------


async def test_a_live_message_can_be_removed_and_the_counters_stay(manager: SessionManager) -> None:
    first = await manager.append_message(KEY, "user", "one", token_count=7)
    await manager.append_message(KEY, "user", "two", token_count=5)
    assert await manager.remove_message(KEY, first.message_id) is True
    assert await said(manager) == ["two"]
    assert [entry.content for entry in await manager.get_canonical_transcript(KEY)] == ["two"]
    assert (await node(manager)).total_tokens == 12
    assert await manager.remove_message(KEY, first.message_id) is False


async def test_only_a_live_message_can_be_removed(manager: SessionManager) -> None:
    first = await manager.append_message(KEY, "user", "one")
    await manager.append_message(KEY, "user", "two")
    await manager.truncate(KEY, 1)
    assert await manager.remove_message(KEY, first.message_id) is False
    assert await manager.remove_message(KEY, "nowhere") is False
    assert await manager.remove_message("agent:no:one", first.message_id) is False
    assert [entry.content for entry in await manager.get_canonical_transcript(KEY)] == ["one", "two"]


async def test_the_limit_of_a_transcript_counts_from_the_oldest(manager: SessionManager) -> None:
    for text in ("one", "two", "three"):
        await manager.append_message(KEY, "user", text)
    assert [entry.content for entry in await manager.get_transcript(KEY, limit=2)] == ["one", "two"]
    assert [entry["content"] for entry in await manager.read_transcript(KEY, limit=2)] == ["one", "two"]


async def test_a_transcript_is_read_as_plain_dicts(manager: SessionManager) -> None:
    entry = await manager.append_message(KEY, "assistant", "x", tool_calls=[{"id": "c-1"}])
    (read,) = await manager.read_transcript(KEY)
    assert read == entry.model_dump(mode="json")
    assert json.loads(json.dumps(read)) == read


async def test_reading_a_missing_session_is_a_key_error(manager: SessionManager) -> None:
    missing = "agent:no:one"
    with pytest.raises(KeyError):
        await manager.get_transcript(missing)
    with pytest.raises(KeyError):
        await manager.read_transcript(missing)
    with pytest.raises(KeyError):
        await manager.get_canonical_transcript(missing)
    with pytest.raises(KeyError):
        await manager.get_canonical_transcript_page(missing, limit=1)
    with pytest.raises(KeyError):
        await manager.truncate(missing)


async def test_the_canonical_transcript_comes_in_pages_from_the_end(manager: SessionManager) -> None:
    entries = [await manager.append_message(KEY, "user", str(number)) for number in range(5)]
    await manager.truncate(KEY, 2)
    page = await manager.get_canonical_transcript_page(KEY, limit=2)
    assert page.entries == entries[3:]
    assert (page.has_more, page.canonical_complete) == (True, True)
    page = await manager.get_canonical_transcript_page(KEY, limit=2, before=page.entries[0].message_id)
    assert page.entries == entries[1:3]
    earlier, has_more, complete = await manager.get_canonical_transcript_page(
        KEY, limit=2, before=page.entries[0].message_id
    )
    assert (earlier, has_more, complete) == (entries[:1], False, True)
    with pytest.raises(KeyError, match="nowhere"):
        await manager.get_canonical_transcript_page(KEY, limit=2, before="nowhere")


# --- truncating ------------------------------------------------------------------------------------------------------


async def test_truncating_keeps_the_last_messages_and_the_canonical_transcript(manager: SessionManager) -> None:
    for number in range(5):
        await manager.append_message(KEY, "user", str(number))
    assert await manager.truncate(KEY, max_messages=2) == {"truncated": True, "before_count": 5, "after_count": 2}
    assert await said(manager) == ["3", "4"]
    assert [entry.content for entry in await manager.get_canonical_transcript(KEY)] == ["0", "1", "2", "3", "4"]
    assert await manager.truncate(KEY, max_messages=2) == {"truncated": False, "before_count": 2, "after_count": 2}


async def test_truncating_keeps_twenty_unless_it_is_told_otherwise(manager: SessionManager) -> None:
    for number in range(21):
        await manager.append_message(KEY, "user", str(number))
    assert await manager.truncate(KEY) == {"truncated": True, "before_count": 21, "after_count": 20}


async def test_truncating_to_nothing_empties_the_live_transcript(manager: SessionManager) -> None:
    await manager.append_message(KEY, "user", "one")
    await manager.append_message(KEY, "assistant", "two")
    assert await manager.truncate(KEY, 0) == {"truncated": True, "before_count": 2, "after_count": 0}
    assert await said(manager) == []


async def test_a_negative_number_truncates_nothing(manager: SessionManager) -> None:
    await manager.append_message(KEY, "user", "one")
    with pytest.raises(ValueError, match="negative"):
        await manager.truncate(KEY, -1)
    assert await said(manager) == ["one"]


async def test_a_cut_between_call_and_result_keeps_the_call(manager: SessionManager) -> None:
    await manager.append_message(KEY, "user", "weather?")
    await manager.append_message(KEY, "assistant", "", tool_calls=[{"id": "c-1"}, {"id": "c-2"}])
    await manager.append_message(KEY, "tool", "rain", tool_call_id="c-1")
    await manager.append_message(KEY, "tool", "wind", tool_call_id="c-2")
    await manager.append_message(KEY, "assistant", "It rains.")
    assert await manager.truncate(KEY, 2) == {"truncated": True, "before_count": 5, "after_count": 4}
    assert await said(manager) == ["", "rain", "wind", "It rains."]
