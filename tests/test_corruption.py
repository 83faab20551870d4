"""Damaged files: all that is good is read, all that is not is reported with file and offset, and work goes on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stores import KEY, said, say, state, stored, summary, tree
from written import message

from squilla_files import findings
from squilla_files.codec import encode_line
from squilla_files.errors import CorruptManifestError
from squilla_files.findings import Report
from squilla_files.layout import session_dir_name
from squilla_files.models import SessionNode
from squilla_files.storage import SessionStorage

SAID = ["one", "two", "three", "four"]
DIR = session_dir_name(KEY)


def opened(root: Path, device: str = "laptop") -> SessionStorage:
    return SessionStorage(root, device=device, durability="os")


async def made(root: Path, said: Iterable[str] = SAID) -> Path:
    """Make a session, and return its log: a first line, the creation, and a line for each message."""
    async with opened(root) as store:
        node = await store.upsert_session(SessionNode(session_key=KEY))
        await say(store, node, *said)
    (log,) = (root / "sessions" / DIR).glob("transcript.*")
    return log


async def read_and_verified(root: Path) -> tuple[list[object], Report]:
    """Read the transcript in every way, check the store, and hold that neither changed anything."""
    before = tree(root, stamps=True)
    async with opened(root) as store:
        node = await stored(store)
        found = await said(store, node.session_id)
        assert [e.content async for e in store.iter_transcript(node.session_id)] == found
        assert [e.content for e in await store.get_canonical_transcript(node.session_id)] == found
        assert [item.session_key for item in await store.list_sessions()] == [KEY]
        await store.search_transcript("one")
        report = await store.verify()
    assert tree(root, stamps=True) == before
    return found, report


async def appended(root: Path, *contents: str) -> list[object]:
    """Append, and return what another process reads then."""
    async with opened(root) as store:
        await say(store, await stored(store), *contents)
    async with SessionStorage(root, device="reader") as store:
        return await said(store, (await stored(store)).session_id)


def damage(report: Report) -> list[tuple[str, int | None]]:
    """Return (kind, offset) of damaged lines and torn tails; each is a warning."""
    found = [item for item in report.findings if item.kind in (findings.DAMAGED_LINE, findings.TORN_TAIL)]
    assert all(item.severity == "warning" and item.session_key == KEY for item in found)
    return [(item.kind, item.offset) for item in found]


# --- the end of a log ------------------------------------------------------------------------------------------------


class Tail(NamedTuple):
    """What became of the last line, or came behind it."""

    change: Callable[[bytes], bytes]
    kept: list[str] = SAID


def last_line(data: bytes) -> int:
    return data.rfind(b"\n", 0, -1) + 1


def cut(data: bytes, keep: float) -> bytes:
    start = last_line(data)
    return data[: start + int((len(data) - start) * keep)]


TAILS = {
    "a fragment": Tail(lambda data: data + b'{"type":"mess'),
    "one byte": Tail(lambda data: data + b"{"),
    "a lost LF": Tail(lambda data: data[:-1]),
    "a lost LF and a CR": Tail(lambda data: data[:-1] + b"\r"),
    "a record without its last byte": Tail(lambda data: data[:-2], SAID[:-1]),
    "half a record": Tail(lambda data: cut(data, 0.5), SAID[:-1]),
    "the first byte of a record": Tail(lambda data: cut(data, 0.02), SAID[:-1]),
    "half a character": Tail(lambda data: data + '{"type":"message","content":"€'.encode()[:-1]),
    "a lone CR": Tail(lambda data: data + b"\r"),
    "NULs": Tail(lambda data: data + bytes(600)),
    "one NUL": Tail(lambda data: data + b"\0"),
    "NULs in place of the end of a record": Tail(lambda data: data[:-8] + bytes(8), SAID[:-1]),
    "a space": Tail(lambda data: data + b" "),
    "bytes that are no UTF-8": Tail(lambda data: data + b"\xff\xfe\xfd"),
    "an object that is no record": Tail(lambda data: data + b"{}"),
}


@pytest.mark.parametrize("name", TAILS)
async def test_a_torn_tail_is_reported_at_its_offset_and_the_next_append_goes_on_behind_it(
    root: Path, name: str
) -> None:
    log = await made(root)
    tail = TAILS[name]
    torn = tail.change(log.read_bytes())
    log.write_bytes(torn)
    found, report = await read_and_verified(root)
    assert found == tail.kept
    assert damage(report) == [(findings.TORN_TAIL, torn.rfind(b"\n") + 1)]
    assert report.findings[-1].path == log.relative_to(root).as_posix()
    assert await appended(root, "five") == [*tail.kept, "five"]
    assert await appended(root, "six") == [*tail.kept, "five", "six"]
    logs = list(log.parent.rglob("transcript.*"))
    assert any(path.read_bytes().startswith(torn) for path in logs)
    _, report = await read_and_verified(root)
    assert {kind for kind, _ in damage(report)} <= {findings.DAMAGED_LINE, findings.TORN_TAIL}
    assert report.ok


@given(data=st.data())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_wherever_a_log_is_cut_the_whole_lines_before_are_read_and_work_goes_on(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    root = tmp_path_factory.mktemp("cut") / "store"
    log = await made(root)
    content = log.read_bytes()
    first = len(content.splitlines(keepends=True)[0]) + len(content.splitlines(keepends=True)[1])
    at = data.draw(st.integers(first, len(content)))
    log.write_bytes(content[:at])
    lines = content[:at].split(b"\n")[2:]
    whole = [json.loads(line)["content"] for line in lines if line.endswith(b"}") and _is_json(line)]
    found, report = await read_and_verified(root)
    assert found == whole
    assert bool(damage(report)) == (not content[:at].endswith(b"\n"))
    assert await appended(root, "more") == [*whole, "more"]


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


# --- the middle of a log ---------------------------------------------------------------------------------------------

BETWEEN = {
    "an empty line": b"\n",
    "NULs in a line": bytes(500) + b"\n",
    "a NUL": b"\0\n",
    "bytes that are no UTF-8": b'{"type":"message","content":"\xff\xfe"}\n',
    "an overlong character": b'{"type":"message","content":"\xc0\xaf"}\n',
    "a surrogate in UTF-8": b'{"type":"message","content":"\xed\xa0\x80"}\n',
    "a line glued to a fragment": b'{"type":"mess' + message(9, "m9"),
    "two records on one line": message(9, "m9")[:-1] + message(10, "m10"),
    "text": b"hello\n",
    "a list": b"[1,2]\n",
    "a number": b"1\n",
    "an object without a type": b'{"id":9,"message_id":"m9"}\n',
    "a type that is no text": b'{"type":7,"id":9,"message_id":"m9"}\n',
    "a message without an identity": b'{"type":"message","id":9}\n',
    "an empty identity": b'{"type":"message","id":9,"message_id":""}\n',
    "a record without an id": b'{"type":"message","message_id":"m9"}\n',
    "a huge id": b'{"type":"message","id":123456789012345678901234567890,"message_id":"m9"}\n',
    "an id beyond a double": b'{"type":"message","id":9007199254740993,"message_id":"m9"}\n',
    "a negative id": b'{"type":"message","id":-1,"message_id":"m9"}\n',
    "an id that is a truth value": b'{"type":"message","id":true,"message_id":"m9"}\n',
    "an epoch that is a fraction": b'{"type":"message","id":9,"epoch":0.5,"message_id":"m9"}\n',
    "NaN": b'{"type":"message","id":9,"message_id":"m9","content":NaN}\n',
    "an infinity": b'{"type":"message","id":9,"message_id":"m9","content":-Infinity}\n',
    "a byte order mark": b"\xef\xbb\xbf" + message(9, "m9"),
    "an unfinished text": b'{"type":"message","id":9,"message_id":"m9","content":"abc\n',
    "deep nesting": b'{"type":"message","id":9,"message_id":"m9","content":' + b"[" * 2000 + b"]" * 2000 + b"}\n",
}


@pytest.mark.parametrize("at", [2, 4, 6], ids=["before the messages", "between them", "behind them"])
@pytest.mark.parametrize("name", BETWEEN)
async def test_a_damaged_line_costs_nothing_but_itself(root: Path, name: str, at: int) -> None:
    log = await made(root)
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join([*lines[:at], BETWEEN[name], *lines[at:]]))
    found, report = await read_and_verified(root)
    assert found == SAID
    assert damage(report) == [(findings.DAMAGED_LINE, len(b"".join(lines[:at])))]
    assert report.ok
    assert await appended(root, "five") == [*SAID, "five"]
    assert BETWEEN[name] in b"".join(path.read_bytes() for path in log.parent.rglob("transcript.*"))


async def test_a_run_of_nuls_over_the_middle_costs_the_lines_that_it_hits(root: Path) -> None:
    log = await made(root)
    data = log.read_bytes()
    start, end = data.index(b'"two"') - 5, data.index(b'"three"') + 3
    log.write_bytes(data[:start] + bytes(end - start) + data[end:])
    found, report = await read_and_verified(root)
    assert found == ["one", "four"]
    assert damage(report) == [(findings.DAMAGED_LINE, data.rfind(b"\n", 0, start) + 1)]
    assert await appended(root, "five") == ["one", "four", "five"]


async def test_lines_that_end_in_crlf_are_read_and_are_no_damage(root: Path) -> None:
    log = await made(root)
    log.write_bytes(log.read_bytes().replace(b"\n", b"\r\n"))
    found, report = await read_and_verified(root)
    assert found == SAID
    assert damage(report) == []
    assert await appended(root, "five") == [*SAID, "five"]


async def test_a_byte_order_mark_costs_the_first_line_and_what_follows_counts(root: Path) -> None:
    log = await made(root)
    log.write_bytes(b"\xef\xbb\xbf" + log.read_bytes())
    found, report = await read_and_verified(root)
    assert found == SAID
    assert damage(report) == [(findings.DAMAGED_LINE, 0)]
    assert await appended(root, "five") == [*SAID, "five"]


@pytest.mark.parametrize("first", [b"\n", b"{\n", bytes(80) + b"\n", b'{"type":"log"}\n', b'{"type":"log","log":1}\n'])
async def test_without_its_first_line_a_log_still_counts_and_its_session_is_listed(root: Path, first: bytes) -> None:
    log = await made(root)
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join([first, *lines[1:]]))
    found, report = await read_and_verified(root)
    assert found == SAID
    assert damage(report) == [(findings.DAMAGED_LINE, 0)]
    assert await appended(root, "five") == [*SAID, "five"]


async def test_an_empty_log_is_no_session_of_its_own_and_hides_none(root: Path) -> None:
    log = await made(root)
    empty = log.with_name("transcript.desk.000001.jsonl")
    empty.write_bytes(b"")
    empty.chmod(0o600)
    found, report = await read_and_verified(root)
    assert found == SAID
    assert damage(report) == [(findings.DAMAGED_LINE, 0)]
    assert await appended(root, "five") == [*SAID, "five"]


async def test_a_record_counts_once_however_often_it_stands(root: Path) -> None:
    log = await made(root)
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join([*lines, *lines[1:], lines[3], lines[3]]))
    found, report = await read_and_verified(root)
    assert found == SAID
    assert damage(report) == []
    assert await appended(root, "five") == [*SAID, "five"]


async def test_numbers_that_no_value_can_hold_are_kept_as_they_are_spelled(root: Path) -> None:
    log = await made(root)
    foreign = (
        b'{"type":"message","id":90,"message_id":"m90","role":"user",'
        b'"content":{"n":123456789012345678901234567890,"x":1e400}}\n'
    )
    usual = b'{"type":"message","id":91,"message_id":"m91","role":"user","content":[12345678901234567890123]}\n'
    log.write_bytes(log.read_bytes() + usual + foreign)
    found, report = await read_and_verified(root)
    assert found[: len(SAID)] == SAID
    assert len(found) + len(damage(report)) == len(SAID) + 2
    async with opened(root) as store:
        node = await stored(store)
        await say(store, node, "five")
        await store.rewrite_compacted_session(
            node=node, summary=None, entries=(await store.get_transcript(node.session_id))[3:]
        )
    logs = [path.read_bytes() for path in log.parent.rglob("transcript.*")]
    assert len(logs) == 2
    assert all(usual in data for data in logs)
    assert any(foreign in data for data in logs)


async def test_damage_in_a_sealed_log_is_reported_there_and_stays(root: Path) -> None:
    await made(root)
    async with opened(root) as store:
        node = await stored(store)
        await store.rewrite_compacted_session(
            node=node, summary=summary(node, "some"), entries=(await store.get_transcript(node.session_id))[3:]
        )
    (sealed,) = (root / "sessions" / DIR / "archive").iterdir()
    data = sealed.read_bytes()
    at = data.index(b'"two"')
    sealed.write_bytes(data[:at] + b"\0" + data[at + 1 :])
    before = tree(root, stamps=True)
    async with opened(root) as store:
        canonical = [entry.content for entry in await store.get_canonical_transcript(node.session_id)]
        report = await store.verify()
    assert canonical == ["one", "three", "four"]
    assert damage(report) == [(findings.DAMAGED_LINE, data.rfind(b"\n", 0, at) + 1)]
    assert tree(root, stamps=True) == before


@given(data=st.data())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_whatever_bytes_are_overwritten_the_other_lines_are_read_and_work_goes_on(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    root = tmp_path_factory.mktemp("noise") / "store"
    log = await made(root)
    lines = log.read_bytes().splitlines(keepends=True)
    hit = data.draw(st.integers(2, len(lines) - 1))
    noise = data.draw(st.binary(min_size=1, max_size=40).filter(lambda noise: b"\n" not in noise))
    at = data.draw(st.integers(0, len(lines[hit]) - 2))
    struck = lines[hit][:at] + noise + lines[hit][at + len(noise) :]
    if not struck.endswith(b"\n"):
        struck += b"\n"
    log.write_bytes(b"".join([*lines[:hit], struck, *lines[hit + 1 :]]))
    others = [content for number, content in enumerate(SAID, 2) if number != hit]
    found, report = await read_and_verified(root)
    assert all(content in found for content in others)
    assert report.ok
    assert (await appended(root, "more"))[-1:] == ["more"]


# --- manifests -------------------------------------------------------------------------------------------------------

BROKEN = {
    "empty": b"",
    "cut": b'{\n  "type": "manifest",\n  "form',
    "NULs": bytes(200),
    "a list": b"[]\n",
    "an object": b"{}\n",
    "another document": b'{"type":"summary","format":1,"id":"s1"}\n',
    "wrong types": encode_line({"type": "manifest", "format": 1, "session_key": KEY, "device": "laptop", "epoch": "0"}),
    "trailing garbage": b'{"type":"manifest"}\n}',
    "no UTF-8": b"\xff\xfe",
}


@pytest.mark.parametrize("name", BROKEN)
async def test_a_broken_manifest_costs_nothing_and_is_made_anew_by_the_next_write(root: Path, name: str) -> None:
    log = await made(root)
    manifest = log.with_name("manifest.laptop.json")
    manifest.write_bytes(BROKEN[name])
    found, report = await read_and_verified(root)
    assert found == SAID
    assert [item.kind for item in report.findings] == [findings.MANIFEST_CORRUPT]
    assert report.findings[0].path == manifest.relative_to(root).as_posix()
    assert await appended(root, "five") == [*SAID, "five"]
    assert (await read_and_verified(root))[1] == Report(())


async def test_a_missing_manifest_is_worth_knowing_and_is_made_anew_by_the_next_write(root: Path) -> None:
    log = await made(root)
    log.with_name("manifest.laptop.json").unlink()
    found, report = await read_and_verified(root)
    assert found == SAID
    assert [(item.kind, item.severity) for item in report.findings] == [(findings.MANIFEST_MISSING, "info")]
    assert await appended(root, "five") == [*SAID, "five"]
    assert (await read_and_verified(root))[1] == Report(())


async def test_a_broken_manifest_of_another_device_costs_nothing_and_stays(root: Path) -> None:
    log = await made(root)
    manifest = log.with_name("manifest.desk.json")
    manifest.write_bytes(b"{")
    manifest.chmod(0o600)
    found, report = await read_and_verified(root)
    assert found == SAID
    assert [item.kind for item in report.findings] == [findings.MANIFEST_CORRUPT]
    assert await appended(root, "five") == [*SAID, "five"]
    assert manifest.read_bytes() == b"{"


@pytest.mark.parametrize("data", [b"{", b"[]", bytes(30)])
async def test_a_broken_store_file_is_refused_with_its_path_and_stays(root: Path, data: bytes) -> None:
    await made(root)
    (root / "store.json").write_bytes(data)
    with pytest.raises(CorruptManifestError, match=r"store\.json"):
        await opened(root).connect()
    assert (root / "store.json").read_bytes() == data


# --- summaries and context states ------------------------------------------------------------------------------------


@pytest.mark.parametrize("directory", ["summaries", "contexts"])
@pytest.mark.parametrize(
    "change",
    [lambda data: data + b"}", lambda data: data + b"{}\n", lambda data: data[:-20], lambda _: b"", lambda _: bytes(9)],
    ids=["trailing garbage", "a second object", "cut", "empty", "NULs"],
)
async def test_a_broken_document_is_reported_and_hides_no_other(
    root: Path, directory: str, change: Callable[[bytes], bytes]
) -> None:
    await made(root)
    async with opened(root) as store:
        node = await stored(store)
        for text in ("first", "second"):
            await store.save_summary(summary(node, text))
            await store.save_context_state(state(node, text))
    path = root / "sessions" / DIR / directory / "000001.laptop.json"
    path.write_bytes(change(path.read_bytes()))
    found, report = await read_and_verified(root)
    assert found == SAID
    assert [item.path for item in report.findings if item.kind == findings.CORRUPT_DOCUMENT] == [
        path.relative_to(root).as_posix()
    ]
    assert [item.kind for item in report.findings if item.kind == findings.MISSING_DOCUMENT] == [
        findings.MISSING_DOCUMENT
    ]
    before = tree(root, stamps=True)
    async with opened(root) as store:
        texts = [item.summary_text for item in await store.get_all_summaries(node.session_id)]
        kinds = [item.state_kind for item in await store.get_context_states(KEY)]
        assert [item.compaction_index for item in await store.get_all_summaries(node.session_id)][-1] == 1
    assert tree(root, stamps=True) == before
    assert texts == (["second"] if directory == "summaries" else ["first", "second"])
    assert kinds == (["second"] if directory == "contexts" else ["first", "second"])
    async with opened(root) as store:
        await store.save_summary(summary(node, "third"))
        assert (await store.get_all_summaries(node.session_id))[-1].compaction_index == 2
    assert await appended(root, "five") == [*SAID, "five"]
