"""Check, repair, how far a session has arrived: every kind of finding, and that repair does no more than it says."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from faulty_files import Call, FaultyFiles
from stores import KEY, call, public_methods, said, say, state, stored, summary, tree
from written import head, message

from squilla_files import findings
from squilla_files.codec import encode_document
from squilla_files.errors import CorruptFileError, LockTimeoutError
from squilla_files.findings import KINDS, Finding, Report
from squilla_files.layout import Layout, session_dir_name
from squilla_files.locks import LockFile
from squilla_files.models import SessionNode
from squilla_files.storage import SessionStorage

DIR = session_dir_name(KEY)
OTHER = "agent:main:other"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def session(root: Path) -> Path:
    return root / "sessions" / DIR


def opened(root: Path, device: str = "laptop", **given: object) -> SessionStorage:
    return SessionStorage(root, device=device, **{"durability": "os", **given})  # type: ignore[arg-type]


async def made(root: Path, key: str = KEY) -> SessionNode:
    """Make a session with an archived message, a live one, a summary, a state, a sealed log and a manifest."""
    async with opened(root) as store:
        node = await store.upsert_session(SessionNode(session_key=key))
        await say(store, node, "one", "two")
        await store.rewrite_compacted_session(
            node=await stored(store, key),
            summary=summary(node, "one"),
            entries=(await store.get_transcript(node.session_id))[1:],
            context_states=[state(node)],
        )
        await say(store, node, "three")
        return await stored(store, key)


async def compact(store: SessionStorage, kept: int = 1) -> None:
    """Archive all but the last messages, which seals the log."""
    node = await stored(store)
    entries = await store.get_transcript(node.session_id)
    await store.rewrite_compacted_session(
        node=node, summary=summary(node, "again"), entries=entries[len(entries) - kept :], context_states=[state(node)]
    )


async def verified(root: Path, key: str | None = None) -> Report:
    """Check a store, and hold that this changes nothing."""
    before = tree(root, stamps=True)
    async with opened(root) as store:
        report = await store.verify(key)
    assert tree(root, stamps=True) == before
    return report


def kinds(report: Report) -> list[str]:
    return sorted(found.kind for found in report.findings)


def one(report: Report, kind: str) -> Finding:
    (found,) = [found for found in report.findings if found.kind == kind]
    assert found.severity == KINDS[kind][0] or kind == findings.FOREIGN
    assert found.detail
    assert found.advice
    return found


def live(session: Path, device: str = "laptop") -> Path:
    (path,) = session.glob(f"transcript.{device}.*.jsonl")
    return path


# --- a store in good order -------------------------------------------------------------------------------------------


async def test_a_store_in_good_order_has_no_findings_and_repair_does_nothing(root: Path) -> None:
    await made(root)
    await made(root, OTHER)
    report = await verified(root)
    assert report == Report(())
    assert report.ok
    before = tree(root, stamps=True)
    async with opened(root) as store:
        assert await store.repair() == Report(())
        assert await store.repair(KEY) == Report(())
    assert tree(root, stamps=True) == before


async def test_a_store_that_is_not_there_has_no_findings_and_comes_from_no_check(root: Path) -> None:
    async with opened(root) as store:
        assert await store.verify() == await store.verify(KEY) == await store.repair() == Report(())
        assert (await store.sync_status(KEY)).devices == ()
    assert not root.exists()


async def test_whatever_has_happened_to_a_session_leaves_it_in_good_order(root: Path) -> None:
    async with opened(root) as store:
        for key in (KEY, OTHER):
            node = await store.upsert_session(SessionNode(session_key=key))
            await say(store, node, "one", "two")
            await store.truncate_session(key, 1)
            await store.reset_session(key, reason="test")
            await say(store, await stored(store, key), "three")
            await store.delete_summaries(node.session_id)
        await store.delete_session(KEY)
        await store.upsert_session(SessionNode(session_key=KEY))
    assert await verified(root) == Report(())


async def test_reading_changes_nothing_whatever_is_read(root: Path) -> None:
    node = await made(root)
    shutil.rmtree(root / ".local")
    before = tree(root, stamps=True)
    async with SessionStorage(root) as store:
        for name in public_methods(with_key=False):
            if name.startswith(("get_", "list_", "count_", "read_", "search_", "iter_", "snapshot", "verify", "sync_")):
                await call(store, name, KEY, node.session_id)
        await store.repair(dry_run=True)
    assert tree(root, stamps=True) == before
    assert not (root / ".local").exists()


# --- every kind of finding -------------------------------------------------------------------------------------------


def write(path: Path, data: bytes) -> Path:
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.write_bytes(data)
    path.chmod(0o600)
    return path


def desk_log(session: Path, *lines: bytes, log: str = "d1", source: object = None, name: str = "desk.000001") -> Path:
    return write(session / f"transcript.{name}.jsonl", head(log, "desk", source=source) + b"".join(lines))


def spoil(path: Path, at: int, data: bytes) -> Path:
    content = path.read_bytes()
    return write(path, content[:at] + data + content[at + len(data) :])


Spoil = Callable[[Path, Path], Path]


def copy_of(change: Callable[[bytes], bytes]) -> Spoil:
    def make(root: Path, session: Path) -> Path:
        return write(session / "transcript (conflict).jsonl", change(live(session).read_bytes()))

    return make


def local(*parts: str) -> Spoil:
    return lambda root, session: write(root.joinpath(".local", *parts), b"left")


def moved(source: Callable[[Path, Path], Path], name: str) -> Spoil:
    def make(root: Path, session: Path) -> Path:
        path = source(root, session)
        return path.rename(path.parent / name)

    return make


def manifest(root: Path, session: Path) -> Path:
    return session / "manifest.laptop.json"


def the_summary(root: Path, session: Path) -> Path:
    return session / "summaries" / "000001.laptop.json"


def emptied(path: Path) -> Path:
    return write(path, b"")


def removed(path: Path) -> Path:
    path.unlink()
    return path


def a_directory(path: Path) -> Path:
    path.mkdir(mode=0o700)
    return path


def twin(root: Path, session: Path) -> Path:
    return Path(shutil.copytree(session, session.with_name(f"{DIR} (1)")))


def linked(path: Path, target: Path) -> Path:
    path.symlink_to(target)
    return path


def opened_up(path: Path, mode: int) -> Path:
    path.chmod(mode)
    return path


def fifo(root: Path, session: Path) -> Path:
    os.mkfifo(session / "pipe", 0o600)
    return session / "pipe"


FOREIGN_LOG = head("f1", "desk").replace(KEY.encode(), OTHER.encode())
LATER_LOG = head("f1", "desk").replace(b'"format":1', b'"format":2')

# kind → what brings it about; the path that is returned is the one that is reported.
RULES: list[tuple[str, Spoil]] = [
    (findings.DAMAGED_LINE, lambda root, session: spoil(live(session), 40, b"\x00")),
    (findings.DAMAGED_LINE, lambda root, session: emptied(session / "transcript.desk.000001.jsonl")),
    (findings.TORN_TAIL, lambda root, session: desk_log(session, message(9, "m9"), b'{"type":"mess')),
    (findings.MANIFEST_MISSING, lambda root, session: removed(manifest(root, session))),
    (findings.MANIFEST_CORRUPT, lambda root, session: emptied(manifest(root, session))),
    (findings.MANIFEST_CORRUPT, lambda root, session: write(session / "manifest.desk.json", b'{"type":"manif')),
    (
        findings.MANIFEST_WRONG,
        lambda root, session: write(
            manifest(root, session), manifest(root, session).read_bytes().replace(b'"running"', b'"done"')
        ),
    ),
    (findings.MISSING_LOG, lambda root, session: desk_log(session, message(9, "m9"), log="d2", source=("d1", [2]))),
    (findings.PLACEHOLDER, lambda root, session: write(session / ".transcript.desk.000001.jsonl.icloud", b"")),
    (findings.CORRUPT_DOCUMENT, lambda root, session: write(session / "contexts" / "000009.desk.json", b"{}\n}")),
    (findings.CORRUPT_DOCUMENT, lambda root, session: write(root / "archives" / "x.json", b"{")),
    (findings.CORRUPT_DOCUMENT, lambda root, session: write(root / ".local" / "devices" / "0a.json", b"\0\0")),
    (findings.CORRUPT_DELETION, lambda root, session: write(root / "deleted" / f"{DIR}.{'0' * 16}.json", b"{}")),
    (findings.LATER_FORMAT, lambda root, session: write(session / "transcript.desk.000001.jsonl", LATER_LOG)),
    (findings.LATER_FORMAT, lambda root, session: write(session / "manifest.desk.json", b'{"format":2}')),
    (
        findings.LATER_FORMAT,
        lambda root, session: write(session / "summaries" / "9.json", b'{"type":"summary","id":"s9","format":2}'),
    ),
    (
        findings.LATER_FORMAT,
        lambda root, session: write(root / "deleted" / f"{DIR}.{'0' * 16}.json", b'{"format":2,"epoch":1}'),
    ),
    (findings.SYMLINK, lambda root, session: linked(session / "link", root)),
    (findings.SYMLINK, lambda root, session: linked(session / "archive" / "transcript.desk.000001.jsonl", root)),
    (findings.SYMLINK, lambda root, session: linked(root / "sessions" / session_dir_name(OTHER), session)),
    (findings.SPECIAL_FILE, fifo),
    (findings.SPECIAL_FILE, lambda root, session: a_directory(session / "transcript.desk.000001.jsonl")),
    (findings.SPECIAL_FILE, lambda root, session: a_directory(removed(manifest(root, session)))),
    (findings.SPECIAL_FILE, lambda root, session: a_directory(
        a_directory(root / "deleted") / f"{DIR}.{'0' * 16}.json"
    )),
    (findings.WRONG_MODE, lambda root, session: opened_up(root, 0o755)),
    (findings.WRONG_MODE, lambda root, session: opened_up(root / "store.json", 0o644)),
    (findings.WRONG_MODE, lambda root, session: opened_up(root / "sessions", 0o711)),
    (findings.WRONG_MODE, lambda root, session: opened_up(session, 0o750)),
    (findings.WRONG_MODE, lambda root, session: opened_up(session / "archive", 0o500)),
    (findings.WRONG_MODE, lambda root, session: opened_up(live(session), 0o640)),
    (findings.WRONG_MODE, lambda root, session: opened_up(the_summary(root, session), 0o400)),
    (findings.WRONG_MODE, lambda root, session: opened_up(root / ".local" / "locks" / f"{DIR}.lock", 0o666)),
    (findings.TEMPORARY, lambda root, session: write(session / "~sqf-0a.tmp", b"half")),
    (findings.TEMPORARY, lambda root, session: write(session / "summaries" / "~sqf-0a.tmp", b"half")),
    (findings.TEMPORARY, lambda root, session: write(root / "deleted" / "~sqf-0a.tmp", b"half")),
    (findings.TEMPORARY, lambda root, session: write(root / "~sqf-0a.tmp", b"half")),
    (findings.TEMPORARY, local("memory", "~sqf-0a.tmp")),
    (findings.TEMPORARY, lambda root, session: a_directory(root / "sessions" / "~sqf-0a.tmp")),
    (findings.TRASH, lambda root, session: a_directory(root / ".local" / "trash") and a_directory(
        root / ".local" / "trash" / f"{DIR}.{'0' * 16}"
    )),
    (findings.UNREFERENCED, lambda root, session: write(
        session / "summaries" / "000009.desk.json", encode_document({"type": "summary", "id": "s9"})
    )),
    (findings.EMPTY_DIRECTORY, lambda root, session: a_directory(root / "sessions" / session_dir_name(OTHER))),
    (findings.IDENTICAL, copy_of(lambda data: data)),
    (findings.SHORTER, copy_of(lambda data: data[: data.rfind(b"\n", 0, -1) + 1])),
    (findings.DIVERGED, copy_of(lambda data: data + message(99, "m99", "m98"))),
    (findings.DIVERGED, lambda root, session: write(
        session / "transcript.desk.000001 (1).jsonl", head("d1", "desk") + message(99, "m99")
    )),
    (findings.IDENTICAL, lambda root, session: write(
        session / "summaries" / "copy.json", the_summary(root, session).read_bytes()
    )),
    (findings.DIVERGED, lambda root, session: write(
        session / "summaries" / "copy.json", the_summary(root, session).read_bytes().replace(b'"one"', b'"two"')
    )),
    (findings.TWIN, twin),
    (findings.FOREIGN, lambda root, session: write(session / "transcript.desk.000001.jsonl", FOREIGN_LOG)),
    (findings.FOREIGN, lambda root, session: write(session / "notes.txt", b"mine")),
    (findings.FOREIGN, lambda root, session: write(session / "other" / "notes.txt", b"mine")),
    (findings.FOREIGN, lambda root, session: write(session / "manifest.laptop (1).json", b"{}")),
    (findings.FOREIGN, lambda root, session: write(session / "summaries" / "x.json", b"{}")),
    (findings.FOREIGN, lambda root, session: write(root / "sessions" / "notes.txt", b"mine")),
    (findings.FOREIGN, lambda root, session: write(root / "deleted" / "notes.txt", b"mine")),
    (findings.FOREIGN, lambda root, session: write(root / "notes.txt", b"mine")),
    (findings.FOREIGN, lambda root, session: a_directory(root / "sessions" / "Not a session")),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "spoil"), RULES, ids=[kind for kind, _ in RULES])
async def test_what_is_wrong_is_found_with_its_kind_and_path(
    root: Path, session: Path, kind: str, spoil: Spoil
) -> None:
    await made(root)
    path = spoil(root, session)
    report = await verified(root)
    found = [item for item in report.findings if item.kind == kind]
    assert [item.path for item in found] == [path.relative_to(root).as_posix()]
    below = path == session or session in path.parents
    assert {item.session_key for item in found if below} <= {KEY}
    assert report.ok == all(item.severity != "error" for item in report.findings)
    if below:
        assert set(found) <= set((await verified(root, KEY)).findings)


async def test_kinds_that_need_more_than_one_file_are_covered_below() -> None:
    alone = {findings.STORE_MISSING, findings.STORE_CORRUPT, findings.UNREADABLE, findings.MANIFEST_STALE}
    several = {findings.MISSING_DOCUMENT, findings.MISSING_RECORDS, findings.UNMOVED_LOG, findings.DELETED_REST}
    assert {kind for kind, _ in RULES} | alone | several | {findings.BACK} == set(KINDS)


async def test_a_store_file_that_is_gone_is_missed_and_made_anew(root: Path) -> None:
    await made(root)
    data = (root / "store.json").read_bytes()
    (root / "store.json").unlink()
    assert one(await verified(root), findings.STORE_MISSING).path == "store.json"
    async with opened(root) as store:
        assert [found.kind for found in (await store.repair()).actions] == [findings.STORE_MISSING]
    assert (root / "store.json").read_bytes() == data


async def test_a_store_file_that_breaks_while_the_store_is_open_is_an_error_and_made_anew(root: Path) -> None:
    await made(root)
    data = (root / "store.json").read_bytes()
    async with opened(root) as store:
        write(root / "store.json", b"{")
        report = await store.verify()
        assert one(report, findings.STORE_CORRUPT).severity == "error"
        assert not report.ok
        assert (await store.repair()).ok
        assert await store.verify() == Report(())
    assert (root / "store.json").read_bytes() == data


async def test_a_store_file_stays_as_it_is_where_a_later_version_has_been_at_work(root: Path, session: Path) -> None:
    await made(root)
    write(session / "transcript.desk.000001.jsonl", LATER_LOG)
    (root / "store.json").unlink()
    async with opened(root) as store:
        assert (await store.repair()).actions == ()
    assert not (root / "store.json").exists()


async def test_a_manifest_that_was_overtaken_is_worth_knowing_and_no_more(root: Path, session: Path) -> None:
    await made(root)
    desk_log(session, message(9, "m9"))
    report = await verified(root)
    assert one(report, findings.MANIFEST_STALE).path == f"sessions/{DIR}/manifest.laptop.json"
    assert report.ok


async def test_a_summary_that_a_record_names_and_that_is_not_here_is_missed_where_the_record_stands(
    root: Path, session: Path
) -> None:
    await made(root)
    the_summary(root, session).unlink()
    found = one(await verified(root), findings.MISSING_DOCUMENT)
    data = (root / found.path).read_bytes()
    assert found.offset is not None
    assert data[found.offset :].startswith(b'{"type":"compaction"')


async def test_a_manifest_of_another_device_that_is_ahead_tells_what_is_missing(root: Path, session: Path) -> None:
    await made(root)
    async with opened(root, "desk") as store:
        await say(store, await stored(store), "of the desk")
    log = live(session, "desk")
    log.unlink()
    found = one(await verified(root), findings.MISSING_RECORDS)
    assert found.path == f"sessions/{DIR}/manifest.desk.json"
    assert log.name in found.detail


async def test_a_sealed_log_that_was_not_moved_is_found(root: Path, session: Path) -> None:
    await made(root)
    (sealed,) = (session / "archive").iterdir()
    sealed.rename(session / sealed.name)
    assert one(await verified(root), findings.UNMOVED_LOG).path == f"sessions/{DIR}/{sealed.name}"


async def test_what_is_left_of_a_deleted_session_is_found_and_nothing_else_is_said_of_it(
    root: Path, session: Path, tmp_path: Path
) -> None:
    await made(root)
    shutil.copytree(session, tmp_path / "kept")
    async with opened(root) as store:
        await store.delete_session(KEY)
    shutil.copytree(tmp_path / "kept", session)
    report = await verified(root)
    assert kinds(report) == [findings.DELETED_REST]
    assert report.findings[0].session_key == KEY


async def test_a_session_that_came_back_after_its_deletion_is_flagged(root: Path, session: Path) -> None:
    await made(root)
    async with opened(root) as store:
        await store.delete_session(KEY)
    session.mkdir(mode=0o700)
    desk_log(session, message(9, "m9"))
    assert one(await verified(root), findings.BACK).session_key == KEY


async def test_a_copied_directory_is_a_twin_and_its_session_is_listed_once(root: Path, session: Path) -> None:
    await made(root)
    twin(root, session)
    found = one(await verified(root), findings.TWIN)
    assert found.session_key == KEY
    async with opened(root) as store:
        assert [node.session_key for node in await store.list_sessions()] == [KEY]


async def test_every_damaged_line_is_listed_with_its_offset(root: Path, session: Path) -> None:
    await made(root)
    lines = [message(9, "m9"), b"\n", b"\x00\x00\x00\n", message(10, "m10", "m9"), b'{"type":1}\n', b"[]\n"]
    log = desk_log(session, *lines)
    report = await verified(root)
    damaged = [found.offset for found in report.findings if found.kind == findings.DAMAGED_LINE]
    data = log.read_bytes()
    assert damaged == [data.index(b"\n\n") + 1, data.index(b"\x00"), data.index(b'{"type":1}'), data.index(b"[]")]
    async with opened(root) as store:
        node = await stored(store)
        assert {"m9", "m10"} <= {found.message_id for found in await store.get_transcript(node.session_id)}


# --- what cannot be read ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [errno.EACCES, errno.EIO, errno.ESTALE])
@pytest.mark.parametrize(
    ("suffix", "name"),
    [
        ("transcript.desk.000001.jsonl", "read_file"),
        ("manifest.laptop.json", "read_file"),
        ("000001.laptop.json", "read_file"),
        ("archive", "scan"),
        (DIR, "scan"),
        ("sessions", "scan"),
        ("store.json", "read_file"),
        ("deleted", "scan"),
        ("deleted", "stat"),
        ("archives", "scan"),
        (".local", "scan"),
    ],
)
async def test_what_cannot_be_read_is_an_error_among_the_findings_and_hides_no_other(
    root: Path, session: Path, code: int, suffix: str, name: str
) -> None:
    await made(root)
    await made(root, OTHER)
    async with opened(root) as store:
        await store.reset_session(OTHER, reason="test")
        await store.delete_session(OTHER)
        await store.upsert_session(SessionNode(session_key=OTHER))
    desk_log(session, message(9, "m9"))
    write(root / "notes.txt", b"mine")
    files = FaultyFiles()
    store = opened(root, files=files)
    await store.connect()

    def matching(call: Call) -> bool:
        return call.name == name and call.path.endswith(suffix)

    for _ in range(40):
        files.fail_at(1, code, matching=matching)
    report = await store.verify()
    files.heal()
    await store.close()
    unreadable = [found for found in report.findings if found.kind == findings.UNREADABLE]
    assert unreadable
    assert all(found.severity == "error" and os.strerror(code) in found.detail for found in unreadable)
    assert any(found.path.endswith(suffix) for found in unreadable)
    assert not report.ok
    assert one_of(report, "notes.txt")


def one_of(report: Report, path: str) -> bool:
    return [found.path for found in report.findings].count(path) == 1


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
async def test_a_process_that_is_out_of_resources_is_told_so(root: Path, code: int) -> None:
    await made(root)
    files = FaultyFiles()
    async with opened(root, files=files) as store:
        files.fail_at(1, code, matching=lambda call: call.path.endswith(".jsonl"))
        with pytest.raises(OSError, match=re.escape(os.strerror(code))):
            await store.verify()
        assert (await store.verify()).ok


async def test_an_unreadable_session_hides_no_other_and_repair_leaves_it_alone(root: Path, session: Path) -> None:
    await made(root)
    await made(root, OTHER)
    other = root / "sessions" / session_dir_name(OTHER)
    path = write(other / "~sqf-0a.tmp", b"half")
    link = linked(session / "archive" / "transcript.desk.000001.jsonl", root / "store.json")
    before = tree(session, stamps=True)
    async with opened(root) as store:
        report = await store.repair()
    assert [found.kind for found in report.actions] == [findings.TEMPORARY]
    assert not path.exists()
    assert link.is_symlink()
    assert tree(session, stamps=True) == before


# --- repair ----------------------------------------------------------------------------------------------------------


def leave_all(root: Path, session: Path) -> set[str]:
    """Leave behind whatever a crash can leave; return the paths of what is mended."""
    (sealed,) = (session / "archive").iterdir()
    sealed.rename(session / sealed.name)
    paths = [
        session / sealed.name,
        write(session / "~sqf-0a.tmp", b"half"),
        write(session / "contexts" / "~sqf-0b.tmp", b"half"),
        write(root / "deleted" / "~sqf-0c.tmp", b"half"),
        write(root / ".local" / "memory" / "~sqf-0d.tmp", b"half"),
        write(root / "~sqf-0e.tmp", b"half"),
        write(a_directory(root / "sessions" / "~sqf-0f.tmp") / "transcript.laptop.000001.jsonl", b"").parent,
        write(session / "summaries" / "000002.laptop.json", encode_document({"type": "summary", "id": "s9"})),
        write(session / "contexts" / "000002.laptop.json", encode_document({"type": "context", "id": "k9"})),
        write(manifest(root, session), b"{"),
        a_directory(root / "sessions" / session_dir_name(OTHER)),
        a_directory(root / ".local" / "trash" / f"{DIR}.{'0' * 16}"),
        opened_up(the_summary(root, session), 0o644),
        opened_up(root / "store.json", 0o444),
    ]
    write(a_directory(root / "sessions" / session_dir_name(OTHER) / "archive") / "~sqf-0a.tmp", b"")
    return {path.relative_to(root).as_posix() for path in paths}


async def full(root: Path) -> SessionNode:
    """Make a store in which every directory is there."""
    node = await made(root)
    await made(root, OTHER)
    async with opened(root) as store:
        await store.delete_session(OTHER)
    return node


async def test_repair_finishes_whatever_crashed_operations_left_and_a_second_one_does_nothing(
    root: Path, session: Path
) -> None:
    node = await full(root)
    async with opened(root) as store:
        before = await store.get_canonical_transcript(node.session_id)
    left = leave_all(root, session)
    async with opened(root) as store:
        report = await store.repair()
        assert left <= {found.path for found in report.actions}
        assert report.ok
        assert report.findings == report.actions
        after = tree(root, stamps=True)
        assert await store.repair() == Report(())
        assert tree(root, stamps=True) == after
        assert await store.verify() == Report(())
        assert await store.get_canonical_transcript(node.session_id) == before
    assert not list(root.rglob("~sqf-*"))
    assert not list((root / ".local" / "trash").iterdir())


async def test_a_dry_run_says_what_would_be_done_and_does_nothing(root: Path, session: Path) -> None:
    await full(root)
    leave_all(root, session)
    before = tree(root, stamps=True)
    async with opened(root) as store:
        dry = await store.repair(dry_run=True)
        assert tree(root, stamps=True) == before
        done = await store.repair()
    assert {(found.path, found.action) for found in dry.actions} <= {(f.path, f.action) for f in done.actions}
    assert {found.path for found in dry.actions} | {f"sessions/{session_dir_name(OTHER)}"} == {
        found.path for found in done.actions
    }


async def test_repair_of_one_session_touches_no_other(root: Path, session: Path) -> None:
    await full(root)
    leave_all(root, session)
    elsewhere = {path: data for path, data in tree(root, stamps=True).items() if DIR not in path}
    async with opened(root) as store:
        report = await store.repair(KEY)
        assert all(found.path.startswith(f"sessions/{DIR}") for found in report.actions)
    after = tree(root, stamps=True)
    lasting = [path for path in elsewhere if not path.startswith(".local")]
    assert {path: after[path] for path in lasting if path != "sessions"} == {
        path: elsewhere[path] for path in lasting if path != "sessions"
    }


async def test_a_file_that_is_closed_to_its_owner_is_opened_and_then_read(root: Path, session: Path) -> None:
    await made(root)
    log = desk_log(session, message(9, "m9"), b"{")
    log.chmod(0)
    async with opened(root) as store:
        report = await store.repair()
        assert [found.kind for found in report.actions if found.path.endswith(log.name)] == [findings.WRONG_MODE]
        assert one(report, findings.TORN_TAIL).path.endswith(log.name)


async def test_documents_that_no_record_names_stay_where_a_record_may_be_missing(root: Path, session: Path) -> None:
    await made(root)
    path = write(session / "summaries" / "000002.laptop.json", encode_document({"type": "summary", "id": "s9"}))
    log = desk_log(session, message(9, "m9"), b"{")
    async with opened(root) as store:
        await store.repair()
        assert path.exists()
        log.unlink()
        await store.repair()
        assert path.exists()
        desk_log(session, message(9, "m9"), message(10, "m10", "m9"))
        await store.repair()
    assert not path.exists()


async def test_documents_and_logs_of_other_devices_stay_where_they_are(root: Path, session: Path) -> None:
    await made(root)
    async with opened(root, "desk") as store:
        await say(store, await stored(store), "of the desk")
        await compact(store)
    (sealed,) = (session / "archive").glob("transcript.desk.*")
    unmoved = sealed.rename(session / sealed.name)
    unnamed = write(session / "summaries" / "000002.desk.json", encode_document({"type": "summary", "id": "s9"}))
    broken = write(session / "manifest.desk.json", b"{")
    async with opened(root) as store:
        report = await store.repair()
        assert {found.kind for found in report.findings if not found.action} >= {
            findings.UNMOVED_LOG,
            findings.UNREFERENCED,
            findings.MANIFEST_CORRUPT,
        }
    assert unmoved.exists()
    assert unnamed.exists()
    assert broken.read_bytes() == b"{"


async def test_a_device_without_memory_of_its_log_mends_nothing_in_its_name(root: Path, session: Path) -> None:
    await made(root)
    shutil.rmtree(root / ".local" / "memory")
    path = write(session / "summaries" / "000002.laptop.json", encode_document({"type": "summary", "id": "s9"}))
    async with opened(root) as store:
        assert findings.UNREFERENCED not in {found.kind for found in (await store.repair()).actions}
    assert path.exists()


async def test_copies_and_twins_are_reported_and_stay(root: Path, session: Path) -> None:
    await made(root)
    for name, spoil in RULES:
        if name in (findings.IDENTICAL, findings.SHORTER, findings.DIVERGED, findings.FOREIGN):
            spoil(root, session)
    twin(root, session)
    async with opened(root) as store:
        await store.repair()
        before = tree(root, stamps=True)
        assert {found.kind for found in (await store.repair()).findings} >= {findings.DIVERGED, findings.TWIN}
    assert tree(root, stamps=True) == before


async def test_several_sealed_logs_that_were_not_moved_are_moved_at_once(root: Path, session: Path) -> None:
    node = await made(root)
    async with opened(root) as store:
        await say(store, node, "four")
        await compact(store)
    sealed = [path.rename(session / path.name) for path in (session / "archive").iterdir()]
    assert len(sealed) == 2
    async with opened(root) as store:
        report = await store.repair(KEY)
    moved = [found for found in report.actions if found.kind == findings.UNMOVED_LOG]
    assert [found.action for found in moved] == ["moved to archive/"] * 2
    assert sorted(path.name for path in (session / "archive").iterdir()) == sorted(path.name for path in sealed)


async def test_the_remains_of_a_deleted_session_are_removed(root: Path, session: Path, tmp_path: Path) -> None:
    await made(root)
    shutil.copytree(session, tmp_path / "kept")
    async with opened(root) as store:
        await store.delete_session(KEY)
        shutil.copytree(tmp_path / "kept", session)
        report = await store.repair()
        assert [found.kind for found in report.actions] == [findings.DELETED_REST]
        assert not session.exists()
        assert await store.get_session(KEY) is None
        assert await store.verify() == Report(())


async def test_the_remains_of_a_deleted_session_stay_where_another_session_is_among_them(
    root: Path, session: Path, tmp_path: Path
) -> None:
    await made(root)
    shutil.copytree(session, tmp_path / "kept")
    async with opened(root) as store:
        await store.delete_session(KEY)
        shutil.copytree(tmp_path / "kept", session)
        foreign = write(session / "transcript.desk.000001.jsonl", FOREIGN_LOG)
        assert (await store.repair()).actions == ()
    assert foreign.exists()


async def test_repair_of_a_session_waits_for_its_lock(root: Path, session: Path) -> None:
    await made(root)
    path = write(session / "~sqf-0a.tmp", b"half")
    files = FaultyFiles()
    lock = LockFile(files, Layout(str(root)).lock_file(DIR))
    assert lock.try_acquire()
    async with opened(root, lock_timeout=0.0) as store:
        with pytest.raises(LockTimeoutError):
            await store.repair(KEY)
        report = await store.repair()
        assert "not mended" in one(report, findings.TEMPORARY).detail
        assert path.exists()
        lock.close()
        assert (await store.repair(KEY)).actions
    assert not path.exists()


async def test_an_unfinished_file_outside_of_a_session_stays_while_anybody_is_at_work(root: Path) -> None:
    await made(root)
    path = write(root / "deleted" / "~sqf-0a.tmp", b"half")
    lock = LockFile(FaultyFiles(), Layout(str(root)).lock_file(session_dir_name(OTHER)))
    assert lock.try_acquire()
    async with opened(root, lock_timeout=0.0) as store:
        assert (await store.repair()).actions == ()
        assert path.exists()
        lock.close()
        assert [found.kind for found in (await store.repair()).actions] == [findings.TEMPORARY]
    assert not path.exists()


async def test_what_repair_cannot_mend_is_told_and_stops_nothing_else(root: Path, session: Path) -> None:
    await made(root)
    stuck = write(session / "~sqf-0a.tmp", b"half")
    loose = write(session / "~sqf-0b.tmp", b"half")
    files = FaultyFiles()
    async with opened(root, files=files) as store:
        files.fail_at(1, errno.EPERM, matching=lambda call: call.name == "unlink" and call.path == str(stuck))
        report = await store.repair()
    assert [found.path for found in report.actions] == [f"sessions/{DIR}/{loose.name}"]
    assert os.strerror(errno.EPERM) in one_left(report).detail


def one_left(report: Report) -> Finding:
    (found,) = [found for found in report.findings if not found.action]
    return found


async def test_a_session_is_repaired_while_it_is_open_and_goes_on(root: Path, session: Path) -> None:
    async with opened(root) as store:
        node = await store.upsert_session(SessionNode(session_key=KEY))
        await say(store, node, "one", "two", "three")
        await compact(store)
        (sealed,) = (session / "archive").iterdir()
        sealed.rename(session / sealed.name)
        await store.repair()
        await say(store, node, "four")
        assert await said(store, node.session_id) == ["three", "four"]
    assert await verified(root) == Report(())


async def test_a_deletion_that_cannot_be_read_stops_its_session_and_no_repair_guesses(
    root: Path, session: Path
) -> None:
    await made(root)
    path = write(root / "deleted" / f"{DIR}.{'0' * 16}.json", b"{")
    async with opened(root) as store:
        with pytest.raises(CorruptFileError):
            await store.get_session(KEY)
        assert (await store.repair()).actions == ()
    assert path.exists()
    assert session.exists()


# --- how far a session has arrived -----------------------------------------------------------------------------------


async def test_the_status_lists_every_device_with_its_logs_entries_and_last_id(root: Path, session: Path) -> None:
    await made(root)
    async with opened(root, "desk") as store:
        await say(store, await stored(store), "of the desk", "and more")
    async with opened(root) as store:
        status = await store.sync_status(KEY)
        last = (await store.get_transcript((await stored(store)).session_id))[-1]
    assert status.session_key == KEY
    assert [(d.device, d.own, d.entries) for d in status.devices] == [("desk", False, 2), ("laptop", True, 3)]
    assert status.devices[0].last_id == last.id
    assert status.devices[0].logs == (live(session, "desk").name,)
    assert len(status.devices[1].logs) == 2
    assert status.missing == ()


async def test_the_status_names_whatever_is_spoken_of_and_not_here(root: Path, session: Path) -> None:
    await made(root)
    async with opened(root, "desk") as store:
        node = await stored(store)
        await say(store, node, "of the desk", "and more")
        await compact(store)
    (sealed,) = (session / "archive").glob("transcript.desk.*")
    for path in (sealed, *session.glob("*/*.desk.json")):
        path.unlink()
    write(session / ".transcript.phone.000001.jsonl.icloud", b"")
    write(session / "archive" / ".transcript.phone.000000.jsonl.icloud", b"")
    async with opened(root) as store:
        missing = (await store.sync_status(KEY)).missing
    assert [(item.kind, item.device) for item in missing] == [
        ("context", "desk"),
        ("log", "desk"),
        ("placeholder", "phone"),
        ("placeholder", "phone"),
        ("records", "desk"),
        ("summary", "desk"),
    ]
    assert all(item.name and item.detail for item in missing)
    names = {item.name for item in missing if item.kind in ("placeholder", "records")}
    assert names == {
        "transcript.phone.000001.jsonl",
        "archive/transcript.phone.000000.jsonl",
        f"archive/{sealed.name}",
    }


async def test_a_log_that_grew_elsewhere_is_known_by_the_manifest_that_came_first(root: Path, session: Path) -> None:
    await made(root)
    async with opened(root, "desk") as store:
        node = await stored(store)
        await say(store, node, "first")
    log = live(session, "desk")
    before = log.read_bytes()
    async with opened(root, "desk") as store:
        await say(store, node, "second")
    size = log.stat().st_size
    write(log, before)
    async with opened(root) as store:
        (missing,) = (await store.sync_status(KEY)).missing
    assert (missing.kind, missing.name, missing.device) == ("records", log.name, "desk")
    assert f"{len(before)} of {size} bytes" in missing.detail


async def test_a_page_is_not_complete_where_a_log_is_not_on_this_machine(root: Path, session: Path) -> None:
    await made(root)
    async with opened(root) as store:
        assert (await store.read_page(KEY, limit=10))[2]
        write(session / ".transcript.desk.000001.jsonl.icloud", b"")
        assert not (await store.read_page(KEY, limit=10))[2]


async def test_a_check_while_others_are_at_work_finds_nothing_wrong(root: Path) -> None:
    async with opened(root) as store, opened(root, "desk") as desk:
        await store.upsert_session(SessionNode(session_key=KEY))

        async def work(at: SessionStorage) -> None:
            for number in range(6):
                await say(at, await stored(at), f"{number}", "and more")
                await compact(at, 0)

        working = asyncio.gather(work(store), work(desk))
        reports = []
        while not working.done():
            reports.append(await store.verify())
        await working
    usual = {findings.MANIFEST_STALE, findings.TEMPORARY, findings.TORN_TAIL, findings.UNMOVED_LOG}
    found = {item.kind for report in reports for item in report.findings}
    assert len(reports) > 1
    assert found <= usual | {findings.UNREFERENCED, findings.MISSING_RECORDS}
    assert set(kinds(await verified(root))) <= {findings.MANIFEST_STALE}


async def test_a_log_with_a_key_that_no_session_can_have_is_foreign_and_hides_nothing(
    root: Path, session: Path
) -> None:
    await made(root)
    path = write(session / "a copy.jsonl", head("f1", "desk").replace(KEY.encode(), b" "))
    found = one(await verified(root), findings.FOREIGN)
    assert (found.path, found.severity) == (path.relative_to(root).as_posix(), "warning")
    async with opened(root) as store:
        assert [node.session_key for node in await store.list_sessions()] == [KEY]


async def test_two_contents_of_one_record_are_told_apart_by_their_bytes(root: Path, session: Path) -> None:
    await made(root)
    desk_log(session, message(9, "m9", content="a"), message(9, "m9", content="b"))
    report = await verified(root)
    assert kinds(report) == [findings.MANIFEST_STALE]


async def test_the_manifest_of_another_session_is_wrong_here_and_stays(root: Path, session: Path) -> None:
    await made(root)
    await made(root, OTHER)
    other = root / "sessions" / session_dir_name(OTHER)
    path = write(session / "manifest.desk.json", manifest(root, other).read_bytes().replace(b'"laptop"', b'"desk"'))
    found = one(await verified(root), findings.MANIFEST_WRONG)
    assert found.path == path.relative_to(root).as_posix()
    async with opened(root) as store:
        assert (await store.repair()).actions == ()
        assert (await store.sync_status(KEY)).missing == ()


async def test_a_manifest_that_cannot_be_understood_keeps_nothing_from_the_status(root: Path, session: Path) -> None:
    await made(root)
    write(session / "manifest.desk.json", b"{")
    write(session / "manifest.phone.json", b'{"format":2}')
    async with opened(root) as store:
        status = await store.sync_status(KEY)
    assert [device.device for device in status.devices] == ["laptop"]
    assert status.missing == ()


async def test_a_manifest_from_before_a_deletion_misses_nothing(root: Path, session: Path) -> None:
    await made(root)
    old = manifest(root, session).read_bytes().replace(b'"laptop"', b'"desk"')
    async with opened(root) as store:
        await store.delete_session(KEY)
        await store.upsert_session(SessionNode(session_key=KEY))
        write(session / "manifest.desk.json", old)
        assert (await store.sync_status(KEY)).missing == ()
        assert await store.verify() == Report(())


@pytest.mark.parametrize(
    ("data", "kind"),
    [(b"{", findings.CORRUPT_DELETION), (b'{"format":2}', findings.LATER_FORMAT)],
)
async def test_a_deletion_of_a_session_of_which_nothing_is_here_is_looked_at_as_well(
    root: Path, data: bytes, kind: str
) -> None:
    await made(root)
    path = write(root / "deleted" / f"{session_dir_name(OTHER)}.{'0' * 16}.json", data)
    assert one(await verified(root), kind).path == path.relative_to(root).as_posix()


async def test_a_store_that_becomes_a_later_one_while_it_is_open_is_reported_and_left(root: Path) -> None:
    await made(root)
    async with opened(root) as store:
        write(root / "store.json", b'{"format":"squilla_files","version":2}')
        report = await store.repair()
        assert report.actions == ()
        assert one(report, findings.LATER_FORMAT).path == "store.json"


async def test_repair_needs_nothing_of_this_machine_to_be_there(root: Path) -> None:
    await made(root)
    shutil.rmtree(root / ".local")
    path = write(root / "deleted" / "~sqf-0a.tmp", b"half")
    async with opened(root) as store:
        assert [found.kind for found in (await store.repair()).actions] == [findings.TEMPORARY]
    assert not path.exists()
