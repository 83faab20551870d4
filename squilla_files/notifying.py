"""A thread that waits for the file system to report changes, and tells the event loop which paths they concern.

What it reports is only a hint that something may have changed: the logs say what did.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from watchfiles._rust_notify import RustNotify, WatchfilesRustInternalError

# The watcher looks for reports every so often, and once more before it gives them: more often costs processor time
# while nothing happens, so after some quiet the step widens.
_STEP_MS: Final = 3
_QUIET_STEP_MS: Final = 25
_TURN_MS: Final = 500
_TURNS_UNTIL_QUIET: Final = 4

_NETWORK: Final = frozenset(
    {"9p", "afs", "beegfs", "ceph", "cifs", "davfs", "fuse.glusterfs", "fuse.rclone", "fuse.s3fs", "fuse.sshfs",
     "glusterfs", "lustre", "ncpfs", "nfs", "nfs4", "smb3", "smbfs", "virtiofs"}
)  # fmt: skip


class Watcher(Protocol):
    """What the thread waits with."""

    def watch(
        self, debounce_ms: int, step_ms: int, timeout_ms: int, stop_event: threading.Event
    ) -> set[tuple[int, str]] | str:
        """Wait for reports and return them, or say why there are none."""
        ...

    def close(self) -> None:
        """Stop watching."""
        ...


MakeWatcher = Callable[[list[str]], Watcher]


def make_watcher(paths: list[str]) -> Watcher:
    """Watch directories, with all below them.

    Raises:
        OSError: one cannot be watched.
        WatchfilesRustInternalError: the system has no watches left, or another reason.
    """
    try:
        return RustNotify(paths, False, False, 0, True, False)
    except PermissionError:
        # A directory that nobody may read hides no other. Only then: watches that the system refuses for want of room
        # would be passed over in silence, too.
        return RustNotify(paths, False, False, 0, True, True)


def network_file_system(path: str, mounts: str = "/proc/self/mountinfo") -> str | None:
    """Return the type of the network file system on which *path* lies, None where it lies on none that is known.

    Changes that other machines make there are not reported.
    """
    try:
        with open(mounts, encoding="utf-8", errors="surrogateescape") as file:
            lines = file.read().splitlines()
    except OSError:
        return None  # another operating system: looking now and then must do
    best, kind = "", None
    for line in lines:
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        if len(fields) < 5 or not after:
            continue
        mount = fields[4].encode("utf-8", "surrogateescape").decode("unicode_escape", "replace")
        if len(mount) >= len(best) and (path == mount or path.startswith(mount.rstrip("/") + "/")):
            best, kind = mount, after.split(" ")[0]
    return kind if kind in _NETWORK else None


class Notifier:
    """One watch on some directories, from its making until `stop`.

    Args:
        paths: the directories.
        tell: called on the event loop with the paths of a report.
        make: makes the watcher; tests hand in one that reports what they want.

    Attributes:
        ready: done once changes are reported; an error where the directories cannot be watched.
        failed: done with the reason when the watch ended by itself.
        ended: done when the thread is at its end.
    """

    def __init__(
        self, paths: list[str], tell: Callable[[Iterable[str]], None], make: MakeWatcher = make_watcher
    ) -> None:
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._paths = paths
        self._tell = tell
        self._make = make
        self._stop = threading.Event()
        self.ready: asyncio.Future[str | None] = loop.create_future()
        self.failed: asyncio.Future[str] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()
        # A store that nobody closed must not keep the interpreter from ending.
        self._thread = threading.Thread(target=self._run, name="squilla-files-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the watch; the thread ends by itself within its next step."""
        self._stop.set()

    async def join(self) -> None:
        """Wait until the thread has ended."""
        await asyncio.wait([self.ended])
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        reason = "stopped"
        try:
            watcher = self._make(self._paths)
            try:
                self._post(_settle, self.ready, None)
                reason = self._listen(watcher)
            finally:
                watcher.close()
        except (OSError, WatchfilesRustInternalError) as error:
            reason = str(error) or type(error).__name__
        self._post(_settle, self.ready, reason)
        if not self._stop.is_set():
            self._post(_settle, self.failed, reason)
        self._post(_settle, self.ended, None)

    def _listen(self, watcher: Watcher) -> str:
        quiet = 0
        while True:
            step = _STEP_MS if quiet < _TURNS_UNTIL_QUIET else _QUIET_STEP_MS
            found = watcher.watch(step, step, _TURN_MS, self._stop)
            if found == "timeout":
                quiet += 1
            elif isinstance(found, str):
                return found
            else:
                quiet = 0
                self._post(self._tell, [path for _, path in found])

    def _post(self, function: Callable[..., None], *args: object) -> None:
        # The loop may be closed already where the store was not.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *args)


def _settle(future: asyncio.Future[str | None], value: str | None) -> None:
    if not future.done():
        future.set_result(value)


def existing(paths: Iterable[str]) -> tuple[tuple[str, int, int], ...]:
    """Return (path, device, inode) of those of *paths* that are directories: what a watch would be on."""
    found = []
    for path in paths:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            status = os.lstat(path)
            found.append((path, status.st_dev, status.st_ino))
    return tuple(found)
