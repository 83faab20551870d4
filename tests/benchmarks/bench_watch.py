"""How soon a change is told, and what it costs to wait for one.

``python tests/benchmarks/bench_watch.py [name ...]`` prints the table; ``--dir`` says on which disk, ``--tiny`` takes
sizes that mean nothing. Moments pass between processes by the monotonic clock, which they share on Linux. A change that
comes after some quiet seconds takes up to 50 ms more, because the watcher then looks less often. The last figures, on
Linux with two CPUs and hardly any other work:

| row     | target                       | measured                           |
|---------|------------------------------|------------------------------------|
| within  | median ≤ 1 ms                | 283 µs, 99 %: 1.29 ms              |
| between | median ≤ 10 ms, 99 % ≤ 50 ms | 4.78 ms, 99 %: 7.99 ms             |
| start   | ≤ 3× one walk                | 2.94× of 210 ms                    |
| idle    | ≤ 0.3 % of a core            | 0.19% one session, 0.14% all 10000 |
| many    | ≤ 20× one                    | 4.0× (1.27 ms against 320 µs)      |
| burst   | nobody starves               | 445 µs, 99 %: 33.7 ms, longest: 82.8 ms (four processes, one session) |
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from filling import DEVICE, entry, fill_sessions
from harness import seconds_text, surroundings

from squilla_files.events import Event
from squilla_files.models import SessionNode
from squilla_files.storage import SessionStorage

KEY = "agent:main:bench"
_BURST_PROCESSES = 4


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured."""

    appends: int = 300
    sessions: int = 10_000
    turns: int = 5
    subscribers: int = 100
    idle_s: float = 20.0


TINY = Sizes(appends=5, sessions=5, turns=1, subscribers=3, idle_s=0.2)
Line = tuple[str, str, str, str]


class Collector:
    """Takes the events of one iteration, and notes when each message came."""

    def __init__(self, store: SessionStorage, key: str | None = KEY) -> None:
        self.came: dict[object, float] = {}
        self._more = asyncio.Condition()
        self._task = asyncio.create_task(self._collect(store, key))

    async def _collect(self, store: SessionStorage, key: str | None) -> None:
        async with aclosing(store.watch(key)) as events:
            async for event in events:
                await self._take(event)

    async def _take(self, event: Event) -> None:
        if event.kind == "appended":
            self.came[event.entry.content] = time.perf_counter()
            async with self._more:
                self._more.notify_all()

    async def wait(self, content: object) -> float:
        """Return when the message came."""
        async with self._more:
            await self._more.wait_for(lambda: content in self.came)
        return self.came[content]

    async def close(self) -> None:
        """End the iteration."""
        self._task.cancel()
        await asyncio.wait([self._task])


async def _begin(store: SessionStorage, key: str | None = KEY, count: int = 1) -> list[Collector]:
    """Begin iterations, and return once changes of other processes are noticed."""
    collectors = [Collector(store, key) for _ in range(count)]
    await asyncio.sleep(0)
    await store.get_session(KEY)
    watching = store._watching
    if watching is not None:
        await watching.wakeups.ready()
    return collectors


def _spread(times: list[float]) -> str:
    cuts = quantiles(times, n=100) if len(times) > 1 else [times[0]] * 99
    return f"{seconds_text(median(times))}, 99 %: {seconds_text(cuts[98])}"


async def _say(store: SessionStorage, node: SessionNode, number: int) -> tuple[object, float]:
    made = entry(node.session_id, KEY, number)
    await store.append_transcript_entry(made)
    return made.content, time.perf_counter()


async def within(directory: Path, sizes: Sizes) -> Line:
    """An append returns → the event, in one process."""
    async with SessionStorage(directory, device=DEVICE) as store:
        node = await store.create_session(SessionNode(session_key=KEY))
        (collector,) = await _begin(store)
        times = []
        for number in range(sizes.appends):
            content, returned = await _say(store, node, number)
            times.append(await collector.wait(content) - returned)
        await collector.close()
    return ("within", "append returns → event, one process", "median ≤ 1 ms", _spread(times))


async def between(directory: Path, sizes: Sizes) -> Line:
    """An append returns in one process → the event in another."""
    async with SessionStorage(directory, device=DEVICE) as store:
        await store.create_session(SessionNode(session_key=KEY))
        (collector,) = await _begin(store)
        command = [sys.executable, __file__, "--append", str(directory), str(sizes.appends)]
        writer = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        shown, _ = await writer.communicate()
        times = []
        for line in shown.decode().splitlines():
            number, returned = line.split()
            content = entry("", KEY, int(number)).content
            times.append(await collector.wait(content) - float(returned))
        await collector.close()
    return ("between", "append returns → event, two processes", "median ≤ 10 ms, 99 % ≤ 50 ms", _spread(times))


async def _append(directory: Path, count: int) -> None:
    """What the other process does."""
    async with SessionStorage(directory, device="other") as store:
        node = await store.get_session(KEY)
        if node is None:
            raise LookupError(KEY)
        for number in range(count):
            _, returned = await _say(store, node, number)
            print(number, returned)
            await asyncio.sleep(0.02)


def _walk(directory: Path) -> float:
    """Return the seconds of one walk of a store, looking at the status of each file."""
    begun = time.perf_counter()
    for path, _, names in os.walk(directory):
        for name in names:
            os.lstat(os.path.join(path, name))
    return time.perf_counter() - begun


async def start(directory: Path, sizes: Sizes) -> Line:
    """How long the beginning of a watch of a large store takes."""
    async with SessionStorage(directory, device=DEVICE) as store:
        await fill_sessions(store, sizes.sessions)
    ratios = []
    for _ in range(sizes.turns):
        walk = _walk(directory)
        async with SessionStorage(directory, device=DEVICE) as store:
            begun = time.perf_counter()
            events = store.watch()
            step = asyncio.ensure_future(anext(events))
            await asyncio.sleep(0)
            await store._begun(None)
            ratios.append(((time.perf_counter() - begun) / walk, walk))
            step.cancel()
            await asyncio.wait([step])
    walk = seconds_text(median(walk for _, walk in ratios))
    measured = f"{median(ratio for ratio, _ in ratios):.2f}× of {walk}"
    return ("start", f"a watch of {sizes.sessions} sessions begins", "≤ 3× one walk", measured)


async def idle(directory: Path, sizes: Sizes) -> Line:
    """What waiting costs while nothing happens."""
    async with SessionStorage(directory, device=DEVICE) as store:
        await fill_sessions(store, sizes.sessions)
        shares = []
        for key in (KEY, None):
            (collector,) = await _begin(store, key)
            await asyncio.sleep(sizes.idle_s / 4)
            begun, used = time.perf_counter(), _used()
            await asyncio.sleep(sizes.idle_s)
            shares.append((_used() - used) / (time.perf_counter() - begun))
            await collector.close()
    measured = f"{shares[0]:.2%} one session, {shares[1]:.2%} all {sizes.sessions}"
    return ("idle", "processor time while nothing happens", "≤ 0.3 % of a core", measured)


def _used() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


async def many(directory: Path, sizes: Sizes) -> Line:
    """One append with many subscribers, until the last one is told, against one subscriber."""
    found: dict[int, list[float]] = {}
    async with SessionStorage(directory, device=DEVICE) as store:
        node = await store.create_session(SessionNode(session_key=KEY))
        for count in (1, sizes.subscribers):
            collectors = await _begin(store, count=count)
            for number in range(30):
                content, returned = await _say(store, node, 1000 * count + number)
                told = [await collector.wait(content) for collector in collectors]
                found.setdefault(count, []).append(max(told) - returned)
            for collector in collectors:
                await collector.close()
    one, all_told = (median(times) for times in found.values())
    measured = f"{all_told / one:.1f}× ({seconds_text(all_told)} against {seconds_text(one)})"
    return ("many", f"{sizes.subscribers} subscribers of one session, one append", "≤ 20× one", measured)


async def burst(directory: Path, sizes: Sizes) -> Line:
    """Four processes append to one session at once: how long one of them waited at most."""
    async with SessionStorage(directory, device=DEVICE) as store:
        await store.create_session(SessionNode(session_key=KEY))
    command = [sys.executable, __file__, "--burst", str(directory), str(sizes.appends)]
    writers = [
        await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE) for _ in range(_BURST_PROCESSES)
    ]
    shown = await asyncio.gather(*(writer.communicate() for writer in writers))
    times = [float(waited) for out, _ in shown for waited in out.decode().split()]
    measured = f"{_spread(times)}, longest: {seconds_text(max(times))}"
    return ("burst", f"{_BURST_PROCESSES} processes append to one session", "nobody starves", measured)


async def _burst(directory: Path, count: int) -> None:
    async with SessionStorage(directory, device=DEVICE) as store:
        node = await store.get_session(KEY)
        if node is None:
            raise LookupError(KEY)
        for number in range(count):
            begun = time.perf_counter()
            await store.append_transcript_entry(entry(node.session_id, KEY, number))
            print(time.perf_counter() - begun)


ROWS: dict[str, Callable[[Path, Sizes], Awaitable[Line]]] = {
    function.__name__: function for function in (within, between, start, idle, many, burst)
}


def _table(lines: list[Line]) -> str:
    shown = [("row", "what", "target", "measured"), *lines]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    texts = ["| " + " | ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) + " |" for line in shown]
    texts.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(texts)


def main() -> None:
    """Measure the rows that the command line names, and print their table."""
    parser = argparse.ArgumentParser(description="How soon a change is told, and what waiting costs.")
    parser.add_argument("names", nargs="*", metavar="name", help=f"rows, by default all: {' '.join(ROWS)}")
    parser.add_argument("--dir", type=Path, help="where stores are made; must be on the disk that is meant, not in RAM")
    parser.add_argument("--tiny", action="store_true", help="sizes that mean nothing, to see that all rows work")
    parser.add_argument("--append", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--burst", nargs=2, help=argparse.SUPPRESS)
    given: Any = parser.parse_args()
    if given.append is not None:
        return asyncio.run(_append(Path(given.append[0]), int(given.append[1])))
    if given.burst is not None:
        return asyncio.run(_burst(Path(given.burst[0]), int(given.burst[1])))
    unknown = [name for name in given.names if name not in ROWS]
    if unknown:
        parser.error(f"no such row: {' '.join(unknown)}")
    directory = given.dir if given.dir is not None else Path(tempfile.gettempdir())
    print(surroundings(directory), end="\n\n")
    lines = []
    for name in given.names or ROWS:
        print(f"{name} …", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix=f"bench-{name}-", dir=directory) as made:
            lines.append(asyncio.run(ROWS[name](Path(made), TINY if given.tiny else Sizes())))
    print(_table(lines))
    return None


if __name__ == "__main__":
    main()
