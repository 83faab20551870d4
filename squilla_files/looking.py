"""What a glance at a session's directory shows: its files by name, size and time. Nothing is read. Synchronous.

A follower of a whole store begins with a glance at every session, and looks again now and then, because file systems
do not report every change.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

from squilla_files import layout
from squilla_files.deletions import Deletions
from squilla_files.files import Files
from squilla_files.layout import ARCHIVE
from squilla_files.placing import Marks, tail_digest

_INSIDE = (ARCHIVE, "summaries", "contexts")


@dataclass(frozen=True, slots=True)
class Glance:
    """One session's directory as it was seen."""

    sizes: dict[str, int]
    """Path below the directory, with `/`, of each file that may be a log → its size in bytes."""
    is_deleted: bool
    """Whether it has been deleted at some time."""
    signature: int
    """Changes when anything does that a subscriber could be told."""


class Looker:
    """Looks at the sessions of one store.

    Args:
        files: the disk.
        paths: the store's paths.
        deletions: the store's deletions.
    """

    def __init__(self, files: Files, paths: layout.Layout, deletions: Deletions) -> None:
        self._files = files
        self._paths = paths
        self._deletions = deletions

    def directories(self) -> list[str]:
        """Return the names of the directories of all sessions that are, or have been deleted.

        Raises:
            OSError: they cannot be listed.
        """
        try:
            entries = self._files.scan(self._paths.sessions)
        except FileNotFoundError:
            entries = []
        found = {e.name for e in entries if e.is_dir and layout.parse_session_dir_name(e.name) is not None}
        return sorted(found.union(self._deletions.all_names()))

    def glances(self, dir_names: Iterable[str]) -> dict[str, Glance]:
        """Look at some sessions; a directory that is not there is an empty one.

        Raises:
            OSError: one cannot be looked at.
        """
        deleted = self._deletions.all_names()
        return {dir_name: self._glance(dir_name, deleted.get(dir_name, ())) for dir_name in dir_names}

    def _glance(self, dir_name: str, deleted: tuple[str, ...]) -> Glance:
        sizes: dict[str, int] = {}
        stamps: list[object] = [deleted]
        self._look_into(self._paths.session(dir_name), "", sizes, stamps)
        return Glance(sizes, bool(deleted), hash(tuple(stamps)))

    def _look_into(self, path: str, prefix: str, sizes: dict[str, int], stamps: list[object]) -> None:
        try:
            entries = self._files.scan(path)
        except (FileNotFoundError, NotADirectoryError):
            return
        except PermissionError:
            # One session that is closed to this user must not end a watch of all others. What stands in it is seen as
            # soon as it is opened, and whoever follows it is told then.
            stamps.append((prefix, "closed"))
            return
        for entry in entries:
            name = entry.name
            if entry.is_dir:
                if not prefix and name in _INSIDE:
                    inside = os.path.join(path, name)
                    if name == ARCHIVE:
                        self._look_into(inside, f"{ARCHIVE}/", sizes, stamps)
                    else:
                        stamps.append((name, self._time_of(inside)))
                continue
            if not entry.is_file or layout.is_in_progress(name) or layout.parse_manifest_name(name) is not None:
                continue
            try:
                status = self._files.stat(os.path.join(path, name))
            except FileNotFoundError:
                continue  # moved meanwhile: the next look finds it
            sizes[prefix + name] = status.st_size
            stamps.append((prefix + name, status.st_size, status.st_mtime_ns, status.st_ino))

    def _time_of(self, path: str) -> int:
        try:
            return self._files.stat(path).st_mtime_ns
        except FileNotFoundError:
            return 0

    # --- marks -------------------------------------------------------------------------------------------------

    def marks(self, dir_name: str, glance: Glance) -> Marks:
        """Return what was seen as marks, the ends of the files not read yet."""
        files = tuple((name.rpartition("/")[2], size, b"") for name, size in sorted(glance.sizes.items()))
        deletions = self._deletions.read(dir_name) if glance.is_deleted else []
        return Marks(files, max((deletion.epoch for deletion in deletions), default=0))

    def ends(self, dir_name: str, marks: Marks) -> Marks:
        """Return *marks* with the ends of the files, so that one that is cut or replaced later shows.

        A file that is no more, or shorter, is left as it is: it cannot be found at its mark.
        """
        files = tuple((base, size, digest or self._end(dir_name, base, size)) for base, size, digest in marks.files)
        return Marks(files, marks.fence)

    def _end(self, dir_name: str, base: str, size: int) -> bytes:
        for directory in (self._paths.session(dir_name), self._paths.archive(dir_name)):
            try:
                return tail_digest(self._files, os.path.join(directory, base), size)
            except FileNotFoundError:
                continue
        return b""
