"""What the tests of events share: an iteration that collects, and what its events say in a few words."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from squilla_files.events import Event
from squilla_files.following import Follower
from squilla_files.positions import Cursors, Position, log_digest, place_of
from squilla_files.storage import SessionStorage

KEY = "agent:main:main"


def brief(event: Event) -> str:
    """Return the kind of an event and what it is about."""
    about: Any = ""
    match event.kind:
        case "appended":
            about = event.entry.content
        case "removed":
            about = event.message_id
        case "created" | "updated":
            about = ",".join(sorted(event.fields))
        case "compacted":
            about = event.summary.summary_text if event.summary is not None else None
        case "damage" | "conflict":
            about = event.finding.kind
    return f"{event.kind} {about}".rstrip()


def briefs(events: Iterable[Event]) -> list[str]:
    return [brief(event) for event in events]


def said(events: Iterable[Event]) -> list[Any]:
    """Return the contents of the messages that were told, in order."""
    return [event.entry.content for event in events if event.kind == "appended"]


class Collected:
    """An iteration under way, and what it has told so far."""

    def __init__(self, events: AsyncIterator[Event]) -> None:
        self.events: list[Event] = []
        self.error: BaseException | None = None
        self._more = asyncio.Event()
        self.task = asyncio.create_task(self._collect(events))

    async def _collect(self, events: AsyncIterator[Event]) -> None:
        try:
            async for event in events:
                self.events.append(event)
                self._more.set()
        except Exception as error:
            self.error = error
            self._more.set()
            raise

    async def until(self, condition: Callable[[Sequence[Event]], object]) -> list[Event]:
        """Wait until what was told fulfils *condition*, and return it."""
        async with asyncio.timeout(30):
            while not condition(self.events):
                if self.task.done():
                    raise AssertionError(f"it ended: {briefs(self.events)}, {self.error!r}")
                self._more.clear()
                await self._more.wait()
        return self.events

    async def count(self, number: int) -> list[Event]:
        """Wait for so many events, and return all that were told."""
        return await self.until(lambda events: len(events) >= number)

    async def to_say(self, *contents: object) -> list[Event]:
        """Wait until all of these messages were told, and return all that was."""
        return await self.until(lambda events: set(contents) <= set(said(events)))


@asynccontextmanager
async def following(
    store: SessionStorage, key: str | None = KEY, *, after: str | None = None
) -> AsyncIterator[Collected]:
    """Collect what is told; the iteration has begun, and ends with the block."""
    collected = Collected(store.watch(key, after=after))
    await asyncio.sleep(0)  # its first step
    try:
        yield collected
    finally:
        collected.task.cancel()
        await asyncio.wait([collected.task])


def follower_of(store: SessionStorage, after: str | Position | None = None, key: str = KEY) -> Follower:
    """Return a follower of a session, synchronous and apart from every other; None: from the present state on."""
    session = store._open(key).session
    cursors = Cursors(place_of(store.root))
    start = cursors.read_session(after, log_digest(key)) if isinstance(after, str) else after
    return Follower(session.dir, session.attachments, cursors, start)


def told_by(follower: Follower) -> list[Event]:
    """Return all that a follower has to tell now."""
    events = follower.advance()
    while not follower.is_done:
        events += follower.advance()
    return events


def all_of(store: SessionStorage) -> list[Event]:
    """Return all that there is to be told of the session from its beginning."""
    return told_by(follower_of(store, Position()))


def resumes_everywhere(store: SessionStorage, events: Sequence[Event]) -> None:
    """See that each of *events*, all that was told so far, can be resumed exactly."""
    told = briefs(events)
    for number, event in enumerate(events, 1):
        assert briefs(told_by(follower_of(store, event.cursor))) == told[number:], number
