"""The care of a store: check, repair, and how far a session has arrived. Asynchronous; see `Engine`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from squilla_files.arrival import sync_status
from squilla_files.checking import SessionCheck, check_session
from squilla_files.deletions import Deletions
from squilla_files.errors import LockTimeoutError
from squilla_files.findings import LATER_FORMAT, TEMPORARY, Finding, Report, SyncStatus, report_of
from squilla_files.keys import canonicalize_session_key
from squilla_files.layout import session_dir_name
from squilla_files.locks import LockFile, run_locked
from squilla_files.recovery import SessionRepair, StoreRepair
from squilla_files.session import Session
from squilla_files.store_branches import StoredBranches
from squilla_files.store_checking import StoreCheck


class StoredCare(StoredBranches):
    """What a store tells of its own state, and mends of it."""

    async def verify(self, session_key: str | None = None) -> Report:
        """Read all files of a session, or of the store, and report what is wrong or worth knowing. Changes nothing.

        Takes no lock. A session that is not there has no findings. What cannot be read is a finding among the others.

        Args:
            session_key: the session; None: the whole store.

        Raises:
            OSError: the process is out of descriptors or memory.
        """
        if session_key is not None:
            name = session_dir_name(canonicalize_session_key(session_key))
            return report_of((await self.run(lambda: self._check(name))).findings)
        store = await self.run(lambda: StoreCheck(self._files, self._paths))
        findings = list(store.findings)
        for name in store.directories:
            findings += (await self.run(lambda name=name: self._check(name))).findings  # type: ignore[misc]
        return report_of(findings)

    async def repair(self, session_key: str | None = None, *, dry_run: bool = False) -> Report:
        """Finish or clear away what crashed operations left; a second call finds nothing to do.

        Made private again are files and directories; removed are unfinished files of this package, trash, remains of
        deleted sessions, and documents of this device that no record names; finished are moves of sealed logs of this
        device, and its manifests are made anew. Nothing else is touched: damaged lines, copies and what other devices
        wrote are reported.

        Args:
            session_key: the session; None: the whole store.
            dry_run: whether nothing is changed, and the report says what would be done.

        Returns:
            What was done, each finding with its `action`, and what remains.

        Raises:
            LockTimeoutError: somebody is at work on *session_key* for longer than the store's timeout. Of the whole
                store such a session is passed over, and its findings say so.
            OSError: the process is out of descriptors or memory.

        Durability: what was moved, removed and written is durable once this returns.
        """
        if session_key is not None:
            name = session_dir_name(canonicalize_session_key(session_key))
            return report_of(await self._repair_session(name, dry_run=dry_run))
        # Modes first: a directory that is closed to its owner hides the sessions in it.
        opened = await self._repair_store((), later=True, dry_run=dry_run)
        store = await self.run(lambda: StoreCheck(self._files, self._paths))
        findings = [item for item in opened if item.action]
        for name in store.directories:
            findings += await self._repair_or_tell(name, dry_run=dry_run)
        unfinished = [item.path for item in store.findings if item.kind == TEMPORARY]
        if unfinished and not dry_run and not await self._outwait_writers():
            unfinished = []
        later = any(item.kind == LATER_FORMAT for item in findings)
        return report_of([*findings, *await self._repair_store(unfinished, later=later, dry_run=dry_run)])

    async def sync_status(self, session_key: str) -> SyncStatus:
        """Return what is here of each device's writing in a session, and what others speak of that is not here.

        Both are empty where nothing of the session is here. Changes nothing.

        Raises:
            OSError: something cannot be read.
        """
        key = canonicalize_session_key(session_key)
        return await self.read(key, lambda session: sync_status(session.dir, session.attachments))

    def _check(self, dir_name: str) -> SessionCheck:
        # Deletions of its own: what this process read once may be damaged since.
        deletions = Deletions(self._files, self._paths)
        return check_session(self._files, self._paths, deletions, self._devices, dir_name)

    async def _repair_store(self, unfinished: Sequence[str], *, later: bool, dry_run: bool) -> list[Finding]:
        def look() -> list[Finding]:
            return StoreCheck(self._files, self._paths).findings

        repair = StoreRepair(self._files, self._paths, look, quiet=unfinished, later=later, dry_run=dry_run)
        return await self.run(repair.run)

    async def _repair_or_tell(self, dir_name: str, *, dry_run: bool) -> list[Finding]:
        try:
            return await self._repair_session(dir_name, dry_run=dry_run)
        except LockTimeoutError as error:
            found = (await self.run(lambda: self._check(dir_name))).findings
            return [replace(item, detail=f"{item.detail}; not mended: {error}") for item in found]

    async def _repair_session(self, dir_name: str, *, dry_run: bool) -> list[Finding]:
        def session_of(key: str) -> Session:
            return Session(self._files, self._paths, self._deletions, self._devices, key)

        def repair(*, dry: bool) -> list[Finding]:
            return SessionRepair(self._files, self._paths, lambda: self._check(dir_name), session_of, dry_run=dry).run()

        planned = await self.run(lambda: repair(dry=True))
        if dry_run or not any(item.action for item in planned):
            return planned
        lock = LockFile(self._files, self._paths.lock_file(dir_name))
        try:
            return await run_locked(lock, self._run_begun, self._lock_timeout, lambda: repair(dry=False))
        finally:
            lock.close()

    async def _outwait_writers(self) -> bool:
        """Wait until every operation that was under way at the call has ended: each holds the lock of a session.

        Returns:
            False where one went on for longer than the store's timeout.
        """
        for name in await self.run(self._lock_names):
            lock = LockFile(self._files, os.path.join(self._paths.locks, name))
            try:
                await run_locked(lock, self._run_begun, self._lock_timeout, lambda: True)
            except LockTimeoutError:
                return False
            finally:
                lock.close()
        return True

    def _lock_names(self) -> list[str]:
        try:
            return [entry.name for entry in self._files.scan(self._paths.locks) if entry.is_file]
        except FileNotFoundError:
            return []
