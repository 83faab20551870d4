"""The checkpoint of a session: what its logs said when a device last looked (FORMAT.md, "Manifests").

It makes listing fast and the state easy to read with `jq`. It can be deleted and is rebuilt by the next write. It
vouches for a state only while every log still is as it was read: the same files, sizes, and last records.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from squilla_files.codec import counter_of, decode_document, encode_document
from squilla_files.errors import CorruptManifestError, UnsupportedFormatError
from squilla_files.journal import FORMAT, later_version


@dataclass(frozen=True, slots=True)
class LogMark:
    """How far one log was read."""

    name: str
    """Path below the session's directory, with `/`."""
    size: int
    """Bytes."""
    lines: int
    """How many lines stand in them, the first included."""
    last_offset: int
    """Where its last record begins; 0 where it has none."""
    last: str | None
    """The identity of that record."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """One device's checkpoint of one session."""

    session_key: str
    """The canonical key."""
    device: str
    """The device whose checkpoint this is."""
    epoch: int
    """The session's epoch; no answer on this device falls below it."""
    exists: bool
    """Whether there is a session: after a deletion there may be none."""
    session: dict[str, Any]
    """The session's fields and counters, those with their default left out."""
    session_ids: tuple[str, ...]
    """Every session id that the generation has had."""
    live: int
    """Number of live entries."""
    canonical: int
    """Number of canonical entries: live and archived."""
    logs: tuple[LogMark, ...]
    """How far each log was read."""
    deletions: tuple[str, ...]
    """The names of the deletions that were taken into account."""

    def encode(self) -> bytes:
        """Return the manifest as a document."""
        return encode_document(
            {
                "type": "manifest",
                "format": FORMAT,
                "session_key": self.session_key,
                "device": self.device,
                "epoch": self.epoch,
                "exists": self.exists,
                "session": self.session,
                "session_ids": list(self.session_ids),
                "live": self.live,
                "canonical": self.canonical,
                "logs": [
                    {
                        "name": mark.name,
                        "size": mark.size,
                        "lines": mark.lines,
                        "last_offset": mark.last_offset,
                        "last": mark.last,
                    }
                    for mark in self.logs
                ],
                "deletions": list(self.deletions),
            }
        )


def decode_manifest(data: bytes, path: str) -> Manifest:
    """Return the manifest that stands in *data*.

    Raises:
        CorruptManifestError: the bytes are no manifest.
        UnsupportedFormatError: a later major version wrote it.
    """
    document = decode_document(data)
    if document is None:
        raise CorruptManifestError(path, 0, "not a JSON object")
    version = later_version(document)
    if version is not None:
        raise UnsupportedFormatError(path, version)
    try:
        return _from_document(document)
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptManifestError(path, 0, f"not a manifest ({error})") from error


def _from_document(document: dict[str, Any]) -> Manifest:
    if document["type"] != "manifest" or type(document["session"]) is not dict:
        raise ValueError("another type of document")
    return Manifest(
        session_key=str(document["session_key"]),
        device=str(document["device"]),
        epoch=_whole(document["epoch"]),
        exists=document["exists"] is True,
        session=document["session"],
        session_ids=tuple(str(item) for item in document["session_ids"]),
        live=_whole(document["live"]),
        canonical=_whole(document["canonical"]),
        logs=tuple(
            LogMark(
                str(item["name"]),
                _whole(item["size"]),
                _whole(item["lines"]),
                _whole(item["last_offset"]),
                None if item["last"] is None else str(item["last"]),
            )
            for item in document["logs"]
        ),
        deletions=tuple(str(item) for item in document["deletions"]),
    )


def _whole(value: object) -> int:
    number = counter_of(value)
    if number is None:
        raise ValueError(f"{value!a:.20} is not a whole number")
    return number
