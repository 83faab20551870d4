"""A process that is forked while a store is open: nothing hangs, nothing is held, both go on."""

from __future__ import annotations

import asyncio
import os
import signal
import warnings
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest
from stores import KEY, logs, said, say, stored

from squilla_files.errors import StoreClosedError
from squilla_files.files import Files
from squilla_files.layout import session_dir_name
from squilla_files.locks import LockFile
from squilla_files.models import SessionNode
from squilla_files.storage import SessionStorage

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows has no fork")


def in_child(work: Callable[[], Coroutine[None, None, None]]) -> None:
    """Execute *work* in a forked process, on a loop of its own, and see that it succeeds in time."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # there are threads, and that is the point
        child = os.fork()
    if child == 0:
        signal.alarm(30)
        code = 1
        try:
            asyncio.run(work())
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("root", ["store", ":memory:"])
def test_a_store_is_closed_in_a_forked_process_and_can_be_opened_there(tmp_path: Path, root: str) -> None:
    store = SessionStorage(tmp_path / root if root == "store" else root, device="desk")

    async def begin() -> None:
        await store.connect()
        await say(store, await store.upsert_session(SessionNode(session_key=KEY)), "one")

    async def in_the_child() -> None:
        for call in (lambda: stored(store), lambda: store.delete_session(KEY), lambda: anext(store.watch(KEY))):
            with pytest.raises(StoreClosedError):
                await call()
        await store.close()
        async with store:
            if root == "store":
                await say(store, await stored(store), "of the child")
            else:
                assert await store.list_sessions() == []

    async def go_on() -> None:
        node = await stored(store)
        await say(store, node, "two")
        assert await said(store, node.session_id) == ["one", *["of the child"] * (root == "store"), "two"]
        await store.close()

    asyncio.run(begin())
    in_child(in_the_child)
    asyncio.run(go_on())


def test_a_watch_is_not_taken_along(tmp_path: Path) -> None:
    async def main() -> None:
        async with SessionStorage(tmp_path / "store", device="desk") as store:
            node = await store.upsert_session(SessionNode(session_key=KEY))
            step = asyncio.ensure_future(anext(store.watch(KEY)))
            await stored(store)
            await asyncio.to_thread(in_child, store.close)
            await say(store, node, "one")
            assert (await asyncio.wait_for(step, 30)).kind == "appended"

    asyncio.run(main())


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="there are no paths of open files")
def test_a_forked_process_holds_no_lock_and_no_file_of_its_parent(tmp_path: Path) -> None:
    root = tmp_path / "store"
    store = SessionStorage(root, device="desk")
    lock = LockFile(Files(), str(root / ".local" / "locks" / f"{session_dir_name(KEY)}.lock"))

    async def begin() -> None:
        await store.connect()
        await say(store, await store.upsert_session(SessionNode(session_key=KEY)), "one")

    async def in_the_child() -> None:
        assert lock.path not in opened()
        assert str(logs(root)[0]) not in opened()

    asyncio.run(begin())
    assert lock.path in opened()
    in_child(in_the_child)
    asyncio.run(store.close())


def opened() -> set[str]:
    """Return the paths of the files that this process has open."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            found.add(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:
            continue
    return found
