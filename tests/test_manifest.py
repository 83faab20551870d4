"""Manifests as documents: they come back equal, and what is none is refused with its path."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from squilla_files.errors import CorruptManifestError, UnsupportedFormatError
from squilla_files.manifest import LogMark, Manifest, decode_manifest

MARK = LogMark("archive/transcript.laptop.000001.jsonl", 300, 4, 200, "m")
MANIFEST = Manifest(
    session_key="agent:main:main",
    device="laptop",
    epoch=3,
    exists=True,
    session={"label": "Tea", "total_cost_usd": 0.5},
    session_ids=("first", "second"),
    live=2,
    canonical=7,
    logs=(MARK, LogMark("transcript.laptop.000002.jsonl", 90, 1, 0, None)),
    deletions=("one", "two"),
)
PATH = "/store/manifest.laptop.json"
MISSING = object()


def document(**changes: Any) -> dict[str, Any]:
    values = {**json.loads(MANIFEST.encode()), **changes}
    return {name: value for name, value in values.items() if value is not MISSING}


def decode(values: Any) -> Manifest:
    return decode_manifest(json.dumps(values).encode(), PATH)


COUNTS = st.integers(0, 2**53 - 1)
TEXTS = st.text(max_size=8)
MARKS = st.builds(LogMark, TEXTS, COUNTS, COUNTS, COUNTS, st.none() | TEXTS)


@given(
    st.builds(
        Manifest,
        TEXTS,
        TEXTS,
        COUNTS,
        st.booleans(),
        st.dictionaries(TEXTS, TEXTS | COUNTS, max_size=3),
        st.lists(TEXTS, max_size=3).map(tuple),
        COUNTS,
        COUNTS,
        st.lists(MARKS, max_size=3).map(tuple),
        st.lists(TEXTS, max_size=3).map(tuple),
    )
)
def test_a_manifest_comes_back_equal(manifest: Manifest) -> None:
    assert decode_manifest(manifest.encode(), PATH) == manifest


def test_a_manifest_says_what_it_is_and_can_be_read_by_people() -> None:
    text = MANIFEST.encode().decode()
    assert text.startswith('{\n  "type": "manifest",\n  "format": 1,\n  "session_key": "agent:main:main",\n')
    assert text.endswith("}\n")
    assert json.loads(text)["logs"][0] == {
        "name": MARK.name, "size": 300, "lines": 4, "last_offset": 200, "last": "m",
    }  # fmt: skip


def test_unknown_members_are_ignored() -> None:
    marks = [{**mark, "color": 1} for mark in document()["logs"]]
    assert decode(document(color="red", logs=marks)) == MANIFEST


@pytest.mark.parametrize("name", sorted({*json.loads(MANIFEST.encode())} - {"format"}))
def test_a_document_that_lacks_a_member_is_no_manifest(name: str) -> None:
    with pytest.raises(CorruptManifestError) as caught:
        decode(document(**{name: MISSING}))
    assert caught.value.path == PATH


@pytest.mark.parametrize("name", ["epoch", "live", "canonical"])
@pytest.mark.parametrize("value", [None, -1, 1.5, True, "7", [], 2**53])
def test_a_number_must_be_a_whole_one(name: str, value: object) -> None:
    with pytest.raises(CorruptManifestError, match="whole number"):
        decode(document(**{name: value}))
    assert decode(document(**{name: 2**53 - 1})) == replace(MANIFEST, **{name: 2**53 - 1})


@pytest.mark.parametrize("name", ["logs", "session_ids", "deletions"])
@pytest.mark.parametrize("value", [None, 7, True])
def test_a_list_must_be_one(name: str, value: object) -> None:
    with pytest.raises(CorruptManifestError):
        decode(document(**{name: value}))


@pytest.mark.parametrize("mark", [None, 7, "name", [], {}])
def test_a_mark_must_be_an_object_with_all_its_members(mark: object) -> None:
    with pytest.raises(CorruptManifestError):
        decode(document(logs=[mark]))
    for name in ("name", "size", "lines", "last_offset", "last"):
        less = {key: value for key, value in document()["logs"][0].items() if key != name}
        with pytest.raises(CorruptManifestError):
            decode(document(logs=[less]))


@pytest.mark.parametrize("name", ["size", "lines", "last_offset"])
@pytest.mark.parametrize("value", [None, -1, True, "7", 1.5])
def test_the_numbers_of_a_mark_must_be_whole(name: str, value: object) -> None:
    with pytest.raises(CorruptManifestError):
        decode(document(logs=[{**document()["logs"][0], name: value}]))


@pytest.mark.parametrize(
    "data", [b"", b"x", b"[]", b"null", b'"text"', b"{}", b'{"type":"manifest"}', MANIFEST.encode()[:-9]]
)
def test_what_is_no_manifest_is_refused_with_its_path(data: bytes) -> None:
    with pytest.raises(CorruptManifestError) as caught:
        decode_manifest(data, PATH)
    assert caught.value.path == PATH


def test_another_type_of_document_is_no_manifest() -> None:
    with pytest.raises(CorruptManifestError, match="another type"):
        decode(document(type="summary"))
    with pytest.raises(CorruptManifestError, match="another type"):
        decode(document(session=[]))


def test_whether_there_is_a_session_is_said_by_true_alone() -> None:
    assert decode(document(exists=1)) == replace(MANIFEST, exists=False)


def test_a_later_version_is_told_from_damage() -> None:
    with pytest.raises(UnsupportedFormatError):
        decode(document(format=2, logs="of another shape"))
    assert decode(document(format=MISSING)) == MANIFEST
