"""The document that a reset leaves of the generation it closes (FORMAT.md, "Resets")."""

from __future__ import annotations

import logging
import os
import secrets

from squilla_files import layout
from squilla_files.attachments import Attachments
from squilla_files.clock import now_ms
from squilla_files.codec import encode_document
from squilla_files.errors import CorruptFileError, UnsafePathError, UnstorableTypeError
from squilla_files.session_dir import SessionDir

_log = logging.getLogger(__name__)

SCHEMA_VERSION = 1


def write_archive(session: SessionDir, attachments: Attachments, directory: str, reason: str) -> str | None:
    """Write the present generation as one readable JSON document.

    Returns:
        The document's path; None where the generation is empty, or where the document could not be made: that is
        logged, and loses nothing, for the logs keep everything.

    Raises:
        UnsupportedFormatError: a later major version wrote a summary; nothing was written.

    Durability: durable on return.
    """
    node = session.node()
    timeline = session.timeline
    if node is None:
        return None
    try:
        summaries = attachments.summaries(timeline.current(timeline.summaries))
        if not (timeline.canonical or summaries):
            return None
        document = {
            "schema_version": SCHEMA_VERSION,
            "archived_at": now_ms(),
            "reason": reason,
            "session_key": session.key,
            "session_id": node.session_id,
            "session": node.model_dump(mode="json"),
            "transcript_entries": [e.model_dump(mode="json") for e in session.entries(timeline.canonical)],
            "summaries": [summary.model_dump(mode="json") for summary in summaries],
        }
        session.files.ensure_dir(directory)
        name = layout.archive_document_name(session.dir_name, timeline.epoch, secrets.token_hex(4))
        path = os.path.join(directory, name)
        session.files.replace_file(path, encode_document(document))
    except (OSError, UnsafePathError, UnstorableTypeError, CorruptFileError) as error:
        # A foreign entry may be nested deeper than the library writes.
        _log.warning("session %s: the closed generation was not archived in %s: %s", session.key, directory, error)
        return None
    return path
