"""What passes between the lifecycle and the store: one reading of a session, and one rewriting of its transcript."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from squilla_files.models import SessionContextState, SessionNode, SessionSummary, TranscriptEntry


def _nothing() -> Mapping[str, Any]:
    return MappingProxyType({})


@dataclass(frozen=True)
class Snapshot:
    """A session and its live transcript as they stood at one moment."""

    node: SessionNode  #: the session
    entries: list[TranscriptEntry]  #: live, in transcript order


@dataclass(frozen=True, kw_only=True)
class CompactionCommit:
    """A rewriting of the live transcript, to be written whole or not at all.

    Every live entry is archived, but for those in ``kept``, those that ``replacements`` replaces, and those that were
    appended since where ``keep_appended`` allows them. The order of what stays is never changed.
    """

    preimage: Sequence[str] | None  #: message ids of the live transcript as it was read; None: it is not checked
    keep_appended: bool = False  #: whether entries that were only appended since are accepted; they stay live
    expected_epoch: int | None = None  #: the epoch that was read; None: it is not checked
    kept: Collection[str]  #: message ids that stay live
    replacements: Mapping[str, TranscriptEntry] = field(default_factory=_nothing)  #: what takes a live message's place
    appended: Sequence[TranscriptEntry] = ()  #: entries that come to stand at the end
    summary: SessionSummary | None = None  #: the summary of what was archived
    context_states: Sequence[SessionContextState] = ()  #: states made from it
    fields: Mapping[str, object] = field(default_factory=_nothing)  #: fields of the session to set
    counters: Mapping[str, int | float] = field(default_factory=_nothing)  #: what its counters rise by
