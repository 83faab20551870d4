"""Iterates one session in a process of its own, and prints the peak of its memory over that at the start, in bytes.

``python tests/benchmarks/iterate_store.py ROOT SESSION_ID COUNT``
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from squilla_files.storage import SessionStorage

if sys.platform != "win32":
    import resource


def peak_bytes() -> int:
    """Return the most memory that this process has had resident so far."""
    status = Path("/proc/self/status")
    if status.exists():
        # Not `ru_maxrss`: on Linux that includes what the process was before it became this program.
        (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    if sys.platform == "darwin":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    raise OSError(f"{sys.platform} does not tell how much memory a process has had")


async def iterate(store: SessionStorage, session_id: str) -> int:
    """Return how many entries a session has, by looking at each."""
    count = 0
    async for _ in store.iter_transcript(session_id):
        count += 1
    return count


async def iterate_alone(root: str, session_id: str) -> int:
    """Do the same in a store that nobody has looked into yet."""
    async with SessionStorage(root, device="bench") as store:
        return await iterate(store, session_id)


def main() -> None:
    """Print the bytes, if there were as many entries as there should be."""
    root, session_id, expected = sys.argv[1:]
    start = peak_bytes()
    count = asyncio.run(iterate_alone(root, session_id))
    if count != int(expected):
        sys.exit(f"{count} entries were iterated, not {expected}")
    print(peak_bytes() - start)


if __name__ == "__main__":
    main()
