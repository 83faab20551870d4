"""Stores behind a sync service: what files mean that come from elsewhere, one by one, in any order."""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from written import KEY, call, head, line, message, result

from squilla_files import layout
from squilla_files.errors import MessageConflictError
from squilla_files.files import DirEntryInfo, Files
from squilla_files.models import SessionNode, TranscriptEntry
from squilla_files.storage import SessionStorage

VECTORS = [json.loads(line) for line in (Path(__file__).parent / "data" / "merge.jsonl").read_bytes().splitlines()]
every_vector = pytest.mark.parametrize("vector", VECTORS, ids=[v["name"] for v in VECTORS])


# --- stores made of files -----------------------------------------------------------------------------------------


def put(root: Path, name: str, data: bytes, *, in_place: bool = False) -> None:
    """Bring a file as a service does: under another name first, or into the file that is there."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if in_place:
        path.write_bytes(data)
        return
    arriving = path.with_name(".arriving.tmp")
    arriving.write_bytes(data)
    arriving.rename(path)


def files_of(vector: dict[str, Any]) -> dict[str, bytes]:
    """The files of a vector, by their paths in a store."""
    directory = layout.session_dir_name(vector["session_key"])
    files = {f"sessions/{directory}/{name}": text.encode() for name, text in vector["files"].items()}
    for number, document in enumerate(vector["deleted"]):
        files[f"deleted/{layout.deletion_name(directory, f'{number:016x}')}"] = json.dumps(document).encode()
    return files


def lay_out(root: Path, vector: dict[str, Any]) -> None:
    for name, data in files_of(vector).items():
        put(root, name, data)


def everything(root: Path) -> dict[str, tuple[int, int, bytes]]:
    """Every name below *root* with mode, time and bytes."""

    def walk(directory: Path) -> Iterator[Path]:
        for path in directory.iterdir():
            yield path
            if path.is_dir():
                yield from walk(path)

    return {
        str(path): (path.stat().st_mode, path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in walk(root)
    }


async def answers(store: SessionStorage, key: str) -> dict[str, Any]:
    """What a store says of a session, in the shape in which the vectors say it."""
    node = await store.get_session(key)
    assert (node is not None) == await store.session_exists(key)
    if node is None:
        assert await store.get_epoch(key) == 0
        assert await store.list_sessions(limit=None) == []
        return {"exists": False}
    assert await store.list_sessions(limit=None) == [node]
    canonical = await store.get_canonical_transcript(node.session_id)
    live = await store.get_transcript(node.session_id)
    assert [e async for e in store.iter_transcript(node.session_id, canonical=True)] == canonical
    assert await store.count_transcript_entries(node.session_id) == len(live)
    return {
        "exists": True,
        "epoch": await store.get_epoch(key),
        "canonical": [e.message_id for e in canonical],
        "live": [e.message_id for e in live],
        "contents": [e.content for e in canonical],
        "node": node,
    }


def agree(got: dict[str, Any], want: dict[str, Any]) -> None:
    """Compare what a store says with what a vector expects."""
    assert got["exists"] == want["exists"]
    if not want["exists"]:
        return
    for name in ("epoch", "canonical", "live", "contents"):
        assert got[name] == want[name], name
    node = got["node"]
    assert node.epoch == want["epoch"]
    for name in ("input_tokens", "compaction_count"):
        assert getattr(node, name) == want[name], name
    assert {name: getattr(node, name) for name in want["fields"]} == want["fields"]
    assert not set(want["closed"]) & set(got["canonical"])


@every_vector
async def test_a_store_answers_what_the_vector_says_and_reading_leaves_no_trace(
    vector: dict[str, Any], tmp_path: Path
) -> None:
    lay_out(tmp_path, vector)
    before = everything(tmp_path)
    async with SessionStorage(tmp_path) as store:
        agree(await answers(store, vector["session_key"]), vector["expected"])
    assert everything(tmp_path) == before


@every_vector
async def test_an_open_store_answers_what_a_fresh_one_does_however_the_files_arrive(
    vector: dict[str, Any], tmp_path: Path
) -> None:
    chance = random.Random(vector["name"])
    arriving = list(files_of(vector).items())
    chance.shuffle(arriving)
    async with SessionStorage(tmp_path) as store:
        for name, data in arriving:
            stages = [data]
            if name.startswith("sessions/") and chance.random() < 0.5:
                stages = [data[: chance.randrange(40, len(data))], data]  # a service that does not wait for the rest
            for stage in stages:
                put(tmp_path, name, stage, in_place=len(stages) > 1)
                before = everything(tmp_path)
                got = await answers(store, vector["session_key"])
                if chance.random() < 0.3:
                    async with SessionStorage(tmp_path) as fresh:
                        assert await answers(fresh, vector["session_key"]) == got
                assert everything(tmp_path) == before
        agree(await answers(store, vector["session_key"]), vector["expected"])


@every_vector
async def test_an_open_store_follows_files_that_are_taken_away_and_put_back(
    vector: dict[str, Any], tmp_path: Path
) -> None:
    lay_out(tmp_path, vector)
    chance = random.Random(vector["name"])
    files = files_of(vector)
    async with SessionStorage(tmp_path) as store:
        agree(await answers(store, vector["session_key"]), vector["expected"])
        for name in chance.sample(sorted(files), min(len(files), 2)):
            (tmp_path / name).unlink()  # the old file goes before the new one comes
            await store.get_session(vector["session_key"])
            put(tmp_path, name, files[name])
            agree(await answers(store, vector["session_key"]), vector["expected"])


def entry(key: str, message_id: str, **members: Any) -> TranscriptEntry:
    return TranscriptEntry(
        session_id="", session_key=key, message_id=message_id, content=message_id, **{"role": "user", **members}
    )


@every_vector
async def test_another_device_goes_on_behind_what_is_there_and_moves_nothing(
    vector: dict[str, Any], tmp_path: Path
) -> None:
    lay_out(tmp_path, vector)
    key, want = vector["session_key"], vector["expected"]
    given = {path: data for path, (_, _, data) in everything(tmp_path).items() if os.path.isfile(path)}
    async with SessionStorage(tmp_path, device="newcomer", durability="os") as store:
        if not want["exists"]:
            before = await store.create_session(SessionNode(session_key=key))
            assert before.epoch >= max((d["epoch"] for d in vector["deleted"]), default=0)
        canonical = want.get("canonical", [])
        await store.append_entry(key, entry(key, "new"))
        got = await answers(store, key)
        assert got["canonical"] == [*canonical, "new"]
        assert got["live"] == [*want.get("live", []), "new"]
        await store.truncate_session(key, 1)
        got = await answers(store, key)
        assert got["canonical"] == [*canonical, "new"]
        assert got["live"] == ["new"]
        await store.append_entry(key, entry(key, "newer"))
        node = await store.reset_session(key, reason="test")
        assert await store.get_canonical_transcript(node.session_id) == []
        await store.append_entry(key, entry(key, "newest"))
        got = await answers(store, key)
        assert got["canonical"] == got["live"] == ["newest"]
    for path, data in given.items():
        assert Path(path).read_bytes() == data
    async with SessionStorage(tmp_path) as fresh:
        assert await answers(fresh, key) == got


# --- rules --------------------------------------------------------------------------------------------------------

DIRECTORY = f"sessions/{layout.session_dir_name(KEY)}"
CREATED = line("session", 1, record="created", event="created", set={"session_id": "first"})
SEGMENT = head("L1") + CREATED + message(2, "a") + message(3, "b", "a")
ARCHIVING = line("compaction", 4, record="archiving", covers=[["L1", 4, "b"]], kept=["b"])
FIRST = SEGMENT + ARCHIVING
NEXT = head("L2", source=("L1", [2, 4, 5])) + CREATED + message(3, "b", "a") + ARCHIVING + message(5, "c", "b")
FIRST_NAME, NEXT_NAME = "transcript.laptop.000001.jsonl", "transcript.laptop.000002.jsonl"


async def texts(store: SessionStorage, *, canonical: bool = True, key: str = KEY) -> str:
    """The message ids of a session's transcript, in order."""
    return " ".join(e.message_id for e in await store.read_entries(key, canonical=canonical))


async def test_what_a_log_continues_and_is_not_here_is_reported_and_the_rest_is_answered(tmp_path: Path) -> None:
    put(tmp_path, f"{DIRECTORY}/{NEXT_NAME}", NEXT)
    async with SessionStorage(tmp_path) as store:
        entries, more, complete = await store.read_page(KEY, limit=10)
        assert [e.message_id for e in entries] == ["b", "c"]
        assert not more
        assert not complete
        assert store._open(KEY).session.dir.missing == ["L1"]
        put(tmp_path, f"{DIRECTORY}/archive/{FIRST_NAME}", FIRST)
        entries, _, complete = await store.read_page(KEY, limit=10)
        assert [e.message_id for e in entries] == ["a", "b", "c"]
        assert complete
        assert store._open(KEY).session.dir.missing == []
        (tmp_path / DIRECTORY / "archive" / FIRST_NAME).unlink()
        assert not (await store.read_page(KEY, limit=10))[2]


async def test_a_segment_that_arrives_late_adds_what_is_archived_and_changes_nothing_live(tmp_path: Path) -> None:
    put(tmp_path, f"{DIRECTORY}/{NEXT_NAME}", NEXT)
    async with SessionStorage(tmp_path) as store:
        assert await texts(store, canonical=False) == "b c"
        put(tmp_path, f"{DIRECTORY}/archive/{FIRST_NAME}", FIRST)
        assert await texts(store, canonical=False) == "b c"
        assert await texts(store) == "a b c"


async def test_a_seal_whose_old_log_goes_before_the_new_one_comes_leaves_nothing_out_in_the_end(tmp_path: Path) -> None:
    put(tmp_path, f"{DIRECTORY}/{FIRST_NAME}", FIRST)
    async with SessionStorage(tmp_path) as store:
        assert await texts(store) == "a b"
        (tmp_path / DIRECTORY / FIRST_NAME).unlink()
        assert await store.get_session(KEY) is None
        put(tmp_path, f"{DIRECTORY}/{NEXT_NAME}", NEXT)
        put(tmp_path, f"{DIRECTORY}/archive/{FIRST_NAME}", FIRST)
        assert await texts(store) == "a b c"


@pytest.mark.parametrize("place", ["", "archive/"])
@pytest.mark.parametrize(
    "name",
    [
        "transcript.desk.000001.sync-conflict-20261201-101500-ABCDEFG.jsonl",
        "transcript.desk.000001 (Ilse's conflicted copy 2026-12-01).jsonl",
        "transcript.desk.000001_desk_Dec-01_Conflict.jsonl",
        "冲突的副本",
        "notes.txt",
    ],
)
async def test_a_log_is_known_by_its_content_whatever_it_is_called(place: str, name: str, tmp_path: Path) -> None:
    put(tmp_path, f"{DIRECTORY}/{FIRST_NAME}", SEGMENT)
    put(tmp_path, f"{DIRECTORY}/{place}{name}", head("D", "desk") + message(4, "d", "b"))
    async with SessionStorage(tmp_path) as store:
        assert await texts(store) == "a b d"


async def test_a_file_that_is_no_log_stays_none_until_a_log_is_put_in_its_place(tmp_path: Path) -> None:
    put(tmp_path, f"{DIRECTORY}/{FIRST_NAME}", SEGMENT)
    put(tmp_path, f"{DIRECTORY}/notes.txt", b'{"type":"message","id":4,"message_id":"d"}\n')
    async with SessionStorage(tmp_path) as store:
        assert await texts(store) == "a b"
        put(tmp_path, f"{DIRECTORY}/notes.txt", head("D", "desk") + message(4, "d", "b"))
        assert await texts(store) == "a b d"


@pytest.mark.parametrize(
    "name",
    [
        f".syncthing.{NEXT_NAME}.tmp",
        f"~sqf-0123456789abcdef{NEXT_NAME}",
        f".{NEXT_NAME}.icloud",
        f".{NEXT_NAME}.Xy12",
        f"{NEXT_NAME}.partial",
        f"{NEXT_NAME}.PART",
        f"{NEXT_NAME}.filepart",
        f"{NEXT_NAME}.crdownload",
        f"{NEXT_NAME}.!sync",
    ],
)
async def test_a_file_under_way_is_never_read(name: str, tmp_path: Path) -> None:
    put(tmp_path, f"{DIRECTORY}/{FIRST_NAME}", SEGMENT)
    for place in ("", "archive/"):
        put(tmp_path, f"{DIRECTORY}/{place}{name}", SEGMENT + message(4, "c", "b"))
    async with SessionStorage(tmp_path) as store:
        assert await texts(store) == "a b"


async def test_a_manifest_is_read_by_its_own_device_alone_and_no_copy_of_one_is(tmp_path: Path) -> None:
    async with SessionStorage(tmp_path, device="laptop", durability="os") as store:
        await store.create_session(SessionNode(session_key=KEY, session_id="first"))
    manifest = tmp_path / DIRECTORY / "manifest.laptop.json"
    raised = json.dumps({**json.loads(manifest.read_bytes()), "epoch": 9, "session": {"label": "wrong"}}).encode()
    for name in ("manifest.desk.json", "manifest.laptop.sync-conflict-20261201-101500-ABCDEFG.json", "manifest.json"):
        put(tmp_path, f"{DIRECTORY}/{name}", raised)
    async with SessionStorage(tmp_path, device="laptop") as store:
        assert [(node.epoch, node.label) for node in await store.list_sessions()] == [(0, None)]
        assert await store.get_epoch(KEY) == 0
    put(tmp_path, f"{DIRECTORY}/manifest.laptop.json", raised)
    async with SessionStorage(tmp_path, device="desk") as store:
        assert await store.get_epoch(KEY) == 9  # that of desk
    (tmp_path / DIRECTORY / "manifest.desk.json").unlink()
    async with SessionStorage(tmp_path, device="desk") as store:
        assert await store.get_epoch(KEY) == 0
    async with SessionStorage(tmp_path, device="laptop") as store:
        assert await store.get_epoch(KEY) == 9


async def test_an_epoch_that_a_device_wrote_under_does_not_fall_when_the_log_that_raised_it_goes(
    tmp_path: Path,
) -> None:
    put(tmp_path, f"{DIRECTORY}/{FIRST_NAME}", SEGMENT)
    fence = head("D", "desk") + line("session", 4, epoch=4, generation=0, record="fence", event="fenced")
    put(tmp_path, f"{DIRECTORY}/transcript.desk.000001.jsonl", fence)
    async with SessionStorage(tmp_path, device="phone", durability="os") as store:
        await store.update_session(KEY, {"label": "seen"})
        (tmp_path / DIRECTORY / "transcript.desk.000001.jsonl").unlink()
        assert await store.get_epoch(KEY) == 4
        assert [node.epoch for node in await store.list_sessions()] == [4]
    (tmp_path / DIRECTORY / "transcript.phone.000001.jsonl").unlink()
    async with SessionStorage(tmp_path, device="phone", durability="os") as store:
        assert [node.epoch for node in await store.list_sessions()] == [4]
        assert await store.increment_epoch(KEY) == 5
    async with SessionStorage(tmp_path, device="phone") as store:
        assert await store.get_epoch(KEY) == 5


@pytest.mark.parametrize(
    "name", [f"{layout.session_dir_name(KEY)} (copy)", f"agent-main-main~{'0' * 16}", layout.session_dir_name("other")]
)
async def test_a_copy_of_a_directory_is_no_second_session(name: str, tmp_path: Path) -> None:
    put(tmp_path, f"{DIRECTORY}/{FIRST_NAME}", SEGMENT)
    put(tmp_path, f"sessions/{name}/{FIRST_NAME}", SEGMENT + message(4, "c", "b"))
    async with SessionStorage(tmp_path) as store:
        assert [node.session_key for node in await store.list_sessions()] == [KEY]
        assert await store.get_session("other") is None
        assert await texts(store) == "a b"
        assert await store.count_sessions() == 1


async def test_a_log_of_another_session_is_not_read_until_the_right_one_is_put_in_its_place(tmp_path: Path) -> None:
    put(tmp_path, f"{DIRECTORY}/{FIRST_NAME}", SEGMENT)
    foreign = (head("D", "desk") + message(4, "d", "b")).replace(KEY.encode(), b"agent:main:other")
    put(tmp_path, f"{DIRECTORY}/transcript.desk.000001.jsonl", foreign)
    put(tmp_path, f"{DIRECTORY}/archive/conflict", foreign)
    async with SessionStorage(tmp_path) as store:
        for _ in range(2):
            assert await texts(store) == "a b"
            found = store._open(KEY).session.dir.foreign
            assert found == dict.fromkeys(["transcript.desk.000001.jsonl", "archive/conflict"], "agent:main:other")
        put(tmp_path, f"{DIRECTORY}/transcript.desk.000001.jsonl", head("D", "desk") + message(4, "d", "b"))
        assert await texts(store) == "a b d"


# What a service or a user may put where the log was that a manifest vouches for. The last record is "last", 3.
SHOWN = head("L", "laptop") + CREATED + message(2, "m", add={"total_tokens": 1}) + message(3, "last", "m")
REPLACED = {
    "put back": SHOWN[: SHOWN.index(b'{"type":"message","id":3')],
    "edited": SHOWN.replace(b'"message_id":"last"', b'"message_id":"tsal"'),
    "shortened": head("L", "laptop") + CREATED + message(2, "m" * 300, content=""),
    "another log": head("M", "laptop") + CREATED + message(2, "m") + message(3, "tsal", "m"),
    "grown": SHOWN + message(4, "more", "last"),
}


@pytest.mark.parametrize("how", REPLACED)
async def test_a_manifest_is_not_believed_when_a_log_is_not_the_one_that_was_read(how: str, tmp_path: Path) -> None:
    name = tmp_path / DIRECTORY / FIRST_NAME
    put(tmp_path, f"{DIRECTORY}/{FIRST_NAME}", SHOWN)
    async with SessionStorage(tmp_path, device="desk", durability="os") as store:
        await store.update_session(KEY, {"label": "seen"})
    marked = json.loads((tmp_path / DIRECTORY / "manifest.desk.json").read_bytes())
    assert marked["live"] == 2
    was = name.stat()
    data = REPLACED[how]
    if len(data) < len(SHOWN):
        data += b" " * (len(SHOWN) - len(data) - 1) + b"\n"  # so that the size shows nothing
    put(tmp_path, f"{DIRECTORY}/{FIRST_NAME}", data)
    os.utime(name, ns=(was.st_atime_ns, was.st_mtime_ns))
    async with SessionStorage(tmp_path, device="desk") as store:
        (listed,) = await store.list_sessions()
        counts = await store.count_transcript_entries_batch(["first"])
        assert listed == await store.get_session(KEY)
        assert counts == {"first": len((await texts(store, canonical=False)).split())}
        assert "last" not in await texts(store) or how == "grown"


async def test_two_devices_that_create_one_key_have_one_session_with_two_names(tmp_path: Path) -> None:
    roots = [tmp_path / "a", tmp_path / "b"]
    for root, device in zip(roots, "ab", strict=True):
        async with SessionStorage(root, device=device, durability="os") as store:
            await store.create_session(SessionNode(session_key=KEY, session_id=f"id-{device}", total_tokens=2))
            await store.append_entry(KEY, entry(KEY, f"m-{device}"), counters={"total_tokens": 3})
    carry(*roots)
    seen = []
    for root in roots:
        async with SessionStorage(root) as store:
            (node,) = await store.list_sessions()
            assert node.session_id in ("id-a", "id-b")
            assert node.total_tokens == 10
            for session_id in ("id-a", "id-b"):
                assert [e.message_id for e in await store.get_transcript(session_id)] == ["m-a", "m-b"]
                assert await store.count_transcript_entries_batch([session_id]) == {session_id: 2}
            seen.append(node)
    assert seen[0] == seen[1]
    async with SessionStorage(roots[0], device="a", durability="os") as store:
        for session_id in ("id-a", "id-b"):
            late = entry(KEY, f"late-{session_id}")
            late.session_id = session_id
            await store.append_transcript_entry(late)
        assert await texts(store) == "m-a m-b late-id-a late-id-b"


def carry(*roots: Path) -> None:
    """Give every store the files that only another one has; what is local stays where it is."""
    for source in roots:
        for path in sorted(source.rglob("*")):
            name = path.relative_to(source)
            if path.is_file() and name.parts[0] != ".local":
                for root in roots:
                    if not (root / name).exists():
                        put(root, str(name), path.read_bytes())


async def test_two_resets_at_once_open_one_generation_with_what_both_write(tmp_path: Path) -> None:
    roots = [tmp_path / "a", tmp_path / "b"]
    for root in roots:
        put(root, f"{DIRECTORY}/{FIRST_NAME}", SEGMENT)
    names = []
    for root, device in zip(roots, "ab", strict=True):
        async with SessionStorage(root, device=device, durability="os") as store:
            names.append((await store.reset_session(KEY, reason="test")).session_id)
            await store.append_entry(KEY, entry(KEY, f"m-{device}"))
    carry(*roots)
    for root in roots:
        async with SessionStorage(root) as store:
            assert await store.get_epoch(KEY) == 1
            assert await texts(store) == "m-a m-b"
            for session_id in names:
                assert len(await store.get_transcript(session_id)) == 2
            assert await store.get_transcript("first") == []


async def test_a_message_that_was_written_before_a_reset_was_seen_is_never_shown_after_it(tmp_path: Path) -> None:
    put(tmp_path, f"{DIRECTORY}/{FIRST_NAME}", SEGMENT)
    async with SessionStorage(tmp_path, device="desk", durability="os") as store:
        node = await store.reset_session(KEY, reason="test")
        put(tmp_path, f"{DIRECTORY}/transcript.phone.000001.jsonl", head("P", "phone") + message(9, "late", "b"))
        assert await store.get_transcript(node.session_id) == []
        await store.append_entry(KEY, entry(KEY, "new"))
        assert await texts(store) == "new"
        assert [r.identity for r in store._open(KEY).session.timeline.closed] == ["a", "b", "late"]


async def test_a_result_that_another_device_writes_stands_with_its_call(tmp_path: Path) -> None:
    asked = SEGMENT + call(4, "ask", "b") + message(5, "on", "ask")
    put(tmp_path, f"{DIRECTORY}/{FIRST_NAME}", asked)
    async with SessionStorage(tmp_path, device="desk", durability="os") as store:
        await store.append_entry(KEY, entry(KEY, "answer", role="tool", tool_call_id="c"))
        assert await texts(store) == "a b ask answer on"
        put(tmp_path, f"{DIRECTORY}/{FIRST_NAME}", asked + result(6, "own", "on"))
        assert await texts(store) == "a b ask answer on own"


async def test_what_is_written_together_with_a_result_stands_where_it_would_stand_alone(tmp_path: Path) -> None:
    async with SessionStorage(tmp_path, device="laptop", durability="os") as store:
        await store.create_session(SessionNode(session_key=KEY))
        await store.append_entry(KEY, entry(KEY, "ask", role="assistant", tool_calls=[{"id": "c"}]))
        put(tmp_path, f"{DIRECTORY}/transcript.phone.000001.jsonl", head("P", "phone") + message(4, "other", "ask"))
        # The writer saw "other" before it wrote "on": only the result may stand further up.
        answered = store.append_entry(KEY, entry(KEY, "answer", role="tool", tool_call_id="c"))
        await asyncio.gather(answered, store.append_entry(KEY, entry(KEY, "on")))
        assert await texts(store) == "ask answer other on"


async def test_what_is_written_together_with_a_result_that_stands_last_comes_behind_it(tmp_path: Path) -> None:
    async with SessionStorage(tmp_path, device="laptop", durability="os") as store:
        await store.create_session(SessionNode(session_key=KEY))
        asked = call(2, "ask", calls=["c", "d"]) + message(3, "steer", "ask") + result(4, "first", "steer")
        put(
            tmp_path,
            f"{DIRECTORY}/transcript.phone.000001.jsonl",
            head("P", "phone") + asked + message(5, "x", "first"),
        )
        await store.append_entry(KEY, entry(KEY, "y"))
        # The run that hangs on the call ends with the first result; what the phone wrote behind that goes before.
        answered = store.append_entry(KEY, entry(KEY, "second", role="tool", tool_call_id="d"))
        await asyncio.gather(answered, store.append_entry(KEY, entry(KEY, "on")))
        assert await texts(store) == "ask steer first x y second on"


async def test_a_compaction_reaches_into_a_copy_that_went_another_way(tmp_path: Path) -> None:
    put(tmp_path, f"{DIRECTORY}/{FIRST_NAME}", SEGMENT + message(4, "c", "b") + message(5, "d", "c"))
    put(tmp_path, f"{DIRECTORY}/a copy", SEGMENT + message(4, "other", "b"))
    put(tmp_path, f"{DIRECTORY}/a shorter copy", SEGMENT)
    async with SessionStorage(tmp_path, device="desk", durability="os") as store:
        assert await texts(store) == "a b c d other"
        await store.truncate_session(KEY, 0)
        assert await texts(store, canonical=False) == ""
        assert await texts(store) == "a b c d other"
        await store.append_entry(KEY, entry(KEY, "new"))
        assert await texts(store, canonical=False) == "new"
    (compaction,) = [
        record
        for log in (tmp_path / DIRECTORY).glob("transcript.desk.*")
        for record in map(json.loads, log.read_text().splitlines())
        if record["type"] == "compaction"
    ]
    assert sorted(compaction["covers"]) == [["L1", 5, "other"], ["L1", 6, "d"]]  # the shorter copy needs none


async def test_a_result_whose_call_was_removed_stays_where_a_truncation_keeps_it(tmp_path: Path) -> None:
    gone = SEGMENT + call(4, "ask", "b") + line("remove", 5, record="gone", message_id="ask")
    put(tmp_path, f"{DIRECTORY}/{FIRST_NAME}", gone + message(6, "on", "ask") + result(7, "answer", "on"))
    async with SessionStorage(tmp_path, device="desk", durability="os") as store:
        await store.truncate_session(KEY, 1)
        assert await texts(store, canonical=False) == "answer"
        assert await texts(store) == "a b on answer"


def put_deleted(root: Path) -> None:
    """A session that desk's log brings back: its first lines were seen by a deletion, its last was not."""
    lines = head("D", "desk") + CREATED + message(2, "a") + message(3, "b", "a")
    put(root, f"{DIRECTORY}/transcript.desk.000001.jsonl", lines + message(4, "c", "b"))
    document = {"session_key": KEY, "epoch": 1, "seen": [["D", 4, "b"]]}
    name = layout.deletion_name(layout.session_dir_name(KEY), "0" * 16)
    put(root, f"deleted/{name}", json.dumps(document).encode())


@pytest.mark.parametrize("removing", [True, False])
async def test_what_is_brought_in_again_after_a_deletion_is_neither_archived_nor_removed_with_what_was_deleted(
    removing: bool, tmp_path: Path
) -> None:
    put_deleted(tmp_path)
    async with SessionStorage(tmp_path, device="laptop", durability="os") as store:
        node = await store.get_session(KEY)
        assert node is not None
        assert await texts(store) == "c"
        # Its mark is behind the lines of "a" and "b", which do not count any more.
        if removing:
            await store.delete_transcript(node.session_id)
        else:
            await store.truncate_session(KEY, 0)
        await store.append_entry(KEY, entry(KEY, "a"))
        assert await texts(store, canonical=False) == "a"
        async with SessionStorage(tmp_path) as fresh:
            assert await answers(fresh, KEY) == await answers(store, KEY)


async def test_a_session_that_is_back_without_its_creation_has_one_name_on_all_devices(tmp_path: Path) -> None:
    put_deleted(tmp_path)
    async with SessionStorage(tmp_path, device="laptop", durability="os") as store:
        node = await store.get_session(KEY)
        assert node is not None
        assert [e.message_id for e in await store.get_transcript(node.session_id)] == ["c"]
        async with SessionStorage(tmp_path) as fresh:
            assert await fresh.list_sessions() == [node]
        await store.append_transcript_entry(
            TranscriptEntry(session_id=node.session_id, session_key=KEY, role="user", message_id="d")
        )
        await store.update_session(KEY, {"session_id": "given"})
        for reader in (store, await SessionStorage.open(tmp_path)):
            assert [e.message_id for e in await reader.get_transcript("given")] == ["c", "d"]
            assert await reader.get_transcript(node.session_id) == []
            await reader.close()


async def test_a_message_that_was_removed_before_it_came_is_refused_and_not_taken_in_silence(tmp_path: Path) -> None:
    put(tmp_path, f"{DIRECTORY}/{FIRST_NAME}", SEGMENT + line("remove", 4, record="gone", message_id="late"))
    async with SessionStorage(tmp_path, device="desk", durability="os") as store:
        with pytest.raises(MessageConflictError, match="was removed"):
            await store.append_entry(KEY, entry(KEY, "late"))
        put(tmp_path, f"{DIRECTORY}/transcript.phone.000001.jsonl", head("P", "phone") + message(9, "late", "b"))
        assert await texts(store) == "a b"


# --- a directory that changes under the reader ---------------------------------------------------------------------


class Moving(Files):
    """Something happens behind the reader's back, once, just before a call that names *suffix*."""

    def __init__(self, verb: str, suffix: str, happens: Any, *, skip: int = 0) -> None:
        super().__init__("os")
        self._verb, self._suffix, self._happens, self._skip = verb, suffix, happens, skip

    def _before(self, verb: str, path: str) -> None:
        if verb == self._verb and path.endswith(self._suffix) and self._happens is not None:
            if self._skip:
                self._skip -= 1
                return
            happens, self._happens = self._happens, None
            happens()

    def open_read(self, path: str) -> int:
        self._before("open_read", path)
        return super().open_read(path)

    def stat(self, path: str) -> os.stat_result:
        self._before("stat", path)
        return super().stat(path)

    def scan(self, path: str) -> list[DirEntryInfo]:
        self._before("scan", path)
        return super().scan(path)


def sealing(root: Path) -> Any:
    """Another process seals the log: the next one appears, and the old one moves."""

    def happens() -> None:
        put(root, f"{DIRECTORY}/{NEXT_NAME}", NEXT)
        (root / DIRECTORY / "archive").mkdir(exist_ok=True)
        (root / DIRECTORY / FIRST_NAME).rename(root / DIRECTORY / "archive" / FIRST_NAME)

    return happens


@pytest.mark.parametrize("verb", ["stat", "open_read"])
@pytest.mark.parametrize("skip", [0, 1])
async def test_a_log_that_is_sealed_while_it_is_read_is_read_where_it_went(
    verb: str, skip: int, tmp_path: Path
) -> None:
    put(tmp_path, f"{DIRECTORY}/{FIRST_NAME}", FIRST)
    async with SessionStorage(tmp_path, files=Moving(verb, FIRST_NAME, sealing(tmp_path), skip=skip)) as store:
        assert await texts(store) in ("a b", "a b c")
        assert await texts(store) == "a b c"
        assert [e.message_id for e in await store.get_canonical_transcript("first")] == ["a", "b", "c"]


@pytest.mark.parametrize("skip", range(5))
async def test_a_listing_while_a_log_is_sealed_shows_the_session(skip: int, tmp_path: Path) -> None:
    put(tmp_path, f"{DIRECTORY}/{FIRST_NAME}", FIRST)
    async with SessionStorage(tmp_path, files=Moving("open_read", FIRST_NAME, sealing(tmp_path), skip=skip)) as store:
        assert [node.session_key for node in await store.list_sessions()] == [KEY]
        assert [hit["message_id"] for hit in await store.search_transcript("b")] == ["b"]
        assert [e.message_id async for e in store.iter_transcript("first", canonical=True)] in (
            ["a", "b"],
            ["a", "b", "c"],
        )
        assert await texts(store) == "a b c"


@pytest.mark.parametrize("verb", ["stat", "open_read"])
async def test_a_copy_that_goes_while_it_is_looked_at_hides_nothing_else(verb: str, tmp_path: Path) -> None:
    put(tmp_path, f"{DIRECTORY}/{FIRST_NAME}", FIRST)
    put(tmp_path, f"{DIRECTORY}/a copy", FIRST)
    moving = Moving(verb, "a copy", (tmp_path / DIRECTORY / "a copy").unlink)
    async with SessionStorage(tmp_path, files=moving) as store:
        assert await texts(store) == "a b"


@pytest.mark.parametrize("place", [DIRECTORY, f"{DIRECTORY}/archive"])
async def test_a_directory_that_is_deleted_while_it_is_listed_holds_no_session(place: str, tmp_path: Path) -> None:
    put(tmp_path, f"{DIRECTORY}/archive/{FIRST_NAME}", FIRST)

    def happens() -> None:
        (tmp_path / DIRECTORY).rename(tmp_path / "gone")

    async with SessionStorage(tmp_path, files=Moving("scan", place, happens)) as store:
        assert await store.get_session(KEY) is None


async def test_an_unreadable_log_is_an_error_and_no_empty_session(tmp_path: Path) -> None:
    put(tmp_path, f"{DIRECTORY}/{FIRST_NAME}", FIRST)

    def happens() -> None:
        raise PermissionError(13, "denied")

    async with SessionStorage(tmp_path, files=Moving("open_read", FIRST_NAME, happens)) as store:
        with pytest.raises(PermissionError):
            await store.get_session(KEY)
        assert await texts(store) == "a b"


async def test_a_line_that_grows_in_place_means_at_each_moment_what_it_means_to_a_fresh_reader(tmp_path: Path) -> None:
    # A mark at a line that cannot be read holds: so the answer changes with the damaged line.
    archiving = line("compaction", 9, record="archiving", covers=[["L", 4, "b"]], kept=[])
    put(tmp_path, f"{DIRECTORY}/transcript.desk.000001.jsonl", head("D", "desk") + archiving)
    whole = head("L") + CREATED + message(2, "a") + message(3, "b", "a") + message(4, "c", "b")
    name = f"{DIRECTORY}/{FIRST_NAME}"
    put(tmp_path, name, whole[:200])
    async with SessionStorage(tmp_path) as store:
        for size in range(200, len(whole), 7):
            put(tmp_path, name, whole[:size], in_place=True)
            async with SessionStorage(tmp_path) as fresh:
                assert await answers(store, KEY) == await answers(fresh, KEY)
        put(tmp_path, name, whole, in_place=True)
        assert await texts(store, canonical=False) == "c"


async def test_modes_that_a_service_changed_are_put_right_by_the_next_write(tmp_path: Path) -> None:
    async with SessionStorage(tmp_path, device="laptop", durability="os") as store:
        await store.create_session(SessionNode(session_key=KEY, session_id="first"))
    log, directory = tmp_path / DIRECTORY / FIRST_NAME, tmp_path / DIRECTORY
    log.chmod(0o644)
    directory.chmod(0o755)
    async with SessionStorage(tmp_path, device="laptop", durability="os") as store:
        assert await texts(store) == ""
        assert (log.stat().st_mode & 0o777, directory.stat().st_mode & 0o777) == (0o644, 0o755)
        await store.append_entry(KEY, entry(KEY, "m"))
    assert (log.stat().st_mode & 0o777, directory.stat().st_mode & 0o777) == (0o600, 0o700)


async def test_a_summary_whose_file_is_not_here_yet_is_left_out_and_comes_with_it(tmp_path: Path) -> None:
    put(tmp_path, f"{DIRECTORY}/{FIRST_NAME}", SEGMENT + line("summary", 4, record="saved", summary="s1"))
    document = {"type": "summary", "id": "s1", "session_id": "first", "session_key": KEY, "summary_text": "so far"}
    async with SessionStorage(tmp_path) as store:
        assert await store.get_all_summaries("first") == []
        assert store._open(KEY).session.attachments.missing() == [("summary", "s1")]
        put(tmp_path, f"{DIRECTORY}/summaries/some copy.json", json.dumps(document).encode())
        assert [s.summary_text for s in await store.get_all_summaries("first")] == ["so far"]
