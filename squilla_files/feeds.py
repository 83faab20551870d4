"""The events of one session, made once for all who ask for them.

A subscriber asks by its position. What follows a position is remembered for a while, and several who ask for the same
at the same time wait for the same work; so a hundred subscribers cost little more than one. A subscriber that lags
behind what is remembered is told from the files: nothing here grows with its delay.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol, TypeVar

from squilla_files.events import Event
from squilla_files.following import Follower
from squilla_files.placing import Marks, Start
from squilla_files.positions import Cursors, decode_position
from squilla_files.session import Session

T = TypeVar("T")

_FOLLOWERS: Final = 4
_BATCHES: Final = 64
_REMEMBERED_BYTES: Final = 4 << 20


class Run(Protocol):
    """How the store executes a synchronous function in a worker thread."""

    def __call__(self, work: Callable[[], T], /) -> Awaitable[T]:
        """Execute *work* off the event loop and give what it returns or raises."""
        ...


@dataclass(frozen=True, slots=True)
class Batch:
    """What follows a position."""

    events: Sequence[Event]
    """In order; may be empty."""
    position: bytes
    """The position behind them."""
    is_done: bool
    """Whether nothing more was there when it was made."""
    size: int
    """About how many bytes the events hold."""


class Feed:
    """The events of one session. Used on the event loop only.

    Args:
        run: executes a function in a worker thread.
        session_of: gives the session, opening it where it is not open.
        cursors: makes the store's cursors.
    """

    def __init__(self, run: Run, session_of: Callable[[], Session], cursors: Cursors) -> None:
        self._run = run
        self._session_of = session_of
        self._cursors = cursors
        self._followers: OrderedDict[bytes, tuple[Session, Follower]] = OrderedDict()
        self._batches: OrderedDict[bytes | Marks, Batch] = OrderedDict()
        self._size = 0
        self._steps: dict[bytes | Marks, asyncio.Task[Batch]] = {}
        self._begun: set[bytes | Marks] = set()

    async def pull(self, told: bytes | Start) -> Batch:
        """Return what follows *told*: a position as bytes, marks, or (None) all that is here.

        A `Position` is looked for in the files, whatever is remembered: it comes from a cursor, and whether that can be
        resumed must not depend on who else is told.

        Raises:
            OSError, SquillaFilesError: something cannot be read; ask again.

        Cancellation: the work goes on for others who wait for it.
        """
        if not isinstance(told, bytes | Marks):
            return await self._step(told)
        while True:
            remembered = self._batches.get(told)
            if remembered is not None:
                # More may have come since it was made, and have woken whoever asks now.
                return replace(remembered, is_done=False)
            task = self._steps.get(told)
            if task is None:
                task = self._steps[told] = asyncio.get_running_loop().create_task(self._step(told))
                task.add_done_callback(lambda done: self._forget(told, done))
            elif told in self._begun:
                # It may have looked before that was there for which the one who asks now was woken.
                await asyncio.wait([task])
                continue
            return await asyncio.shield(task)

    def _forget(self, key: bytes | Marks, task: asyncio.Task[Batch]) -> None:
        del self._steps[key]
        self._begun.discard(key)
        if not task.cancelled():
            task.exception()  # those who waited for it were told

    async def _step(self, told: bytes | Start) -> Batch:
        follower = self._follower(told)
        session = self._session_of()
        if isinstance(told, bytes | Marks):
            self._begun.add(told)
        events = await self._run(follower.advance)
        position = follower.position
        batch = Batch(events, position, follower.is_done, follower.step_bytes)
        self._followers[position] = (session, follower)
        while len(self._followers) > _FOLLOWERS:
            self._followers.popitem(last=False)
        if isinstance(told, bytes | Marks) and position != told:
            self._remember(told, batch)
        return batch

    def _follower(self, told: bytes | Start) -> Follower:
        session = self._session_of()
        if isinstance(told, bytes):
            known = self._followers.pop(told, None)
            # A session that was closed meanwhile, and opened again, is another object.
            if known is not None and known[0] is session:
                return known[1]
            return Follower(session.dir, session.attachments, self._cursors, decode_position(told))
        return Follower(session.dir, session.attachments, self._cursors, told)

    def _remember(self, told: bytes | Marks, batch: Batch) -> None:
        self._batches[told] = batch
        self._size += batch.size
        while len(self._batches) > _BATCHES or (self._size > _REMEMBERED_BYTES and len(self._batches) > 1):
            _, oldest = self._batches.popitem(last=False)
            self._size -= oldest.size
