"""How far a session has arrived on this device: what is here of each device, and what others speak of that is not."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from squilla_files import layout
from squilla_files.attachments import Attachments
from squilla_files.errors import CorruptManifestError, UnsupportedFormatError
from squilla_files.files import DirEntryInfo
from squilla_files.findings import DeviceStatus, Missing, SyncStatus
from squilla_files.journal import MESSAGE, SUMMARY, Log
from squilla_files.manifest import Manifest, decode_manifest
from squilla_files.session_dir import SessionDir


class Lack(NamedTuple):
    """A log that a manifest knows longer than it is here."""

    device: str
    """Whose log."""
    name: str
    """Path below the session's directory, with `/`, where the writer of the manifest had it."""
    here: int
    """How many bytes of it are here."""
    said: int
    """How many bytes of it the writer of the manifest had."""


def lacks(manifest: Manifest, logs: Iterable[Log], deletions: Sequence[str]) -> Iterator[Lack]:
    """Yield what *manifest* knows of logs beyond what is here.

    Nothing where the session was deleted since: what is gone then is no loss. Copies are looked at by their content.
    """
    if tuple(deletions) != manifest.deletions:
        return
    sizes: dict[tuple[str, int], int] = {}
    for log in logs:
        parsed = layout.parse_log_name(log.name.rpartition("/")[2])
        if parsed is not None:
            place = (parsed.device, parsed.number)
            sizes[place] = max(log.size, sizes.get(place, 0))
    for mark in manifest.logs:
        parsed = layout.parse_log_name(mark.name.rpartition("/")[2])
        if parsed is not None and parsed.digest is None:
            here = sizes.get((parsed.device, parsed.number), 0)
            if here < mark.size:
                yield Lack(parsed.device, mark.name, here, mark.size)


def sync_status(directory: SessionDir, attachments: Attachments) -> SyncStatus:
    """Return how far the session has arrived. The caller has refreshed *directory*. Changes nothing.

    Raises:
        OSError: something cannot be read.
    """
    missing: list[Missing] = [
        *_missing_logs(directory),
        *_missing_ends(directory),
        *_missing_documents(directory, attachments),
    ]
    missing += [Missing("placeholder", name, _device_of(name), "not on this machine") for name in _evicted(directory)]
    return SyncStatus(directory.key, tuple(_devices(directory)), tuple(sorted(set(missing), key=_order)))


def _order(missing: Missing) -> tuple[str, str]:
    return missing.kind, missing.name


def _devices(directory: SessionDir) -> Iterator[DeviceStatus]:
    own = directory.own_device()
    counting = directory.timeline.records.values()
    for device in sorted({log.device for log in directory.logs.values()} | {record.device for record in counting}):
        theirs = [record for record in counting if record.device == device]
        yield DeviceStatus(
            device,
            own=device == own,
            logs=tuple(name for name, log in sorted(directory.logs.items()) if log.device == device),
            entries=sum(record.kind == MESSAGE for record in theirs),
            last_id=max((record.id for record in theirs), default=0),
        )


def _missing_logs(directory: SessionDir) -> Iterator[Missing]:
    here = {log.log_id for log in directory.logs.values()}
    for log in directory.logs.values():
        if log.source is not None and log.source not in here:
            yield Missing("log", log.source, log.device, f"{log.name} continues it")


def _missing_ends(directory: SessionDir) -> Iterator[Missing]:
    deletions = directory.deletions.names(directory.dir_name)
    for entry in _scan(directory, ""):
        name = entry.name
        if not entry.is_file or layout.parse_manifest_name(name) is None:
            continue
        path = os.path.join(directory.path, name)
        try:
            manifest = decode_manifest(directory.files.read_file(path), path)
        except (FileNotFoundError, CorruptManifestError, UnsupportedFormatError):
            continue  # being exchanged; or for `verify` to report
        if manifest.session_key != directory.key:
            continue  # for `verify` to report
        for lack in lacks(manifest, directory.logs.values(), deletions):
            yield Missing("records", lack.name, lack.device, f"{lack.here} of {lack.said} bytes that {name} knows")


def _missing_documents(directory: SessionDir, attachments: Attachments) -> Iterator[Missing]:
    timeline = directory.timeline
    for kind, doc_id in attachments.missing():
        listed = timeline.summaries if kind == SUMMARY else timeline.contexts
        device = next(a.record.device for a in listed if a.doc_id == doc_id)
        yield Missing("summary" if kind == SUMMARY else "context", doc_id, device, "a record names it")


def _evicted(directory: SessionDir) -> Iterator[str]:
    for below in ("", "archive", "summaries", "contexts"):
        for entry in _scan(directory, below):
            name = layout.is_placeholder(entry.name)
            if name is not None:
                yield f"{below}/{name}" if below else name


def _scan(directory: SessionDir, below: str) -> list[DirEntryInfo]:
    path = os.path.join(directory.path, below) if below else directory.path
    try:
        directory.files.check_directory(path)
        return directory.files.scan(path)
    except FileNotFoundError:
        return []


def _device_of(name: str) -> str | None:
    base = name.rpartition("/")[2]
    log, numbered = layout.parse_log_name(base), layout.parse_numbered_name(base)
    if log is not None:
        return log.device
    return numbered.device if numbered is not None else layout.parse_manifest_name(base)
