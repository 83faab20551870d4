"""Deleting sessions by age and by number, the oldest first, whatever their status."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from squilla_files.clock import now_ms
from squilla_files.errors import CorruptFileError, UnsafePathError, UnsupportedFormatError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from squilla_files.storage import SessionStorage

_LOGGER = logging.getLogger(__name__)


class Removal(NamedTuple):
    """A session that is to be deleted."""

    session_key: str  #: its canonical key
    reason: str  #: why
    updated_before_ms: int  #: it is spared if it was updated at this time (ms) or later


async def stale_sessions(storage: SessionStorage, max_age_ms: int) -> list[Removal]:
    """Return the sessions whose recorded ``updated_at`` is more than *max_age_ms* ago, oldest first, running or not.

    Raises:
        ValueError: *max_age_ms* is negative.
    """
    if max_age_ms < 0:
        raise ValueError(f"max_age_ms must not be negative: {max_age_ms}")
    now = now_ms()
    nodes = await storage.list_sessions(limit=None)
    return [
        Removal(node.session_key, f"updated {now - node.updated_at} ms ago, allowed are {max_age_ms}", now - max_age_ms)
        for node in reversed(nodes)
        if node.updated_at < now - max_age_ms
    ]


async def surplus_sessions(storage: SessionStorage, max_entries: int) -> list[Removal]:
    """Return the sessions beyond the *max_entries* that were updated last, oldest first, running or not.

    Raises:
        ValueError: *max_entries* is negative.
    """
    if max_entries < 0:
        raise ValueError(f"max_entries must not be negative: {max_entries}")
    nodes = await storage.list_sessions(limit=None)
    # One that is used between this listing and its deletion is not among the oldest any more.
    return [
        Removal(node.session_key, f"number {rank} by age, allowed are {max_entries}", node.updated_at + 1)
        for rank, node in reversed([*enumerate(nodes, start=1)][max_entries:])
    ]


async def remove_sessions(storage: SessionStorage, removals: Sequence[Removal]) -> int:
    """Delete the sessions with all that belongs to them, and return how many were deleted.

    One that is locked or cannot be read is skipped; a warning tells its key and the reason. One that was updated in the
    meantime is spared.
    """
    deleted = 0
    for removal in removals:
        try:
            deleted += await storage.delete_stale(removal.session_key, updated_before_ms=removal.updated_before_ms)
        # A lock that is held shows itself as a TimeoutError, which is an OSError.
        except (OSError, CorruptFileError, UnsafePathError, UnsupportedFormatError) as error:
            _LOGGER.warning("Session %r was not deleted (%s): %s", removal.session_key, removal.reason, error)
    return deleted
