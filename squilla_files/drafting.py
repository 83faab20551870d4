"""Records on their way into a log: ids, links and members in the order in which they stand in a line. Pure.

A draft belongs to one commit. It hands out the ids that follow the highest one known, and remembers which messages it
holds, so that several appends can go into one write.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Final

from squilla_files.codec import check_counter, check_fields, check_value, same_value
from squilla_files.errors import UnstorableTypeError
from squilla_files.journal import MESSAGE, Record
from squilla_files.models import SESSION_COUNTERS, SESSION_FIELDS, STORED_DEFAULTS, SessionNode, TranscriptEntry, misfit
from squilla_files.ordering import end_of_run
from squilla_files.timeline import Number, Timeline, total

Members = dict[str, Any]

_NOT_STORED = ("id", "session_id", "session_key")
# Large members stand last, so that a scan can stop before them.
_LATE = ("turn_usage", "reasoning_content", "content")
_EARLY = ("message_id", "role", "tool_call_id", "tool_calls", "created_at")
ENTRY_MEMBERS: Final = (
    *_EARLY,
    *(f.name for f in fields(TranscriptEntry) if f.name not in (*_NOT_STORED, *_EARLY, *_LATE)),
    *_LATE,
)
"""The fields of an entry that a line holds, in the order in which they stand there."""

_ENTRY_DEFAULTS: Final = STORED_DEFAULTS[TranscriptEntry]
_ALWAYS: Final = frozenset({"message_id", "role", "created_at", "content"})


def entry_members(entry: TranscriptEntry) -> Members:
    """Return what a line holds of *entry*: fields with their default value are left out.

    Raises:
        UnstorableTypeError: a value of a type that JSON does not have.
        UnstorableValueError: a value that would not come back equal.
    """
    values = entry.__dict__
    # A field that is not set on the instance has its default.
    members = {
        name: values[name]
        for name in ENTRY_MEMBERS
        if name in values and (name in _ALWAYS or values[name] != _ENTRY_DEFAULTS[name])
    }
    check_fields(members)
    for name in ("message_id", "role"):
        if type(members[name]) is not str or not members[name]:
            members[name] = _text(members[name], name)
    return members


def _text(value: object, name: str) -> str:
    if isinstance(value, str) and value:
        return str.__str__(value)
    raise ValueError(f"{name} must be a string that is not empty, not {value!a:.40}")


def same_message(members: Mapping[str, Any], stored: Mapping[str, Any]) -> bool:
    """Say whether a message that is to be written is the one that is stored: its times aside, all is equal."""
    return all(
        same_value(members.get(name, _ENTRY_DEFAULTS[name]), stored.get(name, _ENTRY_DEFAULTS[name]))
        for name in ENTRY_MEMBERS
        if name != "created_at"
    )


def field_changes(values: Mapping[str, object]) -> Members:
    """Return the `set` member for *values*.

    Raises:
        ValueError: a name that is no field of a session, or cannot be set.
    """
    for name in values:
        if name not in SESSION_FIELDS:
            raise ValueError(f"{name!r} is no field of a session that can be set")
    _check_session(values)
    return dict(values)


def _check_session(values: Mapping[str, object]) -> None:
    check_fields(values)
    for name, value in values.items():
        wanted = misfit(name, value)
        if wanted is not None:
            raise UnstorableTypeError(name, f"it must be {wanted}, not {value!a:.40}")


def counter_changes(amounts: Mapping[str, int | float]) -> Members:
    """Return the `add` member for *amounts*; amounts of zero are left out.

    Raises:
        ValueError: a name that is no counter of a session.
        TypeError: an amount that is no number.
    """
    raised: Members = {}
    for name, amount in amounts.items():
        if name not in SESSION_COUNTERS:
            raise ValueError(f"{name!r} is no counter of a session")
        if type(amount) not in (int, float):
            raise TypeError(f"{name} must rise by a number, not by {amount!a:.40}")
        check_value(amount, name)
        if amount:
            raised[name] = amount
    return raised


def counter_difference(wanted: Number, amounts: Sequence[Number]) -> Number | list[float]:
    """Return what must be added to *amounts* for their total to be *wanted*; several where one float cannot say it."""
    difference = wanted - total(amounts)
    if math.isfinite(difference) and total([*amounts, difference]) == wanted:
        return difference
    # The total is rounded: what it lacks must be taken away with it, or it would show in a small number.
    rest = list(amounts)
    added = [float(wanted)]
    while left := total(rest):
        rest.append(-left)
        added.append(-float(left))
    return added


def node_fields(node: SessionNode) -> Members:
    """Return the fields of *node* that differ from their default."""
    defaults = STORED_DEFAULTS[SessionNode]
    return {
        name: value
        for name, value in node.__dict__.items()
        if name in SESSION_FIELDS and (value != defaults[name] or name in ("session_id", "status"))
    }


def creation_members(node: SessionNode) -> Members:
    """Return the `set` and `add` members with which *node* is created.

    Raises:
        UnstorableTypeError, UnstorableValueError: a value that would not come back equal.
    """
    fields = node_fields(node)
    _check_session(fields)
    counters = counter_changes({name: getattr(node, name) for name in SESSION_COUNTERS})
    return {"set": fields, "add": counters} if counters else {"set": fields}


class Draft:
    """The records of one commit.

    Args:
        timeline: what the logs say before it.
        device: the device that writes.
        epoch: the epoch of the records, None for the one in force.
        generation: their generation, None for the present one.

    Raises:
        UnstorableValueError: no line can bear *epoch*; where records are added, no line can bear their id.
    """

    def __init__(
        self, timeline: Timeline, device: str | None, *, epoch: int | None = None, generation: int | None = None
    ) -> None:
        self.timeline = timeline
        self.records: list[Members] = []
        self.messages: dict[str, Members] = {}
        self._device = device
        self._epoch = timeline.epoch if epoch is None else check_counter(epoch, "epoch")
        self._generation = timeline.generation if generation is None else generation
        self._next_id = timeline.last_id + 1
        self._last: str | None = timeline.canonical[-1].identity if timeline.canonical else None
        # Whether it is known what comes last: behind a result that stands with its call only the order can tell.
        self.settled = True

    def _head(self, kind: str) -> Members:
        head: Members = {"type": kind, "id": check_counter(self._next_id, "id")}
        self._next_id += 1
        if self._epoch:
            head["epoch"] = self._epoch
        if self._generation != self._epoch:
            head["generation"] = self._generation
        return head

    def record(self, kind: str, **members: object) -> Members:
        """Add a record other than a message; members that are empty objects are left out."""
        record = self._head(kind)
        record["record"] = secrets.token_hex(8)
        record.update({name: value for name, value in members.items() if value != {}})
        self.records.append(record)
        return record

    def message(self, members: Mapping[str, Any], *, set_fields: Members, add: Members) -> Members:
        """Add a message behind the entry that is last in the view of this device."""
        record = self._head(MESSAGE)
        after = self.place(members)
        identity = members["message_id"]
        record["message_id"] = identity
        if after is not None:
            record["after"] = after
        for name in ENTRY_MEMBERS:
            if name == "turn_usage":
                record.update({key: value for key, value in (("set", set_fields), ("add", add)) if value})
            if name in members:
                record[name] = members[name]
        if after == self._last:
            self._last = identity
        else:
            self.settled = False
        self.messages[identity] = record
        self.records.append(record)
        return record

    def place(self, members: Mapping[str, Any]) -> str | None:
        """Return what the message is to hang on: the last entry, or for a result the end of its call's run."""
        call_id = members.get("tool_call_id")
        if call_id is None or not self.needs_order():
            return self._last
        call = self._call(call_id)
        if call is None:
            return self._last
        timeline = self.timeline
        return end_of_run(timeline.order, timeline.call_of, timeline.gone, self._device or "", call).identity

    def needs_order(self) -> bool:
        """Whether a result's place takes the whole order, because other devices wrote here, too."""
        return not self.timeline.writers <= {self._device}

    def _call(self, call_id: str) -> Record | None:
        gone = self.timeline.gone
        return next(
            (r for r in reversed(self.timeline.order) if call_id in r.calls and r.identity not in gone),
            None,
        )
