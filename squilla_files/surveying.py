"""What stands in a directory tree, and what its names, kinds and modes say by themselves. Synchronous, changes nothing.

Whatever cannot be looked at becomes a finding and hides nothing else.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from typing import Final, TypeVar

from squilla_files import layout
from squilla_files.errors import UnsafePathError
from squilla_files.files import DirEntryInfo, Files
from squilla_files.findings import (
    PLACEHOLDER,
    SPECIAL_FILE,
    SYMLINK,
    TEMPORARY,
    UNREADABLE,
    WRONG_MODE,
    Finding,
    finding,
)

_T = TypeVar("_T")

# The process lacks something, not the file: to go on would report every file of the store.
_OUT_OF_RESOURCES: Final = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}


class Survey:
    """What was looked at so far.

    Args:
        files: the disk.
        root: the store's root.

    Attributes:
        findings: what was found.
        paths: full paths of the regular files that may be read: unfinished ones of other programs are left out.
        directories: full paths of the directories.
        unfinished: full paths of what other programs have under way.
        vanished: whether something went while it was looked at.
    """

    def __init__(self, files: Files, root: str) -> None:
        self.findings: list[Finding] = []
        self.paths: list[str] = []
        self.directories: list[str] = []
        self.unfinished: list[str] = []
        self.vanished = False
        self._files = files
        self._root = root

    def relative(self, path: str) -> str:
        """Return *path* relative to the store's root, with `/`."""
        return os.path.relpath(path, self._root).replace(os.sep, "/")

    def add(self, kind: str, path: str, detail: str, *, session_key: str | None = None) -> None:
        """Add a finding about the whole of *path*."""
        self.findings.append(finding(kind, self.relative(path), detail, session_key=session_key))

    def attempt(self, path: str, look: Callable[[str], _T]) -> _T | None:
        """Return what *look* finds at *path*, None where it cannot be looked at.

        Raises:
            OSError: the process is out of descriptors or memory.
        """
        try:
            return look(path)
        except FileNotFoundError:
            self.vanished = True
        except UnsafePathError as error:
            self.add(SYMLINK if "link" in error.reason else SPECIAL_FILE, error.path, error.reason)
        except OSError as error:
            if error.errno in _OUT_OF_RESOURCES:
                raise
            self.add(UNREADABLE, path, os.strerror(error.errno) if error.errno else str(error))
        return None

    def read(self, path: str) -> bytes | None:
        """Return the content of a file, None where it cannot be read."""
        return self.attempt(path, self._files.read_file)

    def head(self, path: str, length: int) -> bytes | None:
        """Return the first bytes of a file, None where it cannot be read."""
        return self.attempt(path, lambda name: self._head(name, length))

    def _head(self, path: str, length: int) -> bytes:
        fd = self._files.open_read(path)
        try:
            return self._files.pread(fd, length, 0)
        finally:
            self._files.close(fd)

    def check_mode(self, path: str) -> os.stat_result | None:
        """Look whether a file or directory is private. Returns its status, None where that cannot be seen."""
        status = self.attempt(path, self._files.stat)
        if status is not None and not stat.S_ISLNK(status.st_mode) and not self._files.is_private(status):
            self.add(WRONG_MODE, path, f"mode {status.st_mode & 0o777:04o}")
        return status

    def list(self, path: str) -> list[DirEntryInfo]:
        """Return what stands in a directory, links, special files and what is under way left out and reported."""
        entries = self.attempt(path, self._files.scan) or []
        return [entry for entry in entries if self._passes(os.path.join(path, entry.name), entry)]

    def _passes(self, path: str, entry: DirEntryInfo) -> bool:
        hidden = layout.is_placeholder(entry.name)
        if entry.is_symlink:
            self.add(SYMLINK, path, "a symbolic link")
        elif layout.is_temporary(entry.name):
            self.add(TEMPORARY, path, "left by an operation that did not finish")
        elif hidden is not None:
            self.add(PLACEHOLDER, path, f"{hidden} is not on this machine")
        elif layout.is_in_progress(entry.name):
            self.unfinished.append(path)  # its program will finish it or clear it away
        elif not entry.is_dir and not entry.is_file:
            self.add(SPECIAL_FILE, path, "neither a file nor a directory")
        else:
            return True
        return False

    def walk(self, path: str) -> None:
        """Look at a directory, or a file, and at all that is below it."""
        waiting = [path]
        while waiting:
            path = waiting.pop()
            status = self.check_mode(path)
            if status is not None and stat.S_ISREG(status.st_mode):
                self.paths.append(path)
            elif status is not None and stat.S_ISDIR(status.st_mode):
                self.directories.append(path)
                waiting += [os.path.join(path, entry.name) for entry in self.list(path)]
