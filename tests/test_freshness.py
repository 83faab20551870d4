"""A status hints that nothing changed, and is not trusted where it cannot show a change."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from squilla_files.freshness import Freshness, stamp_of

if TYPE_CHECKING:
    from pathlib import Path

SECOND = 1_000_000_000


def status(*, modified_ns: int, inode: int = 7, size: int = 10) -> os.stat_result:
    values = [0o100600, inode, 1, 1, 0, 0, size, 0, modified_ns // SECOND, 0]
    return os.stat_result(values, {"st_mtime_ns": modified_ns})


OLD = status(modified_ns=5 * SECOND + 123)
LATER_NS = 60 * SECOND


def test_what_was_never_seen_is_not_the_same() -> None:
    assert not Freshness().same(OLD)


def test_a_status_that_did_not_change_since_it_was_old_is_the_same() -> None:
    fresh = Freshness()
    fresh.saw(OLD, LATER_NS)
    assert fresh.same(status(modified_ns=5 * SECOND + 123))


@pytest.mark.parametrize(
    "other",
    [
        status(modified_ns=5 * SECOND + 124),
        status(modified_ns=5 * SECOND + 123, inode=8),
        status(modified_ns=5 * SECOND + 123, size=11),
    ],
    ids=["time", "inode", "size"],
)
def test_another_status_is_not_the_same(other: os.stat_result) -> None:
    fresh = Freshness()
    fresh.saw(OLD, LATER_NS)
    assert not fresh.same(other)


def test_a_status_within_the_grain_of_its_time_stamp_is_not_trusted() -> None:
    fresh = Freshness()
    fresh.saw(OLD, OLD.st_mtime_ns + 50_000_000)
    assert not fresh.same(OLD)


def test_a_status_from_the_future_is_not_trusted() -> None:
    fresh = Freshness()
    fresh.saw(OLD, OLD.st_mtime_ns - SECOND)
    assert not fresh.same(OLD)


def test_a_time_stamp_without_a_fraction_is_of_a_coarse_file_system_and_not_trusted() -> None:
    coarse = status(modified_ns=5 * SECOND)
    fresh = Freshness()
    fresh.saw(coarse, LATER_NS)
    assert not fresh.same(coarse)


def test_what_was_forgotten_is_not_the_same() -> None:
    fresh = Freshness()
    fresh.saw(OLD, LATER_NS)
    fresh.forget()
    assert not fresh.same(OLD)


def test_a_stamp_shows_that_a_file_grew(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"one")
    before = stamp_of(path.stat())
    path.write_bytes(b"one and more")
    assert stamp_of(path.stat()) != before
