"""The changes of a store, told as they come. Asynchronous; see `Engine`."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from squilla_files.events import Event
from squilla_files.keys import canonicalize_session_key
from squilla_files.store_care import StoredCare
from squilla_files.watch import Watching


class StoredEvents(StoredCare):
    """What a store tells of its changes, whichever process or device made them."""

    _watching: Watching | None = None

    async def watch(self, session_key: str | None = None, *, after: str | None = None) -> AsyncGenerator[Event]:
        """Yield what happens in one session, or in the whole store, until the iteration is closed or the store is.

        Every change is told once, those of one device's log in its order, whichever process made it. Without *after*
        it begins with what is committed after the first step of the iteration.

        Args:
            session_key: the session, which need not exist yet; None for all.
            after: the cursor of an event: it goes on behind that one, also after a restart, compactions and resets.
                Where that cannot be done exactly, because the session was deleted or restored, a `Gap` says so, and
                what is told begins with the present state. A cursor belongs to the place where the store lies; that of
                the whole store names a file under ``.local/cursors/``.

        Yields:
            Events; see `squilla_files.events`.

        Raises:
            InvalidCursorError: *after* is malformed, or of another store or session.
            InvalidKeyError: no session can have that key.
            StoreClosedError: the store is not open.
            OSError: the session cannot be read. (In a watch of all, that is a `DamageFound`.)

        Cancellation: cancelling a step, or closing the iterator, ends this iteration at once, and no other.
        """
        watching = self._watch()
        if session_key is None:
            events = watching.follow_all(after)
        else:
            events = watching.follow(canonicalize_session_key(session_key), after)
        async with aclosing(events):
            async for event in events:
                yield event

    def _watch(self) -> Watching:
        if not self._connected:
            raise self._closed()
        self._enter()
        if self._watching is None:
            self._watching = Watching(
                self._files,
                self._paths,
                self._deletions,
                self._catalog,
                self.run,
                lambda key: self._open(key).session,
            )
            self._listeners.append(self._watching.committed)
        return self._watching

    def _forsake(self) -> None:
        super()._forsake()
        self._watching = None
        self._listeners.clear()

    async def _begun(self, key: str | None) -> None:
        if self._watching is not None:
            await self._watching.begun(key)

    def _forget_loop(self) -> None:
        super()._forget_loop()
        # Its iterations ended with the loop, and its thread with the last of them.
        self._watching = None
        self._listeners.clear()

    async def close(self) -> None:
        """Close the store as `Engine.close` does, and end every iteration of its changes."""
        watching, self._watching = self._watching, None
        if watching is None:
            return await super().close()
        self._listeners.remove(watching.committed)
        watching.end()
        await super().close()
        return await watching.join()

    async def delete_session(self, session_key: str) -> bool:
        """Take away everything of the session; see `StoredSessions.delete_session`."""
        await self._tell_before_deletion(session_key)
        return await super().delete_session(session_key)

    async def delete_stale(self, session_key: str, *, updated_before_ms: int | None = None) -> bool:
        """Delete the session if it still is stale; see `StoredSessions.delete_stale`."""
        await self._tell_before_deletion(session_key)
        return await super().delete_stale(session_key, updated_before_ms=updated_before_ms)

    async def _tell_before_deletion(self, session_key: str) -> None:
        # What nobody has read yet could not be read any more.
        if self._watching is not None:
            await self._watching.settle(canonicalize_session_key(session_key))
