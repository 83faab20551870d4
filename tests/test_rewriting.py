"""Compaction and truncation: marks that archive just what is meant, and one line that says all of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_files import MemoryFiles
from operations import ARCHIVES, DIRECTORY, context, entry, node, open_session, say, steady, summary
from written import call, head, line, message, read, read_log, result

from squilla_files.appending import remove
from squilla_files.commits import CompactionCommit
from squilla_files.errors import (
    MessageConflictError,
    SessionNotFoundError,
    StaleEpochError,
    StalePreimageError,
    UnstorableTypeError,
)
from squilla_files.journal import Log
from squilla_files.rewriting import archive_marks, compact, rewrite, truncate
from squilla_files.session import Session
from squilla_files.timeline import Timeline

SEALED = f"{DIRECTORY}/archive/transcript.laptop.000001.jsonl"


@pytest.fixture(autouse=True)
def steady_world() -> Iterator[None]:
    with steady(11):
        yield


# --- marks -----------------------------------------------------------------------------------------------------------


def logs_of(files: dict[str, bytes]) -> list[Log]:
    return [read_log(data, name) for name, data in files.items()]


def marks_for(files: dict[str, bytes], *archived: str) -> tuple[list[Any], list[str]]:
    marks, kept = archive_marks(read(files), logs_of(files), set(archived))
    return [list(mark) for mark in marks], kept


LAPTOP = head("L") + message(1, "a") + message(2, "b", "a") + message(3, "c", "b")


def test_a_mark_stands_at_the_last_entry_that_goes_and_names_what_stays_before_it() -> None:
    assert marks_for({"l": LAPTOP}, "b") == ([["L", 3, "b"]], ["a"])
    assert marks_for({"l": LAPTOP}, "a", "b", "c") == ([["L", 4, "c"]], [])
    assert marks_for({"l": LAPTOP}, "a", "c") == ([["L", 4, "c"]], ["b"])


def test_where_nothing_goes_there_is_no_mark() -> None:
    assert marks_for({"l": LAPTOP}) == ([], [])


def test_each_log_has_a_mark_of_its_own_and_only_where_something_goes() -> None:
    files = {"l": LAPTOP, "d": head("D", "desk") + message(4, "x", "c") + message(5, "y", "x")}
    assert marks_for(files, "b", "x") == ([["D", 2, "x"], ["L", 3, "b"]], ["a"])
    assert marks_for(files, "y") == ([["D", 3, "y"]], ["x"])


def test_a_copy_needs_a_mark_of_its_own_only_where_it_went_another_way() -> None:
    shorter = LAPTOP[: LAPTOP.rindex(b'{"type"')]
    assert marks_for({"l": LAPTOP, "copy": LAPTOP, "shorter": shorter}, "a", "c") == ([["L", 4, "c"]], ["b"])
    clone = shorter + message(9, "x", "b")
    assert marks_for({"l": LAPTOP, "clone": clone}, "a", "c") == ([["L", 4, "c"]], ["b"])
    assert marks_for({"l": LAPTOP, "clone": clone}, "c", "x") == ([["L", 4, "c"], ["L", 4, "x"]], ["a", "b"])


def test_a_log_without_its_first_line_can_bear_no_mark() -> None:
    assert marks_for({"l": b"damaged\n" + message(1, "a")}, "a") == ([], [])


def test_entries_in_a_line_are_marked_by_it() -> None:
    compaction = line("compaction", 4, record="k", covers=[], kept=[], entries=[{"message_id": "x", "role": "user"}])
    assert marks_for({"l": LAPTOP + compaction}, "x") == ([["L", 5, "k"]], ["a", "b", "c"])


@st.composite
def histories(draw: st.DrawFn) -> dict[str, bytes]:
    """Logs of two devices, one of them perhaps sealed, perhaps with a copy that is shorter or went another way."""
    written: dict[str, list[bytes]] = {"laptop": [head("L")], "desk": [head("D", "desk")]}
    last: dict[str, str | None] = {"laptop": None, "desk": None}
    calls: list[str] = []
    for number in range(1, draw(st.integers(1, 9))):
        device = draw(st.sampled_from(["laptop", "laptop", "desk"]))
        after = draw(st.sampled_from([last[device], last["laptop"], last["desk"]]))
        kind = draw(st.sampled_from(["message", "message", "call", "result", "remove", "entries"]))
        name = f"{kind[0]}{number}"
        if kind == "call":
            text = call(number, name, after, calls=[f"c{number}"])
            calls.append(f"c{number}")
        elif kind == "result" and calls and after is not None:
            text = result(number, name, after, of=draw(st.sampled_from(calls)))
        elif kind == "remove" and after is not None:
            text = line("remove", number, record=f"r{number}", message_id=after)
            name = after
        elif kind == "entries":
            links = {} if after is None else {"after": after}
            listed = [{"message_id": name, "role": "user", **links}]
            text = line("compaction", number, record=f"k{number}", covers=[], kept=[], entries=listed)
        else:
            text = message(number, name, after)
        written[device].append(text)
        last[device] = name
    files = {device: b"".join(lines) for device, lines in written.items()}
    laptop = written["laptop"]
    if draw(st.booleans()) and len(laptop) > 1:
        chosen = sorted(draw(st.sets(st.integers(2, len(laptop)))))
        copied = b"".join(laptop[number - 1] for number in chosen)
        files["next"] = head("M", last_id=9, source=("L", chosen)) + copied
    if draw(st.booleans()):
        kept = draw(st.integers(1, len(laptop)))
        other = message(20, "another way") if draw(st.booleans()) else b""
        files["copy"] = b"".join(laptop[:kept]) + other
    return files


def closed(timeline: Timeline, chosen: set[str]) -> set[str]:
    """*chosen*, with each result going when its call does; one whose call is not live stays."""
    live = {record.identity for record in timeline.live}
    going = {identity for identity in chosen if identity not in timeline.call_of}
    return going | {r for r in live if timeline.call_of.get(r) in going & live}


@settings(max_examples=150, deadline=None)
@given(histories(), st.data())
def test_marks_archive_exactly_what_was_meant(files: dict[str, bytes], data: st.DataObject) -> None:
    before = read(files)
    live = [record.identity for record in before.live]
    going = closed(before, data.draw(st.sets(st.sampled_from(live))) if live else set())
    marks, kept = archive_marks(before, logs_of(files), going)
    compaction = line("compaction", 50, record="now", covers=[list(mark) for mark in marks], kept=kept)
    after = read({**files, "now": head("N") + compaction})
    assert [record.identity for record in after.canonical] == [record.identity for record in before.canonical]
    assert [record.identity for record in after.live] == [identity for identity in live if identity not in going]


# --- compaction ------------------------------------------------------------------------------------------------------


def new(files: MemoryFiles, *message_ids: str) -> Session:
    session = open_session(files)
    session.create(node())
    say(session, *message_ids)
    return session


def commit(*kept: str, **members: Any) -> CompactionCommit:
    return CompactionCommit(**{"preimage": None, "kept": kept, **members})


def shown(session: Session) -> tuple[str, str]:
    timeline = session.refresh()
    return tuple(" ".join(r.identity for r in records) for records in (timeline.canonical, timeline.live))  # type: ignore[return-value]


def test_one_line_says_all_of_it() -> None:
    files = MemoryFiles()
    session = new(files, "a", "b", "c")
    made = commit(
        "c",
        replacements={"b": entry("r")},
        appended=[entry("x"), entry("y")],
        summary=summary(),
        context_states=[context(), context(state_kind="plan")],
        fields={"label": "x"},
        counters={"compaction_count": 1},
    )
    stored = compact(session, made)
    last = json.loads(files.read_file(SEALED).splitlines()[-1])
    timeline = session.timeline
    assert last["type"] == "compaction"
    assert (last["kept"], last["set"], last["add"]) == ([], {"label": "x"}, {"compaction_count": 1})
    assert last["covers"][0][1:] == [3, "a"]
    assert [each.doc_id for each in timeline.summaries] == [last["summary"]]
    assert [each.doc_id for each in timeline.contexts] == last["contexts"]
    number = last["id"]
    assert [(e["message_id"], e.get("replaces"), e.get("after"), e.get("id")) for e in last["entries"]] == [
        ("r", "b", None, None), ("x", None, "c", number + 1), ("y", None, "x", number + 2),
    ]  # fmt: skip
    assert shown(session) == ("a r c x y", "r c x y")
    assert [stored] == session.attachments.summaries(timeline.summaries)
    assert stored is not made.summary


def test_the_summary_that_is_returned_has_its_number() -> None:
    session = new(MemoryFiles(), "a", "b", "c")
    numbers = []
    for kept in (("b", "c"), ("c",)):
        stored = compact(session, commit(*kept, summary=summary()))
        assert stored is not None
        numbers.append(stored.compaction_index)
    assert numbers == [0, 1]


def test_members_that_say_nothing_are_left_out() -> None:
    files = MemoryFiles()
    session = new(files, "a")
    assert compact(session, commit()) is None
    last = json.loads(files.read_file(SEALED).splitlines()[-1])
    assert set(last) == {"type", "id", "record", "at", "covers", "kept"}


def test_what_stays_keeps_its_call_with_it() -> None:
    session = new(MemoryFiles(), "a")
    say(session, "ask", role="assistant", tool_calls=[{"id": "c"}])
    say(session, "answer", role="tool", tool_call_id="c")
    say(session, "b")
    compact(session, commit("answer"))
    assert shown(session) == ("a ask answer b", "ask answer")


def test_the_transcript_must_be_the_one_that_was_read() -> None:
    files = MemoryFiles()
    session = new(files, "a", "b", "c")
    before = files.tree()
    for preimage in (["a", "b"], ["a", "b", "c", "d"], ["b", "a", "c"], []):
        with pytest.raises(StalePreimageError):
            compact(session, commit("c", preimage=preimage))
    for preimage in (["b"], ["a", "c"], ["a", "b", "c", "d"]):
        with pytest.raises(StalePreimageError):
            compact(session, commit("c", preimage=preimage, keep_appended=True))
    assert files.tree() == before
    compact(session, commit("b", preimage=["a", "b", "c"]))
    assert shown(session) == ("a b c", "b")


def test_what_was_appended_since_stays_where_that_is_accepted() -> None:
    session = new(MemoryFiles(), "a", "b", "c", "d")
    compact(session, commit("b", preimage=["a", "b"], keep_appended=True))
    assert shown(session) == ("a b c d", "b c d")


def test_another_epoch_than_the_one_that_was_read_is_refused() -> None:
    session = new(MemoryFiles(), "a")
    session.fence()
    with pytest.raises(StaleEpochError) as caught:
        compact(session, commit(expected_epoch=0))
    assert (caught.value.expected_epoch, caught.value.actual_epoch) == (0, 1)
    compact(session, commit(expected_epoch=1))
    assert shown(session) == ("a", "")


@pytest.mark.parametrize(
    ("members", "error"),
    [
        ({"replacements": {"gone": entry("n")}}, ValueError),
        ({"replacements": {"unknown": entry("n")}}, ValueError),
        ({"appended": [entry("a")]}, MessageConflictError),
        ({"appended": [entry("gone")]}, MessageConflictError),
        ({"appended": [entry("old")]}, MessageConflictError),
        ({"appended": [entry("n"), entry("n")]}, MessageConflictError),
        ({"replacements": {"a": entry("n")}, "appended": [entry("n")]}, MessageConflictError),
        ({"appended": [entry("n", content={1})]}, UnstorableTypeError),
        ({"fields": {"epoch": 2}}, ValueError),
        ({"counters": {"label": 2}}, ValueError),
        ({"summary": replace(summary(), summary_payload={"a": {1}})}, UnstorableTypeError),
        ({"summary": summary(), "context_states": [context(payload={"a": {1}})]}, UnstorableTypeError),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(members: dict[str, Any], error: type[Exception]) -> None:
    files = MemoryFiles()
    session = new(files, "old")
    session.reset(reason="asked", archive_dir=ARCHIVES)
    say(session, "a", "gone")
    remove(session, "gone")
    before = files.tree()
    with pytest.raises(error):
        compact(session, commit("a", **members))
    assert files.tree() == before


def test_a_missing_session_cannot_be_rewritten() -> None:
    session = open_session(MemoryFiles())
    with pytest.raises(SessionNotFoundError):
        compact(session, commit())
    with pytest.raises(SessionNotFoundError):
        rewrite(session, commit(), [])
    with pytest.raises(SessionNotFoundError):
        truncate(session, 1)


def test_rewriting_makes_the_entries_that_are_given_the_live_transcript() -> None:
    session = new(MemoryFiles(), "a", "b", "c")
    found = session.dir.entries(session.timeline.live)
    made = rewrite(session, commit(summary=summary(), counters={"compaction_count": 1}), [found[2], entry("n")])
    assert shown(session) == ("a b c n", "c n")
    assert made is not None
    assert session.node().compaction_count == 1


def test_rewriting_keeps_what_another_program_wrote_however_little() -> None:
    files = MemoryFiles()
    session = new(files, "a", "b")
    foreign = head("D", "desk") + line("message", 9, message_id="bare", after="b")
    files.put(f"{DIRECTORY}/transcript.desk.000001.jsonl", foreign)
    bare = session.dir.entries(session.refresh().live)[-1]
    assert (bare.message_id, bare.role) == ("bare", "")
    rewrite(session, commit(), [bare])
    assert shown(session) == ("a b bare", "bare")


def test_rewriting_takes_no_other_content_under_a_live_id_and_no_id_that_is_not_live() -> None:
    files = MemoryFiles()
    session = new(files, "a", "b", "c")
    truncate(session, 2)
    before = files.tree()
    for wrong in (entry("b", content="other"), entry("a")):
        with pytest.raises(MessageConflictError):
            rewrite(session, commit(), [wrong])
    assert files.tree() == before


# --- truncation ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("most", "left"), [(0, ""), (1, "c"), (2, "b c"), (3, "a b c"), (9, "a b c")])
def test_a_truncation_keeps_the_last(most: int, left: str) -> None:
    files = MemoryFiles()
    session = new(files, "a", "b", "c")
    before = files.tree()
    assert truncate(session, most) == (3, len(left.split()))
    assert shown(session) == ("a b c", left)
    assert (files.tree() == before) == (most >= 3)


def test_a_truncation_seals_nothing_and_leaves_a_checkpoint() -> None:
    files = MemoryFiles()
    truncate(new(files, "a", "b", "c"), 1)
    assert SEALED not in files.tree()
    assert json.loads(files.read_file(f"{DIRECTORY}/manifest.laptop.json"))["live"] == 1


def test_a_negative_number_is_refused() -> None:
    session = new(MemoryFiles(), "a")
    with pytest.raises(ValueError, match="negative"):
        truncate(session, -1)


@pytest.mark.parametrize(
    ("most", "left"),
    [(1, "z"), (2, "ask one two z"), (3, "ask one two z"), (4, "ask one two z"), (5, "y ask one two z")],
)
def test_a_cut_never_parts_a_result_from_its_call(most: int, left: str) -> None:
    session = new(MemoryFiles(), "x", "y")
    say(session, "ask", role="assistant", tool_calls=[{"id": "c"}, {"id": "d"}])
    say(session, "one", role="tool", tool_call_id="c")
    say(session, "two", role="tool", tool_call_id="d")
    say(session, "z")
    assert truncate(session, most) == (6, len(left.split()))
    assert shown(session)[1] == left


def test_a_result_whose_call_is_gone_holds_no_cut_back() -> None:
    session = new(MemoryFiles(), "x")
    say(session, "ask", role="assistant", tool_calls=[{"id": "c"}])
    say(session, "y")
    say(session, "answer", role="tool", tool_call_id="c")
    remove(session, "ask")
    assert truncate(session, 1)[0] == 3
    assert shown(session)[1] == "answer"
