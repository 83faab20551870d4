"""One session, synchronous: every change is one commit (FORMAT.md, "Writing").

The caller holds the session's lock and has called `refresh`. A verb decides, and writes one line, or several lines in
one write; what comes behind that write (sealing, the manifest) is tidying up, and a later write finishes it.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Callable, Mapping
from typing import Any

from squilla_files import layout
from squilla_files.archives import write_archive
from squilla_files.attachments import Attachments
from squilla_files.clock import now_ms
from squilla_files.codec import check_counter, counter_of, same_value
from squilla_files.deletions import Deletions
from squilla_files.devices import Devices
from squilla_files.drafting import (
    Draft,
    Members,
    counter_changes,
    counter_difference,
    creation_members,
    field_changes,
    node_fields,
)
from squilla_files.errors import SessionExistsError, SessionNotFoundError, UnsafePathError, UnstorableValueError
from squilla_files.files import Files
from squilla_files.journal import SESSION
from squilla_files.marks import Mark
from squilla_files.models import SESSION_COUNTERS, SessionNode, new_id
from squilla_files.session_dir import SessionDir
from squilla_files.timeline import Deletion, Timeline
from squilla_files.writing import LogWriter

_log = logging.getLogger(__name__)

# What a reset sets, besides the new session id; counters begin at zero with their generation.
_RESET_FIELDS: Members = {"context_tokens": None, "total_tokens_fresh": False, "cost_source": "none"}
# What a writer with an old epoch may not put back.
_FENCED_FIELDS = frozenset({"session_id", "cost_source"})


class Session:
    """One session's directory, its log, and the documents beside it.

    Attributes:
        key: the canonical key.
        dir: the directory, read.
        writer: this device's log.
        attachments: summaries and context states.
    """

    def __init__(self, files: Files, paths: layout.Layout, deletions: Deletions, devices: Devices, key: str) -> None:
        self.key = key
        self.dir = SessionDir(files, paths, deletions, devices, key)
        self.writer = LogWriter(self.dir)
        self.attachments = Attachments(self.dir)
        self._files = files
        self._paths = paths
        self._deletions = deletions
        self._devices = devices

    @property
    def timeline(self) -> Timeline:
        """What the logs said at the last refresh."""
        return self.dir.timeline

    def refresh(self) -> Timeline:
        """Catch up with the disk; see `SessionDir.refresh`."""
        return self.dir.refresh()

    def require(self) -> Timeline:
        """Return the timeline of a session that exists.

        Raises:
            SessionNotFoundError: there is no session.
        """
        if not self.timeline.exists:
            raise SessionNotFoundError(self.key)
        return self.timeline

    def node(self) -> SessionNode:
        """Return the session.

        Raises:
            SessionNotFoundError: there is none.
        """
        self.require()
        node = self.dir.node()
        if node is None:
            raise SessionNotFoundError(self.key)
        return node

    def draft(self, *, epoch: int | None = None, generation: int | None = None) -> Draft:
        """Begin the records of a commit."""
        return Draft(self.timeline, self.writer.device, epoch=epoch, generation=generation)

    def commit(self, draft: Draft) -> None:
        """Write the records of *draft* in one go; see `LogWriter.commit` for errors and durability."""
        if draft.records:
            self.writer.commit(draft.records)

    def close(self) -> None:
        """Close what is open; the session can be used on."""
        self.writer.close()

    # --- the session itself ------------------------------------------------------------------------------------

    def create(self, node: SessionNode) -> SessionNode:
        """Create the session with the fields and counters of *node*.

        Raises:
            SessionExistsError: it exists.
        """
        timeline = self.timeline
        if timeline.exists:
            raise SessionExistsError(self.key)
        check_epoch(node)
        members = creation_members(node)
        epoch = max(timeline.epoch, node.epoch)
        draft = self.draft(epoch=epoch, generation=epoch)
        draft.record(SESSION, event="created", at=now_ms(), **members)
        self.commit(draft)
        self.writer.settle(seal=False)
        return self.node()

    def update(self, fields: Mapping[str, object], counters: Mapping[str, int | float]) -> SessionNode:
        """Set *fields*, counters among them to the values given, and raise *counters*.

        Raises:
            SessionNotFoundError: there is no session.
            ValueError: a name that is no field or counter, or a counter that is both set and raised.
        """
        self.require()
        wanted = {name: value for name, value in fields.items() if name in SESSION_COUNTERS}
        if not wanted.keys().isdisjoint(counters):
            raise ValueError("a counter cannot be both set and raised")
        plain = {name: value for name, value in fields.items() if name not in SESSION_COUNTERS}
        raised = counter_changes(counters) | _differences(wanted, self.timeline)
        self._change(field_changes(plain), raised)
        return self.node()

    def modify(self, change: Callable[[SessionNode], Mapping[str, object]]) -> SessionNode:
        """Set the fields that *change* derives from the session as it is now."""
        return self.update(change(self.node()), {})

    def _change(self, fields: Members, counters: Members) -> None:
        if not fields and not counters:
            self.writer.secure()  # what is confirmed must be kept, whoever wrote it
            return
        draft = self.draft()
        draft.record(SESSION, at=now_ms(), set=fields, add=counters)
        self.commit(draft)
        self.writer.settle(seal=False)

    def upsert(self, node: SessionNode, archive_dir: str) -> SessionNode:
        """Write what differs between *node* and what is stored; create what is missing.

        A node of an older epoch changes neither identity nor counters; one of a higher epoch fences, and resets where
        its session id is another, too.
        """
        if not self.timeline.exists:
            return self.create(node)
        check_epoch(node)
        stored = self.node()
        fields, counters = self.differences(node)
        if node.epoch <= stored.epoch:
            self._change(fields, counters)
        elif node.session_id == stored.session_id:
            self._fence(node.epoch, fields, counters)
        else:
            # They begin at zero with the generation.
            counters = counter_changes(_counters_of(node))
            self._open_generation("upsert", archive_dir, node.epoch, fields, counters)
        return self.node()

    def differences(self, node: SessionNode) -> tuple[Members, Members]:
        """Return the fields and the counters that must change for the session to be *node*.

        Where the node's epoch is below the one in force, identity and counters stay as they are.
        """
        stored = self.node()
        stale = node.epoch < stored.epoch
        names = {*node_fields(node), *node_fields(stored)} - (_FENCED_FIELDS if stale else frozenset())
        changed = [name for name in sorted(names) if not same_value(getattr(node, name), getattr(stored, name))]
        fields = {name: getattr(node, name) for name in changed}
        return field_changes(fields), {} if stale else _differences(_counters_of(node), self.timeline)

    def fence(self) -> int:
        """Raise the epoch, so that writers that read the session before must read it again. The transcript stays.

        Returns:
            The epoch in force.
        """
        self._fence(self.require().epoch + 1, {}, {})
        return self.timeline.epoch

    def _fence(self, epoch: int, fields: Members, counters: Members) -> None:
        draft = self.draft(epoch=epoch, generation=self.timeline.generation)
        draft.record(SESSION, event="fenced", at=now_ms(), set=fields, add=counters)
        self.commit(draft)
        self.writer.settle(seal=False)

    def reset(self, *, reason: str, archive_dir: str) -> SessionNode:
        """Close the generation and open the next one, with an empty transcript and counters at zero.

        The closed generation is written as one document to *archive_dir* first; where that fails the reset happens all
        the same, for the logs keep everything.
        """
        fields = {"session_id": new_id(), "updated_at": now_ms(), **_RESET_FIELDS}
        self._open_generation(reason, archive_dir, self.require().epoch + 1, fields, {})
        return self.node()

    def _open_generation(self, reason: str, archive_dir: str, epoch: int, fields: Members, counters: Members) -> None:
        draft = self.draft(epoch=epoch, generation=epoch)
        draft.record(SESSION, event="reset", at=now_ms(), set=fields, add=counters)
        write_archive(self.dir, self.attachments, archive_dir, reason)
        self.commit(draft)
        self.writer.settle(seal=True)

    # --- the end -----------------------------------------------------------------------------------------------

    def delete(self) -> bool:
        """Take away everything of the session. Returns whether there was one.

        Raises:
            UnstorableValueError: its epoch is the last that there is.

        Durability: the deletion is durable on return; what a crash leaves of the directory counts for nothing.
        """
        timeline = self.timeline
        if not timeline.exists:
            return False
        epoch = check_counter(timeline.epoch + 1, "epoch")
        deletion = Deletion(epoch, timeline.generation, tuple(self.end_marks()))
        self._deletions.record(
            self.dir.dir_name,
            session_key=self.key,
            device=self.writer.device,
            at=now_ms(),
            deletion=deletion,
        )
        self.dir.relist()
        for tidy in (self.discard, self.refresh):
            try:
                tidy()
            except (OSError, UnsafePathError) as error:
                _log.warning("session %s is deleted, but could not be cleared away: %s", self.key, error)
        return True

    def discard(self) -> None:
        """Take the directory of a session that was deleted away; nothing in it counts any more."""
        self.writer.forget()
        self._files.ensure_dir(self._paths.trash)
        trash = os.path.join(self._paths.trash, layout.trash_name(self.dir.dir_name, secrets.token_hex(8)))
        self._files.rename(self.dir.path, trash)
        # Both, so that a power cut cannot bring back a directory from which files are gone already.
        self._files.sync_dir(self._paths.trash)
        self._files.sync_dir(self._paths.sessions)
        self._files.remove_tree(trash)

    def end_marks(self) -> list[Mark]:
        """Return a mark at the last record of every log: all that is known here."""
        marks: list[Mark] = []
        for name in sorted(self.dir.logs):
            log = self.dir.logs[name]
            last = log.last_record()
            if log.log_id is not None and last is not None:
                marks.append((log.log_id, last.line, last.identity))
        return marks


def check_epoch(node: SessionNode) -> None:
    """Refuse a node with an epoch that no record could bear.

    Raises:
        UnstorableValueError: it is no whole number from 0 to 2^53 - 1.
    """
    if counter_of(node.epoch) is None:
        raise UnstorableValueError("epoch", f"{node.epoch!a:.40} is no whole number from 0 to 2^53-1")


def _counters_of(node: SessionNode) -> Members:
    return {name: getattr(node, name) for name in SESSION_COUNTERS}


def _differences(counters: Mapping[str, Any], timeline: Timeline) -> Members:
    """Return what must be added for *counters* to have the values given."""
    counter_changes(counters)  # refuses what is no number
    stored = timeline.counters
    return {
        name: counter_difference(wanted, timeline.amounts(name))
        for name, wanted in counters.items()
        if wanted != stored.get(name, 0)
    }
