"""Sessions in a store on a real disk: opened, written, listed, fenced, deleted."""

from __future__ import annotations

import json
import os
import re
import stat
import tempfile
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from stores import (
    KEY,
    call,
    entry,
    filled,
    kept,
    logs,
    public_methods,
    records,
    said,
    say,
    state,
    stored,
    summary,
    tree,
)

from squilla_files.errors import (
    CorruptManifestError,
    InvalidDeviceError,
    LockTimeoutError,
    SessionExistsError,
    SessionNotFoundError,
    StoreClosedError,
    UnstorableTypeError,
    UnstorableValueError,
    UnsupportedFormatError,
)
from squilla_files.files import Files
from squilla_files.layout import session_dir_name
from squilla_files.locks import LockFile
from squilla_files.models import SESSION_COUNTERS, SESSION_FIELDS, SessionNode, new_id
from squilla_files.storage import SessionStorage, StaleEpochError

OTHER = "agent:main:subagent:one"


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SQUILLA_FILES_DEVICE", "SQUILLA_FILES_ARCHIVE_DIR", "OPENSQUILLA_SESSION_ARCHIVE_DIR"):
        monkeypatch.delenv(name, raising=False)


def node_of(key: str = KEY, **given: Any) -> SessionNode:
    return SessionNode(**{"session_key": key, **given})


def only_log(root: Path) -> Path:
    (found,) = logs(root)
    return found


# --- opening and closing ---------------------------------------------------------------------------------------------


async def test_connecting_to_a_new_root_reading_and_closing_make_nothing(root: Path) -> None:
    async with SessionStorage(root) as store:
        assert await store.list_sessions() == []
        assert await store.get_session(KEY) is None
        assert await store.get_transcript("no-such-session") == []
        assert await store.search_transcript("word") == []
    assert not root.exists()


async def test_connecting_to_an_existing_store_reading_and_closing_write_nothing(root: Path) -> None:
    async with SessionStorage(root) as store:
        node = await store.upsert_session(node_of(label="Errands"))
        await say(store, node, "one", "two")
        await store.save_summary(summary(node, "so far"))
        await store.save_context_state(state(node))
        await store.truncate_session(KEY, 1)
    before = tree(root, stamps=True)
    mode = root.stat().st_mode
    async with SessionStorage(root) as store:
        for name in public_methods(with_key=False):
            if name.startswith(("get_", "list_", "count_", "search_", "read_", "iter_", "snapshot", "session_exists")):
                await call(store, name, KEY, node.session_id)
    assert tree(root, stamps=True) == before
    assert root.stat().st_mode == mode


async def test_root_store_file_and_device_name_come_with_the_first_write(root: Path) -> None:
    async with SessionStorage(root) as store:
        await store.upsert_session(node_of())
        written = tree(root)
        assert "store.json" in written
        assert [path for path in written if path.startswith(os.path.join(".local", "device"))]
        (log,) = logs(root)
        device = log.name.split(".")[1]
    async with SessionStorage(root) as store:
        await store.upsert_session(node_of(OTHER))
        assert {path.name.split(".")[1] for path in logs(root)} == {device}


async def test_the_store_file_is_the_same_on_every_device(tmp_path: Path) -> None:
    for device in ("desk", "laptop"):
        async with SessionStorage(tmp_path / device, device=device) as store:
            await store.upsert_session(node_of())
    assert (tmp_path / "desk" / "store.json").read_bytes() == (tmp_path / "laptop" / "store.json").read_bytes()


@pytest.mark.parametrize("data", [b"{", b"[]", b'{"format":"another","version":1}'])
async def test_a_store_file_that_is_none_is_refused_and_stays(root: Path, data: bytes) -> None:
    root.mkdir()
    (root / "store.json").write_bytes(data)
    with pytest.raises(CorruptManifestError):
        await SessionStorage.open(root)
    assert tree(root) == {"store.json": data}


async def test_a_store_file_without_content_is_written_again_by_the_next_write(root: Path) -> None:
    root.mkdir()
    (root / "store.json").write_bytes(b"")
    async with SessionStorage(root) as store:
        assert await store.get_session(KEY) is None
        assert tree(root) == {"store.json": b""}
        await store.upsert_session(node_of())
    assert (root / "store.json").read_bytes() != b""


async def test_a_deletion_without_content_is_one_that_has_not_arrived(root: Path, store: SessionStorage) -> None:
    await store.upsert_session(node_of())
    await store.delete_session(KEY)
    await store.upsert_session(node_of())
    (deletion,) = (root / "deleted").iterdir()
    content = deletion.read_bytes()
    deletion.write_bytes(b"")
    async with SessionStorage(root, device="laptop") as other:
        assert await other.get_session(KEY) is not None
        deletion.write_bytes(content)
        assert await other.get_epoch(KEY) == 1
    assert await store.get_epoch(KEY) == 1


async def test_a_store_of_a_later_version_is_refused_and_opens_once_it_is_exchanged(root: Path) -> None:
    root.mkdir()
    (root / "store.json").write_text('{"format":"squilla_files","version":2}')
    store = SessionStorage(root)
    with pytest.raises(UnsupportedFormatError) as raised:
        await store.connect()
    assert raised.value.version == 2
    with pytest.raises(StoreClosedError):
        await store.get_session(KEY)
    (root / "store.json").unlink()
    await store.connect()
    await store.upsert_session(node_of())
    await store.close()


async def test_a_root_may_be_a_path_or_its_text_and_is_kept_when_the_directory_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = SessionStorage("store")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    async with store:
        await store.upsert_session(node_of())
    async with SessionStorage(tmp_path / "store") as again:
        assert await again.session_exists(KEY)
    assert tree(elsewhere) == {}


async def test_async_with_connects_and_closes(root: Path) -> None:
    async with SessionStorage(root) as store:
        await store.upsert_session(node_of())
    with pytest.raises(StoreClosedError):
        await store.get_session(KEY)
    with pytest.raises(ZeroDivisionError):
        async with SessionStorage(root) as store:
            raise ZeroDivisionError
    with pytest.raises(StoreClosedError):
        await store.get_session(KEY)


async def test_open_returns_a_store_that_is_connected(root: Path) -> None:
    store = await SessionStorage.open(root, device="desk", durability="os", lock_timeout=1.0)
    await store.upsert_session(node_of())
    await store.close()
    assert "desk" in only_log(root).name


async def test_connecting_or_closing_twice_does_nothing_more(root: Path) -> None:
    store = SessionStorage(root)
    await store.close()
    await store.connect()
    node = await store.upsert_session(node_of())
    await store.connect()
    assert await store.get_session(KEY) == node
    await store.close()
    before = tree(root, stamps=True)
    await store.close()
    assert tree(root, stamps=True) == before


async def test_a_store_that_was_closed_can_be_connected_again(root: Path) -> None:
    store = await SessionStorage.open(root)
    node = await store.upsert_session(node_of())
    await store.close()
    await store.connect()
    await say(store, node, "again")
    assert await said(store, node.session_id) == ["again"]
    await store.close()


@pytest.mark.parametrize("name", public_methods(with_key=False))
async def test_a_store_that_is_not_open_refuses_every_call(root: Path, name: str) -> None:
    store = SessionStorage(root)
    with pytest.raises(StoreClosedError) as before:
        await call(store, name)
    assert isinstance(before.value, RuntimeError)
    await store.connect()
    node = await store.upsert_session(node_of())
    await store.close()
    written = tree(root, stamps=True)
    with pytest.raises(StoreClosedError):
        await call(store, name, KEY, node.session_id)
    assert tree(root, stamps=True) == written


def test_a_durability_that_does_not_exist_is_refused(root: Path) -> None:
    with pytest.raises(ValueError, match="durability"):
        SessionStorage(root, durability="none")  # type: ignore[arg-type]


@pytest.mark.parametrize(("durability", "synced"), [("full", True), ("os", False)])
async def test_only_full_durability_syncs_before_a_call_returns(root: Path, durability: Any, synced: bool) -> None:
    class CountingFiles(Files):
        flushed = 0

        def _flush(self, fd: int, *, data_only: bool) -> None:
            self.flushed += 1
            super()._flush(fd, data_only=data_only)

    disk = CountingFiles(durability)
    async with SessionStorage(root, durability=durability, files=disk) as store:
        node = await store.upsert_session(node_of())
        disk.flushed = 0
        await say(store, node, "one")
        assert disk.flushed == synced


@pytest.mark.skipif(os.name == "nt", reason="POSIX modes")
async def test_everything_is_private_whatever_the_umask(root: Path) -> None:
    old = os.umask(0)
    try:
        async with SessionStorage(root) as store:
            node = await store.upsert_session(node_of())
            await say(store, node, "one")
            await store.save_summary(summary(node, "so far"))
            await store.save_context_state(state(node))
            await store.reset_session(KEY, reason="test")
            await store.upsert_session(node_of(OTHER))
            await store.delete_session(OTHER)
    finally:
        os.umask(old)
    assert stat.S_IMODE(root.stat().st_mode) == 0o700
    for path in root.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


# --- a store in memory -----------------------------------------------------------------------------------------------


async def test_a_memory_store_is_private_and_gone_after_closing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    async with SessionStorage(":memory:") as one, SessionStorage(":memory:") as two:
        node = await one.upsert_session(node_of())
        await say(one, node, "one")
        assert await said(one, node.session_id) == ["one"]
        assert await two.list_sessions() == []
        assert len(list(tmp_path.iterdir())) == 2
        assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o700}
    assert list(tmp_path.iterdir()) == []
    assert not Path(":memory:").exists()


async def test_a_memory_store_that_is_connected_again_is_empty_and_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    store = await SessionStorage.open(":memory:")
    node = await store.upsert_session(node_of())
    await store.close()
    await store.connect()
    assert await store.list_sessions() == []
    assert await store.get_transcript(node.session_id) == []
    await store.upsert_session(node_of())
    assert (Path(store.root) / "store.json").exists()
    await store.close()
    assert list(tmp_path.iterdir()) == []


# --- the device ------------------------------------------------------------------------------------------------------


async def test_the_device_argument_names_the_files_and_beats_the_environment(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SQUILLA_FILES_DEVICE", "from-environment")
    async with SessionStorage(root, device="from-argument") as store:
        await store.upsert_session(node_of())
    async with SessionStorage(root) as store:
        await store.upsert_session(node_of(OTHER))
    assert sorted(path.name for path in logs(root)) == [
        "transcript.from-argument.000001.jsonl",
        "transcript.from-environment.000001.jsonl",
    ]


async def test_an_empty_environment_variable_is_none(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQUILLA_FILES_DEVICE", "")
    async with SessionStorage(root) as store:
        await store.upsert_session(node_of())


INVALID_DEVICES = ["", "Desk", "my desk", "desk_1", "a/b", "../a", "a.b", "büro", "a" * 41, "a\n", "a\0"]


@pytest.mark.parametrize("target", ["store", ":memory:"])
@pytest.mark.parametrize("device", INVALID_DEVICES)
def test_an_invalid_device_is_refused_at_once(tmp_path: Path, device: str, target: str) -> None:
    with pytest.raises(InvalidDeviceError) as raised:
        SessionStorage(target if target == ":memory:" else tmp_path / target, device=device)
    assert isinstance(raised.value, ValueError)
    assert raised.value.device == device


@pytest.mark.parametrize("device", [name for name in INVALID_DEVICES if name and "\0" not in name])
def test_an_invalid_device_in_the_environment_is_refused_at_once(
    tmp_path: Path, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SQUILLA_FILES_DEVICE", device)
    for target in (":memory:", tmp_path / "store"):
        with pytest.raises(InvalidDeviceError):
            SessionStorage(target)


@pytest.mark.parametrize("device", ["a", "0", "a" * 40, "-"])
async def test_a_valid_device_is_taken_as_it_is(root: Path, device: str) -> None:
    async with SessionStorage(root, device=device) as store:
        await store.upsert_session(node_of())
    assert only_log(root).name == f"transcript.{device}.000001.jsonl"


async def test_after_a_rollback_the_device_goes_on_with_a_suffix_and_loses_nothing(root: Path) -> None:
    async with SessionStorage(root, device="desk") as store:
        node = await store.upsert_session(node_of())
        await say(store, node, "one")
        older = only_log(root).read_bytes()
        await say(store, node, "two")
    only_log(root).write_bytes(older)
    async with SessionStorage(root, device="desk") as store:
        await say(store, node, "three")
        assert await said(store, node.session_id) == ["one", "three"]
    suffixed, rolled_back = logs(root)
    assert re.fullmatch(r"transcript\.desk-r[0-9a-f]{6}\.000001\.jsonl", suffixed.name)
    assert rolled_back.name == "transcript.desk.000001.jsonl"
    assert rolled_back.read_bytes() == older


# --- writing a session -----------------------------------------------------------------------------------------------


async def test_a_missing_session_is_created_with_every_field_as_given(root: Path, store: SessionStorage) -> None:
    node = filled(node_of())
    assert await store.upsert_session(node) == node
    assert await store.get_session(KEY) == node
    async with SessionStorage(root) as other:
        assert await other.get_session(KEY) == node
        assert await other.list_sessions() == [node]


async def test_creating_a_session_under_a_taken_key_is_refused(root: Path, store: SessionStorage) -> None:
    node = await store.create_session(filled(node_of()))
    before = tree(root)
    with pytest.raises(SessionExistsError) as raised:
        await store.create_session(node_of(f"  {KEY}"))
    assert isinstance(raised.value, ValueError)
    assert tree(root) == before
    assert await store.get_session(KEY) == node


async def test_only_what_differs_is_written_and_counters_as_the_difference(root: Path, store: SessionStorage) -> None:
    node = await store.upsert_session(node_of(input_tokens=5, label="a", total_cost_usd=0.1))
    node.label, node.subject, node.input_tokens, node.total_cost_usd = None, "b", 3, 0.3
    assert await store.upsert_session(node) == node
    record = records(root)[-1]
    assert record["set"] == {"label": None, "subject": "b"}
    assert record["add"] == {"input_tokens": -2, "total_cost_usd": 0.3 - 0.1}
    assert (await stored(store)).total_cost_usd == 0.3


async def test_a_float_counter_ends_as_given_even_where_no_difference_says_it(store: SessionStorage) -> None:
    node = await store.upsert_session(node_of(total_cost_usd=1e17))
    node.total_cost_usd = 0.1
    await store.upsert_session(node)
    assert (await stored(store)).total_cost_usd == 0.1


async def test_a_float_counter_that_is_set_to_zero_is_zero(root: Path, store: SessionStorage) -> None:
    node = await store.upsert_session(node_of(total_cost_usd=0.1))
    node = await store.update_session(KEY, {}, counters={"total_cost_usd": 0.2})
    node.total_cost_usd = 0.0
    assert (await store.upsert_session(node)).total_cost_usd == 0.0
    before = tree(root)
    await store.upsert_session(node)
    assert tree(root) == before


async def test_writing_what_is_stored_already_writes_nothing(root: Path, store: SessionStorage) -> None:
    node = await store.upsert_session(filled(node_of()))
    before = tree(root)
    assert await store.upsert_session(node) == node
    assert tree(root) == before


async def test_a_value_that_python_alone_calls_equal_is_written(store: SessionStorage) -> None:
    node = await store.upsert_session(node_of(origin={"a": 1}))
    node.origin = {"a": True}
    await store.upsert_session(node)
    assert repr((await stored(store)).origin) == "{'a': True}"


async def test_counters_of_two_devices_add_up(tmp_path: Path) -> None:
    async with SessionStorage(tmp_path / "store", device="desk") as desk:
        node = await desk.upsert_session(node_of(input_tokens=5))
        async with SessionStorage(tmp_path / "store", device="laptop") as laptop:
            theirs = await stored(laptop)
            theirs.input_tokens += 7
            await laptop.upsert_session(theirs)
        node.label = "mine"
        await desk.update_session(KEY, {"label": "mine"}, {"input_tokens": 1})
        assert (await stored(desk)).input_tokens == 13


async def test_updated_at_is_stored_as_given(store: SessionStorage) -> None:
    node = await store.upsert_session(node_of(updated_at=1000))
    assert (await stored(store)).updated_at == 1000
    node.updated_at, node.label = 5, "x"
    assert (await store.upsert_session(node)).updated_at == 5


async def test_a_returned_session_is_the_callers_own(store: SessionStorage) -> None:
    node = await store.upsert_session(node_of(origin={"a": 1}))
    assert node.origin is not None
    node.origin["a"] = 2
    (listed,) = await store.list_sessions()
    assert listed.origin == {"a": 1}
    assert listed.origin is not None
    listed.origin["a"] = 3
    assert (await stored(store)).origin == {"a": 1}
    node.origin = {"a": 1}
    assert await store.get_session(KEY) == node


async def test_a_node_that_is_behind_changes_neither_identity_nor_counters(store: SessionStorage) -> None:
    first = await store.upsert_session(node_of())
    for name in (*SESSION_COUNTERS, "cost_source"):
        setattr(first, name, "mixed" if name == "cost_source" else 3)
    await store.upsert_session(first)
    await store.increment_epoch(KEY)
    before = await stored(store)
    stale = filled(node_of(epoch=0))
    await store.upsert_session(stale)
    after = await stored(store)
    kept = {"session_id", "epoch", "cost_source", *SESSION_COUNTERS}
    assert "compaction_count" in kept
    for declared in fields(SessionNode):
        expected = before if declared.name in kept else stale
        assert getattr(after, declared.name) == getattr(expected, declared.name), declared.name


async def test_a_higher_epoch_alone_fences_and_closes_nothing(store: SessionStorage) -> None:
    node = await store.upsert_session(node_of(input_tokens=1))
    await say(store, node, "one")
    node.epoch, node.label, node.input_tokens = 5, "fenced", 4
    assert await store.upsert_session(node) == node
    assert await store.get_epoch(KEY) == 5
    assert await said(store, node.session_id) == ["one"]
    with pytest.raises(StaleEpochError):
        await store.append_transcript_entry(entry(node, "late"), expected_epoch=0)


async def test_a_higher_epoch_with_another_session_id_is_a_reset(root: Path, store: SessionStorage) -> None:
    old = await store.upsert_session(node_of(input_tokens=9, label="kept", cost_source="mixed", context_tokens=5))
    await say(store, old, "one")
    await store.save_summary(summary(old, "so far"))
    await store.save_context_state(state(old))
    new = await stored(store)
    new.epoch, new.session_id, new.input_tokens, new.cost_source, new.subject = 3, new_id(), 2, "none", "fresh"
    assert await store.upsert_session(new) == new
    assert await store.get_session(KEY) == new
    for session_id in (old.session_id, new.session_id):
        assert await store.get_canonical_transcript(session_id) == []
        assert await store.get_all_summaries(session_id) == []
    (invalid,) = await store.get_context_states(KEY, valid_only=False)
    assert (invalid.valid, invalid.invalid_reason) == (False, "session_reset")
    assert new.context_tokens == 5
    (document,) = (root / "archives").iterdir()
    assert json.loads(document.read_text())["session_id"] == old.session_id


@pytest.mark.parametrize("another_id", [True, False])
async def test_an_upsert_is_one_line_whatever_its_epoch(root: Path, store: SessionStorage, another_id: bool) -> None:
    node = await store.upsert_session(node_of(input_tokens=4))
    known = len(records(root))
    node.epoch, node.label, node.input_tokens = 2, "x", 6
    if another_id:
        node.session_id = new_id()
    await store.upsert_session(node)
    fresh = [record for record in records(root)[known:] if record.get("epoch") == 2 and record["type"] == "session"]
    assert len({record["record"] for record in fresh}) == 1
    assert fresh[0]["set"]["label"] == "x"
    assert (await stored(store)).input_tokens == 6


async def test_the_epoch_never_falls(store: SessionStorage) -> None:
    node = await store.upsert_session(node_of(epoch=4))
    assert await store.get_epoch(KEY) == 4
    node.epoch = 2
    assert (await store.upsert_session(node)).epoch == 4


@pytest.mark.parametrize("epoch", [-1, 2**53, 1.5, "1", None, True])
async def test_an_epoch_that_is_none_is_refused_and_nothing_written(
    root: Path, store: SessionStorage, epoch: Any
) -> None:
    await store.upsert_session(node_of())
    before = kept(root)
    for key in (KEY, OTHER):
        with pytest.raises(UnstorableValueError, match="epoch"):
            await store.upsert_session(node_of(key, epoch=epoch))
    assert kept(root) == before


async def test_update_sets_just_what_is_named(root: Path, store: SessionStorage) -> None:
    before = await store.upsert_session(filled(node_of()))
    after = await store.update_session(KEY, {"label": "new"}, {"output_tokens": 2})
    before.label, before.output_tokens = "new", 9
    assert after == before
    with pytest.raises(ValueError, match="shoe_size"):
        await store.update_session(KEY, {"label": "newer", "shoe_size": 1})
    with pytest.raises(ValueError, match="label"):
        await store.update_session(KEY, {}, {"label": 1})
    assert await store.get_session(KEY) == before


async def test_modify_sees_the_session_as_it_is_under_the_lock(store: SessionStorage) -> None:
    await store.upsert_session(node_of(label="a"))
    async with SessionStorage(store.root, device="desk", durability="os") as other:
        await other.update_session(KEY, {"label": "b"})
        changed = await store.modify_session(KEY, lambda node: {"subject": f"was {node.label}"})
    assert changed.subject == "was b"


@pytest.mark.parametrize("name", ["update_session", "modify_session", "increment_epoch", "reset_session"])
async def test_changing_a_missing_session_is_a_key_error(store: SessionStorage, name: str) -> None:
    await store.upsert_session(node_of(OTHER))
    with pytest.raises(SessionNotFoundError) as raised:
        await call(store, name)
    assert isinstance(raised.value, KeyError)
    assert raised.value.session_key == KEY
    assert await store.get_session(KEY) is None


async def test_getting_a_session_or_asking_for_it_touches_nothing(root: Path, store: SessionStorage) -> None:
    assert await store.get_session(KEY) is None
    assert await store.session_exists(KEY) is False
    node = await store.upsert_session(node_of(updated_at=5))
    before = tree(root)
    assert await store.get_session(KEY) == node
    assert await store.session_exists(KEY) is True
    assert tree(root) == before


@pytest.mark.parametrize(
    "spelling", ["  agent:main:webchat:default\n", "webchat:default", "agent:MAIN:webchat:default"]
)
async def test_every_spelling_of_a_key_means_the_same_session(store: SessionStorage, spelling: str) -> None:
    canonical = "agent:main:webchat:default"
    node = await store.upsert_session(node_of(spelling))
    assert node.session_key == canonical
    child = await store.upsert_session(node_of(OTHER, spawned_by=canonical))
    assert await store.get_session(spelling) == await store.get_session(canonical) == node
    assert await store.list_sessions(spawned_by=spelling) == [child]
    appended = await store.append_transcript_entry(entry(node_of(spelling, session_id=node.session_id), "x"))
    assert appended.session_key == canonical
    assert await store.increment_epoch(spelling) == await store.get_epoch(spelling) == 1
    saved = await store.save_summary(summary(node_of(spelling, session_id=node.session_id), "x", compaction_id="c"))
    assert saved.session_key == canonical
    assert await store.update_summary_flush_receipt_status_by_compaction(spelling, "c", "done") == 1
    held = await store.save_context_state(state(node_of(spelling, session_id=node.session_id)))
    assert held.session_key == canonical
    assert len(await store.get_context_states(spelling)) == 1
    assert await store.invalidate_context_states(spelling, reason="x") == 1
    assert await store.delete_session(spelling)
    assert await store.list_sessions() == [child]


# --- listing ---------------------------------------------------------------------------------------------------------


async def test_sessions_are_listed_newest_first_by_updated_at(store: SessionStorage) -> None:
    for number, updated in enumerate((30, 10, 20)):
        await store.upsert_session(node_of(f"k{number}", updated_at=updated))
    assert [node.session_key for node in await store.list_sessions()] == ["k0", "k2", "k1"]
    await store.update_session("k1", {"updated_at": 99})
    assert [node.session_key for node in await store.list_sessions()] == ["k1", "k0", "k2"]


async def test_listing_filters_limits_and_passes_over(store: SessionStorage) -> None:
    for number in range(6):
        await store.upsert_session(
            node_of(
                f"k{number}",
                updated_at=100 - number,
                agent_id="a" if number % 2 else "b",
                status="done" if number < 3 else "running",
                spawned_by="k0" if number in (1, 2) else None,
            )
        )

    async def keys(*args: Any, **given: Any) -> str:
        return " ".join(node.session_key for node in await store.list_sessions(*args, **given))

    assert await keys("a") == "k1 k3 k5"
    assert await keys(None, "done") == "k0 k1 k2"
    assert await keys(agent_id="b", status="done") == "k0 k2"
    assert await keys(spawned_by="k0") == "k1 k2"
    assert await keys(spawned_by="k0", agent_id="a") == "k1"
    assert await keys(limit=2) == "k0 k1"
    assert await keys(limit=2, offset=3) == "k3 k4"
    assert await keys(offset=5) == "k5"
    assert await keys(limit=0) == await keys(offset=6) == await keys(agent_id="nobody") == ""
    assert await store.count_sessions() == 6
    assert await store.count_sessions("a") == 3
    assert await store.count_sessions("a", "done") == 1
    assert await store.count_sessions(status="running") == 3


async def test_a_negative_limit_or_offset_is_refused(store: SessionStorage) -> None:
    for given in ({"limit": -1}, {"offset": -1}):
        with pytest.raises(ValueError, match="must not be negative"):
            await store.list_sessions(**given)


async def test_a_listing_has_a_hundred_sessions_and_a_count_has_all(store: SessionStorage) -> None:
    for number in range(103):
        await store.upsert_session(node_of(f"k{number}"))
    assert len(await store.list_sessions()) == 100
    assert len(await store.list_sessions(limit=None)) == await store.count_sessions() == 103


async def test_sessions_that_cannot_be_read_never_hide_the_rest(root: Path, store: SessionStorage) -> None:
    node = await store.upsert_session(node_of(updated_at=1))
    await say(store, node, "word")
    broken = []
    for number in range(3):
        await store.upsert_session(node_of(f"broken{number}"))
        broken.append(root / "sessions" / session_dir_name(f"broken{number}"))
        for manifest in broken[-1].glob("manifest.*"):
            manifest.unlink()
    await store.close()
    # A later format, a directory where a log should be, a link where the session's directory should be.
    (log,) = broken[0].glob("transcript.*")
    log.write_text(log.read_text().replace('"format":1', '"format":2'))
    (log,) = broken[1].glob("transcript.*")
    log.unlink()
    log.mkdir()
    broken[2].rename(root / "elsewhere")
    broken[2].symlink_to(root / "elsewhere")
    async with SessionStorage(root) as again:
        assert [found.session_key for found in await again.list_sessions()] == [KEY]
        assert await again.count_sessions() == 1
        assert len(await again.search_transcript("word")) == 1
        for number in range(3):
            with pytest.raises(Exception, match=r"format version 2|regular file|symbolic link"):
                await again.get_session(f"broken{number}")


@pytest.mark.parametrize("value", [None, "yesterday", [], {}, True, 1.5])
async def test_a_time_that_is_no_number_neither_hides_nor_stops_the_rest(
    root: Path, store: SessionStorage, value: Any
) -> None:
    node = await store.upsert_session(node_of())
    await say(store, node, "word")
    odd = await store.upsert_session(node_of(OTHER))
    await store.close()
    path = next(path for path in logs(root) if session_dir_name(OTHER) in str(path))
    line = {"type": "session", "id": 9, "record": "r9", "set": {"updated_at": value}}
    message = {"type": "message", "id": 10, "message_id": "m10", "role": "user", "created_at": value, "content": "word"}
    with path.open("ab") as file:
        file.write(json.dumps(line).encode() + b"\n" + json.dumps(message).encode() + b"\n")
    async with SessionStorage(root) as again:
        assert {found.session_key for found in await again.list_sessions()} == {KEY, OTHER}
        assert len(await again.search_transcript("word")) == 2
        assert len(await again.search_sessions_by_title("word")) == 0
        assert await again.prune_stale_sessions(10**15) == 0
        assert await again.get_session(OTHER) is not None
        assert await again.count_transcript_entries_batch([odd.session_id]) == {odd.session_id: 1}
        # Where no time is known, the log that says it may not have arrived yet.
        assert await again.delete_stale(OTHER, updated_before_ms=10**15) is (value == 1.5)


# --- fences ----------------------------------------------------------------------------------------------------------


async def test_incrementing_the_epoch_fences_writers_and_closes_nothing(store: SessionStorage) -> None:
    node = await store.upsert_session(node_of(input_tokens=3))
    await say(store, node, "one")
    await store.save_summary(summary(node, "so far"))
    await store.save_context_state(state(node))
    assert await store.increment_epoch(KEY) == 1
    assert await store.increment_epoch(KEY) == 2
    assert await store.get_epoch(KEY) == 2
    with pytest.raises(StaleEpochError) as raised:
        await store.append_transcript_entry(entry(node, "late"), expected_epoch=0)
    error = raised.value
    assert (error.session_key, error.expected_epoch, error.actual_epoch) == (KEY, 0, 2)
    assert await said(store, node.session_id) == ["one"]
    assert len(await store.get_all_summaries(node.session_id)) == 1
    assert len(await store.get_context_states(KEY)) == 1
    node.epoch = 2
    assert await store.get_session(KEY) == node


async def test_the_epoch_of_a_missing_session_is_zero(store: SessionStorage) -> None:
    assert await store.get_epoch(KEY) == 0
    await store.upsert_session(node_of(epoch=3))
    await store.delete_session(KEY)
    assert await store.get_epoch(KEY) == 0


async def test_a_fence_that_another_store_set_is_seen_before_writing(root: Path, store: SessionStorage) -> None:
    node = await store.upsert_session(node_of())
    await say(store, node, "one")
    async with SessionStorage(root, device="laptop") as other:
        await other.increment_epoch(KEY)
    with pytest.raises(StaleEpochError) as raised:
        await store.append_transcript_entry(entry(node, "late"), expected_epoch=0)
    assert raised.value.actual_epoch == 1
    assert await said(store, node.session_id) == ["one"]


# --- the end ---------------------------------------------------------------------------------------------------------


async def test_deleting_takes_everything_of_the_session_and_nothing_else(root: Path, store: SessionStorage) -> None:
    other = await store.upsert_session(node_of(OTHER))
    await say(store, other, "word")
    node = await store.upsert_session(node_of())
    await say(store, node, "word", "more")
    await store.save_summary(summary(node, "so far", flush_receipt_status="degraded_forensic"))
    await store.save_context_state(state(node))
    assert await store.delete_session(KEY) is True
    assert await store.get_session(KEY) is None
    assert [found.session_key for found in await store.list_sessions()] == [OTHER]
    assert await store.get_canonical_transcript(node.session_id) == []
    assert await store.get_all_summaries(node.session_id) == []
    assert await store.get_context_states(KEY, valid_only=False) == []
    assert await store.list_degraded_summaries() == []
    assert [hit["session_key"] for hit in await store.search_transcript("word")] == [OTHER]
    assert not (root / "sessions" / session_dir_name(KEY)).exists()
    assert await said(store, other.session_id) == ["word"]
    assert await store.delete_session(KEY) is False


async def test_a_session_created_again_starts_one_epoch_above_and_empty(root: Path, store: SessionStorage) -> None:
    old = await store.upsert_session(filled(node_of(epoch=4)))
    await say(store, old, "old")
    await store.delete_session(KEY)
    new = await store.upsert_session(node_of())
    assert new.epoch == 5
    expected = node_of(session_id=new.session_id, created_at=new.created_at, updated_at=new.updated_at, epoch=5)
    assert await store.get_session(KEY) == new == expected
    assert await store.get_canonical_transcript(new.session_id) == []
    assert await store.get_canonical_transcript(old.session_id) == []
    await say(store, new, "new")
    with pytest.raises(StaleEpochError):
        await say(store, old, "late")
    async with SessionStorage(root) as other:
        assert await said(other, new.session_id) == ["new"]
        assert await other.get_epoch(KEY) == 5
    await store.delete_session(KEY)
    assert (await store.create_session(node_of())).epoch == 6


async def test_pruning_goes_by_the_recorded_time_and_never_by_a_files(root: Path, store: SessionStorage) -> None:
    fresh = await store.upsert_session(node_of())
    for number in range(3):
        await store.upsert_session(node_of(f"old{number}", updated_at=fresh.updated_at - 100_000))
    for path in root.rglob("*"):
        os.utime(path, (1, 1)) if session_dir_name(KEY) in str(path) else os.utime(path)
    assert await store.prune_stale_sessions(200_000) == 0
    assert await store.prune_stale_sessions(50_000) == 3
    assert [node.session_key for node in await store.list_sessions()] == [KEY]


async def test_pruning_leaves_a_session_that_is_locked(root: Path, store: SessionStorage) -> None:
    for key in ("a", "b"):
        await store.upsert_session(node_of(key, updated_at=1))
    lock = LockFile(Files(), str(root / ".local" / "locks" / f"{session_dir_name('a')}.lock"))
    assert lock.try_acquire()
    assert await store.prune_stale_sessions(1000) == 1
    assert [node.session_key for node in await store.list_sessions()] == ["a"]
    lock.close()
    assert await store.prune_stale_sessions(1000) == 1


async def test_pruning_leaves_a_session_that_was_touched_since_it_was_listed(root: Path) -> None:
    class TouchedMeanwhile(SessionStorage):
        async def list_sessions(self, *args: Any, **given: Any) -> list[SessionNode]:
            listed = await super().list_sessions(*args, **given)
            await self.update_session(KEY, {"updated_at": 10**15})
            return listed

    async with TouchedMeanwhile(root) as store:
        await store.upsert_session(node_of(updated_at=1))
        assert await store.prune_stale_sessions(1000) == 0
        assert await store.session_exists(KEY)


async def test_a_stale_session_is_deleted_only_while_it_still_is(store: SessionStorage) -> None:
    await store.upsert_session(node_of(updated_at=100))
    assert await store.delete_stale(KEY, updated_before_ms=100) is False
    assert await store.delete_stale(OTHER) is False
    assert await store.delete_stale(KEY, updated_before_ms=101) is True
    assert await store.get_session(KEY) is None


async def test_a_session_that_another_holds_is_waited_for_and_then_refused_naming_the_holder(root: Path) -> None:
    async with SessionStorage(root, lock_timeout=0.02) as store:
        node = await store.upsert_session(node_of())
        path = root / ".local" / "locks" / f"{session_dir_name(KEY)}.lock"
        holder = LockFile(Files(), str(path))
        assert holder.try_acquire()
        before = tree(root)
        with pytest.raises(LockTimeoutError) as raised:
            await say(store, node, "one")
        assert isinstance(raised.value, TimeoutError)
        assert (raised.value.path, raised.value.timeout) == (str(path), 0.02)
        assert raised.value.holder is not None
        assert raised.value.holder["pid"] == os.getpid()
        with pytest.raises(LockTimeoutError):
            await store.increment_epoch(KEY)
        assert await store.get_session(KEY) == node
        assert tree(root) == before
        holder.close()
        await say(store, node, "two")
        assert await said(store, node.session_id) == ["two"]


def test_every_field_of_a_session_is_either_a_field_or_a_counter_or_its_identity() -> None:
    assert SESSION_FIELDS | SESSION_COUNTERS | {"session_key", "epoch"} == {f.name for f in fields(SessionNode)}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("display_name", 5),
        ("label", ["a"]),
        ("started_at", "yesterday"),
        ("spawn_depth", "1"),
        ("fast_mode", 1),
        ("updated_at", None),
        ("status", 3),
        ("spawn_depth", True),
    ],
)
async def test_a_value_that_a_field_cannot_have_is_refused_and_nothing_is_written(
    root: Path, store: SessionStorage, name: str, value: object
) -> None:
    node = await store.upsert_session(node_of())
    before = kept(root)
    with pytest.raises(UnstorableTypeError, match=name):
        await store.update_session(KEY, {name: value})
    setattr(node, name, value)
    with pytest.raises(UnstorableTypeError, match=name):
        await store.upsert_session(node)
    node.session_key = "another"
    with pytest.raises(UnstorableTypeError, match=name):
        await store.create_session(node)
    assert kept(root) == before


async def test_a_value_of_another_program_that_a_field_cannot_have_leaves_it_its_default(
    root: Path, store: SessionStorage
) -> None:
    await store.upsert_session(node_of(display_name="shown"))
    await store.close()
    (log,) = logs(root)
    with log.open("a") as file:
        given = '{"display_name":5,"started_at":"x","spawn_depth":"1","label":"kept","origin":[1]}'
        file.write(f'{{"type":"session","id":9,"record":"odd","set":{given}}}\n')
    async with SessionStorage(root) as again:
        node = await again.get_session(KEY)
        assert node is not None
        assert (node.display_name, node.started_at, node.spawn_depth, node.label) == (None, None, 0, "kept")
        assert node.origin == [1]
        assert [found.session_key for found in await again.search_sessions_by_title("kept")] == [KEY]
