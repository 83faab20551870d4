"""Logs as bytes, written by hand: what the tests of the format are made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from squilla_files.codec import encode_line
from squilla_files.journal import Log, Record, first_line
from squilla_files.timeline import Deletion, Timeline, fold

KEY = "agent:main:main"


def head(log: str, device: str = "laptop", *, last_id: int = 0, epoch: int = 0, source: Any = None) -> bytes:
    return first_line(session_key=KEY, device=device, log_id=log, last_id=last_id, epoch=epoch, source=source)


def line(kind: str, number: int, **members: Any) -> bytes:
    return encode_line({"type": kind, "id": number, **members})


def message(number: int, message_id: str, after: str | None = None, **members: Any) -> bytes:
    links = {"after": after} if after is not None else {}
    return line("message", number, message_id=message_id, **links, **{"role": "user", "content": message_id, **members})


def call(
    number: int, message_id: str, after: str | None = None, *, calls: Iterable[str] = ("c",), **members: Any
) -> bytes:
    listed = [{"id": call_id} for call_id in calls]
    return message(number, message_id, after, role="assistant", tool_calls=listed, **members)


def result(number: int, message_id: str, after: str, *, of: str = "c", **members: Any) -> bytes:
    return message(number, message_id, after, role="tool", tool_call_id=of, **members)


def read_log(data: bytes, name: str = "a", device: str = "") -> Log:
    log = Log(name, device)
    log.extend(data, 0)
    return log


def read(files: Mapping[str, bytes] | bytes, deleted: Iterable[Mapping[str, Any]] = (), floor: int = 0) -> Timeline:
    """Fold the logs in *files* (a single one, or name → bytes) with the documents of deletions."""
    data = {"a": files} if isinstance(files, bytes) else files
    deletions = [found for document in deleted if (found := Deletion.read(document)) is not None]

    def read_line(record: Record) -> bytes:
        return data[record.log.name][record.offset : record.offset + record.length]

    return fold([read_log(text, name) for name, text in data.items()], deletions, floor, read_line)


def ids(records: Iterable[Record]) -> str:
    return " ".join(record.identity for record in records)
