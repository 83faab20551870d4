"""What a log that is being sealed hands on to the one that continues it (FORMAT.md, "Sealing"). Pure."""

from __future__ import annotations

from collections.abc import Collection

from squilla_files.journal import COMPACTION, MESSAGE, REMOVE, SESSION, Log, Record
from squilla_files.marks import MarkIndex, read_marks
from squilla_files.timeline import Timeline

# A log is worth sealing when this much of it, and more than half of it, is archived.
WORTH_BYTES = 64 * 1024


def carried_lines(timeline: Timeline, log: Log, open_logs: Collection[Log]) -> list[Record]:
    """Return the records of *log* that are still needed to show what is live, in file order.

    Args:
        timeline: what all logs of the session say.
        log: the log that is being sealed.
        open_logs: the logs of the session that are not sealed, *log* aside.
    """
    live = {record.identity for record in timeline.live}
    waiting = {
        r.identity for r in timeline.order if r.identity in timeline.gone and r.identity not in timeline.archived_by
    }
    winning = {record.identity for record in timeline.setters.values()}
    open_ids = {other.log_id for other in open_logs}
    index = MarkIndex([log, *open_logs])
    carried: list[Record] = []
    taken: set[str] = set()
    for record in log.lines:
        if record is None or record.identity in taken or record.identity not in timeline.records:
            continue
        if record.identity in winning or _is_needed(timeline, record, live, waiting, open_ids, index):
            taken.add(record.identity)
            carried.append(record)
    return carried


def _is_needed(
    timeline: Timeline, record: Record, live: set[str], waiting: set[str], open_ids: set[str | None], index: MarkIndex
) -> bool:
    if record.kind == MESSAGE:
        return record.identity in live
    if timeline.generation_of(record) != timeline.generation:
        return False
    data = record.data or {}
    if record.kind == SESSION:
        return data.get("event") in ("created", "reset")
    if record.kind == REMOVE:
        one = data.get("message_id")
        taken_out = index.covered(read_marks(data.get("covers"))) | ({one} if type(one) is str else set())
        return not waiting.isdisjoint(taken_out)
    if record.kind == COMPACTION:
        return any(entry.identity in live for entry in record.entries()) or any(
            mark[0] in open_ids for mark in read_marks(data.get("covers"))
        )
    return False


def is_worth_sealing(timeline: Timeline, log: Log) -> bool:
    """Say whether more than half of *log*, and more than 64 KiB, are bytes of archived entries."""
    if log.size < WORTH_BYTES or not timeline.archived_by:
        return False
    archived = sum(r.length + 1 for r in log.lines if r is not None and r.identity in timeline.archived_by)
    return archived > WORTH_BYTES and archived * 2 > log.size
