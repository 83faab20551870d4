"""What the cursors of a whole store name: files under `.local/cursors/`, one for each subscriber that was told events.

The first line holds how far every session was told when the first event came; each line behind it says how far one
session was told since. A cursor names a file and a line. Files belong to this machine; they are not synced to the disk
one by one, so that a power cut may take the last lines, and a cursor that names one of those is a gap.
"""

from __future__ import annotations

import base64
import binascii
import logging
import os
import secrets
from collections.abc import Mapping
from typing import Any, Final

from squilla_files.codec import counter_of, decode_line, encode_line
from squilla_files.files import Files
from squilla_files.layout import Layout, cursor_name, parse_cursor_name
from squilla_files.placing import Marks
from squilla_files.positions import Checkpoint, Position, decode_position, encode_position

_log = logging.getLogger(__name__)

# So many files stay; a cursor that names an older one is a gap.
_KEPT_FILES: Final = 64

Told = bytes | Position | Marks
"""How far a session was told: a position (one that was loaded, or else as bytes), or what a glance at it showed."""


class CursorFile:
    """The file of one subscriber, made when the first event comes.

    Args:
        files: the disk.
        paths: the store's paths.
    """

    def __init__(self, files: Files, paths: Layout) -> None:
        self._files = files
        self._paths = paths
        self._token = secrets.token_bytes(8)
        self._path = os.path.join(paths.cursors, cursor_name(self._token.hex()))
        self._is_begun = False
        self._is_kept = False
        self._line = 0

    @property
    def checkpoint(self) -> Checkpoint:
        """The line that was written last."""
        return Checkpoint(self._token, self._line)

    @property
    def is_begun(self) -> bool:
        """Whether the first line is written, or could not be."""
        return self._is_begun

    def begin(self, told: Mapping[str, Told]) -> None:
        """Write how far every session was told. Where that fails it is logged, and cursors are gaps when resumed."""
        self._is_begun = True
        self._clear()
        try:
            self._files.ensure_dir(self._paths.cursors)
            fd = self._files.create(self._path)
            self._is_kept = True
            self._write(fd, encode_line({n: _plain(value) for n, value in told.items()}))
        except OSError as error:
            self._give_up(error)

    def add(self, dir_name: str, positions: list[bytes]) -> list[Checkpoint]:
        """Write how far a session was told by each of several events; return what their cursors name."""
        lines = b"".join(encode_line({dir_name: _plain(position)}) for position in positions)
        if self._is_kept:
            try:
                # Not held open: an iteration may end at any moment, on a thread that must not touch the disk.
                self._write(self._files.open_append(self._path), lines)
            except OSError as error:
                self._give_up(error)
        first = self._line + 1
        self._line += len(positions)
        return [Checkpoint(self._token, first + number) for number in range(len(positions))]

    def _write(self, fd: int, lines: bytes) -> None:
        try:
            self._files.write_all(fd, lines)
        finally:
            self._files.close(fd)

    def _give_up(self, error: OSError) -> None:
        self._is_kept = False
        _log.warning("the cursors of %s cannot be kept and will not be resumable: %s", self._paths.root, error)

    def _clear(self) -> None:
        """Remove the oldest files where there are too many."""
        directory = self._paths.cursors
        try:
            names = [entry.name for entry in self._files.scan(directory) if parse_cursor_name(entry.name) is not None]
            paths = [os.path.join(directory, name) for name in names]
            by_age = sorted((self._files.stat(path).st_mtime_ns, path) for path in paths)
            for _, path in by_age[: max(0, len(by_age) - _KEPT_FILES + 1)]:
                self._files.unlink(path)
        except OSError:
            return  # none there yet, or another process clears, too


def load_cursor_file(files: Files, paths: Layout, checkpoint: Checkpoint) -> dict[str, Told] | None:
    """Return how far each session was told at *checkpoint*, None where that is not known any more.

    Raises:
        OSError: the file cannot be read.
    """
    try:
        data = files.read_file(os.path.join(paths.cursors, cursor_name(checkpoint.file.hex())))
    except FileNotFoundError:
        return None
    lines = data.split(b"\n")
    if len(lines) < checkpoint.line + 2:
        return None  # the last item is what follows the last LF
    told: dict[str, Told] = {}
    for line in lines[: checkpoint.line + 1]:
        obj = decode_line(line)
        if obj is None:
            return None
        try:
            told.update({name: _told(value) for name, value in obj.items()})
        except ValueError:
            return None
    return told


def _plain(value: Told) -> object:
    if isinstance(value, Position):
        value = encode_position(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    return {"fence": value.fence, "files": [[name, size, end.hex()] for name, size, end in value.files]}


def _told(value: Any) -> Told:
    try:
        if type(value) is str:
            return decode_position(base64.b64decode(value, validate=True))
        files = tuple((str(name), int(size), bytes.fromhex(end)) for name, size, end in value["files"])
        return Marks(files, counter_of(value["fence"]) or 0)
    except (KeyError, TypeError, AttributeError, binascii.Error) as error:
        raise ValueError("not a position") from error
