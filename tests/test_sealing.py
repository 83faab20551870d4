"""What a sealed log hands on: each line that is still needed to show what is live, and no other."""

from __future__ import annotations

from typing import Any

import pytest
from written import call, head, line, message, read, read_log, result

from squilla_files.journal import Log
from squilla_files.sealing import WORTH_BYTES, carried_lines, is_worth_sealing
from squilla_files.timeline import Timeline

CREATED = line("session", 1, record="made", event="created", set={"session_id": "s"})


def carried(data: bytes, *open_logs: bytes, sealed: bytes = b"") -> list[str]:
    """The identities of the lines that the log in *data* hands on."""
    files = {"own": data, **{f"open{n}": text for n, text in enumerate(open_logs)}, "archive/old": sealed}
    timeline = read({name: text for name, text in files.items() if text})
    others = [read_log(text, f"open{n}") for n, text in enumerate(open_logs)]
    return [record.identity for record in carried_lines(timeline, read_log(data, "own"), others)]


def compaction(number: int, *covers: list[Any], kept: tuple[str, ...] = (), **members: Any) -> bytes:
    return line("compaction", number, record=f"c{number}", covers=list(covers), kept=list(kept), **members)


def test_live_entries_and_the_creation_are_carried_in_file_order() -> None:
    data = head("L") + CREATED + message(2, "a") + message(3, "b", "a") + message(4, "c", "b")
    assert carried(data) == ["made", "a", "b", "c"]


def test_archived_entries_are_not_carried() -> None:
    data = head("L") + CREATED + message(2, "a") + message(3, "b", "a") + compaction(4, ["L", 3, "a"])
    assert carried(data) == ["made", "b"]


def test_removed_entries_are_not_carried_but_what_removed_them_is() -> None:
    data = head("L") + CREATED + message(2, "a") + message(3, "b", "a") + line("remove", 4, record="r", message_id="a")
    assert carried(data) == ["made", "b", "r"]


def test_a_removal_of_what_is_archived_is_not_carried() -> None:
    data = head("L") + CREATED + message(2, "a") + line("remove", 3, record="r", message_id="a")
    assert carried(data + compaction(4, ["L", 3, "a"])) == ["made"]


def test_a_removal_of_what_is_not_here_is_not_carried() -> None:
    assert carried(head("L") + CREATED + line("remove", 2, record="r", message_id="elsewhere")) == ["made"]


def test_a_removal_up_to_marks_is_carried_where_one_of_them_was_live() -> None:
    cleared = line("remove", 4, record="r", covers=[["L", 4, "b"]])
    data = head("L") + CREATED + message(2, "a") + message(3, "b", "a") + cleared
    assert carried(data) == ["made", "r"]
    elsewhere = line("remove", 4, record="r", covers=[["other", 4, "b"]])
    assert carried(head("L") + CREATED + message(2, "a") + elsewhere) == ["made", "a"]


@pytest.mark.parametrize("value", [["a"], {"a": 1}, 7, None])
def test_a_removal_of_what_no_identity_can_be_is_not_carried(value: object) -> None:
    data = head("L") + CREATED + message(2, "a") + line("remove", 3, record="r", message_id=value)
    assert carried(data) == ["made", "a"]


def test_a_removal_up_to_marks_counts_although_it_names_a_message_too() -> None:
    both = line("remove", 4, record="r", message_id="elsewhere", covers=[["L", 4, "b"]])
    assert carried(head("L") + CREATED + message(2, "a") + message(3, "b", "a") + both) == ["made", "r"]


def test_a_record_whose_setting_still_wins_is_carried_whatever_it_is() -> None:
    lost = line("session", 2, record="lost", set={"label": "x"})
    won = line("session", 5, record="won", set={"label": "y"})
    archived = message(3, "a", set={"subject": "tea"})
    unknown = line("mood", 6, record="unknown", set={"mood": "up"})
    data = head("L") + CREATED + lost + archived + compaction(4, ["L", 4, "a"]) + won + unknown
    assert carried(data) == ["made", "a", "won", "unknown"]


def test_what_only_raised_counters_stays_where_it_is() -> None:
    assert carried(head("L") + CREATED + line("session", 2, record="added", add={"total_tokens": 3})) == ["made"]


def test_a_fence_is_carried_only_for_what_it_sets() -> None:
    fence = line("session", 2, epoch=1, generation=0, record="fence", event="fenced")
    assert carried(head("L") + CREATED + fence) == ["made"]
    setting = line("session", 2, epoch=1, generation=0, record="fence", event="fenced", set={"label": "x"})
    assert carried(head("L") + CREATED + setting) == ["made", "fence"]


def test_a_reset_is_carried_and_of_the_closed_generation_what_still_wins() -> None:
    closed = head("L") + CREATED + message(2, "a") + line("session", 3, record="set", set={"label": "x"})
    reset = line("session", 4, epoch=1, record="reset", event="reset", set={"session_id": "t"})
    removal = line("remove", 5, record="r", message_id="a")
    assert carried(closed + removal + reset + message(6, "b", epoch=1)) == ["set", "reset", "b"]


def test_a_result_is_carried_with_its_call() -> None:
    data = head("L") + CREATED + call(2, "ask") + result(3, "answer", "ask") + message(4, "b", "answer")
    assert carried(data + compaction(5, ["L", 5, "b"], kept=("ask",))) == ["made", "ask", "answer"]


def test_a_compaction_is_carried_as_long_as_an_entry_in_it_is_live() -> None:
    data = head("L") + CREATED + message(2, "a")
    new = compaction(3, ["L", 3, "a"], entries=[{"message_id": "x", "role": "user"}])
    assert carried(data + new) == ["made", "c3"]
    assert carried(data + new + compaction(4, ["L", 4, "c3"])) == ["made"]


def test_a_compaction_is_carried_as_long_as_a_log_that_it_marks_is_open() -> None:
    other = head("D", "desk") + message(2, "d")
    data = head("L") + CREATED + compaction(3, ["D", 2, "d"])
    assert carried(data, other) == ["made", "c3"]
    assert carried(data, sealed=other) == ["made"]


def test_summaries_and_states_stay_where_they_are() -> None:
    documents = line("summary", 2, record="s", summary="d1") + line("context", 3, record="k", context="d2")
    changed = line("context", 4, record="x", context="d2", change={"valid": False})
    assert carried(head("L") + CREATED + documents + changed) == ["made"]


def test_a_damaged_line_is_not_carried_and_a_copy_once() -> None:
    data = head("L") + CREATED + b"{damaged\n" + message(2, "a") + message(2, "a")
    assert carried(data) == ["made", "a"]


def test_what_a_deletion_had_seen_is_not_carried() -> None:
    data = head("L") + CREATED + message(2, "a") + line("session", 3, epoch=1, record="new", event="created")
    deleted = {"epoch": 1, "seen": [["L", 3, "a"]]}
    timeline = read({"own": data}, [deleted])
    assert [r.identity for r in carried_lines(timeline, read_log(data, "own"), [])] == ["new"]


def test_a_sealed_log_and_what_continues_it_show_what_was_shown() -> None:
    data = (
        head("L") + CREATED + message(2, "a") + call(3, "ask", "a") + result(4, "answer", "ask")
        + message(5, "gone", "answer") + line("remove", 6, record="r", message_id="gone")
        + compaction(7, ["L", 3, "a"]) + message(8, "b", "gone", set={"label": "x"}, add={"total_tokens": 2})
    )  # fmt: skip
    before = read({"own": data})
    log = read_log(data, "own")
    lines = carried_lines(before, log, [])
    source = ("L", [record.line for record in lines])
    copied = b"".join(data[record.offset : record.offset + record.length + 1] for record in lines)
    after = read({"archive/own": data, "next": head("N", last_id=8, source=source) + copied})
    alone = read({"next": head("N", last_id=8, source=source) + copied})
    assert shown(after) == shown(before)
    assert [r.identity for r in alone.live] == [r.identity for r in before.live] == ["ask", "answer", "b"]
    assert alone.fields == before.fields


def shown(timeline: Timeline) -> tuple[object, ...]:
    canonical, live = ([r.identity for r in records] for records in (timeline.canonical, timeline.live))
    return canonical, live, timeline.archived_by, timeline.fields, timeline.counters, timeline.exists


# --- when it is worth it ---------------------------------------------------------------------------------------------


def weighed(archived_bytes: int, live_bytes: int) -> bool:
    """Whether a log is worth sealing that holds so many bytes of archived entries, and so many others."""

    def sized(number: int, message_id: str, size: int, after: str | None = None) -> bytes:
        bare = len(message(number, message_id, after, content=""))
        return message(number, message_id, after, content="x" * (size - bare))

    first = head("L")
    data = first + sized(1, "a", archived_bytes) + sized(2, "b", live_bytes - len(first), "a")
    log = read_log(data, "own")
    timeline = Timeline()
    timeline.archived_by = {"a": "c"}
    return is_worth_sealing(timeline, log)


def test_a_log_is_worth_sealing_once_more_than_half_and_more_than_64_kib_are_archived() -> None:
    assert WORTH_BYTES == 64 * 1024
    assert weighed(WORTH_BYTES + 1, 300)
    assert not weighed(WORTH_BYTES, 300)
    assert weighed(100_001, 100_000)
    assert not weighed(100_000, 100_000)


def test_a_log_of_which_nothing_is_archived_is_not_worth_sealing() -> None:
    log: Log = read_log(head("L") + message(1, "a", content="x" * 200_000), "own")
    assert not is_worth_sealing(Timeline(), log)
