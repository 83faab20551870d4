"""Which files of a session's directory are logs, whatever they are called (FORMAT.md, "Foreign files").

Names of conflict copies are localised, and a delete on one side against an append on the other can leave a log under
such a name only. So a file is known by how it begins. A directory that shows no change since it was listed is not
listed again.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence

from squilla_files import layout
from squilla_files.errors import UnsafePathError
from squilla_files.files import DirEntryInfo, Files
from squilla_files.freshness import Freshness, Stamp, stamp_of
from squilla_files.journal import PEEK_BYTES, starts_log
from squilla_files.layout import ARCHIVE


class Listing:
    """The logs in a session's directory and its `archive/`.

    Args:
        files: the disk.
        sessions: the directory of all sessions.
        path: the session's directory.
        note_mode: told the status of each directory that is looked at.

    Attributes:
        foreign: path below the directory → the key of a log that belongs to another session.
        placeholders: paths of logs that a sync service has taken off this machine.
    """

    def __init__(
        self, files: Files, sessions: str, path: str, note_mode: Callable[[str, os.stat_result], None]
    ) -> None:
        self.foreign: dict[str, str] = {}
        self.placeholders: list[str] = []
        self._files = files
        self._sessions = sessions
        self._path = path
        self._archive = os.path.join(path, ARCHIVE)
        self._note_mode = note_mode
        self._fresh = Freshness()
        self._fresh_archive = Freshness()
        self._kinds: dict[str, tuple[Stamp, bool]] = {}
        self._foreign_stamps: dict[str, Stamp] = {}

    def look(self) -> list[str] | None:
        """Return the paths of the logs below the directory, with `/`; None where nothing changed since the last look.

        A directory that is not there holds none.

        Raises:
            OSError: it cannot be listed.
            UnsafePathError: a symbolic link or a special file stands where a directory or log should.
        """
        try:
            status = self._directory(self._path)
        except FileNotFoundError:
            with contextlib.suppress(FileNotFoundError):
                self._files.check_directory(self._sessions)
            self.forget()
            self.foreign, self.placeholders, self._foreign_stamps = {}, [], {}
            return []
        try:
            archived = self._directory(self._archive)
        except FileNotFoundError:
            archived = None
        if self._fresh.same(status) and (archived is None or self._fresh_archive.same(archived)):
            return None
        self._files.check_directory(self._sessions)
        self.placeholders = []
        looked_ns = time.time_ns()
        found = self._logs_among("", self._scan(self._path))
        if archived is not None:
            found += self._logs_among(f"{ARCHIVE}/", self._scan(self._archive))
            self._fresh_archive.saw(archived, looked_ns)
        self._fresh.saw(status, looked_ns)
        return found

    def forget(self) -> None:
        """Have the directory listed anew the next time, whatever its time stamp says."""
        self._fresh.forget()

    def set_foreign(self, name: str, session_key: str, stamp: Stamp) -> None:
        """Leave out a log that turned out to be of another session, until another file is put in its place."""
        self.foreign[name] = session_key
        self._foreign_stamps[name] = stamp

    def _directory(self, path: str) -> os.stat_result:
        status = self._files.check_directory(path)
        self._note_mode(path, status)
        return status

    def _scan(self, path: str) -> list[DirEntryInfo]:
        try:
            return self._files.scan(path)
        except FileNotFoundError:
            return []  # deleted this moment: the next look sees it

    def _logs_among(self, prefix: str, entries: Sequence[DirEntryInfo]) -> list[str]:
        hidden = (layout.is_placeholder(entry.name) for entry in entries)
        self.placeholders += [prefix + name for name in hidden if name is not None]
        found = []
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):  # gone since it was listed
                if self._is_log(prefix + entry.name, entry):
                    found.append(prefix + entry.name)
        return found

    def _is_log(self, name: str, entry: DirEntryInfo) -> bool:
        """Whether a file is a log of this session: by its name, or by how it begins."""
        if layout.parse_log_name(entry.name) is not None:
            if not entry.is_file:
                raise UnsafePathError(self._full(name), "is not a regular file")
            return not self._is_foreign(name)
        if not entry.is_file or layout.is_in_progress(entry.name) or layout.parse_manifest_name(entry.name):
            return False
        stamp = stamp_of(self._files.stat(self._full(name)))
        known = self._kinds.get(name)
        if known is None or known[0] != stamp:
            known = (stamp, starts_log(self._head(name)))
            self._kinds[name] = known
        return known[1] and not self._is_foreign(name)

    def _is_foreign(self, name: str) -> bool:
        """Whether the file was read, and is a log of another session; one that was put in its place is read anew."""
        stamp = self._foreign_stamps.get(name)
        if stamp is not None and stamp != stamp_of(self._files.stat(self._full(name))):
            del self.foreign[name], self._foreign_stamps[name]
            return False
        return stamp is not None

    def _head(self, name: str) -> bytes:
        fd = self._files.open_read(self._full(name))
        try:
            return self._files.pread(fd, PEEK_BYTES, 0)
        finally:
            self._files.close(fd)

    def _full(self, name: str) -> str:
        return os.path.join(self._path, name)
