"""The sessions of a store: created, changed, listed, fenced, reset, deleted. Asynchronous; see `Engine`."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from squilla_files.clock import as_ms, now_ms
from squilla_files.engine import Engine
from squilla_files.errors import LockTimeoutError
from squilla_files.keys import canonicalize_session_key
from squilla_files.models import SessionNode
from squilla_files.queues import T, Work
from squilla_files.search import compile_query, title_matches
from squilla_files.session import Session

NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
ARCHIVE_VARIABLES: Final = ("SQUILLA_FILES_ARCHIVE_DIR", "OPENSQUILLA_SESSION_ARCHIVE_DIR")


def check_bounds(**given: int | None) -> None:
    """Refuse limits and offsets below zero.

    Raises:
        ValueError: one is negative.
    """
    for name, value in given.items():
        if value is not None and value < 0:
            raise ValueError(f"{name} must not be negative, but is {value}")


class StoredSessions(Engine):
    """What a store does with sessions as wholes.

    A ``session_id`` is the id of a generation (``node.session_id``), in all methods of the store that take one. It is
    not the key; one that is unknown reads as empty.
    """

    async def create_session(self, node: SessionNode) -> SessionNode:
        """Create the session that *node* describes, and return it as it is stored.

        Raises:
            SessionExistsError: the key is taken; nothing was changed.
            InvalidKeyError: no session can have that key.
            UnstorableTypeError, UnstorableValueError: a value that JSON cannot hold; nothing was written.

        Durability: kept once this returns.
        """
        key = canonicalize_session_key(node.session_key)
        return self._known(await self.change(key, lambda session: session.create(node)))

    async def upsert_session(self, node: SessionNode) -> SessionNode:
        """Write what differs between *node* and what is stored, creating a missing session; return what is stored then.

        `updated_at` is stored as given, the epoch never falls. Where the node's epoch is below the stored one, session
        id, epoch, counters, `cost_source` and `compaction_count` stay as stored; the other fields are set. A higher
        epoch fences; together with another session id it is a reset.

        Durability: kept once this returns.
        """
        key = canonicalize_session_key(node.session_key)
        return self._known(await self.change(key, lambda session: session.upsert(node, self.archive_directory())))

    async def update_session(
        self, session_key: str, fields: Mapping[str, object], counters: Mapping[str, int | float] = NOTHING
    ) -> SessionNode:
        """Set just these fields and raise these counters; return the session.

        A counter among *fields* is set to the value given.

        Raises:
            SessionNotFoundError: there is no session.
            ValueError: a name that is no field or counter; nothing was written.

        Durability: kept once this returns.
        """
        key = canonicalize_session_key(session_key)
        return await self.change(key, lambda session: session.update(fields, counters))

    async def modify_session(
        self, session_key: str, change: Callable[[SessionNode], Mapping[str, object]]
    ) -> SessionNode:
        """Set the fields that *change* derives from the session as it is under the lock; return the session.

        Raises:
            SessionNotFoundError: there is no session.
        """
        return await self.change(canonicalize_session_key(session_key), lambda session: session.modify(change))

    async def get_session(self, session_key: str) -> SessionNode | None:
        """Return the session, None where there is none. Touches nothing."""
        node = await self._look_at(session_key)
        return node if node is None else self._known(node)

    async def _look_at(self, session_key: str) -> SessionNode | None:
        key = canonicalize_session_key(session_key)
        if self.is_open(key):
            return await self.read(key, lambda session: session.dir.node())
        listed = await self.peek(key)
        return None if listed is None else listed.node()

    async def session_exists(self, session_key: str) -> bool:
        """Say whether there is a session under the key."""
        return await self._look_at(session_key) is not None

    async def list_sessions(
        self,
        agent_id: str | None = None,
        status: str | None = None,
        limit: int | None = 100,
        offset: int = 0,
        spawned_by: str | None = None,
    ) -> list[SessionNode]:
        """Return sessions, newest `updated_at` first, at most *limit* (None: all) from *offset*.

        Args:
            agent_id: only those of this agent.
            status: only those with this status.
            limit: how many at most.
            offset: how many to pass over.
            spawned_by: only those that the session with this key started.

        Sessions that cannot be read do not hide the others; `verify` lists them.

        Raises:
            ValueError: *limit* or *offset* is negative.
        """
        check_bounds(limit=limit, offset=offset)
        parent = canonicalize_session_key(spawned_by) if spawned_by is not None else None
        wanted = {"agent_id": agent_id, "status": status, "spawned_by": parent}
        wanted = {name: value for name, value in wanted.items() if value is not None}
        listed = await self.list_all()
        if wanted:
            listed = [item for item in listed if all(item.get(n) == value for n, value in wanted.items())]
        listed.sort(key=lambda item: (-as_ms(item.get("updated_at")), item.key))
        return [item.node() for item in listed[offset : None if limit is None else offset + limit]]

    async def count_sessions(self, agent_id: str | None = None, status: str | None = None) -> int:
        """Return how many sessions there are, of this agent and with this status where given."""
        return len(await self.list_sessions(agent_id, status, limit=None))

    async def search_sessions_by_title(self, query: str, limit: int = 20) -> list[SessionNode]:
        """Return sessions of which every word of *query* stands in a title, newest `updated_at` first.

        Titles are `display_name`, `derived_title`, `subject` and `label`; case is ignored in every script.
        """
        check_bounds(limit=limit)
        compiled = compile_query(query)
        found = [node for node in await self.list_sessions(limit=None) if title_matches(compiled, node)]
        return found[:limit]

    # --- by session id -----------------------------------------------------------------------------------------------

    async def find_key(self, session_id: str) -> str | None:
        """Return the key of the session that was last seen with *session_id*, None where none was.

        Raises:
            OSError: the sessions cannot be listed.
        """
        if session_id not in self._keys:
            await self.list_all()
        return self._keys.get(session_id)

    async def read_named(self, session_id: str, work: Work[T], otherwise: T) -> T:
        """Return what *work* makes of the session whose generation has had *session_id*, else *otherwise*."""
        return await self._named(session_id, self.read, work, otherwise)

    async def change_named(self, session_id: str, work: Work[T], otherwise: T) -> T:
        """Execute *work* under the lock of the session whose generation has had *session_id*; see `read_named`."""
        return await self._named(session_id, self.change, work, otherwise)

    async def _named(
        self, session_id: str, perform: Callable[[str, Work[Any]], Awaitable[Any]], work: Work[T], otherwise: T
    ) -> T:
        def attempt(session: Session) -> tuple[T] | None:
            return (work(session),) if session_id in session.timeline.session_ids else None

        # A second look, for the session may have been deleted, and another got the id from a device since.
        for _ in range(2):
            key = await self.find_key(session_id)
            found = None if key is None else await perform(key, attempt)
            if found is not None:
                result: T = found[0]
                return result
            self._keys.pop(session_id, None)
        return otherwise

    # --- fences and ends ---------------------------------------------------------------------------------------

    async def get_epoch(self, session_key: str) -> int:
        """Return the session's epoch, 0 where there is no session."""
        node = await self._look_at(session_key)
        return 0 if node is None else node.epoch

    async def increment_epoch(self, session_key: str) -> int:
        """Raise the epoch, so that writers that read the session before are refused; return it. The transcript stays.

        Raises:
            SessionNotFoundError: there is no session.

        Durability: kept once this returns.
        """
        return await self.change(canonicalize_session_key(session_key), lambda session: session.fence())

    async def reset_session(self, session_key: str, *, reason: str) -> SessionNode:
        """Close the generation and open the next one: a new session id, epoch + 1, counters at zero, no messages.

        The closed generation is left as one readable document, see `archive_directory`; *reason* stands in it.

        Raises:
            SessionNotFoundError: there is no session.

        Durability: kept once this returns. Where the document cannot be written the reset happens all the same.
        """
        key = canonicalize_session_key(session_key)

        def work(session: Session) -> SessionNode:
            return session.reset(reason=reason, archive_dir=self.archive_directory())

        return self._known(await self.change(key, work))

    def archive_directory(self) -> str:
        """Return where documents of closed generations go: as told by argument or environment, else `archives/`."""
        given = self._archive_dir or next(filter(None, map(os.environ.get, ARCHIVE_VARIABLES)), None)
        # Where the user points may well be behind a link of the user's.
        return os.path.realpath(given) if given is not None else self._paths.archives

    async def delete_session(self, session_key: str) -> bool:
        """Take away everything of the session: logs, summaries, context states. Returns whether there was one.

        The documents that its resets left in `archive_directory` stay. Who must erase content removes these as well,
        ``SLUG~HASH.*`` there, where ``SLUG~HASH`` is the name of the session's directory; on every device.

        Durability: the deletion is durable once this returns. A session created again under the key starts one epoch
        above.
        """
        return await self.change(canonicalize_session_key(session_key), lambda session: session.delete())

    async def delete_stale(self, session_key: str, *, updated_before_ms: int | None = None) -> bool:
        """Delete the session if its `updated_at` still lies before the given time (ms since the epoch; None: any).

        Where no time is known (0) it is spared: the log that says it may not have arrived yet.

        Raises:
            LockTimeoutError: somebody is at work on it; it is not waited for.
        """

        def work(session: Session) -> bool:
            node = session.dir.node()
            if node is None or (updated_before_ms is not None and not 0 < node.updated_at < updated_before_ms):
                return False
            return session.delete()

        return await self.change(canonicalize_session_key(session_key), work, timeout_s=0)

    async def prune_stale_sessions(self, max_age_ms: int) -> int:
        """Delete the sessions whose recorded `updated_at` is more than *max_age_ms* ago; return how many were.

        Whatever their status: running ones, too. Sessions that are locked are left for the next time.
        """
        before = now_ms() - max_age_ms
        count = 0
        for node in reversed(await self.list_sessions(limit=None)):
            if node.updated_at < before:
                try:
                    count += await self.delete_stale(node.session_key, updated_before_ms=before)
                except LockTimeoutError:
                    continue  # somebody is at work on it: it is not stale
        return count

    def _known(self, node: SessionNode) -> SessionNode:
        self._keys[node.session_id] = node.session_key
        return node
