"""Changes of a store as asynchronous iterators: of one session, or of all.

A subscriber that is woken asks for what follows the position to which it was told, and the files say what that is. It
holds a position and one batch of events, and no queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar

from squilla_files.catalog import Catalog
from squilla_files.codec import decode_document
from squilla_files.contents import read_steadily
from squilla_files.cursor_files import CursorFile, Told, load_cursor_file
from squilla_files.deletions import Deletions
from squilla_files.errors import CorruptRecordError, SquillaFilesError, StoreClosedError
from squilla_files.events import DamageFound, Event, Gap
from squilla_files.feeds import Batch, Feed, Run
from squilla_files.files import Files
from squilla_files.findings import UNREADABLE, finding
from squilla_files.layout import Layout, session_dir_name
from squilla_files.looking import Looker
from squilla_files.notifying import MakeWatcher, make_watcher
from squilla_files.placing import Marks
from squilla_files.positions import Cursors, Position, encode_position, log_digest, place_of
from squilla_files.session import Session
from squilla_files.wakeups import Subscriber, Wakeups

T = TypeVar("T")

_FEEDS: Final = 64
_READS: Final = 3
_CHUNK: Final = 256
_UNTOLD: Final = encode_position(Position())


class _Follower(Subscriber):
    """A subscriber of one session.

    Attributes:
        position: how far it was told, None before it began.
    """

    def __init__(self, dir_name: str) -> None:
        super().__init__(dir_name)
        self.position: bytes | None = None


class _StoreFollower(Subscriber):
    """A subscriber of the whole store.

    Attributes:
        told: directory → how far its session was told.
        is_beginning: whether there are sessions that were not looked at yet.
        unreadable: the directories that could not be read when they were last asked for.
        file: what its cursors name.
        ends: reads the ends of files that were only looked at.
    """

    def __init__(self, file: CursorFile) -> None:
        super().__init__(None)
        self.told: dict[str, Told] = {}
        self.is_beginning = False
        self.unreadable: set[str] = set()
        self.file = file
        self.ends: asyncio.Task[None] | None = None


class Watching:
    """All iterations over the changes of one store. Used on the event loop only.

    Args:
        files: the disk.
        paths: the store's paths.
        deletions: the store's deletions.
        catalog: the store's sessions.
        run: executes a function in a worker thread.
        session_of: gives the session with a key, opening it where it is not open.
        make: makes the watcher of the file system.
    """

    def __init__(
        self,
        files: Files,
        paths: Layout,
        deletions: Deletions,
        catalog: Catalog,
        run: Run,
        session_of: Callable[[str], Session],
        make: MakeWatcher = make_watcher,
    ) -> None:
        self._files = files
        self._paths = paths
        self._deletions = deletions
        self._catalog = catalog
        self._run = run
        self._session_of = session_of
        self._looker = Looker(files, paths, deletions)
        self._cursors = Cursors(place_of(paths.root))
        self._feeds: OrderedDict[str, Feed] = OrderedDict()
        self._keys: dict[str, str] = {}
        self._beginnings: dict[str | None, set[asyncio.Future[None]]] = {}
        self._store_followers: set[_StoreFollower] = set()
        self._is_closed = False
        self.wakeups = Wakeups(paths, run, self._looker, make)

    def committed(self, key: str) -> None:
        """Tell those who follow the session that this process changed it."""
        self.wakeups.wake((session_dir_name(key),))

    def end(self) -> None:
        """End every iteration."""
        self._is_closed = True
        self.wakeups.end()

    async def join(self) -> None:
        """Wait until no thread of a watch is left."""
        await self.wakeups.join()

    # --- one session -------------------------------------------------------------------------------------------

    async def follow(self, key: str, after: str | None) -> AsyncGenerator[Event]:
        """Yield what happens in one session; see `SessionStorage.watch`."""
        dir_name = session_dir_name(key)
        start = None if after is None else self._cursors.read_session(after, log_digest(key))
        subscriber = _Follower(dir_name)
        self.wakeups.add(subscriber)
        try:
            feed = self._feed(key)
            batch = await (self._begin(dir_name, feed.pull(None)) if start is None else self._pull(feed, start))
            while not self._ends(subscriber):
                subscriber.position = batch.position
                for event in batch.events:
                    yield event
                    if self._ends(subscriber):
                        return
                if batch.is_done:
                    await subscriber.wait()
                subscriber.dirty.clear()
                if not self._ends(subscriber):
                    batch = await self._pull(feed, batch.position)
        except StoreClosedError:
            if not self._ends(subscriber):
                raise
        finally:
            self.wakeups.remove(subscriber)

    def _ends(self, subscriber: Subscriber) -> bool:
        return subscriber.is_closed or self._is_closed

    def _feed(self, key: str) -> Feed:
        feed = self._feeds.get(key)
        if feed is None:
            feed = self._feeds[key] = Feed(self._run, lambda: self._session_of(key), self._cursors)
        self._feeds.move_to_end(key)
        # One that is dropped here goes on for those who have it; only what it remembers is not shared any more.
        while len(self._feeds) > _FEEDS:
            self._feeds.popitem(last=False)
        return feed

    async def _pull(self, feed: Feed, told: Told) -> Batch:
        for _ in range(_READS):
            # A log was replaced or deleted between finding its records and reading them: the next reading finds others.
            with contextlib.suppress(CorruptRecordError, FileNotFoundError):
                return await feed.pull(told)
        return await feed.pull(told)

    # --- beginnings --------------------------------------------------------------------------------------------

    async def _begin(self, dir_name: str | None, work: Awaitable[T]) -> T:
        """Wait for the *work* with which a following begins; who reads or writes meanwhile waits for it, too."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._beginnings.setdefault(dir_name, set()).add(done)
        try:
            return await work
        finally:
            done.set_result(None)
            self._beginnings[dir_name].discard(done)
            if not self._beginnings[dir_name]:
                del self._beginnings[dir_name]

    async def begun(self, key: str | None) -> None:
        """Wait until those who follow a session (None: any) have begun.

        An iteration begins with its first step, and its first look at the session comes a moment later. What this
        process reads or writes from now on must not fall into the gap between the two.
        """
        if not self._beginnings:
            return
        if key is None:
            waiting = [done for group in self._beginnings.values() for done in group]
        else:
            dir_name = session_dir_name(key)
            waiting = list(self._beginnings.get(dir_name, ()))
            for follower in list(self._store_followers):
                if follower.is_beginning and dir_name not in follower.told:
                    await self._mark(follower, dir_name)
        if waiting:
            await asyncio.wait(waiting)

    async def _mark(self, follower: _StoreFollower, dir_name: str) -> None:
        # Where it cannot be looked at, nobody who reads or writes is kept from it.
        with contextlib.suppress(OSError, SquillaFilesError):
            ((marks, signature),) = (await self._run(lambda: self._glances([dir_name]))).values()
            follower.told.setdefault(dir_name, marks)
            self.wakeups.saw(dir_name, signature)

    async def settle(self, key: str) -> None:
        """Take in what those who follow a session have not been told yet: it is about to be deleted."""
        dir_name = session_dir_name(key)
        await self.begun(key)
        waiting: set[Told] = set()
        for subscriber in self.wakeups.subscribers():
            if isinstance(subscriber, _StoreFollower):
                waiting.add(await self._told(subscriber, dir_name))
            elif isinstance(subscriber, _Follower) and subscriber.dir_name == dir_name:
                waiting.update([subscriber.position] if subscriber.position is not None else [])
        for told in waiting:
            # What they were told by a cursor is looked for in the files, and not in what is remembered here.
            if not isinstance(told, Position):
                batch = await self._pull(self._feed(key), told)
                while not batch.is_done:
                    batch = await self._pull(self._feed(key), batch.position)

    # --- the whole store ---------------------------------------------------------------------------------------

    async def follow_all(self, after: str | None) -> AsyncGenerator[Event]:
        """Yield what happens in all sessions; see `SessionStorage.watch`."""
        checkpoint = None if after is None else self._cursors.read_store(after)
        follower = _StoreFollower(CursorFile(self._files, self._paths))
        self.wakeups.add(follower)
        self._store_followers.add(follower)
        try:
            known = None
            if checkpoint is not None:
                known = await self._run(lambda: load_cursor_file(self._files, self._paths, checkpoint))
            if known is None:
                follower.is_beginning = True
                await self._begin(None, self._begin_all(follower))
                if after is not None:
                    await self._begin_file(follower)
                    yield Gap(session_key="", epoch=0, cursor=self._cursors.of_store(follower.file.checkpoint))
            else:
                follower.told = known
                for changed in await self._run(lambda: self._changed_since(known)):
                    follower.wake(changed)
            while not self._ends(follower):
                dir_name = follower.next_dirty()
                if dir_name is None:
                    await follower.wait()
                    continue
                async with contextlib.aclosing(self._tell(follower, dir_name)) as events:
                    async for event in events:
                        yield event
                        if self._ends(follower):
                            return
        except StoreClosedError:
            if not self._ends(follower):
                raise
        finally:
            self._store_followers.discard(follower)
            self.wakeups.remove(follower)
            if follower.ends is not None:
                follower.ends.cancel()

    async def _tell(self, follower: _StoreFollower, dir_name: str) -> AsyncGenerator[Event]:
        """Yield what is new in one session."""
        try:
            key = await self._key_of(dir_name)
        except StoreClosedError:
            raise
        except (OSError, SquillaFilesError) as error:
            if dir_name not in follower.unreadable:
                follower.unreadable.add(dir_name)
                yield await self._unreadable(follower, None, dir_name, error)
            return
        if key is None:
            return
        feed = self._feed(key)
        is_done = False
        while not is_done:
            try:
                batch = await self._pull(feed, await self._told(follower, dir_name))
            except StoreClosedError:
                raise
            except (OSError, SquillaFilesError) as error:
                if dir_name not in follower.unreadable:
                    follower.unreadable.add(dir_name)
                    yield await self._unreadable(follower, key, dir_name, error)
                return
            follower.unreadable.discard(dir_name)
            events = await self._keep(follower, dir_name, batch)
            for event in events:
                yield event
            is_done = batch.is_done

    async def _told(self, follower: _StoreFollower, dir_name: str) -> Told:
        """Return how far a session was told, so that what follows can be asked for."""
        told = follower.told.get(dir_name, _UNTOLD)
        if isinstance(told, Marks):
            told = await self._run(partial(self._looker.ends, dir_name, told))
            follower.told[dir_name] = told
        return told

    async def _keep(self, follower: _StoreFollower, dir_name: str, batch: Batch) -> Sequence[Event]:
        """Return the events of *batch* with cursors of the store, and note what those name."""
        if not batch.events:
            follower.told[dir_name] = batch.position
            return ()
        await self._begin_file(follower)
        positions = [self._cursors.position_in(event.cursor) for event in batch.events]
        checkpoints = await self._run(lambda: follower.file.add(dir_name, positions))
        follower.told[dir_name] = batch.position
        cursors = map(self._cursors.of_store, checkpoints)
        return [replace(event, cursor=cursor) for event, cursor in zip(batch.events, cursors, strict=True)]

    async def _begin_file(self, follower: _StoreFollower) -> None:
        if follower.file.is_begun:
            return
        if follower.ends is not None:
            await asyncio.wait([follower.ends])
        told = dict(follower.told)
        await self._run(lambda: follower.file.begin(told))

    async def _unreadable(self, follower: _StoreFollower, key: str | None, dir_name: str, error: Exception) -> Event:
        await self._begin_file(follower)
        found = finding(UNREADABLE, f"sessions/{dir_name}", str(error), session_key=key)
        cursor = self._cursors.of_store(follower.file.checkpoint)
        return DamageFound(session_key=key or "", epoch=0, cursor=cursor, finding=found)

    async def _key_of(self, dir_name: str) -> str | None:
        """Return the key of the session in a directory, or that was deleted from it; None where it has none yet."""
        key = self._keys.get(dir_name)
        if key is None:
            key = await self._run(partial(read_steadily, partial(self._find_key, dir_name)))
            if key is not None:
                self._keys[dir_name] = key
        return key

    def _find_key(self, dir_name: str) -> str | None:
        return self._catalog.key_of(dir_name) or self._deleted_key(dir_name)

    def _deleted_key(self, dir_name: str) -> str | None:
        for name in self._deletions.names(dir_name):
            document = decode_document(self._files.read_file(os.path.join(self._paths.deleted, name)))
            key = document.get("session_key") if document is not None else None
            if isinstance(key, str) and session_dir_name(key) == dir_name:
                return key
        return None

    # --- how a following of the whole store begins -------------------------------------------------------------

    async def _begin_all(self, follower: _StoreFollower) -> None:
        """Look at every session, so that what comes from now on is new. Nothing is read."""
        present = await self._run(self._looker.directories)
        await self.wakeups.ready()
        for dir_names in _chunks(present):
            for dir_name, (marks, signature) in (await self._run(lambda n=dir_names: self._glances(n))).items():  # type: ignore[misc]
                follower.told.setdefault(dir_name, marks)
                self.wakeups.saw(dir_name, signature)
        follower.is_beginning = False
        for dir_name in set(await self._run(self._looker.directories)).difference(present):
            follower.wake(dir_name)
        follower.ends = asyncio.get_running_loop().create_task(self._read_ends(follower))

    async def _read_ends(self, follower: _StoreFollower) -> None:
        """Read the ends of the files that were only looked at, so that one that is cut or replaced later shows."""
        for dir_names in _chunks(list(follower.told)):
            seen = {n: told for n in dir_names if isinstance(told := follower.told[n], Marks)}
            read = await self._run(lambda s=seen: {n: self._looker.ends(n, marks) for n, marks in s.items()})  # type: ignore[misc]
            for dir_name, marks in read.items():
                if follower.told[dir_name] is seen[dir_name]:
                    follower.told[dir_name] = marks

    def _glances(self, dir_names: list[str]) -> dict[str, tuple[Marks, int]]:
        seen = self._looker.glances(dir_names)
        return {name: (self._looker.marks(name, glance), glance.signature) for name, glance in seen.items()}

    def _changed_since(self, known: dict[str, Told]) -> list[str]:
        """Return the sessions that are, or may be, another way than they were told."""
        changed = []
        for dir_name, glance in self._looker.glances(sorted({*known, *self._looker.directories()})).items():
            told = known.get(dir_name)
            if isinstance(told, Marks):
                marks = self._looker.marks(dir_name, glance)
                if self._looker.ends(dir_name, marks) == told:
                    continue
            changed.append(dir_name)
        return changed


def _chunks(names: list[str]) -> list[list[str]]:
    return [names[start : start + _CHUNK] for start in range(0, len(names), _CHUNK)]
