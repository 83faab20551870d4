"""Large sessions and stores, made by writing lines of the format: the public append syncs each, and takes too long.

What is made so is what the store itself would have written: every session that is filled is read back, and must hold
all its entries and no damaged line.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from uuid import uuid4

from squilla_files.clock import now_ms
from squilla_files.codec import encode_line
from squilla_files.journal import first_line
from squilla_files.layout import Layout, log_name, manifest_name, session_dir_name
from squilla_files.manager import SessionManager
from squilla_files.models import TranscriptEntry
from squilla_files.storage import SessionStorage
from squilla_files.writing import new_log_id

DEVICE = "bench"
_LINES_AT_ONCE = 10_000
_CONTENT_CHARACTERS = 280
TOKENS = _CONTENT_CHARACTERS // 4
_SENTENCES = (
    "Please look at the report again before the meeting on Thursday and say which of the numbers changed. ",
    "The second table was rounded twice, so the sums in the last column are off by a little everywhere. ",
    "I read reports/2026/summary-q3.md and compared it with the export; the difference is in two rows. ",
    "Then we keep the old layout for now, and only the header gets the date of the export and its source. ",
    "Running make report finished without a warning, and the result is as long as the one of last week. ",
    "Could you also check whether the chart on page four still fits when the legend moves below it? ",
    "It does, but the labels of the months overlap on narrow pages, which is why they were turned before. ",
)


def content(number: int) -> str:
    """Return what message *number* says: plain text, other in each."""
    text = "".join(_SENTENCES[(number + n) % len(_SENTENCES)] for n in range(4))
    return f"{number}: {text}"[:_CONTENT_CHARACTERS]


def entry(session_id: str, key: str, number: int) -> TranscriptEntry:
    """Return message *number*; its line is about 500 bytes long."""
    return TranscriptEntry(
        session_id=session_id,
        session_key=key,
        role="assistant" if number % 2 else "user",
        content=content(number),
        token_count=TOKENS,
    )


def _message_line(number: int, identifier: int, message_id: str, after: str | None) -> bytes:
    links = {"message_id": message_id} if after is None else {"message_id": message_id, "after": after}
    told = {"role": "assistant" if number % 2 else "user", "created_at": now_ms(), "token_count": TOKENS}
    return encode_line({"type": "message", "id": identifier, **links, **told, "content": content(number)})


def _lines_behind(first: TranscriptEntry, count: int) -> Iterator[bytes]:
    """Yield the lines of *count* messages that follow *first*, message 0."""
    after = first.message_id
    for number in range(1, count + 1):
        message_id = str(uuid4())
        yield _message_line(number, (first.id or 0) + number, message_id, after)
        after = message_id


def _extend(path: str, lines: Iterator[bytes]) -> None:
    with open(path, "ab") as log:
        while block := list(islice(lines, _LINES_AT_ONCE)):
            log.writelines(block)


def _begin(store: SessionStorage, key: str, lines: list[bytes]) -> list[str]:
    """Make a session with a log of these lines and a manifest, and return the paths of its directory and log."""
    session = store._directory_of(key)
    log = os.path.join(session.path, log_name(DEVICE, 1))
    os.mkdir(session.path, 0o700)
    _create(log, b"".join(lines))
    session.refresh()
    _create(os.path.join(session.path, manifest_name(DEVICE)), session.checkpoint(DEVICE).encode())
    return [session.path, log]


def _create(path: str, data: bytes) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)


async def fill(store: SessionStorage, key: str, count: int) -> str:
    """Create the session *key* with *count* entries, the first and the last by the store, and return its session id.

    The store has a checkpoint of it when it is closed.

    Raises:
        ValueError: there are fewer than 2 entries to be made.
        AssertionError: the store does not find in the session what was written.
    """
    if count < 2:
        raise ValueError(f"a session is filled with 2 entries at least, not with {count}")
    node = await SessionManager(store).create(key)
    first = await store.append_transcript_entry(entry(node.session_id, key, 0))
    path = os.path.join(Layout(store.root).session(session_dir_name(key)), log_name(DEVICE, 1))
    _extend(path, _lines_behind(first, count - 2))
    last = await store.append_transcript_entry(entry(node.session_id, key, count - 1))
    session = store._sessions[key].session.dir
    damaged = [item for log in session.logs.values() for item in log.damage]
    live = await store.count_transcript_entries(node.session_id)
    if damaged or list(session.logs) != [os.path.basename(path)] or live != count or last.id != count + 1:
        raise AssertionError(f"{live} of {count} entries in {list(session.logs)}, damaged: {damaged}")
    return node.session_id


async def fill_sessions(store: SessionStorage, count: int) -> list[str]:
    """Create *count* sessions with a message each, and return their directories and logs.

    Raises:
        AssertionError: the store does not list what was written.
    """
    await fill(store, "agent:main:first", 2)  # so that root and `store.json` are there
    made: list[str] = []
    for number in range(1, count):
        key, session_id = f"agent:main:direct:{number}", str(uuid4())
        given = {"session_id": session_id, "created_at": number, "updated_at": number, "status": "running"}
        lines = [
            first_line(session_key=key, device=DEVICE, log_id=new_log_id(), last_id=0, epoch=0, source=None),
            encode_line({"type": "session", "id": 1, "record": new_log_id(), "event": "created", "set": given}),
            _message_line(number, 2, str(uuid4()), None),
        ]
        made += _begin(store, key, lines)
    listed = await store.count_sessions()
    if listed != count or store._catalog.problems:
        raise AssertionError(f"{listed} of {count} sessions are listed, problems: {store._catalog.problems}")
    return made
