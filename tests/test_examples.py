"""The examples do what they say."""

from __future__ import annotations

import asyncio
import json
import random
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from followed import following

from squilla_files import SessionManager, SessionStorage, TranscriptEntry

EXAMPLES = Path(__file__).parent.parent / "examples"
KEY = "agent:main:sums"
KILLS = 12


def command(script: str, *arguments: str | Path) -> list[str]:
    return [sys.executable, "-X", "utf8", "-W", "error", str(EXAMPLES / script), *map(str, arguments)]


def printed(script: str, *arguments: str | Path) -> str:
    done = subprocess.run(command(script, *arguments), capture_output=True, encoding="utf-8", check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


# --- quickstart ------------------------------------------------------------------------------------------------------


def test_quickstart_shows_each_step_and_leaves_the_store_that_it_shows(tmp_path: Path) -> None:
    shown = printed("quickstart.py", tmp_path / "store")
    titles = [
        "Transcript (20)",
        "Fork, with",
        "Summary (",
        "Live transcript",
        "The canonical transcript",
        "After the reset",
    ]
    assert [title for title in titles if title in shown] == titles
    assert "The canonical transcript has all 20 messages: True" in shown
    names = {path.name for path in (tmp_path / "store").rglob("*") if ".local" not in path.parts}
    assert {"store.json", "sessions", "archives", "summaries"} <= names
    assert {name for name in names if f"{name}\n" not in shown and f"{name}/\n" not in shown} == set()


def test_quickstart_without_a_directory_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TMPDIR", "TEMP", "TMP"):
        monkeypatch.setenv(name, str(tmp_path))
    assert "20 messages, 1 summary" in printed("quickstart.py")
    assert list(tmp_path.iterdir()) == []


def test_each_tool_call_of_the_example_conversation_has_its_result() -> None:
    messages = json.loads((EXAMPLES / "transcript.json").read_text(encoding="utf-8"))
    calls = [call["id"] for message in messages for call in message.get("tool_calls", ())]
    assert len(calls) == len(set(calls)) > 5
    assert calls == [message["tool_call_id"] for message in messages if message["role"] == "tool"]


@pytest.mark.parametrize("script", ["agent_loop.py", "follow.py"])
def test_an_example_that_lacks_its_arguments_shows_how_it_is_used(script: str) -> None:
    done = subprocess.run(command(script), capture_output=True, encoding="utf-8", check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"usage: {script}")


# --- agent_loop ------------------------------------------------------------------------------------------------------


def said(entry: TranscriptEntry) -> tuple[object, ...]:
    return entry.role, entry.content, entry.tool_calls, entry.tool_call_id


async def transcripts(root: Path) -> tuple[list[tuple[object, ...]], list[tuple[object, ...]]]:
    """Return the canonical and the live transcript of the agent's session."""
    async with SessionStorage(root) as store:
        manager = SessionManager(store)
        canonical = await manager.get_canonical_transcript(KEY)
        live = await manager.get_transcript(KEY)
    return [said(entry) for entry in canonical], [said(entry) for entry in live]


def kill_once(root: Path, chance: random.Random) -> list[str]:
    """Start the agent, kill it at some moment after some messages, and return the messages that it acknowledged."""
    agent = subprocess.Popen(command("agent_loop.py", root), stdout=subprocess.PIPE, encoding="utf-8")
    assert agent.stdout is not None
    lines = [agent.stdout.readline() for _ in range(chance.randrange(6))]
    with suppress(subprocess.TimeoutExpired):
        agent.wait(chance.uniform(0, 0.004))  # not for something to happen: the kill hits whatever is going on by then
    agent.kill()
    rest, _ = agent.communicate()
    return [line for line in [*lines, *rest.splitlines(keepends=True)] if line.endswith("\n")]


@pytest.mark.parametrize("seed", [1, 2])
async def test_an_agent_that_is_killed_again_and_again_says_everything_once(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    acknowledged = [line for _ in range(KILLS) for line in kill_once(tmp_path / "killed", chance)]
    printed("agent_loop.py", tmp_path / "killed")
    printed("agent_loop.py", tmp_path / "quiet")

    canonical, live = await transcripts(tmp_path / "killed")
    assert canonical == (await transcripts(tmp_path / "quiet"))[0]
    assert len(live) < len(canonical)  # it was compacted on the way
    numbers = [int(re.match(r"\d+", line)[0]) for line in acknowledged]  # type: ignore[index]
    assert len(numbers) == len(set(numbers))
    assert all(
        f"{n} {canonical[n - 1][0]} {canonical[n - 1][1]}\n" == line
        for n, line in zip(numbers, acknowledged, strict=True)
    )


def test_an_agent_that_is_done_has_nothing_more_to_say(tmp_path: Path) -> None:
    assert len(printed("agent_loop.py", tmp_path).splitlines()) == 60
    assert printed("agent_loop.py", tmp_path) == ""


# --- follow ----------------------------------------------------------------------------------------------------------


async def greet(root: Path) -> str:
    """Say something in a new session and name it; return the cursor behind its creation."""
    async with SessionStorage(root) as store, following(store, KEY) as told:
        manager = SessionManager(store, inject_time_prefix=False)
        await manager.create(KEY)
        await manager.append_message(KEY, "user", "Hello", token_count=3)
        await manager.update(KEY, label="greeting")
        events = await told.count(4)
    assert [event.kind for event in events] == ["created", "appended", "updated", "updated"]
    return events[0].cursor


def test_follow_shows_each_message_and_no_update_of_times_and_counters_alone(tmp_path: Path) -> None:
    cursor = asyncio.run(greet(tmp_path))
    with subprocess.Popen(command("follow.py", tmp_path, KEY, cursor), stdout=subprocess.PIPE, encoding="utf-8") as run:
        assert run.stdout is not None
        shown = [run.stdout.readline().rpartition(" [")[0] for _ in range(2)]
        run.kill()
    assert shown == ["user: Hello", "(label changed)"]
