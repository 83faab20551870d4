"""What can be stored comes back equal; what cannot is refused before a byte is written; every record is one line."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
import decimal
import enum
import json
import math
import re
import sys
import tempfile
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from stores import KEY, entry, kept, logs, said, say, state, stored, summary, tree

from squilla_files.commits import CompactionCommit
from squilla_files.errors import SquillaFilesError, UnstorableTypeError, UnstorableValueError
from squilla_files.models import SessionNode, SessionStatus
from squilla_files.storage import SessionStorage

OTHER = "agent:main:subagent:one"


def nested(depth: int, innermost: Any = 1) -> Any:
    for number in range(depth):
        innermost = [innermost] if number % 2 else {"a": innermost}
    return innermost


class Color(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Word(str):
    __slots__ = ()


@dataclasses.dataclass
class Point:
    x: int = 1


# --- where a value may stand -----------------------------------------------------------------------------------------

Put = Callable[[SessionStorage, SessionNode, Any], Awaitable[Any]]
"""Writes a value in one place, and returns it as it is read back."""


async def _content(store: SessionStorage, node: SessionNode, value: Any) -> Any:
    await say(store, node, value)
    return (await store.get_transcript(node.session_id))[-1].content


async def _tool_calls(store: SessionStorage, node: SessionNode, value: Any) -> Any:
    await say(store, node, "x", tool_calls=[{"id": "c", "arguments": value}])
    calls = (await store.get_transcript(node.session_id))[-1].tool_calls
    assert calls is not None
    return calls[0]["arguments"]


async def _turn_usage(store: SessionStorage, node: SessionNode, value: Any) -> Any:
    await say(store, node, "x", turn_usage={"value": value})
    usage = (await store.get_transcript(node.session_id))[-1].turn_usage
    assert usage is not None
    return usage["value"]


async def _reasoning(store: SessionStorage, node: SessionNode, value: Any) -> Any:
    await say(store, node, "x", reasoning_content=value)
    return (await store.get_transcript(node.session_id))[-1].reasoning_content


async def _with_fields(store: SessionStorage, node: SessionNode, value: Any) -> Any:
    await store.append_entry(KEY, entry(node, "x"), fields={"origin": {"value": value}})
    origin = (await stored(store)).origin
    assert origin is not None
    return origin["value"]


async def _delivery_context(store: SessionStorage, node: SessionNode, value: Any) -> Any:
    node.delivery_context = {"value": value}
    await store.upsert_session(node)
    context = (await stored(store)).delivery_context
    assert context is not None
    return context["value"]


async def _origin(store: SessionStorage, node: SessionNode, value: Any) -> Any:
    await store.update_session(KEY, {"origin": {"value": value}})
    origin = (await stored(store)).origin
    assert origin is not None
    return origin["value"]


async def _created(store: SessionStorage, node: SessionNode, value: Any) -> Any:
    await store.upsert_session(SessionNode(session_key=OTHER, origin={"value": value}))
    origin = (await stored(store, OTHER)).origin
    assert origin is not None
    return origin["value"]


async def _reset_by_upsert(store: SessionStorage, node: SessionNode, value: Any) -> Any:
    changed = SessionNode(session_key=KEY, epoch=node.epoch + 1, origin={"value": value})
    await store.upsert_session(changed)
    origin = (await stored(store)).origin
    assert origin is not None
    return origin["value"]


async def _summary(store: SessionStorage, node: SessionNode, value: Any) -> Any:
    await store.save_summary(summary(node, "s", summary_payload={"value": value}))
    found = await store.get_latest_summary(node.session_id)
    assert found is not None
    assert found.summary_payload is not None
    return found.summary_payload["value"]


async def _context(store: SessionStorage, node: SessionNode, value: Any) -> Any:
    await store.save_context_state(state(node, payload={"value": value}))
    payload = (await store.get_context_states(KEY))[-1].payload
    assert payload is not None
    return payload["value"]


def _rewriting(place: str) -> Put:
    async def put(store: SessionStorage, node: SessionNode, value: Any) -> Any:
        payload = {"value": value}
        if place == "node":
            node.origin = payload
        await store.rewrite_compacted_session(
            node=node,
            summary=summary(node, "s", summary_payload=payload if place == "summary" else None),
            entries=[entry(node, payload if place == "entry" else "new")],
            context_states=[state(node), state(node, payload=payload if place == "context" else None)],
        )
        found: Any = {
            "node": (await stored(store)).origin,
            "summary": (await store.get_all_summaries(node.session_id))[-1].summary_payload,
            "entry": (await store.get_transcript(node.session_id))[-1].content,
            "context": (await store.get_context_states(KEY))[-1].payload,
        }
        return found[place]["value"]

    return put


PLACES: dict[str, Put] = {
    "content": _content,
    "tool_calls": _tool_calls,
    "turn_usage": _turn_usage,
    "reasoning": _reasoning,
    "fields with a message": _with_fields,
    "delivery_context": _delivery_context,
    "origin": _origin,
    "creation": _created,
    "reset by upsert": _reset_by_upsert,
    "summary": _summary,
    "context": _context,
    **{f"rewriting {place}": _rewriting(place) for place in ("node", "summary", "entry", "context")},
}

in_every_place = pytest.mark.parametrize("put", PLACES.values(), ids=PLACES)


# --- refused ---------------------------------------------------------------------------------------------------------


def _self_containing() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


UNSTORABLE: dict[str, tuple[Any, type[Exception]]] = {
    "lone surrogate": ("a\ud800b", UnstorableValueError),
    "lone low surrogate": ("\udfff", UnstorableValueError),
    "surrogate in a list": (["ok", "\ud83d"], UnstorableValueError),
    "surrogate in a key": ({"\ud800": 1}, UnstorableValueError),
    "NaN": (math.nan, UnstorableValueError),
    "infinity": (math.inf, UnstorableValueError),
    "minus infinity": ({"a": [-math.inf]}, UnstorableValueError),
    "integer beyond 64 bit": (2**64, UnstorableValueError),
    "negative integer beyond 64 bit": (-(2**63) - 1, UnstorableValueError),
    "huge integer": (10**400, UnstorableValueError),
    "set": ({1}, UnstorableTypeError),
    "frozenset": (frozenset("a"), UnstorableTypeError),
    "bytes": (b"a", UnstorableTypeError),
    "bytearray": (bytearray(b"a"), UnstorableTypeError),
    "tuple": ((1, 2), UnstorableTypeError),
    "empty tuple": ((), UnstorableTypeError),
    "tuple in a dict": ({"a": (1,)}, UnstorableTypeError),
    "datetime": (dt.datetime(2026, 1, 1, tzinfo=dt.UTC), UnstorableTypeError),
    "date": (dt.date(2026, 1, 1), UnstorableTypeError),
    "time": (dt.time(1, 2), UnstorableTypeError),
    "decimal": (decimal.Decimal("1.5"), UnstorableTypeError),
    "dataclass": (Point(), UnstorableTypeError),
    "dataclass type": (Point, UnstorableTypeError),
    "path": (Path("a"), UnstorableTypeError),
    "enum": (Color.RED, UnstorableTypeError),
    "int enum": (Level.HIGH, UnstorableTypeError),
    "complex": (1j, UnstorableTypeError),
    "generator": ((each for each in [1]), UnstorableTypeError),
    "object": (object(), UnstorableTypeError),
    "ordered dict": (OrderedDict(a=1), UnstorableTypeError),
    "nested 300 deep": (nested(300), UnstorableTypeError),
    "nested 100,000 deep": (nested(100_000), UnstorableTypeError),
    "containing itself": (_self_containing(), UnstorableTypeError),
    "integer key": ({1: "a"}, UnstorableTypeError),
    "key None": ({None: "a"}, UnstorableTypeError),
    "boolean key": ({True: "a"}, UnstorableTypeError),
    "bytes key": ({b"a": 1}, UnstorableTypeError),
    "tuple key": ([{("a",): 1}], UnstorableTypeError),
    "enum key": ({SessionStatus.DONE: 1}, UnstorableTypeError),
}


@in_every_place
async def test_what_would_not_come_back_equal_is_refused_and_every_byte_stays(
    root: Path, store: SessionStorage, node: SessionNode, put: Put
) -> None:
    await say(store, node, "old")
    session = await stored(store)
    before = kept(root)
    for name, (value, kind) in UNSTORABLE.items():
        with pytest.raises(kind) as raised:
            await put(store, await stored(store), value)
        assert isinstance(raised.value, SquillaFilesError), name
        assert kept(root) == before, name
    assert await said(store, node.session_id) == ["old"]
    assert await store.list_sessions() == [session]


@pytest.mark.parametrize("name", ["output_tokens", "total_cost_usd"])
@pytest.mark.parametrize("value", [math.nan, math.inf, 2**64, "1", None, True, [1], 1j])
async def test_a_counter_that_is_no_number_is_refused_and_every_byte_stays(
    root: Path, store: SessionStorage, node: SessionNode, name: str, value: Any
) -> None:
    before = kept(root)
    setattr(node, name, value)
    with pytest.raises((TypeError, ValueError)):
        await store.upsert_session(node)
    with pytest.raises((TypeError, ValueError)):
        await store.update_session(KEY, {}, {name: value})
    with pytest.raises((TypeError, ValueError)):
        await store.append_entry(KEY, entry(node, "x"), counters={name: value})
    with pytest.raises((TypeError, ValueError)):
        await store.upsert_session(SessionNode(session_key=OTHER, **{name: value}))
    assert kept(root) == before


async def test_the_error_says_where_the_value_stands(store: SessionStorage, node: SessionNode) -> None:
    with pytest.raises(UnstorableTypeError, match=r"tool_calls\[0\]\.arguments\.ids\[1\]") as raised:
        await say(store, node, "x", tool_calls=[{"id": "c", "arguments": {"ids": [1, {2}]}}])
    assert raised.value.where == "tool_calls[0].arguments.ids[1]"


# --- kept ------------------------------------------------------------------------------------------------------------

STORABLE: dict[str, Any] = {
    "null": None,
    "booleans": [True, False],
    "largest integers": [2**64 - 1, -(2**63), 2**53 + 1, 0],
    "floats": [0.1, -0.0, 1.0, 5e-324, sys.float_info.max, 1e22, 123456789.12345679],
    "empty": ["", [], {}, [[]], {"": {}}],
    "every code point of a plane": "".join(map(chr, (*range(0xD800), *range(0xE000, 0x10000)))),
    "beyond the basic plane": "\U0001f600\U0010ffff\U00020000",
    "NUL": "a\0b",
    "composed and decomposed": ["\u00e9", "e\u0301"],
    "odd keys": {"type": "log", "id": -1, "set": {}, " ": 1, "\u2028": 2, "\0": 3, "__proto__": 4},
    "like a record": '{"type":"message","id":1}\n{"type":"remove"}',
    "escapes": '\\ \\n \\u2028 " / \x7f',
    "order of keys": {"z": 1, "a": 2, "m": 3},
    "nested 200 deep": nested(200),
    "long text": "word " * 50_000,
    "number in a text": "1e400",
}


@in_every_place
async def test_what_json_holds_comes_back_equal(root: Path, store: SessionStorage, node: SessionNode, put: Put) -> None:
    await say(store, node, "old")
    for name, value in STORABLE.items():
        # As text, for Python calls True and 1, 0.0 and -0.0 equal.
        assert repr(await put(store, await stored(store), value)) == repr(value), name
        await store.delete_session(OTHER)
    one_record_a_line(root)


@in_every_place
async def test_a_text_of_another_class_comes_back_as_the_equal_text(
    store: SessionStorage, node: SessionNode, put: Put
) -> None:
    for value in (SessionStatus.DONE, Word("word")):
        found = await put(store, await stored(store), value)
        assert found == value
        assert type(found) is str
        await store.delete_session(OTHER)


TEXT = st.text(st.characters(exclude_categories=["Cs"]))

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=4)
    ),
    max_leaves=12,
)

ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(), max_size=5)
    | st.binary(max_size=4)
    | st.just(SessionStatus.DONE)
    | st.just(Level.HIGH)
    | st.datetimes(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3) | st.integers() | st.none(), inner, max_size=3)
    ),
    max_leaves=6,
)


def in_a_store(work: Callable[[SessionStorage, SessionNode, Path], Awaitable[None]]) -> None:
    async def run(root: Path) -> None:
        async with SessionStorage(root, device="desk", durability="os") as store:
            await work(store, await store.upsert_session(SessionNode(session_key=KEY)), root)

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(run(Path(directory) / "store"))


@given(st.lists(JSON, min_size=1, max_size=5))
@example(["\u2028", {"\x85": "\r\n"}])
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_json_comes_back_equal_from_memory_and_from_disk(values: list[Any]) -> None:
    async def work(store: SessionStorage, node: SessionNode, root: Path) -> None:
        for value in values:
            await say(store, node, value, tool_calls=[{"value": value}], turn_usage={"value": value})
        node.origin = {"values": values}
        await store.upsert_session(node)
        await store.save_summary(summary(node, "s", summary_payload={"values": values}))
        await store.save_context_state(state(node, payload={"values": values}))
        await store.truncate_session(KEY, 1)
        async with SessionStorage(root, device="laptop", durability="os") as other:
            for reader in (store, other):
                found = await reader.get_canonical_transcript(node.session_id)
                assert repr([each.content for each in found]) == repr(values)
                assert repr([each.tool_calls for each in found]) == repr([[{"value": each}] for each in values])
                assert repr([each.turn_usage for each in found]) == repr([{"value": each} for each in values])
                assert repr((await stored(reader)).origin) == repr({"values": values})
                (only,) = await reader.get_all_summaries(node.session_id)
                assert repr(only.summary_payload) == repr({"values": values})
                (held,) = await reader.get_context_states(KEY)
                assert repr(held.payload) == repr({"values": values})
        one_record_a_line(root)

    in_a_store(work)


@given(st.lists(ANYTHING, min_size=1, max_size=6))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_value_comes_back_equal_or_is_refused_and_nothing_written(values: list[Any]) -> None:
    async def work(store: SessionStorage, node: SessionNode, root: Path) -> None:
        expected = []
        for value in values:
            before = kept(root)
            try:
                await say(store, node, value)
            except (UnstorableTypeError, UnstorableValueError):
                assert kept(root) == before
            else:
                expected.append(value)
        assert [repr(each) for each in await said(store, node.session_id)] == [
            repr(str(each) if isinstance(each, SessionStatus) else each) for each in plain(expected)
        ]

    in_a_store(work)


def plain(value: Any) -> Any:
    if isinstance(value, list):
        return [plain(each) for each in value]
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    return str(value) if isinstance(value, SessionStatus) else value


# --- lines -----------------------------------------------------------------------------------------------------------

BREAKS = ["\n", "\r", "\r\n", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"]
BROKEN = "".join(f"{number}{mark}" for number, mark in enumerate(BREAKS)) + "end"


def one_record_a_line(root: Path) -> None:
    """See that every log holds one record a line, for text tools as for programs that split at LF."""
    for path in logs(root):
        data = path.read_bytes()
        text = data.decode()
        assert text.splitlines() == data.decode().removesuffix("\n").split("\n"), path
        for line in text.splitlines():
            assert isinstance(json.loads(line)["type"], str)


def test_the_breaks_are_all_that_python_knows() -> None:
    known = {chr(number) for number in range(sys.maxunicode + 1) if len(f"a{chr(number)}b".splitlines()) > 1}
    assert known == set(BREAKS) - {"\r\n"}


async def test_line_breaks_inside_texts_stand_through_a_whole_life(
    root: Path, store: SessionStorage, node: SessionNode
) -> None:
    payload = {BROKEN: [BROKEN]}
    await say(store, node, BROKEN, reasoning_content=BROKEN, turn_usage=payload, message_id=BROKEN)
    await say(store, node, [{"text": BROKEN}], role="tool", tool_call_id=BROKEN)
    node.label, node.origin = BROKEN, payload
    await store.upsert_session(node)
    one_record_a_line(root)
    (hit,) = await store.search_transcript("END", limit=1)
    assert hit["snippet"] == "0 1 2 3 4 5 6 7 8 9 10 >>>end<<<"
    await store.rewrite_compacted_session(
        node=node,
        summary=summary(node, BROKEN, summary_payload=payload, compaction_id=BROKEN, missing_obligations=[BROKEN]),
        entries=[entry(node, BROKEN, "assistant", tool_calls=[{"id": BROKEN}])],
        context_states=[state(node, BROKEN, payload=payload, model=BROKEN)],
    )
    one_record_a_line(root)
    async with SessionStorage(root, device="laptop", durability="os") as other:
        for reader in (store, other):
            first, second, third = await reader.get_canonical_transcript(node.session_id)
            assert (first.content, first.reasoning_content, first.turn_usage) == (BROKEN, BROKEN, payload)
            assert first.message_id == second.tool_call_id == third.content == BROKEN
            assert (await stored(reader)).origin == payload
            (held,) = await reader.get_all_summaries(node.session_id)
            assert (held.summary_text, held.summary_payload, held.compaction_id) == (BROKEN, payload, BROKEN)
            compacted = await reader.get_compacted_transcript_entries(session_id=node.session_id, compaction_id=BROKEN)
            assert len(compacted) == 2
            (context,) = await reader.get_context_states(KEY)
            assert (context.state_kind, context.payload, context.model) == (BROKEN, payload, BROKEN)
    await store.invalidate_context_states(KEY, reason=BROKEN)
    await store.reset_session(KEY, reason=BROKEN)
    one_record_a_line(root)
    (path,) = (root / "archives").iterdir()
    document = json.loads(path.read_bytes())
    assert document["reason"] == BROKEN
    assert [each["content"] for each in document["transcript_entries"]] == [BROKEN, [{"text": BROKEN}], BROKEN]
    assert document["summaries"][0]["summary_text"] == BROKEN
    (invalid,) = await store.get_context_states(KEY, valid_only=False)
    assert invalid.invalid_reason == BROKEN


@pytest.mark.parametrize("mark", BREAKS, ids=ascii)
async def test_a_word_beside_a_line_break_is_found_and_shown_on_one_line(
    store: SessionStorage, node: SessionNode, mark: str
) -> None:
    await say(store, node, f"first{mark}needle{mark}last")
    (hit,) = await store.search_transcript("NEEDLE")
    assert hit["snippet"] == "first >>>needle<<< last"


@pytest.mark.parametrize("mark", BREAKS, ids=ascii)
async def test_a_key_with_a_line_break_is_a_key_like_any_other(root: Path, store: SessionStorage, mark: str) -> None:
    key = f"a{mark}b"
    node = await store.upsert_session(SessionNode(session_key=key))
    await say(store, node, "x")
    await store.truncate_session(key, 0)
    await store.reset_session(key, reason="test")
    one_record_a_line(root)
    await store.close()
    async with SessionStorage(root, device="desk") as other:
        assert [found.session_key for found in await other.list_sessions()] == [key]


async def test_documents_hold_no_line_break_inside_a_text(root: Path, store: SessionStorage, node: SessionNode) -> None:
    await say(store, node, "x")
    await store.save_summary(summary(node, BROKEN))
    await store.update_session(KEY, {"label": BROKEN})
    await store.reset_session(KEY, reason=BROKEN)
    await store.delete_session(KEY)
    for path, content in tree(root).items():
        if isinstance(content, bytes) and path.endswith(".json"):
            text = content.decode()
            assert text.splitlines() == text.removesuffix("\n").split("\n"), path
            assert re.fullmatch(r"[^\x00-\x09\x0b-\x1f\x85\u2028\u2029]*", text), path


# --- ids and epochs come to an end -----------------------------------------------------------------------------------

LAST = 2**53 - 1


@pytest.mark.parametrize("verb", ["append", "remove", "compact", "update", "reset", "branch"])
async def test_no_line_is_written_behind_the_last_id_that_there_is(
    root: Path, store: SessionStorage, verb: str
) -> None:
    node = await store.upsert_session(SessionNode(session_key=KEY))
    await say(store, node, "text")
    (log,) = logs(root)
    last = {"type": "message", "id": LAST, "message_id": "last", "role": "user", "content": "of another program"}
    # A child needs an id behind that of the last entry for what archived it.
    of_log = json.loads(log.read_bytes().splitlines()[0])["log"]
    archived = {"type": "compaction", "id": LAST, "record": "archived", "covers": [[of_log, 4, "last"]]}
    with log.open("ab") as file:
        for line in (last, archived):
            file.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")
    canonical = await store.get_canonical_transcript(node.session_id)
    assert [found.content for found in canonical] == ["text", "of another program"]
    before = kept(root)
    verbs: dict[str, Callable[[], Awaitable[Any]]] = {
        "append": lambda: say(store, node, "more"),
        "remove": lambda: store.delete_transcript(node.session_id),
        "compact": lambda: store.commit_compaction(KEY, CompactionCommit(preimage=None, kept=())),
        "update": lambda: store.update_session(KEY, {"label": "new"}),
        "reset": lambda: store.reset_session(KEY, reason="test"),
        "branch": lambda: store.branch_session(KEY, SessionNode(session_key=OTHER), entries="live"),
    }
    with pytest.raises(UnstorableValueError):
        await verbs[verb]()
    assert kept(root) == before
    assert not [found for found in (await store.verify()).findings if found.kind == "damaged_line"]


@pytest.mark.parametrize("verb", ["reset", "fence", "delete"])
async def test_no_epoch_follows_the_last_that_there_is(root: Path, store: SessionStorage, verb: str) -> None:
    node = await store.upsert_session(SessionNode(session_key=KEY, epoch=LAST))
    await say(store, node, "text")
    before = kept(root)
    verbs: dict[str, Callable[[], Awaitable[Any]]] = {
        "reset": lambda: store.reset_session(KEY, reason="test"),
        "fence": lambda: store.increment_epoch(KEY),
        "delete": lambda: store.delete_session(KEY),
    }
    with pytest.raises(UnstorableValueError):
        await verbs[verb]()
    assert kept(root) == before
    assert await said(store, node.session_id) == ["text"]
    assert (await store.verify()).ok
