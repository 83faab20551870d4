"""A process that dies at any call of the disk leaves the old state or the new one, and nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Iterator

import pytest
from faulty_files import Kind
from memory_files import Keep, MemoryFiles, Stopped
from operations import (
    APPEND,
    ARCHIVES,
    BRANCH,
    BULK,
    COMPACTION,
    DEVICE,
    DIRECTORY,
    PARENT,
    ROOT,
    Operation,
    Prepared,
    Run,
    State,
    changes_the_disk,
    check_files,
    check_logs_only_grew,
    commit,
    compacted,
    context,
    each_operation,
    entry,
    go_on,
    logs_of,
    messages,
    node,
    open_session,
    prepare,
    say,
    state_of,
    steady,
    summary,
    with_message,
    young,
)

from squilla_files import documents
from squilla_files.appending import clear, remove
from squilla_files.files import Durability
from squilla_files.layout import is_temporary
from squilla_files.rewriting import truncate
from squilla_files.session import Session
from squilla_files.storage import SessionStorage

SURVIVALS: tuple[tuple[Keep, int], ...] = (("all", 0), ("synced", 0), ("random", 1), ("random", 2))


@pytest.fixture(autouse=True)
def steady_world() -> Iterator[None]:
    with steady(2):
        yield


def stopped_at(prepared: Prepared, k: int, kind: Kind = "stop") -> MemoryFiles:
    """The disk of a process that died at call *k* of the operation."""
    files, session = prepared.start()
    files.fail_at(k, kind)
    with contextlib.suppress(Stopped):
        prepared.run(session)
    return files


def check_recovery(prepared: Prepared, survivor: MemoryFiles) -> None:
    """What is found is the old state or the new one; the session goes on from there, durably."""
    session = prepared.reopen(survivor)
    found = state_of(session)
    assert found in (prepared.old, prepared.new, *prepared.partly)
    check_files(session)
    before = logs_of(survivor)
    go_on(session)
    after = survivor.crash("synced")
    again = prepared.reopen(after)
    assert messages(state_of(again)) == with_message(found, "next")
    check_files(again)
    if found.node is not None:
        check_logs_only_grew(before, logs_of(after))


@each_operation
def test_what_survives_a_crash_is_the_old_state_or_the_new_one(operation: Operation) -> None:
    prepared = prepare(operation)
    for k in prepared.steps():
        files = stopped_at(prepared, k)
        for keep, seed in SURVIVALS:
            check_recovery(prepared, files.crash(keep, random.Random(1000 * k + seed)))


@each_operation
def test_half_a_write_is_the_old_state_or_whole_messages(operation: Operation) -> None:
    prepared = prepare(operation)
    for k, call in enumerate(prepared.calls, 1):
        if call.name == "write":
            files = stopped_at(prepared, k, "torn")
            check_recovery(prepared, files.crash("all"))
            check_recovery(prepared, files.crash("random", random.Random(k)))


@each_operation
def test_a_power_cut_after_the_next_write_takes_nothing_that_it_acknowledged(operation: Operation) -> None:
    # The first process dies and leaves things unsynced, the next one is cut off in its first write.
    prepared = prepare(operation)
    for k in prepared.steps(synced=False):
        died = stopped_at(prepared, k).crash("all")
        session = prepared.reopen(died.crash("all"))
        found = state_of(session)
        for files in cut_off_at_each_step(prepared, died):
            again = prepared.reopen(files)
            check_next(prepared, found, state_of(again))
            go_on(again, "after")
            kept = state_of(prepared.reopen(files.crash("synced")))
            assert kept.live[-1:] == ["after"]


def cut_off_at_each_step(prepared: Prepared, died: MemoryFiles) -> Iterator[MemoryFiles]:
    """The disks that a power cut may leave at each step of the next write."""
    k = 0
    stopped = True
    while stopped:
        k += 1
        files = died.crash("all")
        session = prepared.reopen(files)
        files.fail_at(k, "stop", matching=changes_the_disk)
        with contextlib.suppress(Stopped):
            go_on(session)
        stopped = files.stopped
        yield files.crash("synced")
        yield files.crash("random", random.Random(k))


def check_next(prepared: Prepared, found: State, state: State) -> None:
    """The next write is there whole, or not at all."""
    if state.node is not None and "next" in state.live:
        assert messages(state) == with_message(found, "next")
    elif state.node is not None and state.node["session_id"] == "again" and found.node is None:
        assert messages(state) == ([], [])
    else:
        assert state in (prepared.old, prepared.new, *prepared.partly)


def change_everything(session: Session) -> Iterator[None]:
    """One operation after another; each is acknowledged when this yields."""
    runs: list[Run] = [
        lambda s: s.create(node()),
        lambda s: say(s, "1"),
        lambda s: say(s, "2", "3", "4"),
        lambda s: s.update({"label": "Tea"}, {"total_tokens": 4}),
        lambda s: remove(s, "2"),
        lambda s: commit(s, "4", summary=summary(), context_states=[context()]),
        lambda s: say(s, "5", "6"),
        lambda s: documents.save_summary(s, summary()),
        lambda s: commit(s, "6", replacements={"5": entry("7")}, summary=summary()),
        lambda s: truncate(s, 1),
        lambda s: say(s, "big", content=BULK),
        lambda s: truncate(s, 0),
        lambda s: say(s, "8"),
        lambda s: s.fence(),
        lambda s: say(s, "9"),
        lambda s: s.reset(reason="asked", archive_dir=ARCHIVES),
        lambda s: say(s, "10", "11"),
        clear,
        lambda s: say(s, "12"),
        lambda s: s.delete(),
        lambda s: s.create(node("again")),
        lambda s: say(s, "13"),
    ]
    for run in runs:
        session.refresh()
        run(session)
        yield


@pytest.mark.parametrize(("durability", "keep"), [("full", "synced"), ("full", "random"), ("os", "all")])
def test_what_was_acknowledged_is_kept(durability: Durability, keep: Keep) -> None:
    files = MemoryFiles(durability)
    session = open_session(files)
    for number, _ in enumerate(change_everything(session)):
        survivor = files.crash(keep, random.Random(number))
        assert state_of(open_session(survivor)) == state_of(session)
    assert state_of(session).live == ["13"]


def test_a_message_that_a_dead_process_wrote_is_synced_before_its_retry_is_acknowledged() -> None:
    prepared = prepare(APPEND)
    written = next(k for k, call in enumerate(prepared.calls, 1) if call.name == "sync")
    died = stopped_at(prepared, written).crash("all")
    assert state_of(open_session(died.crash("synced"))) == prepared.old
    session = open_session(died)
    assert state_of(session) == prepared.new
    say(session, "n1")
    assert state_of(session) == prepared.new
    assert state_of(open_session(died.crash("synced"))) == prepared.new


def test_what_a_dead_process_left_unsynced_is_synced_before_its_log_is_sealed() -> None:
    files = MemoryFiles()
    session = open_session(files)
    young(session)
    say(session, "big", content=BULK)
    say(session, "last")
    files.fail_at(1, "stop", matching=lambda call: call.name == "sync")
    with pytest.raises(Stopped):
        truncate(session, 1)
    died = files.crash("all")
    session = open_session(died)
    say(session, "n1")
    assert f"{DIRECTORY}/archive/transcript.{DEVICE}.000001.jsonl" in died.tree()
    assert state_of(session).live == ["last", "n1"]
    assert state_of(open_session(died.crash("synced"))) == state_of(session)


@pytest.mark.parametrize("seed", range(8))
def test_a_power_cut_in_mode_os_leaves_a_store_that_can_be_read_and_written(seed: int) -> None:
    files = MemoryFiles("os")
    session = open_session(files)
    compacted(session)
    survivor = files.crash("random", random.Random(seed))
    session = open_session(survivor)
    found = state_of(session)
    go_on(session)
    assert messages(state_of(session)) == with_message(found, "next")
    assert state_of(open_session(survivor.crash("all"))) == state_of(session)


def test_temporary_files_that_a_crash_left_are_never_read() -> None:
    prepared = prepare(COMPACTION)
    for k in prepared.steps():
        survivor = stopped_at(prepared, k).crash("all")
        left = [path for path in survivor.tree() if is_temporary(path.rpartition("/")[2])]
        session = open_session(survivor)
        begun = len(survivor.calls)
        assert state_of(session) in (prepared.old, prepared.new)
        assert not {call.path for call in survivor.calls[begun:] if call.name in {"open_read", "read_file"}} & set(left)


def test_the_next_write_finishes_a_move_that_a_crash_left_out() -> None:
    prepared = prepare(COMPACTION)
    moved = next(
        k for k, call in enumerate(prepared.calls, 1) if call.name == "rename" and "archive" in str(call.args[1])
    )
    survivor = stopped_at(prepared, moved).crash("synced")
    first = f"{DIRECTORY}/transcript.{DEVICE}.000001.jsonl"
    assert first in survivor.tree()
    session = open_session(survivor)
    say(session, "next")
    assert first not in survivor.tree()
    assert f"{DIRECTORY}/archive/transcript.{DEVICE}.000001.jsonl" in survivor.tree()
    assert messages(state_of(session)) == with_message(prepared.new, "next")


def test_the_parent_of_a_branch_is_left_as_it_is_by_a_crash() -> None:
    prepared = prepare(BRANCH)
    parent = state_of(open_session(prepared.disk.crash("all"), PARENT))
    for k in prepared.steps(synced=False):
        survivor = stopped_at(prepared, k).crash("synced")
        assert state_of(open_session(survivor, PARENT)) == parent


# --- through the asynchronous store ----------------------------------------------------------------------------------


async def test_appends_that_wait_together_are_kept_once_each_is_acknowledged() -> None:
    files = MemoryFiles()
    async with SessionStorage(ROOT, device=DEVICE, files=files) as storage:
        await storage.create_session(node())
        acknowledged: list[str] = []

        async def append_one(number: int) -> None:
            await storage.append_transcript_entry(entry(f"m{number}", session_id="first"))
            acknowledged.append(f"m{number}")
            after = open_session(files.crash("synced"))
            assert {e["message_id"] for e in state_of(after).canonical} >= set(acknowledged)

        await asyncio.gather(*(append_one(number) for number in range(20)))
        assert len(acknowledged) == 20


async def test_a_store_is_found_again_after_a_power_cut_at_any_time() -> None:
    files = MemoryFiles()
    storage = SessionStorage(ROOT, device=DEVICE, files=files)
    await storage.connect()
    await storage.create_session(node())
    for number in range(3):
        await storage.append_transcript_entry(entry(f"m{number}", session_id="first"))
        survivor = files.crash("synced")
        async with SessionStorage(ROOT, device=DEVICE, files=survivor) as again:
            found = await again.get_transcript("first")
            assert [e.message_id for e in found] == [f"m{n}" for n in range(number + 1)]
            await again.append_transcript_entry(entry("next", session_id="first"))
            assert len(await again.get_transcript("first")) == number + 2
    await storage.close()
