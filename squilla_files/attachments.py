"""Summaries and context states: small documents beside the logs (FORMAT.md, "Summaries and context states").

A document is written first, under a new name, and becomes visible by the record that names its id. It is found by the
id inside; the name of its file is for people. Changes of one are records, so no document is ever rewritten.
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
from collections.abc import Iterable
from copy import deepcopy
from typing import Any, TypeVar

from squilla_files import layout
from squilla_files.codec import check_fields, decode_document, encode_document
from squilla_files.errors import UnsupportedFormatError
from squilla_files.freshness import Stamp, stamp_of
from squilla_files.journal import CONTEXT, FORMAT, SUMMARY, later_version
from squilla_files.models import SessionContextState, SessionSummary, load
from squilla_files.session_dir import SessionDir
from squilla_files.timeline import Attachment

_log = logging.getLogger(__name__)

_ID_BITS_OF_RECORD = 32
_ID_BITS_OF_SESSION = 21
# What follows from the record that names the document, and from its place among the others.
_NOT_STORED = frozenset({"id", "compaction_index"})

_D = TypeVar("_D", SessionSummary, SessionContextState)


def session_bits(dir_name: str) -> int:
    """Return the high bits of the ids of a session's summaries and states: 21 bits of the hash in *dir_name*."""
    digits = layout.parse_session_dir_name(dir_name) or "0" * 16
    return int(digits, 16) >> (4 * len(digits) - _ID_BITS_OF_SESSION)


def number_of(dir_name: str, doc_id: str) -> int:
    """Return the id of a summary or state, 53 bits: it tells the session without a scan."""
    low = int.from_bytes(hashlib.sha256(doc_id.encode()).digest()[: _ID_BITS_OF_RECORD // 8])
    return session_bits(dir_name) << _ID_BITS_OF_RECORD | low


def belongs_to(number: int, dir_name: str) -> bool:
    """Say whether the summary or state with this id may belong to the session in *dir_name*."""
    return number >> _ID_BITS_OF_RECORD == session_bits(dir_name)


def stored_values(record: SessionSummary | SessionContextState) -> dict[str, Any]:
    """Return what the document of *record* holds.

    Raises:
        UnstorableTypeError: a value of a type that JSON does not have.
        UnstorableValueError: a value that would not come back equal.
    """
    values = {name: value for name, value in record.model_dump().items() if name not in _NOT_STORED}
    check_fields(values)
    return values


class Attachments:
    """The summaries and context states of one session."""

    def __init__(self, session: SessionDir) -> None:
        self._session = session
        self._files = session.files
        self._directories = {
            SUMMARY: session.paths.summaries(session.dir_name),
            CONTEXT: session.paths.contexts(session.dir_name),
        }
        self._read: dict[str, tuple[Stamp, dict[str, Any] | None]] = {}

    # --- writing -----------------------------------------------------------------------------------------------

    def write(self, record: SessionSummary | SessionContextState, device: str) -> str:
        """Write the document of *record* under a new name, and return its id.

        Raises:
            UnstorableTypeError: a value of a type that JSON does not have.
            UnstorableValueError: a value that would not come back equal.
            OSError: it was not written.

        Durability: durable on return, and invisible until a record names its id.
        """
        kind = SUMMARY if isinstance(record, SessionSummary) else CONTEXT
        doc_id = secrets.token_hex(8)
        document = {"type": kind, "format": FORMAT, "id": doc_id, **stored_values(record)}
        directory = self._directories[kind]
        self._files.ensure_dir(directory)
        numbers = [layout.parse_numbered_name(entry.name) for entry in self._files.scan(directory)]
        number = 1 + max((name.number for name in numbers if name is not None), default=0)
        name = layout.summary_name(number, device) if kind == SUMMARY else layout.context_name(number, device)
        self._files.replace_file(os.path.join(directory, name), encode_document(document))
        return doc_id

    def index_of(self, doc_id: str) -> int:
        """Return the number of a summary that was committed, be it that memory lacks it until the next refresh."""
        timeline = self._session.timeline
        known = [a for a in timeline.summaries if timeline.generation_of(a.record) == timeline.generation]
        return next((a.index for a in known if a.doc_id == doc_id), len(known))

    # --- reading -----------------------------------------------------------------------------------------------

    def summaries(self, attachments: Iterable[Attachment]) -> list[SessionSummary]:
        """Return the summaries that *attachments* are, those that are here, in their order."""
        found = []
        for attachment, document in self._present(SUMMARY, attachments):
            summary = self._build(SessionSummary, attachment, document)
            summary.compaction_index = attachment.index
            found.append(summary)
        return found

    def contexts(self, attachments: Iterable[Attachment]) -> list[SessionContextState]:
        """Return the context states that *attachments* are, those that are here, in their order."""
        timeline = self._session.timeline
        found = []
        for attachment, document in self._present(CONTEXT, attachments):
            state = self._build(SessionContextState, attachment, document)
            if timeline.generation_of(attachment.record) != timeline.generation and state.valid:
                state.valid, state.invalid_reason = False, "session_reset"
            found.append(state)
        return found

    def missing(self) -> list[tuple[str, str]]:
        """Return (kind, id) of the documents that records name and that are not here, or cannot be understood."""
        timeline = self._session.timeline
        return [
            (kind, attachment.doc_id)
            for kind, attachments in ((SUMMARY, timeline.summaries), (CONTEXT, timeline.contexts))
            for attachment in attachments
            if not attachment.removed and attachment.doc_id not in self.documents(kind)
        ]

    def _build(self, cls: type[_D], attachment: Attachment, document: dict[str, Any]) -> _D:
        # Documents are kept for the next read: what a caller does to its record must not show there.
        record = load(cls, deepcopy({**document, **attachment.changes}))
        record.id = number_of(self._session.dir_name, attachment.doc_id)
        record.session_key = self._session.key
        return record

    def _present(self, kind: str, attachments: Iterable[Attachment]) -> Iterable[tuple[Attachment, dict[str, Any]]]:
        documents: dict[str, dict[str, Any]] | None = None
        for attachment in attachments:
            documents = self.documents(kind) if documents is None else documents
            document = documents.get(attachment.doc_id)
            if document is None:
                _log.warning("session %s: the %s %s is not here", self._session.key, kind, attachment.doc_id)
            else:
                yield attachment, document

    def documents(self, kind: str) -> dict[str, dict[str, Any]]:
        """Return id → document of those of *kind* that are here, whatever their files are called.

        Raises:
            OSError: one cannot be read.
            UnsupportedFormatError: a later major version wrote one.
        """
        directory = self._directories[kind]
        try:
            self._files.check_directory(directory)
        except FileNotFoundError:
            return {}
        found: dict[str, dict[str, Any]] = {}
        # Files with a proper name first: of two that claim one id the same one wins everywhere.
        entries = [e for e in self._files.scan(directory) if e.is_file and not layout.is_in_progress(e.name)]
        for entry in sorted(entries, key=lambda e: (layout.parse_numbered_name(e.name) is None, e.name)):
            path = os.path.join(directory, entry.name)
            document = self._document(path)
            if document is None or document.get("type") != kind or type(document.get("id")) is not str:
                continue
            version = later_version(document)
            if version is not None:
                raise UnsupportedFormatError(path, version)
            found.setdefault(document["id"], document)
        return found

    def _document(self, path: str) -> dict[str, Any] | None:
        try:
            stamp = stamp_of(self._files.check_regular(path))
            known = self._read.get(path)
            if known is None or known[0] != stamp:
                known = (stamp, decode_document(self._files.read_file(path)))
                self._read[path] = known
        except FileNotFoundError:
            return None  # a sync service is exchanging it
        return known[1]
