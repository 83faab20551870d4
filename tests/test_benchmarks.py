"""The benchmarks work: each row at sizes that mean nothing. How fast anything is, no test says."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from squilla_files.storage import SessionStorage

BENCHMARKS = Path(__file__).parent / "benchmarks"
ROWS = [
    *("append", "concurrent", "read", "read-cold", "recent", "compaction", "branch", "list"),
    *("import", "import-names", "memory"),
]


def printed(tmp_path: Path, script: str, *arguments: str) -> str:
    command = [sys.executable, "-W", "error", str(BENCHMARKS / script), "--tiny", "--dir", str(tmp_path), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def names_in(table: str) -> list[str]:
    return [line.split("|")[1].strip() for line in table.splitlines() if line.startswith("| ")][1:]


def test_each_row_is_measured_and_leaves_nothing_behind(tmp_path: Path) -> None:
    assert names_in(printed(tmp_path, "bench_store.py")) == ROWS
    assert list(tmp_path.iterdir()) == []


def test_only_the_rows_that_are_named_are_measured(tmp_path: Path) -> None:
    assert names_in(printed(tmp_path, "bench_store.py", "append", "import")) == ["append", "import"]


def test_each_row_of_watching_is_measured(tmp_path: Path) -> None:
    assert names_in(printed(tmp_path, "bench_watch.py")) == ["within", "between", "start", "idle", "many", "burst"]
    assert list(tmp_path.iterdir()) == []


def test_a_profile_shows_the_functions_of_the_worker(tmp_path: Path) -> None:
    assert "(refresh)" in printed(tmp_path, "bench_store.py", "--profile", "append")


def test_the_peer_is_measured_where_it_is_installed(tmp_path: Path) -> None:
    shown = printed(tmp_path, "bench_peers.py")
    assert "Nothing was measured" in shown or names_in(shown) == ["append", "read", "recent"]


@pytest.mark.parametrize("arguments", [["nothing"], ["--profile", "nothing"]])
def test_a_row_that_does_not_exist_is_refused(tmp_path: Path, arguments: list[str]) -> None:
    command = [sys.executable, str(BENCHMARKS / "bench_store.py"), "--dir", str(tmp_path), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=False)
    assert done.returncode == 2
    assert "nothing" in done.stderr


async def test_what_is_filled_is_a_store_without_findings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    filling = import_module("filling")
    async with SessionStorage(tmp_path / "one", device=filling.DEVICE) as store:
        session_id = await filling.fill(store, "agent:main:long", 30)
        contents = [entry.content for entry in await store.get_transcript(session_id)]
    async with SessionStorage(tmp_path / "many", device=filling.DEVICE) as many:
        await filling.fill_sessions(many, 5)
    assert contents == [filling.content(number) for number in range(30)]
    for name in ("one", "many"):
        async with SessionStorage(tmp_path / name, device=filling.DEVICE) as reopened:
            assert (await reopened.verify()).findings == ()
