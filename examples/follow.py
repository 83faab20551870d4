"""Print a session as it grows, from a process of its own.

    python examples/follow.py STORE KEY [CURSOR]

Whatever writes to the session, another process or another device behind a sync service, is shown here. With a cursor,
which stands in brackets behind each line, it goes on where it was interrupted.

A message of the manager comes as two events: `appended`, and `updated` for the time and the counters that it changed.
The second kind is passed over here.
"""

from __future__ import annotations

import argparse
import asyncio
from contextlib import aclosing

from squilla_files import SessionStorage
from squilla_files.events import Event
from squilla_files.models import SESSION_COUNTERS

BOOKKEEPING = SESSION_COUNTERS | {"updated_at", "total_tokens_fresh"}


def is_bookkeeping(event: Event) -> bool:
    """Return whether nothing but times and counters of use changed."""
    return event.kind == "updated" and bool(event.fields) and event.fields.keys() <= BOOKKEEPING


def line(event: Event) -> str:
    """Return what there is to see of an event."""
    match event.kind:
        case "appended":
            return f"{event.entry.role}: {event.entry.content}"
        case "removed":
            return f"(message {event.message_id} was removed)"
        case "created" | "reset":
            return f"({event.kind}, epoch {event.epoch}, session {event.node.session_id})"
        case "updated":
            return f"({', '.join(event.fields) or 'summaries'} changed)"
        case "compacted":
            return f"(compacted: {'no summary' if event.summary is None else event.summary.summary_text})"
        case "gap":
            return "(the cursor could not be resumed: what came in between is not shown)"
        case _:
            return f"({event.kind})"


async def main(root: str, key: str, cursor: str | None = None) -> None:
    """Print what happens until the session is deleted."""
    async with SessionStorage(root) as store, aclosing(store.watch(key, after=cursor)) as events:
        async for event in events:
            if not is_bookkeeping(event):
                print(f"{line(event)} [{event.cursor}]", flush=True)
            if event.kind == "deleted":
                return


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Print a session as it grows, from a process of its own.")
    parser.add_argument("store", help="the directory")
    parser.add_argument("key", help="the session's key")
    parser.add_argument("cursor", nargs="?", help="go on behind it")
    given = parser.parse_args()
    asyncio.run(main(given.store, given.key, given.cursor))
