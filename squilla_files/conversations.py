"""What is said in a session: adding to it, reading it, shortening it, and the context made from it.

The verbs of `squilla_files.manager.SessionManager` that concern the transcript. They decide; the store commits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from squilla_files.clock import now_ms
from squilla_files.keys import canonicalize_session_key
from squilla_files.models import TranscriptEntry
from squilla_files.stamps import load_zone, stamp_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from squilla_files.models import JsonObject, JsonValue, SessionContextState
    from squilla_files.storage import SessionStorage

_PROVENANCE: Final = ("kind", "origin_session_id", "source_session_key", "source_channel", "source_tool")


class TranscriptPage(NamedTuple):
    """A piece of the canonical transcript."""

    entries: list[TranscriptEntry]  #: in transcript order
    has_more: bool  #: whether there are entries before these
    canonical_complete: bool  #: whether all that was ever said in this generation is here on this device


def _provenance_fields(provenance: object) -> dict[str, Any]:
    if provenance is None:
        return {}
    source = {"kind": provenance} if isinstance(provenance, str) else provenance
    given = {
        f"provenance_{name}": source.get(name) if isinstance(source, Mapping) else getattr(source, name, None)
        for name in _PROVENANCE
    }
    return {name: value.value if isinstance(value, Enum) else value for name, value in given.items()}


def _size_bytes(content: JsonValue) -> int:
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    return len(text.encode())


class Conversations:
    """The verbs on what is said in a session."""

    def __init__(
        self,
        storage: SessionStorage,
        memory_sync_notify: Callable[[int], object] | None = None,
        *,
        inject_time_prefix: bool = True,
        time_prefix_tz: str | None = None,
    ) -> None:
        self._storage = storage
        self._memory_sync_notify = memory_sync_notify
        self._inject_time_prefix = inject_time_prefix
        self._zone = load_zone(time_prefix_tz)

    @property
    def storage(self) -> SessionStorage:
        """The store below."""
        return self._storage

    def stamp_user_text(self, text: str) -> str:
        """Return *text* with a line that tells the present time in front, as `append_message` stores what a user says.

        Once: text that bears such a line keeps it. Empty text, a JSON envelope, and all text where the manager was made
        with ``inject_time_prefix=False`` come back as they are.
        """
        return stamp_text(text, at_ms=now_ms(), zone=self._zone) if self._inject_time_prefix else text

    async def append_message(
        self,
        session_key: str,
        role: str,
        content: JsonValue,
        *,
        tool_calls: list[JsonObject] | None = None,
        tool_call_id: str | None = None,
        reasoning_content: str | None = None,
        turn_usage: JsonObject | None = None,
        token_count: int | None = None,
        provenance: object = None,
    ) -> TranscriptEntry:
        """Add a message to the end of the session's transcript and say that the session is in use.

        Args:
            session_key: the session.
            role: user, assistant, system or tool.
            content: the text, or blocks as JSON; a user's text gets the line of the time (`stamp_user_text`).
            tool_calls: the tools that an assistant calls.
            tool_call_id: the call that a tool's result answers.
            reasoning_content: what an assistant thought; left out for every other role.
            turn_usage: tokens and cost of the turn, kept for an assistant. Who gives it accounts for the turn in the
                session's counters, by `update`.
            token_count: tokens of the message. Without *turn_usage* they are added to ``total_tokens``, which is then
                not fresh.
            provenance: where the message came from: a mapping or an object with ``kind``, ``origin_session_id``,
                ``source_session_key``, ``source_channel`` and ``source_tool``, as far as they are known; or the kind.

        Returns:
            The entry as stored, with its ``id``.

        Raises:
            SessionNotFoundError: there is no such session.
            UnstorableTypeError, UnstorableValueError: JSON cannot hold a value. Nothing was written.

        Durability: the message and the counters are one commit, on disk when this returns. An error of the callback
        ``memory_sync_notify`` comes after that, and goes to the caller.
        """
        now = now_ms()
        is_assistant = role == "assistant"
        entry = TranscriptEntry(
            session_id="",
            session_key=canonicalize_session_key(session_key),
            role=role,
            content=self.stamp_user_text(content) if role == "user" and isinstance(content, str) else content,
            tool_calls=tool_calls,
            tool_call_id=tool_call_id,
            reasoning_content=reasoning_content if is_assistant else None,
            turn_usage=turn_usage if is_assistant else None,
            created_at=now,
            token_count=token_count,
            **_provenance_fields(provenance),
        )
        counted = turn_usage is None and bool(token_count)
        stored = await self._storage.append_entry(
            session_key,
            entry,
            fields={"updated_at": now, "total_tokens_fresh": False} if counted else {"updated_at": now},
            counters={"total_tokens": token_count} if counted and token_count else {},
        )
        if self._memory_sync_notify is not None:
            self._memory_sync_notify(_size_bytes(stored.content))
        return stored

    async def inject_message(
        self, session_key: str, message: str, provenance: object = "inter_session"
    ) -> dict[str, Any]:
        """Add a message that another session, or the application, says in the user's place; return it as a dict.

        Raises:
            SessionNotFoundError: there is no such session.
        """
        return (await self.append_message(session_key, "user", message, provenance=provenance)).model_dump(mode="json")

    async def remove_message(self, session_key: str, message_id: str) -> bool:
        """Take a live message out of the transcript; the counters stay. Return whether there was one."""
        return await self._storage.remove_entry(session_key, message_id)

    async def get_transcript(self, session_key: str, limit: int | None = None) -> list[TranscriptEntry]:
        """Return the live entries, oldest first, at most *limit* from the oldest.

        Of what was compacted they say nothing: a model is given ``get_summaries`` in front of them.

        Raises:
            SessionNotFoundError: there is no such session.
        """
        return await self._storage.read_entries(session_key, limit=limit)

    async def read_transcript(self, session_key: str, limit: int | None = None) -> list[dict[str, Any]]:
        """Return what `get_transcript` does, as plain dicts."""
        return [entry.model_dump(mode="json") for entry in await self.get_transcript(session_key, limit)]

    async def get_canonical_transcript(self, session_key: str) -> list[TranscriptEntry]:
        """Return archived and live entries in transcript order.

        Raises:
            SessionNotFoundError: there is no such session.
        """
        return await self._storage.read_entries(session_key, canonical=True)

    async def get_canonical_transcript_page(
        self, session_key: str, *, limit: int, before: str | None = None
    ) -> TranscriptPage:
        """Return the last *limit* archived and live entries, or the last ones before the message *before*.

        Raises:
            SessionNotFoundError: there is no such session.
            MessageNotFoundError: it has no message *before*.
        """
        return TranscriptPage(*await self._storage.read_page(session_key, limit=limit, before=before))

    async def truncate(self, session_key: str, max_messages: int = 20) -> dict[str, Any]:
        """Archive all live entries but the last *max_messages*; they stay in the canonical transcript.

        Where the cut would part a tool's result from its call, more is kept.

        Returns:
            ``truncated`` (whether anything was), ``before_count`` and ``after_count`` (live entries).

        Raises:
            SessionNotFoundError: there is no such session.
            ValueError: *max_messages* is negative.
        """
        before, after = await self._storage.truncate_session(session_key, max_messages)
        return {"truncated": after < before, "before_count": before, "after_count": after}

    async def save_context_state(self, state: SessionContextState) -> SessionContextState:
        """Store *state* for its session and return it with its ``id``.

        Raises:
            SessionNotFoundError: its session does not exist.
        """
        return await self._storage.save_context_state(state)

    async def get_context_states(
        self,
        session_key: str,
        provider: str | None = None,
        state_kind: str | None = None,
        valid_only: bool = True,
    ) -> list[SessionContextState]:
        """Return the session's context states; those that were invalidated, too, where *valid_only* is false.

        Whether one has expired is for the application to judge.
        """
        return await self._storage.get_context_states(
            session_key, provider=provider, state_kind=state_kind, valid_only=valid_only
        )

    async def invalidate_context_states(
        self, session_key: str, provider: str | None = None, state_kind: str | None = None, *, reason: str
    ) -> int:
        """Mark the session's context states, or those of one provider or kind, as invalid; return how many.

        They stay readable, with *reason*.
        """
        return await self._storage.invalidate_context_states(
            session_key, provider=provider, state_kind=state_kind, reason=reason
        )
