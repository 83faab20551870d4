"""What stands in one session's directory, file by file, read as it is on disk. Synchronous, changes nothing.

Whatever cannot be read or understood becomes a finding and hides nothing else; what the files say together is for
`squilla_files.checking`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Final

from squilla_files import layout
from squilla_files.codec import decode_document
from squilla_files.errors import CorruptManifestError, UnsupportedFormatError
from squilla_files.files import Files
from squilla_files.findings import (
    CORRUPT_DOCUMENT,
    DAMAGED_LINE,
    DIVERGED,
    FOREIGN,
    IDENTICAL,
    LATER_FORMAT,
    MANIFEST_CORRUPT,
    SHORTER,
    SPECIAL_FILE,
    TORN_TAIL,
    finding,
)
from squilla_files.journal import CONTEXT, FORMAT, SUMMARY, Log, later_version, starts_log
from squilla_files.layout import ARCHIVE
from squilla_files.manifest import Manifest, decode_manifest
from squilla_files.surveying import Survey

_PEEK_BYTES: Final = 64
_DOCUMENTS: Final = {"summaries": SUMMARY, "contexts": CONTEXT}
_LATER: Final = "written by a later version of the format: {!r}"


class SessionFiles:
    """The files of one session's directory.

    Args:
        files: the disk.
        paths: the store's paths.
        dir_name: the directory's name, whatever it is.

    Attributes:
        path: the directory's full path.
        survey: what was looked at, and the findings so far.
        logs: name below the directory, with `/` → index of each log, those of other sessions included.
        manifests: name → manifest of each device.
        documents: (kind, id) → name of the file that counts as the summary or context state with that id.
    """

    def __init__(self, files: Files, paths: layout.Layout, dir_name: str) -> None:
        self.path = paths.session(dir_name)
        self.survey = Survey(files, paths.root)
        self.logs: dict[str, Log] = {}
        self.manifests: dict[str, Manifest] = {}
        self.documents: dict[tuple[str, str], str] = {}
        self._contents: dict[tuple[str, str], dict[str, Any]] = {}
        self.survey.walk(self.path)
        for path in self.survey.directories:
            name = os.path.basename(path)
            if layout.parse_manifest_name(name) is not None or layout.parse_log_name(name) is not None:
                self.survey.add(SPECIAL_FILE, path, "a directory in place of a file")
        # Logs first, as far as one listing goes: a document is there before the line that names it.
        names = sorted(os.path.relpath(path, self.path).replace(os.sep, "/") for path in self.survey.paths)
        for name in names:
            self._read(name)
        for name in sorted(names, key=lambda name: (layout.parse_numbered_name(_base(name)) is None, name)):
            kind = _DOCUMENTS.get(name.rpartition("/")[0])
            if kind is not None:
                self._read_document(name, kind)

    def full(self, name: str) -> str:
        """Return the full path of a name below the directory."""
        return os.path.join(self.path, *name.split("/"))

    def _read(self, name: str) -> None:
        directory, _, base = name.rpartition("/")
        if directory in _DOCUMENTS:
            return
        path = self.full(name)
        if directory not in ("", ARCHIVE):
            self.survey.add(FOREIGN, path, "a file in a directory that is no part of a session")
        elif not directory and layout.parse_manifest_name(base) is not None:
            self._read_manifest(name)
        elif layout.parse_log_name(base) is not None:
            self._read_log(name)
        else:
            head = self.survey.head(path, _PEEK_BYTES)
            if head is not None and starts_log(head):
                self._read_log(name)
            elif head is not None:
                self.survey.add(FOREIGN, path, "no file of a session")

    def _read_manifest(self, name: str) -> None:
        path = self.full(name)
        data = self.survey.read(path)
        if data is None:
            return
        try:
            manifest = decode_manifest(data, path)
        except CorruptManifestError as error:
            self.survey.add(MANIFEST_CORRUPT, path, error.reason)
        except UnsupportedFormatError as error:
            self.survey.add(LATER_FORMAT, path, _LATER.format(error.version))
        else:
            if manifest.device == layout.parse_manifest_name(name):
                self.manifests[name] = manifest
            else:
                self.survey.add(FOREIGN, path, f"a copy of the manifest of {manifest.device}")

    def _read_log(self, name: str) -> None:
        path = self.full(name)
        data = self.survey.read(path)
        if data is None:
            return
        parsed = layout.parse_log_name(_base(name))
        log = Log(name, parsed.device if parsed is not None else "")
        log.extend(data, 0)
        if log.format == FORMAT:
            self.logs[name] = log
        else:
            self.survey.add(LATER_FORMAT, path, _LATER.format(log.format))

    def report_damage(self, log: Log) -> None:
        """Add a finding for each line of *log* that cannot be understood, and for an end without LF."""
        path = self.survey.relative(self.full(log.name))
        found = self.survey.findings
        damage = list(log.damage)
        if not log.ended:
            torn = damage.pop() if damage and damage[-1].line == len(log.lines) else None
            size = log.size - log.resume_offset
            detail = f"{size} bytes without LF: " + ("a whole record, which counts" if torn is None else torn.reason)
            found.append(finding(TORN_TAIL, path, detail, offset=log.resume_offset))
        if not log.lines:
            found.append(finding(DAMAGED_LINE, path, "line 1: the file is empty", offset=0))
        for line in damage:
            detail = f"line {line.line}, {line.length} bytes: {line.reason}"
            found.append(finding(DAMAGED_LINE, path, detail, offset=line.offset))

    def _read_document(self, name: str, kind: str) -> None:
        path = self.full(name)
        data = self.survey.read(path)
        if data is None:
            return
        document = decode_document(data)
        doc_id = document.get("id") if document is not None else None
        if document is None:
            self.survey.add(CORRUPT_DOCUMENT, path, "not a JSON object")
        elif document.get("type") != kind or type(doc_id) is not str:
            self.survey.add(FOREIGN, path, f"no {kind}")
        elif later_version(document) is not None:
            self.survey.add(LATER_FORMAT, path, _LATER.format(document["format"]))
        elif (kind, doc_id) in self.documents:
            same = self._contents[kind, doc_id] == document
            of = self.documents[kind, doc_id]
            self.survey.add(IDENTICAL if same else DIVERGED, path, f"has the id of {of}, which counts")
        else:
            self.documents[kind, doc_id] = name
            self._contents[kind, doc_id] = document

    # --- copies of logs ----------------------------------------------------------------------------------------

    def copies(self) -> Iterator[tuple[Log, str, str]]:
        """Yield (log, kind, detail) for each log that does not bear the name that its device gives a log."""
        for name, log in self.logs.items():
            if not is_named(log):
                yield log, *self._compare(name, log)

    def _compare(self, name: str, copy: Log) -> tuple[str, str]:
        data = self.survey.read(self.full(name)) or b""
        same_log = [other for other in self.logs.values() if is_named(other) and copy.log_id in (None, other.log_id)]
        for other in same_log:
            original = self.survey.read(self.full(other.name)) or b""
            if data == original:
                return IDENTICAL, f"the same bytes as {other.name}"
            if original.startswith(data):
                return SHORTER, f"the first {len(data)} bytes of {other.name}"
        if not same_log:
            return DIVERGED, "no log here has its records under its own name"
        return DIVERGED, f"another content than {', '.join(other.name for other in same_log)}"


def is_named(log: Log) -> bool:
    """Say whether a log bears a name that its device gives a log."""
    parsed = layout.parse_log_name(_base(log.name))
    return parsed is not None and parsed.device == log.device


def _base(name: str) -> str:
    return name.rpartition("/")[2]
