"""What the benchmarks stand on: interleaved measurements, one table, and the hot functions of a row.

A row is a ratio against a floor in the same run. Both sides take turns (floor, store, floor, store …), and the ratio is
the median of the ratios of all turns, so that a machine that slows down slows both. Nothing here asserts that anything
is fast.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import gc
import os
import platform
import pstats
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from squilla_files.storage import SessionStorage

Side = Callable[[], Awaitable[float]]
"""Does its work once and returns the seconds that it took, for one unit of it."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large everything is that is measured."""

    turns: int = 15
    """How often the two sides of a row take turns."""
    short_turns: int = 400
    """The same for work that takes less than a few milliseconds."""
    entries: int = 10_000
    """The entries of an ordinary long session."""
    few_entries: int = 1_000
    """Those of a short one."""
    many_entries: int = 100_000
    """Those of a very long one."""
    streamed_entries: int = 1_000_000
    """Those of one that is only iterated."""
    sessions: int = 10_000
    """The sessions of a large store."""


TINY = Sizes(2, 3, entries=60, few_entries=10, many_entries=60, streamed_entries=300, sessions=5)
"""Large enough to execute every line of a benchmark, and no more."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One figure, with what it comes from."""

    value: float
    unit: str
    ours: str
    floor: str


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    name: str
    what: str
    floor: str
    target: float | None
    measure: Callable[[Bench], Awaitable[Measured]]


@dataclass(slots=True)
class Bench:
    """Where a row is measured, how large, and whether it is looked into."""

    directory: Path
    sizes: Sizes = field(default_factory=Sizes)
    profile: cProfile.Profile | None = None

    async def open(self, name: str = "store") -> SessionStorage:
        """Return a connected store of that name, durable to the disk, in this row's directory."""
        store = await SessionStorage.open(self.directory / name, device="bench")
        if self.profile is not None:
            store._pool.shutdown()
            store._pool = InlineExecutor()  # type: ignore[assignment]
        return store

    async def compare(self, ours: Side, floor: Side, turns: int, *, warm_up: bool = True) -> Measured:
        """Let both sides take turns, after one turn that does not count where *warm_up* says so."""
        if warm_up:
            await floor()
            await ours()
        pairs = []
        for _ in range(turns):
            if turns <= self.sizes.turns:
                gc.collect()  # what the turn before left behind is no part of this one
            theirs = await floor()
            pairs.append((await ours(), theirs))
        medians = [seconds_text(median(side)) for side in zip(*pairs, strict=True)]
        return Measured(median(a / b for a, b in pairs), "×", medians[0], medians[1])

    async def timed(self, work: Awaitable[object]) -> float:
        """Return the seconds that *work*, the store's side of a row, takes; a profile sees this and nothing else."""
        if self.profile is None:
            return await timed(work)
        self.profile.enable()
        try:
            return await timed(work)
        finally:
            self.profile.disable()


class InlineExecutor(Executor):
    """Executes at once in the calling thread, so that one profile sees the worker's functions and the loop's."""

    def submit(self, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Return the outcome of *work* as a future that is done."""
        future: Future[Any] = Future()
        try:
            future.set_result(work(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 - whoever awaits the future raises it
            future.set_exception(error)
        return future


async def timed(work: Awaitable[object]) -> float:
    """Return the seconds that *work* takes; what it returns is dropped within them."""
    start = perf_counter()
    await work
    return perf_counter() - start


def timed_call(work: Callable[[], object]) -> float:
    """Return the seconds that *work* takes; what it returns is dropped within them."""
    start = perf_counter()
    work()
    return perf_counter() - start


def seconds_text(seconds: float) -> str:
    """Return a duration for people."""
    for factor, unit in ((1e6, "µs"), (1e3, "ms")):
        if seconds * factor < 1000:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds:.3g} s"


def table(rows: Sequence[tuple[Row, Measured]]) -> str:
    """Return the rows as one table in Markdown."""
    lines = [("row", "what", "against", "measured", "target", "median", "median of the floor")]
    for row, found in rows:
        target = "–" if row.target is None else f"≤ {row.target:g}{found.unit}"
        missed = row.target is not None and found.value > row.target
        measured = f"{found.value:.2f}{found.unit}" + (" (missed)" if missed else "")
        lines.append((row.name, row.what, row.floor, measured, target, found.ours, found.floor))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    shown = ["| " + " | ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) + " |" for line in lines]
    shown.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(shown)


def surroundings(directory: Path) -> str:
    """Return where this was measured."""
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    return (
        f"{platform.python_implementation()} {platform.python_version()}, {platform.system()} {platform.machine()}, "
        f"{os.cpu_count()} CPUs{load}, in {directory}"
    )


async def measure(row: Row, directory: Path, sizes: Sizes, profile: cProfile.Profile | None = None) -> Measured:
    """Measure one row in a directory of its own, which is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix=f"bench-{row.name}-", dir=directory) as made:
        return await row.measure(Bench(Path(made), sizes, profile))


def main(rows: Sequence[Row], description: str) -> None:
    """Measure the rows that the command line names, and print their table."""
    by_name = {row.name: row for row in rows}
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("names", nargs="*", metavar="name", help=f"rows, by default all: {' '.join(by_name)}")
    parser.add_argument("--profile", metavar="NAME", choices=by_name, help="print the hot functions of one row instead")
    parser.add_argument("--dir", type=Path, help="where stores are made; must be on the disk that is meant, not in RAM")
    parser.add_argument("--tiny", action="store_true", help="sizes that mean nothing, to see that all rows work")
    given = parser.parse_args()
    unknown = [name for name in given.names if name not in by_name]
    if unknown:
        parser.error(f"no such row: {' '.join(unknown)}")
    sizes = TINY if given.tiny else Sizes()
    directory = given.dir if given.dir is not None else Path(tempfile.gettempdir())
    if given.profile is not None:
        profile = cProfile.Profile()
        asyncio.run(measure(by_name[given.profile], directory, sizes, profile))
        shown = pstats.Stats(profile).strip_dirs()
        shown.sort_stats("tottime").print_stats(25)
        shown.sort_stats("cumulative").print_stats(40)
        return
    print(surroundings(directory), end="\n\n")
    found = []
    for name in given.names or by_name:
        print(f"{name} …", file=sys.stderr, flush=True)
        found.append((by_name[name], asyncio.run(measure(by_name[name], directory, sizes))))
    print(table(found))
