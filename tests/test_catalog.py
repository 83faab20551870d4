"""All sessions of a store: which manifest is believed, and what one that cannot be read does to the others."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator

import pytest
from memory_files import MemoryFiles
from operations import DEVICE, PATHS, commit, entry, open_session, say, send, steady, summary
from written import head, line, message

from squilla_files.appending import Append
from squilla_files.catalog import Catalog
from squilla_files.deletions import Deletions
from squilla_files.devices import Devices
from squilla_files.errors import CorruptFileError, UnsafePathError, UnsupportedFormatError
from squilla_files.layout import deletion_name, session_dir_name
from squilla_files.models import SessionNode
from squilla_files.session import Session
from squilla_files.session_dir import SessionDir

KEY = "agent:main:main"
OTHER = "agent:main:other"
DIR = session_dir_name(KEY)
PATH = PATHS.session(DIR)
LOG = f"{PATH}/transcript.{DEVICE}.000001.jsonl"
MANIFEST = f"{PATH}/manifest.{DEVICE}.json"


@pytest.fixture(autouse=True)
def steady_world() -> Iterator[None]:
    with steady(5):
        yield


class Looking:
    """A catalog of a process that has just started, and the directories that it had to read."""

    def __init__(self, files: MemoryFiles, device: str | None = DEVICE) -> None:
        self.files = files.another_process()
        self.read: list[SessionDir] = []
        self._deletions = Deletions(self.files, PATHS)
        self._devices = Devices(self.files, PATHS, device)
        self.catalog = Catalog(self.files, PATHS, self._deletions, self._devices, self._directory_of)

    def _directory_of(self, key: str) -> SessionDir:
        self.read.append(SessionDir(self.files, PATHS, self._deletions, self._devices, key))
        return self.read[-1]

    def keys(self) -> list[str]:
        return [listed.key for listed in self.catalog.sessions()]

    def believed(self, key: str = KEY) -> bool:
        """Whether the session is known from its manifest; either way it is known as its logs say."""
        listed = self.catalog.find(key)
        session = open_session(self.files.another_process(), key)
        assert listed is not None
        assert listed.node() == session.node()
        assert listed.live == len(session.timeline.live)
        assert list(listed.session_ids) == session.timeline.session_ids
        assert listed.epoch == session.timeline.epoch
        return not self.read[-1].is_read


def made(files: MemoryFiles, *message_ids: str, key: str = KEY, device: str = DEVICE) -> Session:
    session = open_session(files, key, device=device)
    session.create(SessionNode(session_key=key, session_id=f"id of {key}", created_at=1, updated_at=1, label="Tea"))
    say(session, *message_ids)
    session.writer.checkpoint()
    return session


def rewritten(files: MemoryFiles, path: str, old: bytes, new: bytes) -> None:
    data = files.read_file(path)
    assert old in data
    files.put(path, data.replace(old, new))


# --- which manifest is believed --------------------------------------------------------------------------------------


def test_a_manifest_is_believed_as_long_as_everything_is_as_it_was() -> None:
    files = MemoryFiles()
    session = made(files, "a", "b")
    assert Looking(files).believed()
    commit(session, "b", summary=summary())
    assert Looking(files).believed()
    session.reset(reason="asked", archive_dir=PATHS.archives)
    assert Looking(files).believed()


def test_without_a_manifest_the_logs_are_read() -> None:
    files = MemoryFiles()
    made(files, "a")
    files.unlink(MANIFEST)
    assert not Looking(files).believed()


def test_a_log_that_grew_since_is_read() -> None:
    files = MemoryFiles()
    session = made(files, "a")
    say(session, "b")
    assert not Looking(files).believed()


def test_a_log_that_is_shorter_is_read() -> None:
    files = MemoryFiles()
    made(files, "a", "b")
    files.put(LOG, files.read_file(LOG).rsplit(b'{"type":"message"', 1)[0])
    assert not Looking(files).believed()


def test_a_log_whose_last_record_is_another_is_read() -> None:
    files = MemoryFiles()
    made(files, "a", "b")
    rewritten(files, LOG, b'"message_id":"b"', b'"message_id":"c"')
    assert not Looking(files).believed()


def test_a_log_whose_last_line_is_none_any_more_is_read() -> None:
    files = MemoryFiles()
    made(files, "a", "b")
    data = files.read_file(LOG)
    at = data.rindex(b'{"type":"message"')
    files.put(LOG, data[:at] + b"x" * (len(data) - at - 1) + b"\n")
    assert not Looking(files).believed()


def test_a_last_record_other_than_a_message_is_known_by_its_identity() -> None:
    files = MemoryFiles()
    session = made(files, "a")
    session.update({"label": "Coffee"}, {})
    assert Looking(files).believed()
    (mark,) = json.loads(files.read_file(MANIFEST))["logs"]
    rewritten(files, LOG, mark["last"].encode(), b"f" * 16)
    assert not Looking(files).believed()


def test_a_log_of_a_later_version_is_read_and_so_refused() -> None:
    files = MemoryFiles()
    made(files, "a")
    rewritten(files, LOG, b'"format":1', b'"format":2')
    with pytest.raises(UnsupportedFormatError):
        Looking(files).catalog.find(KEY)


def test_a_sealed_log_that_is_missing_is_missed() -> None:
    files = MemoryFiles()
    commit(made(files, "a", "b"), "b", summary=summary())
    sealed = f"{PATH}/archive/transcript.{DEVICE}.000001.jsonl"
    data = files.read_file(sealed)
    files.unlink(sealed)
    assert not Looking(files).believed()
    files.put(sealed, data)
    assert Looking(files).believed()


def test_a_log_that_came_since_is_read() -> None:
    for name in ("transcript.desk.000001.jsonl", "archive/transcript.desk.000001.jsonl", "a copy of a log"):
        files = MemoryFiles()
        made(files, "a")
        files.put(f"{PATH}/{name}", head("D", "desk") + message(9, "d", "a"))
        assert not Looking(files).believed()


def test_a_log_that_holds_nothing_but_its_first_line_can_be_vouched_for() -> None:
    files = MemoryFiles()
    made(files, "a")
    desk = f"{PATH}/transcript.desk.000001.jsonl"
    files.put(desk, head("D", "desk"))
    open_session(files.another_process()).writer.checkpoint()
    assert Looking(files).believed()
    files.put(desk, b"x" + head("D", "desk")[1:])
    assert not Looking(files).believed()


def test_the_manifest_of_another_device_is_not_believed() -> None:
    files = MemoryFiles()
    made(files, "a")
    assert not Looking(files, "desk").believed()


def test_the_manifest_of_another_session_is_not_believed() -> None:
    files = MemoryFiles()
    made(files, "a")
    rewritten(files, MANIFEST, KEY.encode(), OTHER.encode())
    assert not Looking(files).believed()


@pytest.mark.parametrize("data", [b"", b"x", b"{}", b'{"type":"manifest","session_key":"agent:main:main"}'])
def test_a_manifest_that_cannot_be_understood_is_not_believed(data: bytes) -> None:
    files = MemoryFiles()
    made(files, "a")
    files.put(MANIFEST, data)
    assert not Looking(files).believed()


def test_a_manifest_from_before_a_deletion_that_came_is_not_believed() -> None:
    files = MemoryFiles()
    made(files, "a")
    deletion = f"{PATHS.deleted}/{deletion_name(DIR, '0' * 16)}"
    files.put(deletion, b'{"epoch":4,"generation":0,"seen":[["elsewhere",1,"x"]]}')
    assert not Looking(files).believed()
    found = Looking(files).catalog.find(KEY)
    assert found is not None
    assert (found.epoch, found.deletions) == (4, (deletion.rpartition("/")[2],))
    session = open_session(files.another_process())
    session.writer.checkpoint()
    assert Looking(files).believed()
    files.unlink(deletion)
    looking = Looking(files)
    assert looking.catalog.find(KEY) is not None
    assert looking.read[-1].is_read


def test_the_epoch_of_a_manifest_that_is_not_believed_still_holds() -> None:
    files = MemoryFiles()
    session = made(files, "a")
    session.fence()
    files.put(LOG, files.read_file(LOG).rsplit(b'{"type":"session"', 1)[0])
    found = Looking(files).catalog.find(KEY)
    assert found is not None
    assert found.epoch == 1


# --- looking again ---------------------------------------------------------------------------------------------------


def test_what_did_not_change_is_not_read_again() -> None:
    files = MemoryFiles()
    for key in (KEY, OTHER):
        commit(made(files, "a", "b", key=key), "b", summary=summary())
    looking = Looking(files)
    first = looking.catalog.sessions()
    looking.files.calls.clear()
    assert looking.catalog.sessions() == first
    assert {call.name for call in looking.files.calls} <= {"stat", "scan"}
    assert sum(call.name == "scan" for call in looking.files.calls) == 1


@pytest.mark.parametrize("change", ["append", "seal", "deletion", "another log", "late segment", "removal"])
def test_whatever_changes_is_seen(change: str) -> None:
    files = MemoryFiles()
    session = made(files, "a", "b")
    if change == "late segment":
        commit(session, "b")
    made(files, "x", key=OTHER)
    looking = Looking(files)
    looking.catalog.sessions()
    before = {listed.key: listed for listed in looking.catalog.sessions()}
    if change == "append":
        send(session, Append(entry("c"), any_generation=True, counters={"total_tokens": 3}))
    elif change == "seal":
        commit(session, "b")
    elif change == "deletion":
        session.delete()
    elif change in ("another log", "late segment"):
        files.put(f"{PATH}/archive/elsewhere", head("D", "desk") + message(9, "d", "b", set={"label": "Milk"}))
    else:
        files.rename(PATH, "/home/away")
    after = {listed.key: listed for listed in looking.catalog.sessions()}
    assert after.get(KEY) != before[KEY]
    assert after[OTHER] == before[OTHER]
    assert (KEY in after) == (change not in ("deletion", "removal"))
    found = looking.catalog.find(KEY)
    if found is not None:
        assert (found.node(), found.live) == (open_session(files.another_process()).node(), after[KEY].live)


def test_a_session_that_was_only_deleted_does_not_exist() -> None:
    files = MemoryFiles()
    session = made(files, "a")
    data = files.tree(PATH)
    session.delete()
    for path, content in data.items():
        files.put(path, content)  # a service that brings back what was deleted
    looking = Looking(files)
    assert looking.keys() == []
    assert looking.catalog.find(KEY) is None
    assert not looking.catalog.problems


def test_fields_have_their_default_where_nothing_is_said() -> None:
    files = MemoryFiles()
    made(files, "a")
    (listed,) = Looking(files).catalog.sessions()
    assert (listed.get("label"), listed.get("status"), listed.get("total_tokens")) == ("Tea", "running", 0)
    assert listed.get("subject") is None
    one, other = listed.node(), listed.node()
    one.label = "mine"
    assert other.label == "Tea"


# --- keys ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["", "archive/"])
def test_without_a_manifest_the_key_stands_in_any_log(where: str) -> None:
    files = MemoryFiles()
    files.put(f"{PATH}/notes.txt", b"none")
    files.put(f"{PATH}/{where}a copy", head("D", "desk") + line("session", 1, record="r", event="created"))
    assert Looking(files).keys() == [KEY]
    assert Looking(files, None).keys() == [KEY]


def test_the_first_line_of_a_log_may_be_long() -> None:
    files = MemoryFiles()
    source = ("K", list(range(2, 5000)))
    files.put(f"{PATH}/some log", head("D", "desk", source=source) + message(9, "d"))
    assert Looking(files).keys() == [KEY]
    files.put(f"{PATH}/some log", head("D", "desk", source=source)[:-1])
    assert Looking(files).catalog.key_of(DIR) == KEY


@pytest.mark.parametrize("name", ["~sqf-00.tmp", ".hidden", "log.partial", f"transcript.{DEVICE}.000001.jsonl.tmp"])
def test_a_file_under_way_tells_no_key(name: str) -> None:
    files = MemoryFiles()
    files.put(f"{PATH}/{name}", head("D", "desk"))
    assert Looking(files).catalog.key_of(DIR) is None


@pytest.mark.parametrize("key", [OTHER, " agent:main:main", "agent:Main:main"])
def test_a_key_that_is_not_that_of_the_directory_is_none(key: str) -> None:
    files = MemoryFiles()
    files.put(f"{PATH}/log", head("D", "desk").replace(KEY.encode(), key.encode()) + message(1, "a"))
    files.put(MANIFEST, json.dumps({"session_key": key}).encode())
    looking = Looking(files)
    assert looking.keys() == []
    assert looking.catalog.key_of(DIR) is None
    assert not looking.catalog.problems


def test_a_key_that_is_not_in_its_canonical_form_is_none() -> None:
    files = MemoryFiles()
    key = "agent:Main:main"
    path = PATHS.session(session_dir_name(key))
    files.put(f"{path}/log", head("D", "desk").replace(KEY.encode(), key.encode()) + message(1, "a"))
    assert Looking(files).keys() == []


def test_a_log_that_goes_under_the_name_of_another_session_does_not_hide_the_right_one() -> None:
    files = MemoryFiles()
    files.put(f"{PATH}/a log", head("D", "desk").replace(KEY.encode(), OTHER.encode()))
    files.put(f"{PATH}/b log", head("E", "desk") + message(1, "a"))
    assert Looking(files).keys() == [KEY]


def test_only_directories_with_the_name_of_a_session_are_looked_at() -> None:
    files = MemoryFiles()
    assert Looking(files).catalog.directories() == []
    made(files, "a", key=OTHER)
    made(files, "a")
    files.put(f"{PATHS.sessions}/notes~0123456789abcdef", b"a file")
    files.put(f"{PATHS.sessions}/Main~0123456789abcdef/x", b"")
    files.symlink(PATH, f"{PATHS.sessions}/link~0123456789abcdef")
    assert Looking(files).catalog.directories() == sorted([DIR, session_dir_name(OTHER)])


# --- what cannot be read ---------------------------------------------------------------------------------------------


def test_without_a_directory_there_is_no_session_and_no_problem() -> None:
    files = MemoryFiles()
    assert Looking(files).catalog.find(KEY) is None
    made(files, "a")
    looking = Looking(files)
    assert looking.catalog.find(OTHER) is None
    assert not looking.catalog.problems


@pytest.mark.parametrize("verb", ["open_read", "scan", "stat", "read_file"])
def test_what_cannot_be_read_is_a_problem_and_hides_no_other(verb: str) -> None:
    files = MemoryFiles()
    made(files, "a")
    made(files, "b", key=OTHER)
    say(open_session(files), "c")
    looking = Looking(files)
    looking.files.fail_at(1, errno.EACCES, sticky=False, matching=lambda c: c.name == verb and c.path.startswith(PATH))
    assert looking.keys() == [OTHER]
    assert isinstance(looking.catalog.problems[DIR], PermissionError)
    assert sorted(looking.keys()) == [KEY, OTHER]
    assert not looking.catalog.problems


def test_find_raises_what_cannot_be_read_and_never_takes_it_for_none() -> None:
    files = MemoryFiles()
    say(made(files, "a"), "b")
    looking = Looking(files)
    looking.files.fail_at(1, errno.EIO, matching=lambda call: call.name == "pread" and call.path == LOG)
    with pytest.raises(OSError, match="error"):
        looking.catalog.find(KEY)
    found = looking.catalog.find(KEY)
    assert found is not None
    assert found.live == 2


def test_find_raises_what_cannot_be_understood() -> None:
    files = MemoryFiles()
    made(files, "a")
    files.put(f"{PATHS.deleted}/{deletion_name(DIR, '0' * 16)}", b"x")
    looking = Looking(files)
    with pytest.raises(CorruptFileError):
        looking.catalog.find(KEY)
    assert looking.keys() == []
    assert isinstance(looking.catalog.problems[DIR], CorruptFileError)


def test_a_link_in_place_of_a_directory_is_refused() -> None:
    for path in (PATHS.sessions, PATH):
        files = MemoryFiles()
        made(files, "a")
        files.rename(path, "/home/away")
        files.symlink("/home/away", path)
        looking = Looking(files)
        with pytest.raises(UnsafePathError):
            looking.catalog.find(KEY)
        if path == PATH:
            assert looking.keys() == []
        else:
            with pytest.raises(UnsafePathError):
                looking.keys()


def test_the_directory_of_sessions_must_be_readable() -> None:
    files = MemoryFiles()
    made(files, "a")
    looking = Looking(files)
    looking.files.fail_at(1, errno.EACCES, matching=lambda call: call.name == "scan" and call.path == PATHS.sessions)
    with pytest.raises(PermissionError):
        looking.keys()


def test_a_log_that_moves_all_the_time_is_looked_for_a_bounded_number_of_times() -> None:
    class Moving(MemoryFiles):
        looked = 0

        def open_read(self, path: str) -> int:
            if path == LOG:
                self.looked += 1
                raise FileNotFoundError(errno.ENOENT, "moved", path)
            return super().open_read(path)

    files = MemoryFiles()
    made(files, "a")
    files.unlink(MANIFEST)
    looking = Looking(files)
    moving = Moving(disk=files._disk)
    looking.files, looking.catalog._files = moving, moving
    assert looking.keys() == []
    assert isinstance(looking.catalog.problems[DIR], FileNotFoundError)
    assert 1 < moving.looked < 10


def test_what_grows_while_it_is_looked_at_is_looked_at_again() -> None:
    files = MemoryFiles()
    session = made(files, "a")

    class Growing(MemoryFiles):
        opened = 0

        def open_read(self, path: str) -> int:
            fd = super().open_read(path)
            self.opened += path == LOG
            if path == LOG and self.opened == 2:  # first it is looked at for its key
                say(session, "b")
            return fd

    files.unlink(MANIFEST)
    looking = Looking(files)
    growing = Growing(disk=files._disk)
    looking.files, looking.catalog._files = growing, growing
    assert [listed.live for listed in looking.catalog.sessions()] == [1]
    assert not growing.open_paths
    found = looking.catalog.find(KEY)
    assert found is not None
    assert found.live == 2
