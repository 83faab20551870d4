"""Repair: what crashed operations left is finished or cleared away. Synchronous; the caller holds the session's lock.

What is mended belongs to this device alone, or means nothing to anybody: modes, unfinished files of this package, moves
of sealed logs that were left out, this device's manifest and the documents of it that no record names, remains of
deleted sessions. Damaged lines, copies, and what other devices wrote stay as they are. A dry run takes the same
decisions and changes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from squilla_files import layout
from squilla_files.checking import SessionCheck
from squilla_files.errors import SquillaFilesError
from squilla_files.files import Files
from squilla_files.findings import (
    DAMAGED_LINE,
    DELETED_REST,
    EMPTY_DIRECTORY,
    FOREIGN,
    MANIFEST_CORRUPT,
    MANIFEST_MISSING,
    MANIFEST_STALE,
    MANIFEST_WRONG,
    MISSING_LOG,
    MISSING_RECORDS,
    PLACEHOLDER,
    STORE_CORRUPT,
    STORE_MISSING,
    TEMPORARY,
    TORN_TAIL,
    TRASH,
    UNMOVED_LOG,
    UNREFERENCED,
    WRONG_MODE,
    Finding,
)
from squilla_files.session import Session
from squilla_files.store_file import write_store_file

_MANIFEST: Final = frozenset({MANIFEST_MISSING, MANIFEST_CORRUPT, MANIFEST_STALE, MANIFEST_WRONG})
# Where one of these is found, a record that names a document may stand where it was not read.
_DOUBTFUL: Final = frozenset({DAMAGED_LINE, TORN_TAIL, MISSING_LOG, MISSING_RECORDS, PLACEHOLDER})
# What a closed directory holds shows only once it is open: .local, memory, a machine's directory, a file.
_LEVELS: Final = 5

Mend = tuple[str, Callable[[], None]]
Plan = dict[Finding, Mend]


class Repair:
    """What all repairs have in common: look, make private, look again, mend, and look whether it helped.

    Args:
        files: the disk.
        paths: the store's paths.
        dry_run: whether nothing is done, and only said.
    """

    def __init__(self, files: Files, paths: layout.Layout, *, dry_run: bool) -> None:
        self._files = files
        self._paths = paths
        self._dry_run = dry_run
        self._failures: dict[Finding, str] = {}

    def look(self) -> Sequence[Finding]:
        """Return what is wrong now."""
        raise NotImplementedError

    def plan(self, found: Sequence[Finding]) -> Plan:
        """Return what is to be done, modes aside, in the order in which it is done."""
        raise NotImplementedError

    def run(self) -> list[Finding]:
        """Mend what can be mended.

        Returns:
            What was done, each finding with its action, and what remains.
        """
        found = self.look()
        if self._dry_run:
            plan = {**self._plan_modes(found), **self.plan(found)}
            return [replace(item, action=plan[item][0]) if item in plan else item for item in found]
        done: list[Finding] = []
        for _ in range(_LEVELS):
            modes = self._plan_modes(found)
            if not self._perform(modes):
                break
            found = self._judge(modes, done)
        plan = self.plan(found)
        if self._perform(plan):
            found = self._judge(plan, done)
        return done + [self._told(item) for item in found]

    def _plan_modes(self, found: Sequence[Finding]) -> Plan:
        wrong = [item for item in found if item.kind == WRONG_MODE]
        return {item: ("made private", partial(self._files.keep_private, self.full(item))) for item in wrong}

    def _perform(self, plan: Plan) -> bool:
        """Do what *plan* says, and return whether something was done; what fails is told with its finding."""
        performed = False
        for item, (_, act) in plan.items():
            try:
                act()
                performed = True
            except (OSError, SquillaFilesError) as error:
                self._failures[item] = str(error)
        return performed

    def _judge(self, plan: Plan, done: list[Finding]) -> Sequence[Finding]:
        """Look again: what is found no more was done."""
        found = self.look()
        left = set(found)
        done += [replace(item, action=action) for item, (action, _) in plan.items() if item not in left]
        return found

    def _told(self, item: Finding) -> Finding:
        failure = self._failures.get(item)
        return item if failure is None else replace(item, detail=f"{item.detail}; not mended: {failure}")

    def full(self, item: Finding) -> str:
        """Return the full path that a finding is about."""
        return os.path.normpath(os.path.join(self._paths.root, *item.path.split("/")))

    def _removal(self, item: Finding) -> Mend:
        path = self.full(item)

        def act() -> None:
            self._files.remove_tree(path)
            self._files.sync_dir(os.path.dirname(path))

        return "removed", act


class SessionRepair(Repair):
    """Repairs one session's directory.

    Args:
        files: the disk.
        paths: the store's paths.
        check: looks at the directory.
        session_of: gives the session with a key, unread.
        dry_run: whether nothing is done, and only said.
    """

    def __init__(
        self,
        files: Files,
        paths: layout.Layout,
        check: Callable[[], SessionCheck],
        session_of: Callable[[str], Session],
        *,
        dry_run: bool,
    ) -> None:
        super().__init__(files, paths, dry_run=dry_run)
        self._look_at = check
        self._session_of = session_of
        self._check: SessionCheck | None = None

    def look(self) -> Sequence[Finding]:
        """Return what is wrong with the directory now."""
        self._check = self._look_at()
        return self._check.findings

    def plan(self, found: Sequence[Finding]) -> Plan:
        """Return what is to be done about the directory."""
        plan: Plan = {item: self._removal(item) for item in found if item.kind == TEMPORARY}
        for item in found:
            if item.kind == EMPTY_DIRECTORY:
                plan[item] = ("removed", partial(self._remove_empty, self.full(item)))
        key = self._check.key if self._check is not None else None
        if key is not None and not any(item.severity == "error" for item in found):
            session = self._session_of(key)
            plan |= self._plan_session(session, found)
        return plan

    def _plan_session(self, session: Session, found: Sequence[Finding]) -> Plan:
        plan: Plan = {}
        strange = any(item.kind == FOREIGN and item.severity == "warning" for item in found)
        for item in found:
            if item.kind == DELETED_REST and not strange:
                plan[item] = ("removed", lambda: self._discard(session))
        session.refresh()
        device = session.writer.recognised()
        if device is None or not session.timeline.exists:
            return plan
        doubtful = strange or any(item.kind in _DOUBTFUL for item in found)
        for item in found:
            name = item.path.rpartition("/")[2]
            numbered = layout.parse_numbered_name(name)
            if item.kind == UNREFERENCED and not doubtful and numbered is not None and numbered.device == device:
                plan[item] = self._removal(item)
        for item in found:
            name = item.path.rpartition("/")[2]
            log = layout.parse_log_name(name)
            # One checkpoint finishes the moves and writes the manifest; a second one changes nothing.
            if item.kind == UNMOVED_LOG and log is not None and log.device == device:
                plan[item] = ("moved to archive/", session.writer.checkpoint)
            elif item.kind in _MANIFEST and layout.parse_manifest_name(name) == device:
                plan[item] = ("written anew", session.writer.checkpoint)
        return plan

    def _discard(self, session: Session) -> None:
        session.refresh()
        if not session.timeline.exists:
            session.discard()

    def _remove_empty(self, path: str) -> None:
        """Remove a directory that holds nothing but directories; where something came meanwhile it stays."""
        for entry in self._files.scan(path):
            self._remove_empty(os.path.join(path, entry.name))
        self._files.rmdir(path)
        self._files.sync_dir(os.path.dirname(path))


class StoreRepair(Repair):
    """Repairs what is a store's as a whole.

    Args:
        files: the disk.
        paths: the store's paths.
        check: looks at the store.
        quiet: the unfinished files, relative to the root, whose writers are gone for sure.
        later: whether a later version of the package wrote to the store.
        dry_run: whether nothing is done, and only said.
    """

    def __init__(
        self,
        files: Files,
        paths: layout.Layout,
        check: Callable[[], Sequence[Finding]],
        *,
        quiet: Iterable[str],
        later: bool,
        dry_run: bool,
    ) -> None:
        super().__init__(files, paths, dry_run=dry_run)
        self._look_at = check
        self._quiet = frozenset(quiet)
        self._later = later

    def look(self) -> Sequence[Finding]:
        """Return what is wrong with the store now."""
        return self._look_at()

    def plan(self, found: Sequence[Finding]) -> Plan:
        """Return what is to be done about the store."""
        plan: Plan = {}
        for item in found:
            if item.kind == TRASH or (item.kind == TEMPORARY and item.path in self._quiet):
                plan[item] = self._removal(item)
            elif item.kind in (STORE_MISSING, STORE_CORRUPT) and not self._later:
                plan[item] = ("written anew", lambda: write_store_file(self._files, self._paths))
        return plan
