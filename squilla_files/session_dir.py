"""One session's directory, read: which files are logs, what they hold, what they say together (FORMAT.md, "Reading").

Synchronous, and changes nothing. `refresh` catches up with whatever other processes, devices and sync services did;
what it finds unchanged by size and time it does not read again.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from typing import Any, TypeVar

from squilla_files import layout
from squilla_files.checkpoints import checkpoint_of
from squilla_files.codec import decode_line
from squilla_files.contents import read_lines, read_objects, read_range
from squilla_files.deletions import Deletions
from squilla_files.devices import Devices
from squilla_files.errors import CorruptManifestError, CorruptRecordError, UnsupportedFormatError
from squilla_files.files import Files
from squilla_files.freshness import Stamp, stamp_of
from squilla_files.journal import FORMAT, PEEK_BYTES, Log, Record, is_plain
from squilla_files.listing import Listing
from squilla_files.manifest import LogMark, Manifest, decode_manifest
from squilla_files.models import SessionNode, TranscriptEntry, adopt_entries, load, misfit
from squilla_files.timeline import Deletion, Timeline, fold

_T = TypeVar("_T")

# Logs move while others read: a listing that named one which is gone is taken again this often.
_LISTINGS = 4
_PIECE = 256


class SessionDir:
    """The directory of one session, as this process knows it.

    Every method takes the object's own lock, so that threads may share it.

    Attributes:
        key: the canonical key.
        dir_name: the directory's name.
        logs: path below the directory, with `/` → its index.
        listing: which files are logs.
        missing: ids of logs that others continue and that are not here.
        timeline: what the logs say.
        version: grows whenever the timeline changed.
        arrangement: grows whenever a log came, went, or was read anew.
        exposed: full paths of directories and logs that were seen with another mode than 0700 or 0600.
    """

    def __init__(self, files: Files, paths: layout.Layout, deletions: Deletions, devices: Devices, key: str) -> None:
        self.files = files
        self.paths = paths
        self.deletions = deletions
        self.devices = devices
        self.key = key
        self.dir_name = layout.session_dir_name(key)
        self.path = paths.session(self.dir_name)
        self.mutex = threading.RLock()
        self.logs: dict[str, Log] = {}
        self.listing = Listing(files, paths.sessions, self.path, self._note_mode)
        self.missing: list[str] = []
        self.timeline = Timeline()
        self.version = 0
        self.arrangement = 0
        self.exposed: set[str] = set()
        self._dirty = True
        self._folded = False
        self._stamps: dict[str, Stamp] = {}
        self._tails: dict[str, bytes] = {}
        self._deletion_names: tuple[str, ...] = ()
        self._deleted: list[Deletion] = []
        self._floor_epoch = 0

    @property
    def foreign(self) -> dict[str, str]:
        """Path → the key of a log that belongs to another session."""
        return self.listing.foreign

    @property
    def placeholders(self) -> list[str]:
        """Paths of logs that a sync service has taken off this machine."""
        return self.listing.placeholders

    @property
    def deleted_logs(self) -> set[str]:
        """The ids of logs that deletions of the session have seen, and that are here no more."""
        return {m[0] for gone in self._deleted for m in gone.seen} - {x.log_id or "" for x in self.logs.values()}

    # --- catching up -------------------------------------------------------------------------------------------

    def refresh(self) -> Timeline:
        """Catch up with the disk.

        Returns:
            What the logs say together now.

        Raises:
            OSError: something cannot be read: that is never taken for empty.
            UnsafePathError: a symbolic link stands where a directory or log should.
            UnsupportedFormatError: a later major version wrote a log.
        """
        with self.mutex:
            # Where reading fails half way, the next refresh folds anew: the timeline never lacks what an index has.
            dirty, self._dirty = self._dirty, True
            came: list[Record] = []
            for _ in range(_LISTINGS):
                dirty |= self._list()
                whole, vanished = self._read_logs(came)
                dirty |= not whole
                if not vanished and not (dirty and self._lacks_source()):
                    break
                self.listing.forget()
            names = self.deletions.names(self.dir_name)
            if dirty or names != self._deletion_names or not all(self.timeline.extend(record) for record in came):
                self._fold(names)
            elif came:
                self.version += 1
            self._dirty = False
            return self.timeline

    def _list(self) -> bool:
        """Find the files that are logs. Returns whether others are there than before."""
        found = self.listing.look()
        if found is None:
            return False
        gone_names = [name for name in self.logs if name not in found]
        new_names = [name for name in found if name not in self.logs]
        self._forget_logs(gone_names)
        for name in new_names:
            self.logs[name] = Log(name, self._device_in_name(name))
        changed = bool(gone_names or new_names)
        self.arrangement += changed
        return changed

    def _note_mode(self, path: str, status: os.stat_result) -> None:
        if not self.files.is_private(status):
            self.exposed.add(path)

    def _device_in_name(self, name: str) -> str:
        parsed = layout.parse_log_name(name.rpartition("/")[2])
        return parsed.device if parsed is not None else ""

    def _forget_logs(self, names: Iterable[str]) -> None:
        for name in names:
            del self.logs[name]
            self._stamps.pop(name, None)
            self._tails.pop(name, None)

    def _read_logs(self, came: list[Record]) -> tuple[bool, bool]:
        """Read what came in every log, and add the records that came behind those known to *came*.

        Returns:
            Whether nothing else changed than what came, and whether a log vanished, so that a new listing is due.
        """
        whole, vanished = True, False
        for name in list(self.logs):
            try:
                records = self._read_log(name)
            except FileNotFoundError:
                # Moved by a seal, or for a moment between the old file and the new one of a sync service.
                self._forget_logs([name])
                self.arrangement += 1
                whole, vanished = False, True
                continue
            if records is None:
                whole = False
            else:
                came += records
        return whole, vanished

    def _read_log(self, name: str) -> list[Record] | None:
        path = self._full(name)
        status = self.files.check_regular(path)
        self._note_mode(path, status)
        stamp = stamp_of(status)
        if self._stamps.get(name) == stamp:
            return []
        log = self.logs[name]
        before = self._stamps.get(name)
        follows = before is not None and before[0] == stamp[0] and log.size < stamp[1] and log.lines  # else: edited
        other_key = None
        fd = self.files.open_read(path)
        try:
            records = self._read_on(fd, log, status.st_size) if follows else None
            if records is None:
                other_key = self._read_anew(fd, name, status.st_size)
        finally:
            self.files.close(fd)
        if other_key is not None:
            self.listing.set_foreign(name, other_key, stamp)
            self._forget_logs([name])
            return None
        # Whoever wrote meanwhile is read the next time: the status is the one from before reading.
        self._stamps[name] = (stamp[0], self.logs[name].size, stamp[2])
        return records

    def _read_on(self, fd: int, log: Log, size: int) -> list[Record] | None:
        """Read what came behind the last line, if that still is the one that was read."""
        tail = self._tails[log.name]
        start = log.size - len(tail)
        data = read_range(self.files, fd, size - start, start)
        if not data.startswith(tail):
            return None
        unfinished = not log.ended
        resume = log.resume_offset
        lines = len(log.lines)
        records = log.extend(data[resume - start :], resume)
        self._keep_tail(log, data)
        # A mark holds at a damaged line, too: where one came, more may have changed than what came.
        return None if unfinished or len(log.lines) != lines + len(records) else records

    def _read_anew(self, fd: int, name: str, size: int) -> str | None:
        """Read a whole log. Returns the key of another session to which it belongs, None where it is of this one."""
        log = Log(name, self._device_in_name(name))
        data = read_range(self.files, fd, size, 0)
        log.extend(data, 0)
        if log.format != FORMAT:
            raise UnsupportedFormatError(self._full(name), log.format)
        self.logs[name] = log
        self.arrangement += 1
        self._keep_tail(log, data)
        return log.session_key if log.session_key != self.key else None

    def _keep_tail(self, log: Log, data: bytes) -> None:
        """Remember the last line, with which *data* ends: a log that was put back or edited shows there."""
        self._tails[log.name] = data[data.rfind(b"\n", 0, max(len(data) - 1, 0)) + 1 :]

    def absorb(self, log: Log, data: bytes, status: os.stat_result) -> None:
        """Take in what this process itself wrote at the end of *log*, whose status is *status* since.

        Nothing is read, unless two contents claim one identity: what is written cannot fail any more.
        """
        with self.mutex:
            self._dirty = True
            if not log.ended:
                data = self._tails[log.name] + data
            records = log.extend(data, log.resume_offset)
            self._keep_tail(log, data)
            self._stamps[log.name] = stamp_of(status)
            if all(self.timeline.extend(record) for record in records):
                self.version += 1
            else:
                self._fold_logs()
            self._dirty = False

    def adopt(self, name: str, data: bytes, status: os.stat_result | None) -> None:
        """Take in a log that this process itself has begun; without *status* it is read anew the next time.

        One that holds nothing but lines of others, as a seal leaves it, says nothing that is not known.
        """
        with self.mutex:
            self._dirty = True
            log = Log(name, self._device_in_name(name))
            log.extend(data, 0)
            self._forget_logs([name] if name in self.logs else [])
            self.logs[name] = log
            self._keep_tail(log, data)
            if status is not None:
                self._stamps[name] = stamp_of(status)
            self.arrangement += 1
            if not all(r is None or r.identity in self.timeline.records for r in log.lines):
                self._fold_logs()
            self._dirty = False

    def moved(self, log: Log, name: str) -> None:
        """Take in that this process itself has given *log* another name."""
        with self.mutex:
            stamp = self._stamps.get(log.name)
            tail = self._tails[log.name]
            self._forget_logs([log.name, *([name] if name in self.logs else [])])
            log.name = name
            self.logs[name], self._tails[name] = log, tail
            if stamp is not None:
                self._stamps[name] = stamp

    def inode_of(self, log: Log) -> int:
        """Return the inode under which *log* was read, 0 where it was not."""
        return self._stamps.get(log.name, (0, 0, 0))[0]

    def forget_log(self, log: Log) -> None:
        """Have *log* read anew the next time: what stands in it is in doubt after a failed write."""
        with self.mutex:
            self._stamps.pop(log.name, None)

    def relist(self) -> None:
        """Have the directory listed anew the next time, whatever its time stamp says."""
        with self.mutex:
            self.listing.forget()

    def _lacks_source(self) -> bool:
        here = {log.log_id for log in self.logs.values()}
        missing = sorted(
            {log.source for log in self.logs.values() if log.source is not None and log.source not in here}
        )
        known = missing == self.missing
        self.missing = missing
        return not known

    def _fold(self, names: tuple[str, ...]) -> None:
        self._deleted = self.deletions.read(self.dir_name)
        if not self._folded:
            self._floor_epoch = self._own_epoch()
        self._fold_logs()
        self._deletion_names = names
        self._folded = True

    def _fold_logs(self) -> None:
        logs = [self.logs[name] for name in sorted(self.logs)]
        floor = max(self._floor_epoch, self.timeline.epoch)
        self.timeline = fold(logs, self._deleted, floor, self.read_line)
        self.version += 1

    def _own_epoch(self) -> int:
        """Return the epoch that this device's own manifest says: no answer falls below it."""
        try:
            manifest = self.read_manifest()
        except CorruptManifestError:
            return 0  # reported by `verify`, rebuilt by the next write
        return manifest.epoch if manifest is not None else 0

    # --- the checkpoint ----------------------------------------------------------------------------------------

    def own_device(self) -> str | None:
        """Return the name under which this machine writes here, None where it never wrote. Changes nothing."""
        memory = self.devices.recall(self.dir_name)
        return memory.device if memory is not None else self.devices.known()

    def read_manifest(self) -> Manifest | None:
        """Return this device's own manifest, None where there is none.

        Raises:
            CorruptManifestError: it cannot be understood.
        """
        device = self.own_device()
        if device is None:
            return None
        path = os.path.join(self.path, layout.manifest_name(device))
        try:
            return decode_manifest(self.files.read_file(path), path)
        except FileNotFoundError:
            return None

    def log_names(self) -> list[str]:
        """Return the names of the files that are logs, sorted, without reading them."""
        with self.mutex:
            self._list()
            return sorted(self.logs)

    @property
    def is_read(self) -> bool:
        """Whether the logs were read already, so that catching up is cheap."""
        return self._folded

    def is_as_marked(self, marks: Sequence[LogMark]) -> bool:
        """Say whether the logs here are just those that *marks* name, as long, and with the same last records."""
        self._list()
        if sorted(self.logs) != sorted(mark.name for mark in marks):
            return False
        return all(self._is_as_marked(mark) for mark in marks)

    def _is_as_marked(self, mark: LogMark) -> bool:
        try:
            fd = self.files.open_read(self._full(mark.name))
        except FileNotFoundError:
            return False
        try:
            if self.files.fstat(fd).st_size != mark.size or not is_plain(self.files.pread(fd, PEEK_BYTES, 0)):
                return False
            tail = read_range(self.files, fd, mark.size - mark.last_offset, mark.last_offset)
        finally:
            self.files.close(fd)
        obj = decode_line(tail.partition(b"\n")[0])
        if mark.last is None:
            return obj is not None and obj.get("type") == "log"
        return obj is not None and mark.last in (obj.get("message_id"), obj.get("record"))

    def checkpoint(self, device: str) -> Manifest:
        """Return the present state as *device*'s manifest."""
        return checkpoint_of(self.key, device, self.timeline, self.logs.values(), self._deletion_names)

    # --- contents ----------------------------------------------------------------------------------------------

    def _full(self, name: str) -> str:
        return os.path.join(self.path, *name.split("/"))

    def read_line(self, record: Record) -> bytes:
        """Return the bytes of the line in which *record* stands, without LF."""
        return read_lines(self.files, self.path, [record])[0]

    def read_lines(self, records: Sequence[Record]) -> list[bytes]:
        """Return the bytes of each record's line; see `squilla_files.contents.read_lines`."""
        return self._follow(read_lines, records)

    def objects(self, records: Sequence[Record]) -> list[dict[str, Any]]:
        """Return the JSON object of each record; see `squilla_files.contents.read_objects`."""
        return self._follow(read_objects, records)

    def _follow(self, read: Callable[[Files, str, Sequence[Record]], list[_T]], records: Sequence[Record]) -> list[_T]:
        """Return what *read* gives, wherever the logs were moved or edited since *records* were found in them."""
        for _ in range(_LISTINGS):
            try:
                return read(self.files, self.path, records)
            except (FileNotFoundError, CorruptRecordError) as error:
                with self.mutex:
                    self.listing.forget()
                    self._stamps = {} if isinstance(error, CorruptRecordError) else self._stamps
                    known = self.refresh().records
                records = [known.get(record.identity, record) for record in records]
        return read(self.files, self.path, records)

    def entries(self, records: Sequence[Record]) -> list[TranscriptEntry]:
        """Return the entries that *records* are, contents included, in their order."""
        with self.mutex:
            session_id = self.timeline.session_ids[-1] if self.timeline.session_ids else ""
            made: list[TranscriptEntry] = []
            # Piece by piece: what was just read is still in the processor's cache when it is made into entries.
            for start in range(0, len(records), _PIECE):
                piece = records[start : start + _PIECE]
                made += adopt_entries(self.objects(piece), [r.id for r in piece], session_id, self.key)
            return made

    def node(self) -> SessionNode | None:
        """Return the session as it is now, None where there is none."""
        with self.mutex:
            if not self.timeline.exists:
                return None
            return node_of(self.key, self.timeline.epoch, self.timeline.values)


def node_of(key: str, epoch: int, values: dict[str, Any]) -> SessionNode:
    """Build a session from its fields and counters, sharing nothing with them.

    A value that another program set, and that is none that the field can have, is left out: the field has its default.
    """
    # A caller that changes what it was given, and hands it back, must be found to differ from what is stored.
    owned = {
        name: deepcopy(value) if type(value) in (dict, list) else value
        for name, value in values.items()
        if misfit(name, value) is None
    }
    return load(SessionNode, {**owned, "session_key": key, "epoch": epoch})


def prefix_of(name: str) -> str:
    """Return the directory part of a log's path below the session's directory."""
    return name.rpartition("/")[0]
