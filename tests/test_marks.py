"""The rules of FORMAT.md, "Marks"."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from written import head, line, message, read_log

from squilla_files.codec import MAX_COUNTER
from squilla_files.journal import Log
from squilla_files.marks import MarkIndex, read_marks

LOG = head("L") + message(1, "a") + message(2, "b", "a") + message(3, "c", "b")


def covered(mark: tuple[str, int, str], *files: bytes) -> set[str]:
    return MarkIndex([read_log(data, str(number)) for number, data in enumerate(files)]).covered([mark])


def test_a_mark_covers_all_lines_up_to_its_own() -> None:
    assert covered(("L", 2, "a"), LOG) == {"a"}
    assert covered(("L", 3, "b"), LOG) == {"a", "b"}
    assert covered(("L", 4, "c"), LOG) == {"a", "b", "c"}


def test_a_mark_covers_nothing_in_another_log() -> None:
    assert covered(("M", 3, "b"), LOG) == set()


def test_a_mark_holds_nowhere_in_a_shorter_file() -> None:
    assert covered(("L", 5, "d"), LOG) == set()


def test_a_mark_holds_nowhere_in_a_clone_that_went_another_way() -> None:
    clone = head("L") + message(1, "a") + message(2, "other", "a")
    assert covered(("L", 3, "b"), clone) == set()
    assert covered(("L", 3, "b"), clone, LOG) == {"a", "b"}


def test_a_mark_holds_where_its_line_is_damaged() -> None:
    damaged = head("L") + message(1, "a") + b"###\n" + message(3, "c", "b")
    assert covered(("L", 3, "b"), damaged) == {"a"}


def test_a_mark_holds_for_lines_carried_over_where_no_copy_of_its_log_reaches_it() -> None:
    carrying = head("M", source=("L", [2, 4])) + message(1, "a") + message(3, "c", "b") + message(4, "d", "c")
    assert covered(("L", 2, "a"), carrying) == {"a"}
    assert covered(("L", 3, "b"), carrying) == {"a"}
    assert covered(("L", 4, "c"), carrying) == {"a", "c"}
    # What stands behind the carried lines was never in that log.
    assert covered(("L", 9, "z"), carrying) == {"a", "c"}
    shorter = head("L") + message(1, "a")
    assert covered(("L", 4, "c"), carrying, shorter) == {"a", "c"}


def test_a_copy_that_reaches_the_line_decides_for_the_lines_carried_over() -> None:
    carrying = head("M", source=("L", [2, 4])) + message(1, "a") + message(3, "c", "b")
    assert covered(("L", 3, "b"), carrying, LOG) == {"a", "b"}
    assert covered(("L", 3, "not b"), carrying, LOG) == set()


def test_a_covered_compaction_covers_the_entries_in_it() -> None:
    data = head("L") + line("compaction", 1, record="p", entries=[{"message_id": "x"}, {"message_id": "y"}])
    assert covered(("L", 2, "p"), data) == {"p", "x", "y"}


@pytest.mark.parametrize(
    "value",
    [None, 7, {}, "L", [None], [["L", 2]], [["L", 0, "a"]], [["L", -1, "a"]], [["L", 2.0, "a"]], [["L", True, "a"]],
     [[1, 2, "a"]], [["L", 2, None]], [["L", 2, "a", 1]], [["L", MAX_COUNTER + 1, "a"]]],
)  # fmt: skip
def test_what_is_no_mark_is_ignored(value: object) -> None:
    assert read_marks(value) == []


def test_marks_are_read_in_their_order() -> None:
    assert read_marks([["L", 2, "a"], "x", ["M", MAX_COUNTER, "b"]]) == [("L", 2, "a"), ("M", MAX_COUNTER, "b")]


@st.composite
def copies(draw: st.DrawFn) -> tuple[list[bytes], list[tuple[str, int, str]]]:
    """Copies of one log: cut, damaged, continued; and marks into it."""
    lines = [head("L"), *(message(n, f"m{n}") for n in range(1, 7))]
    files = []
    for _ in range(draw(st.integers(1, 4))):
        copy = lines[: draw(st.integers(1, 7))]
        if draw(st.booleans()) and len(copy) > 1:
            copy[draw(st.integers(1, len(copy) - 1))] = b"###\n"
        files.append(b"".join(copy))
    if draw(st.booleans()):
        kept = sorted(draw(st.sets(st.integers(2, 7), min_size=1)))
        files.append(head("M", source=("L", kept)) + b"".join(lines[n - 1] for n in kept))
    numbers = draw(st.lists(st.integers(2, 8), max_size=3))
    return files, [("L", number, f"m{number - 1}") for number in numbers]


@settings(max_examples=150)
@given(copies(), st.randoms(use_true_random=False))
def test_what_marks_cover_depends_on_no_order(
    drawn: tuple[list[bytes], list[tuple[str, int, str]]], random: object
) -> None:
    files, marks = drawn
    logs: list[Log] = [read_log(data, str(n)) for n, data in enumerate(files)]
    expected = MarkIndex(logs).covered(marks)
    random.shuffle(logs)  # type: ignore[attr-defined]
    random.shuffle(marks)  # type: ignore[attr-defined]
    assert MarkIndex(logs).covered(marks) == expected
    # An honest mark never covers what stood behind it.
    highest = max((line for _, line, _ in marks), default=1)
    assert expected <= {f"m{n - 1}" for n in range(2, highest + 1)}
