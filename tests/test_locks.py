"""One holder at a time, in one process and between processes, and none left behind."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from memory_files import MemoryFiles, Stopped

from squilla_files.errors import LockTimeoutError, UnsafePathError
from squilla_files.files import Files
from squilla_files.locks import LockFile, acquire, run_locked

T = TypeVar("T")

PATH = "/store/.local/locks/a~0123456789abcdef.lock"

HOLD = """
import sys
from squilla_files.files import Files
from squilla_files.locks import LockFile
lock = LockFile(Files(), sys.argv[1])
print(lock.try_acquire(), flush=True)
sys.stdin.read()
"""

FORK = """
import os, sys
from squilla_files.files import Files
from squilla_files.locks import LockFile

def in_child(work):
    heard, told = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(heard, 1)
        os._exit(work())
    def wait():
        os.write(told, b"x")
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return wait

lock = LockFile(Files(), sys.argv[1])
assert lock.try_acquire()
lock.release()
wait = in_child(lambda: int(lock.try_acquire()))
assert lock.try_acquire()
assert wait() == 0, "the child was let in"

def release():
    try:
        lock.release()
    except RuntimeError:
        return 0
    return 1

assert in_child(release)() == 0, "the child released what it did not hold"
assert not LockFile(Files(), sys.argv[1]).try_acquire(), "the child let others in"
"""


async def in_thread(work: Callable[[], T]) -> T:
    return await asyncio.to_thread(work)


@pytest.fixture
def disk() -> MemoryFiles:
    return MemoryFiles()


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "locks" / "a.lock")


@pytest.fixture
def other_process(path: str) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the lock until its input ends."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "True\n"
        yield process
        process.kill()


def test_a_lock_has_one_holder(disk: MemoryFiles) -> None:
    one, two = LockFile(disk, PATH), LockFile(disk, PATH)
    assert one.try_acquire()
    assert not two.try_acquire()
    one.release()
    assert two.try_acquire()
    assert not one.try_acquire()


def test_two_users_of_one_object_exclude_each_other(disk: MemoryFiles) -> None:
    lock = LockFile(disk, PATH)
    assert lock.try_acquire()
    assert not lock.try_acquire()
    lock.release()
    with pytest.raises(RuntimeError, match="not held"):
        lock.release()


def test_closing_releases_and_the_object_may_be_used_again(disk: MemoryFiles) -> None:
    lock = LockFile(disk, PATH)
    assert lock.try_acquire()
    lock.close()
    assert disk.open_paths == []
    other = LockFile(disk, PATH)
    assert other.try_acquire()
    other.close()
    assert lock.try_acquire()


def test_the_lock_file_is_private_and_never_deleted(path: str) -> None:
    old = os.umask(0)
    try:
        lock = LockFile(Files(), path)
        assert lock.try_acquire()
    finally:
        os.umask(old)
    lock.close()
    assert os.stat(path).st_mode & 0o777 == 0o600
    assert os.stat(os.path.dirname(path)).st_mode & 0o777 == 0o700


def test_a_lock_on_a_file_that_lost_its_name_does_not_count(disk: MemoryFiles) -> None:
    stale, lock = LockFile(disk, PATH), LockFile(disk, PATH)
    assert stale.try_acquire()
    stale.release()
    disk.remove_tree("/store/.local")
    assert lock.try_acquire()
    assert not stale.try_acquire()
    lock.release()
    assert stale.try_acquire()
    assert not lock.try_acquire()


def test_a_link_in_place_of_the_lock_file_is_refused(disk: MemoryFiles) -> None:
    disk.put("/elsewhere", b"content")
    disk.ensure_dir("/store/.local/locks")
    disk.symlink("/elsewhere", PATH)
    with pytest.raises(UnsafePathError):
        LockFile(disk, PATH).try_acquire()
    assert disk.tree()["/elsewhere"] == b"content"


def test_the_holder_leaves_its_name_once_and_not_at_every_use(disk: MemoryFiles) -> None:
    lock = LockFile(disk, PATH)
    assert lock.holder() is None
    assert lock.try_acquire()
    holder = lock.holder()
    assert holder is not None
    assert holder["pid"] == os.getpid()
    assert set(holder) == {"pid", "host", "since_ms"}
    lock.release()
    disk.calls.clear()
    assert lock.try_acquire()
    assert [call.name for call in disk.calls if call.name in {"write", "truncate"}] == []
    assert lock.holder() == holder


def test_a_name_that_another_left_in_between_is_replaced(disk: MemoryFiles) -> None:
    lock = LockFile(disk, PATH)
    assert lock.try_acquire()
    lock.release()
    fd = disk.open_append(PATH)
    disk.truncate(fd, 0)
    disk.write(fd, b' {"pid": 1, "host": "another", "since_ms": 1}')
    assert lock.holder() == {"pid": 1, "host": "another", "since_ms": 1}
    assert lock.try_acquire()
    holder = lock.holder()
    assert holder is not None
    assert holder["pid"] == os.getpid()


def test_a_damaged_name_is_no_name(disk: MemoryFiles) -> None:
    disk.put(PATH, b' {"pid": 1')
    assert LockFile(disk, PATH).holder() is None


def test_a_full_disk_does_not_keep_a_lock_from_being_taken(disk: MemoryFiles) -> None:
    disk.fail_at(1, errno.ENOSPC, sticky=True, matching=lambda call: call.name == "write")
    lock = LockFile(disk, PATH)
    assert lock.try_acquire()
    assert lock.holder() is None


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.EMFILE])
def test_an_error_on_the_way_leaves_the_lock_free_and_the_object_usable(code: int) -> None:
    failed = 0
    for k in range(1, 40):
        disk = MemoryFiles()
        lock = LockFile(disk, PATH)
        disk.fail_at(k, code)
        try:
            assert lock.try_acquire()
        except OSError as error:
            failed += error.errno == code
            assert LockFile(disk, PATH).try_acquire()
            assert not lock.try_acquire()
    assert failed > 5


def test_the_death_of_the_holder_at_any_step_frees_the_lock() -> None:
    for k in range(1, 40):
        disk = MemoryFiles()
        other = disk.another_process()
        lock = LockFile(disk, PATH)
        disk.fail_at(k, "stop")
        try:
            assert lock.try_acquire()
            lock.release()
        except Stopped:
            assert LockFile(other, PATH).try_acquire()
            continue
        assert k > 10
        return
    pytest.fail("no run came to its end")


def test_another_process_keeps_the_lock_and_is_named(path: str, other_process: subprocess.Popen[str]) -> None:
    lock = LockFile(Files(), path)
    assert not lock.try_acquire()
    holder = lock.holder()
    assert holder is not None
    assert holder["pid"] == other_process.pid
    other_process.communicate()
    assert lock.try_acquire()
    lock.close()


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL is POSIX")
def test_a_holder_that_was_killed_leaves_the_lock_free(path: str, other_process: subprocess.Popen[str]) -> None:
    other_process.send_signal(signal.SIGKILL)
    other_process.wait()
    lock = LockFile(Files(), path)
    assert lock.try_acquire()
    holder = lock.holder()
    assert holder is not None
    assert holder["pid"] == os.getpid()
    lock.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_child_is_not_let_in_and_lets_nobody_in(path: str) -> None:
    subprocess.run([sys.executable, "-c", FORK, path], check=True)


async def test_acquire_waits_for_the_holder(disk: MemoryFiles) -> None:
    holder, lock, tries = LockFile(disk, PATH), LockFile(disk, PATH), 0

    async def run(work: Callable[[], T]) -> T:
        nonlocal tries
        tries += 1
        if tries == 4:
            holder.release()
        return await in_thread(work)

    assert holder.try_acquire()
    await acquire(lock, run, 60.0)
    assert tries == 4
    assert not holder.try_acquire()
    lock.release()


async def test_a_timeout_names_the_file_and_the_holder(path: str, other_process: subprocess.Popen[str]) -> None:
    with pytest.raises(LockTimeoutError) as raised:
        await acquire(LockFile(Files(), path), in_thread, 0.01)
    assert raised.value.path == path
    assert raised.value.holder is not None
    assert raised.value.holder["pid"] == other_process.pid
    assert isinstance(raised.value, TimeoutError)


async def test_without_time_to_wait_it_is_tried_once(disk: MemoryFiles) -> None:
    assert LockFile(disk, PATH).try_acquire()
    disk.calls.clear()
    with pytest.raises(LockTimeoutError):
        await acquire(LockFile(disk, PATH), in_thread, 0)
    assert [call.name for call in disk.calls].count("lock") == 1


async def test_cancelled_after_the_thread_got_the_lock_it_is_free(disk: MemoryFiles) -> None:
    lock, got = LockFile(disk, PATH), asyncio.Event()

    async def run(work: Callable[[], T]) -> T:
        result = work()
        got.set()
        await asyncio.Event().wait()
        return result

    task = asyncio.create_task(acquire(lock, run, 60.0))
    await got.wait()
    assert not LockFile(disk, PATH).try_acquire()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert lock.try_acquire()


async def test_cancelled_before_the_thread_gets_the_lock_it_is_free(disk: MemoryFiles) -> None:
    lock, works, asked = LockFile(disk, PATH), list[Callable[[], object]](), asyncio.Event()

    async def run(work: Callable[[], T]) -> T:
        works.append(work)
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    task = asyncio.create_task(acquire(lock, run, 60.0))
    await asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    (work,) = works
    assert work() is None
    assert lock.try_acquire()


async def test_cancelled_while_it_waits_it_holds_nothing(disk: MemoryFiles) -> None:
    holder, lock, tried = LockFile(disk, PATH), LockFile(disk, PATH), asyncio.Event()
    assert holder.try_acquire()

    async def run(work: Callable[[], T]) -> T:
        result = work()
        tried.set()
        return result

    task = asyncio.create_task(acquire(lock, run, 60.0))
    await tried.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    holder.release()
    assert lock.try_acquire()


async def test_run_locked_works_under_the_lock_and_gives_it_back(disk: MemoryFiles) -> None:
    lock = LockFile(disk, PATH)

    def work() -> tuple[str, bool]:
        return "done", LockFile(disk, PATH).try_acquire()

    assert await run_locked(lock, in_thread, 60.0, work) == ("done", False)
    assert lock.try_acquire()


async def test_run_locked_gives_the_lock_back_when_the_work_fails(disk: MemoryFiles) -> None:
    lock = LockFile(disk, PATH)

    def work() -> None:
        raise OSError(errno.EIO, "broken")

    with pytest.raises(OSError, match="broken"):
        await run_locked(lock, in_thread, 60.0, work)
    assert lock.try_acquire()


async def test_run_locked_does_not_begin_the_work_without_the_lock(disk: MemoryFiles) -> None:
    assert LockFile(disk, PATH).try_acquire()
    begun: list[bool] = []
    with pytest.raises(LockTimeoutError):
        await run_locked(LockFile(disk, PATH), in_thread, 0, lambda: begun.append(True))
    assert begun == []


async def test_many_waiters_all_get_their_turn_and_never_together(path: str, tmp_path: Path) -> None:
    counter = tmp_path / "counter"
    counter.write_text("0")

    def work() -> None:
        counter.write_text(str(int(counter.read_text()) + 1))

    locks = [LockFile(Files(), path) for _ in range(8)]
    await asyncio.gather(*(run_locked(lock, in_thread, 60.0, work) for lock in locks * 10))
    assert counter.read_text() == "80"
    for lock in locks:
        lock.close()
