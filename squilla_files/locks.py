"""Exclusion between processes, and between the coroutines of one: native locks on files that are never deleted.

A native lock is gone with the process that holds it, however that dies, so no lock is ever stale. It is taken without
waiting and tried again with a back-off that sleeps on the event loop: nothing blocks a thread while another process
writes. FORMAT.md, "Writing".
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
import threading
from collections.abc import Awaitable, Callable
from typing import Final, Protocol, TypeVar

from squilla_files.clock import now_ms
from squilla_files.codec import decode_document, encode_document
from squilla_files.errors import LockTimeoutError
from squilla_files.files import Files

_T = TypeVar("_T")

_FIRST_PAUSE_S: Final = 0.0005
_LONGEST_PAUSE_S: Final = 0.004

# Windows keeps others from reading the byte that is locked, the first; so what they are to read begins behind it.
_HOLDER_OFFSET: Final = 1
_HOLDER_BYTES: Final = 512


class Run(Protocol):
    """How the store executes a synchronous function in its worker thread."""

    def __call__(self, work: Callable[[], _T], /) -> Awaitable[_T]:
        """Execute *work* off the event loop and give what it returns or raises."""
        ...


class LockFile:
    """One lock file. Thread-safe; while it is held here, nobody else gets it, another user of this object included.

    The descriptor stays open between uses: taking and releasing costs a few microseconds.

    Args:
        files: the disk.
        path: the lock file; it and the directories above it are made when first needed.
    """

    def __init__(self, files: Files, path: str) -> None:
        self.path = path
        self._files = files
        self._mutex = threading.Lock()
        self._held = False
        self._fd: int | None = None
        self._status: os.stat_result | None = None
        self._pid = 0
        self._written = b""

    def try_acquire(self) -> bool:
        """Take the lock if it is free, without waiting.

        Raises:
            OSError: the lock file cannot be made or opened; the lock is not held.
            UnsafePathError: a symbolic link or a special file stands in its place.
        """
        with self._mutex:
            self._drop_if_forked()
            if self._held:
                return False
            # The second round is for a lock file that was taken away with the rest of `.local` while it was open here.
            self._held = self._try_once() or (self._fd is None and self._try_once())
            return self._held

    def release(self) -> None:
        """Give the lock back.

        Raises:
            RuntimeError: it is not held.
        """
        with self._mutex:
            self._drop_if_forked()
            if not self._held or self._fd is None:
                raise RuntimeError(f"Lock {self.path} is not held.")
            self._held = False
            self._files.unlock(self._fd)

    def close(self) -> None:
        """Release the lock if it is held, and close the file. It may be used again."""
        with self._mutex:
            self._drop()

    def forsake(self) -> None:
        """Close the file in a forked process. Its parent keeps the lock, and loses it when it dies."""
        self._mutex = threading.Lock()  # the other one may be held by a thread that is not here
        self._drop()

    def holder(self) -> dict[str, object] | None:
        """Return who holds the lock, or who held it last: ``pid``, ``host`` and ``since_ms``; None if that is unknown.

        ``since_ms`` (ms since the epoch, UTC) is when that process took it over from another; it may have released and
        taken it many times since.
        """
        try:
            fd = self._files.open_read(self.path)
        except FileNotFoundError:
            return None
        try:
            return decode_document(self._files.pread(fd, _HOLDER_BYTES, _HOLDER_OFFSET))
        finally:
            self._files.close(fd)

    def _try_once(self) -> bool:
        fd = self._fd if self._fd is not None else self._open()
        try:
            if not self._files.lock(fd):
                return False
            if self._is_in_place():
                self._leave_name(fd)
                return True
        except BaseException:
            self._drop()  # closing releases
            raise
        self._drop()
        return False

    def _open(self) -> int:
        try:
            # A link in place of `.local` or `.local/locks` would lock something elsewhere.
            self._files.check_below(os.path.dirname(os.path.dirname(os.path.dirname(self.path))), self.path)
            fd = self._files.open_append(self.path)
        except FileNotFoundError:
            self._files.ensure_dir(os.path.dirname(self.path))
            try:
                fd = self._files.create(self.path)
            except FileExistsError:  # another process was faster
                fd = self._files.open_append(self.path)
        self._fd, self._pid = fd, os.getpid()
        self._status = self._files.fstat(fd)
        return fd

    def _is_in_place(self) -> bool:
        # A lock on a file that lost its name keeps out nobody who opens the path anew.
        try:
            return self._status is not None and os.path.samestat(self._files.stat(self.path), self._status)
        except FileNotFoundError:
            return False

    def _leave_name(self, fd: int) -> None:
        # Reading costs a tenth of writing, and a file that changes at every append would keep a sync service busy.
        if self._written and self._files.pread(fd, _HOLDER_BYTES, _HOLDER_OFFSET) == self._written:
            return
        holder = {
            "pid": self._pid,
            "host": socket.gethostname().encode("ascii", "replace").decode(),
            "since_ms": now_ms(),
        }
        self._written = encode_document(holder)
        # The name is for people; a full disk must not keep a session from being deleted for want of it.
        with contextlib.suppress(OSError):
            self._files.truncate(fd, 0)
            self._files.write(fd, b" " * _HOLDER_OFFSET + self._written)

    def _drop_if_forked(self) -> None:
        # A forked child shares the parent's lock through the descriptor: it would be let in, and its release would
        # let others in on the parent. Closing the child's copy changes nothing for the parent.
        if self._fd is not None and self._pid != os.getpid():
            self._drop()

    def _drop(self) -> None:
        fd, self._fd, self._held, self._written = self._fd, None, False, b""
        if fd is not None:
            self._files.close(fd)


async def acquire(lock_file: LockFile, run: Run, timeout_s: float) -> None:
    """Take the lock, waiting up to *timeout_s* seconds; `LockFile.release` gives it back.

    Raises:
        LockTimeoutError: another process, or another user of *lock_file*, held it all the time.
        OSError: see `LockFile.try_acquire`.

    Cancellation: the lock is not held afterwards, even where the worker thread gets it at that very moment.
    """
    attempt = _Attempt(lock_file)
    try:
        await _retry(lock_file, run, timeout_s, attempt)
    except BaseException:
        attempt.abandon()
        raise


async def run_locked(lock_file: LockFile, run: Run, timeout_s: float, work: Callable[[], _T]) -> _T:
    """Execute *work* in the worker thread under the lock, in one visit to that thread, and give what it returns.

    Raises:
        LockTimeoutError: the lock was not free within *timeout_s* seconds; *work* was not begun.
        OSError: see `LockFile.try_acquire`; or what *work* raises.

    Cancellation: *work* that has begun is finished in its thread, and the lock is released after it.
    """

    def attempt() -> tuple[_T] | None:
        if not lock_file.try_acquire():
            return None
        try:
            return (work(),)
        finally:
            lock_file.release()

    (result,) = await _retry(lock_file, run, timeout_s, attempt)
    return result


async def _retry(lock_file: LockFile, run: Run, timeout_s: float, attempt: Callable[[], _T | None]) -> _T:
    clock = asyncio.get_running_loop().time
    deadline = clock() + timeout_s
    pause = _FIRST_PAUSE_S
    while True:
        result = await run(attempt)
        if result is not None:
            return result
        remaining = deadline - clock()
        if remaining <= 0:
            raise LockTimeoutError(lock_file.path, timeout_s, await run(lock_file.holder))
        # Jitter keeps two waiters from trying in step for ever. It needs no secrecy.
        await asyncio.sleep(min(remaining, pause * random.uniform(0.5, 1)))  # noqa: S311
        pause = min(2 * pause, _LONGEST_PAUSE_S)


class _Attempt:
    """Acquiring in the worker thread, which the loop may give up at any moment: exactly one of the two releases."""

    def __init__(self, lock_file: LockFile) -> None:
        self._lock_file = lock_file
        self._guard = threading.Lock()
        self._acquired = False
        self._abandoned = False

    def __call__(self) -> bool | None:
        if not self._lock_file.try_acquire():
            return None
        with self._guard:
            if not self._abandoned:
                self._acquired = True
                return True
        self._lock_file.release()
        return None

    def abandon(self) -> None:
        with self._guard:
            self._abandoned = True
            acquired = self._acquired
        if acquired:
            self._lock_file.release()  # one system call, which never waits
