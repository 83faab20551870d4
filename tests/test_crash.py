"""A process that dies at any call of the disk leaves the old state or the new one, and nothing acknowledged is lost."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

import pytest
from memory_files import Keep, MemoryFiles, Stopped
from operations import (
    Operation,
    Prepared,
    State,
    changes_the_disk,
    check_files,
    check_logs_only_grew,
    each_operation,
    go_on,
    logs_of,
    messages,
    prepare,
    state_of,
    steady,
    with_message,
)

SURVIVALS: tuple[tuple[Keep, int], ...] = (("all", 0), ("synced", 0), ("random", 1), ("random", 2))


@pytest.fixture(autouse=True)
def steady_world() -> Iterator[None]:
    with steady(2):
        yield


def stopped_at(prepared: Prepared, k: int, kind: str = "stop") -> MemoryFiles:
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
