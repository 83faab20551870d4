"""What can go wrong, one leaf for each thing that a caller may want to catch.

    SquillaFilesError
    ├── SessionNotFoundError      (KeyError)      no session under this key
    ├── MessageNotFoundError      (KeyError)      no such message in the session
    ├── SessionExistsError        (ValueError)    the key is taken
    ├── MessageConflictError      (ValueError)    the message id is taken by other content, or was removed
    ├── InvalidKeyError           (ValueError)    a session key that no session can have
    ├── InvalidDeviceError        (ValueError)    a device name that no file can bear
    ├── InvalidCursorError        (ValueError)    a cursor that is malformed or of another store
    ├── UnstorableTypeError       (TypeError)     a value of a type that JSON cannot hold
    ├── UnstorableValueError      (ValueError)    a value that would not come back equal
    ├── StaleEpochError                           the session was reset or fenced since it was read
    ├── StalePreimageError                        the transcript changed since it was read
    ├── LockTimeoutError          (TimeoutError)  another process holds the session
    ├── StoreClosedError          (RuntimeError)  the store was closed, or not connected yet
    ├── WrongLoopError            (RuntimeError)  the store belongs to another event loop
    ├── LogReplacedError          (OSError)       another file took the log's name while it was written
    ├── UnsupportedFormatError                    written by a later major version
    ├── UnsafePathError                           a symbolic link or a special file where none may be
    └── CorruptFileError                          bytes that cannot be understood where they must be
        ├── CorruptRecordError                    a line of a log
        └── CorruptManifestError                  a manifest or `store.json`

An `OSError` of the operating system goes through unwrapped.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any


class SquillaFilesError(Exception):
    """Base of every error that this package raises on its own account."""

    # A KeyError shows the repr of its argument; every message here is a sentence for people.
    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""

    # Constructors take data and make the message: without this a process pool could not hand an error on.
    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(kind: type[SquillaFilesError], args: tuple[object, ...], state: dict[str, object]) -> SquillaFilesError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class SessionNotFoundError(SquillaFilesError, KeyError):
    """No session exists under *session_key*.

    Attributes:
        session_key: the canonical key (or session id) that was asked for.
    """

    def __init__(self, session_key: str) -> None:
        super().__init__(f"Session not found: {session_key!r}. Create it first, or check the key.")
        self.session_key = session_key


class MessageNotFoundError(SquillaFilesError, KeyError):
    """The session has no such message in the transcript that was asked.

    Attributes:
        session_key: the session's canonical key.
        message_id: the message that was asked for.
    """

    def __init__(self, session_key: str, message_id: str) -> None:
        super().__init__(
            f"Transcript message not found: {message_id!r:.80} in session {session_key!r}. "
            "Take the message_id of an entry that its canonical transcript holds."
        )
        self.session_key = session_key
        self.message_id = message_id


class SessionExistsError(SquillaFilesError, ValueError):
    """A session exists under *session_key* already; nothing was changed.

    Attributes:
        session_key: the canonical key.
    """

    def __init__(self, session_key: str, message: str | None = None) -> None:
        super().__init__(
            message or f"Session already exists: {session_key!r}. Use another key, or the session that is there."
        )
        self.session_key = session_key


class MessageConflictError(SquillaFilesError, ValueError):
    """The message id belongs to another content, or to a message that was removed; nothing was written.

    Attributes:
        session_key: the session's canonical key.
        message_id: the id in question.
    """

    def __init__(self, session_key: str, message_id: str, reason: str) -> None:
        super().__init__(f"Message {message_id!r} of session {session_key!r} {reason}. Use a new message_id.")
        self.session_key = session_key
        self.message_id = message_id


class InvalidKeyError(SquillaFilesError, ValueError):
    """A key that no session can have: empty, too long, with NUL or a lone surrogate, or not a string.

    Attributes:
        key: what was given.
    """

    def __init__(self, key: object, reason: str) -> None:
        super().__init__(f"Invalid session key {key!a:.80}: {reason}.")
        self.key = key


class InvalidDeviceError(SquillaFilesError, ValueError):
    """A device name that no file can bear.

    Attributes:
        device: what was given.
    """

    def __init__(self, device: object) -> None:
        super().__init__(f"Invalid device name {device!a:.80}: 1 to 40 characters of a-z, 0-9 and '-' are allowed.")
        self.device = device


class InvalidCursorError(SquillaFilesError, ValueError):
    """A cursor that is malformed, or belongs to another store or session.

    Attributes:
        cursor: what was given.
    """

    def __init__(self, cursor: object, reason: str) -> None:
        super().__init__(f"Invalid cursor {cursor!a:.80}: {reason}. Start without a cursor to follow from now.")
        self.cursor = cursor


class UnstorableTypeError(SquillaFilesError, TypeError):
    """A value of a type that JSON cannot hold; nothing was written.

    Attributes:
        where: the path of the value inside the record, such as ``tool_calls[0].arguments``.
    """

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"Cannot store {where}: {reason}. Nothing was written.")
        self.where = where


class UnstorableValueError(SquillaFilesError, ValueError):
    """A value that would not come back equal (NaN, a lone surrogate, a huge integer); nothing was written.

    Attributes:
        where: the path of the value inside the record, such as ``tool_calls[0].arguments``.
    """

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"Cannot store {where}: {reason}. Nothing was written.")
        self.where = where


class StaleEpochError(SquillaFilesError):
    """The session was reset, deleted or fenced since the writer read it; nothing was written.

    Attributes:
        session_key: the session's canonical key.
        expected_epoch: the epoch that the writer had seen, None where it named a session id instead.
        actual_epoch: the epoch in force, None where there is no session.
    """

    def __init__(self, session_key: str, expected_epoch: int | None, actual_epoch: int | None) -> None:
        super().__init__(
            f"Stale epoch for session {session_key!r}: expected {expected_epoch}, actual {actual_epoch}. "
            "Read the session again before writing."
        )
        self.session_key = session_key
        self.expected_epoch = expected_epoch
        self.actual_epoch = actual_epoch


class StalePreimageError(SquillaFilesError):
    """The live transcript is not the one that was read; nothing was written.

    Attributes:
        session_key: the session's canonical key.
    """

    def __init__(self, session_key: str) -> None:
        super().__init__(f"The transcript of session {session_key!r} changed since it was read. Read it again.")
        self.session_key = session_key


class LockTimeoutError(SquillaFilesError, TimeoutError):
    """Another process holds the session's lock; nothing was written.

    Attributes:
        path: the lock file.
        timeout: seconds that were waited.
        holder: who holds it as far as known: ``pid``, ``host`` and ``since_ms`` (ms since the epoch, UTC), or None.
    """

    def __init__(self, path: str, timeout: float, holder: dict[str, object] | None) -> None:
        by = (
            "a process that left no name"
            if holder is None
            else f"process {holder.get('pid')} on {holder.get('host')} since {_moment(holder.get('since_ms'))}"
        )
        super().__init__(
            f"Lock {path} not acquired within {timeout:g} s: held by {by}. Nothing was written. Try again, or raise "
            "lock_timeout."
        )
        self.path = path
        self.timeout = timeout
        self.holder = holder


def _moment(since_ms: object) -> str:
    if type(since_ms) is not int:
        return "a time that is not known"
    return datetime.fromtimestamp(since_ms / 1000, UTC).isoformat(timespec="milliseconds")


class StoreClosedError(SquillaFilesError, RuntimeError):
    """The store was closed, or is not connected yet."""


class LogReplacedError(SquillaFilesError, OSError):
    """Another file took the log's name while it was written: nothing was acknowledged.

    A sync service or a restore did that. Write again: the next write goes to a log of its own.

    Attributes:
        path: the log.
    """

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} was replaced or moved while it was written; nothing was acknowledged. Write again.")
        self.path = path


class WrongLoopError(SquillaFilesError, RuntimeError):
    """The store belongs to another event loop, which is still open; nothing was done."""

    def __init__(self, root: str) -> None:
        super().__init__(
            f"The store at {root} belongs to another event loop. Use a store of its own in each loop, or hand the call "
            "to the store's loop with asyncio.run_coroutine_threadsafe."
        )


class UnsupportedFormatError(SquillaFilesError):
    """The file was written by a later major version of the format; it was not touched.

    Attributes:
        path: the file.
        version: the version that it names.
    """

    def __init__(self, path: str, version: object) -> None:
        super().__init__(f"{path} has format version {version!r}, which this version cannot read. Upgrade the package.")
        self.path = path
        self.version = version


class UnsafePathError(SquillaFilesError):
    """A symbolic link or a special file stands where the store expects its own; it was not followed.

    Attributes:
        path: where it stands.
        reason: what stands there, such as ``is a symbolic link``.
    """

    def __init__(self, path: str, reason: str = "is a symbolic link") -> None:
        super().__init__(f"{path} {reason}; the store does not follow it. Put the real file or directory in its place.")
        self.path = path
        self.reason = reason


class CorruptFileError(SquillaFilesError):
    """Bytes that cannot be understood where they must be; nothing was changed.

    Attributes:
        path: the file.
        offset: where in it, in bytes.
        reason: what is wrong.
    """

    def __init__(self, path: str, offset: int, reason: str, advice: str | None = None) -> None:
        advice = advice or "`verify` lists all damage, `repair` mends what can be."
        super().__init__(f"{path} at byte {offset}: {reason}. {advice}")
        self.path = path
        self.offset = offset
        self.reason = reason


class CorruptRecordError(CorruptFileError):
    """A line of a log that cannot be read."""


class CorruptManifestError(CorruptFileError):
    """A manifest or `store.json` that cannot be read."""
