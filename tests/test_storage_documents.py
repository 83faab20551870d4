"""Summaries and context states in a store on a real disk: numbered, found by id, marked, taken away."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from stores import KEY, kept, say, state, summary, tree

from squilla_files.errors import SessionNotFoundError
from squilla_files.models import SessionContextState, SessionNode, SessionSummary
from squilla_files.storage import SessionStorage, StaleEpochError

OTHER = "agent:main:subagent:one"


async def texts(store: SessionStorage, node: SessionNode) -> list[str]:
    return [found.summary_text for found in await store.get_all_summaries(node.session_id)]


def document(root: Path, kind: str) -> Path:
    (path,) = root.rglob(f"{kind}/*.json")
    return path


SAMPLES: dict[str, Any] = {
    "str": "text",
    "int": 7,
    "bool": True,
    "JsonObject": {"a": [1, None]},
    "list[str]": ["a: b"],
}


def filled(record: SessionSummary | SessionContextState) -> Any:
    for declared in fields(record):
        if declared.name not in ("id", "session_id", "session_key", "compaction_index", "valid", "invalid_reason"):
            setattr(record, declared.name, SAMPLES[str(declared.type).split(" | ")[0]])
    return record


# --- summaries -------------------------------------------------------------------------------------------------------


async def test_a_summary_comes_back_with_every_field_as_given(
    root: Path, store: SessionStorage, node: SessionNode
) -> None:
    given = filled(summary(node, "text"))
    assert await store.save_summary(given) is given
    assert await store.get_all_summaries(node.session_id) == [given]
    async with SessionStorage(root, device="laptop") as other:
        assert await other.get_latest_summary(node.session_id) == given
        assert await other.read_summaries(KEY) == [given]


async def test_summaries_are_numbered_from_zero_in_each_session(store: SessionStorage, node: SessionNode) -> None:
    other = await store.upsert_session(SessionNode(session_key=OTHER))
    for text in "abc":
        await store.save_summary(summary(node, text, compaction_index=99, created_at=-ord(text)))
    saved = await store.save_summary(summary(other, "z"))
    assert saved.compaction_index == 0
    found = await store.get_all_summaries(node.session_id)
    assert [(each.compaction_index, each.summary_text) for each in found] == [(0, "a"), (1, "b"), (2, "c")]
    latest = await store.get_latest_summary(node.session_id)
    assert latest == found[-1]
    assert await store.get_latest_summary("unknown") is None


async def test_a_deleted_summary_keeps_its_number(root: Path, store: SessionStorage, node: SessionNode) -> None:
    for text in "ab":
        await store.save_summary(summary(node, text))
    assert await store.delete_summaries(node.session_id) == 2
    assert await store.get_all_summaries(node.session_id) == []
    assert await store.get_latest_summary(node.session_id) is None
    assert await store.delete_summaries(node.session_id) == 0
    assert (await store.save_summary(summary(node, "c"))).compaction_index == 2
    rewritten = await store.rewrite_compacted_session(node=node, summary=summary(node, "d"), entries=[])
    assert rewritten is not None
    assert rewritten.compaction_index == 3
    async with SessionStorage(root) as other:
        found = await other.get_all_summaries(node.session_id)
        assert [(each.compaction_index, each.summary_text) for each in found] == [(2, "c"), (3, "d")]


async def test_deleting_summaries_leaves_what_they_archived_archived(store: SessionStorage, node: SessionNode) -> None:
    await say(store, node, "a", "b")
    await store.rewrite_compacted_session(node=node, summary=summary(node, "s", compaction_id="c"), entries=[])
    await store.delete_summaries(node.session_id)
    assert await store.get_transcript(node.session_id) == []
    assert [found.content for found in await store.get_canonical_transcript(node.session_id)] == ["a", "b"]


async def test_a_generation_begins_without_summaries(store: SessionStorage, node: SessionNode) -> None:
    await store.save_summary(summary(node, "old"))
    after = await store.reset_session(KEY, reason="test")
    for session_id in (node.session_id, after.session_id):
        assert await store.get_all_summaries(session_id) == []
    assert await store.read_summaries(KEY) == []
    assert (await store.save_summary(summary(after, "new"))).compaction_index == 0
    assert await texts(store, after) == ["new"]


async def test_saving_for_a_missing_session_is_a_key_error_and_for_another_generation_stale(
    root: Path, store: SessionStorage, node: SessionNode
) -> None:
    before = kept(root)
    missing = SessionNode(session_key=OTHER)
    foreign = SessionNode(session_key=KEY)
    for saving in (
        lambda of: store.save_summary(summary(of, "x")),
        lambda of: store.save_context_state(state(of)),
    ):
        with pytest.raises(SessionNotFoundError):
            await saving(missing)
        with pytest.raises(StaleEpochError):
            await saving(foreign)
    with pytest.raises(SessionNotFoundError):
        await store.read_summaries(OTHER)
    assert kept(root) == before


async def test_a_file_that_lacks_the_later_fields_loads_with_their_defaults(
    root: Path, store: SessionStorage, node: SessionNode
) -> None:
    saved = await store.save_summary(filled(summary(node, "text")))
    await store.save_context_state(filled(state(node)))
    for kind, names in (
        ("summaries", ("type", "format", "id", "session_id", "session_key", "summary_text", "created_at")),
        ("contexts", ("type", "format", "id", "session_id", "session_key", "state_kind")),
    ):
        path = document(root, kind)
        full = json.loads(path.read_text())
        path.write_text(json.dumps({name: full[name] for name in names} | {"unknown": 1}))
    async with SessionStorage(root) as other:
        (found,) = await other.get_all_summaries(node.session_id)
        expected = summary(node, "text", id=saved.id, created_at=saved.created_at)
        assert found == expected
        assert (found.summary_source, found.coverage_status, found.flush_receipt_status) == ("unknown",) * 3
        assert (found.summary_format, found.covered_through_id, found.missing_obligations) == ("text", 0, None)
        (held,) = await other.get_context_states(KEY)
        assert (held.provider, held.payload, held.valid, held.portable) == ("portable", None, True, False)


async def test_what_a_caller_does_to_a_record_shows_nowhere_else(store: SessionStorage, node: SessionNode) -> None:
    payload = {"a": [1]}
    await store.save_summary(summary(node, "s", summary_payload=payload))
    await store.save_context_state(state(node, payload=payload))
    for reading in (lambda: store.get_all_summaries(node.session_id), lambda: store.get_context_states(KEY)):
        (first,) = await reading()
        given = first.summary_payload if isinstance(first, SessionSummary) else first.payload
        assert given == payload
        assert given is not None
        given["a"].append(2)
        (second,) = await reading()
        assert (second.summary_payload if isinstance(second, SessionSummary) else second.payload) == {"a": [1]}


# --- ids -------------------------------------------------------------------------------------------------------------


async def test_ids_have_53_bits_are_unique_in_the_store_and_last(root: Path, store: SessionStorage) -> None:
    ids: dict[str, list[int]] = {}
    for number in range(8):
        key = f"key {number}"
        node = await store.upsert_session(SessionNode(session_key=key))
        for _ in range(10):
            saved = await store.save_summary(summary(node, "s"))
            held = await store.save_context_state(state(node))
            assert isinstance(saved.id, int)
            assert isinstance(held.id, int)
            ids.setdefault(key, []).extend((saved.id, held.id))
    every = [number for numbers in ids.values() for number in numbers]
    assert len(set(every)) == len(every) == 160
    assert all(0 <= number < 2**53 for number in every)
    assert max(every) >= 2**45
    # The high bits are the session's, the others differ.
    assert all(len({number >> 32 for number in numbers}) == 1 for numbers in ids.values())
    async with SessionStorage(root) as other:
        for key, numbers in ids.items():
            found = [each.id for each in await other.read_summaries(key)]
            found += [each.id for each in await other.get_context_states(key)]
            assert sorted(each for each in found if each is not None) == sorted(numbers)


# --- flush statuses --------------------------------------------------------------------------------------------------


async def test_degraded_summaries_of_all_sessions_are_listed_oldest_first(
    store: SessionStorage, node: SessionNode
) -> None:
    other = await store.upsert_session(SessionNode(session_key=OTHER))
    for of, text, status, at in (
        (node, "b", "degraded_forensic", 20),
        (node, "no", "unknown", 5),
        (other, "a", "failed_retryable", 10),
        (node, "c", "failed_retryable", 30),
        (other, "no", "noop_no_memory", 1),
        (other, "no", "archive_only", 2),
    ):
        await store.save_summary(summary(of, text, flush_receipt_status=status, created_at=at))

    async def degraded(**given: int | None) -> str:
        return "".join(found.summary_text for found in await store.list_degraded_summaries(**given))

    assert await degraded() == await degraded(limit=None) == "abc"
    assert await degraded(limit=2) == "ab"
    assert await degraded(limit=0) == ""
    with pytest.raises(ValueError, match="negative"):
        await degraded(limit=-1)
    await store.delete_summaries(other.session_id)
    assert await degraded() == "bc"
    await store.reset_session(KEY, reason="test")
    assert await degraded() == ""


async def test_at_most_fifty_degraded_summaries_are_listed_unless_told(
    store: SessionStorage, node: SessionNode
) -> None:
    for number in range(52):
        await store.save_summary(summary(node, str(number), flush_receipt_status="failed_retryable", created_at=number))
    found = await store.list_degraded_summaries()
    assert [each.summary_text for each in found] == [str(number) for number in range(50)]
    assert len(await store.list_degraded_summaries(limit=None)) == 52


async def test_the_flush_status_of_one_summary_is_set_by_its_id(
    root: Path, store: SessionStorage, node: SessionNode
) -> None:
    other = await store.upsert_session(SessionNode(session_key=OTHER))
    first = await store.save_summary(summary(node, "a", flush_receipt_status="failed_retryable"))
    await store.save_summary(summary(node, "b"))
    await store.save_summary(summary(other, "c"))
    assert first.id is not None
    assert await store.update_summary_flush_receipt_status(first.id, "repaired") is True
    statuses = [each.flush_receipt_status for each in await store.get_all_summaries(node.session_id)]
    assert statuses == ["repaired", "unknown"]
    assert await store.list_degraded_summaries() == []
    before = kept(root)
    assert await store.update_summary_flush_receipt_status(first.id ^ 1, "no") is False
    assert await store.update_summary_flush_receipt_status(12, "no") is False
    assert kept(root) == before
    async with SessionStorage(root, device="laptop") as again:
        assert await again.update_summary_flush_receipt_status(first.id, "again") is True
        assert [each.flush_receipt_status for each in await again.read_summaries(KEY)] == ["again", "unknown"]
    assert [each.flush_receipt_status for each in await store.read_summaries(KEY)] == ["again", "unknown"]


async def test_the_flush_status_of_a_compaction_is_set_by_its_name(store: SessionStorage, node: SessionNode) -> None:
    for text, compaction_id in (("a", "c1"), ("b", "c2"), ("c", "c1"), ("d", None)):
        await store.save_summary(summary(node, text, compaction_id=compaction_id))
    assert await store.update_summary_flush_receipt_status_by_compaction(KEY, "c1", "done") == 2
    assert await store.update_summary_flush_receipt_status_by_compaction(KEY, "c9", "done") == 0
    assert await store.update_summary_flush_receipt_status_by_compaction(OTHER, "c1", "done") == 0
    statuses = [each.flush_receipt_status for each in await store.get_all_summaries(node.session_id)]
    assert statuses == ["done", "unknown", "done", "unknown"]


# --- context states --------------------------------------------------------------------------------------------------


async def test_a_context_state_comes_back_with_every_field_as_given(
    root: Path, store: SessionStorage, node: SessionNode
) -> None:
    given = filled(state(node))
    assert await store.save_context_state(given) is given
    assert await store.get_context_states(KEY) == [given]
    async with SessionStorage(root, device="laptop") as other:
        assert await other.get_context_states(KEY) == [given]


async def test_context_states_are_chosen_by_provider_and_kind_in_the_order_of_saving(
    store: SessionStorage, node: SessionNode
) -> None:
    for provider, kind, at in (("a", "x", 3), ("b", "x", 2), ("a", "y", 1)):
        await store.save_context_state(state(node, kind, provider=provider, created_at=at))

    async def chosen(**given: Any) -> str:
        found = await store.get_context_states(KEY, **given)
        return " ".join(each.provider + each.state_kind for each in found)

    assert await chosen() == "ax bx ay"
    assert await chosen(provider="a") == "ax ay"
    assert await chosen(state_kind="x") == "ax bx"
    assert await chosen(provider="a", state_kind="x") == "ax"
    assert await chosen(provider="c") == ""


async def test_invalid_states_stay_readable_with_their_reason(
    root: Path, store: SessionStorage, node: SessionNode
) -> None:
    for provider, kind in (("a", "x"), ("b", "x"), ("a", "y")):
        await store.save_context_state(state(node, kind, provider=provider))
    assert await store.invalidate_context_states(KEY, provider="a", state_kind="x", reason="one") == 1
    assert await store.invalidate_context_states(KEY, provider="a", reason="two") == 1
    assert await store.invalidate_context_states(KEY, state_kind="z", reason="no") == 0
    assert [each.provider for each in await store.get_context_states(KEY)] == ["b"]
    async with SessionStorage(root, device="laptop") as other:
        found = await other.get_context_states(KEY, valid_only=False)
        assert [(each.valid, each.invalid_reason) for each in found] == [(False, "one"), (True, None), (False, "two")]
        assert await other.invalidate_context_states(KEY, reason="all") == 1
    assert await store.get_context_states(KEY) == []
    before = kept(root)
    assert await store.invalidate_context_states(KEY, reason="again") == 0
    assert kept(root) == before
    reasons = [each.invalid_reason for each in await store.get_context_states(KEY, valid_only=False)]
    assert reasons == ["one", "all", "two"]


@pytest.mark.parametrize("way", ["save", "rewrite"])
async def test_a_state_that_is_saved_as_invalid_is_invalid(store: SessionStorage, node: SessionNode, way: str) -> None:
    given = state(node, valid=False, invalid_reason="born so")
    if way == "save":
        await store.save_context_state(given)
    else:
        await store.rewrite_compacted_session(node=node, summary=None, entries=[], context_states=[given])
    assert await store.get_context_states(KEY) == []
    (found,) = await store.get_context_states(KEY, valid_only=False)
    assert (found.valid, found.invalid_reason) == (False, "born so")


async def test_an_expired_state_is_still_valid(store: SessionStorage, node: SessionNode) -> None:
    await store.save_context_state(state(node, expires_at=1))
    assert len(await store.get_context_states(KEY)) == 1


async def test_states_of_a_closed_generation_are_invalid_and_of_a_missing_key_none(
    store: SessionStorage, node: SessionNode
) -> None:
    await store.save_context_state(state(node, "old"))
    await store.save_context_state(state(node, "older"))
    await store.invalidate_context_states(KEY, state_kind="older", reason="before")
    after = await store.reset_session(KEY, reason="test")
    await store.save_context_state(state(after, "new"))
    found = await store.get_context_states(KEY, valid_only=False)
    assert [(each.state_kind, each.invalid_reason) for each in found] == [
        ("old", "session_reset"),
        ("older", "before"),
        ("new", None),
    ]
    assert [each.state_kind for each in await store.get_context_states(KEY)] == ["new"]
    assert await store.get_context_states(OTHER) == await store.get_context_states(OTHER, valid_only=False) == []
    assert await store.invalidate_context_states(OTHER, reason="no") == 0
    await store.delete_session(KEY)
    assert await store.get_context_states(KEY, valid_only=False) == []


async def test_reading_documents_writes_nothing(root: Path, store: SessionStorage, node: SessionNode) -> None:
    await store.save_summary(summary(node, "s", flush_receipt_status="failed_retryable"))
    await store.save_context_state(state(node))
    before = tree(root, stamps=True)
    await store.get_all_summaries(node.session_id)
    await store.get_context_states(KEY)
    await store.list_degraded_summaries()
    assert tree(root, stamps=True) == before
