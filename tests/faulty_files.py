"""A disk that fails on request: a fault plan over the real one. `memory_files` puts it over one in memory."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, NamedTuple

from squilla_files.files import DirEntryInfo, Durability, Files

Kind = Literal["stop", "torn", "short", "sync"] | int


class Stopped(BaseException):
    """The process died at this call; whatever it calls afterwards does not happen either."""


class Call(NamedTuple):
    """One primitive call: its name, its arguments, and the path behind a descriptor (or the first argument)."""

    name: str
    args: tuple[object, ...]
    path: str


@dataclass
class _Fault:
    countdown: int
    kind: Kind
    sticky: bool
    matching: Callable[[Call], bool]

    def strikes(self, name: str) -> bool:
        return name == {"short": "write", "sync": "sync"}.get(str(self.kind), name)


class FaultyFiles(Files):
    """The real disk with a fault plan. Every primitive call is logged in `calls` and counts for `fail_at`."""

    def __init__(self, durability: Durability = "full") -> None:
        super().__init__(durability)
        self.calls: list[Call] = []
        self.stopped = False
        self._faults: list[_Fault] = []
        self._paths: dict[int, str] = {}
        self._guard = threading.RLock()

    def fail_at(
        self, k: int, kind: Kind, *, sticky: bool = False, matching: Callable[[Call], bool] = lambda _: True
    ) -> None:
        """Plan a fault for the *k*-th call from now (1 is the next) of those that *matching* accepts.

        Kinds: "stop": the process dies before the call. "torn": it dies with half of the bytes written, where the call
        is a write. An errno: the call raises it; with *sticky* all later calls of that primitive do, too. "short": the
        first write from then on takes half of its bytes, and every later one raises ENOSPC. "sync": the first sync
        from then on raises EIO, and later ones succeed without making durable what it was to.
        """
        self._faults.append(_Fault(k, kind, sticky, matching))

    def heal(self) -> None:
        """Forget every planned fault; what a failed sync lost stays lost."""
        self._faults.clear()

    @property
    def open_paths(self) -> list[str]:
        """The paths of descriptors that are still open, sorted."""
        return sorted(self._paths.values())

    @contextmanager
    def _call(self, name: str, *args: object) -> Iterator[Kind | None]:
        with self._guard:
            if self.stopped:
                raise Stopped
            path = self._paths.get(args[0], "") if isinstance(args[0], int) else str(args[0])
            call = Call(name, args, path)
            self.calls.append(call)
            yield self._due(call)

    def _due(self, call: Call) -> Kind | None:
        counted = [fault for fault in self._faults if fault.matching(call)]
        for fault in counted:
            fault.countdown -= 1
        due = next((fault for fault in counted if fault.countdown <= 0 and fault.strikes(call.name)), None)
        if due is None:
            return None
        self._faults.remove(due)
        if due.kind == "stop" or (due.kind == "torn" and call.name != "write"):
            self._die()
        if due.kind == "short":
            self._faults.append(_Fault(1, errno.ENOSPC, True, lambda later: later.name == "write"))
        if isinstance(due.kind, int):
            if due.sticky:
                self._faults.append(_Fault(1, due.kind, True, lambda later: later.name == call.name))
            raise OSError(due.kind, os.strerror(due.kind), call.path)
        return due.kind

    def _die(self) -> None:
        self.stopped = True
        # The operating system closes what a dead process had open, and so releases its locks.
        for fd in list(self._paths):
            super().close(fd)
        self._paths.clear()
        raise Stopped

    def _opened(self, fd: int, path: str) -> int:
        self._paths[fd] = path
        return fd

    def open_read(self, path: str) -> int:
        with self._call("open_read", path):
            return self._opened(super().open_read(path), path)

    def open_append(self, path: str) -> int:
        with self._call("open_append", path):
            return self._opened(super().open_append(path), path)

    def create(self, path: str) -> int:
        with self._call("create", path):
            return self._opened(super().create(path), path)

    def close(self, fd: int) -> None:
        with self._call("close", fd):
            self._paths.pop(fd, None)
            super().close(fd)

    def write(self, fd: int, data: bytes) -> int:
        with self._call("write", fd, data) as kind:
            if kind is None:
                return super().write(fd, data)
            written = super().write(fd, data[: len(data) // 2])
            if kind == "torn":
                self._die()
            return written

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        with self._call("pread", fd, length, offset):
            return super().pread(fd, length, offset)

    def read_file(self, path: str) -> bytes:
        with self._call("read_file", path):
            return super().read_file(path)

    def sync(self, fd: int) -> None:
        with self._call("sync", fd) as kind:
            if kind is not None:
                self._lose_unsynced(fd)
                raise OSError(errno.EIO, os.strerror(errno.EIO), self._paths.get(fd, ""))
            super().sync(fd)

    def _lose_unsynced(self, fd: int) -> None:
        """Nothing to do on a real disk, which does not crash."""

    def truncate(self, fd: int, size: int) -> None:
        with self._call("truncate", fd, size):
            super().truncate(fd, size)

    def fstat(self, fd: int) -> os.stat_result:
        with self._call("fstat", fd):
            return super().fstat(fd)

    def lock(self, fd: int) -> bool:
        with self._call("lock", fd):
            return super().lock(fd)

    def unlock(self, fd: int) -> None:
        with self._call("unlock", fd):
            super().unlock(fd)

    def stat(self, path: str) -> os.stat_result:
        with self._call("stat", path):
            return super().stat(path)

    def scan(self, path: str) -> list[DirEntryInfo]:
        with self._call("scan", path):
            return super().scan(path)

    def mkdir(self, path: str) -> None:
        with self._call("mkdir", path):
            super().mkdir(path)

    def rename(self, src: str, dst: str) -> None:
        with self._call("rename", src, dst):
            super().rename(src, dst)

    def unlink(self, path: str) -> None:
        with self._call("unlink", path):
            super().unlink(path)

    def rmdir(self, path: str) -> None:
        with self._call("rmdir", path):
            super().rmdir(path)

    def chmod(self, path: str, mode: int) -> None:
        with self._call("chmod", path, mode):
            super().chmod(path, mode)

    def sync_dir(self, path: str) -> None:
        with self._call("sync_dir", path):
            super().sync_dir(path)
