"""The rules of FORMAT.md, "Logs": what stands in the lines of one file."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from written import KEY, head, line, message, read_log

from squilla_files.codec import MAX_COUNTER, encode_line
from squilla_files.journal import COMPACTION, Log, Record, starts_log

PIECES = st.sampled_from(
    [
        head("L"),
        head("M", "desk", last_id=3, epoch=2, source=("L", [2, 5])),
        message(1, "m1"),
        message(2, "m2", "m1", tool_calls=[{"id": "c"}]),
        line("session", 3, record="r", set={"label": "x"}),
        line("later", 4, record="f"),
        line("compaction", 5, record="p", entries=[{"message_id": "e"}]),
        message(6, "m6").removesuffix(b"\n"),
        head("L").removesuffix(b"\n"),
        b"\n",
        b"{}\n",
        b"torn {",
        b" ",
    ]
)


def shape(log: Log) -> dict[str, Any]:
    def of(record: Record | None) -> object:
        return record and (
            record.line, record.offset, record.length, record.kind,
            record.id, record.identity, record.after, record.calls,
        )  # fmt: skip

    names = ("device", "format", "log_id", "session_key", "begun_epoch", "begun_id", "source", "source_lines")
    names += ("damage", "size", "ended", "resume_offset")
    return {"lines": [of(record) for record in log.lines], **{name: getattr(log, name) for name in names}}


@settings(max_examples=200)
@given(st.lists(PIECES, max_size=8).map(b"".join), st.lists(st.integers(0, 600), max_size=6))
def test_reading_in_pieces_is_reading_at_once(data: bytes, cuts: list[int]) -> None:
    log = Log("a", "named")
    for cut in [*sorted(cuts), len(data)]:
        log.extend(data[log.resume_offset : cut], log.resume_offset)
        # At every stop the index is that of a file which ends there.
        assert shape(log) == shape(read_log(data[: min(cut, len(data))], device="named"))


@settings(max_examples=100)
@given(st.lists(PIECES, max_size=8).map(b"".join))
def test_every_byte_belongs_to_one_line(data: bytes) -> None:
    log = read_log(data)
    assert len(log.lines) == data.count(b"\n") + (data != b"" and not data.endswith(b"\n"))
    lines = data.split(b"\n")
    for record in log.lines:
        if record is not None:
            assert data[record.offset : record.offset + record.length] == lines[record.line - 1]
    for damage in log.damage:
        assert data[damage.offset : damage.offset + damage.length] == lines[damage.line - 1]


def test_the_first_line_says_whose_log_it_is() -> None:
    log = read_log(head("L2", "desk", last_id=7, epoch=2, source=("L1", [2, 4, 9])))
    assert (log.log_id, log.device, log.session_key) == ("L2", "desk", KEY)
    assert (log.begun_id, log.begun_epoch) == (7, 2)
    assert (log.source, log.source_lines) == ("L1", [2, 4, 9])
    assert log.lines == [None]
    assert log.damage == []


def test_a_log_begins_with_its_type() -> None:
    assert starts_log(head("L"))
    assert not starts_log(message(1, "m"))
    assert not starts_log(b' {"type":"log"')
    assert not starts_log(b"")


def test_an_empty_file_is_a_log_without_lines() -> None:
    log = read_log(b"")
    assert (log.lines, log.damage, log.ended, log.resume_offset, log.last_record()) == ([], [], True, 0, None)


@pytest.mark.parametrize(
    "first",
    [b"\n", b"broken\n", b'{"type":"log","log":"L"}\n', message(1, "m"), head("L").replace(b'"log":"L"', b'"log":7')],
)
def test_a_damaged_first_line_leaves_the_device_to_the_name(first: bytes) -> None:
    log = read_log(first + message(2, "m2"), device="named")
    assert (log.device, log.log_id, log.session_key) == ("named", None, None)
    assert [damage.line for damage in log.damage] == [1]
    assert log.lines[1] is not None
    assert log.lines[1].key == (2, "named", "m2")


def test_a_damaged_line_counts_as_a_line_and_for_nothing_else() -> None:
    data = head("L") + message(1, "m1") + b'{"type":"mess\n' + b"\n" + message(2, "m2")
    log = read_log(data)
    assert [record and record.identity for record in log.lines] == [None, "m1", None, None, "m2"]
    assert [(d.line, data[d.offset : d.offset + d.length]) for d in log.damage] == [(3, b'{"type":"mess'), (4, b"")]


@pytest.mark.parametrize(
    "member",
    [{"id": -1}, {"id": MAX_COUNTER + 1}, {"id": 1.0}, {"id": True}, {"id": None}, {"epoch": -1}, {"epoch": "1"},
     {"generation": 0.5}, {"epoch": -1, "generation": 0}, {"message_id": ""}, {"message_id": 7},
     {"type": 1}, {"type": None}],
)  # fmt: skip
def test_a_record_without_its_numbers_or_identity_is_a_damaged_line(member: dict[str, Any]) -> None:
    record = {"type": "message", "id": 1, "message_id": "m", **member}
    log = read_log(head("L") + encode_line(record) + message(2, "m2"))
    assert [record and record.identity for record in log.lines] == [None, None, "m2"]
    assert [damage.line for damage in log.damage] == [2]


def test_numbers_reach_to_the_last_integer_that_a_double_holds() -> None:
    log = read_log(head("L") + message(MAX_COUNTER, "m", epoch=MAX_COUNTER))
    record = log.lines[1]
    assert record is not None
    assert (record.id, record.epoch, record.generation) == (MAX_COUNTER, MAX_COUNTER, MAX_COUNTER)


def test_a_log_line_further_down_is_damage() -> None:
    log = read_log(head("L") + head("M", "desk"))
    assert (log.log_id, log.device) == ("L", "laptop")
    assert [damage.line for damage in log.damage] == [2]


def test_epoch_and_generation_have_defaults() -> None:
    log = read_log(head("L") + message(1, "a") + message(2, "b", epoch=3) + message(3, "c", epoch=3, generation=1))
    assert [(r.epoch, r.generation) for r in log.lines if r is not None] == [(0, 0), (3, 3), (3, 1)]


def test_types_that_are_not_known_are_records() -> None:
    log = read_log(head("L") + line("hologram", 1, record="h", colour="blue", set={"label": "x"}))
    record = log.last_record()
    assert record is not None
    assert (record.kind, record.identity, record.data and record.data["colour"]) == ("hologram", "h", "blue")
    assert log.damage == []


def test_bytes_behind_the_last_lf_count_if_they_are_a_whole_record() -> None:
    log = read_log(head("L") + message(1, "m").removesuffix(b"\n"))
    assert log.last_record() is not None
    assert not log.ended
    assert log.resume_offset == len(head("L"))
    torn = read_log(head("L") + message(1, "m")[:20])
    assert [damage.line for damage in torn.damage] == [2]


def test_a_first_line_without_its_lf_can_be_read_on() -> None:
    log = read_log(head("L").removesuffix(b"\n"))
    assert (log.log_id, log.resume_offset) == ("L", 0)
    log.extend(head("L") + message(1, "m"), log.resume_offset)
    assert [record and record.identity for record in log.lines] == [None, "m"]


def test_a_first_line_that_turns_out_to_go_on_is_a_damaged_one() -> None:
    data = head("L").removesuffix(b"\n")
    log = read_log(data, device="named")
    log.extend(data + b"x\n", log.resume_offset)
    assert (log.log_id, log.session_key, log.device) == (None, None, "named")
    assert [damage.line for damage in log.damage] == [1]


def test_a_lf_in_front_of_the_next_write_ends_a_torn_line() -> None:
    torn = head("L") + message(1, "m1") + message(2, "m2")[:20]
    log = read_log(torn + b"\n" + message(3, "m3"))
    assert [record and record.identity for record in log.lines] == [None, "m1", None, "m3"]
    whole = head("L") + message(1, "m1").removesuffix(b"\n")
    log = read_log(whole + b"\n" + message(2, "m2"))
    assert [record and record.identity for record in log.lines] == [None, "m1", "m2"]


def test_crlf_line_ends_are_read() -> None:
    log = read_log((head("L") + message(1, "m")).replace(b"\n", b"\r\n"))
    assert (log.log_id, log.damage) == ("L", [])
    assert log.last_record() is not None


def test_entries_of_a_compaction_bear_its_numbers() -> None:
    entries = [
        {"message_id": "x", "replaces": "m", "after": "l", "role": "user"},
        {"role": "user"},
        7,
        {"message_id": ""},
    ]
    log = read_log(
        head("L", "desk") + line("compaction", 4, epoch=2, record="p", entries=[*entries, {"message_id": "y"}])
    )
    record = log.last_record()
    assert record is not None
    assert record.kind == COMPACTION
    found = record.entries()
    assert [(e.identity, e.position, e.replaces, e.after) for e in found] == [("x", 0, "m", "l"), ("y", 4, None, None)]
    assert {(e.id, e.epoch, e.generation, e.device, e.offset) for e in found} == {(4, 2, 2, "desk", record.offset)}


def test_an_entry_of_a_compaction_can_have_a_higher_id_of_its_own() -> None:
    entries = [{"message_id": "x", "id": 5}, {"message_id": "y", "id": 3, "after": "x"}, {"message_id": "z", "id": "9"}]
    record = read_log(head("L") + line("compaction", 4, record="p", entries=entries)).last_record()
    assert record is not None
    assert [(e.identity, e.id) for e in record.entries()] == [("x", 5), ("y", 4), ("z", 4)]


def test_members_of_a_wrong_type_mean_their_default() -> None:
    log = read_log(
        head("L") + message(1, "m", role=7, tool_calls="c", tool_call_id=[], after_=1).replace(b"after_", b"after")
    )
    record = log.last_record()
    assert record is not None
    assert (record.role, record.calls, record.call_id, record.after) == ("", (), None, None)
