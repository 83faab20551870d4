"""The store beside `SQLiteSession` of openai-agents, which keeps a conversation in a table of SQLite.

``python tests/benchmarks/bench_peers.py [name ...]``, with the extra ``bench`` installed; options as those of
`bench_store`. Both are in their default mode, in which what was acknowledged survives a power cut (SQLite: a
write-ahead log, synchronous FULL). The peer returns plain dicts, the store records. The last figures, on
Linux with two CPUs, with openai-agents 0.24:

| row    | against                     | measured | median  | median of the peer |
|--------|-----------------------------|----------|---------|--------------------|
| append | SQLiteSession.add_items     | 1.05×    | 425 µs  | 406 µs             |
| read   | SQLiteSession.get_items()   | 0.74×    | 18.3 ms | 24.5 ms            |
| recent | SQLiteSession.get_items(50) | 0.98×    | 185 µs  | 185 µs             |
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

from bench_store import KEY, RECENT
from filling import content, entry, fill
from harness import Bench, Measured, Row, main, timed

from squilla_files.storage import SessionStorage

try:
    from agents import SQLiteSession
except ImportError:
    SQLiteSession = None


@asynccontextmanager
async def both(bench: Bench, entries: int) -> AsyncIterator[tuple[SessionStorage, str, Any]]:
    """Give a store, the id of a session in it, and a session of the peer, with the same entries."""
    peer = SQLiteSession(KEY, bench.directory / "peer.db")
    try:
        await peer.add_items([item(number) for number in range(entries)])
        async with await bench.open() as store:
            yield store, await fill(store, KEY, entries), peer
    finally:
        peer.close()


def item(number: int) -> dict[str, str]:
    """Return message *number* as the peer takes it."""
    return {"role": "assistant" if number % 2 else "user", "content": content(number)}


async def append(bench: Bench) -> Measured:
    """Append one entry after another."""
    async with both(bench, bench.sizes.few_entries) as (store, session_id, peer):
        numbers = count(bench.sizes.few_entries)

        async def ours() -> float:
            return await bench.timed(store.append_transcript_entry(entry(session_id, KEY, next(numbers))))

        async def floor() -> float:
            return await timed(peer.add_items([item(next(numbers))]))

        return await bench.compare(ours, floor, bench.sizes.short_turns)


async def read(bench: Bench) -> Measured:
    """Read a long session."""
    async with both(bench, bench.sizes.entries) as (store, session_id, peer):

        async def ours() -> float:
            return await bench.timed(store.get_transcript(session_id))

        async def floor() -> float:
            return await timed(peer.get_items())

        return await bench.compare(ours, floor, bench.sizes.turns)


async def recent(bench: Bench) -> Measured:
    """Read the end of a long session."""
    async with both(bench, bench.sizes.entries) as (store, session_id, peer):

        async def ours() -> float:
            return await bench.timed(store.get_recent_transcript(session_id, RECENT))

        async def floor() -> float:
            return await timed(peer.get_items(limit=RECENT))

        return await bench.compare(ours, floor, bench.sizes.short_turns)


ROWS = (
    Row("append", "durable append, one after another", "SQLiteSession.add_items", None, append),
    Row("read", "get_transcript, 10,000 entries", "SQLiteSession.get_items()", None, read),
    Row("recent", f"get_recent_transcript({RECENT}) of 10,000", f"SQLiteSession.get_items({RECENT})", None, recent),
)


if __name__ == "__main__":
    if SQLiteSession is None:
        print("openai-agents is not installed; the extra `bench` brings it. Nothing was measured.")
    else:
        main(ROWS, "Measure the store beside SQLiteSession of openai-agents.")
