"""The machinery under the facade: which sessions stay open, what is written together, when checkpoints are written."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from faulty_files import FaultyFiles
from operations import entry

from squilla_files import engine as module
from squilla_files.appending import Append
from squilla_files.engine import Engine
from squilla_files.errors import MessageConflictError, StoreClosedError
from squilla_files.files import Files
from squilla_files.layout import Layout, session_dir_name
from squilla_files.locks import LockFile
from squilla_files.models import SessionNode
from squilla_files.session import Session
from squilla_files.writing import LogWriter

KEYS = [f"agent:main:{name}" for name in ("one", "two", "three", "four", "five")]
ONE = KEYS[0]


@pytest.fixture
def files() -> FaultyFiles:
    return FaultyFiles("os")


@pytest.fixture
async def engine(root: Path, files: FaultyFiles) -> AsyncIterator[Engine]:
    async with Engine(root, device="laptop", files=files) as opened:
        yield opened


def message(message_id: str, **fields: Any) -> Append:
    return Append(entry(message_id, **fields), any_generation=True)


async def create(engine: Engine, *keys: str) -> None:
    for key in keys:
        node = SessionNode(session_key=key, session_id=f"id of {key}")
        await engine.change(key, lambda session, node=node: session.create(node))  # type: ignore[misc]


async def said(engine: Engine, key: str = ONE) -> list[str]:
    return await engine.read(key, lambda session: [record.identity for record in session.timeline.live])


def open_keys(engine: Engine) -> list[str]:
    return [key for key in KEYS if engine.is_open(key)]


def lock_of(root: Path, key: str = ONE) -> LockFile:
    return LockFile(Files(), Layout(str(root)).lock_file(session_dir_name(key)))


def manifest(root: Path, key: str = ONE) -> Path:
    return Path(Layout(str(root)).session(session_dir_name(key)), "manifest.laptop.json")


def writes(files: FaultyFiles) -> int:
    return sum(call.name == "write" and call.path.endswith(".jsonl") for call in files.calls)


def told(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, tell: Callable[[Any], Any] = lambda _: None
) -> asyncio.Queue[Any]:
    """A queue that is told whenever the function *name* of *owner* has returned: what *tell* makes of its argument."""
    queue: asyncio.Queue[Any] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    function = getattr(owner, name)

    def telling(*arguments: Any) -> None:
        function(*arguments)
        loop.call_soon_threadsafe(queue.put_nowait, tell(arguments[0]))

    monkeypatch.setattr(owner, name, telling)
    return queue


# --- sessions that are open ------------------------------------------------------------------------------------------


async def test_the_sessions_that_were_used_last_stay_open(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_OPEN_SESSIONS", 3)
    await create(engine, *KEYS[:3])
    await said(engine, KEYS[0])
    await create(engine, KEYS[3])
    assert open_keys(engine) == [KEYS[0], KEYS[2], KEYS[3]]
    await said(engine, KEYS[4])
    assert open_keys(engine) == [KEYS[0], KEYS[3], KEYS[4]]


async def test_sessions_are_closed_where_their_indexes_grow_large(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create(engine, *KEYS[:3])
    for number in range(5):
        await engine.append(KEYS[1], message(f"m{number}"))
    await engine.change(KEYS[1], lambda session: session.writer.checkpoint())
    await said(engine, KEYS[2])
    monkeypatch.setattr(module, "_OPEN_RECORDS", 3)
    await said(engine, KEYS[3])
    assert open_keys(engine) == [KEYS[2], KEYS[3]]
    assert len(await said(engine, KEYS[1])) == 5
    await said(engine, KEYS[4])
    assert open_keys(engine) == [KEYS[4]]


async def test_what_was_closed_closes_its_files_and_is_opened_again_when_it_is_used(
    engine: Engine, files: FaultyFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_OPEN_SESSIONS", 1)
    closed = told(monkeypatch, Session, "close")
    await create(engine, ONE)
    await engine.append(ONE, message("a"))
    await engine.change(ONE, lambda session: session.writer.checkpoint())
    assert files.open_paths
    await said(engine, KEYS[1])
    await closed.get()
    assert not any(path.endswith(".jsonl") for path in files.open_paths)
    await engine.append(ONE, message("b"))
    assert await said(engine) == ["a", "b"]


async def test_a_session_with_waiting_work_is_never_closed(
    root: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create(engine, ONE)
    lock = lock_of(root)
    assert lock.try_acquire()
    waiting = asyncio.create_task(engine.append(ONE, message("a")))
    await asyncio.sleep(0)
    monkeypatch.setattr(module, "_OPEN_SESSIONS", 1)
    for key in KEYS[1:]:
        await said(engine, key)
    assert open_keys(engine) == [ONE, KEYS[-1]]
    lock.close()
    await waiting
    assert await said(engine) == ["a"]


async def test_a_session_whose_checkpoint_is_due_is_closed_only_behind_it(
    root: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create(engine, ONE)
    await engine.append(ONE, message("a"))
    monkeypatch.setattr(module, "_OPEN_SESSIONS", 1)
    await said(engine, KEYS[1])
    assert open_keys(engine) == [ONE, KEYS[1]]
    await engine.change(ONE, lambda session: session.writer.checkpoint())
    await said(engine, KEYS[2])
    assert open_keys(engine) == [KEYS[2]]


async def test_looking_at_a_session_does_not_open_it(engine: Engine, root: Path) -> None:
    await create(engine, *KEYS[:2])
    await engine.close()
    await engine.connect()
    assert (await engine.peek(ONE)) is not None
    assert await engine.peek(KEYS[4]) is None
    assert {listed.key for listed in await engine.list_all()} == set(KEYS[:2])
    assert open_keys(engine) == []


async def test_a_listing_sees_what_the_open_session_knows(engine: Engine) -> None:
    await create(engine, ONE)
    await engine.append(ONE, message("a"))
    (listed,) = await engine.list_all()
    assert listed.live == 1
    found = await engine.peek(ONE)
    assert found is not None
    assert found.live == 1


# --- changes ---------------------------------------------------------------------------------------------------------


async def test_appends_that_wait_together_are_written_together_in_groups(
    engine: Engine, files: FaultyFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_GROUP", 3)
    await create(engine, ONE)
    before = writes(files)
    names = [f"m{number}" for number in range(7)]
    await asyncio.gather(*(engine.append(ONE, message(name)) for name in names))
    assert writes(files) - before == 3
    assert await said(engine) == names


async def test_a_change_between_two_appends_keeps_its_place(engine: Engine, files: FaultyFiles) -> None:
    await create(engine, ONE)
    before = writes(files)

    def seen(session: Session) -> list[str]:
        return [record.identity for record in session.timeline.live]

    _, _, found, _, late = await asyncio.gather(
        engine.append(ONE, message("a")),
        engine.append(ONE, message("b")),
        engine.change(ONE, seen),
        engine.append(ONE, message("c")),
        engine.change(ONE, seen),
    )
    assert (found, late) == (["a", "b"], ["a", "b", "c"])
    assert writes(files) - before == 2


async def test_of_a_group_each_is_told_its_own_outcome(engine: Engine) -> None:
    await create(engine, ONE)
    await engine.append(ONE, message("a"))
    outcomes = await asyncio.gather(
        engine.append(ONE, message("b")),
        engine.append(ONE, message("a", content="other")),
        engine.append(ONE, message("c", content={1})),
        engine.append(ONE, message("a")),
        return_exceptions=True,
    )
    assert [type(outcome) for outcome in outcomes] == [type(None), MessageConflictError, *map(type, outcomes[2:])]
    assert isinstance(outcomes[2], TypeError)
    assert outcomes[3] is None
    assert await said(engine) == ["a", "b"]


async def test_a_change_that_raises_stops_no_later_one(engine: Engine) -> None:
    await create(engine, ONE)
    outcomes = await asyncio.gather(
        engine.change(ONE, lambda session: 1 // 0),
        engine.append(ONE, message("a")),
        engine.change(ONE, lambda session: "done"),
        return_exceptions=True,
    )
    assert isinstance(outcomes[0], ZeroDivisionError)
    assert outcomes[1:] == [None, "done"]
    assert await said(engine) == ["a"]


async def test_sessions_change_at_the_same_time(engine: Engine) -> None:
    await create(engine, *KEYS[:2])
    both = threading.Barrier(2, timeout=60)
    await asyncio.gather(*(engine.change(key, lambda _: both.wait()) for key in KEYS[:2]))


async def test_a_change_sees_what_others_wrote_meanwhile(root: Path, engine: Engine) -> None:
    await create(engine, ONE)
    async with Engine(root, device="desk", durability="os") as other:
        await other.append(ONE, message("theirs"))
        live = await engine.change(ONE, lambda session: [record.identity for record in session.timeline.live])
        assert live == ["theirs"]


async def test_listeners_are_told_of_every_change_failed_ones_included(engine: Engine) -> None:
    told: list[str] = []
    engine._listeners.append(told.append)
    await create(engine, ONE)
    with pytest.raises(ZeroDivisionError):
        await engine.change(ONE, lambda session: 1 // 0)
    await engine.append(ONE, message("a"))
    assert told == [ONE] * 3


async def test_the_store_is_made_by_the_first_change_and_again_where_it_was_taken_away(
    root: Path, engine: Engine
) -> None:
    await said(engine)
    assert not root.exists()
    await create(engine, ONE)
    assert (root / "store.json").is_file()


# --- checkpoints -----------------------------------------------------------------------------------------------------


async def test_a_checkpoint_is_written_soon_after_appends_and_once_for_many(
    root: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create(engine, *KEYS[:2])
    for key in KEYS[:2]:
        manifest(root, key).unlink()
    written = told(monkeypatch, LogWriter, "checkpoint", lambda writer: writer.session.key)
    monkeypatch.setattr(module, "_CHECKPOINT_DELAY_S", 0.01)
    await asyncio.gather(*(engine.append(key, message(f"m{n}")) for key in KEYS[:2] for n in range(5)))
    assert {await written.get(), await written.get()} == set(KEYS[:2])
    assert all(manifest(root, key).is_file() for key in KEYS[:2])
    await engine.append(ONE, message("later"))
    assert await written.get() == ONE
    assert written.empty()


async def test_reading_makes_no_checkpoint_due(engine: Engine) -> None:
    await create(engine, ONE)
    await said(engine)
    await engine.change(ONE, lambda session: None)
    assert engine._timer is None


async def test_a_checkpoint_that_fails_is_logged_and_nothing_else(
    engine: Engine, files: FaultyFiles, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create(engine, ONE)
    monkeypatch.setattr(module, "_CHECKPOINT_DELAY_S", 0.01)
    files.fail_at(1, 28, matching=lambda call: call.name == "rename" and "manifest" in str(call.args[1]))
    failed = told(monkeypatch, module, "_note_failure")
    await engine.append(ONE, message("a"))
    await failed.get()
    assert "a checkpoint failed" in caplog.text
    await engine.append(ONE, message("b"))
    assert await said(engine) == ["a", "b"]


async def test_closing_writes_the_checkpoints_that_are_due_and_closes_every_file(
    root: Path, engine: Engine, files: FaultyFiles
) -> None:
    await create(engine, *KEYS[:2])
    before = {key: manifest(root, key).read_bytes() for key in KEYS[:2]}
    await engine.append(ONE, message("a"))
    assert manifest(root).read_bytes() == before[ONE]
    await engine.close()
    assert b'"live": 1' in manifest(root).read_bytes()
    assert manifest(root, KEYS[1]).read_bytes() == before[KEYS[1]]
    assert not files.open_paths
    assert engine._timer is None


async def test_what_falls_due_while_the_store_begins_to_close_is_left_to_the_closing(
    root: Path, engine: Engine
) -> None:
    await create(engine, ONE)
    await engine.append(ONE, message("a"))
    closing = asyncio.create_task(engine.close())
    await asyncio.sleep(0)
    engine._checkpoint_due()
    await closing
    assert b'"live": 1' in manifest(root).read_bytes()


async def test_closing_waits_for_no_other_process(root: Path, engine: Engine) -> None:
    await create(engine, *KEYS[:2])
    for key in KEYS[:2]:
        await engine.append(key, message("a"))
    lock = lock_of(root)
    assert lock.try_acquire()
    await engine.close()
    lock.close()
    assert b'"live": 0' in manifest(root).read_bytes()
    assert b'"live": 1' in manifest(root, KEYS[1]).read_bytes()
    await engine.connect()
    assert await said(engine) == ["a"]


async def test_closing_where_the_disk_fails_closes_all_the_same(
    engine: Engine, files: FaultyFiles, caplog: pytest.LogCaptureFixture
) -> None:
    await create(engine, ONE)
    await engine.append(ONE, message("a"))
    files.fail_at(1, 28, matching=lambda call: call.name == "create")
    await engine.close()
    assert "no checkpoint at closing" in caplog.text
    assert not files.open_paths
    with pytest.raises(StoreClosedError):
        await engine.append(ONE, message("b"))


async def test_a_session_that_was_deleted_gets_no_checkpoint(root: Path, engine: Engine) -> None:
    await create(engine, ONE)
    await engine.append(ONE, message("a"))
    await engine.change(ONE, lambda session: session.delete())
    await engine.change(ONE, module._checkpoint)
    await engine.close()
    assert not manifest(root).parent.exists()
