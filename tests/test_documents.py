"""Summaries and states of one session: saved, changed and taken away, each in one commit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from memory_files import MemoryFiles
from operations import DIRECTORY, context, node, open_session, steady, summary

from squilla_files import documents
from squilla_files.errors import SessionNotFoundError, StaleEpochError, UnstorableTypeError
from squilla_files.journal import CONTEXT, SUMMARY
from squilla_files.models import SessionContextState, SessionSummary
from squilla_files.session import Session


@pytest.fixture(autouse=True)
def steady_world() -> Iterator[None]:
    with steady(8):
        yield


def new(files: MemoryFiles) -> Session:
    session = open_session(files)
    session.create(node())
    return session


def last_line(files: MemoryFiles) -> dict[str, Any]:
    data = files.read_file(f"{DIRECTORY}/transcript.laptop.000001.jsonl")
    found: dict[str, Any] = json.loads(data.splitlines()[-1])
    return found


def save(session: Session, record: SessionSummary | SessionContextState) -> object:
    if isinstance(record, SessionSummary):
        return documents.save_summary(session, record)
    return documents.save_context(session, record)


@pytest.mark.parametrize("make", [summary, context])
def test_what_is_saved_is_named_by_one_line_and_bears_its_id_from_then_on(make: Any) -> None:
    files = MemoryFiles()
    session = new(files)
    record = make()
    record.session_key = "another spelling"
    assert save(session, record) is record
    line = last_line(files)
    kind = line["type"]
    assert set(line) == {"type", "id", "record", kind}
    timeline = session.timeline
    ((attachment),) = timeline.summaries if kind == SUMMARY else timeline.contexts
    assert attachment.doc_id == line[kind]
    assert record.session_key == session.key
    found = session.attachments.summaries if kind == SUMMARY else session.attachments.contexts
    assert found([attachment]) == [record]


@pytest.mark.parametrize("make", [summary, context])
def test_without_a_session_or_for_a_closed_generation_nothing_is_saved(make: Any) -> None:
    files = MemoryFiles()
    with pytest.raises(SessionNotFoundError):
        save(open_session(files), make())
    session = new(files)
    session.reset(reason="asked", archive_dir="/archives")
    before = files.tree()
    with pytest.raises(StaleEpochError) as caught:
        save(session, make())
    assert (caught.value.expected_epoch, caught.value.actual_epoch) == (None, 1)
    assert files.tree() == before


def test_a_change_of_several_is_one_record() -> None:
    files = MemoryFiles()
    session = new(files)
    for number in range(3):
        documents.save_context(session, context(state_kind=f"kind {number}"))
    one, two, three = session.timeline.contexts
    assert documents.change(session, CONTEXT, [one, three], {"valid": False}) == 2
    assert last_line(files)["context"] == [one.doc_id, three.doc_id]
    assert last_line(files)["change"] == {"valid": False}
    states = session.attachments.contexts(session.timeline.contexts)
    assert [state.valid for state in states] == [False, True, False]
    assert documents.change(session, CONTEXT, [two], {"invalid_reason": "x"}) == 1
    assert last_line(files)["context"] == two.doc_id


def test_a_change_of_nothing_writes_nothing() -> None:
    files = MemoryFiles()
    session = new(files)
    before = files.tree()
    assert documents.change(session, SUMMARY, [], {"removed": True}) == 0
    assert documents.delete_summaries(session) == 0
    assert files.tree() == before


def test_a_change_that_cannot_be_stored_is_refused() -> None:
    files = MemoryFiles()
    session = new(files)
    documents.save_summary(session, summary())
    before = files.tree()
    with pytest.raises(UnstorableTypeError):
        documents.change(session, SUMMARY, session.timeline.summaries, {"flush_receipt_status": {1}})
    assert files.tree() == before


def test_only_the_summaries_of_this_generation_that_are_still_there_are_deleted() -> None:
    session = new(MemoryFiles())
    documents.save_summary(session, summary())
    session.reset(reason="asked", archive_dir="/archives")
    for _ in range(2):
        made = summary()
        made.session_id = session.node().session_id
        documents.save_summary(session, made)
    assert documents.delete_summaries(session) == 2
    assert documents.delete_summaries(session) == 0
    assert [attachment.removed for attachment in session.timeline.summaries] == [False, True, True]
    again = summary()
    again.session_id = session.node().session_id
    assert documents.save_summary(session, again).compaction_index == 2
