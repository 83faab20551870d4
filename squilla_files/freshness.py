"""Whether a directory or file is still as it was seen, by what its status hints (FORMAT.md, "Reading").

A time stamp has a grain: what changes twice within one grain shows one time. So a status is trusted only if it was
taken well after the time that it shows.
"""

from __future__ import annotations

import os

# File systems with fine time stamps take them from a clock that ticks every few milliseconds. Coarse ones (FAT) show
# stamps without a fraction, and do not stamp a directory at every change: those are never trusted.
_GRAIN_NS = 100_000_000
_SECOND_NS = 1_000_000_000

Stamp = tuple[int, int, int]


def stamp_of(status: os.stat_result) -> Stamp:
    """Return what changes when a file or directory does: inode, size, time of modification in ns."""
    return (status.st_ino, status.st_size, status.st_mtime_ns)


class Freshness:
    """Remembers the status under which something was read."""

    __slots__ = ("_stamp", "_trusted")

    def __init__(self) -> None:
        self._stamp: Stamp | None = None
        self._trusted = False

    def same(self, status: os.stat_result) -> bool:
        """Say whether *status* shows that nothing changed since `saw`."""
        return self._trusted and self._stamp == stamp_of(status)

    def saw(self, status: os.stat_result, looked_ns: int) -> None:
        """Remember that the thing was read.

        Args:
            status: its status, taken before it was read.
            looked_ns: `time.time_ns()` before it was read. How long reading took must not make the status look old.
        """
        self._stamp = stamp_of(status)
        modified = status.st_mtime_ns
        # A clock that was set back makes the age negative: not trusted either.
        self._trusted = modified % _SECOND_NS != 0 and looked_ns - modified > _GRAIN_NS

    def forget(self) -> None:
        """Have the thing read again the next time."""
        self._trusted = False
