"""Every touch of the disk: small durable primitives behind one object, and the recipes made of them.

All disk access of the package goes through one `Files`. A test hands in another one that fails at the k-th call, writes
short, forgets what was not synced or kills the process; so each primitive is one step that may fail, and the recipes
(`ensure_dir`, `replace_file`, `remove_tree` and the checks) use nothing but primitives.

No primitive follows a symbolic link at the end of its path, but for `sync_dir`, which changes nothing. What it makes is
private: directories 0700 and files 0600, whatever the umask.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import sys
import time
from typing import Final, Literal, NamedTuple

import filelock

from squilla_files import layout
from squilla_files.errors import UnsafePathError

if sys.platform != "win32":
    import fcntl

Durability = Literal["full", "os"]

_FILE_MODE: Final = 0o600
_DIR_MODE: Final = 0o700
_PERMISSIONS: Final = 0o777

# O_NONBLOCK: opening a FIFO that somebody put in the store's way must not wait for its other end.
_OPEN_FLAGS: Final = sum(
    getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_CLOEXEC", "O_BINARY", "O_NOINHERIT", "O_NONBLOCK")
)
_REFUSED: Final = {
    errno.ELOOP: "is a symbolic link",
    errno.EMLINK: "is a symbolic link",  # what FreeBSD says for O_NOFOLLOW
    errno.EISDIR: "is not a regular file",
    errno.ENXIO: "is not a regular file",
}
_SYNC_UNSUPPORTED: Final = {errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOTTY}
_MODES_UNSUPPORTED: Final = {errno.EPERM, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}
_MOUNT_POINT_TAG: Final = 0xA0000003  # a Windows junction: a link in all but name

# An indexer or virus scanner holds a file for moments: two seconds in all, then the error is raised.
_RENAME_PAUSES: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8)


class DirEntryInfo(NamedTuple):
    """One name in a directory; a symbolic link (on Windows a junction, too) is neither directory nor file.

    Attributes:
        name: the name, without the directory.
        is_dir: a directory.
        is_file: a regular file.
        is_symlink: a symbolic link.
    """

    name: str
    is_dir: bool
    is_file: bool
    is_symlink: bool


class Files:
    """The disk, synchronous. Paths are absolute `str`.

    Args:
        durability: "full" syncs for real; with "os" `sync` and `sync_dir` do nothing, so that what was written
            survives the death of the process and not that of the machine.
    """

    windows: bool = sys.platform == "win32"

    def __init__(self, durability: Durability = "full") -> None:
        self.durability: Durability = durability
        # Directories whose names this process knows to be durable, with their inodes.
        self._settled: dict[str, int] = {}

    # --- primitives: descriptors -------------------------------------------------------------------------------

    def open_read(self, path: str) -> int:
        """Open a regular file for reading.

        Raises:
            UnsafePathError: a symbolic link or a special file stands there.
            OSError: it cannot be opened; FileNotFoundError where there is none.
        """
        return self._open(path, os.O_RDONLY)

    def open_append(self, path: str) -> int:
        """Open an existing regular file for `write` and `pread`; it is not made.

        Raises:
            UnsafePathError: a symbolic link or a special file stands there.
            OSError: it cannot be opened; FileNotFoundError where there is none.
        """
        return self._open(path, os.O_RDWR | self._append_flag)

    def create(self, path: str) -> int:
        """Make a file, mode 0600 whatever the umask, and open it for `write` and `pread`.

        Raises:
            OSError: it cannot be made; FileExistsError where anything has that name, be it a dangling link.

        Durability: the name is durable after `sync_dir` of its directory, the content after `sync`.
        """
        fd = os.open(path, os.O_RDWR | self._append_flag | os.O_CREAT | os.O_EXCL | _OPEN_FLAGS, _FILE_MODE)
        try:
            self._make_private(fd, os.fstat(fd), _FILE_MODE)
        except OSError:
            os.close(fd)
            raise
        return fd

    def close(self, fd: int) -> None:
        """Close a descriptor; a lock that is held through it is released."""
        os.close(fd)

    def write(self, fd: int, data: bytes) -> int:
        """Write at the end of the file with one system call and return how many bytes it took.

        Fewer than given is how a full disk shows itself first, without an error.

        Durability: durable after `sync`.
        """
        if self.windows:
            os.lseek(fd, 0, os.SEEK_END)
        return os.write(fd, data)

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        """Return at most *length* bytes from *offset*; fewer, or none, at the end of the file."""
        if not self.windows:
            return os.pread(fd, length, offset)
        os.lseek(fd, offset, os.SEEK_SET)
        return os.read(fd, length)

    def read_file(self, path: str) -> bytes:
        """Return the whole content of a regular file.

        Raises:
            UnsafePathError: a symbolic link or a special file stands there.
            OSError: it cannot be read; FileNotFoundError where there is none.
        """
        with os.fdopen(self._open(path, os.O_RDONLY), "rb", buffering=0) as file:
            return file.readall()

    def sync(self, fd: int) -> None:
        """Make the content of a file durable: fdatasync, F_FULLFSYNC on macOS, FlushFileBuffers on Windows.

        Raises:
            OSError: what was written since the last sync may be lost. Never try again on the same file: the kernel
                reports the failure once, and says all is well afterwards.
        """
        if self.durability == "full":
            self._flush(fd, data_only=True)

    def truncate(self, fd: int, size: int) -> None:
        """Set the size of a file in bytes; what is added is NUL."""
        os.ftruncate(fd, size)

    def fstat(self, fd: int) -> os.stat_result:
        """Return the status of an open file."""
        return os.fstat(fd)

    def lock(self, fd: int) -> bool:
        """Take the exclusive lock of the open file without waiting; False where another open file holds it.

        On Windows the lock is mandatory for the first byte of the file: others cannot read it meanwhile.
        """
        return filelock.lock_descriptor(fd, blocking=False)

    def unlock(self, fd: int) -> None:
        """Release the lock of the open file."""
        filelock.unlock_descriptor(fd)

    # --- primitives: names -------------------------------------------------------------------------------------

    def stat(self, path: str) -> os.stat_result:
        """Return the status of what *path* names, a symbolic link itself included.

        Raises:
            OSError: it cannot be seen; FileNotFoundError where there is none.
        """
        return os.lstat(path)

    def scan(self, path: str) -> list[DirEntryInfo]:
        """Return the names in a directory, sorted, with their kind and nothing else."""
        with os.scandir(path) as entries:
            return sorted(self._describe(entry) for entry in entries)

    def mkdir(self, path: str) -> None:
        """Make a directory, mode 0700 whatever the umask; its parent must exist.

        Durability: durable after `sync_dir` of the parent.
        """
        os.mkdir(path, _DIR_MODE)
        self._make_private(path, os.lstat(path), _DIR_MODE)

    def rename(self, src: str, dst: str) -> None:
        """Give a file or directory another name; a file that has the name is replaced, atomically.

        Where Windows refuses, because another program holds the file for a moment, it is tried again for two seconds.

        Durability: durable after `sync_dir` of both directories.
        """
        for pause in _RENAME_PAUSES if self.windows else ():
            try:
                return self._rename_once(src, dst)
            except PermissionError:
                self._pause(pause)
        return self._rename_once(src, dst)

    def unlink(self, path: str) -> None:
        """Remove a file, or a symbolic link itself."""
        os.unlink(path)

    def rmdir(self, path: str) -> None:
        """Remove an empty directory."""
        os.rmdir(path)

    def chmod(self, path: str, mode: int) -> None:
        """Set the mode of a file or directory; see `check_regular` and `check_directory` for what may stand there."""
        os.chmod(path, mode)

    def sync_dir(self, path: str) -> None:
        """Make the names in a directory durable; nothing on Windows, which has no such call."""
        if self.windows or self.durability != "full":
            return
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._flush(fd, data_only=False)
        except OSError as error:
            # Some network file systems sync names with the call that makes them and have no sync of directories.
            if error.errno not in _SYNC_UNSUPPORTED:
                raise
        finally:
            os.close(fd)

    # --- recipes: made of primitives only ----------------------------------------------------------------------

    def check_regular(self, path: str) -> os.stat_result:
        """Return the status of a regular file.

        Raises:
            UnsafePathError: a symbolic link, a directory or a special file stands there.
            OSError: it cannot be seen; FileNotFoundError where there is none.
        """
        status = self.stat(path)
        _refuse_link(path, status)
        if not stat.S_ISREG(status.st_mode):
            raise UnsafePathError(path, "is not a regular file")
        return status

    def check_directory(self, path: str) -> os.stat_result:
        """Return the status of a directory.

        Raises:
            UnsafePathError: a symbolic link or a file stands there.
            OSError: it cannot be seen; FileNotFoundError where there is none.
        """
        status = self.stat(path)
        _refuse_link(path, status)
        if not stat.S_ISDIR(status.st_mode):
            raise UnsafePathError(path, "is not a directory")
        return status

    def check_below(self, root: str, path: str) -> None:
        """See that *path*, which lies below *root*, does not lead through a link.

        Raises:
            UnsafePathError: a symbolic link or a file stands in place of a directory between the two.
            OSError: one cannot be seen; FileNotFoundError where one is missing.
        """
        directory = os.path.dirname(path)
        if directory != root:
            self.check_below(root, directory)
            self.check_directory(directory)

    def ensure_dir(self, path: str) -> None:
        """Make a directory, and those above it, where missing.

        Raises:
            UnsafePathError: a symbolic link or a file stands there.
            OSError: it cannot be made; those above it may have been.

        Durability: the directory is durable on return, whoever made it.
        """
        try:
            status = self.check_directory(path)
        except FileNotFoundError:
            parent = os.path.dirname(path)
            if parent == path:
                raise
            self.ensure_dir(parent)
            with contextlib.suppress(FileExistsError):  # another process made it; the check below says what it made
                self.mkdir(path)
            status = self.check_directory(path)
            self.sync_dir(parent)
        else:
            if self._settled.get(path) == status.st_ino:
                return
            # Who made it may have died, or failed, before its name was durable. A directory above it that may not even
            # be opened is none of the store's.
            with contextlib.suppress(PermissionError):
                self.sync_dir(os.path.dirname(path))
        self._settled[path] = status.st_ino

    def keep_private(self, path: str) -> None:
        """Take a file or directory back to 0600 or 0700 where a sync service or a copy gave it another mode.

        Raises:
            UnsafePathError: a symbolic link stands there; its target was not touched.
        """
        status = self.stat(path)
        _refuse_link(path, status)
        if not self.is_private(status):
            self.chmod(path, _DIR_MODE if stat.S_ISDIR(status.st_mode) else _FILE_MODE)

    def is_private(self, status: os.stat_result) -> bool:
        """Say whether a file has mode 0600, a directory 0700; always so on Windows, which has no such modes."""
        mode = _DIR_MODE if stat.S_ISDIR(status.st_mode) else _FILE_MODE
        return self.windows or status.st_mode & _PERMISSIONS == mode

    def write_all(self, fd: int, data: bytes) -> None:
        """Write all of *data* at the end of the file, with as many calls as it takes.

        Raises:
            OSError: some of it may have been written.

        Durability: durable after `sync`.
        """
        while data:
            written = self.write(fd, data)
            if written <= 0:
                raise OSError(errno.EIO, "a write took no bytes")
            data = data[written:]

    def replace_file(self, path: str, data: bytes) -> None:
        """Put a file of this content under *path*, whole or not at all, in place of one that is there.

        Raises:
            OSError: the old file stands as it was, or, where only the last sync failed, the content is in place but
                may not survive a power cut. No temporary file is left.

        Durability: durable on return.
        """
        directory = os.path.dirname(path)
        temporary = os.path.join(directory, layout.temporary_name(secrets.token_hex(8)))
        fd = self.create(temporary)
        try:
            try:
                self.write_all(fd, data)
                self.sync(fd)
            finally:
                self.close(fd)
            self.rename(temporary, path)
        except BaseException:
            # The first error is the one to report; a temporary file that stays is cleared away by the next repair.
            with contextlib.suppress(OSError):
                self.unlink(temporary)
            raise
        self.sync_dir(directory)

    def remove_tree(self, path: str) -> None:
        """Remove a directory with all that is in it, or a file; links are removed and never followed.

        What is gone already, because another process removes the same, is no error.

        Durability: not synced; a power cut may bring some of it back.
        """
        with contextlib.suppress(FileNotFoundError):
            status = self.stat(path)
            if _is_link(status) or not stat.S_ISDIR(status.st_mode):
                self.unlink(path)
                return
            for entry in self.scan(path):
                self.remove_tree(os.path.join(path, entry.name))
            self.rmdir(path)

    @property
    def _append_flag(self) -> int:
        # Windows emulates it, and `pread` moves the position there; `write` seeks to the end on its own.
        return 0 if self.windows else os.O_APPEND

    def _open(self, path: str, flags: int) -> int:
        if self.windows:
            self.check_regular(path)  # no O_NOFOLLOW there
        try:
            fd = os.open(path, flags | _OPEN_FLAGS)
        except OSError as error:
            if error.errno in _REFUSED:
                raise UnsafePathError(path, _REFUSED[error.errno]) from error
            raise
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise UnsafePathError(path, "is not a regular file")
        return fd

    def _flush(self, fd: int, *, data_only: bool) -> None:
        if sys.platform == "darwin":
            try:
                fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
            except OSError as error:
                if error.errno not in _SYNC_UNSUPPORTED:
                    raise
                os.fsync(fd)
        elif sys.platform == "linux" and data_only:
            os.fdatasync(fd)  # the size counts as data: what is needed to read it back
        else:
            os.fsync(fd)

    def _describe(self, entry: os.DirEntry[str]) -> DirEntryInfo:
        link = entry.is_symlink() or (self.windows and _is_link(entry.stat(follow_symlinks=False)))
        return DirEntryInfo(
            entry.name,
            is_dir=not link and entry.is_dir(follow_symlinks=False),
            is_file=not link and entry.is_file(follow_symlinks=False),
            is_symlink=link,
        )

    def _make_private(self, target: str | int, status: os.stat_result, mode: int) -> None:
        if self.windows or status.st_mode & _PERMISSIONS == mode:
            return
        try:
            os.chmod(target, mode)
        except OSError as error:
            # A file system without modes (FAT, exFAT): what it shows instead is reported by a check.
            if error.errno not in _MODES_UNSUPPORTED:
                raise

    _rename_once = staticmethod(os.replace)
    _pause = staticmethod(time.sleep)


def _is_link(status: os.stat_result) -> bool:
    return stat.S_ISLNK(status.st_mode) or getattr(status, "st_reparse_tag", 0) == _MOUNT_POINT_TAG


def _refuse_link(path: str, status: os.stat_result) -> None:
    if _is_link(status):
        raise UnsafePathError(path)
