"""How far a subscriber has been told, and its short printable form, the cursor. Pure.

A position names, for each log, how many of its lines were told and the last record among them. A record has been told
if any log holds it within those lines; so copies, lines that were carried over and sealed logs are told once. Logs that
others continue are not listed when all of them was told: a digest in the entry of the log that continues them stands
for the whole chain, so that a cursor does not grow with the number of compactions.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from squilla_files.errors import InvalidCursorError

_VERSION: Final = 1
_SESSION: Final = 0
_STORE: Final = 1
_ID_BYTES: Final = 8
_CHECK_BYTES: Final = 4
_NOTE_BYTES: Final = 6
_PLACE_BYTES: Final = 6
_MAX_CURSOR: Final = 1 << 20
NOTHING_BEFORE: Final = bytes(_CHECK_BYTES)
"""The digest of no logs."""


def _digest(text: str, size: int) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=size).digest()


def log_digest(name: str) -> bytes:
    """Return 8 bytes that stand for a log: for its id, or for its file's name where it has none."""
    return _digest(name, _ID_BYTES)


def check_of(identity: str) -> bytes:
    """Return 4 bytes that stand for the identity of a record; of the empty one where there is none."""
    return _digest(identity, _CHECK_BYTES)


def note_of(text: str) -> bytes:
    """Return 6 bytes that stand for something other than a record that was told, such as a copy of a log."""
    return _digest(text, _NOTE_BYTES)


def place_of(root: str) -> bytes:
    """Return 6 bytes that stand for a store: for the real path of its root.

    Every device's `store.json` holds the same bytes, and `.local/` may be deleted or restored with the rest; the place
    is what tells one store from another on a machine without writing anything.
    """
    return _digest(root, _PLACE_BYTES)


@dataclass(frozen=True, slots=True)
class LogEnd:
    """How much of one log was told."""

    log: bytes
    """Which one; see `log_digest`."""
    lines: int
    """How many lines, the first one included."""
    check: bytes
    """The last record among them; see `check_of`."""
    told: int = 0
    """How many events of the record in the next line were told already."""
    damaged: int = 0
    """How many of its damaged lines were told."""
    before: bytes = NOTHING_BEFORE
    """A digest of the logs that it continues, as far as they are not listed."""


@dataclass(frozen=True, slots=True)
class Position:
    """How far one session was told."""

    exists: bool = False
    """Whether there was a session."""
    fence: int = 0
    """The epoch of the last deletion that was told, or lay before."""
    logs: tuple[LogEnd, ...] = ()
    """Sorted; several for one log where it went different ways."""
    notes: tuple[bytes, ...] = ()
    """What else was told and still is the case, sorted; see `note_of`."""


def chain_digest(ends: Iterable[LogEnd]) -> bytes:
    """Return the digest of logs of which all was told, the nearest first; of none of them, zeros."""
    joined = b"".join(end.log + end.lines.to_bytes(_ID_BYTES) + end.check for end in ends)
    return hashlib.blake2b(joined, digest_size=_CHECK_BYTES).digest() if joined else NOTHING_BEFORE


# --- bytes -------------------------------------------------------------------------------------------------------


def _whole(number: int) -> bytes:
    """Return *number* in seven bits a byte, the lowest first."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


class _Bytes:
    """Takes a sequence of bytes apart."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, size: int) -> bytes:
        self._at += size
        if self._at > len(self._data):
            raise ValueError("it is cut off")
        return self._data[self._at - size : self._at]

    def whole(self) -> int:
        number = shift = 0
        while True:
            byte = self.take(1)[0]
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return number
            if shift > 63:
                raise ValueError("a number is too large")

    @property
    def is_empty(self) -> bool:
        return self._at == len(self._data)


def encode_position(position: Position) -> bytes:
    """Return *position* as bytes: the same for the same position, so that two can be compared by them."""
    parts = [bytes([position.exists]), _whole(position.fence), _whole(len(position.logs))]
    for end in position.logs:
        numbers = _whole(end.lines) + _whole(end.told) + _whole(end.damaged)
        parts.append(end.log + numbers + end.check + end.before)
    parts.append(_whole(len(position.notes)))
    return b"".join((*parts, *position.notes))


def _read_position(data: _Bytes) -> Position:
    exists = data.take(1) != b"\0"
    fence = data.whole()
    logs = []
    for _ in range(data.whole()):
        log = data.take(_ID_BYTES)
        lines, told, damaged = data.whole(), data.whole(), data.whole()
        logs.append(LogEnd(log, lines, data.take(_CHECK_BYTES), told, damaged, data.take(_CHECK_BYTES)))
    notes = tuple(data.take(_NOTE_BYTES) for _ in range(data.whole()))
    return Position(exists, fence, tuple(logs), notes)


def decode_position(data: bytes) -> Position:
    """Return the position that *data* holds.

    Raises:
        ValueError: it holds none.
    """
    reader = _Bytes(data)
    position = _read_position(reader)
    if not reader.is_empty:
        raise ValueError("something follows")
    return position


# --- cursors -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Which line of which file of positions a cursor of the whole store names."""

    file: bytes
    """The 8 bytes in the file's name."""
    line: int
    """The line, from 0: that many positions were written behind the first."""


@dataclass(frozen=True, slots=True)
class Cursors:
    """Makes and reads the cursors of one store.

    Attributes:
        place: which store; see `place_of`.
    """

    place: bytes

    def of_session(self, key_digest: bytes, position: bytes) -> str:
        """Return the cursor of a position (as bytes) in the session that *key_digest* stands for."""
        return _printable(bytes((_VERSION, _SESSION)) + self.place + key_digest + position)

    def of_store(self, checkpoint: Checkpoint) -> str:
        """Return the cursor that names *checkpoint*."""
        return _printable(bytes((_VERSION, _STORE)) + self.place + checkpoint.file + _whole(checkpoint.line))

    def read_session(self, cursor: object, key_digest: bytes) -> Position:
        """Return the position that *cursor* names.

        Raises:
            InvalidCursorError: it is malformed, or of another store or session, or of the whole store.
        """
        kind, reader = self._open(cursor)
        if kind != _SESSION:
            raise InvalidCursorError(cursor, "it belongs to a watch of the whole store")
        try:
            if reader.take(_ID_BYTES) != key_digest:
                raise InvalidCursorError(cursor, "it belongs to another session")
            return _read_position(reader)
        except ValueError as error:
            raise _malformed(cursor, error) from error

    def position_in(self, cursor: str) -> bytes:
        """Return the position, as bytes, of a cursor that `of_session` made."""
        return _bytes_of(cursor)[2 + _PLACE_BYTES + _ID_BYTES :]

    def read_store(self, cursor: object) -> Checkpoint:
        """Return the checkpoint that *cursor* names.

        Raises:
            InvalidCursorError: it is malformed, or of another store, or of one session.
        """
        kind, reader = self._open(cursor)
        if kind != _STORE:
            raise InvalidCursorError(cursor, "it belongs to a watch of one session")
        try:
            return Checkpoint(reader.take(_ID_BYTES), reader.whole())
        except ValueError as error:
            raise _malformed(cursor, error) from error

    def _open(self, cursor: object) -> tuple[int, _Bytes]:
        try:
            reader = _Bytes(_bytes_of(cursor))
            version, kind = reader.take(2)
            place = reader.take(_PLACE_BYTES)
        except ValueError as error:
            raise _malformed(cursor, error) from error
        if version != _VERSION:
            raise InvalidCursorError(cursor, "it was made by another version")
        if place != self.place:
            raise InvalidCursorError(cursor, "it belongs to another store")
        return kind, reader


def _malformed(cursor: object, error: ValueError) -> InvalidCursorError:
    if isinstance(error, InvalidCursorError):
        return error
    return InvalidCursorError(cursor, f"it is malformed ({error})")


def _printable(data: bytes) -> str:
    data += zlib.crc32(data).to_bytes(4)
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def _bytes_of(cursor: object) -> bytes:
    if type(cursor) is not str or len(cursor) > _MAX_CURSOR or not cursor.isascii():
        raise ValueError("not a string of ASCII characters")
    try:
        data = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
    except binascii.Error:
        raise ValueError("not base64") from None
    if len(data) < 4 or zlib.crc32(data[:-4]).to_bytes(4) != data[-4:]:
        raise ValueError("its checksum is wrong")
    return data[:-4]
