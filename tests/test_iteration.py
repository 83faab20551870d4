"""A transcript piece by piece: streamed where one log is its order, read by its index elsewhere, the same both ways."""

from __future__ import annotations

import errno
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_files import MemoryFiles
from operations import DIRECTORY, PATHS, commit, context, entry, node, open_session, say, send, steady, summary
from written import KEY, call, head, line, message, result

from squilla_files import documents
from squilla_files.appending import Append, clear, remove
from squilla_files.deletions import Deletions
from squilla_files.devices import Devices
from squilla_files.errors import CorruptRecordError, UnsupportedFormatError
from squilla_files.files import Files
from squilla_files.iteration import transcript_batches
from squilla_files.layout import Layout, session_dir_name
from squilla_files.models import TranscriptEntry
from squilla_files.rewriting import truncate
from squilla_files.session import Session
from squilla_files.session_dir import SessionDir

CREATED = line("session", 1, record="made", event="created", set={"session_id": "first"})
NAME = "transcript.laptop.000001.jsonl"


@pytest.fixture(autouse=True)
def steady_world() -> Iterator[None]:
    with steady(4):
        yield


def unread(files: Files, paths: Layout = PATHS) -> SessionDir:
    return SessionDir(files, paths, Deletions(files, paths), Devices(files, paths, "laptop"), KEY)


def walked(directory: SessionDir, session_id: str = "first", *, canonical: bool = False) -> list[TranscriptEntry]:
    batches = list(transcript_batches(directory, session_id, canonical=canonical))
    assert all(batches)
    return [each for batch in batches for each in batch]


def indexed(files: MemoryFiles, session_id: str = "first", *, canonical: bool = False) -> list[TranscriptEntry]:
    """What the index of all logs gives."""
    directory = unread(files)
    timeline = directory.refresh()
    named = session_id in timeline.session_ids
    return directory.entries(timeline.canonical if canonical else timeline.live) if named else []


def on_disk(*lines: bytes, name: str = NAME) -> MemoryFiles:
    files = MemoryFiles()
    files.put(f"{DIRECTORY}/{name}", b"".join(lines))
    return files


def is_streamed(files: MemoryFiles, session_id: str = "first") -> bool:
    """Whether a transcript is given without an index; what is given is what the index gives."""
    files = files.another_process()
    streamed = set()
    for canonical in (False, True):
        directory = unread(files)
        assert walked(directory, session_id, canonical=canonical) == indexed(files, session_id, canonical=canonical)
        assert not files.open_paths
        streamed.add(not directory.is_read)
    assert len(streamed) == 1
    return streamed.pop()


PLAIN = (
    head("L"),
    CREATED,
    message(2, "a", created_at=5, add={"total_tokens": 3}, set={"label": "x"}),
    line("session", 3, record="s", set={"subject": "tea"}),
    call(4, "ask", "a"),
    result(5, "answer", "ask", color="red"),
    message(9, "b", "answer"),
)


def test_one_log_that_only_grew_is_streamed_without_an_index() -> None:
    files = on_disk(*PLAIN)
    assert [each.message_id for each in walked(unread(files))] == ["a", "ask", "answer", "b"]
    assert [each.id for each in walked(unread(files))] == [2, 4, 5, 9]
    assert is_streamed(files)


def test_what_this_package_writes_before_the_first_compaction_is_streamed() -> None:
    files = MemoryFiles()
    session = open_session(files)
    session.create(node(model="large"))
    say(session, "a", "b")
    session.update({"label": "x"}, {"total_tokens": 2})
    say(session, "c", role="assistant", tool_calls=[{"id": "c"}])
    say(session, "d", role="tool", tool_call_id="c")
    assert is_streamed(files)
    assert [each.message_id for each in walked(unread(files))] == ["a", "b", "c", "d"]


@pytest.mark.parametrize("epoch", [{"epoch": 3}, {"epoch": 3, "generation": 1}])
def test_all_of_one_generation_is_streamed_whichever_it_is(epoch: dict[str, int]) -> None:
    created = line("session", 1, **epoch, record="made", event="created", set={"session_id": "first"})
    assert is_streamed(on_disk(head("L", epoch=3), created, message(2, "a", **epoch), message(3, "b", "a", **epoch)))


def test_a_last_line_without_its_lf_is_given_and_half_a_line_is_not() -> None:
    assert is_streamed(on_disk(*PLAIN, message(10, "c", "b")[:-1]))
    files = on_disk(*PLAIN, message(10, "c", "b")[:-2])
    assert not is_streamed(files)
    assert [each.message_id for each in walked(unread(files))] == ["a", "ask", "answer", "b"]


def test_a_session_that_was_read_already_is_not_streamed_again() -> None:
    files = on_disk(*PLAIN)
    directory = unread(files)
    directory.refresh()
    files.calls.clear()
    assert len(walked(directory)) == 4
    assert [call.args[1] for call in files.calls if call.name == "pread"] == [sum(map(len, PLAIN[2:])) - 1]


NOT_PLAIN: dict[str, tuple[bytes, ...]] = {
    "nothing": (),
    "an empty log": (b"",),
    "another session": (head("L").replace(KEY.encode(), b"agent:main:other"), *PLAIN[1:]),
    "a damaged first line": (b"x" + head("L"), *PLAIN[1:]),
    "a log without its first line": PLAIN[1:],
    "a first line that continues another log": (head("L", source=("K", [2])), *PLAIN[1:]),
    "a damaged line": (*PLAIN, b"{\n"),
    "an empty line": (*PLAIN, b"\n", message(10, "c", "b")),
    "a line that is no object": (*PLAIN, b"[]\n"),
    "a removal": (*PLAIN, line("remove", 10, record="r", message_id="a")),
    "a compaction": (*PLAIN, line("compaction", 10, record="c", covers=[["L", 3, "a"]], kept=[])),
    "a summary": (*PLAIN, line("summary", 10, record="r", summary="d")),
    "an unknown type": (*PLAIN, line("mood", 10, record="r", set={"mood": "up"})),
    "no type": (*PLAIN, b'{"id":10,"message_id":"c","after":"b"}\n'),
    "a reset": (*PLAIN, line("session", 10, epoch=1, record="r", event="reset", set={"session_id": "second"})),
    "a reset that keeps the epoch": (*PLAIN, line("session", 10, record="r", event="reset")),
    "a fence": (*PLAIN, line("session", 10, epoch=1, generation=0, record="r", event="fenced")),
    "another epoch": (*PLAIN, message(10, "c", "b", epoch=1)),
    "another generation": (*PLAIN, message(10, "c", "b", epoch=0, generation=1)),
    "a second root": (*PLAIN, message(10, "c")),
    "a branch": (*PLAIN, message(10, "c", "a")),
    "an unknown after": (*PLAIN, message(10, "c", "z"), message(11, "d", "b")),
    "an after that is no text": (*PLAIN, line("message", 10, message_id="c", after=7, role="user")),
    "an id that does not grow": (*PLAIN, message(9, "c", "b")),
    "an id that falls": (*PLAIN, message(8, "c", "b")),
    "an id that is none": (*PLAIN, line("message", True, message_id="c", after="b", role="user")),  # type: ignore[arg-type]
    "an id beyond a double": (*PLAIN, message(2**53, "c", "b")),
    "no id": (*PLAIN, b'{"type":"message","message_id":"c","after":"b"}\n'),
    "no identity": (*PLAIN, line("message", 10, after="b", role="user")),
    "an empty identity": (*PLAIN, line("message", 10, message_id="", after="b", role="user")),
    "an identity that is no text": (*PLAIN, line("message", 10, message_id=7, after="b", role="user")),
    "a setting without identity": (*PLAIN, line("session", 10, set={"label": "x"})),
    "a second session id": (*PLAIN, line("session", 10, record="r", set={"session_id": "second"})),
    "no epoch at all": (head("L"), *(each.replace(b'"id"', b'"epoch":"x","id"', 1) for each in PLAIN[1:])),
    "an epoch below zero": (head("L"), *(each.replace(b'"id"', b'"epoch":-1,"id"', 1) for each in PLAIN[1:])),
    "no session": (head("L"), message(2, "a"), message(3, "b", "a")),
}


@pytest.mark.parametrize("what", NOT_PLAIN)
def test_whatever_else_stands_there_is_read_by_its_index(what: str) -> None:
    assert not is_streamed(on_disk(*NOT_PLAIN[what]))


def test_an_id_that_does_not_name_the_generation_gives_nothing() -> None:
    files = on_disk(*PLAIN)
    assert not is_streamed(files, "unknown")
    assert walked(unread(files), "unknown") == []
    two = on_disk(*NOT_PLAIN["a second session id"])
    assert len(walked(unread(two), "second")) == len(walked(unread(two))) == 4


def test_several_logs_are_read_by_their_index() -> None:
    for name in ("transcript.desk.000001.jsonl", "transcript.phone.000001.jsonl", "archive/" + NAME, "some copy"):
        files = on_disk(*PLAIN)
        files.put(f"{DIRECTORY}/{name}", head("D", "desk") + message(7, "d", "a"))
        assert not is_streamed(files)
    elsewhere = on_disk(*PLAIN, name="archive/" + NAME)
    assert is_streamed(elsewhere)


def test_a_session_that_was_deleted_once_is_read_by_its_index() -> None:
    files = MemoryFiles()
    session = open_session(files)
    session.create(node())
    say(session, "old")
    session.delete()
    session.create(node("second"))
    say(session, "a")
    assert not is_streamed(files, "second")
    assert [each.message_id for each in walked(unread(files), "second")] == ["a"]


def test_a_later_version_is_an_error() -> None:
    files = on_disk(head("L").replace(b'"format":1', b'"format":2'), *PLAIN[1:])
    with pytest.raises(UnsupportedFormatError):
        walked(unread(files))


# --- while others write ----------------------------------------------------------------------------------------------


def long_log(count: int) -> list[bytes]:
    before: list[str | None] = [None, *(f"m{n}" for n in range(count))]
    return [head("L"), CREATED, *(message(n + 2, f"m{n}", before[n]) for n in range(count))]


def test_what_is_appended_meanwhile_is_not_given() -> None:
    files = on_disk(*long_log(600))
    session = open_session(files.another_process())
    for directory in (unread(files), session.dir):
        batches = transcript_batches(directory, "first", canonical=False)
        first = next(batches)
        known = len(session.refresh().live)
        assert 0 < len(first) < known
        say(session, f"after {known}")
        assert len(first) + sum(map(len, batches)) == known


@pytest.mark.parametrize("moment", range(1, 4))
def test_a_log_that_is_sealed_meanwhile_is_given_all_the_same(moment: int) -> None:
    """It is sealed right before the log is opened, before its first and before its second reading."""

    class Sealing(MemoryFiles):
        waiting = 0

        def _pass(self, path: str) -> None:
            if path.endswith(NAME) and "archive" not in path and self.waiting:
                self.waiting -= 1
                if not self.waiting:
                    seal()

        def open_read(self, path: str) -> int:
            self._pass(path)
            return super().open_read(path)

        def pread(self, fd: int, length: int, offset: int) -> bytes:
            self._pass(self._paths[fd])
            return super().pread(fd, length, offset)

    made = on_disk(*long_log(300))
    files = Sealing(disk=made._disk)

    def seal() -> None:
        other = made.another_process()
        other.put(f"{DIRECTORY}/archive/{NAME}", other.read_file(f"{DIRECTORY}/{NAME}"))
        other.put(f"{DIRECTORY}/transcript.laptop.000002.jsonl", head("M", last_id=400, source=("L", [2])) + CREATED)
        other.unlink(f"{DIRECTORY}/{NAME}")

    directory = unread(files)
    files.waiting = moment
    assert len(walked(directory)) == 300
    assert not files.waiting
    assert not files.open_paths


class Changing(MemoryFiles):
    """The second reading of a log finds another first line there."""

    seen = 0

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        self.seen += length > 1000
        data = super().pread(fd, length, offset)
        return b"#" + data[1:] if self.seen > 1 and length > 1000 else data


def test_a_line_that_is_another_by_now_is_an_error_that_names_its_log() -> None:
    files = Changing(disk=on_disk(*long_log(600))._disk)
    with pytest.raises(CorruptRecordError) as caught:
        walked(unread(files))
    assert caught.value.path == f"{DIRECTORY}/{NAME}"
    assert not files.open_paths


@pytest.mark.parametrize("lines", [0, 2, 300, 600, 601])
def test_a_log_that_is_shorter_by_now_is_an_error_and_no_short_transcript(lines: int) -> None:
    whole = long_log(600)

    class Cut(MemoryFiles):
        """The second reading of a log finds fewer lines there."""

        seen = 0

        def pread(self, fd: int, length: int, offset: int) -> bytes:
            self.seen += offset == 0
            left = len(b"".join(whole[:lines])) - offset
            return super().pread(fd, length if self.seen == 1 else max(min(length, left), 0), offset)

    files = Cut(disk=on_disk(*whole)._disk)
    with pytest.raises(CorruptRecordError, match="shorter") as caught:
        walked(unread(files))
    assert caught.value.path == f"{DIRECTORY}/{NAME}"
    assert not files.open_paths


@pytest.mark.parametrize("streamed", [True, False])
def test_an_iteration_that_is_given_up_leaves_nothing_open(streamed: bool) -> None:
    lines = long_log(600) if streamed else [*long_log(600), line("remove", 700, record="r", message_id="m1")]
    files = on_disk(*lines)
    batches = transcript_batches(unread(files), "first", canonical=False)
    next(batches)
    assert bool(files.open_paths) == streamed
    batches.close()  # type: ignore[attr-defined]
    assert not files.open_paths


def test_an_error_while_reading_leaves_nothing_open_and_is_raised() -> None:
    files = on_disk(*long_log(600))
    for k in range(1, 12):
        files.fail_at(k, errno.EIO, matching=lambda call: call.name != "close")
        try:
            walked(unread(files))
        except OSError:
            pass
        else:
            break
        finally:
            files.heal()
        assert not files.open_paths
    else:
        pytest.fail("more calls than there can be")


# --- memory ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("streamed", [True, False])
def test_memory_does_not_grow_with_the_contents(streamed: bool, tmp_path: Path) -> None:
    count, size = 20_000, 1_000
    paths = Layout(str(tmp_path))
    files = Files("os")
    files.ensure_dir(paths.session(session_dir_name(KEY)))
    before: list[str | None] = [None, *(f"m{n}" for n in range(count))]
    lines = [head("L"), CREATED, *(message(n + 2, f"m{n}", before[n], content="x" * size) for n in range(count))]
    if not streamed:
        lines.append(line("remove", count + 2, record="r", message_id="m0"))
    (tmp_path / "sessions" / session_dir_name(KEY) / NAME).write_bytes(b"".join(lines))
    del lines, before
    directory = unread(files, paths)
    if not streamed:
        directory.refresh()
    tracemalloc.start()
    try:
        given = sum(map(len, transcript_batches(directory, "first", canonical=False)))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert given == count - (not streamed)
    assert peak < count * size / 3
    assert directory.is_read != streamed


def test_batches_are_bounded_whatever_the_way() -> None:
    for lines in (long_log(1000), [*long_log(1000), line("remove", 2000, record="r", message_id="m1")]):
        sizes = [len(batch) for batch in transcript_batches(unread(on_disk(*lines)), "first", canonical=True)]
        assert max(sizes) <= 256
        assert sum(sizes) in (1000, 999)


def test_lines_longer_than_a_reading_are_put_together() -> None:
    texts = ["x" * 3_000_000, "y", "z" * 1_500_000]
    files = on_disk(
        head("L"),
        CREATED,
        *(message(n + 2, f"m{n}", f"m{n - 1}" if n else None, content=text) for n, text in enumerate(texts)),
    )
    assert [each.content for each in walked(unread(files))] == texts


# --- whole histories -------------------------------------------------------------------------------------------------

ACTS: dict[str, Callable[[Session, int], object]] = {
    "say": lambda s, n: say(s, f"m{n}"),
    "say two": lambda s, n: say(s, f"m{n}", f"n{n}"),
    "counted": lambda s, n: send(s, Append(entry(f"m{n}"), any_generation=True, counters={"total_tokens": 3})),
    "call": lambda s, n: say(s, f"m{n}", role="assistant", tool_calls=[{"id": f"c{n % 3}"}]),
    "result": lambda s, n: say(s, f"m{n}", role="tool", tool_call_id=f"c{n % 3}"),
    "update": lambda s, n: s.update({"label": f"l{n}"}, {}),
    "remove": lambda s, n: remove(s, s.timeline.live[n % len(s.timeline.live)].identity if s.timeline.live else ""),
    "clear": lambda s, _: clear(s),
    "truncate": lambda s, n: truncate(s, n % 4),
    "compact": lambda s, _: commit(s, *(r.identity for r in s.timeline.live[::2]), summary=summary()),
    "state": lambda s, _: documents.save_context(s, of_now(s)),
    "fence": lambda s, _: s.fence(),
    "reset": lambda s, _: s.reset(reason="asked", archive_dir=PATHS.archives),
    "delete": lambda s, n: (s.delete(), s.create(node(f"again {n}"))),
}
_LIKELY = ["say", "say two", "counted", "update", "call", "result"]


def of_now(session: Session) -> Any:
    state = context()
    state.session_id = session.node().session_id
    return state


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["laptop", "laptop", "desk"]), st.sampled_from([*_LIKELY, *_LIKELY, *ACTS])),
        max_size=12,
    )
)
def test_whatever_happened_what_is_given_is_what_the_index_gives(history: list[tuple[str, str]]) -> None:
    files = MemoryFiles()
    sessions = {device: open_session(files, device=device) for device in ("laptop", "desk")}
    sessions["laptop"].create(node())
    named = {"first"}
    for number, (device, act) in enumerate(history):
        sessions[device].refresh()
        ACTS[act](sessions[device], number)
        named.add(sessions[device].node().session_id)
    for session_id in named:
        is_streamed(files, session_id)
