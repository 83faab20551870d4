"""Search in a store on a real disk: which messages and titles are found, in which order, and how a hit is shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from stores import KEY, say

from squilla_files.models import SessionNode
from squilla_files.storage import SessionStorage

OTHER = "agent:main:subagent:one"


async def snippets(store: SessionStorage, query: str, *args: Any, **given: Any) -> list[str]:
    return [hit["snippet"] for hit in await store.search_transcript(query, *args, **given)]


# --- transcripts -----------------------------------------------------------------------------------------------------


async def test_every_word_must_occur_anywhere_in_the_message(store: SessionStorage, node: SessionNode) -> None:
    await say(store, node, "the quick brown fox", "the quick fix", "brownies")
    assert await snippets(store, "quick") == ["the >>>quick<<< fix", "the >>>quick<<< brown fox"]
    assert await snippets(store, "fox quick") == ["the >>>quick<<< brown >>>fox<<<"]
    assert await snippets(store, "brown") == [">>>brown<<<ies", "the quick >>>brown<<< fox"]
    assert await snippets(store, "quick cat") == []


@pytest.mark.parametrize("query", ["", "   ", "\n"])
async def test_a_query_without_words_finds_nothing(store: SessionStorage, node: SessionNode, query: str) -> None:
    await say(store, node, "text", "")
    assert await snippets(store, query) == []


@pytest.mark.parametrize(
    ("text", "query", "hit"),
    [
        ("Guten MORGEN", "morgen", "Guten >>>MORGEN<<<"),
        ("Straße", "STRASSE", ">>>Straße<<<"),
        ("ΟΔΟΣ", "οδος", ">>>ΟΔΟΣ<<<"),
        ("Привет", "ПРИВЕТ", ">>>Привет<<<"),
        ("Ģirts", "ģIRTS", ">>>Ģirts<<<"),
        ("ԵՐԵԲՈՒՆԻ", "երեբունի", ">>>ԵՐԵԲՈՒՆԻ<<<"),
        ("今日は東京です", "東京", "今日は>>>東京<<<です"),
        ("e\u0301te\u0301", "ÉTÉ", ">>>e\u0301te\u0301<<<"),
        ("ﬁnal", "FINAL", ">>>ﬁnal<<<"),
    ],
)
async def test_case_is_ignored_in_every_script(
    store: SessionStorage, node: SessionNode, text: str, query: str, hit: str
) -> None:
    await say(store, node, text)
    assert await snippets(store, query) == [hit]


async def test_hits_come_newest_first_and_at_most_so_many(store: SessionStorage, node: SessionNode) -> None:
    other = await store.upsert_session(SessionNode(session_key=OTHER))
    for number, at in enumerate((30, 10, 20, 20)):
        await say(store, other if number == 1 else node, f"word {number}", created_at=at)
    assert await snippets(store, "word") == [f">>>word<<< {number}" for number in (0, 3, 2, 1)]
    assert await snippets(store, "word", limit=2) == [f">>>word<<< {number}" for number in (0, 3)]
    assert await snippets(store, "word", limit=0) == []
    with pytest.raises(ValueError, match="negative"):
        await snippets(store, "word", limit=-1)


async def test_at_most_twenty_hits_are_given_unless_told(store: SessionStorage, node: SessionNode) -> None:
    await say(store, node, *["word"] * 25)
    assert len(await snippets(store, "word")) == 20
    assert len(await snippets(store, "word", limit=100)) == 25


async def test_a_hit_says_where_it_stands(store: SessionStorage, node: SessionNode) -> None:
    (said,) = await say(store, node, "one word", role="assistant", created_at=77)
    (hit,) = await store.search_transcript("word")
    assert hit == {
        "id": said.id,
        "session_key": KEY,
        "session_id": node.session_id,
        "message_id": said.message_id,
        "role": "assistant",
        "created_at": 77,
        "snippet": "one >>>word<<<",
    }


async def test_only_live_messages_are_found(store: SessionStorage, node: SessionNode) -> None:
    _, removed, _ = await say(store, node, "word archived", "word removed", "word live")
    await store.delete_transcript_entry(node.session_id, removed.message_id)
    await store.truncate_session(KEY, 1)
    assert await snippets(store, "word") == [">>>word<<< live"]
    after = await store.reset_session(KEY, reason="test")
    assert await snippets(store, "word") == []
    await say(store, after, "word again")
    assert await snippets(store, "word") == [">>>word<<< again"]
    await store.delete_session(KEY)
    assert await snippets(store, "word") == []


async def test_a_session_id_limits_the_search_to_its_session(
    root: Path, store: SessionStorage, node: SessionNode
) -> None:
    other = await store.upsert_session(SessionNode(session_key=OTHER))
    await say(store, node, "word here")
    await say(store, other, "word there")
    assert await snippets(store, "word", node.session_id) == [">>>word<<< here"]
    assert await snippets(store, "word", other.session_id) == [">>>word<<< there"]
    assert await snippets(store, "word", "unknown") == []
    async with SessionStorage(root) as again:
        assert await snippets(again, "word", node.session_id) == [">>>word<<< here"]


async def test_the_text_of_blocks_is_searched_and_nothing_else_of_a_message(
    store: SessionStorage, node: SessionNode
) -> None:
    blocks = [{"type": "text", "text": "a word"}, {"type": "tool_result", "content": [{"text": "another"}]}]
    await say(store, node, blocks, tool_calls=[{"id": "call"}], reasoning_content="thought")
    assert await snippets(store, "word") == ["a >>>word<<< another"]
    assert await snippets(store, "another word") == ["a >>>word<<< >>>another<<<"]
    for query in ("type", "tool_result", "call", "thought"):
        assert await snippets(store, query) == []
    for content in (None, 7, True, [], {}):
        await say(store, node, content)
    assert len(await snippets(store, "word")) == 1


async def test_what_was_just_written_by_another_store_is_found(
    root: Path, store: SessionStorage, node: SessionNode
) -> None:
    async with SessionStorage(root, device="laptop", durability="os") as other:
        await say(other, node, "first word")
        assert len(await snippets(store, "word")) == 1
        await say(other, node, "second word")
        assert len(await snippets(store, "word")) == 2


# --- titles ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["display_name", "derived_title", "subject", "label"])
async def test_each_name_of_a_session_is_a_title(store: SessionStorage, name: str) -> None:
    node = await store.upsert_session(SessionNode(session_key=KEY, **{name: "Große Reise"}))
    assert await store.search_sessions_by_title("GROSSE") == [node]
    assert await store.search_sessions_by_title("reise groß") == [node]
    assert await store.search_sessions_by_title("reise klein") == []


async def test_words_may_stand_in_several_titles_but_none_across_two(store: SessionStorage) -> None:
    node = await store.upsert_session(SessionNode(session_key=KEY, display_name="North", label="Pole", channel="web"))
    assert await store.search_sessions_by_title("pole north") == [node]
    assert await store.search_sessions_by_title("northpole") == []
    assert await store.search_sessions_by_title("web") == []
    assert await store.search_sessions_by_title("") == []


async def test_titles_come_newest_first_and_at_most_so_many(store: SessionStorage) -> None:
    for number in range(25):
        await store.upsert_session(SessionNode(session_key=f"k{number}", label="trip", updated_at=number))
    found = await store.search_sessions_by_title("trip")
    assert [node.session_key for node in found] == [f"k{number}" for number in range(24, 4, -1)]
    assert len(await store.search_sessions_by_title("trip", limit=100)) == 25
    assert [node.session_key for node in await store.search_sessions_by_title("trip", 1)] == ["k24"]
    assert await store.search_sessions_by_title("trip", limit=0) == []
    with pytest.raises(ValueError, match="negative"):
        await store.search_sessions_by_title("trip", limit=-1)
