"""Sessions that are open in a process, and the changes that wait for them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from squilla_files.appending import Append
from squilla_files.locks import LockFile
from squilla_files.session import Session

T = TypeVar("T")
Work = Callable[[Session], T]
"""What is done with a session that is refreshed."""


class Job:
    """One change that waits for its turn."""

    __slots__ = ("future", "item", "timeout_s", "work")

    def __init__(
        self, future: asyncio.Future[Any], work: Work[Any] | None, item: Append | None, timeout_s: float
    ) -> None:
        self.future = future
        self.work = work
        self.item = item
        self.timeout_s = timeout_s


class OpenSession:
    """A session that is open in this process, and the changes that wait for it."""

    __slots__ = ("lock", "queue", "session", "task")

    def __init__(self, session: Session, lock: LockFile) -> None:
        self.session = session
        self.lock = lock
        self.queue: deque[Job] = deque()
        self.task: asyncio.Task[None] | None = None

    def forsake(self) -> None:
        """Close the files in a forked process; the changes are its parent's."""
        self.session.close()
        self.lock.forsake()
