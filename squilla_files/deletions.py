"""The deletions of a store: one small file each in `deleted/` (FORMAT.md, "Deletions")."""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
import time
from collections import defaultdict
from collections.abc import Mapping

from squilla_files import layout
from squilla_files.codec import decode_document, encode_document
from squilla_files.errors import CorruptFileError, UnsupportedFormatError
from squilla_files.files import Files
from squilla_files.freshness import Freshness
from squilla_files.journal import FORMAT, later_version
from squilla_files.timeline import Deletion


class Deletions:
    """All deletions of a store, read when the directory changes and kept by session directory."""

    def __init__(self, files: Files, paths: layout.Layout) -> None:
        self._files = files
        self._paths = paths
        self._fresh = Freshness()
        self._names: dict[str, tuple[str, ...]] = {}
        self._filled: set[str] = set()
        self._read: dict[str, Deletion | None] = {}
        self._mutex = threading.Lock()

    def names(self, dir_name: str) -> tuple[str, ...]:
        """Return the names of the files that record deletions of a session, sorted.

        Raises:
            OSError: the directory cannot be listed.
        """
        with self._mutex:
            self._list()
            return self._names.get(dir_name, ())

    def all_names(self) -> Mapping[str, tuple[str, ...]]:
        """Return directory name → the names of the files that record deletions of that session, for all sessions."""
        with self._mutex:
            self._list()
            return self._names

    def read(self, dir_name: str) -> list[Deletion]:
        """Return the deletions of a session.

        Raises:
            CorruptFileError: a file cannot be understood. A deletion that cannot be read is not taken for none.
            UnsupportedFormatError: a later major version wrote one.
            UnsafePathError: a symbolic link or a directory has the name of one.
            OSError: it cannot be read.
        """
        found = []
        for name in self.names(dir_name):
            deletion = self._read.get(name)
            if deletion is None:
                path = os.path.join(self._paths.deleted, name)
                document = decode_document(self._files.read_file(path))
                version = later_version(document) if document is not None else None
                if version is not None:
                    raise UnsupportedFormatError(path, version)
                deletion = Deletion.read(document) if document is not None else None
                if deletion is None:
                    raise CorruptFileError(path, 0, "not a deletion")
                self._read[name] = deletion
            found.append(deletion)
        return found

    def record(self, dir_name: str, *, session_key: str, device: str, at: int, deletion: Deletion) -> None:
        """Write the file that commits a deletion.

        Durability: the deletion is durable on return, whatever is left of the session's directory.
        """
        document: dict[str, object] = {
            "format": FORMAT,
            "session_key": session_key,
            "device": device,
            "deleted_at": at,
            "epoch": deletion.epoch,
        }
        if deletion.generation != deletion.epoch - 1:
            document["generation"] = deletion.generation
        document["seen"] = [list(mark) for mark in deletion.seen]
        self._files.ensure_dir(self._paths.deleted)
        path = os.path.join(self._paths.deleted, layout.deletion_name(dir_name, secrets.token_hex(8)))
        try:
            self._files.replace_file(path, encode_document(document))
        except OSError:
            # Where only the last sync failed the file stands there already, and nobody was told that it does.
            with contextlib.suppress(OSError):
                self._files.unlink(path)
            raise
        with self._mutex:
            self._fresh.forget()

    def _list(self) -> None:
        path = self._paths.deleted
        try:
            status = self._files.check_directory(path)
        except FileNotFoundError:
            # It may come back with the status that it had.
            self._fresh.forget()
            self._names = {}
            return
        if self._fresh.same(status):
            return
        looked_ns = time.time_ns()
        names: dict[str, list[str]] = defaultdict(list)
        empty = False
        for entry in self._files.scan(path):
            parsed = layout.parse_deletion_name(entry.name)
            if parsed is None:
                continue
            # What is no file is refused when it is read: it is not to be taken for no deletion.
            if not entry.is_file or self._has_content(entry.name):
                names[parsed.dir_name].append(entry.name)
            else:
                empty = True
        self._names = {dir_name: tuple(listed) for dir_name, listed in names.items()}
        self._fresh.saw(status, looked_ns)
        if empty:
            self._fresh.forget()  # its content may still come, and no directory shows that

    def _has_content(self, name: str) -> bool:
        """Whether there is a deletion, or only the name of one: on its way, or what a power cut left of none."""
        if name not in self._filled:
            try:
                if self._files.stat(os.path.join(self._paths.deleted, name)).st_size:
                    self._filled.add(name)
            except FileNotFoundError:
                return False
        return name in self._filled
