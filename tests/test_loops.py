"""A store belongs to one event loop at a time: another one is refused, or takes over; nothing hangs."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from stores import KEY, entry, said, say

from squilla_files.errors import WrongLoopError
from squilla_files.models import SessionNode
from squilla_files.storage import SessionStorage


def test_a_loop_that_comes_after_one_that_is_closed_takes_over(tmp_path: Path) -> None:
    store = SessionStorage(tmp_path / "store", device="desk")

    async def begin() -> SessionNode:
        await store.connect()
        node = await store.create_session(SessionNode(session_key=KEY))
        await say(store, node, "one")
        events = store.watch(KEY)
        step = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0)
        await store.get_session(KEY)
        step.cancel()
        return node

    async def go_on(node: SessionNode) -> None:
        await say(store, node, "two")
        assert await said(store, node.session_id) == ["one", "two"]
        async with asyncio.timeout(60):
            async for event in store.watch(KEY):
                assert event.kind == "appended"
                break
            await store.close()

    async def both(node: SessionNode) -> None:
        late = asyncio.get_running_loop().call_later(0.05, lambda: asyncio.ensure_future(say(store, node, "three")))
        await go_on(node)
        late.cancel()

    node = asyncio.run(begin())
    asyncio.run(both(node))


def test_a_loop_beside_one_that_is_open_is_refused_and_harms_nothing(tmp_path: Path) -> None:
    outcomes: list[BaseException] = []

    async def main() -> None:
        async with SessionStorage(tmp_path / "store", device="desk") as store:
            node = await store.create_session(SessionNode(session_key=KEY))
            await say(store, node, "one")

            async def call(operation: str) -> None:
                match operation:
                    case "append":
                        await store.append_transcript_entry(entry(node, "lost"))
                    case "read":
                        await store.get_transcript(node.session_id)
                    case "list":
                        await store.list_sessions()
                    case "watch":
                        await anext(store.watch(KEY))
                    case "connect":
                        await store.connect()
                    case _:
                        await store.close()

            def elsewhere() -> None:
                for operation in ("append", "read", "list", "watch", "connect", "close"):
                    try:
                        asyncio.run(call(operation))
                    except WrongLoopError as error:
                        outcomes.append(error)

            thread = threading.Thread(target=elsewhere)
            thread.start()
            await asyncio.to_thread(thread.join)
            await say(store, node, "two")
            assert await said(store, node.session_id) == ["one", "two"]

    asyncio.run(main())
    assert len(outcomes) == 6


def test_another_thread_hands_its_call_to_the_loop_of_the_store(tmp_path: Path) -> None:
    async def main() -> None:
        async with SessionStorage(tmp_path / "store", device="desk") as store:
            node = await store.create_session(SessionNode(session_key=KEY))
            loop = asyncio.get_running_loop()

            def elsewhere() -> None:
                asyncio.run_coroutine_threadsafe(say(store, node, "from a thread"), loop).result()

            await asyncio.to_thread(elsewhere)
            assert await said(store, node.session_id) == ["from a thread"]

    asyncio.run(main())


@pytest.mark.parametrize("timeout", ["3", -1, float("nan"), None])
def test_a_lock_timeout_that_is_no_number_of_seconds_is_refused(tmp_path: Path, timeout: object) -> None:
    with pytest.raises(ValueError, match="lock_timeout"):
        SessionStorage(tmp_path, lock_timeout=timeout)  # type: ignore[arg-type]


def test_a_root_without_a_name_is_refused() -> None:
    with pytest.raises(ValueError, match="root"):
        SessionStorage("")
