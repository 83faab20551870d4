"""All at once for a while: processes that append, compact, reset, fork, list and follow, and are killed at any moment.

It takes a few seconds; ``SQUILLA_FILES_SOAK_S`` says for how many seconds instead.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from followed import follower_of, told_by
from soaker import END, KEYS, about

from squilla_files.findings import DAMAGED_LINE, TORN_TAIL
from squilla_files.models import SessionNode, TranscriptEntry
from squilla_files.positions import Position
from squilla_files.storage import SessionStorage

SOAKER = Path(__file__).with_name("soaker.py")
SECONDS = float(os.environ.get("SQUILLA_FILES_SOAK_S", "8"))
WRITERS = ("appender", "appender", "compactor", "resetter", "brancher", "lister")
SUBSCRIBERS = ("subscriber", "subscriber")


class Player:
    """One process, started again when it was killed."""

    def __init__(self, root: Path, number: int, role: str) -> None:
        self.role = role
        self.notes = root.with_name(f"notes-{number}")
        self.notes.touch()
        self._root = root
        self._device = ("desk", "lap")[number % 2]
        self._number = number
        self._process: Process | None = None
        self.starts = 0

    async def start(self) -> None:
        self.starts += 1
        seed = str(1000 * self._number + self.starts)
        command = [sys.executable, "-W", "error", SOAKER, self.role, self._root, self._device, self.notes, seed]
        self._process = await asyncio.create_subprocess_exec(*map(str, command), stdout=PIPE, stderr=PIPE)
        if self.role == "subscriber":
            assert self._process.stdout is not None
            assert await self._process.stdout.readline() == b"ready\n", await self._process.communicate()

    async def kill(self) -> None:
        """Kill it as no process can prevent, unless it ended by itself, which is an error."""
        assert self._process is not None
        assert self._process.returncode is None, await self._process.communicate()
        self._process.kill()
        await self._process.communicate()

    async def end(self) -> None:
        """Wait for its end by itself."""
        assert self._process is not None
        async with asyncio.timeout(120):
            _, said = await self._process.communicate()
        assert self._process.returncode == 0, said.decode()

    async def clear_away(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.communicate()

    def noted(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.notes.read_bytes().splitlines()]


async def soak(root: Path, players: list[Player]) -> None:
    """Let all play, kill one now and then, and let all come to their end."""
    rng = random.Random(7)
    subscribers = [player for player in players if player.role == "subscriber"]
    writers = [player for player in players if player.role != "subscriber"]
    await asyncio.gather(*(player.start() for player in subscribers))
    await asyncio.gather(*(player.start() for player in writers))
    clock = asyncio.get_running_loop().time
    end = clock() + SECONDS
    while clock() < end:
        await asyncio.sleep(rng.random() * 0.6)
        player = rng.choice(players)
        # One that was told nothing yet would begin anew, and miss what came before.
        if player.role != "subscriber" or player.notes.stat().st_size:
            await player.kill()
            await player.start()
    Path(f"{root}.stop").touch()
    for player in writers:
        await player.end()
    async with SessionStorage(root, device="desk") as store:
        for node in await store.list_sessions(limit=None):
            entry = TranscriptEntry(session_id=node.session_id, session_key=node.session_key, role="user", content=END)
            await store.append_transcript_entry(entry)
    for player in subscribers:
        await player.end()


@pytest.mark.slow
async def test_what_many_killed_processes_did_is_kept_once_and_told_once(tmp_path: Path) -> None:
    root = tmp_path / "store"
    async with SessionStorage(root, device="desk") as store:
        for key in KEYS:
            await store.create_session(SessionNode(session_key=key))
    players = [Player(root, number, role) for number, role in enumerate((*WRITERS, *SUBSCRIBERS))]
    try:
        await soak(root, players)
    finally:
        for player in players:
            await player.clear_away()
    noted = {player: player.noted() for player in players}
    acknowledged = [line for player in players if player.role in ("appender", "brancher") for line in noted[player]]
    assert acknowledged
    assert [line for player in players if player.role == "lister" for line in noted[player]] == []
    first, second = (noted[player] for player in players if player.role == "subscriber")
    async with SessionStorage(root, device="desk") as store:
        report = await store.verify()
        told = {
            node.session_key: told_by(follower_of(store, Position(), node.session_key))
            for node in await store.list_sessions(limit=None)
        }
    _kept_once(acknowledged, told)
    # Both were told the same, each of it once, and nothing that is there was passed over.
    assert _counted(first) == _counted(second)
    assert max(_counted(first).values()) == 1
    there = {(key, event.kind, about(event)) for key, events in told.items() for event in events}
    assert {what for what in there if what[1] == "appended"} <= _since(first, there)
    # A kill leaves at most a line that was begun, which the next append sets apart.
    assert report.ok, report.findings
    assert {found.kind for found in report.findings if found.severity != "info"} <= {TORN_TAIL, DAMAGED_LINE}


def _kept_once(acknowledged: list[dict[str, Any]], told: dict[str, Any]) -> None:
    epochs = {
        key: {event.entry.message_id: event.epoch for event in events if event.kind == "appended"}
        for key, events in told.items()
    }
    for key, events in told.items():
        assert len(epochs[key]) == sum(event.kind == "appended" for event in events)
    for line in acknowledged:
        # In the generation that its writer had read, and in no later one.
        assert epochs[line["key"]][line["message_id"]] == line["epoch"]


def _counted(lines: Iterable[dict[str, Any]]) -> Counter[tuple[str, ...]]:
    # Fields of a session are set again and again, and a summary is told anew when it changes.
    kinds = ("appended", "removed", "created", "reset", "gap", "pending")
    return Counter((line["key"], line["kind"], line["about"]) for line in lines if line["kind"] in kinds)


def _since(lines: Iterable[dict[str, Any]], there: set[tuple[str, str, str]]) -> set[tuple[str, str, str]]:
    return {(line["key"], line["kind"], line["about"]) for line in lines}
