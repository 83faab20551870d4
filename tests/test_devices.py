"""Who writes here: names of devices, and what a machine remembers of its own logs."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from memory_files import MemoryFiles

from squilla_files import devices as module
from squilla_files.devices import ENVIRONMENT_VARIABLE, Devices, Memory, given_device, machine_fingerprint
from squilla_files.errors import InvalidDeviceError, UnsafePathError
from squilla_files.layout import Layout, session_dir_name, validate_device

PATHS = Layout("/home/store")
DIR = session_dir_name("agent:main:main")
MACHINE_ID = module._machine_id
MEMORY = Memory("laptop", "log", 7, "record")


@pytest.fixture(autouse=True)
def one_machine() -> Iterator[None]:
    with on_machine("0123456789abcdef"):
        yield


def on_machine(machine_id: str) -> Any:
    return mock.patch.object(module, "_machine_id", return_value=machine_id)


def new(files: MemoryFiles, given: str | None = None, root: str = "/home/store") -> Devices:
    return Devices(files, Layout(root), given)


# --- names -----------------------------------------------------------------------------------------------------------


def test_a_name_is_the_argument_or_else_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, "environs")
    assert (given_device("laptop"), given_device(None)) == ("laptop", "environs")
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, "")
    assert given_device(None) is None
    monkeypatch.delenv(ENVIRONMENT_VARIABLE)
    assert given_device(None) is None


@pytest.mark.parametrize("name", ["", "Laptop", "a.b", "a" * 41, "é", "a\n", "../a"])
def test_a_name_that_no_file_can_bear_is_refused_wherever_it_comes_from(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidDeviceError):
        given_device(name)
    if name:
        monkeypatch.setenv(ENVIRONMENT_VARIABLE, name)
        with pytest.raises(InvalidDeviceError):
            given_device(None)


def test_a_given_name_is_taken_as_it_is_and_nothing_written() -> None:
    files = MemoryFiles()
    assert (new(files, "laptop").known(), new(files, "laptop").name()) == ("laptop", "laptop")
    assert files.tree() == {}


def test_a_name_is_made_once_and_kept_before_it_is_used() -> None:
    files = MemoryFiles()
    first = new(files)
    assert first.known() is None
    assert files.tree() == {}
    name = first.name()
    assert re.fullmatch(r"[a-z0-9-]+-[0-9a-f]{6}", name)
    for found in (first, new(files.another_process()), new(files.crash("synced"))):
        assert (found.known(), found.name()) == (name, name)
    assert new(MemoryFiles()).name() != name


def test_a_name_that_could_not_be_kept_is_not_used() -> None:
    files = MemoryFiles()
    devices = new(files)
    files.fail_at(1, errno.ENOSPC, matching=lambda call: call.name == "write")
    with pytest.raises(OSError, match="No space"):
        devices.name()
    assert devices.known() is None


@pytest.mark.parametrize(
    ("node", "label"),
    [
        ("laptop.home.example", "laptop"),
        ("My Laptop (2)", "my-laptop-2"),
        ("Bücher", "b-cher"),
        ("日本", "device"),
        ("", "device"),
        ("-a-", "a"),
        ("a" * 50, "a" * 20),
        ("abcdefghij klmnopqr s tuv", "abcdefghij-klmnopqr"),
    ],
)
def test_the_label_of_a_name_is_made_of_the_machines(node: str, label: str) -> None:
    with mock.patch("platform.node", return_value=node):
        name = new(MemoryFiles()).name()
    assert name.rpartition("-")[0] == label
    assert validate_device(name) == name


@pytest.mark.parametrize(
    "data", [b"", b"x", b"[]", b"{}", b'{"device":7}', b'{"device":""}', b'{"device":"../up"}', b'{"device":"A"}']
)
def test_a_kept_name_that_is_none_is_made_anew(data: bytes) -> None:
    files = MemoryFiles()
    devices = new(files)
    files.put(PATHS.device_file(devices.fingerprint), data)
    assert devices.known() is None
    name = devices.name()
    assert validate_device(name) == name
    assert new(files).known() == name


def test_a_name_that_cannot_be_read_is_an_error_and_not_none() -> None:
    files = MemoryFiles()
    new(files).name()
    files.fail_at(1, errno.EACCES, matching=lambda call: call.name == "read_file")
    with pytest.raises(PermissionError):
        new(files).name()


def test_another_name_is_new_each_time_and_ends_in_one_suffix_only() -> None:
    devices = new(MemoryFiles(), "laptop")
    names = {devices.another() for _ in range(50)}
    assert len(names) == 50
    assert all(re.fullmatch(r"laptop-r[0-9a-f]{6}", name) for name in names)
    again = new(MemoryFiles(), min(names)).another()
    assert re.fullmatch(r"laptop-r[0-9a-f]{6}", again)


@pytest.mark.parametrize(("given", "base"), [("a" * 40, "a" * 32), ("a" * 31 + "-bc", "a" * 31), ("---", "device")])
def test_another_name_is_a_name_however_long_the_first_is(given: str, base: str) -> None:
    name = new(MemoryFiles(), given).another()
    assert validate_device(name) == name
    assert name.rpartition("-r")[0] == base


# --- whose name it is ------------------------------------------------------------------------------------------------


def test_a_fingerprint_is_that_of_machine_place_and_given_name() -> None:
    prints = [machine_fingerprint("/a"), machine_fingerprint("/b"), machine_fingerprint("/a", "x")]
    prints.append(machine_fingerprint("/a", "y"))
    with on_machine("another"):
        prints.append(machine_fingerprint("/a"))
    assert len(set(prints)) == len(prints)
    assert all(re.fullmatch("[0-9a-f]{16}", each) for each in prints)
    assert machine_fingerprint("/a/../a", "x") == machine_fingerprint("/a", "x")


def test_a_root_that_is_a_link_is_the_place_that_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert machine_fingerprint(str(tmp_path / "link")) == machine_fingerprint(str(tmp_path / "real"))


def test_a_copied_local_directory_hands_neither_name_nor_memory_to_another_machine_or_place() -> None:
    files = MemoryFiles()
    mine = new(files)
    name = mine.name()
    mine.remember(DIR, MEMORY)
    for path, data in files.tree("/home/store").items():
        files.put(path.replace("/home/store", "/home/copy"), data)
    copied = new(files, root="/home/copy")
    assert (copied.known(), copied.recall(DIR)) == (None, None)
    with on_machine("another"):
        moved = new(files)
        assert (moved.known(), moved.recall(DIR)) == (None, None)
        assert moved.name() != name
    assert new(files, "given").recall(DIR) is None
    assert (new(files).known(), new(files).recall(DIR)) == (name, MEMORY)


def test_the_machine_is_told_by_the_first_of_its_ids_that_says_something(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    with (
        mock.patch.object(module, "_MACHINE_ID_FILES", (str(first), str(second))),
        mock.patch("uuid.getnode", return_value=0xAB),
    ):
        assert MACHINE_ID() == "0000000000ab"
        second.write_text("two\n", encoding="ascii")
        assert MACHINE_ID() == "two"
        first.write_text(" \n", encoding="ascii")
        assert MACHINE_ID() == "two"
        first.write_text("one\n", encoding="ascii")
        assert MACHINE_ID() == "one"


def test_what_stands_in_place_of_the_machines_id_keeps_nobody_from_writing(tmp_path: Path) -> None:
    directory, closed, odd = tmp_path / "directory", tmp_path / "closed", tmp_path / "odd"
    directory.mkdir()
    odd.write_bytes(b"\xff\xfe\n")
    really_open = open

    def refuse(path: str, *given: Any, **more: Any) -> Any:
        if path == str(closed):
            raise PermissionError(path)
        return really_open(path, *given, **more)

    with mock.patch.object(module, "open", refuse, create=True), mock.patch("uuid.getnode", return_value=0xAB):
        for unusable in (directory, closed):
            with mock.patch.object(module, "_MACHINE_ID_FILES", (str(unusable),)):
                assert MACHINE_ID() == "0000000000ab"
        with mock.patch.object(module, "_MACHINE_ID_FILES", (str(odd),)):
            root = str(tmp_path)
            assert module.machine_fingerprint(root) == module.machine_fingerprint(root)


def test_a_machine_without_an_id_and_an_address_is_the_same_in_every_process() -> None:
    with mock.patch.object(module, "_MACHINE_ID_FILES", ()), mock.patch("platform.node", return_value="box"):
        with mock.patch("uuid.getnode", return_value=1 << 40 | 0xAB):
            assert MACHINE_ID() == "box"
        with mock.patch("uuid.getnode", return_value=1 << 40 | 0xCD):
            assert MACHINE_ID() == "box"


# --- what is remembered ----------------------------------------------------------------------------------------------


def test_what_is_remembered_is_recalled_until_it_is_forgotten() -> None:
    files = MemoryFiles()
    devices = new(files, "laptop")
    assert devices.recall(DIR) is None
    for memory in (MEMORY, Memory("laptop-r012345", "other", 1, None)):
        devices.remember(DIR, memory)
        assert devices.recall(DIR) == memory
        assert new(files.crash("synced"), "laptop").recall(DIR) == memory
    assert devices.recall(session_dir_name("another")) is None
    devices.forget(DIR)
    devices.forget(DIR)
    assert devices.recall(DIR) is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"x",
        b"[]",
        b"{}",
        b'{"device":7,"log":"l","line":1,"record":null}',
        b'{"device":"../up","log":"l","line":1,"record":null}',
        b'{"device":"d","log":null,"line":1,"record":null}',
        b'{"device":"d","log":"l","line":0,"record":null}',
        b'{"device":"d","log":"l","line":-1,"record":null}',
        b'{"device":"d","log":"l","line":1.0,"record":null}',
        b'{"device":"d","log":"l","line":true,"record":null}',
        b'{"device":"d","log":"l","line":1,"record":[]}',
        b'{"device":"d","log":"l","record":"r"}',
    ],
)
def test_a_memory_that_cannot_be_understood_is_none(data: bytes) -> None:
    files = MemoryFiles()
    devices = new(files, "laptop")
    files.put(PATHS.memory_file(devices.fingerprint, DIR), data)
    assert devices.recall(DIR) is None


def test_a_memory_that_cannot_be_read_is_an_error_and_not_none() -> None:
    files = MemoryFiles()
    new(files, "laptop").remember(DIR, MEMORY)
    files.fail_at(1, errno.EIO, matching=lambda call: call.name == "read_file")
    with pytest.raises(OSError, match="error"):
        new(files, "laptop").recall(DIR)


@pytest.mark.parametrize("place", [".local", ".local/devices", ".local/memory"])
def test_no_link_is_followed_below_the_root(place: str) -> None:
    files = MemoryFiles()
    files.put("/home/store/store.json", b"")
    files.mkdir("/elsewhere")
    if place != ".local":
        files.mkdir("/home/store/.local")
    files.symlink("/elsewhere", f"/home/store/{place}")
    devices = new(files)
    if place != ".local/memory":
        with pytest.raises(UnsafePathError):
            devices.name()
    if place != ".local/devices":
        with pytest.raises(UnsafePathError):
            devices.remember(DIR, MEMORY)
    assert files.scan("/elsewhere") == []
