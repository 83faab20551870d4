"""A disk that fails at any call costs an error and no more: nothing half done, nothing forgotten, and no restart."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from faulty_files import Kind
from memory_files import MemoryFiles
from operations import (
    DEVICE,
    DIRECTORY,
    PARENT,
    ROOT,
    Operation,
    Prepared,
    changes_the_disk,
    check_files,
    check_logs_only_grew,
    commit,
    compacted,
    each_operation,
    entry,
    go_on,
    logs_of,
    messages,
    node,
    open_session,
    prepare,
    say,
    seen_by_another,
    state_of,
    steady,
    with_message,
    young,
)

from squilla_files.appending import Append, append
from squilla_files.errors import LogReplacedError
from squilla_files.session import Session
from squilla_files.storage import SessionStorage

_OPENING = (errno.EMFILE, errno.EACCES, errno.EIO)
_WRITING = (errno.ENOSPC, errno.EIO)
_NAMING = (errno.ENOSPC, errno.EACCES, errno.EIO)
# What each call of the disk fails with in real life.
ERRORS = {
    "open_read": _OPENING,
    "open_append": _OPENING,
    "read_file": _OPENING,
    "scan": _OPENING,
    "create": (*_OPENING, errno.ENOSPC),
    "write": _WRITING,
    "sync": _WRITING,
    "sync_dir": (errno.EMFILE, *_WRITING),
    "mkdir": _NAMING,
    "rename": _NAMING,
}
ANY = (errno.EIO, errno.EACCES)


@pytest.fixture(autouse=True)
def steady_world() -> Iterator[None]:
    with steady(2):
        yield


class Plan(NamedTuple):
    """What goes wrong: the kind of fault at the k-th call, and whether later calls of its sort fail, too."""

    k: int
    kind: Kind
    sticky: bool


def plans(prepared: Prepared) -> Iterator[Plan]:
    """Every call fails, with one error after another.

    What changes the disk fails once, and for all later calls of its sort; what reads in one of these ways.
    """
    for k, call in enumerate(prepared.calls, 1):
        errors = ERRORS.get(call.name, ANY)
        for sticky in (False, True) if changes_the_disk(call) else (k % 2 == 0,):
            yield Plan(k, errors[(k + sticky) % len(errors)], sticky)
        if call.name == "write":
            yield Plan(k, "short", sticky=True)
        if call.name == "sync":
            yield Plan(k, "sync", sticky=False)


@each_operation
def test_an_operation_that_raises_changed_nothing_and_one_that_returns_is_done(
    operation: Operation, caplog: pytest.LogCaptureFixture
) -> None:
    prepared = prepare(operation)
    for plan in plans(prepared):
        caplog.clear()
        check_fault(prepared, plan, caplog.records)


def check_fault(prepared: Prepared, plan: Plan, logged: list[logging.LogRecord]) -> None:
    files, session = prepared.start()
    files.fail_at(plan.k, plan.kind, sticky=plan.sticky)
    raised = None
    try:
        prepared.run(session)
    except OSError as error:
        raised = error
    files.heal()
    expected = prepared.new if raised is None else prepared.old
    assert raised is not None or logged, plan
    assert state_of(session) == expected, plan
    assert seen_by_another(files) == expected, plan
    check_files(session)
    go_on(session)
    assert messages(state_of(session)) == with_message(expected, "next"), plan
    after = files.crash("synced")
    assert messages(state_of(prepared.reopen(after))) == with_message(expected, "next"), plan
    if expected.node is not None:
        check_logs_only_grew(logs_of(prepared.disk), logs_of(after))
    session.close()
    assert not files.open_paths or prepared.calls[plan.k - 1].name == "close", plan


# --- a sync that failed ----------------------------------------------------------------------------------------------


def test_a_file_whose_sync_failed_is_never_synced_again_and_the_next_append_begins_another_log() -> None:
    files, session = begun()
    files.fail_at(1, "sync")
    with pytest.raises(OSError, match="Input/output"):
        say(session, "lost")
    seen = len(files.calls)
    assert state_of(session).live[-1] == "a2"
    say(session, "n1")
    say(session, "n2")
    synced = {call.path for call in files.calls[seen:] if call.name == "sync"}
    assert log(1) not in synced
    assert log(2) in synced
    assert {path for path in files.tree() if path.endswith(".jsonl")} == {sealed(1), log(2)}
    assert state_of(open_session(files.crash("synced"))) == state_of(session)
    assert state_of(session).live[-2:] == ["n1", "n2"]


def test_a_failed_sync_that_is_followed_by_a_full_disk_costs_no_more_than_the_appends_that_raised() -> None:
    files, session = begun()
    files.fail_at(1, "sync")
    with pytest.raises(OSError, match="Input/output"):
        say(session, "lost")
    files.fail_at(1, "short")
    for message_id in ("lost", "lost too"):
        with pytest.raises(OSError, match="No space"):
            say(session, message_id)
        session.refresh()
    files.heal()
    say(session, "n1")
    assert state_of(open_session(files.crash("synced"))).live[-2:] == ["a2", "n1"]


def test_a_full_disk_that_takes_half_of_a_group_keeps_none_of_it() -> None:
    files, session = begun()
    content = files.tree()[log(1)]
    files.fail_at(1, "short")
    with pytest.raises(OSError, match="No space"):
        say(session, *(f"g{number}" for number in range(10)))
    assert files.tree()[log(1)] == content
    files.heal()
    go_on(session, "n1")
    assert state_of(session).live[-2:] == ["a2", "n1"]


def test_what_fails_behind_the_commit_is_logged_and_left_to_the_next_write(caplog: pytest.LogCaptureFixture) -> None:
    files, session = begun()
    files.fail_at(1, errno.EACCES, sticky=True, matching=lambda call: call.name == "rename" and "archive" in str(call))
    commit(session, "a2")
    assert "sealed but not moved" in caplog.text
    assert log(1) in files.tree()
    files.heal()
    session.refresh()
    say(session, "n1")
    assert {path for path in files.tree() if path.endswith(".jsonl")} == {sealed(1), log(2)}


# --- a log that is not the one that was left -------------------------------------------------------------------------


def begun() -> tuple[MemoryFiles, Session]:
    """A session of a few messages, and the process that wrote them."""
    files = MemoryFiles()
    session = open_session(files)
    young(session)
    return files, session


def log(number: int, device: str = DEVICE) -> str:
    return f"{DIRECTORY}/transcript.{device}.{number:06d}.jsonl"


def sealed(number: int) -> str:
    return f"{DIRECTORY}/archive/transcript.{DEVICE}.{number:06d}.jsonl"


def put_back(files: MemoryFiles) -> None:
    """A service puts an older version of the log in the place of the one that is there."""
    lines = files.tree()[log(1)].splitlines(keepends=True)
    files.put(log(1), b"".join(lines[:4]))


def put_another(files: MemoryFiles) -> None:
    """What a clone wrote under the same name comes in the place of the log."""
    lines = files.tree()[log(1)].splitlines(keepends=True)
    other = b'{"type":"message","id":90,"message_id":"other","after":"b1","role":"user","created_at":1,"content":""}\n'
    files.put(log(1), b"".join([*lines[:4], *[other.replace(b"other", b"other%d" % n) for n in range(9)]]))


def take_away(files: MemoryFiles) -> None:
    """A service takes the log away."""
    files.unlink(log(1))


def rename_away(files: MemoryFiles) -> None:
    """A service keeps the log under the name of a conflict copy, and nothing under its own."""
    files.rename(log(1), log(1).replace(".jsonl", " (conflict).jsonl"))


def exchange(files: MemoryFiles) -> None:
    """A service renames the log, and puts an older version in its place."""
    content = files.tree()[log(1)]
    rename_away(files)
    files.put(log(1), b"".join(content.splitlines(keepends=True)[:4]))


Meddling = Callable[[MemoryFiles], None]
each_meddling = pytest.mark.parametrize("meddle", [put_back, put_another, take_away, rename_away, exchange])


@each_meddling
@pytest.mark.parametrize("restarted", [False, True])
def test_a_log_that_is_not_the_one_that_was_left_is_never_written_to(meddle: Meddling, restarted: bool) -> None:
    files, session = begun()
    meddle(files.another_process())
    left = logs_of(files)
    if restarted:
        session = open_session(files)
    found = state_of(session)
    go_on(session, "n1")
    say(session, "n2")
    after = logs_of(files)
    assert {name: after[name] for name in left} == left
    (fresh,) = set(after) - set(left)
    assert f".{DEVICE}." not in fresh
    assert state_of(session).live == [*found.live, "n1", "n2"]
    assert seen_by_another(files) == state_of(session)


@pytest.mark.parametrize("moment", ["open_append", "write", "sync"])
@each_meddling
def test_what_is_written_to_a_log_that_is_replaced_meanwhile_is_not_acknowledged(
    meddle: Meddling, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, session = begun()
    if moment == "open_append":
        session.close()
    with monkeypatch.context() as patch:
        original = getattr(files, moment)

        def meddled(*args: object) -> object:
            patch.undo()
            meddle(files.another_process())
            return original(*args)

        patch.setattr(files, moment, meddled)
        with pytest.raises(LogReplacedError):
            say(session, "n1")
    left = logs_of(files)
    found = state_of(session)
    assert found == seen_by_another(files)
    assert "n1" not in found.live
    go_on(session, "n1")
    assert messages(state_of(session)) == with_message(found, "n1")
    assert messages(state_of(open_session(files.crash("synced")))) == with_message(found, "n1")
    after = logs_of(files)
    assert {name: after[name] for name in left} == left


def test_a_group_of_which_the_first_part_meets_a_replaced_log_is_refused_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    files, session = begun()
    say(open_session(files, device="desk"), "theirs")  # so that a result's place takes a look at what is written
    state_of(session)
    with monkeypatch.context() as patch:
        sync = files.sync

        def meddled(fd: int) -> None:
            patch.undo()
            sync(fd)
            exchange(files.another_process())

        patch.setattr(files, "sync", meddled)
        items = [Append(entry("n1"), any_generation=True)]
        items.append(Append(entry("n2", role="tool", tool_call_id="c-1"), any_generation=True))
        with pytest.raises(LogReplacedError):
            append(session, items)
    assert [(item.done, item.error) for item in items] == [(False, None), (False, None)]
    left = logs_of(files)
    assert {"n1", "n2"}.isdisjoint(state_of(session).live)
    say(session, "n3")
    assert logs_of(files).items() >= left.items()


def put_foreign(files: MemoryFiles) -> None:
    """Another program puts a file of its own in the place of the log."""
    files.put(log(1), b"mine\n")


@pytest.mark.parametrize("meddle", [take_away, put_foreign])
def test_a_log_that_is_replaced_as_it_begins_is_not_acknowledged_and_what_replaced_it_is_kept(
    meddle: Meddling, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = MemoryFiles()
    session = open_session(files)
    rename = files.rename

    def taken(src: str, dst: str) -> None:
        rename(src, dst)
        if dst == log(1):
            meddle(files.another_process())

    with monkeypatch.context() as patch:
        patch.setattr(files, "rename", taken)
        with pytest.raises(LogReplacedError):
            session.create(node())
    left = logs_of(files)
    assert state_of(session).node is None
    session.create(node())
    assert seen_by_another(files) == state_of(session)
    assert logs_of(files).items() >= left.items()


def test_the_log_of_another_session_that_lies_under_the_name_is_never_replaced() -> None:
    files = MemoryFiles()
    young(open_session(files, PARENT))
    (other,) = [data for path, data in files.tree().items() if path.endswith(".jsonl")]
    files.put(log(1), other)
    session = open_session(files)
    session.create(node())
    say(session, "n1")
    assert files.tree()[log(1)] == other
    assert state_of(open_session(files.crash("synced"))).live == ["n1"]


def test_a_device_that_lost_its_memory_goes_on_under_another_name() -> None:
    files, session = begun()
    session.close()
    left = logs_of(files)
    (memory,) = [path for path in files.tree() if "/.local/memory/" in path]
    files.unlink(memory)
    session = open_session(files)
    found = state_of(session)
    say(session, "n1")
    after = logs_of(files)
    assert {name: after[name] for name in left} == left
    assert messages(state_of(session)) == with_message(found, "n1")
    name = session.writer.device
    assert name != DEVICE
    again = open_session(files)
    say(again, "n2")
    assert again.writer.device == name
    assert set(logs_of(files)) == set(after)


@pytest.mark.parametrize("device", [None, DEVICE])
def test_a_clone_never_writes_to_the_logs_that_it_was_copied_from(device: str | None) -> None:
    """The copy of a whole store, `.local/` included, at another place of the same machine."""
    files = MemoryFiles()
    session = open_session(files, device=device)
    young(session)
    copy = "/mnt/copy"
    for path, data in files.tree().items():
        files.put(copy + path.removeprefix(ROOT), data)
    clone = open_session(files, root=copy, device=device)
    say(session, "mine")
    say(clone, "theirs")
    exchange_logs(files, clone.dir.path)
    both = open_session(files, device=device)
    assert sorted(state_of(both).live[-2:]) == ["mine", "theirs"]
    assert state_of(clone) == state_of(both) == state_of(session)


def test_a_clone_on_another_machine_never_writes_to_the_logs_that_it_was_copied_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = MemoryFiles()
    session = open_session(files, device=None)
    young(session)
    left = logs_of(files)
    monkeypatch.setattr("squilla_files.devices._machine_id", lambda: "another machine")
    clone = open_session(files.crash("all"), device=None)
    say(clone, "theirs")
    after = logs_of(clone.dir.files)
    assert {name: after[name] for name in left} == left
    assert set(after) > set(left)
    assert clone.writer.device != session.writer.device


def exchange_logs(files: MemoryFiles, copy: str) -> None:
    """Bring the logs of two places together; under one name there is one content, or a longer one of the same log."""
    for source, target in ((DIRECTORY, copy), (copy, DIRECTORY)):
        for path, data in files.tree(source).items():
            there = target + path.removeprefix(source)
            if path.endswith(".jsonl"):
                present = files.tree(target).get(there, b"")
                assert data.startswith(present) or present.startswith(data)
                if len(data) > len(present):
                    files.put(there, data)


# --- reading ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [errno.EIO, errno.EACCES, errno.EMFILE])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_session_that_cannot_be_read_is_an_error_and_never_an_empty_one(error: int, restarted: bool) -> None:
    files = MemoryFiles()
    compacted(open_session(files))
    other = open_session(files)
    say(other, "late")
    other.close()
    expected = state_of(open_session(files))
    finished = False
    k = 0
    while not finished:
        k += 1
        disk = files.crash("all")
        session = open_session(disk) if not restarted else None
        writer = open_session(disk.another_process())
        say(writer, "later")
        disk.fail_at(k, error)
        begun_calls = len(disk.calls)
        with contextlib.suppress(OSError):
            session = session or open_session(disk)
            session.refresh()
            finished = len(disk.calls) - begun_calls < k
            assert finished  # it ended without an error because the call that fails was not reached
        disk.heal()
        if session is not None:
            assert messages(state_of(session)) == with_message(expected, "later")
    assert k > 5


# --- through the asynchronous store ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["short", "sync", errno.EIO])
async def test_of_appends_that_wait_together_those_that_raise_are_not_there_and_the_others_are(kind: Kind) -> None:
    files = MemoryFiles()
    async with SessionStorage(ROOT, device=DEVICE, files=files) as storage:
        await storage.create_session(node())
        files.fail_at(2, kind, matching=lambda call: call.name == ("sync" if kind == "sync" else "write"))
        sent = [
            storage.append_transcript_entry(entry(f"m{number}", session_id="first", content="x" * 100))
            for number in range(600)
        ]
        results = await asyncio.gather(*sent, return_exceptions=True)
        files.heal()
        refused = {f"m{number}" for number, result in enumerate(results) if isinstance(result, OSError)}
        kept = [f"m{number}" for number in range(600) if f"m{number}" not in refused]
        assert refused
        assert kept
        assert [e.message_id for e in await storage.get_transcript("first")] == kept
        await storage.append_transcript_entry(entry("next", session_id="first"))
    assert state_of(open_session(files.crash("synced"))).live == [*kept, "next"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of half a megabyte."""
    mount, umount = shutil.which("mount"), shutil.which("umount")
    if sys.platform != "linux" or mount is None or umount is None or os.geteuid() != 0:
        pytest.skip("only root on Linux may mount a small file system")
    place = tmp_path / "small"
    place.mkdir()
    command = [mount, "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(place)]
    mounted = subprocess.run(command, check=False, capture_output=True)
    if mounted.returncode != 0:
        pytest.skip(f"mounting is not allowed here: {mounted.stderr.decode().strip()}")
    yield place
    subprocess.run([umount, str(place)], check=True)


async def test_a_full_disk_costs_no_message_that_was_acknowledged_and_no_restart(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(128 * 1024))
    acknowledged: list[str] = []
    async with SessionStorage(small_disk / "store", device=DEVICE) as storage:
        await storage.create_session(node())

        async def fill() -> None:
            for number in range(1000):
                await storage.append_transcript_entry(entry(f"m{number}", session_id="first", content="x" * 1500))
                acknowledged.append(f"m{number}")

        with pytest.raises(OSError, match="No space") as full:
            await fill()
        assert full.value.errno == errno.ENOSPC
        assert len(acknowledged) > 50
        assert [e.message_id for e in await storage.get_transcript("first")] == acknowledged
        (log,) = (small_disk / "store").glob("sessions/*/transcript.*.jsonl")
        assert log.read_bytes().endswith(b"\n")
        async with SessionStorage(small_disk / "store", device="reader") as other:
            assert [e.message_id for e in await other.get_transcript("first")] == acknowledged
        ballast.unlink()
        await storage.append_transcript_entry(entry("next", session_id="first"))
    async with SessionStorage(small_disk / "store", device=DEVICE) as storage:
        assert [e.message_id for e in await storage.get_transcript("first")] == [*acknowledged, "next"]
