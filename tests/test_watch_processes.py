"""Changes of other processes: told once and in order, also of one that is killed in the middle of a line."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from followed import KEY, briefs, following, said
from stores import say

from squilla_files.layout import session_dir_name
from squilla_files.locks import LockFile
from squilla_files.models import SessionNode
from squilla_files.storage import SessionStorage

TESTS = Path(__file__).parent
FOLLOW = TESTS.parent / "examples" / "follow.py"

# Appends for ever, and says what was acknowledged.
APPEND = """
import asyncio, sys
from squilla_files.models import TranscriptEntry
from squilla_files.storage import SessionStorage

async def main(root, device, key, name):
    async with SessionStorage(root, device=device) as store:
        node = await store.get_session(key)
        number = 0
        while True:
            content = f"{name} {number} " + "\\U0001f600" * 400
            entry = TranscriptEntry(session_id=node.session_id, session_key=key, role="user", content=content)
            await store.append_transcript_entry(entry)
            print(name, number, flush=True)
            number += 1

asyncio.run(main(*sys.argv[1:]))
"""

# Writes one line to the end of a log in pieces, each when it is told to.
WRITE = """
import sys
with open(sys.argv[1], "ab", buffering=0) as log:
    for piece in sys.stdin:
        log.write(bytes.fromhex(piece))
        print("written", flush=True)
"""


@pytest.fixture
async def store(root: Path) -> AsyncIterator[SessionStorage]:
    async with SessionStorage(root, device="desk") as opened:
        yield opened


@pytest.fixture
async def node(store: SessionStorage) -> SessionNode:
    return await store.create_session(SessionNode(session_key=KEY))


@asynccontextmanager
async def process(*arguments: str | Path) -> AsyncIterator[Process]:
    command = [sys.executable, "-W", "error", *map(str, arguments)]
    started = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, cwd=TESTS)
    try:
        yield started
    finally:
        if started.returncode is None:
            started.kill()
        await started.communicate()


async def line_of(started: Process) -> str:
    assert started.stdout is not None
    async with asyncio.timeout(60):
        return (await started.stdout.readline()).decode().strip()


def names(contents: list[str]) -> list[str]:
    return [" ".join(content.split()[:2]) for content in contents]


async def test_what_a_killed_process_acknowledged_was_told_once_and_in_order(
    root: Path, store: SessionStorage, node: SessionNode
) -> None:
    acknowledged: list[str] = []
    async with following(store) as one, following(store, None) as whole:
        for turn in range(4):
            async with process("-c", APPEND, root, f"lap-{turn % 2}", KEY, f"turn-{turn}") as appender:
                acknowledged += [await line_of(appender) for _ in range(5 + 7 * turn)]
                appender.send_signal(signal.SIGKILL if hasattr(signal, "SIGKILL") else signal.SIGTERM)
                await appender.wait()
        await say(store, node, "end of it")
        for collected in (one, whole):
            told = names(said(await collected.to_say("end of it")))
            assert len(told) == len(set(told))
            assert set(acknowledged) <= set(told)
            for turn in range(4):
                mine = [name for name in told if name.startswith(f"turn-{turn} ")]
                assert mine == [f"turn-{turn} {number}" for number in range(len(mine))]
        expected = names([str(e.content) for e in await store.get_transcript(node.session_id)])
        assert sorted(names(said(one.events))) == sorted(names(said(whole.events))) == sorted(expected)


async def test_a_line_that_another_process_writes_in_pieces_is_told_when_it_is_whole(
    store: SessionStorage, node: SessionNode
) -> None:
    await say(store, node, "first")
    await store.close()
    (log,) = Path(store.root, "sessions", session_dir_name(KEY)).glob("*.jsonl")
    text = '{"type":"message","id":9,"message_id":"z","role":"user","created_at":1,"content":"cut 😀 here"}\n'.encode()
    cut = text.index("😀".encode()) + 1
    async with store, following(store) as one, process("-c", WRITE, log) as writer:
        await store._begun(None)
        assert writer.stdin is not None
        for piece in (text[:cut], text[cut : cut + 2], text[cut + 2 :]):
            assert said(one.events) == []
            writer.stdin.write(piece.hex().encode() + b"\n")
            assert await line_of(writer) == "written"
        assert said(await one.count(1)) == ["cut 😀 here"]


async def test_a_follower_that_is_killed_resumes_behind_the_last_event_that_it_kept(
    root: Path, store: SessionStorage, node: SessionNode
) -> None:
    contents = [f"m{number}" for number in range(30)]
    kept: list[str] = []
    written, cursor = 0, ""
    while len(kept) < len(contents):
        async with process(FOLLOW, root, KEY, *([cursor] if cursor else [])) as follower:
            if not cursor:
                # Nothing says when it has begun, but for the first thing that it shows.
                shown = asyncio.ensure_future(line_of(follower))
                while not shown.done():
                    await store.update_session(KEY, {"label": str(written)})
                    await asyncio.wait([shown], timeout=0.05)
                cursor = re.fullmatch(r"\(label.* changed\) \[(.+)\]", await shown)[1]  # type: ignore[index]
            for content in contents[written : written + 6]:
                await say(store, node, content)
            written = min(len(contents), written + 6)
            for _ in range(4):
                line = await line_of(follower)
                found = re.fullmatch(r"(.*) \[(.+)\]", line)
                assert found is not None, line
                cursor = found[2]
                kept += [found[1].removeprefix("user: ")] if found[1].startswith("user") else []
                if len(kept) == len(contents):
                    break
    assert kept == contents


def test_the_example_shows_what_happens_and_ends_with_the_session(root: Path) -> None:
    async def run() -> list[str]:
        async with SessionStorage(root, device="desk") as store, process(FOLLOW, root, KEY) as follower:
            shown = asyncio.ensure_future(line_of(follower))
            count = 0
            while not shown.done():
                node = await store.get_session(KEY) or await store.create_session(SessionNode(session_key=KEY))
                await store.update_session(KEY, {"label": str(count)})
                await asyncio.wait([shown], timeout=0.05)
                count += 1
            await say(store, node, "hello")
            await store.truncate_session(KEY, 0)
            await store.reset_session(KEY, reason="test")
            await store.delete_session(KEY)
            assert follower.stdout is not None
            rest = (await follower.stdout.read()).decode().splitlines()
            assert await follower.wait() == 0
            return rest

    shown = [line.rpartition(" [")[0] for line in asyncio.run(run())]
    assert "user: hello" in shown
    assert shown[-1] == "(deleted)"


# --- other processes at the lock -------------------------------------------------------------------------------------


async def test_a_burst_from_several_processes_starves_nobody(
    root: Path, store: SessionStorage, node: SessionNode
) -> None:
    async with following(store) as one:
        async with (
            process("-c", APPEND, root, "lap-a", KEY, "a") as first,
            process("-c", APPEND, root, "lap-b", KEY, "b") as second,
        ):
            # While both go on for ever, each gets its turns, and so does this process.
            for _ in range(10):
                await asyncio.gather(line_of(first), line_of(second), say(store, node, "mine"))
        told = names(said(await one.until(lambda events: said(events).count("mine") == 10)))
    assert {name.split()[0] for name in told} == {"a", "b", "mine"}


async def test_who_waits_for_the_lock_tries_again_every_few_milliseconds(
    root: Path, store: SessionStorage, node: SessionNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    real = asyncio.sleep

    async def sleep(delay: float, *given: object) -> None:
        pauses.append(delay)
        await real(0)

    lock = LockFile(store._files, store._paths.lock_file(session_dir_name(KEY)))
    assert lock.try_acquire()
    monkeypatch.setattr("squilla_files.locks.asyncio.sleep", sleep)
    waiting = asyncio.ensure_future(say(store, node, "late"))
    while len(pauses) < 40:
        await real(0.001)
    lock.release()
    await waiting
    lock.close()
    assert max(pauses) <= 0.005


async def test_a_lock_that_is_not_free_in_time_names_process_host_and_since_when(root: Path) -> None:
    holder = (
        "import sys; from squilla_files.files import Files; from squilla_files.locks import LockFile; "
        "print(LockFile(Files(), sys.argv[1]).try_acquire(), flush=True); sys.stdin.read()"
    )
    async with SessionStorage(root, device="desk", lock_timeout=0.05) as store:
        node = await store.create_session(SessionNode(session_key=KEY))
        await store.close()
        await store.connect()
        path = store._paths.lock_file(session_dir_name(KEY))
        async with process("-c", holder, path) as other:
            assert await line_of(other) == "True"
            with pytest.raises(TimeoutError) as caught:
                await say(store, node, "late")
            held_by = caught.value.holder  # type: ignore[attr-defined]
            assert held_by["pid"] == other.pid
            assert {"host", "since_ms"} <= held_by.keys()
            since = datetime.fromtimestamp(held_by["since_ms"] / 1000, UTC).isoformat(timespec="milliseconds")
            for value in (held_by["pid"], held_by["host"], since):
                assert str(value) in str(caught.value)


async def test_appends_of_many_tasks_share_a_sync(tmp_path: Path) -> None:
    from faulty_files import FaultyFiles

    files = FaultyFiles()
    async with SessionStorage(tmp_path / "store", device="desk", files=files) as store:
        node = await store.create_session(SessionNode(session_key=KEY))
        await say(store, node, "first")
        before = len(files.calls)
        await asyncio.gather(*(say(store, node, number) for number in range(100)))
        calls = files.calls[before:]
        syncs = [call for call in calls if call.name == "sync" and call.path.endswith(".jsonl")]
        assert 1 <= len(syncs) <= 10
        assert len(await store.get_transcript(node.session_id)) == 101


def test_two_processes_on_one_machine_see_the_same(root: Path) -> None:
    script = (
        "import asyncio, sys\n"
        "from squilla_files.models import SessionNode\n"
        "from squilla_files.storage import SessionStorage\n"
        "async def main():\n"
        "    async with SessionStorage(sys.argv[1]) as store:\n"
        "        await store.create_session(SessionNode(session_key=sys.argv[2]))\n"
        "asyncio.run(main())\n"
    )

    async def run() -> list[str]:
        async with SessionStorage(root) as store, following(store, None) as whole:
            await store._begun(None)
            for number in range(3):
                arguments = [sys.executable, "-c", script, str(root), f"agent:main:{number}"]
                await asyncio.to_thread(subprocess.run, arguments, check=True, env=os.environ)
            return [event.session_key for event in await whole.count(3)]

    assert asyncio.run(run()) == [f"agent:main:{number}" for number in range(3)]


async def test_a_session_deleted_by_another_process_is_told(
    root: Path, store: SessionStorage, node: SessionNode
) -> None:
    script = (
        "import asyncio, sys\n"
        "from squilla_files.storage import SessionStorage\n"
        "async def main():\n"
        "    async with SessionStorage(sys.argv[1]) as store:\n"
        "        await store.delete_session(sys.argv[2])\n"
        "asyncio.run(main())\n"
    )
    async with following(store) as one, following(store, None) as whole:
        await store._begun(None)
        async with process("-c", script, root, KEY) as other:
            assert await other.wait() == 0
        for collected in (one, whole):
            assert briefs(await collected.count(1)) == ["deleted"]
