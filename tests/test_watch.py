"""Iterations over changes: when they begin and end, who is told what, and what they leave behind."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import os
import shutil
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from faulty_files import FaultyFiles
from followed import KEY, Collected, briefs, following, said
from stores import entry, say, summary, tree
from written import head, message

from squilla_files import feeds, notifying, wakeups
from squilla_files import watch as watch_module
from squilla_files.commits import CompactionCommit
from squilla_files.errors import InvalidCursorError, InvalidKeyError, StoreClosedError
from squilla_files.events import Event
from squilla_files.files import DirEntryInfo, Files
from squilla_files.layout import session_dir_name
from squilla_files.manager import SessionManager
from squilla_files.models import SessionNode
from squilla_files.notifying import make_watcher, network_file_system
from squilla_files.storage import SessionStorage
from squilla_files.watch import Watching

OTHER_KEY = "agent:main:other"


@pytest.fixture
async def store(root: Path) -> AsyncIterator[SessionStorage]:
    async with SessionStorage(root, device="desk") as opened:
        yield opened


@pytest.fixture
async def other(root: Path) -> AsyncIterator[SessionStorage]:
    """Another store object on the same root: nothing passes between the two but by the disk."""
    async with SessionStorage(root, device="lap") as opened:
        yield opened


@pytest.fixture
async def node(store: SessionStorage) -> SessionNode:
    return await store.create_session(SessionNode(session_key=KEY))


class Silent:
    """A watcher of the file system that reports nothing."""

    made: list[Silent]

    def __init__(self, paths: list[str]) -> None:
        self.paths = paths
        self.is_closed = False

    def watch(self, debounce_ms: int, step_ms: int, timeout_ms: int, stop_event: threading.Event) -> str:
        stop_event.wait()
        return "stop"

    def close(self) -> None:
        self.is_closed = True


def use_watcher(monkeypatch: pytest.MonkeyPatch, make: Any) -> None:
    """Have stores watch the file system with what *make* makes."""

    class Prepared(Watching):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given, make)

    monkeypatch.setattr("squilla_files.store_events.Watching", Prepared)


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> list[Silent]:
    made: list[Silent] = []

    def make(paths: list[str]) -> Silent:
        made.append(Silent(paths))
        return made[-1]

    use_watcher(monkeypatch, make)
    return made


def watch_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "squilla-files-watch"]


async def noticed(store: SessionStorage) -> None:
    """Wait until every iteration has begun, and changes of others are noticed."""
    assert store._watching is not None
    await store._begun(None)
    await store._watching.wakeups.ready()


# --- where it begins -------------------------------------------------------------------------------------------------


async def test_what_is_committed_right_after_the_first_step_is_told_and_nothing_before(
    store: SessionStorage, node: SessionNode
) -> None:
    await say(store, node, "before")
    for key in (KEY, None):
        events = store.watch(key)
        first = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0)
        await say(store, node, f"after {key}")
        assert said([await first]) == [f"after {key}"]
        await events.aclose()


async def test_who_reads_after_the_first_step_misses_nothing_that_comes_then(
    store: SessionStorage, other: SessionStorage, node: SessionNode
) -> None:
    for number in range(20):
        async with following(store) as collected:
            assert await store.count_transcript_entries(node.session_id) == number
            await say(other, node, number)
            assert said(await collected.count(1)) == [number]


async def test_a_session_that_does_not_exist_yet_may_be_watched_and_nothing_is_made(
    root: Path, store: SessionStorage
) -> None:
    async with following(store) as one, following(store, None) as whole:
        await noticed(store)
        assert not root.exists()
        node = await store.create_session(SessionNode(session_key=KEY))
        await say(store, node, "hello")
        for collected in (one, whole):
            kinds = [event.kind for event in await collected.count(2)]
            assert kinds == ["created", "appended"]


async def test_watching_changes_nothing_in_the_store(root: Path, store: SessionStorage, node: SessionNode) -> None:
    await say(store, node, "a")
    await store.close()
    before = tree(root, stamps=True)
    async with SessionStorage(root, device="desk") as again, following(again), following(again, None):
        await noticed(again)
        await again.list_sessions()
    assert tree(root, stamps=True) == before


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [KEY, None])
@pytest.mark.parametrize("cursor", ["", "nonsense", "AAAA", 7])
async def test_a_malformed_cursor_is_refused_at_the_first_step(
    store: SessionStorage, key: str | None, cursor: Any
) -> None:
    with pytest.raises(InvalidCursorError):
        await anext(store.watch(key, after=cursor))
    assert not watch_threads()


async def test_a_cursor_of_another_store_session_or_kind_is_refused(
    tmp_path: Path, store: SessionStorage, node: SessionNode
) -> None:
    async with following(store) as one, following(store, None) as whole:
        await say(store, node, "a")
        of_session, of_store = (await one.count(1))[0].cursor, (await whole.count(1))[0].cursor
    async with SessionStorage(tmp_path / "elsewhere") as elsewhere:
        for key, cursor in ((KEY, of_session), (None, of_store)):
            with pytest.raises(InvalidCursorError, match="another store"):
                await anext(elsewhere.watch(key, after=cursor))
    for wrong, cursor in ((OTHER_KEY, of_session), (None, of_session), (KEY, of_store)):
        with pytest.raises(InvalidCursorError):
            await anext(store.watch(wrong, after=cursor))


@pytest.mark.parametrize("key", ["", "x" * 513, "a\0b"])
async def test_a_key_that_no_session_can_have_is_refused(store: SessionStorage, key: str) -> None:
    with pytest.raises(InvalidKeyError):
        await anext(store.watch(key))


async def test_a_store_that_is_not_open_cannot_be_watched(root: Path) -> None:
    with pytest.raises(StoreClosedError):
        await anext(SessionStorage(root).watch(KEY))


async def test_a_key_is_made_canonical(store: SessionStorage, node: SessionNode) -> None:
    async with following(store, f"  {KEY} ") as collected:
        await say(store, node, "a")
        assert said(await collected.count(1)) == ["a"]


# --- in this process -------------------------------------------------------------------------------------------------


async def test_commits_of_this_process_are_told_without_the_file_system(
    silent: list[Silent], monkeypatch: pytest.MonkeyPatch, store: SessionStorage, node: SessionNode
) -> None:
    monkeypatch.setattr(wakeups, "_LOOK_S", 3600.0)
    async with following(store) as one, following(store, None) as whole:
        await noticed(store)
        await say(store, node, *range(5))
        for collected in (one, whole):
            assert said(await collected.count(5)) == list(range(5))


async def test_a_burst_is_told_once_and_in_order(store: SessionStorage, node: SessionNode) -> None:
    async with following(store) as one, following(store, None) as whole:
        await asyncio.gather(*(say(store, node, number) for number in range(600)))
        told = [said(await collected.count(600)) for collected in (one, whole)]
    assert told == [[e.content for e in await store.get_transcript(node.session_id)]] * 2


async def test_many_subscribers_of_one_session_share_the_work(root: Path) -> None:
    files = FaultyFiles("os")

    async def calls_for(count: int) -> int:
        async with SessionStorage(root / str(count), device="desk", files=files) as store:
            node = await store.create_session(SessionNode(session_key=KEY))
            collected = [Collected(store.watch(KEY)) for _ in range(count)]
            await asyncio.sleep(0)
            await say(store, node, "first")
            for each in collected:
                await each.count(1)
            before = len(files.calls)
            await say(store, node, "second")
            for each in collected:
                await each.count(2)
            return len(files.calls) - before

    assert await calls_for(100) <= 20 * await calls_for(1)


async def test_a_deletion_does_not_swallow_what_came_just_before_it(store: SessionStorage, node: SessionNode) -> None:
    async with following(store) as one, following(store, None) as whole:
        for turn in range(5):
            present = await store.get_session(KEY) or await store.create_session(SessionNode(session_key=KEY))
            await say(store, present, turn)
            await store.delete_session(KEY)
        for collected in (one, whole):
            events = await collected.until(lambda events: briefs(events).count("deleted") == 5)
            assert said(events) == list(range(5))
            assert "gap" not in briefs(events)


# --- other processes -------------------------------------------------------------------------------------------------


async def test_what_another_store_object_writes_is_told(
    store: SessionStorage, other: SessionStorage, node: SessionNode
) -> None:
    async with following(store) as one, following(store, None) as whole:
        await noticed(store)
        await say(other, node, *"abc")
        await other.commit_compaction(KEY, CompactionCommit(preimage=None, kept=(), summary=summary(node, "s")))
        await say(other, node, "d")
        await other.reset_session(KEY, reason="test")
        # What nobody here has read when another process deletes it cannot be told: that is a gap.
        for collected in (one, whole):
            await collected.until(lambda events: events and events[-1].kind == "reset")
        await other.delete_session(KEY)
        for collected in (one, whole):
            events = await collected.until(lambda events: events and events[-1].kind == "deleted")
            assert briefs(events) == [
                "appended a", "appended b", "appended c", "compacted s", "appended d", "reset", "deleted",
            ]  # fmt: skip


async def test_a_session_that_arrives_by_rename_is_told_whole(
    tmp_path: Path, store: SessionStorage, node: SessionNode
) -> None:
    async with SessionStorage(tmp_path / "elsewhere", device="far") as elsewhere:
        far = await elsewhere.create_session(SessionNode(session_key=OTHER_KEY))
        await say(elsewhere, far, *"abc")
        made = Path(elsewhere.root, "sessions", session_dir_name(OTHER_KEY))
    async with following(store, OTHER_KEY) as one, following(store, None) as whole:
        await noticed(store)
        made.rename(Path(store.root, "sessions", made.name))
        for collected in (one, whole):
            assert [event.kind for event in await collected.count(4)] == ["created", *["appended"] * 3]
            assert {event.session_key for event in collected.events} == {OTHER_KEY}


async def test_files_that_are_made_together_with_their_directory_are_told(
    store: SessionStorage, other: SessionStorage, node: SessionNode
) -> None:
    async with following(store, None) as whole:
        await noticed(store)
        keys = [f"agent:main:new-{number}" for number in range(30)]
        for key in keys:
            made = await other.create_session(SessionNode(session_key=key))
            await other.append_transcript_entry(entry(made, key))
        told = [(event.session_key, event.kind) for event in await whole.count(60)]
        # In the order of each log; sessions come in the order in which they are found.
        assert sorted(told) == sorted((key, kind) for key in keys for kind in ("created", "appended"))
        assert all(told.index((key, "created")) < told.index((key, "appended")) for key in keys)


async def test_a_session_that_is_older_than_the_watch_is_told_from_there_on(
    store: SessionStorage, other: SessionStorage, node: SessionNode
) -> None:
    await say(store, node, "old", "older")
    await store.truncate_session(KEY, 1)
    async with following(other, None) as whole:
        await noticed(other)
        await other.list_sessions()
        await say(store, node, "new")
        assert briefs(await whole.count(1)) == ["appended new"]


async def test_what_the_file_system_does_not_report_is_found_by_looking(
    silent: list[Silent],
    monkeypatch: pytest.MonkeyPatch,
    store: SessionStorage,
    other: SessionStorage,
    node: SessionNode,
) -> None:
    monkeypatch.setattr(wakeups, "_LOOK_S", 0.01)
    monkeypatch.setattr(wakeups, "_LOOK_SHARE", 1)
    async with following(store) as one, following(store, None) as whole:
        await noticed(store)
        assert silent
        await say(other, node, "a")
        made = await other.create_session(SessionNode(session_key=OTHER_KEY))
        await other.append_transcript_entry(entry(made, "b"))
        assert said(await one.count(1)) == ["a"]
        assert said(await whole.to_say("a", "b")) == ["a", "b"]


async def test_reports_that_are_merged_or_about_nothing_do_no_harm(
    monkeypatch: pytest.MonkeyPatch, store: SessionStorage, other: SessionStorage, node: SessionNode
) -> None:
    async with following(store) as one:
        await noticed(store)
        watching = store._watching
        assert watching is not None
        sessions = Path(store.root, "sessions")
        strange = [sessions, sessions / "x", "/elsewhere", sessions / session_dir_name(KEY) / "gone.jsonl", "", "a\nb"]
        watching.wakeups._reported([str(path) for path in strange])
        await say(other, node, "a")
        watching.wakeups._reported([str(sessions / session_dir_name(KEY))] * 50)
        await say(other, node, "b")
        assert said(await one.count(2)) == ["a", "b"]


async def test_a_store_that_is_made_after_the_watch_began_is_watched(root: Path, store: SessionStorage) -> None:
    async with following(store) as one:
        await noticed(store)
        async with SessionStorage(root, device="lap") as late:
            node = await late.create_session(SessionNode(session_key=KEY))
            await say(late, node, "a")
            assert said(await one.count(2)) == ["a"]


async def test_a_deletion_that_a_service_brings_is_told(
    tmp_path: Path, store: SessionStorage, node: SessionNode
) -> None:
    await say(store, node, "a")
    await store.close()
    copy = tmp_path / "copy"
    shutil.copytree(store.root, copy)
    async with SessionStorage(copy, device="far") as far:
        await far.delete_session(KEY)
    async with SessionStorage(store.root, device="desk") as again, following(again) as one:
        await noticed(again)
        shutil.copytree(copy / "deleted", Path(again.root, "deleted"))
        assert briefs(await one.count(1)) == ["deleted"]


# --- where the file system cannot be watched -------------------------------------------------------------------------


@pytest.mark.parametrize("error", [OSError(28, "no space left: watches"), notifying.WatchfilesRustInternalError("no")])
async def test_without_watches_it_looks_by_itself_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    store: SessionStorage,
    other: SessionStorage,
    node: SessionNode,
    error: Exception,
) -> None:
    def fail(paths: list[str]) -> Any:
        raise error

    use_watcher(monkeypatch, fail)
    with caplog.at_level(logging.WARNING, logger="squilla_files"):
        async with following(store) as one, following(store, None) as whole:
            await noticed(store)
            await say(other, node, "a")
            made = await other.create_session(SessionNode(session_key=OTHER_KEY))
            await other.append_transcript_entry(entry(made, "b"))
            assert said(await one.count(1)) == ["a"]
            assert said(await whole.to_say("b")) == ["a", "b"]
    (line,) = caplog.messages
    assert str(error) in line
    assert str(store.root) in line


async def test_when_watches_run_out_later_it_looks_by_itself(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    store: SessionStorage,
    other: SessionStorage,
    node: SessionNode,
) -> None:
    def make(paths: list[str]) -> Any:
        if session_dir_name(OTHER_KEY) in paths[0]:
            raise OSError(28, "no watches left")
        return make_watcher(paths)

    monkeypatch.setattr(wakeups, "_PROBE_S", 0.0)
    use_watcher(monkeypatch, make)
    async with following(store, None) as whole:
        await noticed(store)
        made = await other.create_session(SessionNode(session_key=OTHER_KEY))
        await whole.count(1)
        watching = store._watching
        assert watching is not None
        async with asyncio.timeout(30):
            while watching.wakeups.is_polling is None:  # noqa: ASYNC110
                await asyncio.sleep(0)
        await other.append_transcript_entry(entry(made, "b"))
        assert said(await whole.to_say("b")) == ["b"]
    assert "no watches left" in caplog.text


def test_a_directory_that_nobody_may_read_does_not_keep_the_rest_from_being_watched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[bool] = []

    def refuse(*given: Any) -> str:
        asked.append(given[-1])
        if not given[-1]:
            raise PermissionError(13, "no")
        return "watcher"

    monkeypatch.setattr(notifying, "RustNotify", refuse)
    assert make_watcher(["/x"]) == "watcher"  # type: ignore[comparison-overlap]
    assert asked == [False, True]


async def test_a_watch_that_fails_later_is_replaced_by_looking(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    store: SessionStorage,
    other: SessionStorage,
    node: SessionNode,
) -> None:
    fail = threading.Event()

    class Failing(Silent):
        def watch(self, debounce_ms: int, step_ms: int, timeout_ms: int, stop_event: threading.Event) -> str:
            fail.wait()
            raise notifying.WatchfilesRustInternalError("the queue is gone")

    use_watcher(monkeypatch, Failing)
    async with following(store) as one:
        await noticed(store)
        fail.set()
        await say(other, node, "a")
        assert said(await one.count(1)) == ["a"]
        watching = store._watching
        assert watching is not None
        async with asyncio.timeout(30):
            while watching.wakeups.is_polling is None:  # noqa: ASYNC110
                await asyncio.sleep(0)
        await say(other, node, "b")
        assert said(await one.count(2)) == ["a", "b"]
    assert "the queue is gone" in caplog.text


async def test_a_network_file_system_is_not_relied_upon(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    store: SessionStorage,
    other: SessionStorage,
    node: SessionNode,
) -> None:
    monkeypatch.setattr(wakeups, "network_file_system", lambda path: "nfs4")
    use_watcher(monkeypatch, lambda paths: pytest.fail("it was watched"))
    async with following(store) as one:
        await noticed(store)
        await say(other, node, "a")
        assert said(await one.count(1)) == ["a"]
    assert "nfs4" in caplog.text


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/me/store", None),
        ("/mnt/share/store", "nfs4"),
        ("/mnt/sharer/store", None),
        ("/mnt/share/local/store", None),
        ("/mnt/with space/store", "cifs"),
    ],
)
def test_the_mount_with_the_longest_path_says_what_file_system_it_is(
    tmp_path: Path, path: str, kind: str | None
) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "22 1 0:20 / / rw - ext4 /dev/sda rw\n"
        "23 22 0:21 / /mnt/share rw shared:1 - nfs4 host:/share rw\n"
        "24 23 0:22 / /mnt/share/local rw - ext4 /dev/sdb rw\n"
        "25 22 0:23 / /mnt/with\\040space rw - cifs //host/share rw\n"
        "nonsense\n"
    )
    assert network_file_system(path, str(mounts)) == kind
    assert network_file_system(path, str(tmp_path / "none")) is None


def test_a_quiet_watch_is_looked_at_less_often() -> None:
    steps: list[int] = []

    class Counting(Silent):
        def watch(self, debounce_ms: int, step_ms: int, timeout_ms: int, stop_event: threading.Event) -> Any:
            steps.append(step_ms)
            if len(steps) == 8:
                return {(2, "/x")}
            return "stop" if len(steps) == 10 else "timeout"

    async def run() -> None:
        told: list[str] = []
        notifier = notifying.Notifier([], told.extend, Counting)
        await notifier.join()
        assert told == ["/x"]

    asyncio.run(run())
    assert steps[0] == steps[8] < steps[7]


# --- slow ones -------------------------------------------------------------------------------------------------------


async def test_a_subscriber_that_lags_is_told_from_the_files(
    monkeypatch: pytest.MonkeyPatch, store: SessionStorage, node: SessionNode
) -> None:
    monkeypatch.setattr(feeds, "_BATCHES", 2)
    monkeypatch.setattr(feeds, "_FOLLOWERS", 1)
    for key in (KEY, None):
        slow = store.watch(key)
        first = asyncio.ensure_future(anext(slow))
        await asyncio.sleep(0)
        async with following(store, key) as quick:
            contents = [f"{key} {number}" for number in range(60)]
            for content in contents:
                await say(store, node, content)
                await quick.to_say(content)
        told = [await first]
        told += [await anext(slow) for _ in range(59)]
        assert said(told) == contents
        await slow.aclose()


async def test_what_is_kept_for_slow_subscribers_is_bounded(store: SessionStorage, node: SessionNode) -> None:
    slow = store.watch(KEY)
    first = asyncio.ensure_future(anext(slow))
    await asyncio.sleep(0)
    async with following(store) as quick:
        for number in range(150):
            await say(store, node, f"{number} {'x' * 60_000}")
            await quick.count(number + 1)
            quick.events[number] = quick.events[0]
        watching = store._watching
        assert watching is not None
        feed = watching._feed(KEY)
        assert len(feed._batches) <= feeds._BATCHES
        assert sum(batch.size for batch in feed._batches.values()) <= feeds._REMEMBERED_BYTES
        assert len(feed._followers) <= feeds._FOLLOWERS
    told = [await first]
    told += [await anext(slow) for _ in range(149)]
    assert [text.split()[0] for text in said(told)] == [str(number) for number in range(150)]
    await slow.aclose()


async def test_feeds_that_nobody_uses_are_forgotten(monkeypatch: pytest.MonkeyPatch, store: SessionStorage) -> None:
    monkeypatch.setattr(watch_module, "_FEEDS", 3)
    async with following(store, None) as whole:
        for turn in range(2):
            for number in range(8):
                key = f"agent:main:{number}"
                node = await store.get_session(key) or await store.create_session(SessionNode(session_key=key))
                await store.append_transcript_entry(entry(node, f"{turn} {number}"))
                await whole.to_say(f"{turn} {number}")
        watching = store._watching
        assert watching is not None
        assert len(watching._feeds) <= 3
    assert len(said(whole.events)) == len(set(said(whole.events))) == 16


# --- ends ------------------------------------------------------------------------------------------------------------


async def test_cancelling_one_ends_it_at_once_and_leaves_the_others(store: SessionStorage, node: SessionNode) -> None:
    async with following(store) as stays, following(store, None) as whole:
        async with following(store) as ends:
            pass
        assert ends.task.cancelled()
        await say(store, node, "a")
        assert said(await stays.count(1)) == said(await whole.count(1)) == ["a"]
        assert ends.events == []


async def test_closing_one_between_two_events_ends_it(store: SessionStorage, node: SessionNode) -> None:
    events = store.watch(KEY)
    first = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0)
    await say(store, node, *"abc")
    assert said([await first]) == ["a"]
    await events.aclose()
    with pytest.raises(StopAsyncIteration):
        await anext(events)


async def test_the_watch_ends_with_the_last_subscriber_and_begins_anew(
    silent: list[Silent], store: SessionStorage, node: SessionNode
) -> None:
    for turn in (1, 2):
        async with following(store), following(store, None):
            await noticed(store)
            assert len(silent) == turn
            assert not silent[-1].is_closed
        watching = store._watching
        assert watching is not None
        await watching.join()
        assert silent[-1].is_closed
        assert not watch_threads()


async def test_an_iteration_that_is_dropped_leaves_nothing(store: SessionStorage, node: SessionNode) -> None:
    async for _ in store.watch(KEY, after=await _cursor(store, node)):
        break
    gc.collect()
    watching = store._watching
    assert watching is not None
    async with asyncio.timeout(30):
        while watching.wakeups.subscribers():  # noqa: ASYNC110 - the collector closes it in its own time
            await asyncio.sleep(0)
    await watching.join()
    assert not watch_threads()


async def _cursor(store: SessionStorage, node: SessionNode, key: str | None = KEY) -> str:
    """Return a cursor behind which there is one more event."""
    async with following(store, key) as collected:
        await say(store, node, "one", "two")
        return (await collected.count(2))[0].cursor


async def test_closing_the_store_ends_all_and_leaves_no_thread(root: Path) -> None:
    before = set(threading.enumerate())
    store = await SessionStorage.open(root, device="desk")
    node = await store.create_session(SessionNode(session_key=KEY))
    collected = [Collected(store.watch(key)) for key in (KEY, KEY, None, None)]
    await asyncio.sleep(0)
    await say(store, node, "a")
    for each in collected:
        await each.count(1)
    await store.close()
    async with asyncio.timeout(30):
        for each in collected:
            await each.task
    left = {t for t in threading.enumerate() if t not in before and not t.name.startswith("asyncio")}
    assert left == set()


async def test_closing_the_store_ends_one_that_is_busy_with_an_event(root: Path) -> None:
    store = await SessionStorage.open(root, device="desk")
    node = await store.create_session(SessionNode(session_key=KEY))
    for key in (KEY, None):
        events = store.watch(key)
        first = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0)
        await say(store, node, *"ab")
        await first
        await store.close()
        with pytest.raises(StopAsyncIteration):
            await anext(events)
        await store.connect()
    await store.close()


async def test_closing_while_iterations_begin_ends_them(root: Path) -> None:
    for key in (KEY, None):
        store = await SessionStorage.open(root, device="desk")
        collected = Collected(store.watch(key))
        await asyncio.sleep(0)
        await store.close()
        async with asyncio.timeout(30):
            with suppress(StoreClosedError):
                await collected.task


async def test_a_store_that_is_opened_again_can_be_watched_again(root: Path) -> None:
    store = SessionStorage(root, device="desk")
    for turn in range(2):
        async with store, following(store) as collected:
            node = await store.get_session(KEY) or await store.create_session(SessionNode(session_key=KEY))
            await say(store, node, turn)
            assert said(await collected.to_say(turn)) == [turn]


async def test_a_memory_store_can_be_watched(tmp_path: Path) -> None:
    async with SessionStorage(":memory:") as store, following(store, None) as collected:
        node = await store.create_session(SessionNode(session_key=KEY))
        await say(store, node, "a")
        assert said(await collected.count(2)) == ["a"]


# --- errors ----------------------------------------------------------------------------------------------------------


async def test_a_session_that_cannot_be_read_ends_its_iteration_with_the_error(root: Path) -> None:
    files = FaultyFiles()
    async with SessionStorage(root, device="desk", files=files) as store:
        node = await store.create_session(SessionNode(session_key=KEY))
        async with following(store) as collected:
            await say(store, node, "a")
            last = (await collected.count(1))[-1].cursor
            files.fail_at(1, 5, sticky=True, matching=lambda call: call.name == "scan")
            (Path(store.root) / "sessions" / session_dir_name(KEY) / "new.jsonl").write_bytes(b"{}\n")
            with pytest.raises(AssertionError, match="Input/output error"):
                await collected.count(2)
            files.heal()
        await say(store, node, "b")
        async with following(store, after=last) as again:
            assert said(await again.count(1)) == ["b"]


async def test_in_a_watch_of_all_an_unreadable_session_is_damage_once_and_hides_no_other(
    root: Path, store: SessionStorage, node: SessionNode
) -> None:
    bad = Path(root, "sessions", session_dir_name(OTHER_KEY))
    async with following(store, None) as whole:
        await noticed(store)
        bad.mkdir()
        first = head("l1").replace(KEY.encode(), OTHER_KEY.encode())
        (bad / "transcript.x.000001.jsonl").write_bytes(first.replace(b'"format":1', b'"format":99') + message(1, "x"))
        events = await whole.until(lambda events: any(event.kind == "damage" for event in events))
        await say(store, node, "a")
        events = await whole.to_say("a")
        assert briefs(events) == ["damage unreadable", "appended a"]
        assert events[0].session_key == OTHER_KEY
        (bad / "transcript.x.000001.jsonl").write_bytes(first + message(1, "x"))
        assert said(await whole.to_say("x")) == ["a", "x"]


async def test_a_log_that_is_replaced_while_it_is_read_is_read_again(
    monkeypatch: pytest.MonkeyPatch, store: SessionStorage, node: SessionNode
) -> None:
    from squilla_files.errors import CorruptRecordError
    from squilla_files.session_dir import SessionDir

    real = SessionDir.entries
    failures = [1, 1]

    def flaky(self: SessionDir, records: Any) -> Any:
        if records and failures:
            failures.pop()
            raise CorruptRecordError("path", 0, "the line changed")
        return real(self, records)

    async with following(store) as one:
        await store.get_session(KEY)
        monkeypatch.setattr(SessionDir, "entries", flaky)
        await say(store, node, "a")
        assert said(await one.count(1)) == ["a"]
    assert failures == []


# --- cursors ---------------------------------------------------------------------------------------------------------


async def _history(store: SessionStorage) -> None:
    """Do something of everything to two sessions."""
    node = await store.create_session(SessionNode(session_key=KEY))
    side = await store.create_session(SessionNode(session_key=OTHER_KEY))
    await say(store, node, *"ab")
    await store.append_transcript_entry(entry(side, "side"))
    await store.append_entry(KEY, entry(node, "c"), counters={"total_tokens": 1})
    await store.commit_compaction(KEY, CompactionCommit(preimage=None, kept=(), summary=summary(node, "s")))
    node = await store.reset_session(KEY, reason="test")
    await say(store, node, *"de")
    await store.truncate_session(KEY, 1)
    await store.update_session(OTHER_KEY, {"label": "x"})
    await say(store, node, "f")


@pytest.mark.parametrize("key", [KEY, None])
async def test_every_cursor_resumes_after_a_restart_without_gap_or_repetition(root: Path, key: str | None) -> None:
    async with SessionStorage(root, device="desk") as store, following(store, key) as collected:
        await _history(store)
        events = list(await collected.to_say("f"))
    told = briefs(events)
    for number, event in enumerate(events[:-1], 1):
        async with SessionStorage(root, device="desk") as again, following(again, key, after=event.cursor) as rest:
            await rest.count(len(events) - number)
            await again.list_sessions()
            got = briefs(rest.events)
        # Sessions come one after another when a watch of all is resumed: the order in each is what counts.
        assert sorted(got) == sorted(told[number:])
        if key is not None:
            assert got == told[number:]


async def test_a_watch_of_all_resumes_while_it_resumes(root: Path) -> None:
    async with SessionStorage(root, device="desk") as store, following(store, None) as collected:
        await _history(store)
        events = list(await collected.to_say("f"))
    told = [events[0]]
    for _ in range(len(events) - 1):
        async with SessionStorage(root, device="desk") as again, following(again, None, after=told[-1].cursor) as rest:
            told.append((await rest.count(1))[0])
    assert sorted(briefs(told)) == sorted(briefs(events))


async def test_what_came_while_nobody_watched_is_told_after_a_restart(root: Path) -> None:
    async with SessionStorage(root, device="desk") as store, following(store, None) as collected:
        node = await store.create_session(SessionNode(session_key=KEY))
        quiet = await store.create_session(SessionNode(session_key="agent:main:quiet"))
        cursor = (await collected.count(2))[-1].cursor
    async with SessionStorage(root, device="lap") as other:
        await say(other, node, "a")
        await other.append_transcript_entry(entry(quiet, "q"))
        new = await other.create_session(SessionNode(session_key=OTHER_KEY))
        await other.append_transcript_entry(entry(new, "n"))
    async with SessionStorage(root, device="desk") as store, following(store, None, after=cursor) as rest:
        assert sorted(said(await rest.to_say("a", "q", "n"))) == ["a", "n", "q"]
        await say(store, node, "b")
        assert said(await rest.to_say("b"))[-1] == "b"
        assert len(rest.events) == 5


async def test_sessions_that_were_only_looked_at_resume_exactly(root: Path) -> None:
    async with SessionStorage(root, device="desk") as store:
        node = await store.create_session(SessionNode(session_key=KEY))
        await say(store, node, "old")
        side = await store.create_session(SessionNode(session_key=OTHER_KEY))
    async with SessionStorage(root, device="desk") as store, following(store, None) as collected:
        await store.list_sessions()
        await store.append_transcript_entry(entry(side, "first"))
        cursor = (await collected.count(1))[0].cursor
    async with SessionStorage(root, device="desk") as store:
        await say(store, node, "new")
        await store.truncate_session(KEY, 1)
    async with SessionStorage(root, device="desk") as store, following(store, None, after=cursor) as rest:
        assert briefs(await rest.count(2)) == ["appended new", "compacted None"]


async def test_a_session_that_was_put_back_since_is_a_gap_and_follows_from_the_present_state(
    tmp_path: Path, root: Path
) -> None:
    async with SessionStorage(root, device="desk") as store:
        node = await store.create_session(SessionNode(session_key=KEY))
        await say(store, node, "a")
    shutil.copytree(root, tmp_path / "backup")
    async with SessionStorage(root, device="desk") as store, following(store) as one:
        await say(store, node, "b")
        cursor = (await one.count(1))[0].cursor
    shutil.rmtree(root)
    (tmp_path / "backup").rename(root)
    async with SessionStorage(root, device="desk") as store, following(store, after=cursor) as rest:
        assert briefs(await rest.count(1)) == ["gap"]
        await say(store, node, "c")
        assert briefs(await rest.count(2)) == ["gap", "appended c"]


@pytest.mark.parametrize("damage", ["gone", "cut", "changed"])
async def test_a_cursor_of_the_store_whose_file_is_not_as_it_was_is_a_gap(root: Path, damage: str) -> None:
    async with SessionStorage(root, device="desk") as store:
        node = await store.create_session(SessionNode(session_key=KEY))
        cursor = await _cursor(store, node, None)
    (path,) = Path(root, ".local", "cursors").iterdir()
    data = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(data[: len(data) // 3] if damage == "cut" else b"[]" + data)
    async with SessionStorage(root, device="desk") as store, following(store, None, after=cursor) as rest:
        (gap,) = await rest.count(1)
        assert (gap.kind, gap.session_key) == ("gap", "")
        await say(store, node, "c")
        assert briefs(await rest.count(2)) == ["gap", "appended c"]
        last = rest.events[-1].cursor
    async with SessionStorage(root, device="desk") as store, following(store, None, after=last) as rest:
        await say(store, node, "d")
        assert briefs(await rest.count(1)) == ["appended d"]


async def test_where_cursors_cannot_be_kept_events_are_told_and_resuming_is_a_gap(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = FaultyFiles()
    async with SessionStorage(root, device="desk", files=files) as store:
        node = await store.create_session(SessionNode(session_key=KEY))
        files.fail_at(1, 28, matching=lambda call: call.name == "create" and "cursors" in call.path)
        async with following(store, None) as collected:
            await say(store, node, "a", "b")
            events = await collected.count(2)
        assert said(events) == ["a", "b"]
        files.heal()
        async with following(store, None, after=events[0].cursor) as rest:
            assert briefs(await rest.count(1)) == ["gap"]
    assert "cannot be kept" in caplog.text


async def test_old_files_of_cursors_are_cleared_away(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("squilla_files.cursor_files._KEPT_FILES", 3)
    async with SessionStorage(root, device="desk") as store:
        node = await store.create_session(SessionNode(session_key=KEY))
        for _ in range(6):
            cursor = await _cursor(store, node, None)
        assert len(list(Path(root, ".local", "cursors").iterdir())) == 3
        async with following(store, None, after=cursor) as rest:
            assert said(await rest.count(1)) == ["two"]


async def test_a_quiet_watch_of_all_writes_no_file(root: Path, store: SessionStorage, node: SessionNode) -> None:
    async with following(store, None):
        await store.list_sessions()
    assert not Path(root, ".local", "cursors").exists()


def test_the_watcher_of_the_file_system_reports_what_is_renamed_in(tmp_path: Path) -> None:
    watched = tmp_path / "watched"
    watched.mkdir()
    watcher = make_watcher([str(watched)])
    (tmp_path / "new").mkdir()
    (tmp_path / "new").rename(watched / "new")
    found = watcher.watch(5, 5, 10_000, threading.Event())
    watcher.close()
    assert os.path.join(watched, "new") in {path for _, path in found if isinstance(found, set)}


async def test_the_last_event_of_a_step_and_the_first_of_the_next_are_neighbours(
    store: SessionStorage, node: SessionNode
) -> None:
    cursor = await _cursor(store, node)
    await asyncio.gather(*(say(store, node, number) for number in range(400)))
    told: list[Event] = []
    async with following(store, after=cursor) as rest:
        told = list(await rest.count(401))
    assert said(told) == [e.content for e in (await store.get_transcript(node.session_id))[1:]]


async def test_a_wake_up_during_the_work_of_another_subscriber_is_not_lost(
    silent: list[Silent], monkeypatch: pytest.MonkeyPatch, store: SessionStorage, node: SessionNode
) -> None:
    monkeypatch.setattr(wakeups, "_LOOK_S", 3600.0)
    async with following(store) as one, following(store) as two, following(store, None) as whole:
        await noticed(store)
        for number in range(150):
            await say(store, node, number)
            await asyncio.gather(*(say(store, node, f"{number} {each}") for each in range(number % 3)))
            await (one, two, whole)[number % 3].to_say(number)
        expected = [e.content for e in await store.get_transcript(node.session_id)]
        for collected in (one, two, whole):
            assert said(await collected.count(len(expected))) == expected


# --- who waits for a session -----------------------------------------------------------------------------------------


async def test_who_waits_for_a_session_is_told_of_its_end_by_another_process(
    monkeypatch: pytest.MonkeyPatch, store: SessionStorage, other: SessionStorage, node: SessionNode
) -> None:
    waiting = asyncio.ensure_future(SessionManager(store).wait_for_completion(KEY))
    await asyncio.sleep(0)
    await SessionManager(other).finish(KEY)
    async with asyncio.timeout(30):
        assert (await waiting)["status"] == "done"
    assert store._watching is not None
    assert store._watching.wakeups.subscribers() == []


async def test_who_waits_for_a_session_while_the_store_closes_is_told_so(root: Path) -> None:
    store = await SessionStorage.open(root, device="desk")
    await store.create_session(SessionNode(session_key=KEY))
    waiting = asyncio.ensure_future(SessionManager(store).wait_for_completion(KEY))
    await asyncio.sleep(0)
    await store.get_session(KEY)
    await store.close()
    with pytest.raises(StoreClosedError):
        await waiting


# --- sessions that are closed to this user ---------------------------------------------------------------------------


class Closed(Files):
    """A disk on which some directories and files may not be read."""

    def __init__(self) -> None:
        super().__init__("os")
        self.paths: set[str] = set()

    def _check(self, path: str) -> None:
        if any(path == closed or path.startswith(closed + os.sep) for closed in self.paths):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    def scan(self, path: str) -> list[DirEntryInfo]:
        self._check(path)
        return super().scan(path)

    def stat(self, path: str) -> os.stat_result:
        self._check(os.path.dirname(path))
        return super().stat(path)

    def open_read(self, path: str) -> int:
        self._check(path)
        return super().open_read(path)

    def read_file(self, path: str) -> bytes:
        self._check(path)
        return super().read_file(path)


async def test_a_session_that_may_not_be_read_ends_no_watch_of_the_others(
    root: Path, other: SessionStorage, node: SessionNode
) -> None:
    closed = await other.create_session(SessionNode(session_key=OTHER_KEY))
    await say(other, closed, "hidden")
    files = Closed()
    files.paths.add(str(root / "sessions" / session_dir_name(OTHER_KEY)))
    async with SessionStorage(root, device="reader", files=files) as reader, following(reader, None) as whole:
        await noticed(reader)
        await say(other, node, "told")
        events = await whole.until(lambda events: any(event.kind == "appended" for event in events))
        assert [event.entry.content for event in events if event.kind == "appended"] == ["told"]


async def test_what_belongs_to_the_machine_and_cannot_be_read_is_no_empty_list(
    root: Path, other: SessionStorage, node: SessionNode
) -> None:
    files = Closed()
    files.paths.add(str(root / ".local"))
    async with SessionStorage(root, files=files) as reader:
        with pytest.raises(PermissionError):
            await reader.list_sessions()
