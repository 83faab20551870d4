"""All sessions of a store, by what their directories say (FORMAT.md, "Reading").

A listing looks at every session directory, but reads only those that changed since it last looked: the rest it knows by
the times and sizes of their files. A session that cannot be read never hides the others.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from squilla_files import layout
from squilla_files.codec import decode_line
from squilla_files.deletions import Deletions
from squilla_files.devices import Devices
from squilla_files.errors import CorruptManifestError, SquillaFilesError
from squilla_files.files import Files
from squilla_files.freshness import Freshness, Stamp, stamp_of
from squilla_files.journal import starts_log
from squilla_files.keys import canonicalize_session_key
from squilla_files.layout import ARCHIVE
from squilla_files.manifest import Manifest
from squilla_files.models import STORED_DEFAULTS, SessionNode
from squilla_files.session_dir import SessionDir, node_of

_FIRST_LINE_BYTES = 4096
# Logs move while others look: a session of which one is gone is looked at again this often.
_LOOKS = 4
_DEFAULTS: Mapping[str, Any] = STORED_DEFAULTS[SessionNode]


@dataclass(slots=True)
class Listed:
    """One session as it was last seen."""

    path: str
    """The full path of its directory."""
    key: str
    """The canonical key."""
    exists: bool
    """Whether there is a session: after a deletion there may be none."""
    epoch: int
    """Its epoch."""
    values: dict[str, Any]
    """Its fields and counters, those with their default left out."""
    session_ids: tuple[str, ...]
    """Every session id that the present generation has had."""
    live: int
    """Number of live entries."""
    directory: Freshness
    """The status of the directory under which it was read."""
    archive: Freshness | None
    """That of `archive/`, None where there is none."""
    stamps: dict[str, Stamp]
    """Full path of each log → the status under which it was read."""
    deletions: tuple[str, ...]
    """The deletions that were taken into account."""

    def get(self, name: str) -> Any:
        """Return the value of a field or counter."""
        return self.values.get(name, _DEFAULTS[name])

    def node(self) -> SessionNode:
        """Return the session as a record of its own."""
        return node_of(self.key, self.epoch, self.values)


class Catalog:
    """All sessions of one store.

    Args:
        files: the disk.
        paths: the store's paths.
        deletions: the store's deletions.
        devices: this machine's device names.
        directory_of: gives the directory of the session with a key, read already or not.

    Attributes:
        problems: directory name → why it could not be read when it was last looked at.
    """

    def __init__(
        self,
        files: Files,
        paths: layout.Layout,
        deletions: Deletions,
        devices: Devices,
        directory_of: Callable[[str], SessionDir],
    ) -> None:
        self._files = files
        self._paths = paths
        self._deletions = deletions
        self._devices = devices
        self._directory_of = directory_of
        self._known: dict[str, Listed] = {}
        self._mutex = threading.Lock()
        self.problems: dict[str, Exception] = {}

    def sessions(self) -> list[Listed]:
        """Return every session that exists and can be read, in no order that means anything.

        Raises:
            OSError: the directory of sessions cannot be listed.
        """
        with self._mutex:
            # What belongs to this machine is needed for each of them: where it cannot be read, none is passed over.
            self._devices.known()
            found = []
            deleted = self._deletions.all_names()
            for dir_name in self.directories():
                listed = self._current(dir_name, deleted.get(dir_name, ()))
                if listed is not None and listed.exists:
                    found.append(listed)
            return found

    def find(self, key: str) -> Listed | None:
        """Return the session under the canonical *key*, None where there is none.

        Raises:
            OSError: something cannot be read: that is never taken for none.
            SquillaFilesError: something that is read cannot be understood.
        """
        dir_name = layout.session_dir_name(key)
        with self._mutex:
            try:
                self._files.check_directory(self._paths.sessions)
                self._files.check_directory(self._paths.session(dir_name))
            except FileNotFoundError:
                return None
            listed = self._current(dir_name, self._deletions.names(dir_name), key)
            if listed is None and dir_name in self.problems:
                raise self.problems[dir_name]
            return listed if listed is not None and listed.exists else None

    def directories(self) -> list[str]:
        """Return the names of all session directories, sorted; other things that lie there are left out."""
        try:
            self._files.check_directory(self._paths.sessions)
            entries = self._files.scan(self._paths.sessions)
        except FileNotFoundError:
            return []
        return [e.name for e in entries if e.is_dir and layout.parse_session_dir_name(e.name) is not None]

    def _current(self, dir_name: str, deletions: tuple[str, ...], key: str | None = None) -> Listed | None:
        error: Exception
        known = self._known.get(dir_name)
        for _ in range(_LOOKS):
            try:
                if known is None or known.deletions != deletions or not self._unchanged(known):
                    known = self._look(dir_name, key)
            except FileNotFoundError as moved:
                error = moved  # sealed while it was looked at
                if known is not None:
                    known.directory.forget()
                continue
            except (OSError, SquillaFilesError) as problem:
                error = problem
                break
            self.problems.pop(dir_name, None)
            if known is not None:
                self._known[dir_name] = known
            return known
        self.problems[dir_name] = error
        if known is not None:
            known.directory.forget()
        return None

    def _unchanged(self, known: Listed) -> bool:
        stat = self._files.stat
        if not known.directory.same(stat(known.path)):
            return False
        if known.archive is not None and not known.archive.same(stat(os.path.join(known.path, ARCHIVE))):
            return False
        return all(stamp_of(stat(log)) == stamp for log, stamp in known.stamps.items())

    def _look(self, dir_name: str, key: str | None) -> Listed | None:
        """Read a session, from its manifest where that vouches for it."""
        path = os.path.join(self._paths.sessions, dir_name)
        directory, archive = Freshness(), None
        directory.saw(self._files.check_directory(path), time.time_ns())
        try:
            archived = self._files.check_directory(os.path.join(path, ARCHIVE))
            archive = Freshness()
            archive.saw(archived, time.time_ns())
        except FileNotFoundError:
            pass
        # Three ways, the cheapest first: a listing of the directory costs as much as all the rest.
        known = self._known.get(dir_name)
        if key is None:
            key = known.key if known is not None else self._key_in_manifest(dir_name) or self.key_of(dir_name)
        if key is None:
            return None
        session = self._directory_of(key)
        with session.mutex:
            manifest = self._vouched(session)
            if manifest is None:
                session.refresh()
                manifest = session.checkpoint("")
            stamps = {
                os.path.join(path, mark.name): stamp_of(self._files.stat(os.path.join(path, mark.name)))
                for mark in manifest.logs
            }
        # Something that was written between reading and looking: it is read the next time.
        if any(stamps[os.path.join(path, mark.name)][1] != mark.size for mark in manifest.logs):
            directory.forget()
        return Listed(
            path,
            key,
            manifest.exists,
            # It does not fall, though the log that raised it may be away.
            max(manifest.epoch, known.epoch if known is not None else 0),
            manifest.session,
            manifest.session_ids,
            manifest.live,
            directory,
            archive,
            stamps,
            manifest.deletions,
        )

    def _vouched(self, session: SessionDir) -> Manifest | None:
        """Return this device's manifest if every log still is as it was read, and nothing else came."""
        if session.is_read:
            return None
        try:
            manifest = session.read_manifest()
        except CorruptManifestError:
            return None  # `verify` reports it; the logs are read instead
        if manifest is None or manifest.session_key != session.key:
            return None
        if manifest.deletions != self._deletions.names(session.dir_name) or not session.is_as_marked(manifest.logs):
            return None
        return manifest

    def _key_in_manifest(self, dir_name: str) -> str | None:
        """Return the key that this device's manifest names, None where another way must be found."""
        device = self._devices.known()
        if device is None:
            return None
        path = os.path.join(self._paths.sessions, dir_name, layout.manifest_name(device))
        try:
            document = decode_line(self._files.read_file(path))
        except FileNotFoundError:
            return None
        return _fitting_key(document, dir_name)

    def key_of(self, dir_name: str) -> str | None:
        """Return the key of the session in a directory; None where it holds none, or that of another key.

        Raises:
            OSError: something cannot be read.
        """
        path = os.path.join(self._paths.sessions, dir_name)
        for directory in (path, os.path.join(path, ARCHIVE)):
            try:
                entries = self._files.scan(directory)
            except FileNotFoundError:
                continue
            for entry in entries:
                if not entry.is_file or layout.is_in_progress(entry.name):
                    continue
                key = _fitting_key(self._first_line(os.path.join(directory, entry.name)), dir_name)
                if key is not None:
                    return key
        return None

    def _first_line(self, path: str) -> dict[str, Any] | None:
        """Return the object in the first line of a log, None where the file is none."""
        fd = self._files.open_read(path)
        try:
            head = self._files.pread(fd, _FIRST_LINE_BYTES, 0)
            if not starts_log(head):
                return None
            # A log that continues another names all the lines that it carries.
            while b"\n" not in head:
                more = self._files.pread(fd, len(head), len(head))
                if not more:
                    break
                head += more
        finally:
            self._files.close(fd)
        return decode_line(head.partition(b"\n")[0])


def _fitting_key(document: dict[str, Any] | None, dir_name: str) -> str | None:
    """Return the session key in *document* if it is that of the directory."""
    key = document.get("session_key") if document is not None else None
    if type(key) is str and canonicalize_session_key(key) == key and layout.session_dir_name(key) == dir_name:
        return key
    return None
