"""The device's own log in one session: append, begin, seal (FORMAT.md, "Writing").

Synchronous; the caller holds the session's lock and has refreshed. One `commit` is one write of whole lines and one
sync: after a failure at any step the state is the old one or the new one.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from squilla_files import layout
from squilla_files.codec import encode_line
from squilla_files.devices import Memory
from squilla_files.errors import LogReplacedError, SquillaFilesError
from squilla_files.journal import Log, Record, first_line
from squilla_files.layout import ARCHIVE
from squilla_files.privacy import Privacy
from squilla_files.sealing import carried_lines, is_worth_sealing
from squilla_files.session_dir import SessionDir, prefix_of
from squilla_files.timeline import Timeline

_log = logging.getLogger(__name__)


class LogWriter:
    """Writes this device's log in one session.

    Args:
        session: the session's directory; every write is taken into its timeline.

    Attributes:
        unsaved: whether something was written since the last checkpoint.
    """

    def __init__(self, session: SessionDir) -> None:
        self.session = session
        self.unsaved = False
        self._files = session.files
        self._device: str | None = None
        self._memory: Memory | None = None
        self._own: Log | None = None
        self._arrangement = -1
        self._doubtful = False
        self._leftover = False
        # The log that this process has made durable, and its size then.
        self._kept: tuple[str | None, int] = (None, 0)
        self._weighed: Timeline | None = None
        self._fd: int | None = None
        self._fd_path = ""
        self._fd_inode = 0
        self._privacy = Privacy(session)

    # --- the commit --------------------------------------------------------------------------------------------

    def commit(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Append *records*, whole or not at all, and take them into the timeline.

        Raises:
            OSError: nothing was written; the log ends where it ended.
            LogReplacedError: something took the log's name meanwhile; nothing was acknowledged.

        Durability: what survives once this returns is told by the store's durability mode.
        """
        lines = b"".join(map(encode_line, records))
        self._privacy.restore(self.session.exposed)
        if self._leftover:
            self._leftover, self._arrangement = False, -1
        own = self._find_own()
        if own is not None and (self._is_unsafe(own) or self._is_heavy(own)):
            own = self._seal(own)
        if own is None:
            self.session.adopt(*self._begin(1 + self._highest_number(), None, lines))
        else:
            self._append(own, lines)
        self.unsaved = True
        self._note_last()

    def commit_whole(self, log_id: str, lines: bytes) -> None:
        """Begin a log with *lines*, however many: they appear whole or not at all, even where one write would tear.

        They are not taken into the timeline: the next refresh reads them.

        Raises:
            OSError: nothing was written.

        Durability: as `commit`.
        """
        self._find_own()
        self._begin(1 + self._highest_number(), None, lines, log_id)
        self.unsaved = True

    def _is_heavy(self, own: Log) -> bool:
        # Only a fold finds entries archived; what is merely appended since makes no log heavier with them.
        timeline = self.session.timeline
        if timeline is self._weighed:
            return False
        self._weighed = timeline
        return is_worth_sealing(timeline, own)

    def _is_unsafe(self, own: Log) -> bool:
        """Whether a write to the log could harm what stands in it, so that another must be begun."""
        # A last line without its LF would be lost where a power cut leaves NULs behind it.
        return self._doubtful or (not own.ended and own.lines[-1] is not None)

    def _append(self, own: Log, lines: bytes) -> None:
        fd = self._open(own)
        data = lines if own.ended else b"\n" + lines
        try:
            status = self._write(fd, os.path.join(self.session.path, own.name), data)
        except OSError:
            self._take_back(fd, own)
            raise
        self._kept = (own.log_id, own.size + len(data))
        try:
            if self._files.windows:
                self.close()  # there an open file can be neither moved nor replaced by anyone
            self.session.absorb(own, data, status)
        except OSError as error:
            # The lines are durable, so the commit stands: the next refresh reads what memory lacks.
            _log.warning("session %s: written, but not taken in: %s", self.session.key, error)

    def _write(self, fd: int, path: str, data: bytes) -> os.stat_result:
        written = self._files.write(fd, data)
        if written != len(data):
            # A full disk shows itself as a short write first, without an error.
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        self._sync(fd)
        try:
            status = self._files.stat(path)
        except FileNotFoundError:
            raise LogReplacedError(path) from None
        if status.st_ino != self._fd_inode:
            raise LogReplacedError(path)
        return status

    def _sync(self, fd: int) -> None:
        try:
            self._files.sync(fd)
        except OSError:
            # The kernel reports a lost page once and then says all is well: never sync this file again.
            self._doubtful = True
            raise

    def _take_back(self, fd: int, own: Log) -> None:
        """Cut back a write that failed, wherever the file is called by now, and have the log read anew."""
        self.session.forget_log(own)
        self.session.relist()
        try:
            self._files.truncate(fd, own.size)
        finally:
            self.close()

    def _open(self, own: Log) -> int:
        """Open the log that was read, and no other that has its name by now."""
        path = os.path.join(self.session.path, own.name)
        inode = self.session.inode_of(own)
        if self._fd is not None and self._fd_path == path and self._fd_inode == inode != 0:
            return self._fd
        self.close()
        try:
            fd = self._files.open_append(path)
        except FileNotFoundError:
            self.session.relist()
            raise LogReplacedError(path) from None
        self._fd, self._fd_path, self._fd_inode = fd, path, 0
        found = self._files.fstat(fd).st_ino
        if inode != found:
            self.session.relist()
            raise LogReplacedError(path)
        if self._kept[0] != own.log_id:
            # Who began it may have died before its name was durable.
            self._files.sync_dir(self.session.path)
            self._kept = (own.log_id, 0)
        self._fd_inode = found
        return fd

    def secure(self) -> None:
        """Make durable what stands in the log although this process did not write it: who did may have died before.

        Raises:
            OSError: it may not be durable.
        """
        own = self._find_own()
        if own is not None and self._is_unsafe(own):
            self._seal(own)
        elif own is not None:
            self._secure(own)

    def _secure(self, own: Log) -> None:
        if self._kept != (own.log_id, own.size):
            self._sync(self._open(own))
            self._kept = (own.log_id, own.size)

    def close(self) -> None:
        """Close the log; the next write opens it again."""
        fd, self._fd = self._fd, None
        if fd is not None:
            self._files.close(fd)

    def forget(self) -> None:
        """Forget the log of a session that was deleted: what comes under its key begins like any other."""
        self.close()
        self._device = self._memory = self._own = None
        self._doubtful = self._leftover = self.unsaved = False
        self.session.devices.forget(self.session.dir_name)

    # --- whose log it is ---------------------------------------------------------------------------------------

    @property
    def device(self) -> str:
        """The name under which this machine writes in this session."""
        self._find_own()
        if self._device is None:
            raise AssertionError("a device is chosen with the log")
        return self._device

    def _find_own(self) -> Log | None:
        """Return the log to append to, None where a new one must be begun."""
        session = self.session
        if self._arrangement == session.arrangement and self._device is not None:
            return self._own
        memory = session.devices.recall_log(session.dir_name, self._memory, session.deleted_logs)
        device = memory.device if memory is not None else session.devices.name()
        own = self._logs_of(device)
        if memory is None and own:
            device = session.devices.another()  # whose these are is not known
        elif memory is not None and not self._is_mine(memory, own):
            device = session.devices.another()
            memory = None
        self._memory = memory
        self._device = device
        own = self._logs_of(device)
        live = [log for log in own if not prefix_of(log.name)]
        self._own = live[-1] if live else None
        self._arrangement = session.arrangement
        continued = {log.source for log in own}
        for log in live[:-1]:
            if log.log_id in continued:
                self._archive(log)
        return self._own

    def recognised(self) -> str | None:
        """Return the name under which this machine left its log here; None where no log here is the one that it left.

        Changes nothing.
        """
        session = self.session
        memory = session.devices.recall_log(session.dir_name, self._memory, session.deleted_logs)
        if memory is None or not self._is_mine(memory, self._logs_of(memory.device)):
            return None
        return memory.device

    def _logs_of(self, device: str) -> list[Log]:
        """Return the logs that bear *device*'s name, by number, sealed ones first among equals."""
        found = []
        for name, log in self.session.logs.items():
            parsed = layout.parse_log_name(name.rpartition("/")[2])
            if parsed is not None and parsed.device == device:
                found.append((parsed.number, not prefix_of(name), name, log))
        return [item[3] for item in sorted(found, key=lambda item: item[:3])]

    def _is_mine(self, memory: Memory, own: Sequence[Log]) -> bool:
        """Whether the last of *own* is the log that was left here, or continues it."""
        if not own or prefix_of(own[-1].name):
            return False
        wanted: set[str | None] = {own[-1].log_id}
        for log in reversed(own):
            if log.log_id in wanted:
                if log.log_id == memory.log and _holds(log, memory):
                    return True
                wanted.add(log.source)
        return False

    def _highest_number(self) -> int:
        if self._device is None:
            return 0
        # A log of another session that has this device's name here must not be replaced either.
        names = [layout.parse_log_name(name.rpartition("/")[2]) for name in (*self.session.logs, *self.session.foreign)]
        return max((name.number for name in names if name is not None and name.device == self._device), default=0)

    def _note_last(self) -> None:
        """Remember what stands last in the log: in memory at once, on disk now and then."""
        own = self._find_own()
        last = own.last_record() if own is not None else None
        if own is not None and own.log_id is not None and self._device is not None:
            line, identity = (last.line, last.identity) if last is not None else (1, None)
            self._memory = Memory(self._device, own.log_id, line, identity)

    # --- new logs ----------------------------------------------------------------------------------------------

    def _begin(
        self, number: int, source: tuple[Log, Sequence[Record]] | None, lines: bytes, log_id: str | None = None
    ) -> tuple[str, bytes, os.stat_result | None]:
        """Begin a log that holds *lines*: it appears whole or not at all. Returns its name, content and status."""
        session = self.session
        timeline = session.timeline
        if self._device is None:
            raise AssertionError("a device is chosen before its log")
        log_id = log_id or new_log_id()
        carried_from = None
        if source is not None and source[0].log_id is not None:
            carried_from = (source[0].log_id, [record.line for record in source[1]])
        header = first_line(
            session_key=session.key,
            device=self._device,
            log_id=log_id,
            last_id=timeline.last_id,
            epoch=timeline.epoch,
            source=carried_from,
        )
        self._files.ensure_dir(session.path)
        memory = self._memory
        if source is None:
            # Before the log: one that is found without a memory of it could be anybody's.
            memory = Memory(self._device, log_id, 1, None)
            session.devices.remember(session.dir_name, memory)
        name = layout.log_name(self._device, number)
        path = os.path.join(session.path, name)
        data = header + lines
        try:
            self._files.replace_file(path, data)
        except OSError:
            # Where only the last sync failed the log stands there already, and nobody was told that it does.
            with contextlib.suppress(OSError):
                self._files.unlink(path)
            raise
        finally:
            session.relist()
        status = self._status_of(path, len(data))
        self._memory, self._kept = memory, (log_id, len(data))
        return name, data, status

    def _status_of(self, path: str, size: int) -> os.stat_result | None:
        """Return the status of a log that was begun; None where it cannot be seen, which takes nothing back."""
        try:
            status = self._files.stat(path)
        except FileNotFoundError:
            raise LogReplacedError(path) from None
        except OSError as error:
            _log.warning("session %s: begun, but not seen: %s", self.session.key, error)
            return None
        if status.st_size != size:
            raise LogReplacedError(path)
        return status

    def seal(self) -> None:
        """Seal the log: a new one continues it with what is still live, and it moves to `archive/`."""
        own = self._find_own()
        if own is not None:
            self._seal(own)
            self._note_last()
            self.remember()

    def _seal(self, own: Log) -> Log | None:
        session = self.session
        if not self._doubtful:
            self._secure(own)  # what is not carried over must not be lost with the name under which it was written
        open_logs = [log for name, log in session.logs.items() if not prefix_of(name) and log is not own]
        carried = carried_lines(session.timeline, own, open_logs)
        lines = b"".join(line + b"\n" for line in session.read_lines(carried))
        self.close()
        session.adopt(*self._begin(1 + self._highest_number(), (own, carried), lines))
        self._doubtful = False
        return self._find_own()

    def _archive(self, log: Log) -> None:
        """Move a sealed log to `archive/`, at once or, where that fails or a crash left it out, with a later write."""
        try:
            self._move(log)
        except (OSError, SquillaFilesError) as error:
            self._leftover = True
            _log.warning("session %s: %s is sealed but not moved safely: %s", self.session.key, log.name, error)
        self.session.relist()

    def _move(self, log: Log) -> None:
        session = self.session
        source = os.path.join(session.path, log.name)
        directory = os.path.join(session.path, ARCHIVE)
        self._files.ensure_dir(directory)
        name = log.name
        target = os.path.join(directory, name)
        data = self._files.read_file(source)
        try:
            taken = self._files.read_file(target) != data
        except FileNotFoundError:
            taken = False
        if taken:
            parsed = layout.parse_log_name(name)
            if parsed is None:
                raise AssertionError("only logs with a proper name are sealed")
            digest = hashlib.sha256(data).hexdigest()[:8]
            name = layout.log_name(parsed.device, parsed.number, digest)
            target = os.path.join(directory, name)
        self._files.rename(source, target)
        session.moved(log, f"{ARCHIVE}/{name}")
        self._files.sync_dir(directory)
        self._files.sync_dir(session.path)

    # --- checkpoints -------------------------------------------------------------------------------------------

    def remember(self) -> None:
        """Keep on disk what stands last in the log."""
        if self._memory is not None:
            self.session.devices.remember(self.session.dir_name, self._memory)

    def checkpoint(self) -> None:
        """Write the manifest, and remember what stands last in the log.

        Durability: durable on return. Nothing is lost where it fails: the logs hold everything.
        """
        self.unsaved = False
        self._privacy.restore(self._privacy.exposed())
        self.remember()
        path = os.path.join(self.session.path, layout.manifest_name(self.device))
        self._files.replace_file(path, self.session.checkpoint(self.device).encode())
        self.session.relist()

    def settle(self, *, seal: bool) -> None:
        """Seal and checkpoint after a commit. What fails here is logged and left to the next write."""
        try:
            if seal:
                self.seal()
            self.checkpoint()
        except (OSError, SquillaFilesError) as error:
            _log.warning("session %s: the commit stands, but its checkpoint failed: %s", self.session.key, error)


def new_log_id() -> str:
    """Return a random id for a log."""
    return secrets.token_hex(8)


def _holds(log: Log, memory: Memory) -> bool:
    if memory.record is None:
        return True
    record = log.lines[memory.line - 1] if len(log.lines) >= memory.line else None
    return record is not None and record.identity == memory.record
