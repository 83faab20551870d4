from __future__ import annotations

from datetime import UTC
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pytest

from squilla_files.stamps import load_zone, stamp_text

TUESDAY_MS = 1_796_102_430_000
"""2026-12-01, 05:20:30 UTC."""


def test_the_line_tells_minute_offset_weekday_and_zone() -> None:
    assert stamp_text("hello", at_ms=TUESDAY_MS, zone=UTC) == "[2026-12-01T05:20+00:00 Tue UTC]\nhello"


def test_a_named_zone_is_told_by_its_name() -> None:
    stamped = stamp_text("hello", at_ms=TUESDAY_MS, zone=ZoneInfo("Asia/Kolkata"))
    assert stamped == "[2026-12-01T10:50+05:30 Tue Asia/Kolkata]\nhello"


def test_the_weekday_is_that_of_the_zone() -> None:
    stamped = stamp_text("hello", at_ms=TUESDAY_MS, zone=ZoneInfo("America/Los_Angeles"))
    assert stamped == "[2026-11-30T21:20-08:00 Mon America/Los_Angeles]\nhello"


@pytest.mark.parametrize("zone", [UTC, ZoneInfo("America/Los_Angeles"), None])
def test_a_text_is_stamped_once(zone: ZoneInfo | None) -> None:
    stamped = stamp_text("hello", at_ms=TUESDAY_MS, zone=zone)
    assert stamped.endswith("]\nhello")
    assert stamp_text(stamped, at_ms=TUESDAY_MS + 60_000, zone=zone) == stamped


@pytest.mark.parametrize("text", ["", " \n", '{"text": "hi", "attachments": []}', ' {"text": "hi"} '])
def test_empty_text_and_json_envelopes_are_left_alone(text: str) -> None:
    assert stamp_text(text, at_ms=TUESDAY_MS, zone=UTC) == text


@pytest.mark.parametrize("text", ["{not json", "[1, 2]", "[2026-12-01] a diary", "{} and more", "{\ud800}"])
def test_text_that_only_looks_like_an_envelope_or_a_stamp_is_stamped(text: str) -> None:
    assert stamp_text(text, at_ms=TUESDAY_MS, zone=UTC) == f"[2026-12-01T05:20+00:00 Tue UTC]\n{text}"


def test_no_name_is_the_zone_of_the_machine_and_a_wrong_one_an_error() -> None:
    assert load_zone(None) is None
    assert load_zone("utc") is UTC
    with pytest.raises(ZoneInfoNotFoundError):
        load_zone("Mars/Olympus")
