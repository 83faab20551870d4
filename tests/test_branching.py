"""Forks, on a disk in memory: what a child takes along, in which lines, and what it never takes."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_files import MemoryFiles
from operations import DIRECTORY, PATHS, commit, context, entry, node, open_session, say, send, steady, summary
from operations import KEY as PARENT

from squilla_files import documents
from squilla_files.appending import Append, remove
from squilla_files.branching import Taken, build, take
from squilla_files.codec import decode_line, encode_line
from squilla_files.errors import (
    MessageNotFoundError,
    SessionExistsError,
    SessionNotFoundError,
    UnstorableTypeError,
    UnstorableValueError,
)
from squilla_files.journal import CONTEXT, first_line
from squilla_files.layout import session_dir_name
from squilla_files.models import SessionNode
from squilla_files.rewriting import truncate
from squilla_files.session import Session
from squilla_files.session_dir import prefix_of
from squilla_files.tokens import estimate_tokens

CHILD = "agent:main:child"
CHILD_DIRECTORY = PATHS.session(session_dir_name(CHILD))
NUMBER = b"123456789012345678901234567890"


@pytest.fixture(autouse=True)
def steady_world() -> Iterator[None]:
    with steady(3):
        yield


def child_node(key: str = CHILD, **fields: Any) -> SessionNode:
    values: dict[str, Any] = {"session_id": f"id of {key}", "created_at": 2, "updated_at": 2, **fields}
    return SessionNode(session_key=key, **values)


def fork(
    files: MemoryFiles,
    what: Taken = "live",
    before: str | None = None,
    max_tokens: int | None = None,
    *,
    key: str = CHILD,
    parent: str = PARENT,
    **fields: Any,
) -> Session:
    """Fork, and return the child as another process finds it, with its device being the parent's."""
    taken = take(open_session(files, parent), what, before, max_tokens)
    session = open_session(files, key)
    made = build(session, child_node(key, **fields), taken)
    session.close()
    found = open_session(files.another_process(), key)
    assert found.node() == made
    return found


def new_parent(files: MemoryFiles, *message_ids: str) -> Session:
    session = open_session(files)
    session.create(node(model="large"))
    say(session, *message_ids)
    return session


def put_log(files: MemoryFiles, *lines: bytes, device: str = "desk", epoch: int = 0) -> None:
    """Put a log of another device, or of another program, beside those of the parent."""
    header = first_line(session_key=PARENT, device=device, log_id=f"log-{device}", last_id=0, epoch=epoch, source=None)
    files.put(f"{DIRECTORY}/transcript.{device}.000001.jsonl", header + b"".join(line + b"\n" for line in lines))


def ids(records: Any) -> list[str]:
    return [record.identity for record in records]


def numbers(session: Session) -> list[int]:
    return [record.id for record in session.timeline.canonical]


def stored_lines(session: Session) -> list[bytes]:
    """The lines of the canonical entries, as they stand."""
    return session.dir.read_lines(session.timeline.canonical)


def objects(session: Session) -> list[dict[str, Any]]:
    """All records of the child's first log, which holds everything."""
    name = min(session.dir.logs, key=lambda name: name.rpartition("/")[2])
    data = session.dir.files.read_file(f"{session.dir.path}/{name}")
    found = [decode_line(line) for line in data.splitlines()[1:]]
    return [obj for obj in found if obj is not None]


def plain(session: Session, records: Any) -> list[dict[str, Any]]:
    return [{**e.model_dump(), "session_id": "", "session_key": ""} for e in session.dir.entries(records)]


# --- lines -----------------------------------------------------------------------------------------------------------


def test_lines_are_taken_over_as_they_stand_but_for_what_places_them() -> None:
    files = MemoryFiles()
    put_log(
        files,
        b'{"type":"message","id":1,"message_id":"m1","role":"user","content":' + NUMBER + b"}",
        b'{ "type":"message", "id":2, "message_id":"m2", "after":"m1", "role":"user", "x":[1.50, 1e2], "content":0 }',
        b'{"type":"message","id":3,"message_id":"m3","after":"m2","role":"user","content":"raw \xe2\x80\xa8 break"}',
        b'{"message_id":"m4","after":"m3","role":"user","role":"tool","content":"a","type":"message","id":4}\r',
    )
    assert stored_lines(fork(files)) == [
        b'{"type":"message","id":2,"message_id":"m1","role":"user","content":' + NUMBER + b"}",
        b'{"type":"message","id":3,"message_id":"m2","after":"m1","role":"user","x":[1.50, 1e2],"content":0}',
        b'{"type":"message","id":4,"message_id":"m3","after":"m2","role":"user","content":"raw \xe2\x80\xa8 break"}',
        b'{"type":"message","id":5,"message_id":"m4","after":"m3","role":"user","role":"tool","content":"a"}',
    ]


def test_what_an_entry_did_to_the_fields_and_counters_of_the_parent_is_not_repeated() -> None:
    files = MemoryFiles()
    session = new_parent(files)
    counted = Append(
        entry("m1", turn_usage={"set": 1}),
        any_generation=True,
        fields={"label": "Tea"},
        counters={"total_tokens": 3, "total_cost_usd": 0.5},
    )
    send(session, counted)
    put_log(
        files,
        b'{"type":"message","id":7,"message_id":"m2","after":"m1","role":"user", "set" : {"label":"x"},"content":1}',
        b'{"type":"message","id":8,"message_id":"m3","after":"m2","role":"user","a\\u0064d":{"output_tokens":7}}',
    )
    child = fork(files, subject="mine", input_tokens=4)
    assert ids(child.timeline.live) == ["m1", "m2", "m3"]
    assert child.node() == child_node(subject="mine", input_tokens=4, forked_from_parent=True)
    assert child.dir.entries(child.timeline.live)[0].turn_usage == {"set": 1}


def test_the_epoch_and_generation_of_the_parent_are_not_the_childs() -> None:
    files = MemoryFiles()
    session = new_parent(files, "old")
    session.reset(reason="asked", archive_dir=PATHS.archives)
    session.fence()
    say(session, "m1", "m2")
    put_log(files, b'{"type":"message","id":70,"message_id":"m3","after":"m2","role":"user","epoch":2,"generation":1}')
    child = fork(files)
    assert ids(child.timeline.canonical) == ["m1", "m2", "m3"]
    assert (child.timeline.epoch, child.timeline.generation) == (0, 0)
    assert not any({"epoch", "generation"} & obj.keys() for obj in objects(child))


def test_ids_stay_what_they_were_as_long_as_they_grow() -> None:
    files = MemoryFiles()
    session = new_parent(files, "m1", "m2")
    session.update({"label": "between"}, {})
    say(session, "m3")
    child = fork(files)
    assert numbers(child) == numbers(session) == [2, 3, 5]
    assert objects(child)[0]["id"] == 1
    assert child.timeline.last_id == 5


def test_an_id_is_raised_only_where_it_would_not_grow() -> None:
    files = MemoryFiles()
    put_log(
        files,
        b'{"type":"message","id":0,"message_id":"m1","role":"user"}',
        b'{"type":"message","id":5,"message_id":"m2","after":"m1","role":"user"}',
        b'{"type":"message","id":9,"message_id":"m3","after":"m2","role":"user"}',
    )
    put_log(
        files,
        b'{"type":"message","id":6,"message_id":"n1","after":"m2","role":"user"}',
        b'{"type":"message","id":20,"message_id":"n2","after":"n1","role":"user"}',
        device="phone",
    )
    child = fork(files)
    assert ids(child.timeline.canonical) == ["m1", "m2", "m3", "n1", "n2"]
    assert numbers(child) == [2, 5, 9, 10, 20]


def test_a_creation_stands_right_before_the_first_entry() -> None:
    files = MemoryFiles()
    put_log(files, b'{"type":"message","id":40,"message_id":"m1","role":"user"}')
    assert [obj["id"] for obj in objects(fork(files))] == [39, 40]


def test_each_entry_hangs_on_the_one_before_it_whatever_it_hung_on() -> None:
    files = MemoryFiles()
    session = new_parent(files, "m1", "gone", "m2")
    remove(session, "gone")
    put_log(files, b'{"type":"message","id":3,"message_id":"n1","after":"m1","role":"user"}')
    put_log(files, b'{"type":"message","id":90,"message_id":"lost","after":"nowhere","role":"user"}', device="phone")
    child = fork(files)
    entries = [obj for obj in objects(child) if obj["type"] == "message"]
    assert [(obj["message_id"], obj.get("after")) for obj in entries] == [
        ("m1", None), ("m2", "m1"), ("n1", "m2"), ("lost", "n1"),
    ]  # fmt: skip
    assert ids(child.timeline.canonical) == ["m1", "m2", "n1", "lost"]


def test_entries_in_a_compactions_line_are_taken_over_as_they_stand() -> None:
    files = MemoryFiles()
    session = new_parent(files, "m1", "m2")
    commit(session, replacements={"m1": entry("r1")}, appended=[entry("r2", content="é")])
    put_log(
        files,
        b'{"type":"compaction","id":60,"record":"c","covers":[],"kept":[], "entries":[ 7, {"message_id":"r3",'
        b'"replaces":"r2","role":"user", "content":' + NUMBER + b',"x":"]"} , {"message_id":"r4","after":"r3",'
        b'"id":61,"role":"user","content":1.50}]}',
    )
    child = fork(files)
    assert ids(child.timeline.live) == ["r1", "r3", "r4"]
    assert stored_lines(child)[-2:] == [
        b'{"type":"message","id":60,"message_id":"r3","after":"m2","role":"user","content":' + NUMBER + b',"x":"]"}',
        b'{"type":"message","id":61,"message_id":"r4","after":"r3","role":"user","content":1.50}',
    ]
    assert not any("replaces" in obj for obj in objects(child))


def test_a_line_of_many_entries_is_read_once() -> None:
    files = MemoryFiles()
    session = new_parent(files, "m1")
    commit(session, "m1", appended=[entry(f"r{n}") for n in range(200)])
    parent = open_session(files)
    begun = len(files.calls)
    assert len(take(parent, "live", None, None).entries) == 201
    read = sum(int(str(call.args[1])) for call in files.calls[begun:] if call.name == "pread")
    assert read < 2 * len(files.read_file(f"{DIRECTORY}/transcript.laptop.000002.jsonl"))


# --- archived entries, summaries, context states ---------------------------------------------------------------------


def test_archived_entries_stay_archived_by_a_compaction_each() -> None:
    files = MemoryFiles()
    session = new_parent(files, *"abcdef")
    commit(session, "b", *"cdef", summary=summary())
    truncate(session, 3)
    say(session, "g")
    commit(session, "e", "g", summary=summary())
    say(session, "h")
    child = fork(files)
    assert ids(child.timeline.canonical) == [*"abcdefgh"]
    assert ids(child.timeline.live) == ["e", "g", "h"]
    groups: dict[str, list[str]] = {}
    for archived, compaction in child.timeline.archived_by.items():
        groups.setdefault(compaction, []).append(archived)
    assert [sorted(group) for group in groups.values()] == [["a"], ["b", "c"], ["d", "f"]]
    assert set(groups).isdisjoint(session.timeline.archived_by.values())
    assert [obj["kept"] for obj in objects(child) if obj["type"] == "compaction"] == [[], [], ["e"]]
    summaries = child.timeline.current(child.timeline.summaries)
    assert [groups[attachment.record.identity] for attachment in summaries] == [["a"], ["d", "f"]]


def test_summaries_keep_their_order_whoever_saved_them() -> None:
    files = MemoryFiles()
    session = new_parent(files, *"abc")
    texts = []
    for text in ("saved", "first", "deleted", "between", "second"):
        texts.append(summary())
        texts[-1].summary_text = text
    documents.save_summary(session, texts[0])
    commit(session, "b", "c", summary=texts[1])
    documents.save_summary(session, texts[2])
    documents.change(session, "summary", session.timeline.summaries[2:], {"removed": True})
    documents.save_summary(session, texts[3])
    documents.change(session, "summary", session.timeline.summaries[:1], {"flush_receipt_status": "failed_retryable"})
    commit(session, "c", summary=texts[4])
    child = fork(files)
    found = child.attachments.summaries(child.timeline.current(child.timeline.summaries))
    assert [s.summary_text for s in found] == ["saved", "first", "between", "second"]
    assert [s.compaction_index for s in found] == [0, 1, 2, 3]
    assert found[0].flush_receipt_status == "failed_retryable"
    assert {(s.session_key, s.session_id) for s in found} == {(CHILD, f"id of {CHILD}")}
    of_parent = session.attachments.summaries(session.timeline.summaries)
    assert not {s.id for s in found} & {s.id for s in of_parent}
    assert {(s.session_key, s.session_id) for s in of_parent} == {(PARENT, "first")}
    assert not any(PARENT.encode() in data for data in files.tree(CHILD_DIRECTORY).values())


def test_only_valid_context_states_of_this_generation_are_taken() -> None:
    files = MemoryFiles()
    session = new_parent(files, "a")
    documents.save_context(session, context(state_kind="closed"))
    session.reset(reason="asked", archive_dir=PATHS.archives)
    say(session, "b")
    for kind in ("kept", "invalid", "also kept"):
        state = context(state_kind=kind, valid=kind != "invalid")
        state.session_id = session.node().session_id
        documents.save_context(session, state)
    documents.save_context(session, state)
    documents.change(session, CONTEXT, session.timeline.contexts[-1:], {"valid": False, "invalid_reason": "asked"})
    child = fork(files)
    found = child.attachments.contexts(child.timeline.contexts)
    assert [(s.state_kind, s.valid, s.session_key, s.session_id) for s in found] == [
        ("kept", True, CHILD, f"id of {CHILD}"),
        ("also kept", True, CHILD, f"id of {CHILD}"),
    ]


def test_a_child_is_sealed_where_its_parent_was_compacted_and_not_otherwise() -> None:
    files = MemoryFiles()
    session = new_parent(files, "a", "b")
    documents.save_summary(session, summary())
    assert [prefix_of(name) for name in fork(files, key="agent:main:plain").dir.logs] == [""]
    commit(session, "b", summary=summary())
    child = fork(files)
    sealed, carried = sorted(child.dir.logs.values(), key=lambda log: not prefix_of(log.name))
    assert [prefix_of(sealed.name), prefix_of(carried.name), carried.source] == ["archive", "", sealed.log_id]
    assert [r.identity for r in carried.lines if r is not None and r.kind == "message"] == ["b"]


def test_a_branch_stands_where_only_its_seal_fails(caplog: pytest.LogCaptureFixture) -> None:
    files = MemoryFiles()
    commit(new_parent(files, "a", "b"), "b", summary=summary())
    taken = take(open_session(files), "live", None, None)
    child = open_session(files, CHILD)
    # The first name that is given to a log is the commit; reading it back fails.
    files.fail_at(2, errno.EIO, matching=lambda call: call.name == "open_read" and "child" in call.path)
    files.fail_at(1, errno.EIO, matching=lambda call: call.name == "open_read" and "child" in call.path)
    build(child, child_node(), taken)
    files.heal()
    assert "not sealed" in caplog.text
    found = open_session(files.crash("synced"), CHILD)
    assert ids(found.timeline.live) == ["b"]
    assert [prefix_of(name) for name in found.dir.logs] == [""]


# --- how much, and up to where ---------------------------------------------------------------------------------------


def test_the_counts_of_live_entries_and_an_estimate_of_the_summaries_may_just_fit() -> None:
    files = MemoryFiles()
    session = new_parent(files, "a")
    say(session, "archived", token_count=1000)
    say(session, "c", token_count=7)
    say(session, "d")
    say(session, "e", token_count=5)
    commit(session, "c", "d", "e", summary=summary())
    documents.save_summary(session, summary())
    limit = 7 + 5 + 2 * estimate_tokens(summary().summary_text)
    child = fork(files, max_tokens=limit, key="agent:main:fits")
    assert (len(child.timeline.canonical), child.node().forked_from_parent) == (5, True)
    empty = fork(files, max_tokens=limit - 1)
    assert (empty.timeline.canonical, empty.timeline.summaries, empty.node().forked_from_parent) == ([], [], False)


@pytest.mark.parametrize("count", [b'"x"', b"true", b"1.5", b"[1]", b"null"])
def test_a_count_that_is_no_integer_weighs_nothing(count: bytes) -> None:
    files = MemoryFiles()
    put_log(files, b'{"type":"message","id":1,"message_id":"m1","role":"user","token_count":' + count + b"}")
    assert fork(files, max_tokens=0).node().forked_from_parent


def test_before_a_message_only_canonical_entries_are_taken_and_they_are_live() -> None:
    files = MemoryFiles()
    session = new_parent(files, *"abcd")
    remove(session, "b")
    commit(session, "d", summary=summary(), context_states=[context()])
    child = fork(files, "before", "c")
    assert ids(child.timeline.live) == ids(child.timeline.canonical) == ["a"]
    assert (child.timeline.summaries, child.timeline.contexts) == ([], [])
    assert child.node().forked_from_parent
    archived_and_live = fork(files, "before", "d", key="agent:main:later")
    assert ids(archived_and_live.timeline.live) == ["a", "c"]


def test_before_the_first_message_there_is_nothing_to_take_along_and_it_is_a_fork() -> None:
    files = MemoryFiles()
    new_parent(files, "a")
    child = fork(files, "before", "a")
    assert (child.timeline.canonical, child.node().forked_from_parent) == ([], True)


def test_before_a_message_the_archived_entries_weigh_too() -> None:
    files = MemoryFiles()
    session = new_parent(files)
    say(session, "a", "b", "c", token_count=4)
    truncate(session, 1)
    assert fork(files, "before", "c", 8, key="agent:main:fits").node().forked_from_parent
    assert not fork(files, "before", "c", 7).node().forked_from_parent


@pytest.mark.parametrize("message_id", ["nowhere", "gone", "closed", None])
def test_before_a_message_that_is_not_in_the_canonical_transcript_nothing_is_forked(message_id: str | None) -> None:
    files = MemoryFiles()
    session = new_parent(files, "closed")
    session.reset(reason="asked", archive_dir=PATHS.archives)
    say(session, "a", "gone")
    remove(session, "gone")
    before = files.tree()
    with pytest.raises(MessageNotFoundError, match=f"Transcript message not found: '{message_id}'"):
        take(session, "before", message_id, None)
    assert files.tree() == before


@pytest.mark.parametrize("what", ["none", "live", "before"])
def test_without_a_parent_there_is_nothing_to_branch_from(what: Taken) -> None:
    with pytest.raises(SessionNotFoundError):
        take(open_session(MemoryFiles()), what, "a", None)


def test_a_child_that_takes_nothing_is_empty_and_no_fork() -> None:
    files = MemoryFiles()
    commit(new_parent(files, "a", "b"), "b", summary=summary(), context_states=[context()])
    child = fork(files, "none")
    assert not child.node().forked_from_parent
    assert [(obj["type"], obj["id"]) for obj in objects(child)] == [("session", 1)]


def test_a_fork_of_an_empty_transcript_is_a_fork() -> None:
    files = MemoryFiles()
    new_parent(files)
    child = fork(files)
    assert (child.timeline.canonical, child.node().forked_from_parent) == ([], True)
    say(child, "first")
    assert ids(child.refresh().live) == ["first"]


# --- the child's key -------------------------------------------------------------------------------------------------


def test_under_a_key_that_was_deleted_the_child_begins_one_epoch_above() -> None:
    files = MemoryFiles()
    commit(new_parent(files, "a", "b"), "b", summary=summary())
    first = fork(files)
    say(first, "child's")
    first.fence()
    first.delete()
    child = fork(files)
    assert (child.timeline.epoch, child.timeline.generation, child.node().epoch) == (2, 2, 2)
    assert {obj["epoch"] for obj in objects(child)} == {2}
    assert (ids(child.timeline.canonical), ids(child.timeline.live)) == (["a", "b"], ["b"])


def test_a_higher_epoch_of_the_node_is_the_childs() -> None:
    files = MemoryFiles()
    new_parent(files, "a")
    child = fork(files, epoch=7)
    assert (child.timeline.epoch, child.timeline.generation) == (7, 7)


def test_a_taken_key_is_refused_before_anything_is_written() -> None:
    files = MemoryFiles()
    commit(new_parent(files, "a", "b"), "b", summary=summary())
    taken = take(open_session(files), "live", None, None)
    child = fork(files)
    before = files.tree()
    with pytest.raises(SessionExistsError):
        build(child, child_node(), taken)
    assert files.tree() == before


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"origin": {"a": {1, 2}}}, UnstorableTypeError),
        ({"label": "\ud800"}, UnstorableValueError),
        ({"total_cost_usd": float("nan")}, UnstorableValueError),
        ({"total_tokens": "3"}, TypeError),
        ({"epoch": 2**53}, UnstorableValueError),
        ({"epoch": -1}, UnstorableValueError),
        ({"epoch": 1.5}, UnstorableValueError),
    ],
)
def test_what_cannot_be_stored_is_refused_before_anything_is_written(
    fields: dict[str, Any], error: type[Exception]
) -> None:
    files = MemoryFiles()
    commit(new_parent(files, "a", "b"), "b", summary=summary())
    taken = take(open_session(files), "live", None, None)
    before = files.tree()
    with pytest.raises(error):
        build(open_session(files, CHILD), child_node(**fields), taken)
    assert files.tree() == before


def test_the_parent_is_left_as_it_is() -> None:
    files = MemoryFiles()
    commit(new_parent(files, "a", "b"), "b", summary=summary(), context_states=[context()])
    before = files.tree(DIRECTORY)
    fork(files)
    assert files.tree(DIRECTORY) == before


def test_a_fork_of_a_fork_is_what_the_fork_was() -> None:
    files = MemoryFiles()
    session = new_parent(files, *"abcd")
    commit(session, "c", "d", replacements={"b": entry("r")}, summary=summary(), context_states=[context()])
    remove(session, "c")
    one = fork(files)
    two = fork(files, key="agent:main:grandchild", parent=CHILD)
    assert stored_lines(two) == stored_lines(one)
    assert ids(two.timeline.live) == ids(one.timeline.live) == ["r", "d"]
    assert ids(two.timeline.canonical) == ["a", "r", "d"]
    assert len(two.timeline.summaries) == len(two.timeline.contexts) == 1


# --- whole histories -------------------------------------------------------------------------------------------------


def act(session: Session, step: tuple[str, int], number: int) -> None:
    """Do one step of a history; *choice* picks what it is done to."""
    verb, choice = step
    session.refresh()
    live = ids(session.timeline.live)
    if verb == "say":
        say(session, f"m{number}")
    elif verb == "call":
        say(session, f"m{number}", role="assistant", content="", tool_calls=[{"id": f"c{choice % 3}"}])
    elif verb == "result":
        say(session, f"m{number}", role="tool", tool_call_id=f"c{choice % 3}")
    elif verb == "remove" and live:
        remove(session, live[choice % len(live)])
    elif verb == "truncate":
        truncate(session, choice % 5)
    elif verb == "compact":
        commit(session, *(i for n, i in enumerate(live) if choice >> n % 8 & 1), summary=summary())
    elif verb == "replace" and live:
        target = live[choice % len(live)]
        commit(session, *live[len(live) // 2 :], replacements={target: entry(f"r{number}")})


STEPS = st.tuples(
    st.sampled_from(["laptop", "desk"]),
    st.tuples(
        st.sampled_from(["say", "say", "call", "result", "remove", "truncate", "compact", "replace"]),
        st.integers(0, 255),
    ),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(STEPS, max_size=14))
def test_whatever_happened_to_the_parent_the_child_shows_what_it_shows(history: list[Any]) -> None:
    files = MemoryFiles()
    sessions = {device: open_session(files, device=device) for device in ("laptop", "desk")}
    sessions["laptop"].create(node())
    for number, (device, step) in enumerate(history):
        act(sessions[device], step, number)
    parent = open_session(files)
    child = fork(files)
    for canonical, own in ((True, child.timeline.canonical), (False, child.timeline.live)):
        theirs = parent.timeline.canonical if canonical else parent.timeline.live
        assert ids(own) == ids(theirs)
        assert [{**e, "id": 0} for e in plain(child, own)] == [{**e, "id": 0} for e in plain(parent, theirs)]
    grown = numbers(child)
    assert grown == sorted(set(grown))
    kept = [own == before for own, before in zip(grown, numbers(parent), strict=True)]
    assert all(kept) or numbers(parent) != sorted(set(numbers(parent))) or numbers(parent)[:1] < [2]
    sizes = [
        sorted(list(by.values()).count(compaction) for compaction in set(by.values()))
        for by in (visible(parent), visible(child))
    ]
    assert sizes[0] == sizes[1]
    assert len(child.timeline.summaries) == len(parent.timeline.summaries)


def visible(session: Session) -> dict[str, str]:
    canonical = set(ids(session.timeline.canonical))
    return {entry: by for entry, by in session.timeline.archived_by.items() if entry in canonical}


def test_a_line_of_a_child_is_one_json_object_for_every_reader() -> None:
    files = MemoryFiles()
    new_parent(files, "a\u2028b", "c")
    for line in stored_lines(fork(files)):
        assert encode_line(json.loads(line))[:-1] == line
