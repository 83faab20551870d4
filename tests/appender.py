"""A process that appends to one session, and compacts it now and then.

    python appender.py ROOT DEVICE KEY NAME COUNT COMPACT_EVERY

It says ``ready`` and begins when its input ends, then says how many of its appends were acknowledged. Content *n* of
process NAME is ``NAME n``. With COMPACT_EVERY above zero all but the last live entry are archived after so many.
"""

from __future__ import annotations

import asyncio
import sys

from squilla_files.models import TranscriptEntry
from squilla_files.storage import SessionStorage


async def main(root: str, device: str, key: str, name: str, count: int, compact_every: int) -> None:
    async with SessionStorage(root, device=device or None, lock_timeout=120.0) as store:
        node = await store.get_session(key)
        if node is None:
            raise LookupError(key)
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.read)
        for number in range(count):
            entry = TranscriptEntry(
                session_id=node.session_id, session_key=key, role="user", content=f"{name} {number}"
            )
            await store.append_transcript_entry(entry)
            if compact_every and number % compact_every == compact_every - 1:
                await store.truncate_session(key, 1)
        print(count, flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:5], int(sys.argv[5]), int(sys.argv[6])))
