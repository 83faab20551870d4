"""Modes that others gave are taken back; where that cannot be it is said once."""

from __future__ import annotations

import errno
import stat
from collections.abc import Iterator

import pytest
from memory_files import MemoryFiles
from operations import DIRECTORY, commit, node, open_session, say, steady, summary

from squilla_files.errors import UnsafePathError
from squilla_files.privacy import Privacy
from squilla_files.session import Session

LOG = f"{DIRECTORY}/transcript.laptop.000002.jsonl"
SUMMARY = f"{DIRECTORY}/summaries/000001.laptop.json"


@pytest.fixture(autouse=True)
def steady_world() -> Iterator[None]:
    with steady(9):
        yield


def new(files: MemoryFiles) -> Session:
    session = open_session(files)
    session.create(node())
    say(session, "a", "b")
    commit(session, "b", summary=summary())
    return session


def open_up(files: MemoryFiles, *paths: str) -> None:
    for path in paths:
        files.chmod(path, 0o755)


def mode(files: MemoryFiles, path: str) -> int:
    return stat.S_IMODE(files.stat(path).st_mode)


def test_whatever_is_open_to_others_is_found_two_levels_deep() -> None:
    files = MemoryFiles()
    privacy = Privacy(new(files).dir)
    assert privacy.exposed() == set()
    wrong = {DIRECTORY + "/archive", LOG, SUMMARY, f"{DIRECTORY}/notes"}
    files.put(f"{DIRECTORY}/notes", b"")
    open_up(files, *wrong)
    assert privacy.exposed() == wrong
    files.chmod(LOG, 0o400)
    assert LOG in privacy.exposed()
    files.put(f"{DIRECTORY}/folder/deeper/file", b"")
    open_up(files, f"{DIRECTORY}/folder/deeper", f"{DIRECTORY}/folder/deeper/file")
    assert privacy.exposed() == wrong | {f"{DIRECTORY}/folder/deeper"}


def test_links_and_files_under_way_are_left_alone() -> None:
    files = MemoryFiles()
    privacy = Privacy(new(files).dir)
    files.put("/elsewhere/file", b"")
    open_up(files, "/elsewhere", "/elsewhere/file")
    files.symlink("/elsewhere", f"{DIRECTORY}/link")
    files.put(f"{DIRECTORY}/~sqf-00.tmp", b"")
    open_up(files, f"{DIRECTORY}/~sqf-00.tmp")
    assert privacy.exposed() == set()


def test_on_a_system_without_modes_nothing_is_looked_at() -> None:
    files = MemoryFiles()
    session = new(files)
    files.windows = True
    files.calls.clear()
    assert Privacy(session.dir).exposed() == set()
    assert not files.calls


def test_what_is_named_is_taken_back_and_no_longer_noted() -> None:
    files = MemoryFiles()
    session = new(files)
    open_up(files, LOG, SUMMARY, DIRECTORY)
    session.dir.exposed.update({LOG, DIRECTORY})
    Privacy(session.dir).restore({LOG, DIRECTORY, f"{DIRECTORY}/gone"})
    assert (mode(files, LOG), mode(files, DIRECTORY), mode(files, SUMMARY)) == (0o600, 0o700, 0o755)
    assert session.dir.exposed == set()


def test_a_mode_that_cannot_be_set_is_said_once_and_not_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    files = MemoryFiles()
    session = new(files)
    privacy = Privacy(session.dir)
    open_up(files, LOG, SUMMARY)
    files.fail_at(1, errno.EPERM, matching=lambda call: call.name == "chmod" and call.path == LOG)
    for _ in range(3):
        session.dir.exposed.add(LOG)
        privacy.restore({LOG, SUMMARY})
        assert session.dir.exposed == set()
    assert (mode(files, LOG), mode(files, SUMMARY)) == (0o755, 0o600)
    assert caplog.text.count("stays open to others") == 1


def test_a_link_is_not_followed() -> None:
    files = MemoryFiles()
    session = new(files)
    files.put("/elsewhere", b"")
    open_up(files, "/elsewhere")
    files.symlink("/elsewhere", f"{DIRECTORY}/link")
    with pytest.raises(UnsafePathError):
        Privacy(session.dir).restore({f"{DIRECTORY}/link"})
    assert mode(files, "/elsewhere") == 0o755


def test_for_nothing_nothing_is_done() -> None:
    files = MemoryFiles()
    session = new(files)
    session.dir.exposed.add(LOG)
    files.calls.clear()
    Privacy(session.dir).restore(set())
    assert not files.calls
    assert session.dir.exposed == {LOG}
