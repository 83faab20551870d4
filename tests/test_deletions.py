"""The deletions of a store: found by their names, read once, and never taken for none."""

from __future__ import annotations

import errno
import json

import pytest
from memory_files import MemoryFiles
from operations import PATHS

from squilla_files.deletions import Deletions
from squilla_files.errors import CorruptFileError, UnsafePathError, UnsupportedFormatError
from squilla_files.layout import deletion_name, session_dir_name
from squilla_files.timeline import Deletion

KEY = "agent:main:main"
OTHER = "agent:main:other"
DIR, OTHER_DIR = session_dir_name(KEY), session_dir_name(OTHER)
SEEN = (("log", 3, "m"),)
FIRST = Deletion(1, 0, SEEN)


def new(files: MemoryFiles) -> Deletions:
    return Deletions(files, PATHS)


def record(deletions: Deletions, key: str = KEY, deletion: Deletion = FIRST) -> None:
    deletions.record(session_dir_name(key), session_key=key, device="laptop", at=5, deletion=deletion)


def put(files: MemoryFiles, data: bytes, token: str = "0" * 16, dir_name: str = DIR) -> str:
    path = f"{PATHS.deleted}/{deletion_name(dir_name, token)}"
    files.put(path, data)
    return path


def test_without_the_directory_there_are_none_and_none_is_made() -> None:
    files = MemoryFiles()
    deletions = new(files)
    assert deletions.names(DIR) == ()
    assert deletions.read(DIR) == []
    assert deletions.all_names() == {}
    assert files.tree() == {}


def test_what_is_recorded_is_read_by_the_one_who_recorded_it_and_by_others() -> None:
    files = MemoryFiles()
    mine = new(files)
    record(mine)
    record(mine, deletion=Deletion(5, 2, ()))
    record(mine, OTHER)
    for deletions in (mine, new(files.another_process()), new(files.crash("synced"))):
        assert sorted(deletions.read(DIR), key=lambda d: d.epoch) == [FIRST, Deletion(5, 2, ())]
        assert deletions.read(OTHER_DIR) == [FIRST]
        assert len(deletions.names(DIR)) == 2
        assert list(deletions.names(DIR)) == sorted(deletions.names(DIR))
        assert deletions.all_names() == {name: deletions.names(name) for name in (DIR, OTHER_DIR)}


def test_the_file_says_what_was_deleted_when_and_by_whom() -> None:
    files = MemoryFiles()
    record(new(files))
    record(new(files), deletion=Deletion(5, 2, ()))
    documents = sorted((json.loads(data) for data in files.tree(PATHS.deleted).values()), key=lambda d: d["epoch"])
    usual = {"format": 1, "session_key": KEY, "device": "laptop", "deleted_at": 5}
    assert documents == [
        {**usual, "epoch": 1, "seen": [["log", 3, "m"]]},
        {**usual, "epoch": 5, "generation": 2, "seen": []},
    ]


def test_a_deletion_that_comes_from_elsewhere_is_found() -> None:
    files = MemoryFiles()
    deletions = new(files)
    record(deletions)
    assert len(deletions.names(DIR)) == 1
    record(new(files.another_process()), deletion=Deletion(3, 2, ()))
    assert len(deletions.names(DIR)) == 2
    assert len(deletions.read(DIR)) == 2


def test_a_directory_that_shows_no_change_is_not_listed_again() -> None:
    files = MemoryFiles()
    record(new(files))
    deletions = new(files)
    assert len(deletions.names(DIR)) == 1
    files.calls.clear()
    deletions.read(DIR)
    deletions.read(DIR)
    names = [call.name for call in files.calls]
    assert "scan" not in names
    assert names.count("read_file") == 1


def test_a_directory_that_is_away_for_a_moment_is_listed_when_it_is_back() -> None:
    files = MemoryFiles()
    record(new(files))
    deletions = new(files)
    for _ in range(2):
        assert deletions.read(DIR) == [FIRST]
        files.rename(PATHS.deleted, "/home/away")
        assert deletions.read(DIR) == []
        files.rename("/home/away", PATHS.deleted)


@pytest.mark.parametrize("name", ["notes.txt", f"{DIR}.json", f"~sqf-{'0' * 16}.tmp", f"{DIR}.{'0' * 16}.json.part"])
def test_other_files_are_no_deletions(name: str) -> None:
    files = MemoryFiles()
    files.put(f"{PATHS.deleted}/{name}", b"{}")
    assert new(files).all_names() == {}


@pytest.mark.parametrize("kind", ["link", "directory"])
def test_what_is_no_file_and_has_the_name_of_a_deletion_is_an_error_and_not_none(kind: str) -> None:
    files = MemoryFiles()
    path = put(files, b"{}")
    files.unlink(path)
    if kind == "link":
        files.symlink("/nowhere", path)
    else:
        files.mkdir(path)
    with pytest.raises(UnsafePathError) as caught:
        new(files).read(DIR)
    assert caught.value.path == path
    assert new(files).read(OTHER_DIR) == []


@pytest.mark.parametrize("data", [b"x", b"[]", b"{}", b'{"epoch":0}', b'{"epoch":1.5}', b'{"epoch":2,"generation":-1}'])
def test_a_deletion_that_cannot_be_understood_is_an_error_and_not_none(data: bytes) -> None:
    files = MemoryFiles()
    path = put(files, data)
    deletions = new(files)
    for _ in range(2):
        with pytest.raises(CorruptFileError) as caught:
            deletions.read(DIR)
        assert caught.value.path == path
    assert deletions.read(OTHER_DIR) == []
    put(files, b'{"epoch":4,"seen":[]}')
    assert deletions.read(DIR) == [Deletion(4, 3, ())]


def test_a_file_without_content_is_no_deletion_until_it_has_some() -> None:
    files = MemoryFiles()
    put(files, b"")
    deletions = new(files)
    for _ in range(2):
        assert deletions.read(DIR) == []
        assert deletions.all_names() == {}
    fd = files.open_append(put(files, b""))
    assert deletions.read(DIR) == []
    files.write(fd, b'{"epoch":4,"seen":[]}')
    assert deletions.read(DIR) == [Deletion(4, 3, ())]


def test_a_deletion_of_a_later_version_is_an_error() -> None:
    files = MemoryFiles()
    put(files, b'{"format":2,"epoch":1,"seen":[]}')
    with pytest.raises(UnsupportedFormatError):
        new(files).read(DIR)


@pytest.mark.parametrize("verb", ["stat", "scan", "read_file"])
def test_what_cannot_be_read_is_an_error_and_not_none(verb: str) -> None:
    files = MemoryFiles()
    record(new(files))
    files.fail_at(1, errno.EACCES, matching=lambda call: call.name == verb and "deleted" in call.path)
    deletions = new(files)
    with pytest.raises(PermissionError):
        deletions.read(DIR)
    assert deletions.read(DIR) == [FIRST]


def test_a_recording_that_fails_leaves_no_deletion() -> None:
    begun = MemoryFiles()
    record(new(begun), OTHER)
    length = len(begun.calls)
    record(new(begun), KEY)
    for k in range(1, len(begun.calls) - length + 1):
        files = MemoryFiles()
        record(new(files), OTHER)
        files.fail_at(k, errno.EIO)
        with pytest.raises(OSError, match="error"):
            record(new(files))
        files.heal()
        for found in (new(files), new(files.crash("all"))):
            assert found.names(DIR) == ()
            assert len(found.names(OTHER_DIR)) == 1
