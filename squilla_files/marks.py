"""Marks: how far into which logs a record speaks (FORMAT.md, "Marks"). Pure.

A mark is `[log id, line number, identity of the record in that line]`. It says "all that stands up to here", and it
holds only where the line is the one that was meant.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from squilla_files.codec import counter_of
from squilla_files.journal import Log, Record

Mark = tuple[str, int, str]
Bound = tuple[Log, int]


def read_marks(value: object) -> list[Mark]:
    """Return the well-formed marks of a `covers` or `seen` member."""
    listed: list[Any] = value if type(value) is list else []
    return [
        (m[0], m[1], m[2])
        for m in listed
        if type(m) is list and len(m) == 3 and type(m[0]) is str and counter_of(m[1]) and type(m[2]) is str
    ]


class MarkIndex:
    """Answers, for any number of logs and copies of logs, which lines a mark covers.

    Attributes:
        dropped: identity → the epoch of the deletion that had seen it: no mark covers what does not count.
    """

    def __init__(self, logs: Iterable[Log]) -> None:
        self.dropped: dict[str, int] = {}
        self._named: dict[str, list[Log]] = defaultdict(list)
        self._carried: dict[str, list[Log]] = defaultdict(list)
        for log in logs:
            if log.log_id is not None:
                self._named[log.log_id].append(log)
            if log.source is not None:
                self._carried[log.source].append(log)

    def bounds(self, mark: Mark) -> Iterator[Bound]:
        """Yield (log, n) for each file whose first n lines the mark covers.

        It holds in a file whose line there bears the identity that it names, or is damaged. Where no copy of the log
        that it names reaches that line here, it holds for lines that were carried over from that log.
        """
        log_id, line, identity = mark
        reached = False
        for log in self._named.get(log_id, ()):
            if len(log.lines) >= line:
                reached = True
                record = log.lines[line - 1]
                if record is None or record.identity == identity:
                    yield log, line
        if not reached:
            for log in self._carried.get(log_id, ()):
                yield log, 1 + bisect_right(log.source_lines, line)

    def covered(self, marks: Iterable[Mark]) -> set[str]:
        """Return the identities of all records that *marks* cover."""
        found: set[str] = set()
        deletions = bool(self.dropped)
        for mark in marks:
            for log, line in self.bounds(mark):
                for record in log.lines[:line]:
                    if record is not None and not (deletions and self.is_dropped(record)):
                        found.add(record.identity)
                        found.update(entry.identity for entry in record.entries())
        return found

    def is_dropped(self, record: Record) -> bool:
        """Say whether a deletion had seen *record*, so that a later one with its identity is another."""
        return record.epoch < self.dropped.get(record.identity, 0)
