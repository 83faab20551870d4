"""Names are safe on every file system, and what was built is parsed back."""

from __future__ import annotations

import dataclasses
import hashlib
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from squilla_files import layout
from squilla_files.errors import InvalidDeviceError
from squilla_files.layout import DeletionName, Layout, LogName, NumberedName

LONGEST = "d" * 40
RESERVED = {"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(10))}

keys = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=80)
devices = st.from_regex(r"[a-z0-9-]{1,40}", fullmatch=True)
numbers = st.integers(1, 10**8)
hex8 = st.from_regex(r"[0-9a-f]{8}", fullmatch=True)
hex16 = st.from_regex(r"[0-9a-f]{16}", fullmatch=True)


def is_portable(name: str) -> bool:
    return (
        name.isascii()
        and name == name.lower()
        and 0 < len(name) <= 80
        and name[-1] not in ". "
        and name.partition(".")[0] not in RESERVED
        and not set(name) & set('<>:"/\\|?* ')
        and name.isprintable()
    )


@pytest.mark.parametrize(
    ("key", "slug"),
    [
        ("agent:main:main", "agent-main-main"),
        ("../x", "x"),
        ("con", "con"),
        ("NUL.txt", "nul-txt"),
        ("字" * 300, "key"),
        ("::", "key"),
        ("café", "caf"),
        ("\u212a", "key"),  # the Kelvin sign, whose lower case is an ASCII k
        ("a" * 39 + ":b", "a" * 39),
        ("A" * 50, "a" * 40),
    ],
)
def test_a_directory_is_named_by_slug_and_hash_of_the_key(key: str, slug: str) -> None:
    digest = hashlib.sha256(key.encode()).hexdigest()[:16]
    assert layout.session_dir_name(key) == f"{slug}~{digest}"
    assert layout.key_hash(key) == digest


@given(keys)
def test_any_key_gives_a_portable_directory_name_that_is_parsed_back(key: str) -> None:
    name = layout.session_dir_name(key)
    assert is_portable(name)
    assert layout.parse_session_dir_name(name) == layout.key_hash(key)
    assert not layout.is_in_progress(name)


@given(devices, numbers, st.none() | hex8)
def test_a_log_name_is_parsed_back(device: str, number: int, digest: str | None) -> None:
    name = layout.log_name(device, number, digest)
    assert layout.parse_log_name(name) == LogName(device, number, digest)
    assert is_portable(name)


@given(devices, numbers)
def test_names_of_manifests_summaries_and_contexts_are_parsed_back(device: str, number: int) -> None:
    assert layout.parse_manifest_name(layout.manifest_name(device)) == device
    assert layout.parse_numbered_name(layout.summary_name(number, device)) == NumberedName(number, device)
    assert layout.parse_numbered_name(layout.context_name(number, device)) == NumberedName(number, device)


@given(keys, hex16)
def test_a_deletion_is_named_after_the_directory(key: str, token: str) -> None:
    dir_name = layout.session_dir_name(key)
    assert layout.parse_deletion_name(layout.deletion_name(dir_name, token)) == DeletionName(dir_name, token)


def test_names_are_those_of_the_format() -> None:
    assert layout.log_name("laptop-3f9c", 2) == "transcript.laptop-3f9c.000002.jsonl"
    assert layout.log_name("laptop-3f9c", 2, "0a1b2c3d") == "transcript.laptop-3f9c.000002.0a1b2c3d.jsonl"
    assert layout.manifest_name("laptop-3f9c") == "manifest.laptop-3f9c.json"
    assert layout.summary_name(1, "laptop-3f9c") == "000001.laptop-3f9c.json"


def test_the_longest_names_fit_in_80_characters() -> None:
    dir_name = layout.session_dir_name("k" * 500)
    names = [
        dir_name,
        layout.log_name(LONGEST, 999_999, "0" * 8),
        layout.manifest_name(LONGEST),
        layout.summary_name(999_999, LONGEST),
        layout.context_name(999_999, LONGEST),
        layout.deletion_name(dir_name, "0" * 16),
        layout.archive_document_name(dir_name, 999_999, "0" * 8),
        layout.trash_name(dir_name, "0" * 16),
        layout.temporary_name("0" * 16),
    ]
    assert [name for name in names if not is_portable(name)] == []
    assert (
        len(set(names)) == len(names) - 1
    )  # a summary and a context state may share a name, in directories of their own


@pytest.mark.parametrize(
    "name",
    [
        "transcript.laptop.1.jsonl",
        "transcript.laptop.000001.jsonl ",
        "transcript.laptop.000001.jsonl\n",
        "transcript.Laptop.000001.jsonl",
        "transcript.laptop.000001 (1).jsonl",
        "transcript.laptop.000001.sync-conflict-20261201-101010-ABCDEFG.jsonl",
        "transcript.laptop.000001.xyzxyzxy.jsonl",
        "transcript..000001.jsonl",
        "transcript.laptop.٠٠٠٠٠١.jsonl",
        f"transcript.{LONGEST}d.000001.jsonl",
        "manifest.laptop.json~",
        "manifest.lap top.json",
        "manifest.json",
        "1.laptop.json",
        "agent-main~3f9c2a718e04b6d",
        "agent-main~3F9C2A718E04B6D1",
        "~3f9c2a718e04b6d1",
        "a~3f9c2a718e04b6d1.json",
        "",
    ],
)
def test_a_name_that_is_almost_ours_is_not_ours(name: str) -> None:
    assert layout.parse_log_name(name) is None
    assert layout.parse_manifest_name(name) is None
    assert layout.parse_numbered_name(name) is None
    assert layout.parse_deletion_name(name) is None
    assert layout.parse_session_dir_name(name) is None


@pytest.mark.parametrize("device", ["a", "laptop-3f9c", "-", LONGEST, "0"])
def test_a_device_name_of_the_allowed_characters_is_taken(device: str) -> None:
    assert layout.validate_device(device) == device


@pytest.mark.parametrize("device", ["", LONGEST + "d", "Laptop", "a.b", "a_b", "ä", "a\n", "..", "a/b", None, 7])
def test_another_device_name_is_refused(device: object) -> None:
    with pytest.raises(InvalidDeviceError):
        layout.validate_device(device)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name",
    [
        ".transcript.laptop.000001.jsonl.icloud",
        ".syncthing.transcript.laptop.000001.jsonl.tmp",
        "~syncthing~transcript.laptop.000001.jsonl.tmp",
        "transcript.laptop.000001.jsonl.!sync",
        "transcript.laptop.000001.jsonl.PART",
        "transcript.laptop.000001.jsonl.partial",
        "transcript.laptop.000001.jsonl.filepart",
        "transcript.laptop.000001.jsonl.crdownload",
        "~$transcript.laptop.000001.jsonl",
        ".DS_Store",
        "Copy.TMP",
        layout.temporary_name("0123456789abcdef"),
    ],
)
def test_a_file_under_way_is_known_by_its_name(name: str) -> None:
    assert layout.is_in_progress(name)


@pytest.mark.parametrize(
    "name",
    [
        "transcript.laptop.000001.jsonl",
        "transcript.laptop.000001.sync-conflict-20261201-101010-ABCDEFG.jsonl",
        "transcript.laptop.000001 (conflicted copy).jsonl",
        "Kopie von transcript.laptop.000001.jsonl",
        "manifest.tmp.json",
        "anything",
    ],
)
def test_a_copy_under_any_other_name_is_not_under_way(name: str) -> None:
    assert not layout.is_in_progress(name)


def test_a_temporary_name_is_ours_only_in_its_own_form() -> None:
    assert layout.is_temporary(layout.temporary_name("0123456789abcdef"))
    assert not any(
        map(layout.is_temporary, ["~sqf-.tmp", "~sqf-xyz.tmp", "~sqf-00.tmp.jsonl", "a~sqf-00.tmp", "~$a.tmp"])
    )


def test_a_placeholder_says_which_file_is_not_on_this_machine() -> None:
    assert layout.is_placeholder(".transcript.laptop.000001.jsonl.icloud") == "transcript.laptop.000001.jsonl"
    assert layout.is_placeholder("transcript.laptop.000001.jsonl.icloud") is None
    assert layout.is_placeholder("..icloud") is None
    assert layout.is_placeholder("transcript.laptop.000001.jsonl") is None


def test_the_paths_of_a_store_are_those_of_the_format() -> None:
    root = os.path.join(os.sep, "root")
    paths = Layout(root)
    found = {
        paths.store_file: "store.json",
        paths.session("d~0"): "sessions/d~0",
        paths.archive("d~0"): "sessions/d~0/archive",
        paths.summaries("d~0"): "sessions/d~0/summaries",
        paths.contexts("d~0"): "sessions/d~0/contexts",
        paths.sessions: "sessions",
        paths.archives: "archives",
        paths.deleted: "deleted",
        paths.local: ".local",
        paths.locks: ".local/locks",
        paths.lock_file("d~0"): ".local/locks/d~0.lock",
        paths.devices: ".local/devices",
        paths.device_file("f00d"): ".local/devices/f00d.json",
        paths.memory: ".local/memory",
        paths.memory_file("f00d", "d~0"): ".local/memory/f00d/d~0.json",
        paths.cursors: ".local/cursors",
        paths.trash: ".local/trash",
        paths.quarantine: ".local/quarantine",
    }
    assert {os.path.relpath(path, root).replace(os.sep, "/"): want for path, want in found.items()} == {
        want: want for want in found.values()
    }
    with pytest.raises(dataclasses.FrozenInstanceError):
        paths.root = "/elsewhere"  # type: ignore[misc]
