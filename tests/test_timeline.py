"""The rules of FORMAT.md, "What the records mean", as a function of files."""

from __future__ import annotations

import json
from pathlib import Path

import orjson
import pytest
from written import head, message, read_log

from squilla_files.journal import Log, Record
from squilla_files.timeline import Deletion, Timeline, fold

VECTORS = [json.loads(line) for line in (Path(__file__).parent / "data" / "merge.jsonl").read_bytes().splitlines()]


def folded(files: dict[str, str], deleted: list[dict]) -> tuple[Timeline, dict[str, bytes]]:
    data = {name: text.encode() for name, text in files.items()}
    logs = []
    for name, content in data.items():
        log = Log(name)
        log.extend(content, 0)
        logs.append(log)
    deletions = [d for d in map(Deletion.read, deleted) if d is not None]

    def read_line(record: Record) -> bytes:
        return data[record.log.name][record.offset : record.offset + record.length]

    return fold(logs, deletions, 0, read_line), data


@pytest.mark.parametrize("vector", VECTORS, ids=[v["name"] for v in VECTORS])
def test_files_mean_what_the_vector_says(vector: dict) -> None:
    timeline, data = folded(vector["files"], vector["deleted"])
    want = vector["expected"]
    assert timeline.exists == want["exists"]
    if not want["exists"]:
        return

    def content(record: Record) -> str:
        return orjson.loads(data[record.log.name][record.offset : record.offset + record.length])["content"]

    counters = timeline.counters
    got = {
        "exists": timeline.exists,
        "epoch": timeline.epoch,
        "canonical": [r.identity for r in timeline.canonical],
        "live": [r.identity for r in timeline.live],
        "contents": [content(r) for r in timeline.canonical],
        "input_tokens": counters.get("input_tokens", 0),
        "compaction_count": counters.get("compaction_count", 0),
        "fields": timeline.fields,
        "closed": sorted(r.identity for r in timeline.closed),
    }
    assert got == want


def test_copies_are_told_from_other_contents_without_being_read() -> None:
    lines = head("1") + message(1, "a") + message(2, "b", "a")
    logs = [read_log(lines, name) for name in ("a", "b")]

    def read_line(record: Record) -> bytes:
        raise AssertionError(f"{record.identity} was read")

    timeline = fold(logs, [], 0, read_line)
    assert [record.identity for record in timeline.live] == ["a", "b"]
