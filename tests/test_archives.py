"""The document that a reset leaves: the whole generation, readable alone; where it fails the reset goes on."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator

import pytest
from memory_files import MemoryFiles
from operations import ARCHIVES, DIRECTORY, NOW_NS, commit, entry, node, open_session, say, steady, summary

from squilla_files import documents
from squilla_files.appending import clear, remove
from squilla_files.archives import write_archive
from squilla_files.errors import UnsupportedFormatError
from squilla_files.session import Session

NESTED = b'{"a":' * 300 + b"1" + b"}" * 300


@pytest.fixture(autouse=True)
def steady_world() -> Iterator[None]:
    with steady(6):
        yield


def new(files: MemoryFiles, *message_ids: str) -> Session:
    session = open_session(files)
    session.create(node(label="Tea"))
    say(session, *message_ids)
    return session


def write(session: Session, directory: str = ARCHIVES) -> str | None:
    return write_archive(session.dir, session.attachments, directory, "asked")


def test_the_document_holds_the_whole_generation() -> None:
    files = MemoryFiles()
    session = new(files, "a", "b", "gone", "c")
    remove(session, "gone")
    commit(session, "c", replacements={"b": entry("r", content={"text": "\u2028"})}, summary=summary())
    documents.save_summary(session, summary())
    path = write(session)
    assert path is not None
    data = files.crash("synced").read_file(path)
    assert data.isascii()
    assert data.startswith(b'{\n  "schema_version": 1,\n')
    assert json.loads(data) == {
        "schema_version": 1,
        "archived_at": NOW_NS // 1_000_000,
        "reason": "asked",
        "session_key": session.key,
        "session_id": "first",
        "session": session.node().model_dump(),
        "transcript_entries": [e.model_dump() for e in session.dir.entries(session.timeline.canonical)],
        "summaries": [s.model_dump() for s in session.attachments.summaries(session.timeline.summaries)],
    }
    assert [e["message_id"] for e in json.loads(data)["transcript_entries"]] == ["a", "r", "c"]


def test_the_name_says_session_and_epoch_and_is_new_each_time() -> None:
    files = MemoryFiles()
    session = new(files, "a")
    session.fence()
    names = {str(write(session)) for _ in range(3)}
    assert len(names) == 3
    assert all(name.startswith(f"{ARCHIVES}/{session.dir.dir_name}.000001.") for name in names)


def test_a_closed_generation_is_not_in_the_document_of_the_next() -> None:
    files = MemoryFiles()
    session = new(files, "a")
    documents.save_summary(session, summary())
    session.reset(reason="asked", archive_dir="/elsewhere")
    say(session, "b")
    document = json.loads(files.read_file(str(write(session))))
    assert [e["message_id"] for e in document["transcript_entries"]] == ["b"]
    assert document["summaries"] == []


def test_an_empty_generation_leaves_none() -> None:
    files = MemoryFiles()
    assert write(open_session(files)) is None
    session = new(files, "a")
    clear(session)
    assert write(session) is None
    assert not [path for path in files.tree() if path.startswith(ARCHIVES)]
    documents.save_summary(session, summary())
    assert write(session) is not None


@pytest.mark.parametrize("verb", ["mkdir", "create", "write", "sync", "rename", "sync_dir", "pread", "scan"])
def test_where_it_cannot_be_made_that_is_logged_and_nothing_is_left(
    verb: str, caplog: pytest.LogCaptureFixture
) -> None:
    files = MemoryFiles()
    session = new(files, "a")
    documents.save_summary(session, summary())
    before = files.tree()
    files.fail_at(1, errno.EACCES, matching=lambda call: call.name == verb)
    assert write(session) is None
    assert "not archived" in caplog.text
    assert {path for path in files.tree() if not path.startswith(ARCHIVES)} == set(before)
    files.heal()
    assert write(session) is not None


def test_a_link_in_its_way_is_not_followed(caplog: pytest.LogCaptureFixture) -> None:
    files = MemoryFiles()
    session = new(files, "a")
    files.mkdir("/elsewhere")
    files.symlink("/elsewhere", ARCHIVES)
    assert write(session) is None
    assert "not archived" in caplog.text
    assert files.scan("/elsewhere") == []


def put_behind(files: MemoryFiles, content: bytes) -> Session:
    session = new(files, "a")
    session.close()
    log = f"{DIRECTORY}/transcript.laptop.000001.jsonl"
    line = b'{"type":"message","id":90,"message_id":"n","after":"a","role":"user","content":' + content + b"}\n"
    files.put(log, files.read_file(log) + line)
    return open_session(files)


def test_what_the_library_cannot_write_stops_no_reset(caplog: pytest.LogCaptureFixture) -> None:
    session = put_behind(MemoryFiles(), NESTED)
    assert session.reset(reason="asked", archive_dir=ARCHIVES).epoch == 1
    assert "not archived" in caplog.text
    assert session.timeline.canonical == []


def test_a_line_that_changed_since_it_was_read_stops_no_reset(caplog: pytest.LogCaptureFixture) -> None:
    files = MemoryFiles()
    session = put_behind(files, b'"text"')
    log = f"{DIRECTORY}/transcript.laptop.000001.jsonl"
    fd = files.open_append(log)
    data = files.read_file(log)
    files.truncate(fd, len(data) - 8)
    files.write(fd, b"#" * 7 + b"\n")
    files.close(fd)
    assert write(session) is None
    assert "not archived" in caplog.text


def test_a_summary_of_a_later_version_is_an_error() -> None:
    files = MemoryFiles()
    session = new(files, "a")
    documents.save_summary(session, summary())
    (name,) = (path for path in files.tree() if path.startswith(f"{DIRECTORY}/summaries/"))
    files.put(name, files.read_file(name).replace(b'"format": 1', b'"format": 2'))
    with pytest.raises(UnsupportedFormatError):
        write(session)
