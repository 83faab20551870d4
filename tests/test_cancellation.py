"""What becomes of a call that is given up, and of calls that wait while the store is closed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from faulty_files import FaultyFiles
from stores import KEY, entry, kept, logs, said, say, state, stored, summary

from squilla_files.errors import LockTimeoutError, StoreClosedError
from squilla_files.files import Files
from squilla_files.layout import session_dir_name
from squilla_files.locks import LockFile
from squilla_files.models import SessionNode
from squilla_files.storage import SessionStorage


class Gate(FaultyFiles):
    """A disk whose next call of one kind waits, in its thread, until it is let through."""

    def __init__(self) -> None:
        super().__init__("os")
        self._shut_for = ""
        self._arrived = threading.Event()
        self._let = threading.Event()

    def shut(self, name: str) -> None:
        self._arrived.clear()
        self._let.clear()
        self._shut_for = name

    async def reached(self) -> None:
        assert await asyncio.to_thread(self._arrived.wait, 30)

    def let_through(self) -> None:
        self._let.set()

    def _pass(self, name: str) -> None:
        if self._shut_for == name:
            self._shut_for = ""
            self._arrived.set()
            if not self._let.wait(10):
                raise RuntimeError("nobody let it through")

    def write(self, fd: int, data: bytes) -> int:
        self._pass("write")
        return super().write(fd, data)

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        self._pass("pread")
        return super().pread(fd, length, offset)

    def sync(self, fd: int) -> None:
        self._pass("sync")
        super().sync(fd)


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
async def store(root: Path, gate: Gate) -> AsyncIterator[SessionStorage]:
    async with SessionStorage(root, device="desk", files=gate) as opened:
        yield opened
        gate.let_through()


def the_lock(root: Path) -> LockFile:
    return LockFile(Files(), str(root / ".local" / "locks" / f"{session_dir_name(KEY)}.lock"))


def start(*works: Coroutine[Any, Any, Any]) -> list[asyncio.Task[Any]]:
    return [asyncio.create_task(work) for work in works]


async def let_wait() -> None:
    """Let every task that was started come to the point where it waits."""
    for _ in range(10):
        await asyncio.sleep(0)


async def give_up(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


# --- given up --------------------------------------------------------------------------------------------------------


async def test_an_append_that_is_cancelled_in_the_queue_is_not_written(
    gate: Gate, store: SessionStorage, node: SessionNode
) -> None:
    gate.shut("write")
    (first,) = start(say(store, node, "first"))
    await gate.reached()
    given = entry(node, "given up")
    second, third = start(store.append_transcript_entry(given), say(store, node, "third"))
    await let_wait()
    await give_up(second)
    gate.let_through()
    await asyncio.gather(first, third)
    assert await said(store, node.session_id) == ["first", "third"]
    assert given.id is None
    await store.append_transcript_entry(given)
    assert await said(store, node.session_id) == ["first", "third", "given up"]


@pytest.mark.parametrize("step", ["write", "sync"])
async def test_an_append_that_is_cancelled_while_it_is_written_is_written_whole(
    root: Path, gate: Gate, store: SessionStorage, node: SessionNode, step: str
) -> None:
    gate.shut(step)
    tasks = start(*(say(store, node, number) for number in range(3)))
    await gate.reached()
    for task in tasks:
        await give_up(task)
    gate.let_through()
    await say(store, node, "after")
    contents = await said(store, node.session_id)
    assert contents in ([0, 1, 2, "after"], [0, "after"])
    async with SessionStorage(root, device="laptop") as other:
        assert await said(other, node.session_id) == contents
    assert the_lock(root).try_acquire()


async def test_a_retry_of_an_append_that_was_cancelled_while_it_was_written_is_one_entry(
    gate: Gate, store: SessionStorage, node: SessionNode
) -> None:
    gate.shut("write")
    given = entry(node, "once")
    (task,) = start(store.append_transcript_entry(given))
    await gate.reached()
    await give_up(task)
    (retry,) = start(store.append_transcript_entry(given))
    await let_wait()
    gate.let_through()
    await retry
    assert await said(store, node.session_id) == ["once"]


@pytest.mark.parametrize("also", [False, True], ids=["alone", "with another"])
async def test_an_append_that_is_cancelled_while_another_process_holds_the_session_is_not_written(
    root: Path, store: SessionStorage, node: SessionNode, also: bool
) -> None:
    lock = the_lock(root)
    assert lock.try_acquire()
    before = kept(root)
    (doomed,) = start(say(store, node, "given up"))
    others = start(say(store, node, "kept")) if also else []
    await let_wait()
    await give_up(doomed)
    assert kept(root) == before
    lock.close()
    await asyncio.gather(*others)
    await say(store, node, "after")
    assert await said(store, node.session_id) == (["kept", "after"] if also else ["after"])


CHANGES: dict[str, Callable[[SessionStorage, SessionNode], Coroutine[Any, Any, Any]]] = {
    "upsert": lambda store, node: store.upsert_session(
        SessionNode(session_key=KEY, session_id=node.session_id, label="changed")
    ),
    "update": lambda store, _: store.update_session(KEY, {"label": "changed"}, {"input_tokens": 1}),
    "fence": lambda store, _: store.increment_epoch(KEY),
    "reset": lambda store, _: store.reset_session(KEY, reason="test"),
    "truncate": lambda store, _: store.truncate_session(KEY, 1),
    "rewrite": lambda store, node: store.rewrite_compacted_session(
        node=node, summary=summary(node, "s"), entries=[], context_states=[state(node)]
    ),
    "remove": lambda store, node: store.delete_transcript(node.session_id),
    "summary": lambda store, node: store.save_summary(summary(node, "s")),
    "state": lambda store, node: store.save_context_state(state(node)),
    "delete": lambda store, _: store.delete_session(KEY),
}


async def everything(store: SessionStorage) -> tuple[Any, ...]:
    return (
        [(node.label, node.epoch, node.input_tokens) for node in await store.list_sessions()],
        [entry.content for node in await store.list_sessions() for entry in await store.read_entries(node.session_key)],
        len(await store.get_context_states(KEY)),
    )


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
async def test_a_change_that_is_cancelled_while_it_waits_changes_nothing(
    root: Path, store: SessionStorage, node: SessionNode, change: Callable[..., Coroutine[Any, Any, Any]]
) -> None:
    await say(store, node, "one", "two")
    before = await everything(store)
    lock = the_lock(root)
    assert lock.try_acquire()
    files = kept(root)
    (task,) = start(change(store, node))
    await let_wait()
    await give_up(task)
    lock.close()
    assert await store.update_session(KEY, {}) is not None
    assert await everything(store) == before
    assert kept(root) == files


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
async def test_a_change_that_is_cancelled_while_it_is_written_happens_whole(
    root: Path,
    tmp_path: Path,
    gate: Gate,
    store: SessionStorage,
    node: SessionNode,
    change: Callable[..., Coroutine[Any, Any, Any]],
) -> None:
    async with SessionStorage(tmp_path / "undisturbed", device="desk", durability="os") as undisturbed:
        await undisturbed.upsert_session(node)
        await say(undisturbed, node, "one", "two")
        await change(undisturbed, await stored(undisturbed))
        expected = await everything(undisturbed)
    await say(store, node, "one", "two")
    gate.shut("write")
    (task,) = start(change(store, node))
    await gate.reached()
    await give_up(task)
    gate.let_through()
    await store.delete_session("no-such-session")
    assert await store.change(KEY, lambda _: None) is None  # whatever was begun is finished before this
    assert await everything(store) == expected
    async with SessionStorage(root, device="laptop") as other:
        assert await everything(other) == expected


async def test_a_reader_that_is_cancelled_leaves_the_store_usable(
    gate: Gate, store: SessionStorage, node: SessionNode
) -> None:
    await say(store, node, *"abc")
    for reading in (
        lambda: store.get_transcript(node.session_id),
        lambda: store.search_transcript("a"),
        lambda: store.read_page(KEY, limit=1),
    ):
        gate.shut("pread")
        (task,) = start(reading())
        await gate.reached()
        await give_up(task)
        gate.let_through()
        assert await said(store, node.session_id) == ["a", "b", "c"]
        await say(store, node, "d")
        await store.truncate_session(KEY, 0)
        await store.delete_transcript(node.session_id)
        await say(store, node, *"abc")
    descriptors = [path for path in gate.open_paths if "transcript" in path]
    assert len(descriptors) <= 1


async def test_an_iteration_that_is_given_up_half_way_leaves_nothing_open(
    root: Path, gate: Gate, node: SessionNode, store: SessionStorage
) -> None:
    await say(store, node, *range(600))
    reading = Gate()
    async with SessionStorage(root, device="desk", files=reading) as other:
        iterator = other.iter_transcript(node.session_id)
        found = [(await anext(iterator)).content for _ in range(300)]
        await iterator.aclose()  # type: ignore[attr-defined]
        assert found == list(range(300))
        assert await said(other, node.session_id) == list(range(600))
    assert reading.open_paths == []


async def test_a_time_limit_on_an_append_writes_nothing_later(
    root: Path, store: SessionStorage, node: SessionNode
) -> None:
    lock = the_lock(root)
    assert lock.try_acquire()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await say(store, node, "given up")
    lock.close()
    await say(store, node, "after")
    assert await said(store, node.session_id) == ["after"]


# --- closing ---------------------------------------------------------------------------------------------------------


async def test_closing_refuses_appends_that_wait_and_keeps_those_that_were_acknowledged(
    root: Path, gate: Gate, store: SessionStorage, node: SessionNode
) -> None:
    await say(store, node, "acknowledged")
    gate.shut("write")
    (begun,) = start(say(store, node, "begun"))
    await gate.reached()
    waiting = start(
        *(say(store, node, number) for number in range(5)),
        store.increment_epoch(KEY),
        store.upsert_session(SessionNode(session_key=KEY, session_id=node.session_id, label="no")),
    )
    await let_wait()
    (closing,) = start(store.close())
    await let_wait()
    gate.let_through()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(result) for result in results] == [StoreClosedError] * 7
    assert (await begun)[0].id is not None
    await closing
    assert gate.open_paths == []
    async with SessionStorage(root, device="laptop") as other:
        assert await said(other, node.session_id) == ["acknowledged", "begun"]
        assert (await stored(other)).label is None
    assert the_lock(root).try_acquire()


async def test_closing_waits_for_readers_without_blocking_the_loop(
    root: Path, store: SessionStorage, node: SessionNode
) -> None:
    await say(store, node, "one")
    gate = Gate()
    other = SessionStorage(root, device="desk", files=gate)
    await other.connect()
    gate.shut("pread")
    (reading,) = start(said(other, node.session_id))
    await gate.reached()
    (closing,) = start(other.close())
    # Were the loop blocked, nobody would let the reader through.
    await let_wait()
    assert not closing.done()
    gate.let_through()
    await closing
    (result,) = await asyncio.gather(reading, return_exceptions=True)
    # It was let through; what it had still to ask for found the store closed.
    assert result == ["one"] or isinstance(result, StoreClosedError)


async def test_closing_that_is_cancelled_goes_on_and_a_second_call_waits_for_it(
    root: Path, gate: Gate, store: SessionStorage, node: SessionNode
) -> None:
    gate.shut("write")
    (begun,) = start(say(store, node, "begun"))
    await gate.reached()
    (closing,) = start(store.close())
    await let_wait()
    await give_up(closing)
    (again,) = start(store.close())
    await let_wait()
    assert not again.done()
    gate.let_through()
    await again
    await begun
    assert gate.open_paths == []
    with pytest.raises(StoreClosedError):
        await said(store, node.session_id)
    await store.connect()
    assert await said(store, node.session_id) == ["begun"]


async def test_connecting_while_the_store_is_closed_waits_and_opens_it(
    gate: Gate, store: SessionStorage, node: SessionNode
) -> None:
    gate.shut("write")
    (begun,) = start(say(store, node, "begun"))
    await gate.reached()
    closing, opening = start(store.close(), store.connect())
    await let_wait()
    assert not opening.done()
    gate.let_through()
    await asyncio.gather(begun, closing, opening)
    await say(store, node, "after")
    assert await said(store, node.session_id) == ["begun", "after"]


async def test_a_change_that_waits_for_another_process_is_finished_or_refused_when_the_store_closes(
    root: Path,
) -> None:
    store = await SessionStorage.open(root, device="desk", lock_timeout=0.05)
    node = await store.upsert_session(SessionNode(session_key=KEY))
    lock = the_lock(root)
    assert lock.try_acquire()
    (waiting,) = start(say(store, node, "waiting"))
    await let_wait()
    await store.close()
    with pytest.raises((LockTimeoutError, StoreClosedError)):
        await waiting
    lock.close()
    (log,) = logs(root)
    assert b"waiting" not in log.read_bytes()


def test_a_loop_that_ends_with_an_open_store_loses_nothing_that_was_acknowledged(root: Path) -> None:
    async def work() -> str:
        store = await SessionStorage.open(root, device="desk")
        node = await store.upsert_session(SessionNode(session_key=KEY))
        await say(store, node, "acknowledged")
        asyncio.get_running_loop().create_task(say(store, node, "not awaited")).set_name("left behind")
        return node.session_id

    session_id = asyncio.run(work())

    async def read() -> list[Any]:
        async with SessionStorage(root, device="laptop") as store:
            await say(store, await stored(store), "after")
            return await said(store, session_id)

    assert asyncio.run(read()) in (["acknowledged", "after"], ["acknowledged", "not awaited", "after"])
