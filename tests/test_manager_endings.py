"""Killing what runs below a session, waiting for an end, and deleting sessions by age and number."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from squilla_files.errors import CorruptManifestError, LockTimeoutError
from squilla_files.files import Files
from squilla_files.layout import Layout, session_dir_name
from squilla_files.locks import LockFile
from squilla_files.manager import SessionManager
from squilla_files.storage import SessionStorage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

KEY = "agent:main:main"
CHILD = "agent:main:subagent:one"
GRANDCHILD = "agent:main:subagent:two"
PATIENCE_SECONDS = 30
"""After this long a test that waits in vain fails instead of hanging."""


class Runtime:
    """Records what it is told to cancel, and the status of the session at that time."""

    def __init__(self, storage: SessionStorage) -> None:
        self.storage = storage
        self.cancelled: list[tuple[str, str, str]] = []
        self.statuses: list[str] = []

    async def cancel(self, *, session_key: str, source: str, reason: str) -> None:
        self.cancelled.append((session_key, source, reason))
        node = await self.storage.get_session(session_key)
        assert node is not None
        self.statuses.append(node.status)


class Registry:
    def __init__(self, *agents: dict[str, Any]) -> None:
        self.agents = list(agents)

    async def list_agents(self, *, include_builtin: bool = False) -> list[dict[str, Any]]:
        return self.agents if include_builtin else []


@pytest.fixture
async def storage(tmp_path: Path) -> AsyncIterator[SessionStorage]:
    async with SessionStorage(tmp_path, device="desk", durability="os") as storage:
        yield storage


@pytest.fixture
def manager(storage: SessionStorage) -> SessionManager:
    return SessionManager(storage)


async def statuses(manager: SessionManager) -> dict[str, str]:
    return {node["session_key"]: node["status"] for node in await manager.list_sessions()}


async def family(manager: SessionManager) -> None:
    await manager.create(KEY)
    await manager.create(CHILD, spawned_by=KEY)
    await manager.create(GRANDCHILD, spawned_by=CHILD)


# --- killing ---------------------------------------------------------------------------------------------------------


async def test_a_killed_session_has_ended(manager: SessionManager) -> None:
    await manager.create(KEY, started_at=1_000)
    node = await manager.kill_session(f" {KEY}")
    assert node == await manager.get_session(KEY)
    assert node.status == "killed"
    assert node.ended_at is not None
    assert node.runtime_ms == node.ended_at - 1_000


async def test_what_runs_below_is_killed_first_however_deep(manager: SessionManager, storage: SessionStorage) -> None:
    await family(manager)
    runtime = Runtime(storage)
    manager.attach_task_runtime(runtime)
    await manager.kill_session(KEY)
    assert await statuses(manager) == {KEY: "killed", CHILD: "killed", GRANDCHILD: "killed"}
    why = "parent_session_kill"
    assert runtime.cancelled == [(CHILD, why, why), (GRANDCHILD, why, why)]
    assert runtime.statuses == ["running", "running"]
    parent, child, grandchild = [await manager.get_session(key) for key in (KEY, CHILD, GRANDCHILD)]
    assert parent is not None
    assert child is not None
    assert grandchild is not None
    assert grandchild.ended_at is not None
    assert child.ended_at is not None
    assert parent.ended_at is not None
    assert grandchild.ended_at <= child.ended_at <= parent.ended_at


async def test_a_runtime_whose_cancel_is_no_coroutine_will_do(storage: SessionStorage) -> None:
    cancelled: list[str] = []

    class Plain:
        def cancel(self, *, session_key: str, source: str, reason: str) -> bool:
            cancelled.append(session_key)
            return True

    manager = SessionManager(storage, task_runtime=Plain())
    await family(manager)
    await manager.kill_session(CHILD)
    assert cancelled == [GRANDCHILD]
    assert await statuses(manager) == {KEY: "running", CHILD: "killed", GRANDCHILD: "killed"}


async def test_a_child_that_has_ended_keeps_its_end(manager: SessionManager) -> None:
    await family(manager)
    ended = await manager.finish(CHILD, "failed")
    await manager.kill_session(KEY)
    assert await manager.get_session(CHILD) == ended
    assert await statuses(manager) == {KEY: "killed", CHILD: "failed", GRANDCHILD: "running"}


async def test_a_child_that_ends_while_it_is_cancelled_keeps_its_end(manager: SessionManager) -> None:
    await family(manager)

    class Finishing:
        async def cancel(self, *, session_key: str, source: str, reason: str) -> None:
            await manager.finish(session_key, "done")

    manager.attach_task_runtime(Finishing())
    await manager.kill_session(KEY)
    assert await statuses(manager) == {KEY: "killed", CHILD: "done", GRANDCHILD: "done"}


async def test_a_child_that_is_deleted_while_it_is_cancelled_stops_nothing(manager: SessionManager) -> None:
    await family(manager)

    class Deleting:
        async def cancel(self, *, session_key: str, source: str, reason: str) -> None:
            await manager.storage.delete_session(session_key)

    manager.attach_task_runtime(Deleting())
    await manager.kill_session(KEY)
    assert await statuses(manager) == {KEY: "killed"}


async def test_sessions_that_spawned_each_other_are_killed_once_each(
    manager: SessionManager, storage: SessionStorage
) -> None:
    await family(manager)
    await manager.update(KEY, spawned_by=GRANDCHILD)
    runtime = Runtime(storage)
    manager.attach_task_runtime(runtime)
    await manager.kill_session(KEY)
    assert [key for key, _, _ in runtime.cancelled] == [CHILD, GRANDCHILD]
    assert set((await statuses(manager)).values()) == {"killed"}


@pytest.mark.parametrize("name", ["id", "agent_id"])
async def test_an_agent_can_spare_its_children(storage: SessionStorage, name: str) -> None:
    registry = Registry({"id": "other"}, {name: "main", "subagents": {"cascade_on_parent_kill": False}})
    runtime = Runtime(storage)
    manager = SessionManager(storage, agent_registry=registry, task_runtime=runtime)
    await family(manager)
    await manager.kill_session(KEY)
    assert await statuses(manager) == {KEY: "killed", CHILD: "running", GRANDCHILD: "running"}
    assert runtime.cancelled == []


async def test_each_level_asks_for_its_own_agent(storage: SessionStorage) -> None:
    registry = Registry({"id": "main"}, {"id": "careful", "subagents": {"cascade_on_parent_kill": False}})
    manager = SessionManager(storage, agent_registry=registry)
    await family(manager)
    await manager.update(CHILD, agent_id="careful")
    await manager.kill_session(KEY)
    assert await statuses(manager) == {KEY: "killed", CHILD: "killed", GRANDCHILD: "running"}


@pytest.mark.parametrize("entry", [{}, {"subagents": None}, {"subagents": {}}])
async def test_an_agent_that_says_nothing_spares_nobody(storage: SessionStorage, entry: dict[str, Any]) -> None:
    manager = SessionManager(storage, agent_registry=Registry({"id": "main", **entry}))
    await family(manager)
    await manager.kill_session(KEY)
    assert set((await statuses(manager)).values()) == {"killed"}


async def test_the_registry_is_asked_through_the_manager(storage: SessionStorage) -> None:
    manager = SessionManager(storage, agent_registry=Registry({"id": "main", "name": "M"}, {"agent_id": "Other"}))
    assert manager.has_agent_registry
    assert await manager.get_agent_config("main") == {"id": "main", "name": "M"}
    assert await manager.get_agent_config("other") == {"agent_id": "Other"}
    assert await manager.get_agent_config("nobody") is None


async def test_without_a_registry_no_agent_is_known(manager: SessionManager) -> None:
    assert not manager.has_agent_registry
    assert await manager.get_agent_config("main") is None


# --- waiting ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["done", "failed", "killed", "timeout"])
async def test_waiting_for_a_session_that_has_ended_returns_at_once(manager: SessionManager, status: str) -> None:
    await manager.create(KEY)
    node = await manager.finish(KEY, status)
    assert await manager.wait_for_completion(KEY) == {**node.model_dump(mode="json"), "waited": True}


async def test_waiting_lasts_until_the_status_is_final(manager: SessionManager) -> None:
    await manager.create(KEY)
    waiting = asyncio.ensure_future(manager.wait_for_completion(f" {KEY}"))
    await manager.append_message(KEY, "assistant", "still at it")
    await manager.update(KEY, label="busy")
    assert not waiting.done()
    await manager.finish(KEY, "failed")
    node = await asyncio.wait_for(waiting, PATIENCE_SECONDS)
    assert (node["status"], node["label"], node["waited"]) == ("failed", "busy", True)


async def test_an_end_at_any_moment_is_noticed(manager: SessionManager) -> None:
    for turns in range(12):
        key = f"agent:main:{turns}"
        await manager.create(key)
        waiting = asyncio.ensure_future(manager.wait_for_completion(key))
        # The wait is let go a different number of steps before the end comes.
        for _ in range(turns):
            await asyncio.sleep(0)
        await manager.finish(key)
        assert (await asyncio.wait_for(waiting, PATIENCE_SECONDS))["status"] == "done"


async def test_an_end_that_another_process_writes_is_noticed(manager: SessionManager, tmp_path: Path) -> None:
    await manager.create(KEY)
    waiting = asyncio.ensure_future(manager.wait_for_completion(KEY))
    async with SessionStorage(tmp_path, device="desk", durability="os") as other:
        await SessionManager(other).finish(KEY, "timeout")
    assert (await asyncio.wait_for(waiting, PATIENCE_SECONDS))["status"] == "timeout"


async def test_waiting_for_a_session_that_is_deleted_is_a_key_error(manager: SessionManager) -> None:
    await manager.create(KEY)
    waiting = asyncio.ensure_future(manager.wait_for_completion(KEY))
    await asyncio.sleep(0)
    await manager.storage.delete_session(KEY)
    with pytest.raises(KeyError):
        await asyncio.wait_for(waiting, PATIENCE_SECONDS)


async def test_waiting_can_be_given_up(manager: SessionManager) -> None:
    node = await manager.create(KEY)
    waiting = asyncio.ensure_future(manager.wait_for_completion(KEY))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await manager.get_session(KEY) == node


# --- deleting by age and number --------------------------------------------------------------------------------------


async def aged(manager: SessionManager, *keys: str) -> list[str]:
    """Make sessions that were updated long ago, the first the longest."""
    for number, key in enumerate(keys):
        await manager.create(key)
        await manager.append_message(key, "user", "x")
        await manager.update(key, updated_at=1_000 + number)
    return list(keys)


async def test_what_was_not_updated_for_too_long_is_deleted(manager: SessionManager, storage: SessionStorage) -> None:
    first, second = await aged(manager, "agent:main:1", "agent:main:2")
    gone = await manager.get_session(first)
    assert gone is not None
    await manager.create(KEY)
    assert await manager.prune_stale(3_600_000) == 2
    assert list(await statuses(manager)) == [KEY]
    assert await storage.get_transcript(gone.session_id) == []
    for key in (first, second):
        with pytest.raises(KeyError):
            await manager.get_transcript(key)
    assert await manager.prune_stale(max_age_ms=3_600_000) == 0


async def test_a_dry_run_lists_what_would_go_oldest_first_and_changes_nothing(manager: SessionManager) -> None:
    keys = await aged(manager, "agent:main:2", "agent:main:1")
    await manager.create(KEY)
    before = await manager.list_sessions()
    stale = await manager.prune_stale(3_600_000, dry_run=True)
    surplus = await manager.cap_entries(1, dry_run=True)
    assert [key for key, _ in stale] == [key for key, _ in surplus] == keys
    assert all("3600000" in reason for _, reason in stale)
    assert [reason for _, reason in surplus] == ["number 3 by age, allowed are 1", "number 2 by age, allowed are 1"]
    assert await manager.list_sessions() == before


async def test_only_so_many_sessions_are_kept_the_oldest_go(manager: SessionManager) -> None:
    keys = await aged(manager, "agent:main:3", "agent:main:1", "agent:main:2")
    assert await manager.cap_entries() == 0
    assert await manager.cap_entries(max_entries=1) == 2
    assert list(await statuses(manager)) == keys[2:]
    assert await manager.cap_entries(0) == 1
    assert await statuses(manager) == {}


async def test_a_negative_measure_deletes_nothing(manager: SessionManager) -> None:
    await aged(manager, KEY)
    with pytest.raises(ValueError, match="negative"):
        await manager.prune_stale(-1)
    with pytest.raises(ValueError, match="negative"):
        await manager.cap_entries(-1)
    assert list(await statuses(manager)) == [KEY]


async def test_age_is_what_was_recorded_and_no_time_of_a_file(manager: SessionManager, storage: SessionStorage) -> None:
    (old,) = await aged(manager, "agent:main:old")
    await manager.create(KEY)
    set_file_times(Path(storage.root))
    assert await manager.prune_stale(3_600_000) == 1
    assert list(await statuses(manager)) == [KEY]
    assert old not in await statuses(manager)


def set_file_times(root: Path) -> None:
    for path in root.rglob("*"):
        os.utime(path, (2**33, 2**33) if "old" in str(path) else (1, 1))


class Reluctant:
    """A store in which some sessions cannot be deleted."""

    def __init__(self, storage: SessionStorage, refusals: dict[str, Exception]) -> None:
        self._storage = storage
        self._refusals = refusals

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    async def delete_stale(self, session_key: str, *, updated_before_ms: int | None) -> bool:
        if session_key in self._refusals:
            raise self._refusals[session_key]
        return await self._storage.delete_stale(session_key, updated_before_ms=updated_before_ms)


async def test_a_session_that_another_process_holds_is_skipped(
    manager: SessionManager, storage: SessionStorage, caplog: pytest.LogCaptureFixture
) -> None:
    first, _ = await aged(manager, "agent:main:1", "agent:main:2")
    held = LockFile(Files("os"), Layout(storage.root).lock_file(session_dir_name(first)))
    assert held.try_acquire()
    with caplog.at_level(logging.WARNING, logger="squilla_files"):
        assert await manager.prune_stale(3_600_000) == 1
        assert await manager.cap_entries(0) == 0
    held.close()
    assert list(await statuses(manager)) == [first]
    assert all(first in record.getMessage() for record in caplog.records)
    assert await manager.cap_entries(0) == 1


@pytest.mark.parametrize(
    "refusal",
    [
        LockTimeoutError("locks/x", 0, None),
        CorruptManifestError("manifest.json", 0, "no JSON"),
        PermissionError(13, "Permission denied"),
    ],
)
async def test_what_is_locked_or_cannot_be_read_is_skipped_with_its_reason(
    manager: SessionManager, storage: SessionStorage, caplog: pytest.LogCaptureFixture, refusal: Exception
) -> None:
    first, _ = await aged(manager, "agent:main:1", "agent:main:2")
    reluctant = SessionManager(Reluctant(storage, {first: refusal}))  # type: ignore[arg-type]
    with caplog.at_level(logging.WARNING, logger="squilla_files"):
        assert await reluctant.prune_stale(3_600_000) == 1
    assert list(await statuses(manager)) == [first]
    (record,) = caplog.records
    assert first in record.getMessage()
    assert str(refusal) in record.getMessage()


async def test_a_session_that_is_used_after_the_listing_is_spared(
    manager: SessionManager, storage: SessionStorage
) -> None:
    first, second = await aged(manager, "agent:main:1", "agent:main:2")

    class Busy(Reluctant):
        async def list_sessions(self, **choice: Any) -> Any:
            nodes = await self._storage.list_sessions(**choice)
            await manager.resume(first)
            return nodes

    assert await SessionManager(Busy(storage, {})).cap_entries(0) == 1  # type: ignore[arg-type]
    assert list(await statuses(manager)) == [first]
    assert second not in await statuses(manager)
