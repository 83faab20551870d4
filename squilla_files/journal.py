"""One log: what stands in its lines, without the contents (FORMAT.md, "Logs").

`Log.extend` reads bytes into an index of records: identity, order, links and where the line stands. Contents stay on
disk and are read again by offset. Lines that cannot be understood are kept in the index as damage, with their offset.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from squilla_files.codec import MAX_COUNTER, counter_of, encode_line

FORMAT = 1
MESSAGE = "message"
SESSION = "session"
REMOVE = "remove"
COMPACTION = "compaction"
SUMMARY = "summary"
CONTEXT = "context"

_LOG_PREFIX = b'{"type":"log"'
_PLAIN_PREFIX = b'{"type":"log","format":%d,' % FORMAT
PEEK_BYTES = 64
"""So much of a file tells whether it is a log."""


@dataclass(frozen=True, slots=True)
class Damage:
    """A line that counts as a line and for nothing else."""

    line: int
    """Its number in the file, from 1."""
    offset: int
    """Where it begins, in bytes."""
    length: int
    """How long it is, in bytes, without its LF."""
    reason: str
    """What is wrong, for people."""


class Record:
    """One record of a log, without its content."""

    __slots__ = (
        "after", "call_id", "calls", "content_hash", "data", "epoch", "generation", "id", "identity", "kind",
        "length", "line", "log", "offset", "position", "replaces", "role",
    )  # fmt: skip

    log: Log
    line: int
    offset: int
    length: int
    content_hash: int
    kind: str
    id: int
    epoch: int
    generation: int
    identity: str
    position: int | None
    replaces: str | None
    after: str | None
    call_id: str | None
    calls: tuple[str, ...]
    role: str
    data: dict[str, Any] | None

    def __init__(
        self, log: Log, line: int, offset: int, length: int, obj: dict[str, Any], content_hash: int = 0
    ) -> None:
        """Read the record *obj* that stands in *line*; *content_hash* tells copies from other contents.

        Raises:
            ValueError: a member that every record must have is missing or of another type.
        """
        kind = obj["type"]
        identifier = obj.get("id")
        epoch = obj.get("epoch", 0)
        generation = obj.get("generation", epoch)
        # Spelled out, for this is done for every line that is read: whole numbers that a double holds.
        if not (
            type(identifier) is type(epoch) is type(generation) is int
            and 0 <= identifier <= MAX_COUNTER
            and 0 <= epoch <= MAX_COUNTER
            and 0 <= generation <= MAX_COUNTER
        ):
            raise ValueError("id, epoch or generation is not a whole number from 0 to 2^53-1")
        self.log = log
        self.line = line
        self.offset = offset
        self.length = length
        self.content_hash = content_hash
        self.id = identifier
        self.epoch = epoch
        self.generation = generation
        self.position = None
        self.replaces = None
        if kind == MESSAGE:
            identity = obj.get("message_id")
            self.kind = MESSAGE
            self.read_links(obj)
            given, raised = obj.get("set"), obj.get("add")
            self.data = None if given is None and raised is None else {"set": given, "add": raised}
        else:
            identity = obj.get("record")
            self.kind = sys.intern(kind)
            self.after = self.call_id = None
            self.calls = ()
            self.role = ""
            self.data = obj
        if type(identity) is not str or not identity:
            raise ValueError("the record's identity is missing")
        self.identity = identity

    def read_links(self, obj: dict[str, Any]) -> None:
        """Read of a message what it hangs on, which call it answers, and which calls it makes."""
        after = obj.get("after")
        self.after = after if type(after) is str else None
        last = self.log.lines[-1] if self.log.lines else None
        if last is not None and last.identity == after:
            self.after = last.identity  # one string, not two that are equal: an index is large enough
        role = obj.get("role")
        self.role = sys.intern(role) if type(role) is str else ""
        call_id = obj.get("tool_call_id")
        self.call_id = call_id if type(call_id) is str and call_id else None
        calls = obj.get("tool_calls")
        self.calls = ()
        if type(calls) is list:
            self.calls = tuple(c["id"] for c in calls if type(c) is dict and type(c.get("id")) is str)

    @property
    def device(self) -> str:
        """The device that wrote the record: that of its log."""
        return self.log.device

    @property
    def key(self) -> tuple[int, str, str]:
        """What orders records where nothing else does: (`id`, device, identity)."""
        return (self.id, self.log.device, self.identity)

    @property
    def rank(self) -> tuple[int, int, str, str]:
        """What decides which of several records counts last: (epoch, `id`, device, identity)."""
        return (self.epoch, self.id, self.log.device, self.identity)

    def entries(self) -> list[Record]:
        """Return the entries that a compaction's line carries whole, as records that stand in that line.

        They bear its id, device and epoch; several that hang one on another say higher ids of their own.
        """
        found: list[Record] = []
        listed = self.data.get("entries") if self.data is not None and self.kind == COMPACTION else None
        for position, item in enumerate(listed if type(listed) is list else ()):
            if type(item) is not dict or type(item.get("message_id")) is not str or not item["message_id"]:
                continue
            entry = Record.__new__(Record)
            entry.log, entry.line, entry.offset, entry.length = self.log, self.line, self.offset, self.length
            entry.content_hash = self.content_hash
            entry.kind, entry.id, entry.epoch, entry.generation = MESSAGE, self.id, self.epoch, self.generation
            own_id = counter_of(item.get("id"))
            if own_id is not None and own_id > self.id:
                entry.id = own_id
            entry.identity, entry.position, entry.data = item["message_id"], position, None
            replaces = item.get("replaces")
            entry.replaces = replaces if type(replaces) is str else None
            entry.read_links(item)
            found.append(entry)
        return found


class Log:
    """The index of one file of records.

    Attributes:
        name: path below the session's directory, with `/`.
        device: who wrote it: from its first line, or from its name where that is damaged.
        log_id: the random id of its first line, None where that is damaged.
        session_key: the key of its first line, None where that is damaged.
        begun_epoch: the epoch known when it was begun.
        begun_id: the highest id known when it was begun.
        source: the id of the log that it continues, None where it continues none.
        source_lines: the numbers that its first lines had there, the first being that of line 2.
        lines: one item a line: the record, or None (the first line, and damaged ones).
        damage: the lines that cannot be understood.
        size: how many bytes were read.
        ended: whether the last byte read is LF.
        resume_offset: where reading goes on: behind the last LF, so that an unfinished line is read again.
    """

    __slots__ = (
        "_named_device", "begun_epoch", "begun_id", "damage", "device", "ended", "format", "lines", "log_id", "name",
        "resume_offset", "session_key", "size", "source", "source_lines",
    )  # fmt: skip

    def __init__(self, name: str, device: str = "") -> None:
        self.name = name
        self._named_device = device
        self._clear_header()
        self.lines: list[Record | None] = []
        self.damage: list[Damage] = []
        self.size = 0
        self.ended = True
        self.resume_offset = 0

    def _clear_header(self) -> None:
        self.device = self._named_device
        self.format: object = FORMAT
        self.log_id: str | None = None
        self.session_key: str | None = None
        self.begun_epoch = 0
        self.begun_id = 0
        self.source: str | None = None
        self.source_lines: list[int] = []

    def extend(self, data: bytes, offset: int) -> list[Record]:
        """Read *data*, which stands at *offset*, `resume_offset` of what was read before.

        Returns:
            The records that came, in file order; one that stood in an unfinished line is read again and among them.
        """
        if not self.ended:
            self._forget_unfinished()
        came: list[Record] = []
        end = len(data)
        at = offset
        lines = data.split(b"\n")
        if not lines[-1]:
            lines.pop()
        for line in lines:
            record = self._line(line, at)
            self.lines.append(record)
            if record is not None:
                came.append(record)
            at += len(line) + 1
        self.size = offset + end
        self.ended = end == 0 or data.endswith(b"\n")
        self.resume_offset = offset + (end if self.ended else data.rfind(b"\n") + 1)
        return came

    def _forget_unfinished(self) -> None:
        """Take back the last line: what followed in the file may have made another of it."""
        if self.damage and self.damage[-1].line == len(self.lines):
            self.damage.pop()
        self.lines.pop()
        if not self.lines:
            self._clear_header()

    def _line(self, line: bytes, offset: int) -> Record | None:
        number = len(self.lines) + 1
        try:
            obj = orjson.loads(line)
            if type(obj) is not dict:
                raise ValueError("not a JSON object")
            if type(obj.get("type")) is not str:
                raise ValueError("no type")
            if number > 1:
                return Record(self, number, offset, len(line), obj, hash(line))
            if self._read_header(obj):
                return None
            raise ValueError("not the first line of a log")
        except orjson.JSONDecodeError:
            reason = "not a JSON object"
        except ValueError as error:
            reason = str(error)
        self.damage.append(Damage(number, offset, len(line), reason))
        return None

    def _read_header(self, obj: dict[str, Any]) -> bool:
        log_id, device, key = obj.get("log"), obj.get("device"), obj.get("session_key")
        if obj["type"] != "log" or type(log_id) is not str or type(device) is not str or type(key) is not str:
            return False
        self.log_id, self.device, self.session_key = log_id, device, key
        self.format = obj.get("format", FORMAT)
        self.begun_epoch = counter_of(obj.get("epoch", 0)) or 0
        self.begun_id = counter_of(obj.get("id", 0)) or 0
        source = obj.get("from")
        if type(source) is dict and type(source.get("log")) is str and type(source.get("lines")) is list:
            self.source = source["log"]
            self.source_lines = [n if counter_of(n) is not None else 0 for n in source["lines"]]
        return True

    def last_record(self) -> Record | None:
        """Return the last line that is a record, None where there is none."""
        return next((record for record in reversed(self.lines) if record is not None), None)


def later_version(document: Mapping[str, Any]) -> int | None:
    """Return the major version of the format that *document* names if it is not this one (FORMAT.md, "Versions")."""
    version = counter_of(document.get("format", FORMAT))
    return None if version == FORMAT else version


def starts_log(head: bytes) -> bool:
    """Whether a file that begins with *head* is a log, whatever it is called."""
    return head.startswith(_LOG_PREFIX)


def is_plain(head: bytes) -> bool:
    """Whether a file that begins with *head* is a log of this version, as this package writes it."""
    return head.startswith(_PLAIN_PREFIX)


def first_line(
    *, session_key: str, device: str, log_id: str, last_id: int, epoch: int, source: tuple[str, Iterable[int]] | None
) -> bytes:
    """Return the first line of a log, LF included."""
    header: dict[str, Any] = {
        "type": "log", "format": FORMAT, "session_key": session_key, "device": device, "log": log_id,
    }  # fmt: skip
    if source is not None:
        header["from"] = {"log": source[0], "lines": list(source[1])}
    header["id"] = last_id
    if epoch:
        header["epoch"] = epoch
    return encode_line(header)
