"""Killing a session and what runs below it, and waiting for a session to end."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Final, Protocol

from squilla_files.clock import now_ms
from squilla_files.errors import SessionNotFoundError
from squilla_files.keys import normalize_agent_id
from squilla_files.models import SessionNode, SessionStatus

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping, Sequence

    from squilla_files.storage import SessionStorage

_SOURCE: Final = "parent_session_kill"


class AgentRegistry(Protocol):
    """What the application knows of its agents."""

    async def list_agents(self, *, include_builtin: bool) -> Sequence[Mapping[str, Any]]:
        """Return one object per agent, each with ``id`` or ``agent_id``."""


class TaskRuntime(Protocol):
    """What runs the tasks of the application's sessions."""

    def cancel(self, *, session_key: str, source: str, reason: str) -> Awaitable[object] | object:
        """Cancel what runs for the session."""


async def find_agent(registry: AgentRegistry | None, agent_id: str) -> dict[str, Any] | None:
    """Return what *registry* says of the agent, None where it or the registry is not there."""
    if registry is None:
        return None
    wanted = normalize_agent_id(agent_id)
    for agent in await registry.list_agents(include_builtin=True):
        if normalize_agent_id(agent.get("id") or agent.get("agent_id")) == wanted:
            return dict(agent)
    return None


def final_fields(node: SessionNode, status: str) -> dict[str, object]:
    """Return the fields that end *node* now: status, ``ended_at``, ``runtime_ms`` and ``updated_at``."""
    now = now_ms()
    # A clock that was set back must not give a negative time.
    runtime_ms = None if node.started_at is None else max(0, now - node.started_at)
    return {"status": str(SessionStatus(status)), "ended_at": now, "runtime_ms": runtime_ms, "updated_at": now}


async def kill_tree(
    storage: SessionStorage, session_key: str, *, registry: AgentRegistry | None, runtime: TaskRuntime | None
) -> SessionNode:
    """Mark the session killed, after the running ones that it spawned, however deep.

    Args:
        storage: where they are.
        session_key: the session at the top.
        registry: asked for each session's agent whether its children are to be spared.
        runtime: told to cancel what runs for each session below the top.

    Returns:
        The session as it is then.

    Raises:
        SessionNotFoundError: there is no such session; nothing was changed.
    """
    node = await storage.get_session(session_key)
    if node is None:
        raise SessionNotFoundError(session_key)
    await _kill_children(storage, node, {node.session_key}, registry, runtime)
    return await storage.modify_session(session_key, lambda present: final_fields(present, SessionStatus.KILLED))


async def _kill_children(
    storage: SessionStorage,
    parent: SessionNode,
    seen: set[str],
    registry: AgentRegistry | None,
    runtime: TaskRuntime | None,
) -> None:
    agent = await find_agent(registry, parent.agent_id)
    if agent is not None and (agent.get("subagents") or {}).get("cascade_on_parent_kill") is False:
        return
    children = await storage.list_sessions(spawned_by=parent.session_key, status=SessionStatus.RUNNING, limit=None)
    for child in children:
        # Two sessions can name each other as the one that spawned them.
        if child.session_key in seen:
            continue
        seen.add(child.session_key)
        if runtime is not None:
            outcome = runtime.cancel(session_key=child.session_key, source=_SOURCE, reason=_SOURCE)
            if isawaitable(outcome):
                await outcome
        await _kill_children(storage, child, seen, registry, runtime)
        # Gone since the listing: there is nothing left to mark.
        with suppress(SessionNotFoundError):
            await storage.modify_session(child.session_key, _kill_if_running)


def _kill_if_running(node: SessionNode) -> dict[str, object]:
    # A child that ended by itself since the listing keeps the status that it ended with.
    return final_fields(node, SessionStatus.KILLED) if node.status == SessionStatus.RUNNING else {}


async def wait_until_final(storage: SessionStorage, session_key: str) -> SessionNode:
    """Wait until the session's status is a final one, and return the session as it is then.

    Raises:
        SessionNotFoundError: there is no such session, or it was deleted meanwhile.
    """
    async with aclosing(storage.watch(session_key)) as events:
        event = asyncio.ensure_future(anext(events))
        try:
            # Its first step comes before the first reading: what is committed behind that step is told.
            await asyncio.sleep(0)
            while True:
                node = await storage.get_session(session_key)
                if node is None:
                    raise SessionNotFoundError(session_key)
                if node.status != SessionStatus.RUNNING:
                    return node
                # Not the event itself: a wait that is given up must not leave the iterator in the middle of a step.
                await asyncio.wait({event})
                # Where the store was closed, the next reading says so.
                with suppress(StopAsyncIteration):
                    await event
                event = asyncio.ensure_future(anext(events))
        finally:
            # The iterator cannot be closed while a step of it is under way.
            event.cancel()
            await asyncio.wait({event})
