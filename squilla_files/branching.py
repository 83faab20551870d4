"""Forks: a session that begins with the transcript of another (FORMAT.md, "Writing").

The child is one log, as if this device had written it, and compacted it where the parent was: documents first, then the
log, which appears whole or not at all. Then it is sealed like any other. Lines of entries are copied as they stand, but
for what places them in a session.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from squilla_files.clock import now_ms
from squilla_files.codec import check_counter, decode_line, encode_line
from squilla_files.drafting import creation_members
from squilla_files.errors import MessageNotFoundError, SessionExistsError
from squilla_files.journal import COMPACTION, CONTEXT, MESSAGE, SESSION, SUMMARY, Record
from squilla_files.models import SessionContextState, SessionNode, SessionSummary
from squilla_files.rawjson import items_of, place_entry
from squilla_files.session import Session, check_epoch
from squilla_files.session_dir import node_of
from squilla_files.tokens import estimate_tokens
from squilla_files.writing import new_log_id

_log = logging.getLogger(__name__)

Taken = Literal["none", "live", "before"]
"""What a child takes along: nothing, the transcript with all that belongs to it, or the entries before a message."""


@dataclass(slots=True)
class Fork:
    """What a child takes along.

    Attributes:
        entries: the canonical entries, and the bytes of the object of each.
        archived_by: identity of an archived entry → identity of the compaction.
        compactions: in the order of records, the identity of each and its summary or None; a summary that no
            compaction made stands among them without an identity.
        contexts: the valid context states.
        taken: whether anything was taken, be it an empty transcript.
    """

    entries: list[tuple[Record, bytes]] = field(default_factory=list)
    archived_by: dict[str, str] = field(default_factory=dict)
    compactions: list[tuple[str | None, SessionSummary | None]] = field(default_factory=list)
    contexts: list[SessionContextState] = field(default_factory=list)
    taken: bool = False


def take(parent: Session, what: Taken, before_message_id: str | None, max_tokens: int | None) -> Fork:
    """Return what a child of *parent* takes along.

    Args:
        parent: the session, refreshed.
        what: what is asked for.
        before_message_id: for ``"before"``: the canonical entries before this message are taken, and nothing else.
        max_tokens: if the entries' token counts and an estimate of the summaries are more, nothing is taken.

    Raises:
        SessionNotFoundError: there is no parent.
        MessageNotFoundError: it has no such message.
    """
    timeline = parent.require()
    if what == "none":
        return Fork()
    records = timeline.canonical
    fork = Fork(taken=True)
    if what == "before":
        end = next((n for n, record in enumerate(records) if record.identity == before_message_id), None)
        if end is None:
            raise MessageNotFoundError(parent.key, str(before_message_id))
        records = records[:end]
    else:
        _take_documents(parent, fork)
    fork.entries = list(zip(records, _object_bytes(parent, records), strict=True))
    if max_tokens is not None and _weight(fork) > max_tokens:
        return Fork()
    return fork


def _take_documents(parent: Session, fork: Fork) -> None:
    timeline = parent.timeline
    fork.archived_by = timeline.archived_by
    summaries: dict[str, SessionSummary] = {}
    for attachment in timeline.current(timeline.summaries):
        for summary in parent.attachments.summaries([attachment]):
            summaries[attachment.record.identity] = summary
    used = {*summaries, *timeline.archived_by.values()}
    records = [record for record in timeline.records.values() if record.identity in used]
    # Summaries are numbered in this order.
    for record in sorted(records, key=timeline.rank_of):
        identity = record.identity if record.kind == COMPACTION else None
        fork.compactions.append((identity, summaries.get(record.identity)))
    states = parent.attachments.contexts(timeline.current(timeline.contexts))
    fork.contexts = [state for state in states if state.valid]


def _object_bytes(parent: Session, records: Sequence[Record]) -> Iterator[bytes]:
    """Yield the bytes of the object of each entry, wherever it stands."""
    lines = iter(parent.dir.read_lines([record for record in records if record.position is None]))
    # A compaction's line may hold many entries: it is read and taken apart once.
    within = {(record.log.name, record.line): record for record in records if record.position is not None}
    listed = [items_of(line, "entries") for line in parent.dir.read_lines(list(within.values()))]
    entries = dict(zip(within, listed, strict=True))
    for record in records:
        yield next(lines) if record.position is None else entries[record.log.name, record.line][record.position]


def _weight(fork: Fork) -> int:
    """Return the tokens of what is taken: counted for live entries, estimated for summaries."""
    total = 0
    for record, line in fork.entries:
        if record.identity not in fork.archived_by:
            count = (decode_line(line) or {}).get("token_count")
            total += count if type(count) is int else 0
    texts = [summary.summary_text for _, summary in fork.compactions if summary is not None]
    return total + sum(estimate_tokens(text) for text in texts if text)


def build(child: Session, node: SessionNode, fork: Fork) -> SessionNode:
    """Create the session *node* with what *fork* holds, whole or not at all.

    Raises:
        SessionExistsError: there is a session under its key.
        UnstorableTypeError, UnstorableValueError: a value of *node* that would not come back equal.
        OSError: there is no child; documents that were written belong to nothing.

    Durability: kept once this returns.
    """
    if child.timeline.exists:
        raise SessionExistsError(child.key)
    check_epoch(node)
    node.forked_from_parent = fork.taken
    lines = _Lines(child, node, fork)
    child.writer.commit_whole(lines.log_id, lines.data)
    if fork.archived_by:
        _seal(child)
    return lines.node  # a long transcript is read when somebody asks for it


def _seal(child: Session) -> None:
    """Seal the log of a child that is there already: what fails here is left to a later write."""
    try:
        child.refresh()
    except OSError as error:
        _log.warning("session %s: the branch stands, but is not sealed: %s", child.key, error)
        return
    child.writer.settle(seal=True)


class _Lines:
    """The lines of a child's log behind the first."""

    def __init__(self, child: Session, node: SessionNode, fork: Fork) -> None:
        self.log_id = new_log_id()
        self._child = child
        self._node = node
        self._epoch = max(child.timeline.epoch, node.epoch)
        self._pieces: list[bytes] = []
        self._last: str | None = None
        first = fork.entries[0][0].id if fork.entries else child.timeline.last_id + 2
        self._id = max(child.timeline.last_id, first - 2)
        members = creation_members(node)
        self.node = node_of(child.key, self._epoch, {**members["set"], **members.get("add", {})})
        self._record(SESSION, event="created", at=now_ms(), **members)
        where = {record.identity: self._entry(record, line) for record, line in fork.entries}
        self._compactions(fork, where)
        for state in fork.contexts:
            self._record(CONTEXT, context=self._document(state))
        self.data = b"".join(self._pieces)

    def _head(self, kind: str, identifier: int) -> dict[str, Any]:
        self._id = identifier
        head: dict[str, Any] = {"type": kind, "id": check_counter(identifier, "id")}
        if self._epoch:
            head["epoch"] = self._epoch
        return head

    def _record(self, kind: str, **members: Any) -> None:
        head = self._head(kind, self._id + 1)
        self._pieces.append(encode_line({**head, "record": secrets.token_hex(8), **members}))

    def _entry(self, record: Record, line: bytes) -> int:
        """Add an entry behind the one before; its id stays what it was as long as ids grow. Returns its line number."""
        links = {"message_id": record.identity}
        if self._last is not None:
            links["after"] = self._last
        head = self._head(MESSAGE, max(self._id + 1, record.id))
        self._last = record.identity
        self._pieces.append(place_entry(line, {**head, **links}))
        return len(self._pieces) + 1

    def _compactions(self, fork: Fork, where: dict[str, int]) -> None:
        """Repeat the parent's compactions, each with a mark at the last entry that it archived."""
        archived: set[str] = set()
        for identity, summary in fork.compactions:
            if identity is None and summary is not None:
                self._record(SUMMARY, summary=self._document(summary))
                continue
            mine = [entry for entry in where if fork.archived_by.get(entry) == identity]
            archived.update(mine)
            covers: list[list[Any]] = []
            kept: list[str] = []
            if mine:
                end = max(mine, key=where.__getitem__)
                covers = [[self.log_id, where[end], end]]
                kept = [entry for entry, line in where.items() if line <= where[end] and entry not in archived]
            members: dict[str, Any] = {"at": now_ms(), "covers": covers, "kept": kept}
            if summary is not None:
                members["summary"] = self._document(summary)
            self._record(COMPACTION, **members)

    def _document(self, record: SessionSummary | SessionContextState) -> str:
        record.session_key = self._child.key
        record.session_id = self._node.session_id
        return self._child.attachments.write(record, self._child.writer.device)
