"""Which files of a session's directory are logs: known by how they begin, listed again only after a change."""

from __future__ import annotations

import errno
import os

import pytest
from memory_files import MemoryFiles
from written import head, message

from squilla_files.errors import UnsafePathError
from squilla_files.freshness import stamp_of
from squilla_files.listing import Listing

SESSIONS = "/store/sessions"
PATH = f"{SESSIONS}/main~0123456789abcdef"
LOG = "transcript.laptop.000001.jsonl"


class Watched(Listing):
    """A listing that keeps the paths of which it told the mode."""

    def __init__(self, files: MemoryFiles) -> None:
        self.noted: list[str] = []
        super().__init__(files, SESSIONS, PATH, self._note)

    def _note(self, path: str, status: os.stat_result) -> None:
        self.noted.append(path)


def put(files: MemoryFiles, name: str, data: bytes | None = None) -> None:
    files.put(f"{PATH}/{name}", head("L") + message(1, "a") if data is None else data)


def scans(files: MemoryFiles) -> int:
    return sum(call.name == "scan" for call in files.calls)


def test_a_directory_that_is_not_there_holds_no_log() -> None:
    assert Watched(MemoryFiles()).look() == []
    files = MemoryFiles()
    files.put(f"{SESSIONS}/other", b"")
    listing = Watched(files)
    assert listing.look() == []
    put(files, LOG)
    assert listing.look() == [LOG]
    files.remove_tree(PATH)
    assert listing.look() == []


def test_a_log_is_known_by_its_name_or_by_how_it_begins() -> None:
    files = MemoryFiles()
    put(files, LOG, b"damaged")
    put(files, "transcript.desk.000001.01234567.jsonl", b"")
    put(files, "a copy of it (2)")
    put(files, "notes.txt", b"notes")
    put(files, "empty", b"")
    put(files, "almost", b'{"type":"lo')
    put(files, "manifest.laptop.json")
    put(files, f"archive/{LOG}")
    put(files, "archive/Konflikt")
    put(files, "summaries/000001.laptop.json")
    assert Watched(files).look() == [
        "a copy of it (2)",
        "transcript.desk.000001.01234567.jsonl",
        LOG,
        "archive/Konflikt",
        f"archive/{LOG}",
    ]


@pytest.mark.parametrize("name", ["~sqf-00.tmp", ".log", "log.TMP", "log.part", ".log.icloud", f"{LOG}.partial"])
def test_a_file_under_way_is_never_a_log(name: str) -> None:
    files = MemoryFiles()
    put(files, name)
    put(files, f"archive/{name}")
    assert Watched(files).look() == []


def test_placeholders_are_noted_by_the_name_that_they_stand_for() -> None:
    files = MemoryFiles()
    put(files, f".{LOG}.icloud", b"")
    put(files, f"archive/.{LOG}.icloud", b"")
    listing = Watched(files)
    for _ in range(2):
        assert listing.look() in ([], None)
        assert listing.placeholders == [LOG, f"archive/{LOG}"]
    files.unlink(f"{PATH}/.{LOG}.icloud")
    listing.look()
    assert listing.placeholders == [f"archive/{LOG}"]
    files.remove_tree(PATH)
    listing.look()
    assert listing.placeholders == []


def test_nothing_is_said_of_a_directory_that_did_not_change() -> None:
    files = MemoryFiles()
    put(files, LOG)
    put(files, f"archive/{LOG}")
    listing = Watched(files)
    assert listing.look() == [LOG, f"archive/{LOG}"]
    files.calls.clear()
    assert listing.look() is None
    assert scans(files) == 0
    listing.forget()
    assert listing.look() == [LOG, f"archive/{LOG}"]
    assert scans(files) == 2


@pytest.mark.parametrize("name", ["transcript.desk.000001.jsonl", "archive/transcript.desk.000001.jsonl"])
def test_a_change_in_either_directory_is_seen(name: str) -> None:
    files = MemoryFiles()
    put(files, LOG)
    put(files, "archive/old")
    listing = Watched(files)
    listing.look()
    put(files, name)
    assert name in (listing.look() or [])
    files.unlink(f"{PATH}/{name}")
    assert listing.look() == [LOG, "archive/old"]


def test_an_archive_that_is_made_or_goes_is_seen() -> None:
    files = MemoryFiles()
    put(files, LOG)
    listing = Watched(files)
    assert listing.look() == [LOG]
    put(files, "archive/old")
    assert listing.look() == [LOG, "archive/old"]
    files.remove_tree(f"{PATH}/archive")
    assert listing.look() == [LOG]


def test_how_a_file_begins_is_read_once_until_another_is_put_in_its_place() -> None:
    files = MemoryFiles()
    put(files, "some file", b"none")
    listing = Watched(files)
    listing.look()
    files.calls.clear()
    listing.forget()
    assert listing.look() == []
    assert not any(call.name == "open_read" for call in files.calls)
    put(files, "some file")
    assert listing.look() == ["some file"]
    assert not files.open_paths


def test_a_log_of_another_session_is_left_out_until_another_file_is_put_in_its_place() -> None:
    files = MemoryFiles()
    for name in (LOG, "archive/copy"):
        put(files, name)
    listing = Watched(files)
    listing.look()
    for name in (LOG, "archive/copy"):
        listing.set_foreign(name, "another key", stamp_of(files.stat(f"{PATH}/{name}")))
    listing.forget()
    assert listing.look() == []
    assert listing.foreign == {LOG: "another key", "archive/copy": "another key"}
    put(files, LOG)
    assert listing.look() == [LOG]
    assert listing.foreign == {"archive/copy": "another key"}
    files.remove_tree(PATH)
    listing.look()
    assert listing.foreign == {}


def test_modes_are_told_at_every_look() -> None:
    files = MemoryFiles()
    put(files, LOG)
    put(files, "archive/old")
    listing = Watched(files)
    for _ in range(2):
        listing.look()
    assert listing.noted == [PATH, f"{PATH}/archive"] * 2


@pytest.mark.parametrize("place", [SESSIONS, PATH, f"{PATH}/archive", f"{PATH}/{LOG}", f"{PATH}/archive/{LOG}"])
def test_a_link_in_place_of_a_directory_or_log_is_refused(place: str) -> None:
    files = MemoryFiles()
    put(files, LOG)
    put(files, f"archive/{LOG}")
    files.rename(place, "/elsewhere")
    files.symlink("/elsewhere", place)
    with pytest.raises(UnsafePathError):
        Watched(files).look()


def test_a_directory_in_place_of_a_log_is_refused_and_links_of_other_names_are_no_logs() -> None:
    files = MemoryFiles()
    put(files, "archive/old")
    files.symlink(f"{PATH}/archive/old", f"{PATH}/link")
    assert Watched(files).look() == ["archive/old"]
    files.mkdir(f"{PATH}/{LOG}")
    with pytest.raises(UnsafePathError):
        Watched(files).look()


@pytest.mark.parametrize("verb", ["stat", "scan", "open_read", "pread"])
def test_what_cannot_be_read_is_an_error_and_is_looked_at_again(verb: str) -> None:
    files = MemoryFiles()
    put(files, "a copy")
    listing = Watched(files)
    files.fail_at(1, errno.EACCES, matching=lambda call: call.name == verb and call.path.startswith(PATH))
    with pytest.raises(PermissionError):
        listing.look()
    assert listing.look() == ["a copy"]
    assert not files.open_paths


@pytest.mark.parametrize("verb", ["scan", "open_read", "stat"])
def test_what_goes_while_it_is_looked_at_is_gone_and_nothing_else(verb: str) -> None:
    files = MemoryFiles()
    put(files, LOG)
    put(files, "archive/a copy")
    listing = Watched(files)
    files.fail_at(1, errno.ENOENT, matching=lambda c: c.name == verb and c.path.startswith(f"{PATH}/archive"))
    assert listing.look() == [LOG]
    listing.forget()
    assert listing.look() == [LOG, "archive/a copy"]
