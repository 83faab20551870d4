"""Messages of one session, several in one write: what is refused stops no other, and leaves no trace."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from typing import Any

import pytest
from memory_files import MemoryFiles
from operations import ARCHIVES, DIRECTORY, entry, node, open_session, say, steady

from squilla_files.appending import Append, append, clear, remove
from squilla_files.errors import (
    MessageConflictError,
    SessionNotFoundError,
    StaleEpochError,
    UnstorableTypeError,
    UnstorableValueError,
)
from squilla_files.rewriting import truncate
from squilla_files.session import Session

LOG = f"{DIRECTORY}/transcript.laptop.000001.jsonl"


@pytest.fixture(autouse=True)
def steady_world() -> Iterator[None]:
    with steady(10):
        yield


def new(files: MemoryFiles, *message_ids: str) -> Session:
    session = open_session(files)
    session.create(node())
    say(session, *message_ids)
    return session


def item(message_id: str, role: str = "user", **fields: Any) -> Append:
    return Append(entry(message_id, role, session_id="first", **fields))


def live(session: Session) -> list[str]:
    return [record.identity for record in session.refresh().live]


def writes(files: MemoryFiles) -> int:
    return sum(call.name == "write" and "transcript" in call.path for call in files.calls)


def result(of: str, **fields: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": of, **fields}


def test_messages_that_come_together_are_one_write_and_one_sync() -> None:
    files = MemoryFiles()
    session = new(files, "a")
    files.calls.clear()
    items = [item("b"), item("c"), item("d")]
    items[0].entry.session_key = "another spelling"
    append(session, items)
    assert items[0].entry.session_key == session.key
    assert [call.name for call in files.calls if call.name in ("write", "sync")] == ["write", "sync"]
    assert all(each.done and each.error is None for each in items)
    assert [each.entry.id for each in items] == [3, 4, 5]
    assert live(session) == ["a", "b", "c", "d"]


def refused() -> list[tuple[Append, type[Exception]]]:
    stale = item("n1")
    stale.expected_epoch = 4
    unknown = Append(entry("n2", session_id="unknown"))
    field, counter, amount = item("n3"), item("n4"), item("n5")
    field.fields = {"no_such_field": 1}
    counter.counters = {"label": 1}
    amount.counters = {"total_tokens": "3"}  # type: ignore[dict-item]
    return [
        (stale, StaleEpochError),
        (unknown, StaleEpochError),
        (field, ValueError),
        (counter, ValueError),
        (amount, TypeError),
        (item("n6", content={1}), UnstorableTypeError),
        (item("n7", content="\ud800"), UnstorableValueError),
        (item(""), ValueError),
        (item("n8", role=""), ValueError),
        (item("removed"), MessageConflictError),
        (item("a", content="other"), MessageConflictError),
        (item("old"), MessageConflictError),
        (item("of the creation"), MessageConflictError),
    ]


def test_one_that_is_refused_says_why_and_stops_no_other() -> None:
    files = MemoryFiles()
    session = new(files, "old")
    session.reset(reason="asked", archive_dir=ARCHIVES)
    session.update({"session_id": "first"}, {})
    session.writer.commit([{"type": "session", "id": 90, "epoch": 1, "record": "of the creation"}])
    say(session, "a", "removed")
    remove(session, "removed")
    before = session.timeline.last_id
    for bad, error in refused():
        first, last = item(f"before {bad.entry.message_id}"), item(f"after {bad.entry.message_id}")
        append(session, [first, bad, last])
        assert (first.done, bad.done, last.done) == (True, False, True)
        assert isinstance(bad.error, error), bad
        assert bad.entry.id is None
        assert last.entry.id == (first.entry.id or 0) + 1 == before + 2
        before += 2
    assert len(live(session)) == 1 + 2 * len(refused())


def test_where_all_are_refused_nothing_is_written() -> None:
    files = MemoryFiles()
    session = new(files, "a")
    before = files.tree()
    items = [item("b", content={1}), item("a", content="other")]
    append(session, items)
    assert files.tree() == before
    assert not any(each.done for each in items)
    append(session, [])
    assert files.tree() == before


def test_without_a_session_each_is_refused_in_its_own_way() -> None:
    files = MemoryFiles()
    items = [item("a"), item("b"), item("c")]
    items[1].expected_epoch = 0
    items[2].any_generation = True
    append(open_session(files), items)
    assert [type(each.error) for each in items] == [SessionNotFoundError, StaleEpochError, SessionNotFoundError]
    error = items[1].error
    assert isinstance(error, StaleEpochError)
    assert (error.expected_epoch, error.actual_epoch) == (0, None)


def test_the_epoch_or_the_session_id_or_neither_is_checked() -> None:
    session = new(MemoryFiles())
    session.fence()
    by_epoch, by_id, by_neither = Append(entry("a")), item("b"), Append(entry("c", session_id="x"))
    by_epoch.expected_epoch = 1
    by_neither.any_generation = True
    append(session, [by_epoch, by_id, by_neither])
    assert live(session) == ["a", "b", "c"]
    assert (by_neither.entry.session_id, by_neither.entry.session_key) == ("first", session.key)
    assert by_epoch.entry.session_id == ""
    late = item("d")
    late.expected_epoch = 0
    append(session, [late])
    error = late.error
    assert isinstance(error, StaleEpochError)
    assert (error.expected_epoch, error.actual_epoch) == (0, 1)


def test_fields_and_counters_stand_in_the_line_of_their_message() -> None:
    files = MemoryFiles()
    session = new(files)
    one = item("a")
    one.fields, one.counters = {"label": "x"}, {"total_tokens": 3, "cache_read": 0}
    append(session, [one, item("b")])
    first, second = (json.loads(line) for line in files.read_file(LOG).splitlines()[-2:])
    assert (first["set"], first["add"]) == ({"label": "x"}, {"total_tokens": 3})
    assert {"set", "add"}.isdisjoint(second)
    assert (session.node().label, session.node().total_tokens) == ("x", 3)


# --- retries ---------------------------------------------------------------------------------------------------------


def test_a_message_that_is_there_already_is_done_and_counts_once() -> None:
    files = MemoryFiles()
    session = new(files, "a")
    counted = item("b")
    counted.counters = {"total_tokens": 3}
    append(session, [counted])
    before = files.tree()
    again, known = item("b", created_at=99), item("a")
    again.counters = {"total_tokens": 3}
    append(session, [again, known])
    assert (again.done, again.entry.id, known.entry.id) == (True, counted.entry.id, 2)
    assert files.tree() == before
    assert session.node().total_tokens == 3


def test_a_message_that_comes_twice_in_one_write_is_one() -> None:
    session = new(MemoryFiles())
    one, same, other = item("a"), item("a"), item("a", content="other")
    append(session, [one, same, other])
    assert (one.done, same.done, other.done) == (True, True, False)
    assert one.entry.id == same.entry.id
    assert isinstance(other.error, MessageConflictError)
    assert live(session) == ["a"]


def test_a_retry_of_an_archived_message_is_done_and_archives_nothing_anew() -> None:
    session = new(MemoryFiles(), "a", "b")
    truncate(session, 1)
    again = item("a")
    append(session, [again])
    assert again.done
    assert live(session) == ["b"]


def test_a_retry_is_not_acknowledged_before_what_is_there_is_durable() -> None:
    files = MemoryFiles()
    session = new(files, "a")
    session.close()
    again = open_session(files.another_process())
    disk = again.dir.files
    assert isinstance(disk, MemoryFiles)
    retry = item("a")
    disk.fail_at(1, errno.EIO, matching=lambda call: call.name == "sync")
    with pytest.raises(OSError, match="error"):
        append(again, [retry])
    assert not retry.done
    again.refresh()
    append(again, [retry])
    assert retry.done


def test_where_the_write_fails_neither_new_ones_nor_retries_are_done() -> None:
    files = MemoryFiles()
    session = new(files, "a")
    items = [item("b"), item("a"), item("c", content={1})]
    files.fail_at(1, errno.ENOSPC, matching=lambda call: call.name == "write")
    with pytest.raises(OSError, match="No space"):
        append(session, items)
    assert [each.done for each in items] == [False, False, False]
    assert [each.error is None for each in items] == [True, True, False]
    assert live(session) == ["a"]


# --- results where several devices write -----------------------------------------------------------------------------


def shared(files: MemoryFiles) -> Session:
    """A call of this device, and an entry that another put behind it."""
    session = new(files)
    say(session, "ask", role="assistant", content="", tool_calls=[{"id": "c"}])
    desk = open_session(files.another_process(), device="desk")
    say(desk, "theirs")
    session.refresh()
    return session


def test_a_result_that_comes_with_others_hangs_where_it_would_hang_alone() -> None:
    order = []
    for together in (True, False):
        session = shared(MemoryFiles())
        items = [item("b"), item("answer", **result("c")), item("d")]
        if together:
            append(session, items)
        else:
            for each in items:
                append(session, [each])
        assert all(each.done for each in items)
        order.append([record.identity for record in session.refresh().order])
        fresh = open_session(MemoryFiles(disk=disk_of(session)))
        assert order[-1] == [record.identity for record in fresh.timeline.order]
    assert order[0] == order[1]
    assert order[0][:2] == ["ask", "answer"]


def disk_of(session: Session) -> Any:
    assert isinstance(session.dir.files, MemoryFiles)
    return session.dir.files._disk


def test_only_what_hangs_on_an_order_that_is_not_known_yet_waits_for_another_write() -> None:
    files = MemoryFiles()
    session = shared(files)
    files.calls.clear()
    append(session, [item("answer", **result("c")), item("d"), item("e")])
    assert writes(files) == 2
    append(session, [item("f"), item("g")])
    assert writes(files) == 3
    append(session, [item("h"), item("late", **result("c")), item("i")])
    assert writes(files) == 6


def test_with_one_device_calls_and_results_are_one_write() -> None:
    files = MemoryFiles()
    session = new(files)
    files.calls.clear()
    ask = item("ask", role="assistant", tool_calls=[{"id": "c"}])
    append(session, [ask, item("answer", **result("c")), item("b")])
    assert writes(files) == 1
    assert session.timeline.call_of == {"answer": "ask"}


# --- taking out ------------------------------------------------------------------------------------------------------


def test_only_a_live_entry_can_be_taken_out_and_once() -> None:
    files = MemoryFiles()
    assert not remove(open_session(files), "a")
    session = new(files, "a", "b", "c")
    truncate(session, 2)
    before = files.tree()
    assert not remove(session, "a")
    assert not remove(session, "unknown")
    assert files.tree() == before
    assert remove(session, "b")
    assert not remove(session, "b")
    assert live(session) == ["c"]
    assert [record.identity for record in session.timeline.canonical] == ["a", "c"]


def test_clearing_takes_out_archived_and_live_entries_of_every_device_and_nothing_that_comes_later() -> None:
    files = MemoryFiles()
    session = new(files, "a", "b", "c")
    truncate(session, 1)
    say(open_session(files.another_process(), device="desk"), "theirs")
    session.refresh()
    assert clear(session) == 4
    assert session.refresh().canonical == []
    before = files.tree()
    assert clear(session) == 0
    assert files.tree() == before
    say(session, "d")
    assert live(session) == ["d"]
    assert live(open_session(files.another_process())) == ["d"]
