"""How much the store costs over what nobody can do without: each row is a ratio against a floor in the same run.

``python tests/benchmarks/bench_store.py [name ...]`` prints the table. ``--dir`` says on which disk. ``--profile NAME``
prints the hot functions of one row instead, worker and event loop in one thread; for the imports, which happen in
processes of their own, ``python -X importtime`` tells more. Entries are about 500 bytes long. The last figures, on
Linux with two CPUs and hardly any other work (all 11 rows in 51 s):

| row          | against                               | measured | target   | median  | median of the floor |
|--------------|---------------------------------------|----------|----------|---------|---------------------|
| append       | write + fdatasync, in a worker thread | 1.62×    | ≤ 1.8×   | 386 µs  | 233 µs              |
| concurrent   | write + fdatasync, in a worker thread | 0.09×    | ≤ 0.25×  | 23.2 µs | 263 µs              |
| read         | orjson.loads of each line, in memory  | 1.53×    | ≤ 2.5×   | 19.7 ms | 13 ms               |
| read-cold    | orjson.loads of each line, in memory  | 6.78×    | –        | 54.7 ms | 7.9 ms              |
| recent       | the same, 1,000 entries               | 1.00×    | ≤ 2×     | 312 µs  | 310 µs              |
| compaction   | reading them                          | 7.76×    | ≤ 8×     | 170 ms  | 21.9 ms             |
| branch       | reading them                          | 3.45×    | ≤ 4×     | 58.3 ms | 17.3 ms             |
| list         | os.stat of each directory and log     | 2.11×    | ≤ 3×     | 112 ms  | 52.9 ms             |
| import       | import orjson, filelock, asyncio      | 0.17×    | ≤ 1.5×   | 10.2 ms | 59.7 ms             |
| import-names | import orjson, filelock, asyncio      | 3.83×    | –        | 242 ms  | 59.4 ms             |
| memory       | memory at the start                   | 23.5 MB  | ≤ 100 MB | 4.54 s  | –                   |

What is left of append beside the sync: 7 looks at names (directory, archive, log, deletions, lock) and
taking in the line that was written. Of compaction a third is the search for facts that must survive. `import` costs
little because names are loaded when they are asked for, which `import-names` pays.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from statistics import fmean
from time import perf_counter
from typing import TYPE_CHECKING

import orjson
from filling import TOKENS, entry, fill, fill_sessions
from harness import Bench, Measured, Row, Side, main, seconds_text, timed, timed_call
from iterate_store import iterate

from squilla_files.manager import SessionManager

if TYPE_CHECKING:
    from collections.abc import Iterator

    from squilla_files.storage import SessionStorage

KEY = "agent:main:bench"
CONCURRENT = 64
RECENT = 50
WINDOW_TOKENS = 20_000
"""Compaction keeps what fits into half of it: about 140 entries."""


def log_lines(store: SessionStorage) -> list[bytes]:
    """Return the lines of all logs in a store that stand for messages."""
    logs = Path(store.root, "sessions").glob("*/transcript.*.jsonl")
    return [line for log in logs for line in log.read_bytes().splitlines() if line.startswith(b'{"type":"message"')]


@contextmanager
def synced_writes(path: Path, data: bytes) -> Iterator[Side]:
    """Give the floor of appends: the same bytes, written and synced in a worker thread, called from the loop."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    sync = getattr(os, "fdatasync", os.fsync)

    def write() -> None:
        os.write(fd, data)
        sync(fd)

    with ThreadPoolExecutor(1) as pool:
        loop = asyncio.get_running_loop()

        async def side() -> float:
            return await timed(loop.run_in_executor(pool, write))

        try:
            yield side
        finally:
            os.close(fd)


async def append(bench: Bench) -> Measured:
    """Append one entry after another."""
    async with await bench.open() as store:
        session_id = await fill(store, KEY, 2)
        numbers = count(2)

        async def ours() -> float:
            made = entry(session_id, KEY, next(numbers))
            return await bench.timed(store.append_transcript_entry(made))

        with synced_writes(bench.directory / "floor", log_lines(store)[-1] + b"\n") as floor:
            return await bench.compare(ours, floor, bench.sizes.short_turns)


async def append_concurrent(bench: Bench) -> Measured:
    """Append many entries at once to one session, and share the time among them."""
    async with await bench.open() as store:
        session_id = await fill(store, KEY, 2)
        numbers = count(2)

        async def ours() -> float:
            made = [entry(session_id, KEY, next(numbers)) for _ in range(CONCURRENT)]
            return await bench.timed(asyncio.gather(*map(store.append_transcript_entry, made))) / CONCURRENT

        with synced_writes(bench.directory / "floor", log_lines(store)[-1] + b"\n") as write:

            async def floor() -> float:
                return fmean([await write() for _ in range(4)])

            return await bench.compare(ours, floor, max(bench.sizes.short_turns // 4, 1))


async def read(bench: Bench) -> Measured:
    """Read a long session that is open."""
    async with await bench.open() as store:
        session_id = await fill(store, KEY, bench.sizes.entries)
        lines = log_lines(store)

        async def ours() -> float:
            return await bench.timed(store.get_transcript(session_id))

        async def floor() -> float:
            return timed_call(lambda: list(map(orjson.loads, lines)))

        return await bench.compare(ours, floor, bench.sizes.turns)


async def read_cold(bench: Bench) -> Measured:
    """Open a store and read a long session, of which nothing is known yet."""
    async with await bench.open() as store:
        session_id = await fill(store, KEY, bench.sizes.entries)
        lines = log_lines(store)

    async def ours() -> float:
        async with await bench.open() as fresh:
            return await bench.timed(fresh.get_transcript(session_id))

    async def floor() -> float:
        return timed_call(lambda: list(map(orjson.loads, lines)))

    return await bench.compare(ours, floor, bench.sizes.turns)


async def recent(bench: Bench) -> Measured:
    """Read the end of a very long session, and that of a short one."""
    async with await bench.open() as store:
        long_id = await fill(store, f"{KEY}:long", bench.sizes.many_entries)
        short_id = await fill(store, f"{KEY}:short", bench.sizes.few_entries)

        async def side(session_id: str) -> float:
            return await bench.timed(store.get_recent_transcript(session_id, RECENT))

        return await bench.compare(partial(side, long_id), partial(side, short_id), bench.sizes.short_turns)


async def compaction(bench: Bench) -> Measured:
    """Compact a session without a summarizer, another one each time, right after reading it."""
    async with await bench.open() as store:
        manager, numbers = SessionManager(store), count()
        filled: list[str] = []
        # So many entries must not fit, whatever the sizes.
        window = min(WINDOW_TOKENS, bench.sizes.entries * TOKENS // 2)

        async def compact(key: str) -> None:
            result = await manager.compact_with_result(key, window)
            if not result.removed_count:
                raise AssertionError(f"nothing was compacted: {result.skip_reason}")

        async def floor() -> float:
            filled.append(f"{KEY}:{next(numbers)}")
            await fill(store, filled[-1], bench.sizes.entries)
            await manager.get_transcript(filled[-1])
            gc.collect()  # filling is no part of what is measured, and neither is what it leaves behind
            return await timed(manager.get_transcript(filled[-1]))

        async def ours() -> float:
            key = filled.pop()
            seconds = await bench.timed(compact(key))
            await store.delete_session(key)  # or each turn would be measured beside more open sessions
            return seconds

        return await bench.compare(ours, floor, bench.sizes.turns)


async def branch(bench: Bench) -> Measured:
    """Fork a session, to another key each time."""
    async with await bench.open() as store:
        manager, numbers = SessionManager(store), count()
        await fill(store, KEY, bench.sizes.entries)

        async def ours() -> float:
            child = f"{KEY}:{next(numbers)}"
            seconds = await bench.timed(manager.branch(KEY, child, fork_transcript=True))
            await store.delete_session(child)  # or each turn would be measured beside more open sessions
            return seconds

        async def floor() -> float:
            return await timed(manager.get_transcript(KEY))

        return await bench.compare(ours, floor, bench.sizes.turns)


async def listing(bench: Bench) -> Measured:
    """List a large store that was listed before."""
    async with await bench.open() as store:
        paths = await fill_sessions(store, bench.sizes.sessions)

        async def ours() -> float:
            return await bench.timed(store.list_sessions(limit=100))

        async def floor() -> float:
            return timed_call(lambda: [os.stat(path) for path in paths])

        return await bench.compare(ours, floor, bench.sizes.turns)


async def imports(bench: Bench, statement: str) -> Measured:
    """Import the package in a fresh interpreter."""

    async def side(executed: str) -> float:
        script = f"from time import perf_counter as now; start = now(); {executed}; print(now() - start)"
        return float(await output_of("-c", script))

    return await bench.compare(partial(side, statement), partial(side, _LIBRARIES), bench.sizes.turns)


async def memory(bench: Bench) -> Measured:
    """Iterate an extremely long session in a fresh process, and look at the peak of its memory."""
    async with await bench.open() as store:
        session_id = await fill(store, KEY, bench.sizes.streamed_entries)
    if bench.profile is not None:
        async with await bench.open() as store:
            await bench.timed(iterate(store, session_id))
    start = perf_counter()
    script = os.path.join(os.path.dirname(__file__), "iterate_store.py")
    peak = int(await output_of(script, store.root, session_id, str(bench.sizes.streamed_entries)))
    return Measured(peak / 1e6, " MB", seconds_text(perf_counter() - start), "–")


async def output_of(*arguments: str) -> str:
    """Return what an interpreter with these arguments prints.

    Raises:
        RuntimeError: it failed.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    printed, errors = await process.communicate()
    if process.returncode:
        raise RuntimeError(errors.decode())
    return printed.decode()


_WRITE = "write + fdatasync, in a worker thread"
_LOADS = "orjson.loads of each line, in memory"
_PACKAGE = "import squilla_files"
_NAMES = "from squilla_files import SessionManager"
_LIBRARIES = "import orjson, filelock, asyncio"
ROWS = (
    Row("append", "durable append, one after another", _WRITE, 1.8, append),
    Row("concurrent", f"{CONCURRENT} durable appends at once, each", _WRITE, 0.25, append_concurrent),
    Row("read", "get_transcript, 10,000 entries", _LOADS, 2.5, read),
    Row("read-cold", "the same, store just opened", _LOADS, None, read_cold),
    Row("recent", f"get_recent_transcript({RECENT}), 100,000 entries", "the same, 1,000 entries", 2, recent),
    Row("compaction", "compact_with_result, 10,000 entries", "reading them", 8, compaction),
    Row("branch", "branch with fork, 10,000 entries", "reading them", 4, branch),
    Row("list", "list_sessions(limit=100), 10,000 sessions", "os.stat of each directory and log", 3, listing),
    Row("import", _PACKAGE, _LIBRARIES, 1.5, partial(imports, statement=_PACKAGE)),
    # The names come with their modules when they are asked for first: what a program that uses them pays.
    Row("import-names", _NAMES, _LIBRARIES, None, partial(imports, statement=_NAMES)),
    Row("memory", "iter_transcript, 1,000,000 entries", "memory at the start", 100, memory),
)


if __name__ == "__main__":
    main(ROWS, "Measure the store against what nobody can do without.")
