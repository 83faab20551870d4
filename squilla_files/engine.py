"""The machinery under the facade: worker threads, open sessions, one line of waiting changes for each session.

Asynchronous from here upward. Changes of one session wait in a queue and go to a worker thread one after another, each
under the session's lock; appends that wait together go together: one write, one sync. Readers take no lock of the
store.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import tempfile
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Final, Self

from squilla_files.appending import Append, append
from squilla_files.catalog import Catalog, Listed
from squilla_files.contents import read_steadily
from squilla_files.deletions import Deletions
from squilla_files.devices import Devices, given_device
from squilla_files.errors import LockTimeoutError, SquillaFilesError, StoreClosedError, WrongLoopError
from squilla_files.files import Durability, Files
from squilla_files.forks import call_in_child
from squilla_files.layout import Layout, session_dir_name
from squilla_files.locks import LockFile, run_locked
from squilla_files.queues import Job, OpenSession, T, Work
from squilla_files.session import Session
from squilla_files.session_dir import SessionDir
from squilla_files.store_file import is_store, write_store_file

_log = logging.getLogger(__name__)

MEMORY: Final = ":memory:"
_WORKERS: Final = 4
# One write of so many messages is long enough to make the sync's share of each small.
_GROUP: Final = 256
_CHECKPOINT_DELAY_S: Final = 1.0
# Sessions stay open until there are so many, or their indexes hold so many records.
_OPEN_SESSIONS: Final = 128
_OPEN_RECORDS: Final = 200_000


class Engine:
    """What all parts of a store stand on; see `squilla_files.storage.SessionStorage` for the arguments."""

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        device: str | None = None,
        durability: Durability = "full",
        archive_dir: str | os.PathLike[str] | None = None,
        lock_timeout: float = 30.0,
        files: Files | None = None,
    ) -> None:
        if durability not in ("full", "os"):
            raise ValueError(f"durability must be 'full' or 'os', not {durability!r}")
        if type(lock_timeout) not in (int, float) or not lock_timeout >= 0:
            raise ValueError(f"lock_timeout must be a number of seconds, not {lock_timeout!r}")
        if not os.fspath(root):
            raise ValueError("root must name a directory; it is empty")
        self._given_root = os.fspath(root)
        self._given_device = given_device(device)
        self._archive_dir = None if archive_dir is None else os.fspath(archive_dir)
        self._lock_timeout = lock_timeout
        self._files = files if files is not None else Files(durability)
        self._temporary: str | None = None
        self._connected = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._store_checked = False
        self._sessions: OrderedDict[str, OpenSession] = OrderedDict()
        self._keys: dict[str, str] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._closing: asyncio.Task[None] | None = None
        self._listeners: list[Callable[[str], None]] = []
        if self._given_root != MEMORY:
            # The root, and what is above it, may be links of the user's; below it none is followed.
            self._lay_out(os.path.realpath(self._given_root))

    def _lay_out(self, root: str) -> None:
        self.root = root
        self._paths = Layout(root)
        self._devices = Devices(self._files, self._paths, self._given_device)
        self._deletions = Deletions(self._files, self._paths)
        self._catalog = Catalog(self._files, self._paths, self._deletions, self._devices, self._directory_of)

    # --- opening and closing -----------------------------------------------------------------------------------

    async def connect(self) -> None:
        """Open the store. Connecting to an existing store writes nothing; a new one is made by the first write.

        Raises:
            UnsupportedFormatError: a later major version made the store.
            CorruptManifestError: `store.json` cannot be understood.
            OSError: it cannot be read.
        """
        self._enter()
        if self._connected:
            return
        await self.close()  # one that is still under way
        if self._given_root == MEMORY:
            self._temporary = tempfile.mkdtemp(prefix="squilla-files-")
            self._lay_out(os.path.join(self._temporary, "store"))
        self._pool = ThreadPoolExecutor(_WORKERS, thread_name_prefix="squilla-files")
        self._connected = True
        call_in_child(self._forsake)
        try:
            await self.run(lambda: is_store(self._files, self._paths))
        except BaseException:
            self._connected = False
            self._pool.shutdown(wait=False)
            raise

    def _ensure_store(self) -> None:
        """Make the root and `store.json` where missing: the first write of a store comes through here."""
        if not self._store_checked:
            if not is_store(self._files, self._paths):
                write_store_file(self._files, self._paths)
            self._store_checked = True

    async def close(self) -> None:
        """Finish what was begun, write the checkpoints that are due, and close everything. A second call does nothing.

        Changes that still wait for their turn end with `StoreClosedError`.

        Cancellation: the store is closed all the same; another call waits until it is.
        """
        if self._connected:
            self._enter()
            self._connected = False
            self._closing = asyncio.get_running_loop().create_task(self._finish())
        if self._closing is not None:
            await asyncio.shield(self._closing)

    async def _finish(self) -> None:
        self._store_checked = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        opened = list(self._sessions.values())
        for entry in opened:
            self._refuse_waiting(entry)
        for entry in opened:
            if entry.task is not None:
                await asyncio.shield(entry.task)
        for entry in opened:
            if entry.session.writer.unsaved:
                await self._settle(entry)
        # Readers may still be at work in the pool: it is waited for in a thread that is none of its own.
        await asyncio.to_thread(self._close_files, opened)
        self._sessions.clear()
        self._closing = None

    def _refuse_waiting(self, entry: OpenSession) -> None:
        while entry.queue:
            job = entry.queue.popleft()
            if not job.future.done():
                job.future.set_exception(self._closed())

    def _close_files(self, opened: list[OpenSession]) -> None:
        self._pool.shutdown(wait=True)
        for entry in opened:
            entry.session.close()
            entry.lock.close()
        if self._temporary is not None:
            shutil.rmtree(self._temporary)

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _closed(self) -> StoreClosedError:
        return StoreClosedError(
            f"The store at {self._given_root} is not open. Call connect(), or use it in `async with`."
        )

    def _enter(self) -> None:
        """See that the running loop is the store's; take over from one that is closed.

        Raises:
            WrongLoopError: the store's loop is another one, and open.
        """
        loop = asyncio.get_running_loop()
        if loop is self._loop:
            return
        if self._loop is not None and not self._loop.is_closed():
            raise WrongLoopError(self._given_root)
        self._forget_loop()
        self._loop = loop

    def _forget_loop(self) -> None:
        """Drop what belongs to a loop that is closed: who waited there waits no more."""
        self._timer = self._closing = None
        for entry in self._sessions.values():
            entry.queue.clear()
            entry.task = None

    def _forsake(self) -> None:
        """Be closed, in a forked process: the threads are its parent's, and so is what they hold."""
        while self._sessions:
            self._sessions.popitem()[1].forsake()
        self._connected = False
        self._temporary = self._loop = self._timer = self._closing = None
        self._lay_out(self.root)

    # --- the worker threads ------------------------------------------------------------------------------------

    async def run(self, work: Callable[[], T]) -> T:
        """Execute *work* in a worker thread and return what it returns.

        Raises:
            StoreClosedError: the store is not open.

        Cancellation: *work* that has begun is finished in its thread.
        """
        if not self._connected:
            raise self._closed()
        self._enter()
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    # --- sessions that are open --------------------------------------------------------------------------------

    def _open(self, key: str) -> OpenSession:
        entry = self._sessions.get(key)
        if entry is None:
            session = Session(self._files, self._paths, self._deletions, self._devices, key)
            entry = OpenSession(session, LockFile(self._files, self._paths.lock_file(session_dir_name(key))))
            self._sessions[key] = entry
            self._close_oldest()
        else:
            self._sessions.move_to_end(key)
        return entry

    def _close_oldest(self) -> None:
        records = sum(len(entry.session.timeline.records) for entry in self._sessions.values())
        for key, entry in list(self._sessions.items())[:-1]:
            if len(self._sessions) <= _OPEN_SESSIONS and records <= _OPEN_RECORDS:
                return
            if entry.task is None and not entry.session.writer.unsaved:
                records -= len(entry.session.timeline.records)
                del self._sessions[key]
                self._pool.submit(self._close_entry, entry)

    def _close_entry(self, entry: OpenSession) -> None:
        # A reader may still be at work on it in another thread.
        with entry.session.dir.mutex:
            entry.session.close()
        entry.lock.close()

    def _directory_of(self, key: str) -> SessionDir:
        """Return the directory of a session: the open one where it is open, else one that is read and dropped."""
        entry = self._sessions.get(key)
        if entry is not None:
            return entry.session.dir
        return SessionDir(self._files, self._paths, self._deletions, self._devices, key)

    # --- reading -----------------------------------------------------------------------------------------------

    async def read(self, key: str, work: Work[T]) -> T:
        """Catch up with the session under the canonical *key*, and return what *work* makes of it. Changes nothing."""
        session = self._open(key).session if self._connected else None

        def attempt() -> T:
            if session is None:
                raise self._closed()
            with session.dir.mutex:
                session.refresh()
                return work(session)

        await self._begin(key)
        return await self.run(lambda: read_steadily(attempt))

    async def _begin(self, key: str | None) -> None:
        self._enter()
        await self._begun(key)

    async def _begun(self, key: str | None) -> None:
        """Wait until those who follow the session (None: any) have begun; see `StoredEvents`."""

    def is_open(self, key: str) -> bool:
        """Whether the session under the canonical *key* is open in this process, so that reading it costs little."""
        return key in self._sessions

    async def peek(self, key: str) -> Listed | None:
        """Return the session under the canonical *key*, None where there is none.

        Where it is not open its manifest is believed as far as it holds: a long transcript is not read for its head.

        Raises:
            OSError: something cannot be read.
        """
        await self._begin(key)
        return await self.run(lambda: self._catalog.find(key))

    async def list_all(self) -> list[Listed]:
        """Return every session of the store that exists and can be read."""
        await self._begin(None)
        listed = await self.run(self._catalog.sessions)
        for item in listed:
            for session_id in item.session_ids:
                self._keys[session_id] = item.key
        return listed

    # --- changing ----------------------------------------------------------------------------------------------

    async def change(self, key: str, work: Work[T], *, timeout_s: float | None = None) -> T:
        """Execute *work* under the lock of the session with the canonical *key*, after catching up.

        Raises:
            LockTimeoutError: another process held the session for *timeout_s* seconds (default: the store's).
            StoreClosedError: the store is not open.

        Cancellation: a change that waits is taken back; one that has begun is finished.
        """
        future = self._submit(key, work, None, timeout_s)
        result: T = await future
        return result

    async def append(self, key: str, item: Append) -> None:
        """Append one message; see `squilla_files.appending.append`. Those that wait together are written together."""
        await self._submit(key, None, item, None)

    def _submit(
        self, key: str, work: Work[Any] | None, item: Append | None, timeout_s: float | None
    ) -> asyncio.Future[Any]:
        if not self._connected:
            raise self._closed()
        self._enter()
        entry = self._open(key)
        loop = asyncio.get_running_loop()
        job = Job(loop.create_future(), work, item, self._lock_timeout if timeout_s is None else timeout_s)
        entry.queue.append(job)
        if entry.task is None:
            entry.task = loop.create_task(self._drain(entry))
        return job.future

    async def _drain(self, entry: OpenSession) -> None:
        """Take the changes that wait, in order, until none is left."""
        try:
            while entry.queue:
                jobs = self._next_jobs(entry.queue)
                if jobs:
                    await self._perform(entry, jobs)
        finally:
            entry.task = None

    def _next_jobs(self, queue: deque[Job]) -> list[Job]:
        """Take the next change, or all appends that stand next to each other; those given up are dropped."""
        jobs: list[Job] = []
        while queue and len(jobs) < _GROUP:
            if jobs and (jobs[0].item is None or queue[0].item is None):
                break
            job = queue.popleft()
            if not job.future.done():
                jobs.append(job)
        return jobs

    async def _perform(self, entry: OpenSession, jobs: list[Job]) -> None:
        single = jobs[0].work

        def work() -> Any:
            # They begin only now: what was given up while another process held the lock is not written.
            begun = [job for job in jobs if not job.future.cancelled()]
            if not begun:
                return None
            self._ensure_store()
            session = entry.session
            with session.dir.mutex:
                session.refresh()
                if single is not None:
                    return single(session)
                return append(session, [job.item for job in begun if job.item is not None])

        try:
            await self._begin(entry.session.key)
            result = await run_locked(entry.lock, self._run_begun, jobs[0].timeout_s, work)
        except BaseException as error:
            self._answer(jobs, None, error)
            if not isinstance(error, Exception):
                raise
        else:
            self._answer(jobs, result, None)
        self._committed(entry)

    async def _run_begun(self, work: Callable[[], T]) -> T:
        # Not `run`: a change that has begun is finished although the store is being closed.
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def _answer(self, jobs: list[Job], result: Any, error: BaseException | None) -> None:
        for job in jobs:
            if job.future.done():
                continue
            refused = error if job.item is None or not (job.item.done or job.item.error) else job.item.error
            if refused is not None:
                job.future.set_exception(refused)
            else:
                job.future.set_result(result)

    def _committed(self, entry: OpenSession) -> None:
        if entry.session.writer.unsaved and self._timer is None and self._connected:
            self._timer = asyncio.get_running_loop().call_later(_CHECKPOINT_DELAY_S, self._checkpoint_due)
        for listener in self._listeners:
            listener(entry.session.key)

    # --- checkpoints -------------------------------------------------------------------------------------------

    def _checkpoint_due(self) -> None:
        self._timer = None
        if not self._connected:
            return  # closing writes what is due
        for key, entry in list(self._sessions.items()):
            if entry.session.writer.unsaved:
                future = self._submit(key, _checkpoint, None, None)
                future.add_done_callback(_note_failure)

    async def _settle(self, entry: OpenSession) -> None:
        """Write the checkpoint of a session while the store is being closed."""

        def work() -> None:
            with entry.session.dir.mutex:
                entry.session.refresh()
                _checkpoint(entry.session)

        try:
            await run_locked(entry.lock, self._run_begun, 0, work)
        except LockTimeoutError:
            _log.debug("session %s: no checkpoint at closing, for another process is at work", entry.session.key)
        except (OSError, SquillaFilesError) as error:
            _log.warning("session %s: no checkpoint at closing: %s", entry.session.key, error)


def _checkpoint(session: Session) -> None:
    if session.timeline.exists:
        session.writer.checkpoint()


def _note_failure(future: asyncio.Future[Any]) -> None:
    # A checkpoint only makes listing fast: the next one is as good.
    if not future.cancelled() and future.exception() is not None:
        _log.warning("a checkpoint failed: %s", future.exception())
