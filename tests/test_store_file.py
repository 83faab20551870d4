"""`store.json`: what is a store, what is none, and what is of a later version."""

from __future__ import annotations

import errno
import json

import pytest
from memory_files import MemoryFiles

from squilla_files.errors import CorruptManifestError, UnsafePathError, UnsupportedFormatError
from squilla_files.layout import Layout
from squilla_files.store_file import is_store, write_store_file

PATHS = Layout("/home/store")


def test_what_is_written_is_a_store_and_the_same_everywhere() -> None:
    files = MemoryFiles()
    write_store_file(files, PATHS)
    assert is_store(files, PATHS)
    survivor = files.crash("synced")
    assert is_store(survivor, PATHS)
    assert json.loads(survivor.read_file(PATHS.store_file)) == {"format": "squilla_files", "version": 1}
    write_store_file(survivor, PATHS)
    assert survivor.tree() == files.tree()


def test_where_nothing_is_there_is_no_store_and_asking_makes_none() -> None:
    files = MemoryFiles()
    assert not is_store(files, PATHS)
    files.put("/home/other", b"")
    assert not is_store(files, PATHS)
    assert list(files.tree()) == ["/home/other"]


def test_where_a_file_is_in_the_place_of_the_root_there_is_no_store() -> None:
    files = MemoryFiles()
    files.put("/home/store", b"")
    assert not is_store(files, PATHS)


@pytest.mark.parametrize("data", [b"x", b"[]", b"{}", b'{"format":"other","version":1}', b'{"version":1}'])
def test_a_file_that_says_something_else_is_none_of_a_store(data: bytes) -> None:
    files = MemoryFiles()
    files.put(PATHS.store_file, data)
    with pytest.raises(CorruptManifestError) as caught:
        is_store(files, PATHS)
    assert caught.value.path == PATHS.store_file


def test_a_file_without_content_is_none_yet() -> None:
    files = MemoryFiles()
    files.put(PATHS.store_file, b"")
    assert not is_store(files, PATHS)
    write_store_file(files, PATHS)
    assert is_store(files, PATHS)


@pytest.mark.parametrize("version", ["2", "0", '"1"', "null", "[1]"])
def test_another_version_is_refused(version: str) -> None:
    files = MemoryFiles()
    files.put(PATHS.store_file, f'{{"format":"squilla_files","version":{version}}}'.encode())
    with pytest.raises(UnsupportedFormatError):
        is_store(files, PATHS)


def test_members_that_are_not_known_are_ignored() -> None:
    files = MemoryFiles()
    files.put(PATHS.store_file, b'{"color":"red","version":1,"format":"squilla_files"}')
    assert is_store(files, PATHS)


def test_a_file_that_cannot_be_read_is_an_error_and_not_none() -> None:
    files = MemoryFiles()
    write_store_file(files, PATHS)
    files.fail_at(1, errno.EACCES, matching=lambda call: call.name == "read_file")
    with pytest.raises(PermissionError):
        is_store(files, PATHS)


def test_no_link_is_followed() -> None:
    files = MemoryFiles()
    write_store_file(files, Layout("/home/elsewhere"))
    files.mkdir("/home/store")
    files.symlink("/home/elsewhere/store.json", PATHS.store_file)
    with pytest.raises(UnsafePathError):
        is_store(files, PATHS)
