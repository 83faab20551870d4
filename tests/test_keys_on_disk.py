"""Any key is usable: each has a directory of its own with a legal name; what is no key is refused by every method."""

from __future__ import annotations

import os
import re
import unicodedata
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stores import ENDLESS, call, kept, key_is_optional, public_methods, said, say, state, stored, summary

from squilla_files.errors import InvalidKeyError, SessionExistsError
from squilla_files.keys import canonicalize_session_key
from squilla_files.layout import session_dir_name
from squilla_files.models import SessionNode
from squilla_files.storage import SessionStorage

KEYS = {
    "colon": "a:b",
    "underscore": "a_b",
    "upper case": "A_B",
    "dash": "a-b",
    "slash": "a/b",
    "backslash": "a\\b",
    "composed": unicodedata.normalize("NFC", "é"),
    "decomposed": unicodedata.normalize("NFD", "é"),
    "86 CJK": "会" * 86,
    "another 86 CJK": "話" * 86,
    "512 characters": "k" * 512,
    "another 512": "k" * 511 + "l",
    "512 emoji": "\U0001f600" * 512,
    "device": "con",
    "device with ending": "nul.txt",
    "upper device": "COM1",
    "trailing dot": "a.",
    "no dot": "a",
    "upper": "A",
    "hidden": ".hidden",
    "option": "-rf",
    "tilde": "~",
    "parent": "../x",
    "up and away": "../../../../etc/passwd",
    "absolute": "/abs",
    "drive": "C:\\abs",
    "stream": "a:$DATA",
    "dot": ".",
    "dots": "..",
    "space inside": "a b",
    "line break": "a\nb",
    "control": "a\x01b",
    "percent": "%2e%2e%2f",
    "temporary": "~sqf-0123.tmp",
    "like a directory": "a~0123456789abcdef",
    "kelvin": "\u212a",
    "dotless": "ı",
    "right to left": "\u202eabc",
    "noncharacter": "\uffff",
    "private use": "\U0010ffff",
}

INVALID = {
    "empty": "",
    "blank": " \t\n",
    "NUL": "a\0b",
    "only NUL": "\0",
    "513 characters": "k" * 513,
    "grown beyond 512": "agent::" + "k" * 506,
    "lone surrogate": "a\ud800",
    "lone low surrogate": "\udc00b",
    "None": None,
    "number": 7,
    "bytes": b"a",
}

WINDOWS_DEVICES = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", re.IGNORECASE)


def test_the_samples_are_different_keys() -> None:
    assert len({canonicalize_session_key(key) for key in KEYS.values()}) == len(KEYS)


async def test_every_key_has_a_directory_of_its_own_inside_the_store_and_is_read_back(tmp_path: Path) -> None:
    outer = tmp_path / "outer"
    root = outer / "store"
    ids = {}
    async with SessionStorage(root, device="desk", durability="os") as store:
        for key in KEYS.values():
            node = await store.upsert_session(SessionNode(session_key=key))
            ids[key] = node.session_id
            await say(store, node, f"of {key}", "more")
            await store.save_summary(summary(node, key))
            await store.save_context_state(state(node))
            await store.truncate_session(key, 1)
    assert [path.name for path in outer.iterdir()] == ["store"]
    assert [path.name for path in tmp_path.iterdir()] == ["outer"]
    names = os.listdir(root / "sessions")
    assert len({name.casefold() for name in names}) == len(names) == len(KEYS)
    async with SessionStorage(root, device="laptop", durability="os") as other:
        listed = await other.list_sessions(limit=None)
        assert {node.session_key for node in listed} == set(KEYS.values())
        for key, session_id in ids.items():
            assert (await stored(other, key)).session_id == session_id
            assert await said(other, session_id) == ["more"]
            assert [found.content for found in await other.get_canonical_transcript(session_id)] == [
                f"of {key}",
                "more",
            ]
            assert [found.summary_text for found in await other.read_summaries(key)] == [key]
            assert len(await other.get_context_states(key)) == 1
            assert await other.delete_session(key)
        assert await other.list_sessions() == []
    assert [path.name for path in outer.iterdir()] == ["store"]


def is_legal_everywhere(name: str) -> bool:
    return (
        name.isascii()
        and name == name.lower()
        and 0 < len(name) <= 80
        and re.search(r'[\x00-\x1f\x7f<>:"/\\|?* ]', name) is None
        and not name.endswith((".", " "))
        and not name.startswith("-")
        and WINDOWS_DEVICES.fullmatch(name) is None
    )


async def test_every_name_on_disk_is_legal_on_every_file_system(root: Path, store: SessionStorage) -> None:
    for key in KEYS.values():
        node = await store.upsert_session(SessionNode(session_key=key))
        await say(store, node, "x")
        await store.save_summary(summary(node, "s"))
        await store.save_context_state(state(node))
        await store.reset_session(key, reason="test")
    for key in list(KEYS.values())[::2]:
        await store.delete_session(key)
    names = {path.name for path in root.rglob("*")} - {".local"}
    assert len(names) > 3 * len(KEYS)
    assert [name for name in names if not is_legal_everywhere(name)] == []


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=512))
@settings(max_examples=150, deadline=None)
def test_any_key_gives_a_legal_name(key: str) -> None:
    if key.strip():
        try:
            canonical = canonicalize_session_key(key)
        except InvalidKeyError:
            assert len(key) > 500  # an agent's empty id became one
            return
        assert is_legal_everywhere(session_dir_name(canonical))


METHODS = public_methods(with_key=True)


def test_the_methods_with_a_key_are_found() -> None:
    assert {
        "append_transcript_entry",
        "create_session",
        "delete_session",
        "get_context_states",
        "get_epoch",
        "get_session",
        "increment_epoch",
        "invalidate_context_states",
        "list_sessions",
        "rewrite_compacted_session",
        "save_context_state",
        "save_summary",
        "update_summary_flush_receipt_status_by_compaction",
        "upsert_session",
    } <= set(METHODS)


@pytest.mark.parametrize("name", METHODS)
async def test_what_is_no_key_is_refused_by_every_method_alike(root: Path, store: SessionStorage, name: str) -> None:
    await store.upsert_session(SessionNode(session_key="there"))
    before = kept(root)
    for key in INVALID.values():
        bad: Any = key
        if key is None and key_is_optional(name):
            continue  # that asks for all
        with pytest.raises(InvalidKeyError) as raised:
            await call(store, name, bad)
        assert isinstance(raised.value, ValueError)
        assert kept(root) == before
    assert await store.count_sessions() == 1


@pytest.mark.parametrize("name", sorted({*METHODS} - ENDLESS))
async def test_every_method_takes_a_key_that_is_as_long_as_a_key_may_be(store: SessionStorage, name: str) -> None:
    key = "k" * 512
    node = await store.upsert_session(SessionNode(session_key=key))
    taken = pytest.raises(SessionExistsError) if name in ("create_session", "branch_session") else nullcontext()
    with taken:
        await call(store, name, f"  {key}\n", node.session_id)


async def test_an_error_about_a_key_can_be_printed_everywhere(store: SessionStorage) -> None:
    for key in INVALID.values():
        with pytest.raises(InvalidKeyError) as raised:
            await store.get_session(key)  # type: ignore[arg-type]
        assert str(raised.value).isascii()
        assert len(str(raised.value)) < 200
