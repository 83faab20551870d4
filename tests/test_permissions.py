"""Private: modes whatever the umask is, and no symbolic link is followed below the root."""

from __future__ import annotations

import os
import stat
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from stores import KEY, entry, said, say, state, stored, summary, tree

from squilla_files.errors import UnsafePathError
from squilla_files.files import Files
from squilla_files.layout import Layout, session_dir_name
from squilla_files.models import SessionNode
from squilla_files.storage import SessionStorage

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has neither these modes nor links without a privilege")

OTHER = "agent:main:other"


def wrong_modes(root: Path) -> dict[str, str]:
    """Return what is not private, the root included: path → mode."""
    found = {}
    for path in (root, *root.rglob("*")):
        status = path.lstat()
        if status.st_mode & 0o777 != (0o700 if stat.S_ISDIR(status.st_mode) else 0o600):
            found[str(path.relative_to(root))] = f"{status.st_mode:o}"
    return found


class Watched(Files):
    """A disk that looks at the mode of every file and directory the moment after it was made."""

    def __init__(self) -> None:
        super().__init__("os")
        self.made: list[tuple[str, int]] = []

    def create(self, path: str) -> int:
        fd = super().create(path)
        self.made.append((path, os.fstat(fd).st_mode & 0o777))
        return fd

    def mkdir(self, path: str) -> None:
        super().mkdir(path)
        self.made.append((path, os.lstat(path).st_mode & 0o777))


@pytest.fixture(params=[0, 0o022, 0o777], ids=lambda mask: f"umask {mask:03o}")
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


async def everything(store: SessionStorage) -> None:
    """Do whatever makes files: sessions, messages, summaries, states, a seal, a reset, a deletion, a repair."""
    for key in (KEY, OTHER):
        node = await store.upsert_session(SessionNode(session_key=key))
        await say(store, node, "one", "two", "three")
        await store.save_summary(summary(node, "all of it"))
        await store.save_context_state(state(node))
        await store.truncate_session(key, 1)
        await store.rewrite_compacted_session(
            node=await stored(store, key), summary=summary(node, "again"), entries=[], context_states=[state(node)]
        )
        await say(store, node, "four")
        await store.reset_session(key, reason="test")
    await store.delete_session(OTHER)
    await store.repair()


async def test_whatever_the_umask_files_are_0600_and_directories_0700(tmp_path: Path, umask: None) -> None:
    root = tmp_path / "store"
    files = Watched()
    async with SessionStorage(root, files=files, durability="os") as store:
        await everything(store)
        assert wrong_modes(root) == {}
    assert wrong_modes(root) == {}
    made = {"/".join(Path(path).relative_to(root).parts[:1]) for path, _ in files.made}
    assert {"sessions", "archives", "deleted", ".local", "."} <= made | {"."}
    assert any(path.endswith(".lock") for path, _ in files.made)
    temporary = [mode for path, mode in files.made if os.path.basename(path).startswith("~sqf-")]
    assert set(temporary) == {0o600}
    assert {mode for path, mode in files.made if mode not in (0o600, 0o700)} == set()


async def test_the_directory_of_archives_that_is_made_is_private(tmp_path: Path, umask: None) -> None:
    elsewhere = tmp_path / "closed" / "generations"
    async with SessionStorage(tmp_path / "store", archive_dir=elsewhere) as store:
        await everything(store)
    assert list(elsewhere.iterdir())
    assert wrong_modes(tmp_path / "closed") == {}


async def test_a_directory_of_archives_that_exists_keeps_its_mode(tmp_path: Path) -> None:
    elsewhere = tmp_path / "closed"
    elsewhere.mkdir()
    elsewhere.chmod(0o750)
    async with SessionStorage(tmp_path / "store", archive_dir=elsewhere) as store:
        await everything(store)
    assert elsewhere.stat().st_mode & 0o777 == 0o750
    assert {path.stat().st_mode & 0o777 for path in elsewhere.iterdir()} == {0o600}


# --- modes that others gave -----------------------------------------------------------------------------------------


async def made(root: Path) -> SessionNode:
    async with SessionStorage(root, device="laptop", durability="os") as store:
        await everything(store)
        return await stored(store)


def expose(root: Path) -> None:
    for path in (root / "sessions").rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)


async def test_modes_that_a_sync_service_changed_are_set_again_by_the_next_write(tmp_path: Path) -> None:
    root = tmp_path / "store"
    node = await made(root)
    expose(root)
    async with SessionStorage(root, device="laptop", durability="os") as store:
        await say(store, node, "five")
        session = root / "sessions" / session_dir_name(KEY)
        exposed = [path for path in wrong_modes(session) if path == "." or path.endswith("jsonl") or path == "archive"]
        assert exposed == []
    assert wrong_modes(root) == {}


async def test_the_log_of_another_device_that_arrives_open_to_others_is_made_private(tmp_path: Path) -> None:
    root = tmp_path / "store"
    node = await made(root)
    session = root / "sessions" / session_dir_name(KEY)
    async with SessionStorage(root, device="laptop", durability="os") as store:
        await say(store, node, "five")
        arrived = session / "transcript.desk.000001.jsonl"
        arrived.write_bytes(next(session.glob("transcript.laptop.*")).read_bytes().replace(b'"laptop"', b'"desk"'))
        arrived.chmod(0o666)
        await say(store, node, "six")
        assert arrived.stat().st_mode & 0o777 == 0o600


async def test_reading_leaves_modes_as_they_are(tmp_path: Path) -> None:
    root = tmp_path / "store"
    node = await made(root)
    expose(root)
    before = tree(root, stamps=True)
    async with SessionStorage(root, device="laptop", durability="os") as store:
        assert await said(store, node.session_id) == []
        await store.list_sessions()
        await store.verify()
    assert tree(root, stamps=True) == before


class WithoutModes(Files):
    """A file system on which modes cannot be changed, as one that was made for another system."""

    def chmod(self, path: str, mode: int) -> None:
        raise PermissionError(1, "Operation not permitted", path)


async def test_a_mode_that_cannot_be_set_stops_no_write_and_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "store"
    node = await made(root)
    expose(root)
    async with SessionStorage(root, device="laptop", durability="os", files=WithoutModes()) as store:
        await say(store, node, "five", "six")
        assert await said(store, node.session_id) == ["five", "six"]
    told = [record.message for record in caplog.records if "stays open to others" in record.message]
    assert len(told) == len(set(told)) > 0


# --- links ----------------------------------------------------------------------------------------------------------


def place(root: Path, name: str) -> Path:
    """Return where in a store with one session the thing with this name stands."""
    session = root / "sessions" / session_dir_name(KEY)
    places = {
        "sessions": root / "sessions",
        "session": session,
        "archive": session / "archive",
        "summaries": session / "summaries",
        "contexts": session / "contexts",
        "log": next(session.glob("transcript.*")),
        "sealed log": next((session / "archive").iterdir()),
        "manifest": next(session.glob("manifest.*")),
        "lock": Path(Layout(str(root)).lock_file(session_dir_name(KEY))),
        "locks": root / ".local" / "locks",
        "local": root / ".local",
        "memory": root / ".local" / "memory",
        "store file": root / "store.json",
        "deleted": root / "deleted",
        "archives": root / "archives",
    }
    return places[name]


Operation = Callable[[SessionStorage, SessionNode], Awaitable[object]]

OPERATIONS: dict[str, Operation] = {
    "append": lambda store, node: store.append_transcript_entry(entry(node, "five")),
    "save summary": lambda store, node: store.save_summary(summary(node, "more")),
    "save state": lambda store, node: store.save_context_state(state(node)),
    "delete": lambda store, node: store.delete_session(KEY),
    "reset": lambda store, node: store.reset_session(KEY, reason="test"),
    "get": lambda store, node: store.get_session(KEY),
    "read summaries": lambda store, node: store.read_summaries(KEY),
    "read states": lambda store, node: store.get_context_states(KEY),
}

COMMON = ("sessions", "session", "archive", "log", "sealed log", "manifest", "local", "memory", "deleted")
REFUSED = [
    *(("append", name) for name in (*COMMON, "lock", "locks")),
    *(("get", name) for name in COMMON),
    *(("delete", name) for name in COMMON),
    *(("reset", name) for name in COMMON),
    ("save summary", "summaries"),
    ("read summaries", "summaries"),
    ("save state", "contexts"),
    ("read states", "contexts"),
]


@pytest.mark.parametrize(("verb", "name"), REFUSED)
async def test_a_link_is_refused_and_neither_followed_nor_written_through(tmp_path: Path, verb: str, name: str) -> None:
    root, outside = tmp_path / "store", tmp_path / "outside"
    node = await made(root)
    async with SessionStorage(root, device="laptop", durability="os") as store:
        await say(store, node, "four")
        await store.truncate_session(KEY, 0)
        await store.save_summary(summary(await stored(store), "some"))
        await store.save_context_state(state(await stored(store)))
    path = place(root, name)
    path.rename(outside)
    path.symlink_to(outside)
    before = outside.read_bytes() if outside.is_file() else tree(outside, stamps=True)
    async with SessionStorage(root, device="laptop", durability="os") as store:
        with pytest.raises(UnsafePathError):
            await OPERATIONS[verb](store, node)
        report = await store.verify()
        assert not report.ok
        linked = [found for found in report.findings if found.kind == "symlink"]
        assert str(path.relative_to(root)) in {found.path for found in linked}
        await store.repair()
    assert path.is_symlink()
    assert (outside.read_bytes() if outside.is_file() else tree(outside, stamps=True)) == before


async def test_a_link_in_place_of_the_store_file_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "store"
    await made(root)
    (root / "store.json").rename(tmp_path / "outside")
    (root / "store.json").symlink_to(tmp_path / "outside")
    with pytest.raises(UnsafePathError):
        await SessionStorage.open(root)


async def test_a_link_that_leads_nowhere_is_refused_like_any_other(tmp_path: Path) -> None:
    root = tmp_path / "store"
    node = await made(root)
    path = place(root, "log")
    path.unlink()
    path.symlink_to(tmp_path / "nowhere")
    async with SessionStorage(root, device="laptop", durability="os") as store:
        with pytest.raises(UnsafePathError):
            await say(store, node, "five")
    assert not (tmp_path / "nowhere").exists()


async def test_a_link_in_the_archives_makes_the_reset_go_on_without_the_document(tmp_path: Path) -> None:
    root, outside = tmp_path / "store", tmp_path / "outside"
    node = await made(root)
    (root / "archives").rename(outside)
    (root / "archives").symlink_to(outside)
    before = tree(outside)
    async with SessionStorage(root, device="laptop", durability="os") as store:
        await say(store, node, "five")
        await store.reset_session(KEY, reason="test")
        assert await said(store, (await stored(store)).session_id) == []
    assert tree(outside) == before


async def test_the_root_itself_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "root").symlink_to(tmp_path / "real")
    async with SessionStorage(tmp_path / "root") as store:
        node = await store.upsert_session(SessionNode(session_key=KEY))
        await say(store, node, "hello")
        assert await said(store, node.session_id) == ["hello"]
        assert (await store.verify()).ok
