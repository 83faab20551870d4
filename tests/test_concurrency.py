"""Many writers at once: processes, stores in one process, tasks. All is kept, once, and in each writer's order."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from faulty_files import FaultyFiles, Kind
from stores import ENDLESS, KEY, call, entry, logs, public_methods, said, say, state, stored, summary

from squilla_files import engine
from squilla_files.errors import SquillaFilesError
from squilla_files.files import Files
from squilla_files.layout import session_dir_name
from squilla_files.locks import LockFile
from squilla_files.models import SessionNode, TranscriptEntry
from squilla_files.storage import SessionStorage

APPENDER = Path(__file__).with_name("appender.py")

LOCK_ONCE = """
import sys
from squilla_files.errors import SquillaFilesError
from squilla_files.files import Files
from squilla_files.locks import LockFile
lock = LockFile(Files(), sys.argv[1])
print(lock.try_acquire())
lock.close()
"""


@pytest.fixture
async def store(root: Path) -> AsyncIterator[SessionStorage]:
    async with SessionStorage(root, device="desk") as opened:
        yield opened


def lines_are_whole(root: Path) -> None:
    for path in logs(root):
        data = path.read_bytes()
        assert data.endswith(b"\n"), path
        for line in data.splitlines():
            assert isinstance(json.loads(line), dict)


def orders_are_kept(contents: Iterable[object], names: Iterable[str], count: int) -> None:
    """See that every content *NAME n* is there once, and those of one name in their order."""
    by_name: dict[str, list[int]] = {name: [] for name in names}
    for content in contents:
        name, number = str(content).split()
        by_name[name].append(int(number))
    assert by_name == {name: list(range(count)) for name in by_name}


def lock_path(root: Path) -> str:
    return str(root / ".local" / "locks" / f"{session_dir_name(KEY)}.lock")


async def run_appenders(root: Path, devices: list[str], count: int, compact_every: int) -> list[str]:
    """Let one process for each of *devices* append at once, the first compacting; return their names."""
    names = [f"process{number}" for number in range(len(devices))]
    processes = [
        subprocess.Popen(  # noqa: ASYNC220 - they are waited for below
            [sys.executable, str(APPENDER), str(root), device, KEY, name, str(count), str(every)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for device, name, every in zip(devices, names, [compact_every] + [0] * (len(devices) - 1), strict=True)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert await asyncio.to_thread(process.stdout.readline) == "ready\n"
        answers = await asyncio.gather(*(asyncio.to_thread(process.communicate) for process in processes))
    finally:
        for process in processes:
            process.kill()
    assert [answer[0] for answer in answers] == [f"{count}\n"] * len(devices)
    return names


@pytest.mark.parametrize("devices", [[""] * 4, ["one", "two", "three", "four"]], ids=["one device", "four devices"])
async def test_processes_that_append_and_compact_keep_all_of_it_once_and_in_order(
    root: Path, devices: list[str]
) -> None:
    count = 500 if len(set(devices)) == 1 else 60
    async with SessionStorage(root, device=devices[0] or None) as store:
        node = await store.upsert_session(SessionNode(session_key=KEY))
    names = await run_appenders(root, devices, count, compact_every=count // 5)
    async with SessionStorage(root, device="reader") as store:
        whole = await store.get_canonical_transcript(node.session_id)
        orders_are_kept((found.content for found in whole), names, count)
        live = await store.get_transcript(node.session_id)
        assert 0 < len(live) < len(whole)
        assert live == [found for found in whole if found in live]
        if len(set(devices)) == 1:
            ids = [found.id for found in whole]
            assert ids == sorted(set(ids))
    lines_are_whole(root)
    assert LockFile(Files(), lock_path(root)).try_acquire()


async def test_a_reader_sees_only_what_grows_while_others_append_and_compact(root: Path) -> None:
    async with SessionStorage(root, device="desk") as store:
        node = await store.upsert_session(SessionNode(session_key=KEY))
        appending = asyncio.create_task(run_appenders(root, ["desk", "desk"], 80, compact_every=9))
        async with SessionStorage(root, device="reader") as reader:
            seen: list[str] = []
            while not appending.done():
                found = [each.message_id for each in await reader.get_canonical_transcript(node.session_id)]
                assert found[: len(seen)] == seen
                seen = found
                iterated = [each.message_id async for each in reader.iter_transcript(node.session_id, canonical=True)]
                assert iterated[: len(seen)] == seen
            names = await appending
            orders_are_kept(
                (each.content for each in await reader.get_canonical_transcript(node.session_id)), names, 80
            )


async def test_two_stores_in_one_process_exclude_each_other(root: Path, store: SessionStorage) -> None:
    node = await store.upsert_session(SessionNode(session_key=KEY))
    async with SessionStorage(root, device="desk") as other:

        async def append(through: SessionStorage, name: str) -> None:
            for number in range(60):
                await say(through, node, f"{name} {number}")
                if number % 20 == 19:
                    await through.truncate_session(KEY, 3)

        await asyncio.gather(append(store, "one"), append(other, "two"), append(store, "three"))
        for reader in (store, other):
            whole = await reader.get_canonical_transcript(node.session_id)
            orders_are_kept((found.content for found in whole), ["one", "two", "three"], 60)
            ids = [found.id for found in whole]
            assert ids == sorted(set(ids))
        assert await said(store, node.session_id) == await said(other, node.session_id)
    assert {path.name.split(".")[1] for path in logs(root)} == {"desk"}
    lines_are_whole(root)


async def test_counters_that_many_writers_raise_add_up(root: Path, store: SessionStorage) -> None:
    await store.upsert_session(SessionNode(session_key=KEY))
    async with SessionStorage(root, device="desk") as other, SessionStorage(root, device="laptop") as third:
        stores = (store, other, third)
        await asyncio.gather(
            *(
                stores[number % 3].update_session(KEY, {}, {"input_tokens": number, "total_cost_usd": 0.1})
                for number in range(60)
            )
        )
        for reader in stores:
            node = await stored(reader)
            assert (node.input_tokens, node.total_cost_usd) == (sum(range(60)), 6.0)


async def test_only_one_of_many_creates_a_session(root: Path, store: SessionStorage) -> None:
    async with SessionStorage(root, device="desk") as other:
        results = await asyncio.gather(
            *((store, other)[number % 2].create_session(SessionNode(session_key=KEY)) for number in range(20)),
            return_exceptions=True,
        )
    created = [result for result in results if isinstance(result, SessionNode)]
    assert len(created) == 1
    assert {type(result).__name__ for result in results} == {"SessionNode", "SessionExistsError"}
    assert await stored(store) == created[0]


async def test_sessions_do_not_wait_for_each_other(root: Path, store: SessionStorage) -> None:
    held = await store.upsert_session(SessionNode(session_key=KEY))
    free = await store.upsert_session(SessionNode(session_key="free"))
    lock = LockFile(Files(), lock_path(root))
    assert lock.try_acquire()
    waiting = [asyncio.create_task(say(store, held, number)) for number in range(8)]
    await say(store, free, "now")
    assert await said(store, free.session_id) == ["now"]
    assert await said(store, held.session_id) == []
    assert not any(task.done() for task in waiting)
    lock.close()
    await asyncio.gather(*waiting)
    assert await said(store, held.session_id) == list(range(8))


async def test_everything_at_once_on_one_session_leaves_it_whole(root: Path, store: SessionStorage) -> None:
    node = await store.upsert_session(SessionNode(session_key=KEY))
    appended: list[TranscriptEntry] = []

    async def append(number: int) -> None:
        appended.extend(await say(store, node, number))

    work = []
    for number in range(40):
        work += [append(number), store.update_session(KEY, {"label": str(number)}), said(store, node.session_id)]
        if number % 10 == 5:
            work += [
                store.truncate_session(KEY, 2),
                store.save_summary(summary(node, str(number))),
                store.save_context_state(state(node, str(number))),
                store.search_transcript("1"),
                store.list_sessions(),
            ]
    await asyncio.gather(*work)
    whole = await store.get_canonical_transcript(node.session_id)
    assert [found.content for found in whole] == list(range(40))
    assert (await stored(store)).label == "39"
    assert [found.compaction_index for found in await store.get_all_summaries(node.session_id)] == [0, 1, 2, 3]
    assert len(await store.get_context_states(KEY)) == 4
    lines_are_whole(root)


async def test_nothing_touches_the_disk_on_the_thread_of_the_event_loop(root: Path) -> None:
    threads = set()

    class NotingFiles(FaultyFiles):
        @contextmanager
        def _call(self, name: str, *args: object) -> Iterator[Kind | None]:
            threads.add(threading.current_thread())
            with super()._call(name, *args) as kind:
                yield kind

    async with SessionStorage(root, files=NotingFiles("os")) as store:
        for name in set(public_methods(with_key=False)) - ENDLESS:
            node = await store.upsert_session(SessionNode(session_key=KEY))
            with suppress(SquillaFilesError):
                await call(store, name, KEY, node.session_id)
    assert len(threads) > 1
    assert threading.main_thread() not in threads


async def test_tasks_of_which_many_are_cancelled_keep_what_returned_once_and_never_block_the_loop(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "_WORKERS", 2)
    randomly = random.Random(7)
    returned: list[str] = []
    gaps: list[float] = []
    loop = asyncio.get_running_loop()

    async def tick() -> None:
        last = loop.time()
        while True:
            await asyncio.sleep(0)
            now = loop.time()
            gaps.append(now - last)
            last = now

    async with SessionStorage(root, device="desk") as store:
        node = await store.upsert_session(SessionNode(session_key=KEY))
        assert store._pool._max_workers == 2

        async def append(name: str) -> None:
            for number in range(20):
                await store.append_transcript_entry(entry(node, f"{name} {number}"))
                returned.append(f"{name} {number}")

        ticking = asyncio.create_task(tick())
        tasks = [asyncio.create_task(append(f"task{number}")) for number in range(50)]
        doomed = randomly.sample(tasks, 17)
        while doomed:
            for _ in range(randomly.randrange(200)):
                await asyncio.sleep(0)
            doomed.pop().cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        ticking.cancel()
        assert {type(result) for result in results} == {type(None), asyncio.CancelledError}
        found = [str(content) for content in await said(store, node.session_id)]
        # One that was cancelled may have been written whole all the same, but nothing came of it twice.
        assert len(set(found)) == len(found)
        assert set(returned) <= set(found)
        assert len(set(found) - set(returned)) <= 17
        for name in {text.split()[0] for text in found}:
            own = [int(text.split()[1]) for text in found if text.split()[0] == name]
            assert own == list(range(len(own)))
        # While the store is open: a second process gets the lock at once.
        other = await asyncio.create_subprocess_exec(
            sys.executable, "-c", LOCK_ONCE, lock_path(root), stdout=asyncio.subprocess.PIPE
        )
        assert (await other.communicate())[0] == b"True\n"
        await say(store, node, "task50 0")
    lines_are_whole(root)
    # The rule itself is a time: blocking work never runs on the loop.
    assert max(gaps) < 0.2
