"""Who is woken when: commits of this process, reports of the file system, and looking now and then.

All subscribers of a store share one watch of its directories, begun with the first of them and ended with the last. A
wake-up is a hint that a session may have changed. So it does not matter which reports are merged, split, late or lost:
every few seconds all that is followed is looked at, and where the file system reports nothing at all, several times a
second.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, TypeVar

from squilla_files import layout
from squilla_files.errors import SquillaFilesError, StoreClosedError
from squilla_files.feeds import Run
from squilla_files.layout import ARCHIVE
from squilla_files.looking import Looker
from squilla_files.notifying import MakeWatcher, Notifier, existing, make_watcher, network_file_system

_log = logging.getLogger(__name__)

T = TypeVar("T")

# Looking costs at most this share of the time between two looks.
_LOOK_S: Final = 2.0
_LOOK_SHARE: Final = 1000
_POLL_S: Final = 0.1
_POLL_SHARE: Final = 20
_CHUNK: Final = 256
# What comes together with its directory may have come before that was watched: it is looked at once more.
_LATE_S: Final = (0.1, 0.5)
# And at most so often, whether the system still has watches for what comes.
_PROBE_S: Final = 1.0


class Subscriber:
    """One iteration that is under way: what it waits for.

    Attributes:
        dir_name: the session's directory, None for all.
        dirty: the directories that may have changed since they were asked for, in the order of the wake-ups.
        is_closed: whether the iteration is to end.
    """

    def __init__(self, dir_name: str | None) -> None:
        self.dir_name = dir_name
        self.dirty: dict[str, None] = {}
        self.is_closed = False
        self._woken = asyncio.Event()

    def wake(self, dir_name: str) -> None:
        """Have the subscriber ask for what is new in a session."""
        self.dirty[dir_name] = None
        self._woken.set()

    def close(self) -> None:
        """Have the iteration end."""
        self.is_closed = True
        self._woken.set()

    def next_dirty(self) -> str | None:
        """Take the directory that waits longest, None where none does."""
        dir_name = next(iter(self.dirty), None)
        if dir_name is not None:
            del self.dirty[dir_name]
        return dir_name

    async def wait(self) -> None:
        """Wait for the next wake-up, unless one came already."""
        while not self.dirty and not self.is_closed:
            self._woken.clear()
            await self._woken.wait()


class Wakeups:
    """The wake-ups of one store. Used on the event loop only.

    Args:
        paths: the store's paths.
        run: executes a function in a worker thread.
        looker: looks at sessions.
        make: makes the watcher of the file system.

    Attributes:
        is_polling: why changes of other processes are looked for instead of being reported; None where they are not.
    """

    def __init__(self, paths: layout.Layout, run: Run, looker: Looker, make: MakeWatcher = make_watcher) -> None:
        self.is_polling: str | None = None
        self._paths = paths
        self._run = run
        self._looker = looker
        self._make = make
        self._by_dir: dict[str, set[Subscriber]] = {}
        self._of_all: set[Subscriber] = set()
        self._signatures: dict[str, int] = {}
        self._notifier: Notifier | None = None
        self._ending: set[Notifier] = set()
        self._watched: tuple[tuple[str, int, int], ...] = ()
        self._tending: asyncio.Task[None] | None = None
        self._late: set[asyncio.TimerHandle] = set()
        self._is_ready = asyncio.Event()
        self._nudged = asyncio.Event()
        self._nudge: asyncio.TimerHandle | None = None
        self._came: str | None = None
        self._next_look = 0.0

    # --- subscribers -------------------------------------------------------------------------------------------

    def add(self, subscriber: Subscriber) -> None:
        """Begin to wake *subscriber*; the first one begins the watch."""
        if subscriber.dir_name is None:
            self._of_all.add(subscriber)
        else:
            self._by_dir.setdefault(subscriber.dir_name, set()).add(subscriber)
        if self._tending is None:
            self._tending = asyncio.get_running_loop().create_task(self._tend())

    def remove(self, subscriber: Subscriber) -> None:
        """Wake *subscriber* no more; with the last one the watch ends."""
        self._of_all.discard(subscriber)
        if subscriber.dir_name is not None and subscriber in self._by_dir.get(subscriber.dir_name, ()):
            self._by_dir[subscriber.dir_name].discard(subscriber)
            if not self._by_dir[subscriber.dir_name]:
                del self._by_dir[subscriber.dir_name]
        if not self._of_all and not self._by_dir:
            self._end()

    def subscribers(self) -> list[Subscriber]:
        """Return all that are woken."""
        return [*self._of_all, *(subscriber for group in self._by_dir.values() for subscriber in group)]

    def _end(self) -> None:
        if self._tending is not None:
            self._tending.cancel()
            self._tending = None
        for handle in (*self._late, *([self._nudge] if self._nudge is not None else [])):
            handle.cancel()
        self._late.clear()
        self._nudge, self._came, self._next_look = None, None, 0.0
        self._signatures.clear()
        self._stop_notifier()
        self._is_ready.clear()
        self.is_polling = None

    def _stop_notifier(self) -> None:
        notifier, self._notifier, self._watched = self._notifier, None, ()
        if notifier is not None:
            notifier.stop()
            self._ending.add(notifier)
            notifier.ended.add_done_callback(lambda _: self._ending.discard(notifier))

    def end(self) -> None:
        """End every iteration and the watch."""
        for subscriber in self.subscribers():
            subscriber.close()
        self._of_all.clear()
        self._by_dir.clear()
        self._end()
        self._is_ready.set()  # for those who wait for it

    async def join(self) -> None:
        """Wait until no thread of a watch is left."""
        for notifier in list(self._ending):
            await notifier.join()

    async def ready(self) -> None:
        """Wait until changes of other processes are noticed."""
        await self._is_ready.wait()

    def saw(self, dir_name: str, signature: int) -> None:
        """Remember how a session looked when it was begun to be followed."""
        self._signatures.setdefault(dir_name, signature)

    # --- waking ------------------------------------------------------------------------------------------------

    def wake(self, dir_names: Iterable[str]) -> None:
        """Wake those who follow these sessions."""
        for dir_name in dir_names:
            for subscriber in (*self._by_dir.get(dir_name, ()), *self._of_all):
                subscriber.wake(dir_name)

    def _reported(self, paths: Iterable[str]) -> None:
        found: dict[str, bool] = {}
        loop = asyncio.get_running_loop()
        for path in paths:
            dir_name, is_directory = self._meant(path)
            if dir_name is not None:
                found[dir_name] = found.get(dir_name, False) or is_directory
            if is_directory:
                self._came = path
                self._nudge = self._nudge or loop.call_later(_PROBE_S, self._nudged.set)
        self.wake(found)
        for dir_name, is_late in found.items():
            for delay in _LATE_S if is_late else ():
                self._late.add(loop.call_later(delay, self.wake, (dir_name,)))
        if len(self._late) > _CHUNK:
            self._late = {handle for handle in self._late if handle.when() > loop.time()}

    def _meant(self, path: str) -> tuple[str | None, bool]:
        """Return the session that a report is about, and whether it is about a directory; None where it is about none.

        Manifests and files under way tell nothing.
        """
        base = os.path.basename(path)
        deletion = layout.parse_deletion_name(base)
        if deletion is not None and os.path.dirname(path) == self._paths.deleted:
            return deletion.dir_name, False
        below = path.removeprefix(self._paths.sessions + os.sep)
        dir_name, _, inside = below.partition(os.sep)
        if below == path or layout.parse_session_dir_name(dir_name) is None:
            return None, False
        if inside and (layout.is_in_progress(base) or layout.parse_manifest_name(base) is not None):
            return None, False
        return dir_name, inside in ("", ARCHIVE)

    # --- the watch ---------------------------------------------------------------------------------------------

    async def _tend(self) -> None:
        """Keep up a watch of what is there, and look at what is followed."""
        clock = asyncio.get_running_loop().time
        while True:
            self._nudged.clear()
            try:
                await self._keep_watch()
                if clock() >= self._next_look:
                    cost = await self._look()
                    is_reported = self._notifier is not None
                    pause = max(_LOOK_S, cost * _LOOK_SHARE) if is_reported else max(_POLL_S, cost * _POLL_SHARE)
                    self._next_look = clock() + pause
            except StoreClosedError:
                return
            except (OSError, SquillaFilesError) as error:
                _log.warning("store %s cannot be looked at: %s", self._paths.root, error)
                self._next_look = clock() + _LOOK_S
            self._is_ready.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._next_look - clock()):
                    await self._nudged.wait()

    async def _keep_watch(self) -> None:
        notifier = self._notifier
        if self.is_polling is not None:
            return None
        if notifier is not None and notifier.failed.done():
            return self._fall_back(notifier.failed.result())
        came, self._came, self._nudge = self._came, None, None
        if came is not None and (lack := await self._run(partial(self._probe, came))) is not None:
            return self._fall_back(lack)
        places = await self._run(lambda: existing((self._paths.sessions, self._paths.deleted)))
        if places == self._watched:
            return None
        self._stop_notifier()
        if not places:
            return None
        kind = await self._run(lambda: network_file_system(self._paths.sessions))
        if kind is not None:
            return self._fall_back(f"{kind} is a network file system")
        self._notifier = notifier = Notifier([path for path, _, _ in places], self._reported, self._make)
        self._watched = places
        notifier.failed.add_done_callback(lambda _: self._nudged.set())
        reason = await asyncio.shield(notifier.ready)
        if reason is not None:
            return self._fall_back(reason)
        # What came before the watch was there, and after a subscriber began.
        self._next_look = 0.0
        return self.wake(list(self._by_dir))

    def _probe(self, path: str) -> str | None:
        """Return why a directory that came cannot be watched, None where it can: the watch itself does not say so."""
        try:
            self._make([path]).close()
        except (FileNotFoundError, PermissionError):
            return None
        except OSError as error:
            return str(error)
        return None

    def _fall_back(self, reason: str) -> None:
        _log.warning(
            "store %s: changes of other processes are looked for every %g s or more, because they are not reported: %s",
            self._paths.root, _POLL_S, reason,
        )  # fmt: skip
        self._stop_notifier()
        self.is_polling = reason
        self._next_look = 0.0

    async def _look(self) -> float:
        """Wake those who follow a session that looks another way than before. Returns the seconds that looking took."""
        names = set(self._by_dir)
        cost = 0.0
        if self._of_all and self._is_ready.is_set():
            all_names, cost = await self._run(partial(_timed, self._looker.directories))
            names.update(all_names)
        listed = sorted(names)
        for start in range(0, len(listed), _CHUNK):
            chunk = listed[start : start + _CHUNK]
            seen, took = await self._run(partial(_timed, partial(self._signatures_of, chunk)))
            cost += took
            changed = [name for name, signature in seen.items() if self._signatures.get(name) != signature]
            self._signatures.update(seen)
            self.wake(changed)
        return cost

    def _signatures_of(self, names: list[str]) -> dict[str, int]:
        return {name: glance.signature for name, glance in self._looker.glances(names).items()}


def _timed(work: Callable[[], T]) -> tuple[T, float]:
    """Return what *work* returns, and the seconds of processor time that it took in this thread."""
    begun = time.thread_time()
    return work(), time.thread_time() - begun
