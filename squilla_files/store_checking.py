"""What is wrong with a store, its sessions' directories aside. Synchronous, takes no lock, and changes nothing."""

from __future__ import annotations

import os
from typing import Final

from squilla_files import layout
from squilla_files.codec import decode_document
from squilla_files.errors import CorruptManifestError, UnsupportedFormatError
from squilla_files.files import Files
from squilla_files.findings import (
    CORRUPT_DELETION,
    CORRUPT_DOCUMENT,
    FOREIGN,
    LATER_FORMAT,
    STORE_CORRUPT,
    STORE_MISSING,
    TRASH,
    Finding,
)
from squilla_files.journal import later_version
from squilla_files.store_file import is_store
from squilla_files.surveying import Survey
from squilla_files.timeline import Deletion

_LOCAL: Final = ".local"


class StoreCheck:
    """One look at a store.

    Attributes:
        findings: what was found, in no order that means anything.
        directories: the names of the directories that may hold a session, sorted.
    """

    def __init__(self, files: Files, paths: layout.Layout) -> None:
        self.directories: list[str] = []
        self._files = files
        self._paths = paths
        self._survey = Survey(files, paths.root)
        self._look()

    @property
    def findings(self) -> list[Finding]:
        """What was found."""
        return self._survey.findings

    def _look(self) -> None:
        survey, paths = self._survey, self._paths
        if survey.check_mode(paths.root) is None:
            return  # no store yet
        looks = {"store.json": self._check_store_file, "sessions": self._check_sessions}
        entries = {entry.name: entry for entry in survey.list(paths.root)}
        for name, entry in entries.items():
            path = os.path.join(paths.root, name)
            if name in looks:
                survey.check_mode(path)
                looks[name]()
            elif name in ("archives", "deleted") and entry.is_dir:
                survey.walk(path)
            else:
                survey.add(FOREIGN, path, "no part of a store")
        if "store.json" not in entries and self.directories:
            survey.add(STORE_MISSING, paths.store_file, "there are sessions, and no description of the store")
        self._check_local()
        for path in survey.paths:
            parent = os.path.dirname(path)
            if parent == paths.deleted:
                self._check_deletion(path)
            elif parent == paths.archives or path.startswith((paths.devices, paths.memory)):
                self._check_document(path)

    def _check_store_file(self) -> None:
        path = self._paths.store_file
        try:
            self._survey.attempt(path, lambda _: is_store(self._files, self._paths))
        except CorruptManifestError as error:
            self._survey.add(STORE_CORRUPT, path, error.reason)
        except UnsupportedFormatError as error:
            self._survey.add(LATER_FORMAT, path, f"written by a later version of the format: {error.version!r}")

    def _check_sessions(self) -> None:
        for entry in self._survey.list(self._paths.sessions):
            path = os.path.join(self._paths.sessions, entry.name)
            if entry.is_dir:
                self.directories.append(entry.name)
            else:
                self._survey.check_mode(path)
                self._survey.add(FOREIGN, path, "a file among the directories of sessions")

    def _check_local(self) -> None:
        survey, paths = self._survey, self._paths
        root = next((e for e in survey.attempt(paths.root, self._files.scan) or [] if e.name == _LOCAL), None)
        if root is None:
            return
        if not root.is_dir:
            survey.attempt(paths.local, self._files.check_directory)
            return
        survey.walk(paths.local)
        if paths.trash in survey.directories:
            for entry in survey.attempt(paths.trash, self._files.scan) or []:
                survey.add(TRASH, os.path.join(paths.trash, entry.name), "left of a session that was deleted")

    def _check_deletion(self, path: str) -> None:
        parsed = layout.parse_deletion_name(os.path.basename(path))
        if parsed is None:
            self._survey.add(FOREIGN, path, "its name is not that of a deletion")
        elif parsed.dir_name in self.directories:
            return  # found with the session
        elif (data := self._survey.read(path)) is not None:
            document = decode_document(data)
            if document is not None and later_version(document) is not None:
                version = document["format"]
                self._survey.add(LATER_FORMAT, path, f"written by a later version of the format: {version!r}")
            elif document is None or Deletion.read(document) is None:
                self._survey.add(CORRUPT_DELETION, path, "not a deletion")

    def _check_document(self, path: str) -> None:
        data = self._survey.read(path)
        if data is not None and decode_document(data) is None:
            self._survey.add(CORRUPT_DOCUMENT, path, "not a JSON object")
