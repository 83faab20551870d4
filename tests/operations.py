"""Every operation of a session on a disk in memory: what the tests of crashes and of failing disks drive.

Identities and times are the same in every run, so that two runs of one operation leave the same bytes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple
from unittest import mock

import pytest
from memory_files import Call, MemoryFiles

from squilla_files import documents
from squilla_files.appending import Append, append, clear, remove
from squilla_files.branching import build, take
from squilla_files.commits import CompactionCommit
from squilla_files.deletions import Deletions
from squilla_files.devices import Devices
from squilla_files.journal import CONTEXT
from squilla_files.layout import Layout, parse_log_name, session_dir_name
from squilla_files.models import SessionContextState, SessionNode, SessionSummary, TranscriptEntry
from squilla_files.rewriting import compact, truncate
from squilla_files.session import Session

KEY = "agent:main:main"
PARENT = "agent:main:parent"
ROOT = "/home/store"
DEVICE = "laptop"
PATHS = Layout(ROOT)
DIRECTORY = PATHS.session(session_dir_name(KEY))
ARCHIVES = PATHS.archives
NOW_NS = 1_796_100_000_123_456_789
# More than a log must hold of archived bytes to be sealed by the next write.
BULK = "x" * 70_000

_SYNCING = {"sync", "sync_dir"}
_CHANGING = {"create", "write", "truncate", "mkdir", "rename", "unlink", "rmdir", "chmod", *_SYNCING}


@contextmanager
def steady(seed: int = 0) -> Iterator[None]:
    """Let the clock stand still, and draw the same identities in every run."""
    numbers = random.Random(seed)
    with (
        mock.patch("time.time_ns", return_value=NOW_NS),
        mock.patch("secrets.token_hex", lambda length: numbers.randbytes(length).hex()),
        mock.patch("squilla_files.session.new_id", side_effect=lambda: f"id-{numbers.randbytes(4).hex()}"),
    ):
        yield


def open_session(files: MemoryFiles, key: str = KEY, *, root: str = ROOT, device: str | None = DEVICE) -> Session:
    """A session as a process finds it that has just started."""
    paths = Layout(root)
    session = Session(files, paths, Deletions(files, paths), Devices(files, paths, device), key)
    session.refresh()
    return session


# --- pieces of operations --------------------------------------------------------------------------------------------


def node(session_id: str = "first", **fields: Any) -> SessionNode:
    return SessionNode(session_key=KEY, session_id=session_id, created_at=1, updated_at=1, **fields)


def entry(message_id: str, role: str = "user", **fields: Any) -> TranscriptEntry:
    values: dict[str, Any] = {"session_id": "", "content": f"content of {message_id}", "created_at": 1, **fields}
    return TranscriptEntry(session_key=KEY, message_id=message_id, role=role, **values)


def say(session: Session, *message_ids: str, **fields: Any) -> None:
    """Append these messages together, as if nobody cared for the generation."""
    items = [Append(entry(message_id, **fields), any_generation=True) for message_id in message_ids]
    send(session, *items)


def send(session: Session, *items: Append) -> None:
    append(session, items)
    refused = [item.error for item in items if item.error is not None]
    assert not refused
    assert all(item.done for item in items)


def summary() -> SessionSummary:
    return SessionSummary(session_id="first", session_key=KEY, summary_text="What was said.", created_at=1)


def context(**fields: Any) -> SessionContextState:
    values = {"state_kind": "notes", "payload": {"goal": "tea"}, "created_at": 1, **fields}
    return SessionContextState(session_id="first", session_key=KEY, **values)


def commit(session: Session, *kept: str, **members: Any) -> None:
    compact(session, CompactionCommit(preimage=None, kept=kept, **members))


# --- where operations begin ------------------------------------------------------------------------------------------


def nothing(session: Session) -> None:
    """A disk without a store."""


def young(session: Session) -> None:
    """Two turns in one log, with a call and its result."""
    session.create(node(model="large"))
    send(session, Append(entry("a1"), any_generation=True, counters={"total_tokens": 3}))
    say(session, "b1", role="assistant", content="", tool_calls=[{"id": "c-1", "name": "look"}])
    say(session, "b2", role="tool", tool_call_id="c-1")
    say(session, "b3", role="assistant")
    say(session, "a2")
    session.writer.checkpoint()


def compacted(session: Session) -> None:
    """A sealed log, one that goes on, a summary and a context state."""
    young(session)
    commit(session, "b3", "a2", summary=summary(), context_states=[context()], counters={"compaction_count": 1})
    say(session, "d1")


def bulky(session: Session) -> None:
    """A log that the next write seals, since most of it is archived."""
    young(session)
    say(session, "big", content=BULK)
    say(session, "d1", "d2")
    truncate(session, 2)


def torn(session: Session) -> None:
    """A log that ends in half a line, which a crash left."""
    young(session)
    session.close()
    _put_behind(session, b'{"type":"message","id":99,"message_id":"half","role":"us')


def cut_off(session: Session) -> None:
    """A log whose last line lacks nothing but its LF."""
    young(session)
    session.close()
    _put_behind(session, None)


def _put_behind(session: Session, data: bytes | None) -> None:
    files = session.dir.files
    assert isinstance(files, MemoryFiles)
    path = f"{DIRECTORY}/transcript.{DEVICE}.000001.jsonl"
    content = files.read_file(path)
    files.put(path, content[:-1] if data is None else content + data)


def deleted(session: Session) -> None:
    """A session that was, and is no more."""
    compacted(session)
    session.delete()


def reset_once(session: Session) -> None:
    """A second generation."""
    compacted(session)
    session.reset(reason="asked", archive_dir=ARCHIVES)
    say(session, "e1", "e2")


def parent_only(session: Session) -> None:
    """Another session, of which this one is to be a branch."""
    compacted(_parent(session))


def _parent(session: Session) -> Session:
    files = session.dir.files
    assert isinstance(files, MemoryFiles)
    return open_session(files, PARENT)


# --- operations ------------------------------------------------------------------------------------------------------

Run = Callable[[Session], object]


@dataclass(frozen=True)
class Operation:
    """One change of a session, and where it begins.

    Attributes:
        name: what it is called in a test's name.
        before: makes the state in which it begins.
        run: does it.
        partly: what may also be found after a crash: operations that merely were written together end one by one.
    """

    name: str
    before: Run
    run: Run
    partly: tuple[Run, ...] = ()


def _append_three(count: int) -> Run:
    return lambda session: say(session, *("n1", "n2", "n3")[:count])


def _upsert(session: Session, **fields: Any) -> None:
    stored = session.node()
    for name, value in {"label": "Put", "total_tokens": 50, **fields}.items():
        setattr(stored, name, value)
    session.upsert(stored, ARCHIVES)


OPERATIONS = [
    Operation("the-first-write-of-a-store", nothing, lambda s: s.create(node(model="large", total_tokens=5))),
    Operation("append", young, lambda s: say(s, "n1")),
    Operation(
        "append-with-fields-and-counters",
        young,
        lambda s: send(
            s, Append(entry("n1"), any_generation=True, fields={"updated_at": 9}, counters={"total_tokens": 4})
        ),
    ),
    Operation("append-of-three-together", young, _append_three(3), (_append_three(1), _append_three(2))),
    Operation("append-after-a-compaction", compacted, lambda s: say(s, "n1")),
    Operation("append-that-seals-first", bulky, lambda s: say(s, "n1")),
    Operation("append-behind-half-a-line", torn, lambda s: say(s, "n1")),
    Operation("append-behind-a-line-without-its-end", cut_off, lambda s: say(s, "n1")),
    Operation("update", young, lambda s: s.update({"label": "Tea", "status": "done"}, {"output_tokens": 7})),
    Operation("upsert", young, _upsert),
    Operation("upsert-that-fences", young, lambda s: _upsert(s, epoch=3)),
    Operation("upsert-that-resets", compacted, lambda s: _upsert(s, epoch=3, session_id="third", context_tokens=8)),
    Operation(
        "compaction",
        young,
        lambda s: commit(s, "a2", summary=summary(), context_states=[context()], counters={"compaction_count": 1}),
    ),
    Operation(
        "second-compaction",
        compacted,
        lambda s: commit(s, "d1", summary=summary(), context_states=[context(), context(state_kind="plan")]),
    ),
    Operation(
        "compaction-with-replacements",
        compacted,
        lambda s: commit(
            s, "d1", replacements={"a2": entry("r1")}, appended=[entry("r2"), entry("r3")], summary=summary()
        ),
    ),
    Operation("truncation", young, lambda s: truncate(s, 1)),
    Operation("truncation-to-nothing", compacted, lambda s: truncate(s, 0)),
    Operation("fence", young, lambda s: s.fence()),
    Operation("reset", compacted, lambda s: s.reset(reason="asked", archive_dir=ARCHIVES)),
    Operation("second-reset", reset_once, lambda s: s.reset(reason="asked", archive_dir=ARCHIVES)),
    Operation("delete", compacted, lambda s: s.delete()),
    Operation("creation-after-a-deletion", deleted, lambda s: s.create(node("again"))),
    Operation("remove", young, lambda s: remove(s, "b3")),
    Operation("clear", compacted, clear),
    Operation("save-summary", young, lambda s: documents.save_summary(s, summary())),
    Operation("save-invalid-context", young, lambda s: documents.save_context(s, context(valid=False))),
    Operation("delete-summaries", compacted, documents.delete_summaries),
    Operation(
        "invalidate-contexts",
        compacted,
        lambda s: documents.change(s, CONTEXT, s.timeline.contexts, {"valid": False, "invalid_reason": "asked"}),
    ),
    Operation("branch", parent_only, lambda s: build(s, node("child"), take(_parent(s), "live", None, None))),
    Operation("checkpoint", compacted, lambda s: s.writer.checkpoint()),
    Operation("seal", young, lambda s: s.writer.seal()),
]
_NAMED = {operation.name: operation for operation in OPERATIONS}
APPEND, COMPACTION, BRANCH = _NAMED["append"], _NAMED["compaction"], _NAMED["branch"]
each_operation = pytest.mark.parametrize("operation", OPERATIONS, ids=[operation.name for operation in OPERATIONS])


# --- what can be seen ------------------------------------------------------------------------------------------------


class State(NamedTuple):
    """All that a session answers."""

    epoch: int
    node: dict[str, Any] | None
    canonical: list[dict[str, Any]]
    live: list[str]
    archived_by: dict[str, str]
    summaries: list[dict[str, Any]]
    contexts: list[dict[str, Any]]


def state_of(session: Session) -> State:
    """Catch up, and look at everything there is to see of a session."""
    timeline = session.refresh()
    found = session.dir.node()
    return State(
        timeline.epoch,
        found.model_dump() if found is not None else None,
        [e.model_dump() for e in session.dir.entries(timeline.canonical)],
        [record.identity for record in timeline.live],
        dict(sorted(timeline.archived_by.items())),
        [s.model_dump() for s in session.attachments.summaries(timeline.current(timeline.summaries))],
        [c.model_dump() for c in session.attachments.contexts(timeline.contexts)],
    )


def seen_by_another(files: MemoryFiles) -> State:
    """What a process sees that has just started on the same disk."""
    return state_of(open_session(files.another_process()))


def with_message(state: State, message_id: str) -> tuple[list[str], list[str]]:
    """The messages, canonical and live, once *message_id* is appended."""
    return ([*(e["message_id"] for e in state.canonical), message_id], [*state.live, message_id])


def messages(state: State) -> tuple[list[str], list[str]]:
    """The messages, canonical and live."""
    return ([e["message_id"] for e in state.canonical], state.live)


def go_on(session: Session, message_id: str = "next") -> None:
    """Append a message; where there is no session, create it first."""
    session.refresh()
    if not session.timeline.exists:
        session.create(node("again"))
    say(session, message_id)


def check_files(session: Session) -> None:
    """What `verify` would find: nothing doubled, nothing missing, nothing that belongs elsewhere."""
    timeline = session.refresh()
    canonical = [record.identity for record in timeline.canonical]
    live = [record.identity for record in timeline.live]
    assert len(canonical) == len(set(canonical))
    assert [identity for identity in canonical if identity in set(live)] == live
    assert session.dir.foreign == {}
    if timeline.exists:  # what a crash leaves of a deleted session counts for nothing
        assert session.dir.missing == []
        assert session.attachments.missing() == []
    contents: dict[str, bytes] = {}
    for log in session.dir.logs.values():
        assert log.log_id is not None
        records = [record for record in log.lines if record is not None]
        for record, line in zip(records, session.dir.read_lines(records), strict=True):
            assert contents.setdefault(record.identity, line) == line


def logs_of(files: MemoryFiles) -> dict[str, bytes]:
    """Name → content of every log; one in `archive/` bears the name that it had."""
    found = {path.rpartition("/")[2]: data for path, data in files.tree().items() if path.startswith(DIRECTORY)}
    return {name: data for name, data in found.items() if parse_log_name(name) is not None}


def check_logs_only_grew(before: dict[str, bytes], after: dict[str, bytes]) -> None:
    """Under a name stands what stood there, and what came behind it."""
    for name, data in before.items():
        assert after[name].startswith(data), name


# --- runs ------------------------------------------------------------------------------------------------------------


class Prepared(NamedTuple):
    """An operation, ready to be run any number of times."""

    operation: Operation
    disk: MemoryFiles
    old: State
    new: State
    partly: list[State]
    calls: list[Call]

    def start(self) -> tuple[MemoryFiles, Session]:
        """A process that has opened the session and not begun with the operation."""
        files = self.disk.crash("all")
        return files, self.reopen(files)

    def reopen(self, files: MemoryFiles) -> Session:
        """The session as it is found on this disk."""
        return open_session(files)

    def run(self, session: Session) -> None:
        """Do the operation; it draws the same identities every time."""
        with steady(1):
            self.operation.run(session)

    def steps(self, *, synced: bool = True) -> list[int]:
        """The numbers of the calls (from 1) before which the disk is another than before the call before.

        Without *synced* only those before which other files or names can be seen.
        """
        names = _CHANGING if synced else _CHANGING - _SYNCING
        return [1, *(k for k in range(2, len(self.calls) + 2) if self.calls[k - 2].name in names)]


def changes_the_disk(call: Call) -> bool:
    """Whether another disk is left behind by dying after this call than before it."""
    return call.name in _CHANGING


def prepare(operation: Operation) -> Prepared:
    """Make the state in which an operation begins, and note what it does when nothing goes wrong."""
    with steady():
        built = MemoryFiles()
        session = open_session(built)
        operation.before(session)
        session.close()
        disk = built.crash("all")
        old = state_of(open_session(disk.crash("all")))
        after = []
        for run in (operation.run, *operation.partly):
            files = disk.crash("all")
            session = open_session(files)
            begun = len(files.calls)
            with steady(1):
                run(session)
            after.append((state_of(open_session(files.crash("synced"))), files.calls[begun:]))
            # `state_of` above ran on a copy: what the operation called is all there is.
        (new, calls), *partly = after
    return Prepared(operation, disk, old, new, [state for state, _ in partly], calls)
