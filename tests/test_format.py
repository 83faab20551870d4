"""FORMAT.md: its worked example, its tables, and a test for each of its rules that files alone can show."""

from __future__ import annotations

import itertools
import json
import re
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from written import KEY, call, head, ids, line, message, read, read_log, result

import squilla_files
from squilla_files import layout, models
from squilla_files.codec import MAX_COUNTER, decode_document, decode_line, encode_document, encode_line
from squilla_files.errors import UnsupportedFormatError
from squilla_files.journal import FORMAT, Log
from squilla_files.manifest import decode_manifest
from squilla_files.sealing import carried_lines
from squilla_files.timeline import Deletion, Timeline

PACKAGE = Path(squilla_files.__file__).parent
TEXT = (PACKAGE / "FORMAT.md").read_text(encoding="utf-8")
TITLES = re.findall(r"^## \d+ (.+)$", TEXT, re.MULTILINE)


def section(title: str) -> str:
    """The text of a section, each paragraph on one line."""
    text = re.split(r"^## ", TEXT.split(f" {title}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]
    return re.sub(r"(?<!\n)\n(?![\n|-])", " ", text)


# --- the page itself ----------------------------------------------------------------------------------------------


def test_the_contents_list_every_section_once() -> None:
    numbered = re.findall(r"^## (\d+ .+)$", TEXT, re.MULTILINE)
    assert [int(title.split()[0]) for title in numbered] == list(range(1, len(numbered) + 1))
    links = re.findall(r"\[(\d+ [^]]+)\]\(#([^)]+)\)", TEXT)
    assert [title for title, _ in links] == numbered
    assert all(anchor == title.lower().replace(" ", "-") for title, anchor in links)


@pytest.mark.parametrize("module", sorted(PACKAGE.rglob("*.py")), ids=lambda path: path.stem)
def test_code_cites_sections_that_exist(module: Path) -> None:
    source = module.read_text(encoding="utf-8")
    assert set(re.findall(r'FORMAT\.md,\s+"([^"]+)"', source)) <= set(TITLES)


def test_the_version_is_the_one_that_is_written() -> None:
    assert f"Version {FORMAT}." in TEXT


def test_the_table_of_a_message_has_every_field_of_an_entry_with_its_default() -> None:
    rows = re.findall(r"^\| (`[^|]+`) \| [^|]+ \| ([^|]+) \|", section("Records"), re.MULTILINE)
    defaults = {name: default.strip("` ") for names, default in rows for name in re.findall(r"`(\w+)`", names)}
    stored = models.STORED_DEFAULTS[models.TranscriptEntry]
    for field in fields(models.TranscriptEntry):
        if field.name in ("id", "session_id", "session_key", "message_id"):
            continue  # the line's own, the session's, the log's, the identity
        assert json.loads(defaults[field.name]) == stored[field.name], field.name


def test_the_counters_that_are_listed_are_those_of_a_session() -> None:
    paragraph = re.search(
        r"the counters among them are (.*?)\. `session_key`", section("Fields and counters"), re.DOTALL
    )
    assert paragraph is not None
    assert set(re.findall(r"`(\w+)`", paragraph[1])) == models.SESSION_COUNTERS


def test_the_endings_of_unfinished_files_are_those_that_are_left_alone() -> None:
    paragraph = re.search(r"ends \(in any case of letters\) in (.*?), belongs", section("Names"), re.DOTALL)
    assert paragraph is not None
    endings = re.findall(r"`(\.[^`]+)`", paragraph[1])
    assert len(endings) == 10
    assert all(layout.is_in_progress(f"transcript.laptop.000001.jsonl{ending.upper()}") for ending in endings)


# --- the worked example -------------------------------------------------------------------------------------------

BLOCKS = re.findall(r"^`sessions/([^/`]+)/([^`]+)`\n\n```json\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
FILES = {name: text.encode() for _, name, text in BLOCKS}
LOGS = {name: data for name, data in FILES.items() if name.endswith(".jsonl")}
STATED = re.findall(r"^    canonical: (.*)\n    live: +(.*)$", TEXT, re.MULTILINE)
FIRST, SECOND = sorted(name for name in LOGS if name.startswith("archive/"))
DESK, THIRD = sorted(name for name in LOGS if not name.startswith("archive/"))


def until(**lines: int) -> dict[str, bytes]:
    """The logs of the example, each cut behind that many lines; those that are not named are not there yet."""
    names = {"first": FIRST, "second": SECOND, "third": THIRD, "desk": DESK}
    return {names[n]: b"".join(LOGS[names[n]].splitlines(keepends=True)[:count]) for n, count in lines.items()}


MOMENTS = [
    until(first=7, desk=3),
    until(first=8, second=3, desk=3),
    until(first=8, second=4, third=4, desk=4),
]


def test_the_example_is_one_session_of_two_devices() -> None:
    assert {directory for directory, _, _ in BLOCKS} == {layout.session_dir_name(KEY)}
    assert len(LOGS) == 4
    logs = {name: read_log(data, name) for name, data in LOGS.items()}
    assert {log.session_key for log in logs.values()} == {KEY}
    for name, log in logs.items():
        parsed = layout.parse_log_name(name.removeprefix("archive/"))
        assert parsed is not None
        assert parsed.device == log.device
        assert log.damage == []
    assert len({log.device for log in logs.values()}) == 2


@pytest.mark.parametrize("name", sorted(LOGS))
def test_the_example_has_the_bytes_that_a_writer_writes(name: str) -> None:
    for text in LOGS[name].splitlines(keepends=True):
        record = decode_line(text)
        assert record is not None
        assert encode_line(record) == text


@pytest.mark.parametrize("name", sorted(set(FILES) - set(LOGS)))
def test_the_documents_of_the_example_have_the_bytes_that_a_writer_writes(name: str) -> None:
    document = decode_document(FILES[name])
    assert document is not None
    assert encode_document(document) == FILES[name]


@pytest.mark.parametrize("moment", range(3), ids=["before the compaction", "after it", "after the reset"])
def test_the_example_means_what_the_text_states(moment: int) -> None:
    assert len(STATED) == 3
    timeline = read(MOMENTS[moment])
    assert (ids(timeline.canonical), ids(timeline.live)) == STATED[moment]


def test_a_compaction_is_committed_by_its_line_and_sealing_changes_nothing() -> None:
    before, after = read(until(first=8, desk=3)), read(MOMENTS[1])
    assert (ids(before.canonical), ids(before.live)) == STATED[1]
    assert before.counters == after.counters
    assert before.archived_by == after.archived_by
    moved = {name.removeprefix("archive/"): data for name, data in MOMENTS[1].items()}
    assert ids(read(moved).live) == STATED[1][1]


def test_the_lines_carried_over_in_the_example_are_copies_of_those_that_are_named() -> None:
    for before, after in ((FIRST, SECOND), (SECOND, THIRD)):
        old, log = LOGS[before].splitlines(), read_log(LOGS[after])
        assert log.source == read_log(LOGS[before]).log_id
        carried = LOGS[after].splitlines()[1 : 1 + len(log.source_lines)]
        assert carried == [old[number - 1] for number in log.source_lines]


def test_the_lines_carried_over_in_the_example_are_those_that_sealing_needs() -> None:
    for name, moment in ((FIRST, until(first=8, desk=3)), (SECOND, until(first=8, second=4, desk=3))):
        logs = {file: read_log(data, file) for file, data in moment.items()}
        carried = carried_lines(read(moment), logs[name], [logs[DESK]])
        after = read_log(LOGS[SECOND if name == FIRST else THIRD])
        assert [record.line for record in carried] == after.source_lines


def test_the_manifest_of_the_example_vouches_for_its_logs() -> None:
    (name,) = (name for name in FILES if name.startswith("manifest."))
    manifest = decode_manifest(FILES[name], name)
    timeline = read(MOMENTS[2])
    assert layout.parse_manifest_name(name) == manifest.device
    assert [mark.name for mark in manifest.logs] == sorted(LOGS)
    for mark in manifest.logs:
        log = read_log(LOGS[mark.name])
        last = log.last_record()
        assert last is not None
        assert (mark.size, mark.lines, mark.last_offset, mark.last) == (
            log.size,
            len(log.lines),
            last.offset,
            last.identity,
        )
    assert manifest.session == {**timeline.fields, **timeline.counters}
    assert (manifest.epoch, manifest.live, manifest.canonical) == (timeline.epoch, 1, 1)
    assert list(manifest.session_ids) == timeline.session_ids


def test_the_summary_and_the_context_state_of_the_example_are_found_by_their_ids() -> None:
    timeline = read(MOMENTS[1])
    documents = [decode_document(data) for name, data in FILES.items() if name.startswith(("summaries/", "contexts/"))]
    found = {(d["type"], d["id"]) for d in documents if d is not None}
    assert {("summary", a.doc_id) for a in timeline.summaries} | {
        ("context", a.doc_id) for a in timeline.contexts
    } == found
    assert timeline.current(timeline.summaries) == timeline.summaries
    closed = read(MOMENTS[2])
    assert closed.summaries
    assert closed.current(closed.summaries) == closed.current(closed.contexts) == []


# --- names --------------------------------------------------------------------------------------------------------


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1))
def test_any_key_has_a_directory_name_that_every_file_system_keeps(key: str) -> None:
    name = layout.session_dir_name(key)
    assert re.fullmatch(r"[a-z0-9-]{1,40}~[0-9a-f]{16}", name)
    assert not name.startswith("-")
    assert layout.parse_session_dir_name(name) == layout.key_hash(key)


def test_no_name_is_longer_than_80_characters() -> None:
    device, directory = "d" * 40, layout.session_dir_name("x" * 300)
    names = [
        layout.log_name(device, 10**12 - 1, "0" * 8), layout.manifest_name(device),
        layout.summary_name(10**12 - 1, device), layout.context_name(10**12 - 1, device),
        layout.deletion_name(directory, "0" * 16), layout.archive_document_name(directory, 10**6, "0" * 8),
        layout.trash_name(directory, "0" * 16), layout.temporary_name("0" * 16),
    ]  # fmt: skip
    assert max(map(len, names)) <= 80


# --- one record for each identity ---------------------------------------------------------------------------------

PLAIN = head("L") + line("session", 1, record="r", event="created") + message(2, "m", add={"input_tokens": 5})


def test_a_record_counts_once_however_many_copies_of_it_are_found() -> None:
    once, copies = (
        read(PLAIN),
        read({"a": PLAIN, "a conflict": PLAIN, "cut": PLAIN[:-20], "b": head("M") + message(2, "m")}),
    )
    assert once.counters == {"input_tokens": 5}
    assert ids(copies.live) == "m"
    thrice = head("L") + message(2, "m", add={"input_tokens": 5}) * 3
    assert read(thrice).counters == {"input_tokens": 5}


def test_of_two_contents_under_one_identity_that_of_the_higher_epoch_counts() -> None:
    files = {
        "a": head("L") + message(1, "m", set={"label": "old"}),
        "b": head("M") + message(9, "m", epoch=1, set={"label": "x"}),
    }
    assert read(files).fields == {"label": "x"}


def test_in_one_epoch_the_lower_id_then_device_then_bytes_counts() -> None:
    def label(*contents: tuple[int, str, str]) -> Any:
        found = set()
        for order in itertools.permutations(contents):
            logs = enumerate(order)
            files = {
                f"{n}": head(f"L{n}", device) + message(i, "m", set={"label": value}) for n, (i, device, value) in logs
            }
            found.add(read(files).fields["label"])
        (only,) = found
        return only

    assert label((2, "a", "x"), (1, "z", "y")) == "y"
    assert label((1, "b", "x"), (1, "a", "y")) == "y"
    assert label((1, "a", "y"), (1, "a", "x")) == "x"


def test_an_entry_in_a_compaction_claims_its_identity_like_a_record() -> None:
    entries = [{"message_id": "m", "role": "user"}]
    files = {
        "a": head("L") + message(5, "m"),
        "b": head("M", "desk") + line("compaction", 3, record="p", entries=entries),
    }
    record = read(files).records["m"]
    assert (record.id, record.position) == (3, 0)


# --- existence, epoch, generation ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("record", "exists"),
    [
        (message(1, "m"), True),
        (line("session", 1, record="r", event="created"), True),
        (line("session", 1, record="r", event="reset", epoch=1), True),
        (line("session", 1, record="r", set={"label": "x"}), False),
        (line("remove", 1, record="r", message_id="m"), False),
        (line("session", 1, record="r", event="other"), False),
    ],
)
def test_a_session_exists_if_a_message_a_creation_or_a_reset_counts(record: bytes, exists: bool) -> None:
    assert read(head("L") + record).exists is exists


def test_the_epoch_is_the_highest_that_anything_names() -> None:
    plain = head("L") + message(1, "m", epoch=2, generation=0)
    assert read(plain).epoch == 2
    assert read({"a": plain, "b": head("M", epoch=5)}).epoch == 5
    assert read(plain, [{"epoch": 7, "seen": []}]).epoch == 7
    assert read(plain, floor=9).epoch == 9


def test_the_highest_generation_is_shown_and_entries_of_others_are_closed() -> None:
    data = (
        head("L")
        + message(1, "old")
        + line("session", 2, record="r", event="reset", epoch=1)
        + message(3, "m", epoch=1)
    )
    late = head("M", "desk") + message(2, "late", "old")
    timeline = read({"a": data, "b": late})
    assert (ids(timeline.canonical), ids(timeline.live)) == ("m", "m")
    assert sorted(record.identity for record in timeline.closed) == ["late", "old"]


def test_raising_the_epoch_alone_closes_nothing() -> None:
    data = head("L") + message(1, "m") + line("session", 2, record="f", epoch=1, generation=0)
    timeline = read(data + message(3, "n", "m", epoch=1, generation=0))
    assert (ids(timeline.live), timeline.epoch, timeline.generation) == ("m n", 1, 0)


def test_two_resets_at_the_same_time_open_one_generation() -> None:
    reset = {"event": "reset", "epoch": 1}
    files = {
        "a": head("L") + message(1, "old") + line("session", 2, record="r", **reset) + message(3, "x", epoch=1),
        "b": head("M", "desk") + line("session", 2, record="s", **reset) + message(3, "y", epoch=1),
    }
    assert ids(read(files).live) == "y x"


def test_a_session_created_on_two_devices_is_one() -> None:
    one = head("L") + line("session", 1, record="r", event="created", set={"session_id": "s1"}) + message(2, "m")
    other = (
        head("M", "desk") + line("session", 1, record="s", event="created", set={"session_id": "s2"}) + message(2, "n")
    )
    timeline = read({"a": one, "b": other})
    assert (ids(timeline.live), timeline.session_ids, timeline.fields["session_id"]) == ("n m", ["s2", "s1"], "s1")


def test_what_hangs_on_an_entry_of_another_generation_is_a_root() -> None:
    data = head("L") + message(1, "old") + message(2, "b", epoch=1) + message(3, "c", "old", epoch=1)
    assert ids(read(data + message(4, "d", "unknown", epoch=1)).live) == "b c d"
    assert ids(read(data.replace(b'"after":"old"', b'"after":"new"') + message(4, "d", "b", epoch=1)).live) == "b d c"


def test_an_entry_whose_after_has_not_come_stands_after_the_rest_until_it_has() -> None:
    mine = head("L") + message(1, "a") + message(5, "d", "a")
    theirs = head("M", "desk") + message(2, "b", "a") + message(3, "c", "b")
    without = theirs.replace(message(2, "b", "a"), b"")
    assert ids(read({"a": mine, "b": without}).live) == "a d c"
    assert ids(read({"a": mine, "b": theirs}).live) == "a d b c"


# --- archived and live --------------------------------------------------------------------------------------------

FIVE = head("L") + call(1, "k") + result(2, "r", "k") + message(3, "m", "r") + message(4, "n", "m")


def compacted(*covers: Any, number: int = 5, record: str = "p", **members: Any) -> bytes:
    return line("compaction", number, record=record, covers=list(covers), **members)


def test_a_compaction_archives_what_its_marks_cover_and_moves_nothing() -> None:
    timeline = read(FIVE + compacted(["L", 4, "m"]))
    assert (ids(timeline.canonical), ids(timeline.live)) == ("k r m n", "n")
    assert timeline.archived_by == {"k": "p", "r": "p", "m": "p"}


def test_a_compaction_spares_what_it_keeps() -> None:
    timeline = read(FIVE + compacted(["L", 5, "n"], kept=["m"]))
    assert (ids(timeline.canonical), ids(timeline.live)) == ("k r m n", "m")


def test_a_tool_result_is_archived_exactly_when_its_call_is() -> None:
    assert ids(read(FIVE + compacted(["L", 2, "k"])).live) == "m n"
    assert ids(read(FIVE + compacted(["L", 5, "n"], kept=["r"])).live) == ""
    assert ids(read(FIVE + compacted(["L", 5, "n"], kept=["k"])).live) == "k r"
    late = head("M", "desk") + result(9, "late", "r")
    assert ids(read({"a": FIVE + compacted(["L", 4, "m"]), "b": late}).live) == "n"


def test_a_result_belongs_to_the_compaction_that_archived_its_call() -> None:
    timeline = read(
        FIVE + compacted(["L", 5, "n"], kept=["k"], record="p") + compacted(["L", 2, "k"], number=6, record="q")
    )
    assert timeline.archived_by == {"k": "q", "r": "q", "m": "p", "n": "p"}


def test_a_result_whose_call_was_replaced_follows_the_replacement() -> None:
    entries = [{"message_id": "x", "replaces": "k", "role": "assistant"}]
    data = FIVE + compacted(["L", 5, "n"], kept=["r", "n"], entries=entries)
    timeline = read(data)
    assert (ids(timeline.canonical), ids(timeline.live)) == ("x r m n", "x r n")
    timeline = read(data + compacted(["L", 6, "p"], number=6, record="q", kept=["n"]))
    assert (ids(timeline.canonical), ids(timeline.live)) == ("x r m n", "n")


def test_the_first_of_several_compactions_has_an_entry() -> None:
    later, earlier = compacted(["L", 5, "n"], number=9, record="b"), compacted(["L", 3, "r"], number=8, record="c")
    timeline = read(FIVE + later + earlier)
    assert timeline.archived_by == {"k": "c", "r": "c", "m": "b", "n": "b"}
    same = compacted(["L", 5, "n"], number=9, record="a")
    assert set(read({"a": FIVE + later, "b": head("M") + same}).archived_by.values()) == {"a"}


def test_an_entry_that_one_compaction_keeps_and_another_does_not_is_archived() -> None:
    assert (
        ids(read(FIVE + compacted(["L", 5, "n"], kept=["m"]) + compacted(["L", 4, "m"], number=6, record="q")).live)
        == ""
    )


def test_a_mark_in_a_shorter_file_holds_nowhere() -> None:
    assert ids(read(FIVE + compacted(["M", 3, "x"], ["L", 99, "x"])).live) == "k r m n"


def test_a_mark_archives_lines_that_were_carried_over() -> None:
    sealed, after = FIVE, head("M", source=("L", [4, 5])) + message(3, "m", "r") + message(4, "n", "m")
    mark = compacted(["L", 4, "m"])
    assert ids(read({"archive/a": sealed, "b": after + mark}).live) == "n"
    assert ids(read({"b": after + mark}).live) == "n"


def test_an_entry_is_archived_in_all_copies_if_it_is_in_one() -> None:
    assert ids(read({"a": FIVE + compacted(["L", 5, "n"]), "b": head("M") + message(4, "n", "m")}).live) == ""


def test_a_compaction_of_a_closed_generation_archives_nothing_of_the_next() -> None:
    data = head("L") + message(1, "old") + message(2, "m", epoch=1)
    assert ids(read(data + compacted(["L", 3, "m"], number=3)).live) == "m"
    assert ids(read(data + compacted(["L", 3, "m"], number=3, epoch=1)).live) == ""


def test_removed_entries_are_in_neither_transcript_and_hold_their_place() -> None:
    other = head("M", "desk") + message(5, "o", "m")
    timeline = read({"a": FIVE + line("remove", 6, record="q", message_id="m"), "b": other})
    assert (ids(timeline.canonical), ids(timeline.live)) == ("k r n o", "k r n o")
    assert timeline.gone == {"m"}


def test_a_remove_with_marks_takes_out_all_that_they_cover() -> None:
    timeline = read(FIVE + line("remove", 6, record="q", covers=[["L", 4, "m"]]))
    assert ids(timeline.canonical) == "n"


def test_a_replaced_entry_keeps_its_place_for_the_one_that_replaces_it() -> None:
    data = head("L") + message(1, "a") + message(2, "b", "a") + message(3, "c", "b")
    late = head("M", "desk") + message(4, "d", "b")
    entries = [{"message_id": "x", "replaces": "b", "after": "a"}, {"message_id": "y", "after": "c"}]
    timeline = read({"a": data + compacted(["L", 4, "c"], kept=["c"], entries=entries), "b": late})
    assert (ids(timeline.canonical), ids(timeline.live)) == ("a x c y d", "x c y d")


# --- fields and counters ------------------------------------------------------------------------------------------


def test_the_last_set_of_a_field_wins_by_epoch_then_id_device_and_identity() -> None:
    ranked = [
        ("desk", line("session", 9, record="z", set={"label": 0})),
        ("desk", line("session", 1, record="z1", epoch=1, set={"label": 1})),
        ("desk", line("session", 2, record="z2", epoch=1, set={"label": 2})),
        ("laptop", line("session", 2, record="a", epoch=1, set={"label": 3})),
        ("laptop", line("session", 2, record="b", epoch=1, set={"label": 4})),
    ]
    for order in itertools.permutations(ranked):
        files = {str(n): head(f"L{n}", device) + record for n, (device, record) in enumerate(order)}
        assert read(files).fields == {"label": 4}
    for (loser, low), (winner, high) in itertools.pairwise(ranked):
        timeline = read({"a": head("L", loser) + low, "b": head("M", winner) + high})
        assert timeline.fields == {"label": ranked.index((winner, high))}


def test_fields_outlive_a_reset_and_counters_do_not() -> None:
    data = head("L") + message(1, "m", set={"label": "x", "model": "a"}, add={"input_tokens": 5})
    data += line("session", 2, record="r", event="reset", epoch=1, set={"model": "b"}) + message(
        3, "n", epoch=1, add={"output_tokens": 1}
    )
    timeline = read(data)
    assert timeline.fields == {"label": "x", "model": "b"}
    assert timeline.counters == {"output_tokens": 1}


def test_counters_count_entries_that_are_archived_or_removed() -> None:
    data = head("L") + message(1, "a", add={"input_tokens": 1}) + message(2, "b", "a", add={"input_tokens": 2})
    data += line("remove", 3, record="q", message_id="a") + compacted(["L", 3, "b"], add={"input_tokens": 4})
    timeline = read(data)
    assert (ids(timeline.live), timeline.counters) == ("", {"input_tokens": 7})


AMOUNTS = st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False)


@settings(max_examples=150)
@given(st.lists(AMOUNTS | st.lists(AMOUNTS, max_size=2), max_size=6), st.randoms(use_true_random=False))
def test_the_sum_of_a_counter_depends_on_no_order(amounts: list[Any], random: Any) -> None:
    records = [message(1, f"m{n}", add={"total_cost_usd": amount}) for n, amount in enumerate(amounts)]
    first = read(head("L") + b"".join(records)).counters
    random.shuffle(records)
    split = random.randint(0, len(records))
    files = {"a": head("L") + b"".join(records[:split]), "b": head("M", "desk") + b"".join(records[split:])}
    assert repr(read(files).counters) == repr(first)


def test_integers_add_up_exactly_and_floats_are_rounded_once() -> None:
    def total(*amounts: Any) -> Any:
        return read(head("L") + b"".join(message(1, str(n), add={"x": a}) for n, a in enumerate(amounts))).counters["x"]

    assert total(2**53, 1, 1) == 2**53 + 2
    assert total(*[0.1] * 10) == 1.0
    assert total(1e100, 1, -1e100) == 1.0
    assert total(1, [0.5, 2.0**-60], -1) == 0.5 + 2.0**-60
    assert total(1e308, 1e308, -1e308) == 1e308
    assert total(1e308, 1e308) == sys.float_info.max
    assert total(-1e308, -1e308, 5) == -sys.float_info.max


def test_amounts_that_are_no_numbers_are_ignored() -> None:
    data = head("L") + message(1, "m", add={"a": "1", "b": True, "c": None, "d": [1, "x", {}], "e": {"f": 1}})
    assert read(data).counters == {"d": 1}


def test_set_and_add_count_in_records_of_types_that_are_not_known() -> None:
    timeline = read(
        PLAIN
        + line("hologram", 3, record="h", set={"label": "x", "unheard_of": [1]}, add={"input_tokens": 2, "fresh": 1})
    )
    assert timeline.fields == {"label": "x", "unheard_of": [1]}
    assert timeline.counters == {"input_tokens": 7, "fresh": 1}
    assert timeline.last_id == 3


def test_every_session_id_of_the_generation_names_the_session() -> None:
    data = head("L") + message(1, "m", set={"session_id": "s0"}) + message(2, "n", epoch=1, set={"session_id": "s1"})
    timeline = read(data + line("session", 3, record="r", epoch=1, set={"session_id": "s2"}))
    assert (timeline.session_ids, timeline.fields["session_id"]) == (["s1", "s2"], "s2")


# --- deletions ----------------------------------------------------------------------------------------------------

ABC = head("L") + message(1, "a", set={"label": "x"}) + message(2, "b", "a", add={"input_tokens": 1})


def deletion(epoch: int, *seen: Any, **members: Any) -> dict[str, Any]:
    return {
        "format": 1,
        "session_key": KEY,
        "device": "laptop",
        "deleted_at": 1,
        "epoch": epoch,
        "seen": list(seen),
        **members,
    }


def test_what_a_deletion_had_seen_does_not_count_wherever_it_turns_up() -> None:
    timeline = read({"copy": ABC, "other": head("M", "desk") + message(2, "b", "a")}, [deletion(1, ["L", 3, "b"])])
    assert not timeline.exists
    assert (timeline.epoch, timeline.records) == (1, {})


def test_records_that_it_had_not_seen_bring_the_session_back() -> None:
    late = head("M", "desk") + message(3, "c", "b", add={"input_tokens": 2})
    timeline = read({"a": ABC, "b": late}, [deletion(1, ["L", 3, "b"])])
    assert (timeline.exists, timeline.back) == (True, True)
    assert (ids(timeline.live), timeline.epoch, timeline.generation) == ("c", 1, 1)
    assert (timeline.fields, timeline.counters) == ({}, {"input_tokens": 2})


def test_without_a_message_a_creation_or_a_reset_among_them_there_is_none() -> None:
    late = head("M", "desk") + line("session", 3, record="r", set={"label": "y"})
    assert not read({"a": ABC, "b": late}, [deletion(1, ["L", 3, "b"])]).exists


def test_a_session_created_again_begins_with_the_epoch_of_the_deletion() -> None:
    again = head("M", epoch=1) + line("session", 3, record="r", event="created", epoch=1) + message(4, "c", epoch=1)
    timeline = read({"a": ABC, "b": again}, [deletion(1, ["L", 3, "b"])])
    assert (timeline.exists, timeline.back, ids(timeline.canonical)) == (True, False, "c")


def test_seen_records_of_the_epoch_of_the_deletion_count() -> None:
    again = head("L") + message(1, "a") + message(2, "b", "a", epoch=1)
    assert ids(read(again, [deletion(1, ["L", 3, "b"])]).live) == "b"


def test_a_deletion_says_nothing_of_generations_before_the_one_it_deleted() -> None:
    early = head("M", "desk") + message(3, "c", epoch=1)
    late = head("N", "desk") + message(4, "d", epoch=2)
    deleted = deletion(3, ["L", 3, "b"])
    assert not read({"a": ABC, "b": early}, [deleted]).exists
    assert ids(read({"a": ABC, "b": early, "c": late}, [deleted]).live) == "d"


def test_the_generation_of_a_deletion_can_differ_where_the_epoch_was_raised() -> None:
    fenced = head("L") + message(1, "a") + line("session", 2, record="f", epoch=4, generation=0)
    late = head("M", "desk") + message(2, "b", "a")
    assert ids(read({"a": fenced, "b": late}, [deletion(5, ["L", 3, "f"], generation=0)]).live) == "b"
    assert not read({"a": fenced, "b": late}, [deletion(5, ["L", 3, "f"])]).exists


def test_a_shorter_copy_than_was_seen_brings_the_session_back() -> None:
    timeline = read(head("L") + message(1, "a"), [deletion(1, ["L", 3, "b"])])
    assert (timeline.exists, timeline.back) == (True, True)


def test_several_deletions_take_effect_whatever_their_order() -> None:
    again = head("M", epoch=1) + message(3, "c", epoch=1)
    both = [deletion(1, ["L", 3, "b"]), deletion(2, ["L", 3, "b"], ["M", 2, "c"])]
    for deleted in (both, both[::-1]):
        timeline = read({"a": ABC, "b": again}, deleted)
        assert (timeline.exists, timeline.epoch) == (False, 2)
        late = {"a": ABC, "b": again, "c": head("N", "desk") + message(3, "d", "b")}
        assert ids(read(late, deleted).live) == "d"


@pytest.mark.parametrize(
    "document", [{}, {"epoch": 0}, {"epoch": -1}, {"epoch": True}, {"epoch": 1, "generation": "x"}]
)
def test_what_names_no_epoch_is_no_deletion(document: dict[str, Any]) -> None:
    assert Deletion.read(document) is None


def test_a_deletion_without_marks_had_seen_nothing() -> None:
    assert Deletion.read({"epoch": 3}) == Deletion(epoch=3, generation=2, seen=())


# --- summaries and context states ---------------------------------------------------------------------------------


def attached(timeline: Timeline) -> list[tuple[str, int, dict[str, Any], bool]]:
    return [(a.doc_id, a.index, a.changes, a.removed) for a in timeline.summaries]


def test_summaries_are_numbered_in_the_order_of_records_and_keep_their_number() -> None:
    data = head("L") + line("summary", 2, record="r2", summary="s2") + compacted(number=1, record="r1", summary="s1")
    data += line("summary", 3, record="r3", summary="s1", change={"removed": True}) + line(
        "summary", 4, record="r4", summary="s3"
    )
    timeline = read(data)
    assert attached(timeline) == [("s1", 0, {}, True), ("s2", 1, {}, False), ("s3", 2, {}, False)]
    assert [a.doc_id for a in timeline.current(timeline.summaries)] == ["s2", "s3"]


def test_the_last_change_of_a_field_of_a_summary_counts_wherever_it_was_written() -> None:
    mine = (
        head("L")
        + line("summary", 1, record="r1", summary="s")
        + line("summary", 3, record="r3", summary="s", change={"x": 3})
    )
    theirs = head("M", "desk") + line(
        "summary", 2, record="r2", summary="s", change={"x": 2, "flush_receipt_status": "ok"}
    )
    for files in ({"a": mine, "b": theirs}, {"b": theirs, "a": mine}):
        assert attached(read(files)) == [("s", 0, {"x": 3, "flush_receipt_status": "ok"}, False)]


def test_context_states_come_with_a_compaction_or_by_themselves() -> None:
    change = {"valid": False, "invalid_reason": "model changed"}
    data = head("L") + compacted(number=1, contexts=["c1", 7]) + line("context", 2, record="r2", context="c2")
    timeline = read(data + line("context", 3, record="r3", context="c1", change=change))
    assert [(a.doc_id, a.changes) for a in timeline.contexts] == [("c1", change), ("c2", {})]


def test_a_change_of_what_is_unknown_changes_nothing() -> None:
    timeline = read(head("L") + line("summary", 1, record="r", summary="s", change={"removed": True}))
    assert (timeline.summaries, timeline.contexts) == ([], [])


def test_summaries_and_states_of_a_closed_generation_are_no_longer_the_sessions() -> None:
    data = (
        head("L")
        + compacted(number=1, summary="s1", contexts=["c1"])
        + line("session", 2, record="r", event="reset", epoch=1)
    )
    timeline = read(data + line("summary", 3, record="q", epoch=1, summary="s2"))
    assert attached(timeline) == [("s1", 0, {}, False), ("s2", 0, {}, False)]
    assert [a.doc_id for a in timeline.current(timeline.summaries)] == ["s2"]
    assert timeline.current(timeline.contexts) == []


# --- versions, numbers, order of files ----------------------------------------------------------------------------


def test_a_manifest_of_a_later_version_is_refused_by_name_and_version() -> None:
    data = encode_document({"type": "manifest", "format": FORMAT + 1, "future": True})
    with pytest.raises(UnsupportedFormatError, match=r"manifest\.x\.json has format version 2") as caught:
        decode_manifest(data, "manifest.x.json")
    assert (caught.value.path, caught.value.version) == ("manifest.x.json", 2)


def test_the_first_line_names_the_version() -> None:
    assert read_log(head("L")).format == FORMAT
    assert read_log(head("L").replace(b'"format":1', b'"format":2')).format == 2
    assert read_log(head("L").replace(b'"format":1,', b"")).format == 1


def test_the_next_id_is_above_all_that_is_known_counting_or_not() -> None:
    assert read(head("L", last_id=9) + message(3, "m")).last_id == 9
    assert read({"a": head("L") + message(3, "m"), "b": head("M") + message(12, "x", epoch=1)}).last_id == 12
    assert read(head("L") + message(MAX_COUNTER, "m")).last_id == MAX_COUNTER


@settings(max_examples=60)
@given(st.permutations(sorted(LOGS)), st.integers(0, 400), st.sampled_from(sorted(LOGS)))
def test_no_order_of_files_and_no_cut_copy_changes_the_answer(names: list[str], cut: int, copied: str) -> None:
    whole = read(LOGS)
    files = {name: LOGS[name] for name in names}
    files["a conflict copy"] = LOGS[copied][:cut]
    timeline = read(files)
    for name in ("epoch", "generation", "fields", "counters", "session_ids", "archived_by", "last_id"):
        assert getattr(timeline, name) == getattr(whole, name), name
    assert (ids(timeline.canonical), ids(timeline.live)) == (ids(whole.canonical), ids(whole.live))


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=10))
def test_going_on_gives_what_folding_anew_gives(steps: list[tuple[int, bool]]) -> None:
    """What `Timeline.extend` takes in, one record after another, is what the whole says."""
    data = head("L") + line("session", 1, record="r1", event="created", set={"session_id": "s"})
    log, going = Log("a"), read(data)
    log.extend(data, 0)
    last, number = None, 1
    for kind, tool in steps:
        number += 1
        if kind == 3:
            record = line(
                "session", number, record=f"r{number}", set={"label": number}, add={"input_tokens": 1, "x": 0.1}
            )
        elif tool and last is not None:
            record = result(number, f"m{number}", last)
        else:
            record = call(number, f"m{number}", last)
        last = last if kind == 3 else f"m{number}"
        (came,) = log.extend(record, log.resume_offset)
        data += record
        whole = read(data)
        assert going.extend(came)
        assert (ids(going.live), ids(going.canonical)) == (ids(whole.live), ids(whole.canonical))
        assert (going.fields, going.counters, going.last_id) == (whole.fields, whole.counters, whole.last_id)
