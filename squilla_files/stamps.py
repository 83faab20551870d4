"""The line before a user's text that tells a model when it was said.

    [2026-12-01T05:20+00:00 Tue UTC]
    What is left to do today?

A model has no clock. With the time in the transcript it can say how long ago something was; and as the same text comes
to it on every turn, a provider's cache of the prompt stays good.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, tzinfo
from typing import Final
from zoneinfo import ZoneInfo

from squilla_files.codec import decode_line

# Not strftime's %a, which speaks the language of the machine.
_WEEKDAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_STAMP: Final = re.compile(r"\[\d{4}-\d\d-\d\dT\d\d:\d\d[+-]\d\d:\d\d (?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) [^\]\n]+\]")


def load_zone(name: str | None) -> tzinfo | None:
    """Return the zone of this IANA name, such as ``Europe/Berlin``; None for None, which is the machine's zone.

    Raises:
        zoneinfo.ZoneInfoNotFoundError: there is no such zone; a `KeyError`.
        ValueError: no zone can have this name.
    """
    # Some systems bring no database of zones; UTC needs none.
    return None if name is None else UTC if name.upper() == "UTC" else ZoneInfo(name)


def stamp_text(text: str, *, at_ms: int, zone: tzinfo | None) -> str:
    """Return *text* with the line of the time in front.

    Text that is empty or blank, that bears such a line already, or that is a JSON object (an envelope, which holds the
    text inside) is returned as it is.

    Args:
        text: what a user said.
        at_ms: when, in ms since the Unix epoch, UTC.
        zone: in which zone to tell it; None is the machine's.
    """
    if not text.strip() or _STAMP.match(text) or _is_envelope(text):
        return text
    moment = datetime.fromtimestamp(at_ms / 1000, UTC).astimezone(zone)
    name = zone.key if isinstance(zone, ZoneInfo) else moment.tzname()
    return f"[{moment.isoformat(timespec='minutes')} {_WEEKDAYS[moment.weekday()]} {name}]\n{text}"


def _is_envelope(text: str) -> bool:
    # The cheap look first: only what begins like an object is worth decoding.
    return text.lstrip().startswith("{") and decode_line(text.encode("utf-8", "surrogatepass")) is not None
