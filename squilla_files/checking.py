"""What is wrong with one session's directory. Synchronous, takes no lock, and changes nothing."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from squilla_files import layout
from squilla_files.arrival import lacks
from squilla_files.checkpoints import checkpoint_of
from squilla_files.codec import decode_document
from squilla_files.contents import read_lines
from squilla_files.deletions import Deletions
from squilla_files.devices import Devices
from squilla_files.errors import CorruptFileError, UnsupportedFormatError
from squilla_files.files import Files
from squilla_files.findings import (
    BACK,
    CORRUPT_DELETION,
    DELETED_REST,
    EMPTY_DIRECTORY,
    FOREIGN,
    LATER_FORMAT,
    MANIFEST_MISSING,
    MANIFEST_STALE,
    MANIFEST_WRONG,
    MISSING_DOCUMENT,
    MISSING_LOG,
    MISSING_RECORDS,
    TEMPORARY,
    TWIN,
    UNMOVED_LOG,
    UNREFERENCED,
    WRONG_MODE,
    Finding,
    finding,
)
from squilla_files.gathering import SessionFiles, is_named
from squilla_files.journal import CONTEXT, SUMMARY, Log, Record
from squilla_files.keys import canonicalize_session_key
from squilla_files.session_dir import prefix_of
from squilla_files.timeline import Deletion, Timeline, fold

# What moves while it is looked at is looked at again this often.
_LOOKS: Final = 4


@dataclass(frozen=True, slots=True)
class SessionCheck:
    """What was found in one directory."""

    dir_name: str
    """The directory's name."""
    key: str | None
    """The canonical key of its session; None where nothing tells it, or where the directory is another's twin."""
    findings: tuple[Finding, ...]
    """What was found, in no order that means anything."""


def check_session(
    files: Files, paths: layout.Layout, deletions: Deletions, devices: Devices, dir_name: str
) -> SessionCheck:
    """Return what is wrong with the directory *dir_name*; nothing where there is none.

    Raises:
        OSError: the process is out of descriptors or memory.
    """
    sizes: dict[str, int] | None = None
    for _ in range(_LOOKS):
        check = _Check(files, paths, deletions, devices, dir_name)
        check.conclude()
        before, sizes = sizes, {name: log.size for name, log in check.found.logs.items()}
        lacking = any(item.kind in (MISSING_LOG, MISSING_DOCUMENT) for item in check.survey.findings)
        if not check.survey.vanished and (not lacking or sizes == before):
            break
    named = [item if item.session_key else replace(item, session_key=check.key) for item in check.survey.findings]
    return SessionCheck(dir_name, None if check.is_twin else check.key, tuple(named))


class _Check:
    """One look at a directory."""

    def __init__(
        self, files: Files, paths: layout.Layout, deletions: Deletions, devices: Devices, dir_name: str
    ) -> None:
        self.key: str | None = None
        self.is_twin = False
        self.found = SessionFiles(files, paths, dir_name)
        self.survey = self.found.survey
        self._files = files
        self._paths = paths
        self._deletions = deletions
        self._devices = devices
        self._dir_name = dir_name
        self._own: list[Log] = []

    def conclude(self) -> None:
        """Find the session's key, and what the files say together."""
        survey = self.survey
        if not survey.directories:
            return
        self._find_key()
        if not self.is_twin and layout.parse_session_dir_name(self._dir_name) is None:
            survey.findings.clear()  # nothing in it is the store's
            survey.add(FOREIGN, self.found.path, "a directory that holds no session")
            return
        for log in self.found.logs.values():
            if log.session_key in (None, self.key) or self.is_twin:
                self._own.append(log)
                self.found.report_damage(log)
            else:
                detail = f"a log of the session {log.session_key!r}, which is not read here"
                survey.findings.append(finding(FOREIGN, self._relative(log.name), detail, severity="warning"))
        if self.is_twin:
            survey.add(TWIN, self.found.path, f"holds the session {self.key!r} under a name that is not its own")
            return
        self._check_emptiness()
        deletions = self._read_deletions()
        device = survey.attempt(self._paths.local, lambda _: self._own_device())
        timeline = None if deletions is None else self._fold(deletions, device)
        if deletions is None or timeline is None:
            return
        if not timeline.exists and deletions:
            survey.add(DELETED_REST, self.found.path, "the directory of a session that was deleted")
        else:
            self._check_copies()
            self._check_logs()
            self._check_manifests(device, timeline)
            if timeline.exists:
                self._check_documents(timeline)
            if timeline.back:
                survey.add(BACK, self.found.path, "the session was deleted, and is back by records that came later")

    # --- whose directory it is ---------------------------------------------------------------------------------

    def _find_key(self) -> None:
        keys = [log.session_key for log in self.found.logs.values() if log.session_key is not None]
        named = [manifest.session_key for manifest in self.found.manifests.values()]
        fitting = [key for key in (*keys, *named) if self._fits(key)] or self._keys_of_deletions()
        if fitting:
            self.key = fitting[0]
        elif keys:
            self.key, self.is_twin = keys[0], True

    def _fits(self, key: str) -> bool:
        try:
            canonical = canonicalize_session_key(key)
        except ValueError:
            return False
        return canonical == key and layout.session_dir_name(key) == self._dir_name

    def _keys_of_deletions(self) -> list[str]:
        keys = []
        for name in self.survey.attempt(self._paths.deleted, lambda _: self._deletions.names(self._dir_name)) or ():
            data = self.survey.read(os.path.join(self._paths.deleted, name))
            key = (decode_document(data or b"") or {}).get("session_key")
            if type(key) is str and self._fits(key):
                keys.append(key)
        return keys

    def _check_emptiness(self) -> None:
        survey = self.survey
        if (
            not survey.paths
            and not survey.unfinished
            and all(item.kind in (TEMPORARY, WRONG_MODE) for item in survey.findings)
        ):
            survey.add(EMPTY_DIRECTORY, self.found.path, "the directory of a session holds no file")

    # --- what the logs say -------------------------------------------------------------------------------------

    def _read_deletions(self) -> list[Deletion] | None:
        """Return the deletions of the session, None where they cannot be known."""
        survey = self.survey
        try:
            return survey.attempt(self._paths.deleted, lambda _: self._deletions.read(self._dir_name))
        except CorruptFileError as error:
            survey.add(CORRUPT_DELETION, error.path, error.reason)
        except UnsupportedFormatError as error:
            survey.add(LATER_FORMAT, error.path, f"written by a later version of the format: {error.version!r}")
        return None

    def _own_device(self) -> str:
        """Return the name under which this machine writes here, "" where it never wrote."""
        memory = self._devices.recall(self._dir_name)
        return (memory.device if memory is not None else self._devices.known()) or ""

    def _fold(self, deletions: list[Deletion], device: str | None) -> Timeline | None:
        own = self.found.manifests.get(layout.manifest_name(device)) if device else None

        def read_line(record: Record) -> bytes:
            return read_lines(self._files, self.found.path, [record])[0]

        logs = sorted(self._own, key=lambda log: log.name)
        floor = own.epoch if own is not None else 0
        return self.survey.attempt(self.found.path, lambda _: fold(logs, deletions, floor, read_line))

    def _relative(self, name: str) -> str:
        return self.survey.relative(self.found.full(name))

    def _add(self, kind: str, name: str, detail: str) -> None:
        self.survey.add(kind, self.found.full(name), detail)

    def _check_copies(self) -> None:
        for log, kind, detail in self.found.copies():
            if log in self._own:
                self._add(kind, log.name, detail)

    def _check_logs(self) -> None:
        ids = {log.log_id for log in self._own}
        named = [log for log in self._own if is_named(log)]
        continued = {(log.device, log.source) for log in named}
        missing: set[str] = set()
        for log in self._own:
            if log.source is not None and log.source not in ids and log.source not in missing:
                missing.add(log.source)
                self._add(MISSING_LOG, log.name, f"continues the log {log.source} of {log.device}, which is not here")
        for log in named:
            if not prefix_of(log.name) and log.log_id is not None and (log.device, log.log_id) in continued:
                self._add(UNMOVED_LOG, log.name, "another log continues it")

    def _check_manifests(self, device: str | None, timeline: Timeline) -> None:
        names = self.survey.attempt(self._paths.deleted, lambda _: self._deletions.names(self._dir_name)) or ()
        for name, manifest in self.found.manifests.items():
            if manifest.session_key != self.key:
                self._add(MANIFEST_WRONG, name, f"of another session: {manifest.session_key!r}")
                continue
            for lack in lacks(manifest, self._own, names):
                detail = f"knows {lack.said} bytes of {lack.name}; {lack.here} are here"
                self._add(MISSING_RECORDS, name, detail)
        if device and timeline.exists and self.key is not None:
            self._check_own_manifest(self.key, device, timeline, names)

    def _check_own_manifest(self, key: str, device: str, timeline: Timeline, deletions: Iterable[str]) -> None:
        name = layout.manifest_name(device)
        stored = self.found.manifests.get(name)
        wanted = checkpoint_of(key, device, timeline, self._own, tuple(deletions))
        if stored is None:
            known = {item.path for item in self.survey.findings}
            if self._relative(name) not in known and any(log.device == device and is_named(log) for log in self._own):
                self._add(MANIFEST_MISSING, name, "this device has a log here, and no manifest")
        elif (stored.logs, stored.deletions) != (wanted.logs, wanted.deletions):
            self._add(MANIFEST_STALE, name, "something was written or came since it was made")
        elif stored.session_key == key and stored != wanted:
            self._add(MANIFEST_WRONG, name, "says otherwise than the logs for which it vouches")

    def _check_documents(self, timeline: Timeline) -> None:
        listed = [(SUMMARY, a) for a in timeline.summaries] + [(CONTEXT, a) for a in timeline.contexts]
        for kind, attachment in listed:
            if not attachment.removed and (kind, attachment.doc_id) not in self.found.documents:
                record = attachment.record
                detail = f"names the {kind} {attachment.doc_id}, which is not here"
                path = self._relative(record.log.name)
                self.survey.findings.append(finding(MISSING_DOCUMENT, path, detail, offset=record.offset))
        known = {(kind, attachment.doc_id) for kind, attachment in listed}
        for (kind, doc_id), name in self.found.documents.items():
            if (kind, doc_id) not in known:
                self._add(UNREFERENCED, name, f"no record names the {kind} {doc_id}")
