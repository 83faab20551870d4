"""Versions: what this version does not know is kept, what it cannot know is refused, what is older loads."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stores import KEY, said, say, state, stored, summary, tree

from squilla_files import findings
from squilla_files.codec import decode_document, encode_document, encode_line
from squilla_files.errors import UnsupportedFormatError
from squilla_files.layout import session_dir_name
from squilla_files.models import STORED_DEFAULTS, SessionContextState, SessionNode, SessionSummary
from squilla_files.storage import SessionStorage

CHILD = "agent:main:child"


def opened(root: Path, device: str = "laptop") -> SessionStorage:
    return SessionStorage(root, device=device, durability="os")


@pytest.fixture
def session(root: Path) -> Path:
    return root / "sessions" / session_dir_name(KEY)


async def made(root: Path) -> SessionNode:
    async with opened(root) as store:
        node = await store.upsert_session(SessionNode(session_key=KEY, model="m"))
        await say(store, node, "one", "two")
        await store.save_summary(summary(node, "some", trigger_reason="window", tokens_before=7))
        await store.save_context_state(state(node, payload={"a": 1}))
        return await stored(store)


def live(session: Path) -> Path:
    (path,) = session.glob("transcript.laptop.*")
    return path


def extend(path: Path, *lines: bytes) -> None:
    with path.open("ab") as file:
        file.write(b"".join(lines))


async def compact(store: SessionStorage, kept: int) -> None:
    node = await stored(store)
    entries = await store.get_transcript(node.session_id)
    await store.rewrite_compacted_session(
        node=node, summary=summary(node, "more"), entries=entries[len(entries) - kept :]
    )


# --- what is not known is kept ---------------------------------------------------------------------------------------

# As a later version of the same major format may write them; spelled in a way that this version would not choose.
UNKNOWN_KIND = b'{ "type":"reaction", "id":50, "record":"r50", "e":"\\u2764", "set":{"mood":"up"}, "add":{"n":2} }\n'
UNKNOWN_FIELD = (
    b'{"type":"message","id":51,"message_id":"m51","after":"m50","color":[1.50,{"x":1e2}],"content":"new"}\n'
)
UNKNOWN_MEMBERS = b'{"type":"session","id":52,"record":"r52","later":{"k":[]},"set":{"aura":{"hue":3},"label":"L"}}\n'
UNKNOWN = (UNKNOWN_KIND, UNKNOWN_FIELD, UNKNOWN_MEMBERS)


async def test_unknown_records_and_members_are_ignored_when_reading_and_are_no_damage(
    root: Path, session: Path
) -> None:
    node = await made(root)
    extend(live(session), *UNKNOWN)
    async with opened(root) as store:
        assert await said(store, node.session_id) == ["one", "two", "new"]
        assert (await stored(store)).label == "L"
        kinds = {found.kind for found in (await store.verify()).findings}
    assert kinds <= {findings.MANIFEST_STALE}


async def test_unknown_records_and_members_survive_appends_compaction_sealing_and_reset(
    root: Path, session: Path
) -> None:
    node = await made(root)
    extend(live(session), *UNKNOWN)
    async with opened(root) as store:
        await say(store, node, "four")
        await compact(store, 2)
        assert UNKNOWN_FIELD in live(session).read_bytes()
        assert UNKNOWN_MEMBERS in live(session).read_bytes()
        await say(store, node, "five")
        await compact(store, 1)
        await store.reset_session(KEY, reason="test")
        await store.repair()
    kept = b"".join(path.read_bytes() for path in (session / "archive").iterdir())
    assert all(line in kept for line in UNKNOWN)


async def test_an_unknown_field_whose_setting_still_counts_is_carried_along(root: Path, session: Path) -> None:
    await made(root)
    extend(live(session), *UNKNOWN)
    async with opened(root) as store:
        for _ in range(3):
            await say(store, await stored(store), "more")
            await compact(store, 0)
    assert UNKNOWN_KIND in live(session).read_bytes()
    assert UNKNOWN_MEMBERS in live(session).read_bytes()
    manifest = json.loads((session / "manifest.laptop.json").read_bytes())
    assert (manifest["session"]["mood"], manifest["session"]["aura"], manifest["session"]["n"]) == (
        "up",
        {"hue": 3},
        2,
    )


async def test_unknown_members_of_an_entry_are_taken_along_by_a_fork(root: Path, session: Path) -> None:
    await made(root)
    extend(live(session), *UNKNOWN)
    async with opened(root) as store:
        child = SessionNode(session_key=CHILD, parent_session_key=KEY)
        await store.branch_session(KEY, child, entries="live")
        assert await said(store, (await stored(store, CHILD)).session_id) == ["one", "two", "new"]
    logs = (root / "sessions" / session_dir_name(CHILD)).rglob("transcript.*")
    assert any(b'"color":[1.50,{"x":1e2}]' in path.read_bytes() for path in logs)


async def test_unknown_members_of_a_document_are_ignored_and_stay(root: Path, session: Path) -> None:
    node = await made(root)
    path = session / "summaries" / "000001.laptop.json"
    data = path.read_bytes().replace(b'"type"', b'"later": [1.50], "type"', 1)
    path.write_bytes(data)
    async with opened(root) as store:
        (found,) = await store.get_all_summaries(node.session_id)
        assert found.summary_text == "some"
        assert await store.update_summary_flush_receipt_status(found.id, "ok")
        await compact(store, 1)
        assert (await store.get_all_summaries(node.session_id))[0].flush_receipt_status == "ok"
    assert path.read_bytes() == data


async def test_unknown_members_of_the_store_file_and_a_manifest_are_no_damage(root: Path, session: Path) -> None:
    node = await made(root)
    (root / "store.json").write_bytes(b'{"format":"squilla_files","version":1,"later":true}')
    manifest = session / "manifest.laptop.json"
    manifest.write_bytes(encode_document({**json.loads(manifest.read_bytes()), "later": [1]}))
    before = tree(root, stamps=True)
    async with opened(root) as store:
        assert await said(store, node.session_id) == ["one", "two"]
        assert (await store.verify()).findings == ()
    assert tree(root, stamps=True) == before


# --- what cannot be known is refused ---------------------------------------------------------------------------------


def later_store(root: Path, session: Path) -> Path:
    path = root / "store.json"
    path.write_bytes(b'{"format":"squilla_files","version":2}')
    return path


def later_log(root: Path, session: Path) -> Path:
    path = live(session)
    path.write_bytes(path.read_bytes().replace(b'"format":1', b'"format":2', 1))
    return path


def later_log_of_another(root: Path, session: Path) -> Path:
    path = session / "transcript.desk.000001.jsonl"
    path.write_bytes(live(session).read_bytes().replace(b'"format":1', b'"format":3', 1))
    path.chmod(0o600)
    return path


def later_manifest(root: Path, session: Path) -> Path:
    path = session / "manifest.laptop.json"
    path.write_bytes(path.read_bytes().replace(b'"format": 1', b'"format": 2', 1))
    return path


def later_document(name: str) -> Callable[[Path, Path], Path]:
    def make(root: Path, session: Path) -> Path:
        path = session / name / "000001.laptop.json"
        path.write_bytes(path.read_bytes().replace(b'"format": 1', b'"format": 2', 1))
        return path

    return make


def later_deletion(root: Path, session: Path) -> Path:
    path = root / "deleted" / f"{session.name}.{'0' * 16}.json"
    path.parent.mkdir(mode=0o700)
    path.write_bytes(encode_line({"format": 2, "session_key": KEY, "epoch": 1}))
    path.chmod(0o600)
    return path


Spoil = Callable[[Path, Path], Path]
READ = {
    "log": (later_log, lambda store, node: store.get_session(KEY)),
    "log of another device": (later_log_of_another, lambda store, node: store.get_session(KEY)),
    "manifest": (later_manifest, lambda store, node: store.get_session(KEY)),
    "deletion": (later_deletion, lambda store, node: store.get_session(KEY)),
    "summary": (later_document("summaries"), lambda store, node: store.read_summaries(KEY)),
    "context state": (later_document("contexts"), lambda store, node: store.get_context_states(KEY)),
}
WRITE = {
    "log": lambda store, node: say(store, node, "three"),
    "log of another device": lambda store, node: say(store, node, "three"),
    "manifest": lambda store, node: store.reset_session(KEY, reason="test"),
    "deletion": lambda store, node: store.upsert_session(SessionNode(session_key=KEY)),
    "summary": lambda store, node: store.reset_session(KEY, reason="test"),
    "context state": lambda store, node: store.invalidate_context_states(KEY, reason="test"),
}


@pytest.mark.parametrize("name", READ)
async def test_a_later_major_version_is_refused_by_file_and_version_and_nothing_is_touched(
    root: Path, session: Path, name: str
) -> None:
    node = await made(root)
    spoil, read = READ[name]
    path = spoil(root, session)
    before = tree(root / "sessions", stamps=True)
    async with opened(root) as store:
        for operation in (read, WRITE[name]):
            with pytest.raises(UnsupportedFormatError) as raised:
                await operation(store, node)
            assert Path(raised.value.path) == path
            assert raised.value.version in (2, 3)
            assert path.name in str(raised.value)
            assert str(raised.value.version) in str(raised.value)
        report = await store.verify()
        later = [found for found in report.findings if found.kind == findings.LATER_FORMAT]
        assert [found.path for found in later] == [path.relative_to(root).as_posix()]
        assert str(raised.value.version) in later[0].detail
        assert not report.ok
        assert (await store.repair()).actions == ()
    assert tree(root / "sessions", stamps=True) == before


async def test_a_later_major_version_of_the_store_is_refused_when_it_is_opened(root: Path, session: Path) -> None:
    await made(root)
    path = later_store(root, session)
    before = tree(root, stamps=True)
    with pytest.raises(UnsupportedFormatError) as raised:
        await SessionStorage.open(root)
    assert (Path(raised.value.path), raised.value.version) == (path, 2)
    assert tree(root, stamps=True) == before


async def test_a_session_of_a_later_version_hides_no_other(root: Path, session: Path) -> None:
    await made(root)
    async with opened(root) as store:
        other = await store.upsert_session(SessionNode(session_key=CHILD))
        await say(store, other, "here")
    later_log_of_another(root, session)
    async with opened(root) as store:
        assert [node.session_key for node in await store.list_sessions()] == [CHILD]
        assert await said(store, other.session_id) == ["here"]


# --- what is older loads ---------------------------------------------------------------------------------------------


def strip(path: Path, keep: set[str]) -> None:
    document: dict[str, Any] = decode_document(path.read_bytes()) or {}
    path.write_bytes(encode_document({name: value for name, value in document.items() if name in keep}))


async def test_a_summary_that_lacks_later_fields_loads_with_their_defaults(root: Path, session: Path) -> None:
    node = await made(root)
    strip(session / "summaries" / "000001.laptop.json", {"type", "id", "session_id", "session_key", "summary_text"})
    async with opened(root) as store:
        (found,) = await store.get_all_summaries(node.session_id)
    defaults = STORED_DEFAULTS[SessionSummary]
    given = {"id", "session_id", "session_key", "summary_text", "compaction_index"}
    assert found.summary_text == "some"
    assert {name: value for name, value in found.model_dump(mode="json").items() if name not in given} == {
        name: value for name, value in defaults.items() if name not in given
    }


async def test_a_context_state_that_lacks_later_fields_loads_with_their_defaults(root: Path, session: Path) -> None:
    node = await made(root)
    strip(session / "contexts" / "000001.laptop.json", {"type", "id", "session_id", "session_key", "state_kind"})
    async with opened(root) as store:
        (found,) = await store.get_context_states(KEY)
    defaults = STORED_DEFAULTS[SessionContextState]
    given = {"id", "session_id", "session_key", "state_kind"}
    assert (found.session_id, found.session_key, found.state_kind) == (node.session_id, KEY, "kind")
    assert {name: value for name, value in found.model_dump(mode="json").items() if name not in given} == {
        name: value for name, value in defaults.items() if name not in given
    }


async def test_a_message_and_a_session_that_lack_fields_load_with_their_defaults(root: Path, session: Path) -> None:
    await made(root)
    extend(live(session), b'{"type":"message","id":60,"message_id":"m60","after":"x"}\n')
    async with opened(root) as store:
        node = await stored(store)
        found = (await store.get_transcript(node.session_id))[-1]
    assert (found.message_id, found.role, found.content, found.tool_calls, found.schema_version) == (
        "m60",
        "",
        None,
        None,
        1,
    )


async def test_a_format_that_is_left_out_is_the_first(root: Path, session: Path) -> None:
    node = await made(root)
    log = live(session)
    log.write_bytes(log.read_bytes().replace(b'"format":1,', b"", 1))
    for path in (*session.glob("*/*.json"), *session.glob("manifest.*")):
        path.write_bytes(path.read_bytes().replace(b'"format": 1,', b"", 1))
    async with opened(root) as store:
        assert await said(store, node.session_id) == ["one", "two"]
        assert len(await store.get_all_summaries(node.session_id)) == 1
        assert len(await store.get_context_states(KEY)) == 1
        kinds = {found.kind for found in (await store.verify()).findings}
    # The log is shorter than the manifest knows it, which is all that is to be said.
    assert kinds == {findings.MANIFEST_STALE, findings.MISSING_RECORDS}
