"""The lifecycle of sessions: how they begin, go on, branch and end.

`SessionManager` is what an application works with. It decides and the store commits: every method that changes one
session is one commit there, whole or not at all. Each takes any spelling of a session key. Times are milliseconds since
the Unix epoch, UTC.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, overload

from squilla_files.clock import now_ms
from squilla_files.compactions import Compactions
from squilla_files.endings import final_fields, find_agent, kill_tree, wait_until_final
from squilla_files.errors import SessionExistsError, SessionNotFoundError
from squilla_files.keys import canonicalize_session_key
from squilla_files.models import SESSION_COUNTERS, SESSION_FIELDS, SessionIntent, SessionNode, SessionStatus
from squilla_files.retention import remove_sessions, stale_sessions, surplus_sessions

if TYPE_CHECKING:
    from collections.abc import Callable

    from squilla_files.endings import AgentRegistry, TaskRuntime
    from squilla_files.retention import Removal
    from squilla_files.storage import SessionStorage

# What a branch takes over from its parent.
_INHERITED: Final = ("agent_id", "model", "model_provider", "channel", "chat_type")


class SessionManager(Compactions):
    """The sessions of a store and what happens to them.

    Args:
        storage: the store, connected.
        memory_sync_notify: called after each message that was added, with the length of its content in bytes.
        inject_time_prefix: whether a user's text is stored with a line that tells the time in front.
        time_prefix_tz: the IANA name of the zone for that line; None is the machine's zone.
        agent_registry: what the application knows of its agents.
        task_runtime: what runs the application's tasks; it is told when a session is killed.

    Raises:
        zoneinfo.ZoneInfoNotFoundError: there is no such zone.
    """

    def __init__(
        self,
        storage: SessionStorage,
        memory_sync_notify: Callable[[int], object] | None = None,
        *,
        inject_time_prefix: bool = True,
        time_prefix_tz: str | None = None,
        agent_registry: AgentRegistry | None = None,
        task_runtime: TaskRuntime | None = None,
    ) -> None:
        super().__init__(
            storage, memory_sync_notify, inject_time_prefix=inject_time_prefix, time_prefix_tz=time_prefix_tz
        )
        self._agent_registry = agent_registry
        self._task_runtime = task_runtime
        self._epochs: dict[str, int] = {}

    async def create(self, session_key: str, agent_id: str = "main", **fields: Any) -> SessionNode:
        """Begin a session: running, from now on, with a new ``session_id``.

        Args:
            session_key: the key; neither agent nor chat type is derived from it.
            agent_id: the agent.
            **fields: other fields of the `SessionNode`.

        Raises:
            SessionExistsError: the key is taken.
            TypeError: there is no such field.
        """
        now = now_ms()
        times = {"created_at": now, "updated_at": now, "started_at": now}
        key = canonicalize_session_key(session_key)
        node = SessionNode(session_key=key, agent_id=agent_id, **{**times, **fields})
        return self._seen(await self._storage.create_session(node))

    async def get_or_create(self, session_key: str, agent_id: str = "main", **fields: Any) -> tuple[SessionNode, bool]:
        """Return the session, untouched, or begin it as `create` does; and whether it was begun.

        Where it exists, *agent_id* and *fields* are ignored.
        """
        node = await self.get_session(session_key)
        if node is not None:
            return node, False
        try:
            return await self.create(session_key, agent_id, **fields), True
        except SessionExistsError:
            # Another process was faster; its session is the one that is meant.
            return await self._existing(session_key), False

    async def get_session(self, session_key: str) -> SessionNode | None:
        """Return the session, or None. Nothing is touched."""
        node = await self._storage.get_session(session_key)
        return None if node is None else self._seen(node)

    async def list_sessions(
        self,
        agent_id: str | None = None,
        status: str | None = None,
        limit: int | None = 100,
        offset: int = 0,
        spawned_by: str | None = None,
    ) -> list[dict[str, Any]]:
        """Return sessions as plain dicts, newest ``updated_at`` first, at most *limit* after *offset*.

        Args:
            agent_id: only this agent's.
            status: only those of this status.
            limit: None for all.
            offset: how many to pass over.
            spawned_by: only those that the session of this key spawned.
        """
        nodes = await self._storage.list_sessions(
            agent_id=agent_id, status=status, limit=limit, offset=offset, spawned_by=spawned_by
        )
        return [node.model_dump(mode="json") for node in nodes]

    async def apply_intent(self, session_key: str, intent: SessionIntent | str) -> tuple[SessionNode, bool]:
        """Do what the caller intends with the session under the key. A missing one is begun, whatever is intended.

        Args:
            session_key: the key.
            intent: ``continue`` touches the session; ``new_chat`` wants the key to be free; ``reset_same_key`` archives
                the generation as a document and begins another under the same key, with a new ``session_id`` and a
                higher epoch, so that no writer of the old one can add to it.

        Returns:
            The session, and whether its ``session_id`` is a new one.

        Raises:
            SessionExistsError: ``new_chat``, and the key is taken; a `ValueError` that says ``session_key conflict``.
            ValueError: there is no such intent.
        """
        match SessionIntent(intent):
            case SessionIntent.NEW_CHAT:
                try:
                    return await self.create(session_key), True
                except SessionExistsError as error:
                    raise SessionExistsError(error.session_key, "session_key conflict") from error
            case SessionIntent.CONTINUE:
                try:
                    return await self.resume(session_key), False
                except SessionNotFoundError:
                    return await self.get_or_create(session_key)
            case SessionIntent.RESET_SAME_KEY:
                try:
                    return self._seen(await self._storage.reset_session(session_key, reason=str(intent))), True
                except SessionNotFoundError:
                    return await self.get_or_create(session_key)

    async def resume(self, session_key: str) -> SessionNode:
        """Say that the session is in use again: its ``updated_at`` is now.

        Raises:
            SessionNotFoundError: there is no such session.
        """
        return self._seen(await self._storage.update_session(session_key, {"updated_at": now_ms()}))

    async def update(self, session_key: str, **fields: Any) -> SessionNode:
        """Set the fields that are given and no others; a counter is set to the value, not raised by it.

        Raises:
            SessionNotFoundError: there is no such session.
            TypeError: there is no such field, or it is the key or the epoch, which no update sets. Nothing was changed.
        """
        unknown = fields.keys() - SESSION_FIELDS - SESSION_COUNTERS
        if unknown:
            raise TypeError(f"Session {session_key!r} cannot be updated: no field to set is named {sorted(unknown)}.")
        return self._seen(await self._storage.modify_session(session_key, lambda _: fields))

    async def finish(self, session_key: str, status: SessionStatus | str = SessionStatus.DONE) -> SessionNode:
        """End the session with *status*: ``ended_at`` is now, ``runtime_ms`` the time since it was started.

        Raises:
            SessionNotFoundError: there is no such session.
            ValueError: there is no such status.
        """
        final = SessionStatus(status)
        return self._seen(await self._storage.modify_session(session_key, lambda node: final_fields(node, final)))

    async def archive(self, session_key: str) -> SessionNode:
        """End the session as done.

        Raises:
            SessionNotFoundError: there is no such session.
        """
        return await self.finish(session_key)

    async def branch(
        self,
        parent_session_key: str,
        new_session_key: str,
        fork_transcript: bool = False,
        max_fork_tokens: int | None = None,
        status: SessionStatus | str = SessionStatus.RUNNING,
        fork_before_message_id: str | None = None,
    ) -> SessionNode:
        """Begin a session below another; whole or not at all.

        The child has the parent's agent, model, channel and chat type, and counts from zero.

        Args:
            parent_session_key: the parent.
            new_session_key: the child's key.
            fork_transcript: whether the child takes along the parent's entries, archived ones included, its summaries
                and its valid context states.
            max_fork_tokens: if these weigh more, the child is empty and ``forked_from_parent`` false.
            status: the child's status.
            fork_before_message_id: take along only what was said before this message, archived or live, without
                summaries and states.

        Raises:
            SessionNotFoundError: there is no such parent.
            SessionExistsError: the child's key is taken.
            MessageNotFoundError: the parent has no message *fork_before_message_id*.
        """
        parent = await self._existing(parent_session_key)
        now = now_ms()
        child = SessionNode(
            session_key=canonicalize_session_key(new_session_key),
            created_at=now,
            updated_at=now,
            started_at=now,
            parent_session_key=parent.session_key,
            spawned_by=parent.session_key,
            spawn_depth=parent.spawn_depth + 1,
            status=SessionStatus(status),
            **{name: getattr(parent, name) for name in _INHERITED},
        )
        entries: Literal["none", "live", "before"] = "live" if fork_transcript else "none"
        if fork_before_message_id is not None:
            entries = "before"
        branched = await self._storage.branch_session(
            parent.session_key,
            child,
            entries=entries,
            before_message_id=fork_before_message_id,
            max_fork_tokens=max_fork_tokens,
        )
        return self._seen(branched)

    def attach_task_runtime(self, task_runtime: TaskRuntime | None) -> None:
        """Say what runs the application's tasks from now on."""
        self._task_runtime = task_runtime

    @property
    def has_agent_registry(self) -> bool:
        """Whether there is something that knows the agents."""
        return self._agent_registry is not None

    async def get_agent_config(self, agent_id: str) -> dict[str, Any] | None:
        """Return the agent's entry in the registry; None where there is no such agent, or no registry."""
        return await find_agent(self._agent_registry, agent_id)

    async def kill_session(self, session_key: str) -> SessionNode:
        """Mark the session killed, after the running ones that it spawned, however deep, and cancel their tasks.

        Children are spared where the agent's entry in the registry says ``subagents.cascade_on_parent_kill: false``.

        Raises:
            SessionNotFoundError: there is no such session.
        """
        killed = await kill_tree(self._storage, session_key, registry=self._agent_registry, runtime=self._task_runtime)
        return self._seen(killed)

    async def wait_for_completion(self, session_key: str) -> dict[str, Any]:
        """Wait until the session's status is final; return it as a dict with ``waited`` true.

        Raises:
            SessionNotFoundError: there is no such session, or it was deleted meanwhile.

        Cancellation: safe at any time; nothing is changed.
        """
        node = await wait_until_final(self._storage, session_key)
        return {**self._seen(node).model_dump(mode="json"), "waited": True}

    def get_cached_epoch(self, session_key: str) -> int | None:
        """Return the session's epoch as this process saw it last, None if it never did. Nothing is read."""
        return self._epochs.get(canonicalize_session_key(session_key))

    def set_cached_epoch(self, session_key: str, epoch: int) -> None:
        """Note which epoch of the session this process saw last."""
        self._epochs[canonicalize_session_key(session_key)] = epoch

    @overload
    async def prune_stale(self, max_age_ms: int, *, dry_run: Literal[False] = False) -> int: ...
    @overload
    async def prune_stale(self, max_age_ms: int, *, dry_run: Literal[True]) -> list[tuple[str, str]]: ...
    async def prune_stale(self, max_age_ms: int, *, dry_run: bool = False) -> int | list[tuple[str, str]]:
        """Delete the sessions whose recorded ``updated_at`` is more than *max_age_ms* ago, with all that is theirs.

        Whatever their status: running ones, too. One that is locked or cannot be read is skipped; a warning in the log
        tells why. Documents of closed generations stay, see ``delete_session`` of the store.

        Args:
            max_age_ms: the greatest age, in ms.
            dry_run: change nothing and return which ones would go, as pairs of key and reason, oldest first.

        Returns:
            How many were deleted, oldest first.

        Raises:
            ValueError: *max_age_ms* is negative.
        """
        return await self._remove(await stale_sessions(self._storage, max_age_ms), dry_run=dry_run)

    @overload
    async def cap_entries(self, max_entries: int = 500, *, dry_run: Literal[False] = False) -> int: ...
    @overload
    async def cap_entries(self, max_entries: int = 500, *, dry_run: Literal[True]) -> list[tuple[str, str]]: ...
    async def cap_entries(self, max_entries: int = 500, *, dry_run: bool = False) -> int | list[tuple[str, str]]:
        """Delete sessions, the oldest ``updated_at`` first, until *max_entries* are left, with all that is theirs.

        Whatever their status: running ones, too. One that is locked or cannot be read is skipped; a warning in the log
        tells why. Documents of closed generations stay, see ``delete_session`` of the store.

        Args:
            max_entries: how many may stay.
            dry_run: change nothing and return which ones would go, as pairs of key and reason, oldest first.

        Returns:
            How many were deleted.

        Raises:
            ValueError: *max_entries* is negative.
        """
        return await self._remove(await surplus_sessions(self._storage, max_entries), dry_run=dry_run)

    async def _remove(self, removals: list[Removal], *, dry_run: bool) -> int | list[tuple[str, str]]:
        if dry_run:
            return [(removal.session_key, removal.reason) for removal in removals]
        return await remove_sessions(self._storage, removals)

    async def _existing(self, session_key: str) -> SessionNode:
        node = await self.get_session(session_key)
        if node is None:
            raise SessionNotFoundError(canonicalize_session_key(session_key))
        return node

    def _seen(self, node: SessionNode) -> SessionNode:
        self._epochs[node.session_key] = node.epoch
        return node
