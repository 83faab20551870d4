"""One of the processes of a soak: it works on the sessions of a store until a file named ``stop`` lies beside it.

    python soaker.py ROLE ROOT DEVICE NOTES SEED

What a role was told was done, or saw, it adds line by line to the file NOTES. It may be killed at any moment.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

from squilla_files.commits import CompactionCommit
from squilla_files.errors import SessionExistsError, SessionNotFoundError, StaleEpochError, StalePreimageError
from squilla_files.events import Event
from squilla_files.models import SessionNode, SessionSummary, TranscriptEntry, new_id
from squilla_files.storage import SessionStorage

KEYS = [f"agent:main:soak-{number}" for number in range(3)]
END = "the end"


class Soaker:
    """What all roles have."""

    def __init__(self, store: SessionStorage, notes: Path, rng: random.Random) -> None:
        self.store = store
        self.rng = rng
        self._stop = Path(f"{store.root}.stop")
        self._notes = os.open(notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def note(self, **said: Any) -> None:
        """Add a line: one call, so that a kill leaves it whole or not there."""
        os.write(self._notes, json.dumps(said).encode() + b"\n")

    def goes_on(self) -> bool:
        """Whether there is no file that says stop."""
        return not self._stop.exists()

    async def session(self) -> SessionNode:
        """Return one of the sessions, or one of their forks."""
        listed = await self.store.list_sessions(limit=None)
        return self.rng.choice(listed)

    async def append(self, node: SessionNode, content: str) -> None:
        """Append to a session as it was read, and note what was acknowledged; a stale writer is refused."""
        entry = TranscriptEntry(
            session_id=node.session_id, session_key=node.session_key, role="user", content=content, message_id=new_id()
        )
        try:
            await self.store.append_transcript_entry(entry, expected_epoch=node.epoch)
        except StaleEpochError:
            return
        self.note(key=node.session_key, epoch=node.epoch, message_id=entry.message_id)


async def appender(soaker: Soaker) -> None:
    """Append, often with a session that was read a while ago."""
    number = 0
    while soaker.goes_on():
        node = await soaker.session()
        await asyncio.sleep(soaker.rng.random() * 0.01)
        await asyncio.gather(*(soaker.append(node, f"{os.getpid()} {number} {each} 😀" * 20) for each in range(5)))
        number += 1


async def compactor(soaker: Soaker) -> None:
    """Compact and truncate."""
    while soaker.goes_on():
        node = await soaker.session()
        read = await soaker.store.snapshot(node.session_key)
        kept = [entry.message_id for entry in read.entries[len(read.entries) // 2 :]]
        summary = SessionSummary(session_id=read.node.session_id, session_key=node.session_key, summary_text="so far")
        commit = CompactionCommit(
            preimage=[entry.message_id for entry in read.entries],
            keep_appended=True,
            expected_epoch=read.node.epoch,
            kept=kept,
            summary=summary,
        )
        try:
            await soaker.store.commit_compaction(node.session_key, commit)
            await soaker.store.truncate_session(node.session_key, 30)
        except (StaleEpochError, StalePreimageError):
            continue
        await asyncio.sleep(0.02)


async def resetter(soaker: Soaker) -> None:
    """Reset now and then."""
    while soaker.goes_on():
        await asyncio.sleep(soaker.rng.random() * 0.4)
        node = await soaker.session()
        await soaker.store.reset_session(node.session_key, reason="soak")


async def brancher(soaker: Soaker) -> None:
    """Fork, and append to the fork."""
    while soaker.goes_on():
        node = await soaker.session()
        child = SessionNode(session_key=f"{KEYS[0]}:thread:{soaker.rng.randrange(6)}")
        try:
            made = await soaker.store.branch_session(node.session_key, child, entries="live")
        except SessionExistsError:
            made = await soaker.session()
        await soaker.append(made, f"{os.getpid()} in a fork")
        await asyncio.sleep(0.05)


async def lister(soaker: Soaker) -> None:
    """Read, and see that no transcript holds anything twice or anything archived."""
    while soaker.goes_on():
        for node in await soaker.store.list_sessions(limit=None):
            try:
                canonical = await soaker.store.read_entries(node.session_key, canonical=True)
            except SessionNotFoundError:
                continue
            ids = [entry.message_id for entry in canonical]
            if len(ids) != len(set(ids)):
                soaker.note(wrong=f"{node.session_key} holds a message twice")


def about(event: Event) -> str:
    """Return what an event is about, so that two can be compared."""
    match event.kind:
        case "appended":
            return event.entry.message_id
        case "removed":
            return event.message_id
        case "compacted":
            return str(event.summary.id if event.summary is not None else None)
        case "created" | "updated":
            return ",".join(sorted(event.fields))
        case "reset":
            return f"{event.old_epoch}"
        case "damage" | "conflict":
            return f"{event.finding.kind} {event.finding.path} {event.finding.offset}"
        case _:
            return ""


async def subscriber(soaker: Soaker, notes: Path) -> None:
    """Note every event, going on behind the last one that was noted, until each session said that it is the end."""
    noted = [json.loads(line) for line in notes.read_bytes().splitlines()]
    ended = {line["key"] for line in noted if line.get("end")}
    after = noted[-1]["cursor"] if noted else None
    async with aclosing(soaker.store.watch(after=after)) as events:
        step = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0)
        await soaker.store.list_sessions()
        print("ready", flush=True)
        while True:
            event = await step
            is_end = event.kind == "appended" and event.entry.content == END
            soaker.note(
                kind=event.kind, key=event.session_key, epoch=event.epoch, about=about(event), cursor=event.cursor,
                end=is_end,
            )  # fmt: skip
            ended.update({event.session_key} if is_end else ())
            if not soaker.goes_on() and ended == {n.session_key for n in await soaker.store.list_sessions(limit=None)}:
                return
            step = asyncio.ensure_future(anext(events))


ROLES: dict[str, Callable[[Soaker], Awaitable[None]]] = {
    role.__name__: role for role in (appender, compactor, resetter, brancher, lister)
}


async def main(role: str, root: str, device: str, notes: Path, seed: int) -> None:
    """Play one role."""
    async with SessionStorage(root, device=device, durability="os", lock_timeout=60.0) as store:
        soaker = Soaker(store, notes, random.Random(seed))
        await (ROLES[role](soaker) if role in ROLES else subscriber(soaker, notes))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4], Path(sys.argv[4]), int(sys.argv[5])))
