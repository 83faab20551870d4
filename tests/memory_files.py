"""A disk in memory that fails on request and can crash.

`MemoryFiles` keeps, besides what a process sees, what a power cut would leave: the content of a file counts as kept
after `sync`, a name after `sync_dir` of its directory. `crash` gives the disk as the next process finds it.
"""

from __future__ import annotations

import errno
import os
import random
import stat
from dataclasses import dataclass, field, replace
from typing import Literal

from faulty_files import Call, FaultyFiles, Stopped

from squilla_files.errors import UnsafePathError
from squilla_files.files import DirEntryInfo, Durability, Files

__all__ = ["Call", "FaultyFiles", "Keep", "MemoryFiles", "Stopped"]

_PAGE = 512
_EPOCH_NS = 1_764_547_200_000_000_000

Keep = Literal["all", "synced", "random"]


@dataclass
class _Inode:
    """A file, directory or link: what a process sees, and of a file what a power cut leaves."""

    ino: int
    mode: int
    mtime_ns: int
    content: bytes = b""
    entries: dict[str, int] = field(default_factory=dict)
    durable: bytes = b""
    dirty: list[tuple[int, int]] = field(default_factory=list)
    low: int = 0  # the smallest size since the last sync: durable bytes beyond it were cut off

    def resize(self, size: int) -> None:
        if size > len(self.content):
            self.dirty.append((len(self.content), size))
        self.content = self.content[:size].ljust(size, b"\0")
        self.low = min(self.low, size)
        self.dirty = [(start, min(end, size)) for start, end in self.dirty if start < size]

    def extend(self, data: bytes) -> None:
        self.dirty.append((len(self.content), len(self.content) + len(data)))
        self.content += data

    def written(self) -> bytes:
        """What writing the dirty pages back gives; pages that a failed sync gave up are NUL."""
        result = bytearray(self.durable[: self.low].ljust(len(self.content), b"\0"))
        for start, end in self.dirty:
            result[start:end] = self.content[start:end]
        return bytes(result)

    def settle(self, data: bytes) -> None:
        self.durable, self.dirty, self.low = data, [], len(data)

    def survivor(self, rng: random.Random) -> bytes:
        """What a power cut may leave, where the kernel had begun to write on its own."""
        full = self.written()
        pairs = enumerate(zip(self.durable, full, strict=False))
        kept = next((at for at, (old, new) in pairs if old != new), min(len(self.durable), len(full)))
        tail = full[kept:]
        cut = rng.randint(0, len(tail))
        pages = (tail[at : at + _PAGE] for at in range(0, len(tail), _PAGE))
        holes = b"".join(page if rng.random() < 0.5 else bytes(len(page)) for page in pages)
        choices = [self.durable, full, full[: kept + cut], full[:kept] + bytes(len(tail)), full[:kept] + holes]
        return rng.choice(choices)


@dataclass
class _Change:
    """One change of names; *waits* are the directories that must be synced before it is durable."""

    ino: int
    remove: tuple[int, str] | None
    add: tuple[int, str] | None
    waits: set[int]
    dirs: frozenset[int]
    needs_empty: bool = False

    def needs(self, earlier: _Change) -> bool:
        """A file's names change in order, and a directory goes only after what was in it went."""
        return earlier.ino == self.ino or (self.needs_empty and self.ino in earlier.dirs)

    def apply(self, names: dict[int, dict[str, int]]) -> None:
        if self.remove is not None:
            directory, name = self.remove
            if names.setdefault(directory, {}).get(name) == self.ino:
                del names[directory][name]
        if self.add is not None:
            directory, name = self.add
            names.setdefault(directory, {})[name] = self.ino


@dataclass
class _Disk:
    inodes: dict[int, _Inode]
    names: dict[int, dict[str, int]] = field(default_factory=dict)  # durable, before *changes*
    changes: list[_Change] = field(default_factory=list)
    locked: dict[int, int] = field(default_factory=dict)  # inode -> descriptor
    ticks: int = 0
    last_fd: int = 1000

    def copy(self) -> _Disk:
        """A disk of its own, by hand: a general deep copy would cost most of the time of tests that crash often."""
        inodes = {
            ino: replace(inode, entries=dict(inode.entries), dirty=list(inode.dirty))
            for ino, inode in self.inodes.items()
        }
        names = {ino: dict(listed) for ino, listed in self.names.items()}
        changes = [replace(change, waits=set(change.waits)) for change in self.changes]
        return replace(self, inodes=inodes, names=names, changes=changes, locked=dict(self.locked))

    def tick(self) -> int:
        self.ticks += 1
        return _EPOCH_NS + self.ticks * 1000


class _MemoryDisk(Files):
    """The model without faults."""

    def __init__(self, durability: Durability = "full", disk: _Disk | None = None) -> None:
        super().__init__(durability)
        root = _Inode(1, stat.S_IFDIR | 0o700, _EPOCH_NS)
        self._disk = disk or _Disk({1: root})
        self._open_files: dict[int, tuple[int, bool]] = {}

    def _find(self, path: str) -> _Inode:
        inode = self._disk.inodes[1]
        for part in _parts(path):
            if stat.S_ISLNK(inode.mode):
                inode = self._find(inode.content.decode())
            if not stat.S_ISDIR(inode.mode):
                raise _os_error(errno.ENOTDIR, path)
            if part not in inode.entries:
                raise _os_error(errno.ENOENT, path)
            inode = self._disk.inodes[inode.entries[part]]
        return inode

    def _place(self, path: str) -> tuple[_Inode, str]:
        *above, name = _parts(path)
        parent = self._find("/" + "/".join(above))
        if stat.S_ISLNK(parent.mode):
            parent = self._find(parent.content.decode())
        if not stat.S_ISDIR(parent.mode):
            raise _os_error(errno.ENOTDIR, path)
        return parent, name

    def _regular(self, path: str) -> _Inode:
        inode = self._find(path)
        if stat.S_ISLNK(inode.mode):
            raise UnsafePathError(path)
        if not stat.S_ISREG(inode.mode):
            raise UnsafePathError(path, "is not a regular file")
        return inode

    def _behind(self, fd: int, *, writing: bool = False) -> _Inode:
        ino, writable = self._open_files.get(fd, (0, False))
        if not ino or (writing and not writable):
            raise _os_error(errno.EBADF, "")
        return self._disk.inodes[ino]

    def _descriptor(self, inode: _Inode, *, writable: bool) -> int:
        self._disk.last_fd += 1
        self._open_files[self._disk.last_fd] = (inode.ino, writable)
        return self._disk.last_fd

    def _change(self, ino: int, remove: tuple[_Inode, str] | None, add: tuple[_Inode, str] | None) -> None:
        for place in (remove, add):
            if place is not None:
                place[0].mtime_ns = self._disk.tick()
        if remove is not None:
            del remove[0].entries[remove[1]]
        if add is not None:
            add[0].entries[add[1]] = ino
        dirs = frozenset(place[0].ino for place in (remove, add) if place is not None)
        gone = add is None and stat.S_ISDIR(self._disk.inodes[ino].mode)
        removed = None if remove is None else (remove[0].ino, remove[1])
        added = None if add is None else (add[0].ino, add[1])
        self._disk.changes.append(_Change(ino, removed, added, set(dirs), dirs, gone))

    def _make(self, path: str, mode: int, content: bytes = b"") -> _Inode:
        parent, name = self._place(path)
        if name in parent.entries:
            raise _os_error(errno.EEXIST, path)
        inode = _Inode(max(self._disk.inodes) + 1, mode, self._disk.tick(), content)
        self._disk.inodes[inode.ino] = inode
        self._change(inode.ino, None, (parent, name))
        return inode

    def open_read(self, path: str) -> int:
        return self._descriptor(self._regular(path), writable=False)

    def open_append(self, path: str) -> int:
        return self._descriptor(self._regular(path), writable=True)

    def create(self, path: str) -> int:
        return self._descriptor(self._make(path, stat.S_IFREG | 0o600), writable=True)

    def close(self, fd: int) -> None:
        self._release(fd)
        del self._open_files[fd]

    def write(self, fd: int, data: bytes) -> int:
        inode = self._behind(fd, writing=True)
        inode.extend(bytes(data))
        inode.mtime_ns = self._disk.tick()
        return len(data)

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        return self._behind(fd).content[offset : offset + length]

    def read_file(self, path: str) -> bytes:
        return self._regular(path).content

    def sync(self, fd: int) -> None:
        inode = self._behind(fd)
        if self.durability == "full":
            inode.settle(inode.written())

    def truncate(self, fd: int, size: int) -> None:
        inode = self._behind(fd, writing=True)
        inode.resize(size)
        inode.mtime_ns = self._disk.tick()

    def fstat(self, fd: int) -> os.stat_result:
        return _status(self._behind(fd))

    def lock(self, fd: int) -> bool:
        return self._disk.locked.setdefault(self._behind(fd).ino, fd) == fd

    def unlock(self, fd: int) -> None:
        self._release(fd)

    def _release(self, fd: int) -> None:
        inode = self._behind(fd)
        if self._disk.locked.get(inode.ino) == fd:
            del self._disk.locked[inode.ino]

    def stat(self, path: str) -> os.stat_result:
        return _status(self._find(path))

    def scan(self, path: str) -> list[DirEntryInfo]:
        inode = self._find(path)
        if not stat.S_ISDIR(inode.mode):
            raise _os_error(errno.ENOTDIR, path)
        modes = ((name, self._disk.inodes[ino].mode) for name, ino in sorted(inode.entries.items()))
        return [DirEntryInfo(name, stat.S_ISDIR(m), stat.S_ISREG(m), stat.S_ISLNK(m)) for name, m in modes]

    def mkdir(self, path: str) -> None:
        self._make(path, stat.S_IFDIR | 0o700)

    def rename(self, src: str, dst: str) -> None:
        source, target, inode = self._place(src), self._place(dst), self._find(src)
        replaced = target[0].entries.get(target[1])
        if replaced == inode.ino:
            return
        if stat.S_ISDIR(inode.mode) and _parts(dst)[: len(_parts(src))] == _parts(src):
            raise _os_error(errno.EINVAL, dst)
        if replaced is not None:
            old = self._disk.inodes[replaced]
            if stat.S_ISDIR(old.mode) != stat.S_ISDIR(inode.mode):
                raise _os_error(errno.EISDIR if stat.S_ISDIR(old.mode) else errno.ENOTDIR, dst)
            if old.entries:
                raise _os_error(errno.ENOTEMPTY, dst)
        self._change(inode.ino, source, target)

    def unlink(self, path: str) -> None:
        inode = self._find(path)
        if stat.S_ISDIR(inode.mode):
            raise _os_error(errno.EISDIR, path)
        self._change(inode.ino, self._place(path), None)

    def rmdir(self, path: str) -> None:
        inode = self._find(path)
        if not stat.S_ISDIR(inode.mode):
            raise _os_error(errno.ENOTDIR, path)
        if inode.entries:
            raise _os_error(errno.ENOTEMPTY, path)
        self._change(inode.ino, self._place(path), None)

    def chmod(self, path: str, mode: int) -> None:
        inode = self._find(path)
        inode.mode = stat.S_IFMT(inode.mode) | mode

    def sync_dir(self, path: str) -> None:
        directory = self._find(path)
        if self.durability != "full":
            return
        changes = self._disk.changes
        for change in changes:
            change.waits.discard(directory.ino)
        # A change that is durable makes durable what it rests upon.
        for at in range(len(changes) - 1, -1, -1):
            if not changes[at].waits:
                for earlier in changes[:at]:
                    if changes[at].needs(earlier):
                        earlier.waits.clear()
        while changes and not changes[0].waits:
            changes.pop(0).apply(self._disk.names)


class MemoryFiles(FaultyFiles, _MemoryDisk):
    """A disk in memory with a fault plan, and with `crash`. The root ``/`` exists."""

    def __init__(self, durability: Durability = "full", *, disk: _Disk | None = None) -> None:
        FaultyFiles.__init__(self, durability)
        _MemoryDisk.__init__(self, durability, disk)

    def another_process(self) -> MemoryFiles:
        """A second process at the same disk, with descriptors, locks and faults of its own."""
        other = MemoryFiles(self.durability, disk=self._disk)
        other._guard = self._guard
        return other

    def crash(self, keep: Keep, rng: random.Random | None = None) -> MemoryFiles:
        """The disk as the next process finds it; this one is left as it is.

        "all": the process died. "synced": a power cut, nothing unsynced survives. "random": a power cut, and *rng* says
        what of the unsynced survives: a file's tail whole, in part or as NUL; each change of a name wholly or not.
        """
        with self._guard:
            disk = self._disk.copy()
        disk.locked.clear()
        if keep != "all":
            _cut_power(disk, rng if keep == "random" else None)
        return MemoryFiles(self.durability, disk=disk)

    def _lose_unsynced(self, fd: int) -> None:
        # After an error the kernel holds the pages for clean: it reports once and writes them never.
        self._behind(fd).dirty = []

    def put(self, path: str, data: bytes) -> None:
        """Lay a file down as another program does, durably and without a logged call; directories are made."""
        made = _MemoryDisk("full", self._disk)
        with self._guard:
            made.ensure_dir(os.path.dirname(path))
            made.replace_file(path, data)

    def symlink(self, target: str, path: str) -> None:
        """Make a symbolic link."""
        self._make(path, stat.S_IFLNK | 0o777, target.encode())

    def tree(self, path: str = "/") -> dict[str, bytes]:
        """Every file below *path* with its content, without a logged call."""
        found: dict[str, bytes] = {}
        for name, ino in sorted(self._find(path).entries.items()):
            inode, below = self._disk.inodes[ino], f"{path.rstrip('/')}/{name}"
            if stat.S_ISDIR(inode.mode):
                found |= self.tree(below)
            else:
                found[below] = inode.content
        return found


def _cut_power(disk: _Disk, rng: random.Random | None) -> None:
    for inode in disk.inodes.values():
        inode.content = inode.durable if rng is None else inode.survivor(rng)
        inode.settle(inode.content)
    lost: list[_Change] = []
    for change in disk.changes:
        rests = any(change.needs(earlier) for earlier in lost)
        if change.waits and (rng is None or rests or rng.random() < 0.5):
            lost.append(change)
        else:
            change.apply(disk.names)
    disk.changes.clear()
    for inode in disk.inodes.values():
        inode.entries = dict(disk.names.get(inode.ino, {}))


def _parts(path: str) -> list[str]:
    return [part for part in os.path.splitdrive(path)[1].replace("\\", "/").split("/") if part]


def _os_error(code: int, path: str) -> OSError:
    return OSError(code, os.strerror(code), path)


def _status(inode: _Inode) -> os.stat_result:
    seconds = inode.mtime_ns // 1_000_000_000
    size = len(inode.content)
    times = {"st_atime_ns": inode.mtime_ns, "st_mtime_ns": inode.mtime_ns, "st_ctime_ns": inode.mtime_ns}
    return os.stat_result((inode.mode, inode.ino, 1, 1, 0, 0, size, seconds, seconds, seconds), times)
