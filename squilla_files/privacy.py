"""Modes that a sync service or a copy gave are taken back by the next write (FORMAT.md, "Reading")."""

from __future__ import annotations

import contextlib
import logging
import os

from squilla_files import layout
from squilla_files.session_dir import SessionDir

_log = logging.getLogger(__name__)


class Privacy:
    """Keeps what stands in a session's directory to 0700 and 0600."""

    def __init__(self, session: SessionDir) -> None:
        self._session = session
        self._files = session.files
        self._unmendable: set[str] = set()

    def restore(self, paths: set[str]) -> None:
        """Take back the modes of *paths*; where the file system has none, let it be."""
        if not paths:
            return
        for path in sorted(paths - self._unmendable):
            try:
                self._files.keep_private(path)
            except FileNotFoundError:
                continue  # moved since it was seen
            except OSError as error:
                self._unmendable.add(path)
                _log.warning("session %s: %s stays open to others: %s", self._session.key, path, error)
        self._session.exposed.clear()

    def exposed(self) -> set[str]:
        """Return what stands in the session's directory, and in those below it, with another mode than its own."""
        if self._files.windows:
            return set()
        found: set[str] = set()
        waiting = [self._session.path]
        while waiting:
            directory = waiting.pop()
            for entry in self._files.scan(directory):
                path = os.path.join(directory, entry.name)
                if entry.is_symlink or layout.is_in_progress(entry.name):
                    continue
                if entry.is_dir and directory == self._session.path:
                    waiting.append(path)
                with contextlib.suppress(FileNotFoundError):  # moved since it was listed
                    if not self._files.is_private(self._files.stat(path)):
                        found.add(path)
        return found
