"""What other processes delete, begin anew or edit while this one has the session open, or is reading it."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path

import pytest
from stores import KEY, entry, logs, records, said, say, stored

from squilla_files.deletions import Deletions
from squilla_files.devices import Devices
from squilla_files.errors import SessionNotFoundError
from squilla_files.files import DirEntryInfo, Files
from squilla_files.layout import Layout, session_dir_name
from squilla_files.models import SessionNode
from squilla_files.session import Session
from squilla_files.storage import SessionStorage

DEVICE = "desk"


class Meddling(Files):
    """The disk, on which somebody else does something, once, right before a log is opened or right after a listing."""

    def __init__(self) -> None:
        super().__init__("os")
        self.before_reading: Callable[[], object] | None = None
        self.after_listing: Callable[[], object] | None = None
        self.closed = ""

    def open_read(self, path: str) -> int:
        if self.closed and self.closed in path:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        if self.before_reading is not None and path.endswith(".jsonl"):
            act, self.before_reading = self.before_reading, None
            act()
        return super().open_read(path)

    def scan(self, path: str) -> list[DirEntryInfo]:
        found = super().scan(path)
        if self.after_listing is not None and path.endswith(session_dir_name(KEY)):
            act, self.after_listing = self.after_listing, None
            act()
        return found


@pytest.fixture
def files() -> Meddling:
    return Meddling()


@pytest.fixture
async def store(root: Path, files: Meddling) -> AsyncIterator[SessionStorage]:
    async with SessionStorage(root, device=DEVICE, files=files) as opened:
        yield opened


def session_of(files: Files, root: Path) -> Session:
    paths = Layout(str(root))
    return Session(files, paths, Deletions(files, paths), Devices(files, paths, DEVICE), KEY)


def delete(root: Path) -> None:
    """Delete the session as another process of this device does."""
    session = session_of(Files("os"), root)
    session.refresh()
    assert session.delete()


def begin_anew(root: Path) -> None:
    """Delete the session, and create it again, as another process of this device does."""
    session = session_of(Files("os"), root)
    session.refresh()
    assert session.delete()
    session.create(SessionNode(session_key=KEY, session_id="second"))
    session.close()


async def test_a_session_that_is_deleted_while_it_is_read_is_not_found(
    root: Path, files: Meddling, store: SessionStorage, node: SessionNode
) -> None:
    await say(store, node, "one", "two")
    files.before_reading = lambda: delete(root)
    with pytest.raises(SessionNotFoundError):
        await store.read_entries(KEY)


async def test_a_session_that_is_deleted_while_it_is_searched_hides_no_other(
    root: Path, files: Meddling, store: SessionStorage, node: SessionNode
) -> None:
    other = await store.upsert_session(SessionNode(session_key="agent:main:other"))
    await say(store, node, "a word")
    await say(store, other, "the word")
    await store.list_sessions()
    files.before_reading = lambda: delete(root)
    assert [hit["session_key"] for hit in await store.search_transcript("word")] == ["agent:main:other"]


async def test_a_session_that_is_begun_anew_while_it_is_read_is_the_new_one(
    root: Path, files: Meddling, store: SessionStorage, node: SessionNode
) -> None:
    await say(store, node, "one", "two")
    files.before_reading = lambda: begin_anew(root)
    assert await store.read_entries(KEY) == []
    assert (await stored(store)).session_id == "second"


async def test_a_session_that_is_deleted_while_it_is_told_is_no_damage(
    root: Path, files: Meddling, store: SessionStorage, node: SessionNode
) -> None:
    kinds: list[str] = []
    async with aclosing(store.watch()) as events:
        step = asyncio.ensure_future(anext(events))
        await store.list_sessions()
        files.before_reading = lambda: delete(root)
        await say(store, node, "one")
        while "deleted" not in kinds:
            kinds.append((await asyncio.wait_for(step, 30)).kind)
            step = asyncio.ensure_future(anext(events))
        step.cancel()
        await asyncio.wait([step])
    assert "damage" not in kinds


async def test_a_session_that_comes_and_cannot_be_read_is_told_as_damage_and_ends_no_watch(
    root: Path, files: Meddling, store: SessionStorage, node: SessionNode
) -> None:
    other = "agent:main:other"
    files.closed = session_dir_name(other)
    async with aclosing(store.watch()) as events:
        step = asyncio.ensure_future(anext(events))
        await store.list_sessions()
        async with SessionStorage(root, device=DEVICE) as writer:
            await writer.upsert_session(SessionNode(session_key=other))
        event = await asyncio.wait_for(step, 30)
        assert event.kind == "damage"
        assert event.finding.kind == "unreadable"
        assert event.finding.path == f"sessions/{files.closed}"
        await say(store, node, "of the one that can be read")
        kinds = [(await asyncio.wait_for(anext(events), 30)).session_key]
        assert kinds == [KEY]


def test_a_log_that_was_deleted_between_listing_and_reading_is_not_written_to(root: Path) -> None:
    files = Meddling()
    session = session_of(files, root)
    session.refresh()
    session.create(SessionNode(session_key=KEY, session_id="first"))
    session.dir.relist()
    files.after_listing = lambda: delete(root)
    session.refresh()
    assert not session.timeline.exists
    assert session.create(SessionNode(session_key=KEY, session_id="second")).session_id == "second"
    session.close()


async def test_a_device_keeps_its_name_where_another_process_begins_the_session_anew(
    root: Path, store: SessionStorage, node: SessionNode
) -> None:
    await say(store, node, "of the first")
    await asyncio.to_thread(begin_anew, root)
    await say(store, await stored(store), "of the second")
    assert await said(store, "second") == ["of the second"]
    assert {line["device"] for line in records(root) if line["type"] == "log"} == {DEVICE}
    assert len(logs(root)) == 1


async def test_a_device_keeps_its_name_where_who_deleted_the_session_died_before_forgetting_it(
    root: Path, store: SessionStorage, node: SessionNode
) -> None:
    await say(store, node, "of the first")
    await store.close()
    memory = next((root / ".local" / "memory").rglob("*.json"))
    remembered = memory.read_bytes()
    await asyncio.to_thread(delete, root)
    memory.write_bytes(remembered)
    await store.connect()
    again = await store.upsert_session(SessionNode(session_key=KEY))
    await say(store, again, "of the second")
    assert {line["device"] for line in records(root) if line["type"] == "log"} == {DEVICE}


async def test_an_edit_in_place_that_damages_a_line_costs_that_line_only(
    root: Path, store: SessionStorage, node: SessionNode
) -> None:
    await say(store, node, "first", "second", "third")
    (log,) = logs(root)
    data = log.read_bytes()
    with log.open("r+b") as file:
        file.write(data.replace(b'"second"', b'"sec\xff\xfed"'))
    assert await said(store, node.session_id) == ["first", "third"]
    assert [found.kind for found in (await store.verify(KEY)).findings if found.severity != "info"] == ["damaged_line"]


async def test_an_edit_in_place_that_shows_in_no_time_stamp_costs_that_line_only(
    root: Path, store: SessionStorage, node: SessionNode
) -> None:
    await say(store, node, "first", "second", "third")
    (log,) = logs(root)
    data = log.read_bytes()
    with log.open("r+b") as file:
        file.write(data.replace(b'"second"', b'"sec\xff\xfed"') + data[data.rfind(b"\n", 0, -1) + 1 :])
    assert await said(store, node.session_id) == ["first", "third"]


async def test_a_log_that_an_edit_gives_to_another_session_is_not_written_to(
    root: Path, store: SessionStorage, node: SessionNode
) -> None:
    await say(store, node, "first")
    (log,) = logs(root)
    data = log.read_bytes()
    with log.open("r+b") as file:
        file.write(data.replace(b'"session_key":"agent:main:main"', b'"session_key":"agent:main:evil"'))
    with pytest.raises(SessionNotFoundError):
        await store.append_entry(KEY, entry(node, "second"))
    assert b"second" not in log.read_bytes()
