"""`store.json`: what a directory is, and the version of its format (FORMAT.md, "Layout"). The same bytes everywhere."""

from __future__ import annotations

from typing import Final

from squilla_files.codec import decode_document, encode_document
from squilla_files.errors import CorruptManifestError, UnsupportedFormatError
from squilla_files.files import Files
from squilla_files.journal import FORMAT
from squilla_files.layout import Layout

_NAME: Final = "squilla_files"
_DOCUMENT: Final = encode_document({"format": _NAME, "version": FORMAT})


def is_store(files: Files, paths: Layout) -> bool:
    """Whether there is a store already, of a format that this version reads. Changes nothing.

    Raises:
        UnsupportedFormatError: a later major version made it.
        CorruptManifestError: the file cannot be understood.
        OSError: it cannot be read.
    """
    try:
        data = files.read_file(paths.store_file)
    except (FileNotFoundError, NotADirectoryError):
        return False
    if not data:
        return False  # a power cut left the name and not the content; the next write writes it again
    document = decode_document(data)
    if document is None or document.get("format") != _NAME:
        advice = "Restore it, or move it away: the next write makes another, and no session is touched."
        raise CorruptManifestError(paths.store_file, 0, "not the description of a store", advice)
    if document.get("version") != FORMAT:
        raise UnsupportedFormatError(paths.store_file, document.get("version"))
    return True


def write_store_file(files: Files, paths: Layout) -> None:
    """Make the root, where it is missing, and the file that describes it.

    Durability: durable on return.
    """
    files.ensure_dir(paths.root)
    files.replace_file(paths.store_file, _DOCUMENT)
