"""Summaries and context states as documents: found by the id inside, whatever their files are called."""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_files import MemoryFiles
from operations import DEVICE, DIRECTORY, context, node, open_session, say, steady, summary

from squilla_files import documents
from squilla_files.attachments import belongs_to, number_of, session_bits, stored_values
from squilla_files.errors import UnsafePathError, UnstorableTypeError, UnstorableValueError, UnsupportedFormatError
from squilla_files.journal import CONTEXT, SUMMARY
from squilla_files.layout import session_dir_name
from squilla_files.models import SessionSummary
from squilla_files.session import Session

SUMMARIES = f"{DIRECTORY}/summaries"


@pytest.fixture(autouse=True)
def steady_world() -> Iterator[None]:
    with steady(7):
        yield


def new(files: MemoryFiles) -> Session:
    session = open_session(files)
    session.create(node())
    return session


def texts(session: Session) -> list[str]:
    timeline = session.refresh()
    return [found.summary_text for found in session.attachments.summaries(timeline.current(timeline.summaries))]


def saved(session: Session, *said: str) -> list[SessionSummary]:
    made = []
    for text in said:
        made.append(summary())
        made[-1].summary_text = text
        documents.save_summary(session, made[-1])
    return made


# --- ids -------------------------------------------------------------------------------------------------------------


@given(st.text(min_size=1, max_size=20), st.text("0123456789abcdef", min_size=16, max_size=16))
def test_an_id_has_53_bits_and_tells_its_session(key: str, doc_id: str) -> None:
    dir_name = session_dir_name(key)
    number = number_of(dir_name, doc_id)
    assert 0 <= number < 2**53
    assert belongs_to(number, dir_name)
    assert number >> 32 == session_bits(dir_name) == int(dir_name.rpartition("~")[2], 16) >> 43
    assert number_of(dir_name, doc_id) == number


def test_ids_differ_between_documents_and_sessions() -> None:
    names = [session_dir_name(f"key {n}") for n in range(30)]
    numbers = {number_of(name, f"doc {n}") for name in names for n in range(30)}
    assert len(numbers) == 900
    assert len({session_bits(name) for name in names}) == 30
    assert sum(belongs_to(number_of(names[0], "doc"), name) for name in names) == 1


def test_a_name_that_is_none_of_a_session_has_no_bits() -> None:
    assert session_bits("not a directory of a session") == 0


# --- writing ---------------------------------------------------------------------------------------------------------


def test_a_document_says_what_it_is_and_all_fields_but_those_that_follow_from_its_record() -> None:
    files = MemoryFiles()
    session = new(files)
    (made,) = saved(session, "text \u2028")
    data = files.crash("synced").read_file(f"{SUMMARIES}/000001.{DEVICE}.json")
    assert data.isascii()
    document = json.loads(data)
    assert list(document)[:3] == ["type", "format", "id"]
    assert (document["type"], document["format"]) == ("summary", 1)
    assert re.fullmatch("[0-9a-f]{16}", document["id"])
    assert "compaction_index" not in document
    assert number_of(session.dir.dir_name, document["id"]) == made.id
    assert {**document, "id": made.id} == {**stored_values(made), "id": made.id, "type": "summary", "format": 1}


def test_files_are_numbered_whoever_wrote_them() -> None:
    files = MemoryFiles()
    session = new(files)
    files.put(f"{SUMMARIES}/000041.desk.json", b"{}")
    files.put(f"{SUMMARIES}/000099.desk (copy).json", b"{}")
    saved(session, "a", "b")
    documents.save_context(session, context())
    names = {path.removeprefix(DIRECTORY) for path in files.tree(DIRECTORY) if path.endswith(f".{DEVICE}.json")}
    assert names == {
        f"/summaries/000042.{DEVICE}.json",
        f"/summaries/000043.{DEVICE}.json",
        f"/contexts/000001.{DEVICE}.json",
        f"/manifest.{DEVICE}.json",
    }


@pytest.mark.parametrize(
    ("payload", "error"), [({"a": {1}}, UnstorableTypeError), ({"a": float("inf")}, UnstorableValueError)]
)
def test_what_json_cannot_hold_is_refused_before_anything_is_written(
    payload: dict[str, Any], error: type[Exception]
) -> None:
    files = MemoryFiles()
    session = new(files)
    before = files.tree()
    made = summary()
    made.summary_payload = payload
    with pytest.raises(error):
        session.attachments.write(made, DEVICE)
    assert files.tree() == before


def test_a_document_that_no_record_names_is_not_seen() -> None:
    files = MemoryFiles()
    session = new(files)
    doc_id = session.attachments.write(summary(), DEVICE)
    assert texts(session) == []
    assert list(session.attachments.documents(SUMMARY)) == [doc_id]
    assert session.attachments.missing() == []


def test_the_number_of_a_summary_counts_within_its_generation() -> None:
    session = new(MemoryFiles())
    assert [made.compaction_index for made in saved(session, "a", "b")] == [0, 1]
    assert session.attachments.index_of("not known yet") == 2
    session.reset(reason="asked", archive_dir="/archives")
    assert session.attachments.index_of("not known yet") == 0


# --- reading ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["renamed.json", "000001.laptop (conflict).json", "no ending"])
def test_a_document_is_found_by_the_id_inside(name: str) -> None:
    files = MemoryFiles()
    session = new(files)
    saved(session, "a")
    files.rename(f"{SUMMARIES}/000001.{DEVICE}.json", f"{SUMMARIES}/{name}")
    assert texts(session) == texts(open_session(files)) == ["a"]


@pytest.mark.parametrize("name", ["~sqf-00.tmp", ".000001.laptop.json.icloud", ".hidden", "000001.laptop.json.part"])
def test_a_file_under_way_or_a_placeholder_is_not_read(name: str, caplog: pytest.LogCaptureFixture) -> None:
    files = MemoryFiles()
    session = new(files)
    saved(session, "a", "b")
    files.rename(f"{SUMMARIES}/000001.{DEVICE}.json", f"{SUMMARIES}/{name}")
    assert texts(session) == ["b"]
    assert "is not here" in caplog.text
    (missing,) = session.attachments.missing()
    assert missing == (SUMMARY, session.timeline.summaries[0].doc_id)


def test_of_two_files_with_one_id_the_one_with_a_proper_name_counts_and_then_the_first() -> None:
    files = MemoryFiles()
    session = new(files)
    saved(session, "a")
    proper = f"{SUMMARIES}/000001.{DEVICE}.json"
    data = files.read_file(proper)
    files.put(f"{SUMMARIES}/000000 copy", data.replace(b'"a"', b'"copy"'))
    assert texts(session) == texts(open_session(files)) == ["a"]
    files.put(f"{SUMMARIES}/000000.desk.json", data.replace(b'"a"', b'"desk"'))
    assert texts(session) == texts(open_session(files)) == ["desk"]


@pytest.mark.parametrize("data", [b"", b"x", b"[]", b"{}", b'{"type":"summary"}', b'{"type":"summary","id":7}'])
def test_a_damaged_document_is_missing_and_hides_no_other(data: bytes) -> None:
    files = MemoryFiles()
    session = new(files)
    saved(session, "a", "b")
    documents.save_context(session, context())
    files.put(f"{SUMMARIES}/000001.{DEVICE}.json", data)
    assert texts(session) == ["b"]
    assert session.attachments.missing() == [(SUMMARY, session.timeline.summaries[0].doc_id)]
    assert len(session.attachments.contexts(session.timeline.contexts)) == 1


def test_a_document_of_another_kind_is_none_of_this() -> None:
    files = MemoryFiles()
    session = new(files)
    saved(session, "a")
    path = f"{SUMMARIES}/000001.{DEVICE}.json"
    files.put(path, files.read_file(path).replace(b'"type": "summary"', b'"type": "context"'))
    assert texts(session) == []
    assert session.attachments.documents(SUMMARY) == session.attachments.documents(CONTEXT) == {}


def test_a_summary_that_was_deleted_is_not_missed() -> None:
    files = MemoryFiles()
    session = new(files)
    saved(session, "a")
    documents.delete_summaries(session)
    files.unlink(f"{SUMMARIES}/000001.{DEVICE}.json")
    assert session.attachments.missing() == []


def test_a_document_of_a_later_version_is_refused() -> None:
    files = MemoryFiles()
    session = new(files)
    saved(session, "a")
    path = f"{SUMMARIES}/000001.{DEVICE}.json"
    files.put(path, files.read_file(path).replace(b'"format": 1', b'"format": 2'))
    with pytest.raises(UnsupportedFormatError):
        texts(session)


def test_a_document_that_changed_is_read_anew_and_no_other() -> None:
    files = MemoryFiles()
    session = new(files)
    saved(session, "a", "b")
    assert texts(session) == ["a", "b"]
    path = f"{SUMMARIES}/000002.{DEVICE}.json"
    files.put(path, files.read_file(path).replace(b'"b"', b'"c"'))
    files.calls.clear()
    assert texts(session) == ["a", "c"]
    assert [call.path for call in files.calls if call.name == "read_file" and SUMMARIES in call.path] == [path]


@pytest.mark.parametrize("verb", ["scan", "stat", "read_file"])
def test_what_cannot_be_read_is_an_error_and_not_missing(verb: str) -> None:
    files = MemoryFiles()
    saved(new(files), "a")
    session = open_session(files.another_process())
    reader = session.dir.files
    assert isinstance(reader, MemoryFiles)
    reader.fail_at(1, errno.EACCES, matching=lambda call: call.name == verb and SUMMARIES in call.path)
    with pytest.raises(PermissionError):
        texts(session)
    assert texts(session) == ["a"]


def test_a_document_that_goes_while_it_is_looked_at_is_not_here() -> None:
    files = MemoryFiles()
    saved(new(files), "a", "b")
    session = open_session(files)
    files.fail_at(1, errno.ENOENT, matching=lambda call: call.name == "read_file" and "000001" in call.path)
    assert texts(session) == ["b"]
    assert texts(session) == ["a", "b"]


def test_a_link_in_place_of_the_directory_is_refused_and_one_in_it_not_followed() -> None:
    files = MemoryFiles()
    session = new(files)
    saved(session, "a")
    files.put("/elsewhere", files.read_file(f"{SUMMARIES}/000001.{DEVICE}.json"))
    files.unlink(f"{SUMMARIES}/000001.{DEVICE}.json")
    files.symlink("/elsewhere", f"{SUMMARIES}/000001.{DEVICE}.json")
    assert texts(session) == []
    files.rename(SUMMARIES, "/moved")
    files.symlink("/moved", SUMMARIES)
    with pytest.raises(UnsafePathError):
        texts(session)


def test_changes_since_show_and_a_callers_own_do_not() -> None:
    session = new(MemoryFiles())
    made = summary()
    made.summary_payload = {"a": [1]}
    documents.save_summary(session, made)
    documents.change(session, SUMMARY, session.timeline.summaries, {"flush_receipt_status": "done", "x": 1})
    for _ in range(2):
        (found,) = session.attachments.summaries(session.timeline.summaries)
        assert (found.flush_receipt_status, found.summary_payload) == ("done", {"a": [1]})
        assert (found.id, found.session_key, found.compaction_index) == (made.id, session.key, 0)
        found.summary_payload["a"].append(2)
        found.flush_receipt_status = "mine"


def test_states_of_a_closed_generation_are_invalid_and_keep_a_reason_that_they_had() -> None:
    session = new(MemoryFiles())
    for number in range(2):
        documents.save_context(session, context(state_kind=f"kind {number}"))
    changes = {"valid": False, "invalid_reason": "asked"}
    documents.change(session, CONTEXT, session.timeline.contexts[:1], changes)
    session.reset(reason="asked", archive_dir="/archives")
    say(session, "a")
    found = session.attachments.contexts(session.timeline.contexts)
    assert [(state.valid, state.invalid_reason) for state in found] == [(False, "asked"), (False, "session_reset")]
