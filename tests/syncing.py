"""A file-sync service that does whatever one may do: single files, in any order, and never more than it must.

It keeps a version for every path on every device, as Syncthing does: a vector of how often each device changed it. What
two devices changed at the same time is a conflict; one of the two contents gets the name, the other a name of its own.
"""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from squilla_files.layout import is_in_progress, parse_log_name

Version = Counter[str]
TICK_NS = 20_000_000


@dataclass
class Held:
    """What the service knows of a path on one device.

    Attributes:
        version: how often each device changed it.
        content: what it put or found there, None where the file is absent.
        under_way: whether the content is not that of the version, because the rest still has to come.
    """

    version: Version = field(default_factory=Counter)
    content: bytes | None = None
    under_way: bool = False


def names(root: str) -> Iterator[os.DirEntry[str]]:
    """Every file of a store, without what is local to a machine or under way."""
    with os.scandir(root) as entries:
        for entry in entries:
            if entry.is_dir():
                if entry.name != ".local":
                    yield from names(entry.path)
            elif not is_in_progress(entry.name):
                yield entry


class Service:
    """The service, and a witness: it notes who wrote which file, and that logs do nothing but grow.

    Attributes:
        faults: what devices did to files that no device may do.
        lenient: whether logs may shrink: a disk was restored to a state that its device takes for the present one.
    """

    def __init__(self) -> None:
        self.roots: list[Path] = []
        self.held: list[dict[str, Held]] = []
        self.faults: list[str] = []
        self.lenient = False
        self._names: list[str] = []
        self._read: list[dict[str, tuple[tuple[int, int, int], bytes]]] = []
        self._writers: dict[str, int] = {}
        self._contents: dict[str, bytes] = {}
        self._copies = 0

    # --- who takes part ------------------------------------------------------------------------------------------

    def join(self, root: Path, like: int | None = None) -> int:
        """Let a store take part, with what is in it; with the index of another device if it is a clone of that one."""
        self.roots.append(root)
        self._names.append(f"id{len(self._names)}")
        self._read.append({})
        number = len(self.roots) - 1
        found = {path: Held(Counter({self._names[number]: 1}), data) for path, data in self.tree(number).items()}
        self.held.append(found if like is None else self.index_of(like))
        return number

    def index_of(self, device: int) -> dict[str, Held]:
        return {path: Held(h.version.copy(), h.content, h.under_way) for path, h in self.held[device].items()}

    def restore(self, device: int, index: dict[str, Held]) -> None:
        """Take a device's index back to what it was, under a new id: that of a disk that was restored."""
        self.held[device] = {path: Held(h.version.copy(), h.content, h.under_way) for path, h in index.items()}
        self._names[device] = f"{self._names[device]}r"

    def excuse(self, what: str) -> None:
        """Forget who wrote the files whose path contains *what*: the session is deleted, or a disk was restored."""
        for path in [path for path in self._contents if what in path]:
            del self._contents[path]

    # --- seeing --------------------------------------------------------------------------------------------------

    def tree(self, device: int) -> dict[str, bytes]:
        """Every file of a device by its path."""
        root, read = str(self.roots[device]), self._read[device]
        found: dict[str, tuple[tuple[int, int, int], bytes]] = {}
        for entry in names(root):
            status = entry.stat()
            stamp = (status.st_ino, status.st_size, status.st_mtime_ns)
            path = entry.path[len(root) + 1 :].replace(os.sep, "/")
            known = read.get(path)
            found[path] = known if known is not None and known[0] == stamp else (stamp, Path(entry.path).read_bytes())
        # A file that was replaced within one tick of the clock may have the same stamp: it is read the next time.
        young = time.time_ns() - TICK_NS
        self._read[device] = {path: read for path, read in found.items() if read[0][2] < young}
        return {path: content for path, (_, content) in found.items()}

    def look(self, device: int) -> None:
        """Notice what programs on a device changed."""
        found = self.tree(device)
        held = self.held[device]
        for path in sorted({*found, *(path for path, h in held.items() if h.content is not None)}):
            known, content = held.setdefault(path, Held()), found.get(path)
            if content == known.content:
                continue
            if content is not None:
                self._witness(device, path, content)
            known.version[self._names[device]] += 1
            known.content, known.under_way = content, False

    def _witness(self, device: int, path: str, content: bytes) -> None:
        writer = self._writers.setdefault(path, device)
        if writer != device:
            self.faults.append(f"{path} was written by devices {writer} and {device}")
        if parse_log_name(os.path.basename(path)) is not None:
            before = self._contents.get(path, b"")
            if not content.startswith(before) and not self.lenient:
                self.faults.append(f"{path} did not grow")
            self._contents[path] = content

    # --- carrying ------------------------------------------------------------------------------------------------

    def paths(self) -> list[str]:
        return sorted({path for held in self.held for path in held})

    def waiting(self, source: int, target: int) -> list[str]:
        """The paths of which *source* has something that *target* lacks."""
        self.look(source)
        self.look(target)
        return [
            path
            for path, held in sorted(self.held[source].items())
            if not held.under_way and not held.version <= self.held[target].get(path, Held()).version
        ]

    def carry(self, path: str, source: int, target: int, *, first: str = "", keep: bool = True) -> None:
        """Bring one file from one device to another.

        Args:
            path: the file; its absence is carried, too.
            source: where it is.
            target: where it goes.
            first: all that happens for now: "gone": the old file goes, the new one is yet to come; "cut": half of the
                new one comes.
            keep: whether a file that one device deleted while another changed it keeps its name, or gets another; of
                two contents, which one does.
        """
        theirs, mine = self.held[source][path], self.held[target].setdefault(path, Held())
        if theirs.under_way or theirs.version <= mine.version:
            return
        if mine.version <= theirs.version:
            if first and theirs.content is not None:
                half = None if first == "gone" else theirs.content[: len(theirs.content) * 2 // 3]
                self._put(target, path, half)
                mine.content, mine.under_way = half, True
                return
            self._settle(target, path, theirs.content, theirs.version)
            return
        both = theirs.version | mine.version
        ours = None if mine.under_way else mine.content
        contents = [c for c in (theirs.content, ours) if c is not None]
        if mine.under_way or theirs.content == ours:
            self._settle(target, path, theirs.content, both)
        elif len(contents) == 2:
            winner, loser = sorted(contents, reverse=keep)
            self._copy(target, path, loser)
            self._settle(target, path, winner, both)
        elif keep:
            self._settle(target, path, contents[0], both)
        else:
            self._copy(target, path, contents[0])
            self._settle(target, path, None, both)

    def complete(self) -> None:
        """Notice everything, and bring the rest of what is under way."""
        for device in range(len(self.roots)):
            self.look(device)
        for target, held in enumerate(self.held):
            for path in [path for path, known in held.items() if known.under_way]:
                for source in range(len(self.roots)):
                    if held[path].under_way and path in self.held[source]:
                        self.carry(path, source, target)

    def copy(self, device: int, path: str, size: int | None = None) -> None:
        """Leave a copy of a file, or of its first bytes, under the name of a conflict copy."""
        self.look(device)
        content = self.held[device][path].content
        if content is not None:
            self._copy(device, path, content[:size])

    def _copy(self, device: int, path: str, content: bytes) -> None:
        self._copies += 1
        stem, ending = os.path.splitext(path)
        name = f"{stem}.sync-conflict-20261201-{self._copies:06d}-ABCDEFG{ending}"
        self._settle(device, name, content, Counter({self._names[device]: 1}))

    def _settle(self, device: int, path: str, content: bytes | None, version: Version) -> None:
        self._put(device, path, content)
        self.held[device][path] = Held(version.copy(), content)

    def _put(self, device: int, path: str, content: bytes | None) -> None:
        full = self.roots[device] / path
        if content is None:
            full.unlink(missing_ok=True)
            return
        full.parent.mkdir(parents=True, exist_ok=True)
        arriving = full.with_name(f".{full.name}.tmp")
        arriving.write_bytes(content)
        arriving.rename(full)

    def exchange(self) -> None:
        """Carry everything everywhere, until nothing is left to carry."""
        everyone = range(len(self.roots))
        for _ in range(2 * len(self.roots)):
            busy = False
            for source in everyone:
                for target in everyone:
                    for path in self.waiting(source, target) if source != target else ():
                        busy = True
                        self.carry(path, source, target)
            if not busy:
                break
        assert not any(self.waiting(a, b) for a in everyone for b in everyone if a != b)
        assert all(self.tree(device) == self.tree(0) for device in everyone)


def snapshot(root: Path, to: Path) -> Path:
    """A backup of a whole store, `.local/` included."""
    return Path(shutil.copytree(root, to, symlinks=True))
