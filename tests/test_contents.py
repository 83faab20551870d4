"""Contents of records, read by offset: the right bytes for each, in few reads, or an error."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_files import MemoryFiles
from written import head, line, message, read_log

from squilla_files.contents import read_lines, read_objects, read_range
from squilla_files.errors import CorruptRecordError
from squilla_files.journal import Log, Record

DAMAGED = b'{"type":"message","id":\n'


def put(files: MemoryFiles, name: str, data: bytes) -> Log:
    files.put(f"/s/{name}", data)
    return read_log(data, name)


def compaction(number: int, *entries: str, **members: Any) -> bytes:
    listed = [{"message_id": each, "content": each, **members} for each in entries]
    return line("compaction", number, record=f"c{number}", entries=listed)


def standing(log: Log) -> list[Record]:
    """The records that stand in a log, a compaction by the entries in its line."""
    found = [record for record in log.lines if record is not None]
    return [part for record in found for part in (record.entries() if record.kind == "compaction" else [record])]


def contents(objects: list[dict[str, Any]]) -> list[Any]:
    return [obj.get("content") for obj in objects]


def reads(files: MemoryFiles) -> list[int]:
    return [int(str(call.args[1])) for call in files.calls if call.name == "pread"]


def test_a_read_that_gives_less_is_continued_and_ends_where_the_file_ends() -> None:
    class Slow(MemoryFiles):
        def pread(self, fd: int, length: int, offset: int) -> bytes:
            return super().pread(fd, min(length, 3), offset)

    files = Slow()
    files.put("/f", b"0123456789")
    fd = files.open_read("/f")
    assert read_range(files, fd, 7, 2) == b"2345678"
    assert read_range(files, fd, 100, 4) == b"456789"
    assert read_range(files, fd, 5, 10) == b""
    assert read_range(files, fd, 0, 0) == b""


def test_lines_and_objects_come_in_the_order_of_the_records() -> None:
    files = MemoryFiles()
    one = put(files, "a", head("A") + message(1, "a1") + message(2, "a2") + message(3, "a3"))
    other = put(files, "b", head("B", "desk") + message(1, "b1") + message(2, "b2"))
    a1, a2, a3, b1, b2 = standing(one) + standing(other)
    for records in ([a1, b1, a2, b2, a3], [a3, a1, a2], [b2, a2], [a1, b2], [a2, a2], [b1]):
        assert contents(read_objects(files, "/s", records)) == [record.identity for record in records]
        lines = read_lines(files, "/s", records)
        assert [json.loads(each)["content"] for each in lines] == [record.identity for record in records]


def test_of_nothing_nothing_is_read() -> None:
    files = MemoryFiles()
    assert read_lines(files, "/s", []) == []
    assert read_objects(files, "/s", []) == []
    assert not files.calls


def test_a_line_is_read_as_it_stands_without_its_end() -> None:
    files = MemoryFiles()
    raw = b' {"type":"message", "id":1,"message_id":"m","x":1e3}\r'
    log = put(files, "a", head("A") + raw + b"\n" + message(2, "n"))
    assert read_lines(files, "/s", standing(log)) == [raw, message(2, "n")[:-1]]
    assert read_objects(files, "/s", standing(log))[0]["x"] == 1000.0


def test_a_last_line_without_lf_is_read() -> None:
    files = MemoryFiles()
    log = put(files, "a", head("A") + message(1, "m") + message(2, "n")[:-1])
    assert contents(read_objects(files, "/s", standing(log))) == ["m", "n"]
    assert read_lines(files, "/s", standing(log))[1] == message(2, "n")[:-1]


def test_a_damaged_line_between_two_records_costs_neither_of_them() -> None:
    files = MemoryFiles()
    log = put(files, "a", head("A") + message(1, "m") + DAMAGED + message(2, "n") + b"\n" + message(3, "o"))
    assert contents(read_objects(files, "/s", standing(log))) == ["m", "n", "o"]
    assert [json.loads(each)["id"] for each in read_lines(files, "/s", standing(log))] == [1, 2, 3]


def test_lines_between_that_nobody_asked_for_are_left_out() -> None:
    files = MemoryFiles()
    log = put(files, "a", head("A") + b"".join(message(n, f"m{n}") for n in range(1, 30)))
    records = standing(log)
    wanted = [records[n] for n in (0, 2, 3, 11, 20, 28)]
    assert contents(read_objects(files, "/s", wanted)) == ["m1", "m3", "m4", "m12", "m21", "m29"]


def test_neighbours_are_read_in_one_go_and_what_lies_far_apart_is_not_read_along() -> None:
    files = MemoryFiles()
    small = b"".join(message(n, f"m{n}") for n in range(1, 101))
    big = message(101, "big", content="x" * 300_000)
    log = put(files, "a", head("A") + small + big + message(102, "last"))
    records = standing(log)
    files.calls.clear()
    assert len(read_objects(files, "/s", records[:100])) == 100
    assert reads(files) == [len(small) - 1]
    files.calls.clear()
    read_lines(files, "/s", records[:100])
    read_objects(files, "/s", records[:99:7])
    assert reads(files) == [len(small) - 1, sum(record.length + 1 for record in records[:99]) - 1]
    for read in (read_lines, read_objects):
        files.calls.clear()
        assert len(read(files, "/s", [*records[:100], records[101]])) == 101
        assert sum(reads(files)) < len(small) + (500 if read is read_lines else 301_000)


def test_what_is_read_at_once_is_bounded() -> None:
    files = MemoryFiles()
    log = put(files, "a", head("A") + b"".join(message(n, f"m{n}", content="x" * 1000) for n in range(1, 1001)))
    files.calls.clear()
    assert len(read_objects(files, "/s", standing(log))) == 1000
    assert max(reads(files)) < 300_000
    assert len(reads(files)) < 10


def test_entries_in_a_compactions_line_are_found_by_their_place_and_the_line_is_read_once() -> None:
    files = MemoryFiles()
    names = [f"e{n}" for n in range(500)]
    data = head("A") + message(1, "m") + compaction(2, *names, text="x" * 100) + message(3, "n")
    log = put(files, "a", data)
    files.calls.clear()
    assert contents(read_objects(files, "/s", standing(log))) == ["m", *names, "n"]
    assert sum(reads(files)) < len(data)
    wanted = standing(log)[7:3:-2]
    assert contents(read_objects(files, "/s", wanted)) == ["e6", "e4"]


def test_entries_of_neighbouring_compactions_are_not_mixed_up() -> None:
    files = MemoryFiles()
    log = put(files, "a", head("A") + compaction(1, "a", "b") + compaction(2, "c", "d") + compaction(3))
    other = put(files, "b", head("B") + compaction(1, "e", "f"))
    a, b, c, d, e, f = standing(log) + standing(other)
    for records in ([a, b, c, d, e, f], [b, c], [a, e, b, f], [d, a]):
        assert contents(read_objects(files, "/s", records)) == [record.identity for record in records]


def test_a_compaction_itself_is_an_object_like_any_other() -> None:
    files = MemoryFiles()
    log = put(files, "a", head("A") + compaction(1, "a") + message(2, "m"))
    record = log.lines[1]
    assert record is not None
    (entry,) = record.entries()
    found = read_objects(files, "/s", [record, entry, record])
    assert [obj.get("record") for obj in found] == ["c1", None, "c1"]


CHANGED = {
    "another line": message(1, "m") + b"null" + b" " * (len(message(2, "n")) - 5) + b"\n" + message(3, "o"),
    "no json": message(1, "m") + b"x" * (len(message(2, "n")) - 1) + b"\n" + message(3, "o"),
    "one line less": message(1, "m") + b" " * len(message(2, "n")) + message(3, "o"),
    "two objects": message(1, "m") + b"{}\n{}".ljust(len(message(2, "n")) - 1) + b"\n" + message(3, "o"),
    "cut off": message(1, "m"),
}


@pytest.mark.parametrize("how", CHANGED)
def test_a_line_that_is_another_by_now_is_an_error_that_names_its_place(how: str) -> None:
    files = MemoryFiles()
    log = put(files, "a", head("A") + message(1, "m") + message(2, "n") + message(3, "o"))
    files.put("/s/a", head("A") + CHANGED[how])
    with pytest.raises(CorruptRecordError) as caught:
        read_objects(files, "/s", standing(log))
    assert caught.value.path == "/s/a"
    assert caught.value.offset in {record.offset for record in standing(log)}
    assert not files.open_paths


@pytest.mark.parametrize("entries", ['"x"', "[]", "[1]", '{"0":{}}'])
def test_a_compaction_that_lost_an_entry_is_an_error(entries: str) -> None:
    files = MemoryFiles()
    log = put(files, "a", head("A") + compaction(1, "a"))
    (entry,) = standing(log)
    changed = f'{{"type":"compaction","id":1,"record":"c1","entries":{entries}}}'.encode()
    files.put("/s/a", head("A") + changed.ljust(entry.length) + b"\n")
    with pytest.raises(CorruptRecordError):
        read_objects(files, "/s", [entry])


def test_a_log_that_is_not_there_is_an_error_and_nothing_stays_open() -> None:
    files = MemoryFiles()
    log = put(files, "a", head("A") + message(1, "m"))
    gone = read_log(head("B") + message(1, "n"), "b")
    for read in (read_lines, read_objects):
        with pytest.raises(FileNotFoundError):
            read(files, "/s", standing(log) + standing(gone))
        assert not files.open_paths


@given(
    st.lists(st.sampled_from(["message", "damaged", "empty", "compaction", "large"]), max_size=30),
    st.data(),
)
def test_any_choice_of_records_gives_the_content_of_each(kinds: list[str], data: st.DataObject) -> None:
    files = MemoryFiles()
    made = {
        "message": lambda n: message(n, f"m{n}"),
        "damaged": lambda n: DAMAGED,
        "empty": lambda n: b"\n",
        "compaction": lambda n: compaction(n, f"x{n}", f"y{n}"),
        "large": lambda n: message(n, f"m{n}", pad="x" * 70_000),
    }
    logs = [put(files, name, head(name) + b"".join(made[kind](n) for n, kind in enumerate(kinds))) for name in "ab"]
    records = [record for log in logs for record in standing(log)]
    wanted = data.draw(st.lists(st.sampled_from(records), max_size=12)) if records else []
    assert contents(read_objects(files, "/s", wanted)) == [record.identity for record in wanted]
    for record, text in zip(wanted, read_lines(files, "/s", wanted), strict=True):
        assert files.read_file(f"/s/{record.log.name}")[record.offset :].startswith(text + b"\n")
    assert not files.open_paths
