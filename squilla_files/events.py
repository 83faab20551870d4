"""What a subscriber is told: one frozen record for each kind of change.

Every event bears its `kind`, the key and epoch of the session, and a `cursor`: handed to `SessionStorage.watch` as
*after*, it goes on just behind that event. `node` is the session as it stands when the event is made; a subscriber that
lags sees in it what is told later, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from squilla_files.findings import Finding
from squilla_files.models import SessionContextState, SessionNode, SessionSummary, TranscriptEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class _Told:
    """What all events bear."""

    session_key: str
    """The session's canonical key; empty in a `Gap` of the whole store, and where damage keeps it from being known."""
    epoch: int
    """The epoch of what happened; an entry of a closed generation that arrives late bears its own."""
    cursor: str
    """Where to go on behind this event: printable, without spaces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended(_Told):
    """A message came."""

    kind: Literal["appended"] = field(default="appended", init=False)
    entry: TranscriptEntry
    """The message, whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed(_Told):
    """A message was taken out, or another took its place."""

    kind: Literal["removed"] = field(default="removed", init=False)
    message_id: str
    """Which one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Created(_Told):
    """The session was created."""

    kind: Literal["created"] = field(default="created", init=False)
    node: SessionNode
    """The session."""
    fields: Mapping[str, Any]
    """Name → value of what its creation set; counters with their sum as in `node`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Updated(_Told):
    """Fields or counters of the session changed."""

    kind: Literal["updated"] = field(default="updated", init=False)
    node: SessionNode
    """The session."""
    fields: Mapping[str, Any]
    """Name → value of what changed; counters with their sum as in `node`. Empty where summaries were taken away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted(_Told):
    """Messages were archived, or a summary was saved or changed."""

    kind: Literal["compacted"] = field(default="compacted", init=False)
    summary: SessionSummary | None
    """The summary as it stands; None for a truncation, or where its file is not here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reset(_Told):
    """A generation was closed and the next one opened."""

    kind: Literal["reset"] = field(default="reset", init=False)
    old_epoch: int
    """The epoch before; `epoch` is the new one."""
    node: SessionNode
    """The session."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextChanged(_Told):
    """A context state was saved or invalidated."""

    kind: Literal["context"] = field(default="context", init=False)
    state: SessionContextState
    """The state as it stands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deleted(_Told):
    """The session was deleted; what comes under its key from now on is told from the beginning."""

    kind: Literal["deleted"] = field(default="deleted", init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class DamageFound(_Told):
    """Something cannot be understood, or cannot be read."""

    kind: Literal["damage"] = field(default="damage", init=False)
    finding: Finding
    """What, where, and what can be done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConflictFound(_Told):
    """A copy of a log appeared, or a log that belongs to another session."""

    kind: Literal["conflict"] = field(default="conflict", init=False)
    finding: Finding
    """What, where, and what can be done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending(_Told):
    """Something that the session's records name is not here yet."""

    kind: Literal["pending"] = field(default="pending", init=False)
    missing: tuple[str, ...]
    """The ids of logs, summaries and context states."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap(_Told):
    """A cursor cannot be resumed exactly: read the state anew. What comes behind is told from the present state on."""

    kind: Literal["gap"] = field(default="gap", init=False)


Event: TypeAlias = (
    Appended
    | Removed
    | Created
    | Updated
    | Compacted
    | Reset
    | ContextChanged
    | Deleted
    | DamageFound
    | ConflictFound
    | Pending
    | Gap
)
"""Whatever a subscriber is told."""
