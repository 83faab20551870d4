"""Every record is told once and in the order of its log, whatever happens to the files."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from faulty_files import FaultyFiles
from followed import KEY, all_of, brief, briefs, follower_of, resumes_everywhere, said, told_by
from stores import entry, say, summary
from written import head, line, message

from squilla_files.commits import CompactionCommit
from squilla_files.errors import SquillaFilesError
from squilla_files.events import Event
from squilla_files.following import Follower
from squilla_files.layout import session_dir_name
from squilla_files.models import SessionNode
from squilla_files.positions import Position
from squilla_files.storage import SessionStorage

NAME = "transcript.laptop.000001.jsonl"
OTHER = "transcript.other.000001.jsonl"
FIRST = message(1, "a", content="a")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SessionStorage]:
    async with SessionStorage(tmp_path / "store", device="desk") as opened:
        yield opened


@pytest.fixture
def directory(store: SessionStorage) -> Path:
    path = Path(store.root, "sessions", session_dir_name(KEY))
    path.mkdir(parents=True, mode=0o700)
    return path


def write(path: Path, data: bytes) -> None:
    """Put a file of this content in place, as a sync service does: in one step, and never in the same inode."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name("~moving.tmp")
    temporary.write_bytes(data)
    temporary.rename(path)


def add(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def from_the_beginning(store: SessionStorage) -> Follower:
    return follower_of(store, Position())


# --- lines -----------------------------------------------------------------------------------------------------------


def test_a_line_in_three_pieces_that_cut_an_emoji_is_told_when_it_is_whole(
    store: SessionStorage, directory: Path
) -> None:
    follower = from_the_beginning(store)
    text = message(2, "b", "a", content="smile 😀 end")
    cuts = [text.index("😀".encode()) + 2, len(text) - 5]
    write(directory / NAME, head("l1") + FIRST)
    assert said(told_by(follower)) == ["a"]
    for piece in (text[: cuts[0]], text[cuts[0] : cuts[1]]):
        add(directory / NAME, piece)
        assert told_by(follower) == []
    add(directory / NAME, text[cuts[1] :])
    events = told_by(follower)
    assert said(events) == ["smile 😀 end"]
    assert told_by(follower) == told_by(follower_of(store, events[-1].cursor)) == []


def test_a_record_that_lost_only_its_line_feed_is_told_once(store: SessionStorage, directory: Path) -> None:
    follower = from_the_beginning(store)
    write(directory / NAME, head("l1") + FIRST[:-1])
    events = told_by(follower)
    add(directory / NAME, b"\n" + message(2, "b", "a"))
    assert said([*events, *told_by(follower)]) == ["a", "b"]
    assert said(told_by(follower_of(store, events[-1].cursor))) == ["b"]


def test_a_damaged_line_is_told_once_with_its_place_and_no_unfinished_one(
    store: SessionStorage, directory: Path
) -> None:
    follower = from_the_beginning(store)
    begun = head("l1") + FIRST
    write(directory / NAME, begun + b'{"type":"mess')
    assert briefs(told_by(follower)) == ["appended a"]
    add(directory / NAME, b"\n" + message(3, "c", "a"))
    events = told_by(follower)
    assert briefs(events) == ["damage damaged_line", "appended c"]
    assert events[0].kind == "damage"
    found = events[0].finding
    assert (found.session_key, found.path, found.offset) == (
        KEY, f"sessions/{directory.name}/{NAME}", len(begun),
    )  # fmt: skip
    assert told_by(follower) == []
    resumes_everywhere(store, all_of(store))


def test_a_record_of_an_unknown_type_tells_nothing_and_is_passed_over_once(
    store: SessionStorage, directory: Path
) -> None:
    write(directory / NAME, head("l1") + line("later", 1, record="r") + message(2, "b"))
    assert said(all_of(store)) == ["b"]
    resumes_everywhere(store, all_of(store))


# --- logs that are cut, replaced, moved ------------------------------------------------------------------------------


def test_a_log_that_was_cut_back_and_grew_again_tells_only_what_is_new(store: SessionStorage, directory: Path) -> None:
    follower = from_the_beginning(store)
    begun = head("l1") + FIRST
    write(directory / NAME, begun + message(2, "b", "a"))
    assert said(told_by(follower)) == ["a", "b"]
    os.truncate(directory / NAME, len(begun))
    assert told_by(follower) == []
    add(directory / NAME, message(2, "B", "a") + message(3, "c", "B"))
    assert said(told_by(follower)) == ["B", "c"]


def test_a_log_that_was_cut_back_and_came_back_tells_nothing_again_also_after_a_restart(
    store: SessionStorage, directory: Path
) -> None:
    follower = from_the_beginning(store)
    whole = head("l1") + FIRST + message(2, "b", "a")
    write(directory / NAME, whole)
    told_by(follower)
    write(directory / NAME, head("l1") + FIRST)
    assert told_by(follower) == []
    cursor = follower.cursor
    write(directory / NAME, whole + message(3, "c", "b"))
    assert said(told_by(follower)) == ["c"]
    assert said(told_by(follower_of(store, cursor))) == ["c"]


def test_a_log_that_is_away_for_a_moment_tells_nothing_again(store: SessionStorage, directory: Path) -> None:
    follower = from_the_beginning(store)
    write(directory / NAME, head("l1") + FIRST)
    told_by(follower)
    (directory / NAME).rename(directory.with_name("away"))
    assert told_by(follower) == []
    write(directory / NAME, head("l1") + FIRST + message(2, "b", "a"))
    assert said(told_by(follower)) == ["b"]


def test_a_log_that_moves_to_the_archive_tells_nothing_again(store: SessionStorage, directory: Path) -> None:
    follower = from_the_beginning(store)
    write(directory / NAME, head("l1") + FIRST)
    events = told_by(follower)
    (directory / "archive").mkdir()
    (directory / NAME).rename(directory / "archive" / NAME)
    assert told_by(follower) == told_by(follower_of(store, events[-1].cursor)) == []


def test_lines_that_a_log_carries_over_are_told_once(store: SessionStorage, directory: Path) -> None:
    follower = from_the_beginning(store)
    old = head("l1") + FIRST + message(2, "b", "a")
    new = head("l2", last_id=2, source=("l1", [3])) + message(2, "b", "a") + message(3, "c", "b")
    write(directory / NAME, old)
    events = told_by(follower)
    write(directory / "transcript.laptop.000002.jsonl", new)
    events += told_by(follower)
    (directory / "archive").mkdir()
    (directory / NAME).rename(directory / "archive" / NAME)
    assert told_by(follower) == []
    assert said(events) == ["a", "b", "c"]
    resumes_everywhere(store, events)


def test_a_log_that_comes_before_the_one_that_it_continues_is_pending_once_and_told_once(
    store: SessionStorage, directory: Path
) -> None:
    follower = from_the_beginning(store)
    new = head("l2", last_id=2, source=("l1", [3])) + message(2, "b", "a") + message(3, "c", "b")
    write(directory / "transcript.laptop.000002.jsonl", new)
    events = told_by(follower)
    assert briefs(events) == ["pending", "appended b", "appended c"]
    assert events[0].kind == "pending"
    assert events[0].missing == ("l1",)
    assert told_by(follower) == told_by(follower_of(store, events[-1].cursor)) == []
    write(directory / "archive" / NAME, head("l1") + FIRST + message(2, "b", "a"))
    assert said(told_by(follower)) == said(told_by(follower_of(store, events[-1].cursor))) == ["a"]


# --- copies ----------------------------------------------------------------------------------------------------------


def test_a_copy_is_told_as_a_conflict_once_and_its_records_are_not_told_again(
    store: SessionStorage, directory: Path
) -> None:
    follower = from_the_beginning(store)
    data = head("l1") + FIRST + message(2, "b", "a")
    write(directory / NAME, data)
    told_by(follower)
    write(directory / "transcript (copy).jsonl", data)
    events = told_by(follower)
    assert briefs(events) == ["conflict identical"]
    assert told_by(follower) == told_by(follower_of(store, events[-1].cursor)) == []


@pytest.mark.parametrize(
    ("more", "kind", "contents"),
    [(b"", "shorter", []), (message(2, "B", "a"), "diverged", ["B"])],
)
def test_a_copy_tells_what_only_it_has(
    store: SessionStorage, directory: Path, more: bytes, kind: str, contents: list[str]
) -> None:
    follower = from_the_beginning(store)
    write(directory / NAME, head("l1") + FIRST + message(2, "b", "a"))
    begun = told_by(follower)
    write(directory / "copy.jsonl", head("l1") + FIRST + more)
    events = told_by(follower)
    assert brief(events[0]) == f"conflict {kind}"
    assert said(events) == contents
    resumes_everywhere(store, all_of(store))
    assert said(told_by(follower_of(store, begun[-1].cursor))) == contents


def test_a_copy_that_holds_what_the_log_lost_tells_nothing_again(store: SessionStorage, directory: Path) -> None:
    whole = head("l1") + FIRST + message(2, "b", "a")
    write(directory / NAME, whole)
    cursor = all_of(store)[-1].cursor
    write(directory / NAME, head("l1") + FIRST)
    write(directory / "copy.jsonl", whole)
    assert said(told_by(follower_of(store, cursor))) == []


def test_a_log_of_another_session_is_told_as_a_conflict_once(store: SessionStorage, directory: Path) -> None:
    follower = from_the_beginning(store)
    write(directory / NAME, head("l1") + FIRST)
    told_by(follower)
    write(directory / OTHER, head("l9", "other").replace(KEY.encode(), b"agent:main:else") + message(1, "z"))
    events = told_by(follower)
    assert briefs(events) == ["conflict foreign"]
    assert told_by(follower) == told_by(follower_of(store, events[-1].cursor)) == []


# --- devices ---------------------------------------------------------------------------------------------------------


def test_what_two_devices_wrote_comes_in_the_order_of_each(store: SessionStorage, directory: Path) -> None:
    write(directory / NAME, head("l1") + FIRST + message(4, "d", "a") + message(5, "e", "d"))
    write(directory / OTHER, head("l2", "other") + message(2, "b", "a") + message(3, "c", "b"))
    assert said(all_of(store)) == ["a", "b", "c", "d", "e"]
    resumes_everywhere(store, all_of(store))


def test_a_message_that_comes_after_its_removal_is_not_told(store: SessionStorage, directory: Path) -> None:
    follower = from_the_beginning(store)
    write(directory / OTHER, head("l2", "other") + line("remove", 2, record="r", message_id="a"))
    assert briefs(told_by(follower)) == ["removed a"]
    write(directory / NAME, head("l1") + FIRST + message(3, "c", "a"))
    assert briefs(told_by(follower)) == ["appended c"]
    resumes_everywhere(store, all_of(store))


async def test_a_summary_that_comes_after_its_record_is_told_when_it_is_there(store: SessionStorage) -> None:
    node = await store.create_session(SessionNode(session_key=KEY))
    follower = follower_of(store)
    follower.advance()
    await store.save_summary(summary(node, "s"))
    (path,) = Path(store.root).rglob("summaries/*.json")
    path.rename(path.with_name("~away.tmp"))
    (pending,) = told_by(follower)
    assert pending.kind == "pending"
    assert told_by(follower) == told_by(follower_of(store, pending.cursor)) == []
    path.with_name("~away.tmp").rename(path)
    assert briefs(told_by(follower)) == briefs(told_by(follower_of(store, pending.cursor))) == ["compacted s"]
    assert told_by(follower) == []


# --- what cannot be resumed ------------------------------------------------------------------------------------------


def test_a_log_that_was_put_back_is_a_gap(store: SessionStorage, directory: Path) -> None:
    write(directory / NAME, head("l1") + FIRST + message(2, "b", "a"))
    cursor = all_of(store)[-1].cursor
    write(directory / NAME, head("l1") + FIRST)
    follower = follower_of(store, cursor)
    assert briefs(told_by(follower)) == ["gap"]
    add(directory / NAME, message(2, "B", "a"))
    assert said(told_by(follower)) == ["B"]


def test_a_log_that_went_another_way_since_is_a_gap(store: SessionStorage, directory: Path) -> None:
    write(directory / NAME, head("l1") + FIRST + message(2, "b", "a"))
    cursor = all_of(store)[-1].cursor
    write(directory / NAME, head("l1") + FIRST + message(2, "B", "a") + message(3, "C", "B"))
    assert briefs(told_by(follower_of(store, cursor))) == ["gap"]


def test_a_session_whose_logs_are_gone_is_a_gap(store: SessionStorage, directory: Path) -> None:
    write(directory / NAME, head("l1") + FIRST)
    cursor = all_of(store)[-1].cursor
    shutil.rmtree(directory)
    assert briefs(told_by(follower_of(store, cursor))) == ["gap"]


async def test_a_sealed_log_that_changed_is_a_gap_although_no_cursor_lists_it(store: SessionStorage) -> None:
    node = await store.create_session(SessionNode(session_key=KEY))
    for turn in range(3):
        await say(store, node, f"a{turn}", f"b{turn}")
        await store.commit_compaction(KEY, CompactionCommit(preimage=None, kept=(), summary=summary(node, "s")))
    cursor = all_of(store)[-1].cursor
    assert told_by(follower_of(store, cursor)) == []
    sealed = min(Path(store.root).rglob("archive/*.jsonl"))
    write(sealed, sealed.read_bytes()[:-20])
    assert brief(told_by(follower_of(store, cursor))[0]) == "gap"


async def test_a_cursor_of_a_session_that_was_deleted_since_is_a_gap_then_the_rest(store: SessionStorage) -> None:
    node = await store.create_session(SessionNode(session_key=KEY))
    await say(store, node, "old")
    cursor = all_of(store)[-1].cursor
    await store.delete_session(KEY)
    again = await store.create_session(SessionNode(session_key=KEY))
    await say(store, again, "new")
    kinds = [event.kind for event in told_by(follower_of(store, cursor))]
    assert kinds == ["gap", "deleted", "created", "appended"]


async def test_a_deletion_that_took_what_was_not_told_is_a_gap_and_no_silence(store: SessionStorage) -> None:
    node = await store.create_session(SessionNode(session_key=KEY))
    follower = follower_of(store)
    follower.advance()
    await say(store, node, "never told")
    await store.delete_session(KEY)
    assert briefs(told_by(follower)) == ["gap", "deleted"]


async def test_what_survived_a_deletion_is_told_from_the_beginning(store: SessionStorage) -> None:
    node = await store.create_session(SessionNode(session_key=KEY))
    await say(store, node, "old")
    path = Path(store.root, "sessions", session_dir_name(KEY))
    (log,) = path.glob("*.jsonl")
    data = log.read_bytes()
    follower = follower_of(store)
    follower.advance()
    await store.delete_session(KEY)
    assert briefs(told_by(follower)) == ["deleted"]
    write(path / OTHER, head("l2", "other") + message(9, "unseen", content="unseen"))
    write(path / log.name, data)
    assert said(told_by(follower)) == ["unseen"]


# --- how much at once ------------------------------------------------------------------------------------------------


def many(count: int) -> bytes:
    lines = [message(n, f"m{n}", f"m{n - 1}" if n > 1 else None, content=n) for n in range(1, count + 1)]
    return head("l1") + b"".join(lines)


def test_a_step_is_bounded_and_the_next_goes_on_behind_it(store: SessionStorage, directory: Path) -> None:
    write(directory / NAME, many(1000))
    follower = from_the_beginning(store)
    steps = []
    while not follower.is_done:
        steps.append(said(follower.advance()))
    assert [number for step in steps for number in step] == list(range(1, 1001))
    assert max(map(len, steps)) <= 256


def test_a_step_of_large_messages_holds_few_of_them(store: SessionStorage, directory: Path) -> None:
    lines = [message(n, f"m{n}", f"m{n - 1}" if n > 1 else None, content="x" * 400_000) for n in range(1, 9)]
    write(directory / NAME, head("l1") + b"".join(lines))
    assert len(from_the_beginning(store).advance()) <= 3


async def test_what_a_step_reads_does_not_grow_with_the_session(tmp_path: Path) -> None:
    read: dict[int, int] = {}
    for length in (20, 900):
        files = FaultyFiles("os")
        async with SessionStorage(tmp_path / str(length), device="desk", files=files) as store:
            node = await store.create_session(SessionNode(session_key=KEY))
            directory = Path(store.root, "sessions", session_dir_name(KEY))
            write(directory / OTHER, many(length).replace(b'"laptop"', b'"other"'))
            await say(store, node, "one")
            follower = follower_of(store)
            follower.advance()
            await say(store, node, "two")
            before = len(files.calls)
            assert said(follower.advance()) == ["two"]
            lengths = [call.args[1] for call in files.calls[before:] if call.name == "pread"]
            read[length] = sum(number for number in lengths if isinstance(number, int))
    assert read[900] < read[20] + 10  # ids have more digits


# --- all at once -----------------------------------------------------------------------------------------------------


async def _grown(root: Path) -> dict[str, bytes]:
    """Return the files of a session that two devices wrote, with compactions and a reset."""
    async with SessionStorage(root, device="desk") as desk, SessionStorage(root, device="lap") as lap:
        node = await desk.create_session(SessionNode(session_key=KEY))
        for turn in range(3):
            await say(desk, node, f"desk {turn} 0", f"desk {turn} 1 😀")
            await say(lap, node, f"lap {turn} 0", f"lap {turn} 1")
            mine = await desk.append_transcript_entry(entry(node, f"gone {turn}"))
            await lap.remove_entry(KEY, mine.message_id)
            await (desk if turn % 2 else lap).truncate_session(KEY, 2)
        node = await lap.reset_session(KEY, reason="test")
        await say(desk, node, "after")
        await desk.commit_compaction(KEY, CompactionCommit(preimage=None, kept=(), summary=summary(node, "s")))
    path = root / "sessions" / session_dir_name(KEY)
    return {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*.json*") if "manifest" not in p.name}


@pytest.mark.parametrize("seed", range(12))
async def test_files_that_come_in_pieces_and_in_any_order_are_told_once(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    whole = await _grown(tmp_path / "source")
    async with SessionStorage(tmp_path / "target", device="third") as store:
        path = Path(store.root, "sessions", session_dir_name(KEY))
        sizes = dict.fromkeys(whole, 0)
        follower = from_the_beginning(store)
        events: list[Event] = []
        while any(size < len(whole[name]) for name, size in sizes.items()):
            name = rng.choice([n for n, size in sizes.items() if size < len(whole[n])])
            piece = len(whole[name]) if name.endswith(".json") else rng.choice([1, 40, 300, 5000])
            sizes[name] = min(len(whole[name]), sizes[name] + piece)
            write(path / name, whole[name][: sizes[name]])
            events += told_by(follower)
            if rng.random() < 0.3:  # a restart
                follower = follower_of(store, events[-1].cursor if events else Position())
        told = sorted(brief(event) for event in events if event.kind in ("appended", "created", "reset"))
        complete = all_of(store)
        removed = {event.message_id for event in events if event.kind == "removed"}
        late = {e.entry.content for e in complete if e.kind == "appended" and e.entry.message_id in removed}
        expected = sorted(brief(event) for event in complete if event.kind in ("appended", "created", "reset"))
        # A message that arrives after its removal is not told at all.
        assert [t for t in told if t.removeprefix("appended ") not in late] == [
            t for t in expected if t.removeprefix("appended ") not in late
        ]
        assert len(said(events)) == len(set(said(events)))
        assert "gap" not in {event.kind for event in events}
        assert told_by(follower) == []


async def test_reading_errors_leave_nothing_half_told(tmp_path: Path) -> None:
    files = FaultyFiles("os")
    async with SessionStorage(tmp_path / "store", device="desk", files=files) as store:
        node = await store.create_session(SessionNode(session_key=KEY))
        cursor = all_of(store)[-1].cursor
        await say(store, node, "a", "b")
        told: list[list[str]] = []
        for k in range(1, 60):
            files.fail_at(k, 5)
            try:
                told.append(briefs(told_by(follower_of(store, cursor))))
            except (OSError, SquillaFilesError):
                pass
            finally:
                files.heal()
        assert told
        assert all(events == ["appended a", "appended b"] for events in told)
