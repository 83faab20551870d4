"""Two or three devices with a store each, and a service that carries single files between them as it likes.

Whatever they do at the same time, and in whatever order files arrive: once everything has, all give the same answer,
and it holds what each of them was told was kept. Randomness that decides ties is drawn from a seed, so that a failure
can be repeated. What is left out of a property, because the format does not promise it, is said where it is left out.
"""

from __future__ import annotations

import random
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from syncing import Held, Service, snapshot

from squilla_files import branching, documents, sealing
from squilla_files.appending import Append, append, clear, remove
from squilla_files.commits import CompactionCommit
from squilla_files.deletions import Deletions
from squilla_files.devices import Devices
from squilla_files.errors import CorruptManifestError, MessageConflictError
from squilla_files.files import Files
from squilla_files.journal import CONTEXT, SUMMARY
from squilla_files.layout import Layout, session_dir_name
from squilla_files.models import SessionContextState, SessionNode, SessionSummary, TranscriptEntry
from squilla_files.rewriting import compact, truncate
from squilla_files.session import Session
from squilla_files.timeline import Timeline

MAIN, CHILD = "agent:main:main", "agent:main:child"
KEYS = (MAIN, CHILD)
IDENTITY = re.compile(rb'"(?:message_id|record)":"([^"]+)"')

which = st.integers(0, 3)
picks = st.integers(0, 30)
keys = st.sampled_from((MAIN, MAIN, MAIN, CHILD))
seeds = st.integers(0, 1_000_000)
# A result answers the last call, or, with an id that is used again and again, whichever is nearest.
kinds = st.lists(st.sampled_from(("user", "assistant", "call", "result", "again")), min_size=1, max_size=5)


class Device:
    """One installation: its store, and the sessions that its process holds open."""

    def __init__(self, root: Path, name: str | None) -> None:
        self.root = root
        self.name = name
        self.forgetful = False
        self.start()

    def start(self) -> None:
        files, paths = Files("os"), Layout(str(self.root))
        parts = files, paths, Deletions(files, paths), Devices(files, paths, self.name)
        self.sessions = {key: Session(*parts, key) for key in KEYS}
        self.epochs = {key: epoch_below_which_nothing_falls(session) for key, session in self.sessions.items()}

    def stop(self) -> None:
        """End the process as it should end."""
        for session in self.sessions.values():
            session.refresh()
            if session.writer.unsaved and session.timeline.exists:
                session.writer.checkpoint()
        self.kill()

    def kill(self) -> None:
        """End the process at once: what it had only in memory is gone."""
        for session in self.sessions.values():
            session.close()
        self.start()


def epoch_below_which_nothing_falls(session: Session) -> int:
    """Return the epoch that the device's own manifest says, as far as it is whole."""
    try:
        manifest = session.dir.read_manifest()
    except CorruptManifestError:
        return 0
    return 0 if manifest is None else manifest.epoch


@dataclass
class Told:
    """What the devices were told of one session, put together: what must be found again."""

    said: dict[str, int] = field(default_factory=dict)
    """Message → its generation."""
    added: list[tuple[int, int]] = field(default_factory=list)
    """(generation, tokens) of every counter that was raised."""
    gone: set[str] = field(default_factory=set)
    """Messages that somebody removed or replaced."""
    archived: set[str] = field(default_factory=set)
    """Messages that somebody archived."""
    excused: set[str] = field(default_factory=set)
    """Messages that may be missing: a deletion had seen them, or a restored disk had the only copy."""
    runs: list[tuple[str, str]] = field(default_factory=list)
    """(message, message): written one after the other by one device, with nothing arriving in between."""
    deleted: bool = False
    """Whether anybody ever deleted the session: its counters and archive depend on what the deletion had seen."""
    lost: bool = False
    """Whether a restored disk took away records, or a device wrote on without knowing of its own."""
    imported: bool = False
    """Whether two devices brought in the same message: which copy counts, and where, shows when both are here."""
    orders: dict[int, list[str]] = field(default_factory=dict)
    """Device → the canonical order that it saw last with nothing missing."""


def ids(records: Iterable[Any]) -> list[str]:
    return [record.identity for record in records]


def answer(session: Session) -> dict[str, Any]:
    """All that a device says of a session."""
    timeline, attachments = session.timeline, session.attachments
    summaries, contexts = timeline.current(timeline.summaries), timeline.contexts
    return {
        "exists": timeline.exists,
        "back": timeline.back,
        "generation": timeline.generation,
        "order": ids(timeline.order),
        "canonical": [entry.model_dump() for entry in session.dir.entries(timeline.canonical)],
        "live": [entry.model_dump() for entry in session.dir.entries(timeline.live)],
        "archived": timeline.archived_by,
        "closed": sorted(ids(timeline.closed)),
        "session_ids": timeline.session_ids,
        "fields": timeline.fields,
        "counters": timeline.counters,
        "summaries": [summary.model_dump() for summary in attachments.summaries(summaries)],
        "contexts": [state.model_dump() for state in attachments.contexts(contexts)],
        "missing": session.dir.missing,
    }


def check_shape(timeline: Timeline) -> None:
    """What holds of every transcript, whatever has arrived of it."""
    canonical = ids(timeline.canonical)
    place = {identity: position for position, identity in enumerate(canonical)}
    assert len(place) == len(canonical)
    assert ids(timeline.live) == [identity for identity in canonical if identity not in timeline.archived_by]
    assert not timeline.gone & place.keys()
    records = {record.identity: record for record in timeline.order}

    def base(identity: str) -> str:
        while records[identity].replaces in records:
            identity = str(records[identity].replaces)
        return identity

    for result, call in timeline.call_of.items():
        assert (result in timeline.archived_by) == (call in timeline.archived_by)
        if not {result, call} <= place.keys():
            continue
        assert place[call] < place[result]
        for between in canonical[place[call] + 1 : place[result]]:
            # A result never lands away from its call: nothing stands between but what hangs on the call.
            above: str | None = between
            while above is not None and base(above) != base(call):
                above = records[base(above)].after
            assert above is not None


class World(RuleBasedStateMachine):
    """Devices that each run one program as it should be run, and a service that is as careless as one may be."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="devices-"))
        self.service = Service()
        self.devices: list[Device] = []
        self.told = {key: Told() for key in KEYS}
        self.count = 0
        self.fresh_runs: dict[tuple[int, str], str] = {}
        self.patches: list[Any] = [mock.patch.object(sealing, "WORTH_BYTES", 400)]

    @initialize(seed=seeds, number=st.integers(2, 3))
    def begin(self, seed: int, number: int) -> None:
        numbers = random.Random(seed)
        self.patches.append(mock.patch("secrets.token_hex", lambda length: numbers.randbytes(length).hex()))
        for patch in self.patches:
            patch.start()
        for name in "abc"[:number]:
            root = self.directory / name
            root.mkdir()
            self.devices.append(Device(root, name))
            self.service.join(root)

    def teardown(self) -> None:
        try:
            if sys.exc_info()[0] is None:
                self.exchange()
        finally:
            self.leave()

    def leave(self) -> None:
        if self.devices:
            for patch in self.patches:
                patch.stop()
        for device in self.devices:
            for session in device.sessions.values():
                session.close()
        shutil.rmtree(self.directory)

    # --- looking -------------------------------------------------------------------------------------------------

    def at(self, number: int, key: str) -> tuple[int, Session]:
        """Return a device's number and its session, caught up."""
        number %= len(self.devices)
        device = self.devices[number]
        session = device.sessions[key]
        timeline = session.refresh()
        check_shape(timeline)
        assert timeline.epoch >= device.epochs[key]
        device.epochs[key] = timeline.epoch
        self.check_order(number, key, timeline)
        return number, session

    def check_order(self, number: int, key: str, timeline: Timeline) -> None:
        """No arrival moves what a device has seen.

        Two things may, by the rules: something that was missing arrives, and what hangs on it finds its place; and a
        second copy of a message that two devices brought in takes the place of the first.
        """
        told = self.told[key]
        here = {*ids(timeline.order), *ids(timeline.closed), None}
        whole = all(record.after in here and (record.replaces or record.after) in here for record in timeline.order)
        if not whole or told.imported or told.lost or told.deleted:
            return
        now, before = ids(timeline.canonical), told.orders.get(number, [])
        common = set(now) & set(before)
        assert [i for i in now if i in common] == [i for i in before if i in common]
        told.orders[number] = now

    def existing(self, number: int, key: str) -> tuple[int, Session]:
        """As `at`, of a session that is made where there is none."""
        number, session = self.at(number, key)
        if not session.timeline.exists:
            self.count += 1
            session.create(SessionNode(session_key=key, session_id=f"s{self.count}", total_tokens=1))
            self.told[key].added.append((session.timeline.generation, 1))
        return number, session

    def unmoved(self, session: Session, before: list[str], replaced: dict[str, str] | None = None) -> None:
        """Check that an operation left the canonical transcript in order."""
        now = ids(session.timeline.canonical)
        assert now[: len(before)] == [(replaced or {}).get(identity, identity) for identity in before]
        check_shape(session.timeline)

    # --- what programs do ----------------------------------------------------------------------------------------

    def message(self, device: int, role: str, **members: Any) -> TranscriptEntry:
        self.count += 1
        identity = f"m{self.count}-{device}"
        return TranscriptEntry(
            session_id="", session_key="", message_id=identity, role=role, content=f"{identity} says", **members
        )

    @rule(number=which, written=kinds, pick=picks)
    def say_here(self, number: int, written: list[str], pick: int) -> None:
        self.say(number, MAIN, written, pick)

    @rule(number=which, written=kinds, pick=picks)
    def say_there(self, number: int, written: list[str], pick: int) -> None:
        self.say(number + 1, MAIN, written, pick)

    @rule(number=which, key=keys, written=kinds, pick=picks)
    def say(self, number: int, key: str, written: list[str], pick: int) -> None:
        number, session = self.existing(number, key)
        before = ids(session.timeline.canonical)
        calls = [call for record in session.timeline.order for call in record.calls]
        items = []
        for kind in written:
            if kind == "call":
                call_id = "again" if pick % 3 == 0 else f"c{self.count}"
                entry = self.message(number, "assistant", tool_calls=[{"id": call_id}])
                calls.append(call_id)
            elif kind == "result" and calls:
                entry = self.message(number, "tool", tool_call_id=calls[-1 - pick % min(len(calls), 3)])
            elif kind == "again":
                entry = self.message(number, "tool", tool_call_id="again")
            else:
                entry = self.message(number, "assistant" if kind == "assistant" else "user")
            items.append(Append(entry, any_generation=True, counters={"total_tokens": 2, "total_cost_usd": 0.1}))
        append(session, items)
        told = self.told[key]
        for item in items:
            assert item.error is None
            assert item.done
            told.said[item.entry.message_id] = session.timeline.generation
            told.added.append((session.timeline.generation, 2))
        now = ids(session.timeline.canonical)
        assert [i for i in now if i in before] == before
        self.note_runs(number, key, [item.entry for item in items])

    def note_runs(self, number: int, key: str, entries: list[TranscriptEntry]) -> None:
        for entry in entries:
            last = self.fresh_runs.pop((number, key), None)
            if entry.tool_call_id is not None or entry.tool_calls is not None:
                continue  # results come to stand with their call
            if last is not None:
                self.told[key].runs.append((last, entry.message_id))
            self.fresh_runs[number, key] = entry.message_id

    @rule(number=which, key=keys, pick=st.integers(0, 3))
    def bring_in(self, number: int, key: str, pick: int) -> None:
        """The same message is brought in on several devices."""
        number, session = self.existing(number, key)
        self.fresh_runs.pop((number, key), None)
        entry = TranscriptEntry(
            session_id="", session_key=key, message_id=f"import{pick}", role="user", content="brought in", created_at=1
        )
        item = Append(entry, any_generation=True)
        append(session, [item])
        told = self.told[key]
        if item.error is not None:
            assert isinstance(item.error, MessageConflictError)
            return
        told.imported = told.imported or entry.message_id in told.said
        told.said[entry.message_id] = session.timeline.generation

    @rule(number=which, key=keys, tokens=st.integers(0, 5), label=st.sampled_from("xyz"))
    def update(self, number: int, key: str, tokens: int, label: str) -> None:
        number, session = self.existing(number, key)
        before = ids(session.timeline.canonical)
        session.update({"label": label}, {"total_tokens": tokens, "billed_cost_usd": tokens / 10})
        self.told[key].added.append((session.timeline.generation, tokens))
        self.unmoved(session, before)

    @rule(number=which, key=keys, pick=picks)
    def take_out(self, number: int, key: str, pick: int) -> None:
        number, session = self.at(number, key)
        live = ids(session.timeline.live)
        if live:
            chosen = live[pick % len(live)]
            before = ids(session.timeline.canonical)
            assert remove(session, chosen)
            self.told[key].gone.add(chosen)
            self.fresh_runs.pop((number, key), None)
            assert ids(session.timeline.canonical) == [identity for identity in before if identity != chosen]

    def take_all_out(self, number: int, key: str) -> None:
        number, session = self.at(number, key)
        if session.timeline.exists:
            self.told[key].gone.update(ids(session.timeline.canonical))
            self.fresh_runs.pop((number, key), None)
            clear(session)
            assert session.timeline.canonical == []

    @rule(number=which, key=keys, left=st.integers(0, 6))
    def cut(self, number: int, key: str, left: int) -> None:
        number, session = self.existing(number, key)
        before, live = ids(session.timeline.canonical), set(ids(session.timeline.live))
        _, after = truncate(session, left)
        assert after == len(session.timeline.live) >= min(left, len(live))
        self.told[key].archived |= live - set(ids(session.timeline.live))
        self.unmoved(session, before)

    @rule(number=which, key=keys, chosen=seeds, replacing=st.booleans(), adding=st.booleans())
    def compact(self, number: int, key: str, chosen: int, replacing: bool, adding: bool) -> None:
        number, session = self.existing(number, key)
        self.fresh_runs.pop((number, key), None)
        timeline = session.timeline
        numbers = random.Random(chosen)
        before, live = ids(timeline.canonical), ids(timeline.live)
        kept = [identity for identity in live if numbers.random() < 0.4]
        replacements = {}
        if replacing and live:
            old = timeline.records[numbers.choice(live)]
            calls = [{"id": call} for call in old.calls] or None
            new = self.message(number, old.role, tool_calls=calls, tool_call_id=old.call_id)
            replacements[old.identity] = new
        added = [self.message(number, "user"), self.message(number, "assistant")] if adding else []
        summary = SessionSummary(session_id="", session_key=key, summary_text=f"so far {self.count}", compaction_id="c")
        state = SessionContextState(session_id="", session_key=key, state_kind="kind", payload={"n": self.count})
        commit = CompactionCommit(
            preimage=live,
            expected_epoch=timeline.epoch,
            kept=kept,
            replacements=replacements,
            appended=added,
            summary=summary,
            context_states=[state],
            counters={"compaction_count": 1, "total_tokens": 3},
        )
        generation, calls_before = timeline.generation, timeline.call_of
        assert compact(session, commit) is not None
        told = self.told[key]
        told.gone |= replacements.keys()
        told.said.update(dict.fromkeys((e.message_id for e in (*replacements.values(), *added)), generation))
        told.added.append((generation, 3))
        told.archived |= set(live) - replacements.keys() - set(ids(session.timeline.live))
        self.unmoved(session, before, {old: new.message_id for old, new in replacements.items()})
        # A result goes and stays with its call; so a call of which a result is kept stays, too.
        staying = {*kept, *(calls_before[identity] for identity in kept if identity in calls_before)}
        staying = (staying | {e.message_id for e in (*replacements.values(), *added)}) - session.timeline.gone
        call_of = session.timeline.call_of
        now_live = ids(session.timeline.live)
        assert {i for i in staying if i not in call_of} == {i for i in now_live if i not in call_of}

    @rule(number=which, key=keys)
    def seal(self, number: int, key: str) -> None:
        number, session = self.at(number, key)
        if session.timeline.exists and session.dir.logs:
            before = answer(session)
            session.writer.seal()
            assert answer(session) == before

    def reset(self, number: int, key: str) -> None:
        number, session = self.existing(number, key)
        self.fresh_runs.pop((number, key), None)
        epoch = session.timeline.epoch
        session.reset(reason="model", archive_dir=str(self.devices[number].root / "archives"))
        assert session.timeline.epoch == session.timeline.generation == epoch + 1
        assert session.timeline.canonical == []

    def fence(self, number: int, key: str) -> None:
        number, session = self.existing(number, key)
        before, epoch = ids(session.timeline.canonical), session.timeline.epoch
        session.fence()
        assert session.timeline.epoch == epoch + 1
        self.unmoved(session, before)

    @rule(number=which, key=keys, pick=picks)
    def document(self, number: int, key: str, pick: int) -> None:
        number, session = self.existing(number, key)
        timeline = session.timeline
        summaries, contexts = timeline.current(timeline.summaries), timeline.current(timeline.contexts)
        if pick % 3 == 0 and summaries:
            documents.change(session, SUMMARY, summaries[pick % len(summaries) :], {"flush_receipt_status": str(pick)})
        elif pick % 3 == 1 and contexts:
            documents.change(session, CONTEXT, contexts[:1], {"valid": False, "invalid_reason": str(pick)})
        elif timeline.session_ids:
            text = SessionSummary(session_id=timeline.session_ids[-1], session_key=key, summary_text=f"saved {pick}")
            documents.save_summary(session, text)

    def delete(self, number: int, key: str) -> None:
        number, session = self.at(number, key)
        if session.timeline.exists:
            told = self.told[key]
            told.excused.update(session.timeline.records)
            told.deleted = True
            epoch = session.timeline.epoch
            assert session.delete()
            assert not session.timeline.exists
            assert session.timeline.epoch == epoch + 1
            self.service.look(number)
            self.service.excuse(session_dir_name(key))

    @rule(
        number=which, key=keys, what=st.sampled_from(("reset", "fence", "fence", "delete", "take_all_out", "nothing"))
    )
    def intervene(self, number: int, key: str, what: str) -> None:
        if what != "nothing":
            getattr(self, what)(number, key)

    @rule(number=which, before=st.booleans(), pick=picks)
    def branch(self, number: int, before: bool, pick: int) -> None:
        number, parent = self.existing(number, MAIN)
        _, child = self.at(number, CHILD)
        canonical = ids(parent.timeline.canonical)
        if child.timeline.exists or (before and not canonical):
            return
        until = canonical[pick % len(canonical)] if before else None
        fork = branching.take(parent, "before" if before else "live", until, None)
        taken = canonical[: canonical.index(until)] if until is not None else canonical
        if set(taken) & child.timeline.records.keys():
            return  # of another branch, deleted or closed: which content counts is not this one's to say
        self.count += 1
        branching.build(child, SessionNode(session_key=CHILD, session_id=f"s{self.count}"), fork)
        child.refresh()
        assert ids(child.timeline.canonical) == taken
        if until is None:
            assert ids(child.timeline.live) == ids(parent.timeline.live)
            told = self.told[CHILD]
            told.archived |= set(taken) - set(ids(child.timeline.live))
        told = self.told[CHILD]
        told.imported = told.imported or bool(set(taken) & told.said.keys())
        told.said.update(dict.fromkeys(taken, child.timeline.generation))

    @rule(number=which, orderly=st.booleans())
    def restart(self, number: int, orderly: bool) -> None:
        device = self.devices[number % len(self.devices)]
        if orderly:
            device.stop()
        else:
            device.kill()
            device.forgetful = True

    # --- what the service does -----------------------------------------------------------------------------------

    @rule(
        source=which,
        goal=which,
        seed=seeds,
        share=st.sampled_from((0.2, 0.5, 0.8, 1.0)),
        deletions=st.booleans(),
        looking=st.booleans(),
    )
    def carry(self, source: int, goal: int, seed: int, share: float, deletions: bool, looking: bool) -> None:
        """Some of the files that wait are carried, in any order; a reader may look after each."""
        source, target = source % len(self.devices), goal % len(self.devices)
        if source == target:
            return
        numbers = random.Random(seed)
        self.forget_runs(target)
        waiting = self.service.waiting(source, target)
        numbers.shuffle(waiting)
        for path in waiting[: max(1, int(len(waiting) * share))]:
            if self.service.held[source][path].content is None and not deletions:
                continue  # this service carries deletions late
            first = numbers.choice(("", "", "", "gone", "cut"))
            if path.startswith("deleted") and first == "cut":
                first = ""  # half of a deletion is an error for its session, until the rest comes
            self.service.carry(path, source, target, first=first, keep=numbers.random() < 0.7)
            if looking:
                self.at(target, MAIN)
        for key in KEYS:
            self.at(target, key)

    def forget_runs(self, number: int) -> None:
        for key in KEYS:
            self.fresh_runs.pop((number, key), None)

    @rule(number=which, pick=picks, size=st.sampled_from((None, None, 150, 400)))
    def copy(self, number: int, pick: int, size: int | None) -> None:
        """A service leaves a copy of a log behind, whole or cut."""
        number %= len(self.devices)
        self.service.look(number)
        logs = [p for p, h in sorted(self.service.held[number].items()) if h.content and "transcript." in p]
        if logs:
            self.forget_runs(number)
            self.service.copy(number, logs[pick % len(logs)], size)
            for key in KEYS:
                self.at(number, key)

    @rule()
    def exchange(self) -> None:
        """Everything is carried everywhere: then all devices give one answer, and it is the right one."""
        self.fresh_runs.clear()
        self.service.exchange()
        assert self.service.faults == []
        for key in KEYS:
            answers = []
            for number in range(len(self.devices)):
                _, session = self.at(number, key)
                answers.append(answer(session))
            fresh = Device(self.devices[0].root, None).sessions[key]
            fresh.refresh()
            answers.append(answer(fresh))
            for other in answers[1:]:
                assert other == answers[0]
            self.check_told(key, session.timeline)

    def check_told(self, key: str, timeline: Timeline) -> None:
        told = self.told[key]
        present = {r.identity: timeline.generation_of(r) for r in (*timeline.order, *timeline.closed)}
        for identity in told.said.keys() - told.excused:
            assert identity in present, f"{identity} is lost"
        canonical = set(ids(timeline.canonical))
        current = {identity for identity, generation in present.items() if generation == timeline.generation}
        assert current - canonical <= told.gone
        if told.deleted or told.lost:
            return
        assert timeline.epoch == max(device.epochs[key] for device in self.devices)
        if told.imported:
            return
        archived = {i for i in told.archived if i in canonical and i not in timeline.call_of}
        shown = {i for i in timeline.archived_by if i in canonical and i not in timeline.call_of}
        assert shown == archived
        tokens = sum(amount for generation, amount in told.added if generation == timeline.generation)
        assert timeline.counters.get("total_tokens", 0) == tokens
        place = {identity: position for position, identity in enumerate(ids(timeline.canonical))}
        for first, second in told.runs:
            if first in place and second in place:
                assert place[second] == place[first] + 1


class UnluckyWorld(World):
    """As `World`, where disks are cloned, with their `.local/`, and backups are restored, with theirs or without.

    A backup that is restored together with what the machine remembers of its logs, or where a killed process did not
    bring that up to date, cannot be told from the past: the device goes on in a log that others know longer. That one
    name then has two contents is not held against it, nor that counters miss what was lost with the disk; that all
    devices agree, and lose nothing that was anywhere else, is.
    """

    def __init__(self) -> None:
        super().__init__()
        self.backups: dict[int, tuple[Path, dict[str, Held]]] = {}

    @precondition(lambda self: len(self.devices) < 4)
    @rule(number=which, knowing=st.booleans())
    def clone(self, number: int, knowing: bool) -> None:
        number %= len(self.devices)
        self.service.look(number)
        root = snapshot(self.devices[number].root, self.directory / f"clone{len(self.devices)}")
        self.devices.append(Device(root, None))
        self.service.join(root, like=number if knowing else None)

    @rule(number=which)
    def back_up(self, number: int) -> None:
        number %= len(self.devices)
        self.devices[number].stop()
        self.devices[number].forgetful = False
        self.service.look(number)
        self.count += 1
        path = snapshot(self.devices[number].root, self.directory / f"backup{self.count}")
        self.backups[number] = path, self.service.index_of(number)

    @precondition(lambda self: self.backups)
    @rule(number=which, remembering=st.booleans())
    def restore(self, number: int, remembering: bool) -> None:
        number = sorted(self.backups)[number % len(self.backups)]
        self.devices[number].stop()
        self.forget_runs(number)
        path, index = self.backups[number]
        # A process that was killed had not noted how far it had come.
        unaware = not remembering or self.devices[number].forgetful
        self.service.complete()  # half a file whose other half is gone would stay half for ever
        for key, told in self.told.items():
            # What the backup has of it may still go: others may know that it moved, and not have it where it went.
            alone = self.written(key, {number}) - self.written(key, {*range(len(self.devices))} - {number})
            told.excused |= alone
            told.lost = told.lost or bool(alone) or unaware
            told.orders.pop(number, None)
        replace_store(self.devices[number].root, path, keep_local=remembering)
        self.service.restore(number, index)
        self.devices[number].start()
        self.service.lenient = self.service.lenient or unaware

    def written(self, key: str, numbers: set[int]) -> set[str]:
        """The identities of all records of a session in the logs of some devices, as far as they are whole."""
        directory = session_dir_name(key)
        return {
            identity.decode()
            for number in numbers
            for path, known in self.service.held[number].items()
            if directory in path and known.content is not None and not known.under_way
            for identity in IDENTITY.findall(known.content)
        }


def replace_store(root: Path, backup: Path, *, keep_local: bool) -> None:
    """Put a backup in the place of a store; what is local to the machine comes from it, too, or stays."""
    local = root / ".local"
    aside = root.with_name("aside")
    if keep_local and local.exists():
        local.rename(aside)
    shutil.rmtree(root)
    snapshot(backup, root)
    if keep_local:
        shutil.rmtree(local, ignore_errors=True)
        if aside.exists():
            aside.rename(local)


World.TestCase.settings = settings(max_examples=40, stateful_step_count=50, deadline=None)
TestDevices = World.TestCase
UnluckyWorld.TestCase.settings = settings(max_examples=30, stateful_step_count=50, deadline=None)
TestDevicesWithMishaps = UnluckyWorld.TestCase
