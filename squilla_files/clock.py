"""The one clock: every time in the store is asked for here."""

from __future__ import annotations

import time


def now_ms() -> int:
    """Return the present time in milliseconds since the Unix epoch, UTC.

    Times are shown to people and compared by age only; no order in the store depends on them.
    """
    return time.time_ns() // 1_000_000


def as_ms(value: object) -> int | float:
    """Return a time that a record says, for comparing; 0 where it is no number.

    Another program may have written anything there; one record of it must not stop a listing of all.
    """
    return value if type(value) in (int, float) else 0  # type: ignore[return-value]
