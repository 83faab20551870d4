"""The manifest that a state of the logs gives (FORMAT.md, "Manifests"). Pure."""

from __future__ import annotations

from collections.abc import Iterable

from squilla_files.journal import Log
from squilla_files.manifest import LogMark, Manifest
from squilla_files.timeline import Timeline


def checkpoint_of(
    key: str, device: str, timeline: Timeline, logs: Iterable[Log], deletions: tuple[str, ...]
) -> Manifest:
    """Return the state that *logs* and *deletions* give together as *device*'s manifest."""
    return Manifest(
        session_key=key,
        device=device,
        epoch=timeline.epoch,
        exists=timeline.exists,
        session=timeline.values,
        session_ids=tuple(timeline.session_ids),
        live=len(timeline.live),
        canonical=len(timeline.canonical),
        logs=tuple(_mark_of(log) for log in sorted(logs, key=lambda log: log.name)),
        deletions=deletions,
    )


def _mark_of(log: Log) -> LogMark:
    last = log.last_record()
    offset, identity = (last.offset, last.identity) if last is not None else (0, None)
    return LogMark(log.name, log.size, len(log.lines), offset, identity)
