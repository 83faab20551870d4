"""What a check finds: findings, reports, and what a device lacks of a session.

Each kind of finding is declared once, with its severity and with what a user can do about it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

Severity = Literal["info", "warning", "error"]

DAMAGED_LINE: Final = "damaged_line"
TORN_TAIL: Final = "torn_tail"
MANIFEST_MISSING: Final = "manifest_missing"
MANIFEST_CORRUPT: Final = "manifest_corrupt"
MANIFEST_STALE: Final = "manifest_stale"
MANIFEST_WRONG: Final = "manifest_wrong"
MISSING_LOG: Final = "missing_log"
MISSING_DOCUMENT: Final = "missing_document"
MISSING_RECORDS: Final = "missing_records"
PLACEHOLDER: Final = "placeholder"
CORRUPT_DOCUMENT: Final = "corrupt_document"
CORRUPT_DELETION: Final = "corrupt_deletion"
STORE_MISSING: Final = "store_missing"
STORE_CORRUPT: Final = "store_corrupt"
LATER_FORMAT: Final = "later_format"
UNREADABLE: Final = "unreadable"
SYMLINK: Final = "symlink"
SPECIAL_FILE: Final = "special_file"
WRONG_MODE: Final = "wrong_mode"
TEMPORARY: Final = "temporary"
TRASH: Final = "trash"
UNREFERENCED: Final = "unreferenced"
UNMOVED_LOG: Final = "unmoved_log"
EMPTY_DIRECTORY: Final = "empty_directory"
DELETED_REST: Final = "deleted_rest"
BACK: Final = "back"
IDENTICAL: Final = "identical"
SHORTER: Final = "shorter"
DIVERGED: Final = "diverged"
TWIN: Final = "twin"
FOREIGN: Final = "foreign"

_REPAIR: Final = "`repair` clears it away."
_SERVICE: Final = "Wait for the sync service, or look at the device that has it."

KINDS: Final[Mapping[str, tuple[Severity, str]]] = MappingProxyType(
    {
        DAMAGED_LINE: ("warning", "All other lines count. The bytes stay; look at them, or restore the file."),
        TORN_TAIL: ("warning", "A write was cut off. The next write goes on behind it, and nothing is cut away."),
        MANIFEST_MISSING: ("info", "The next write makes it anew, `repair` at once; the logs hold everything."),
        MANIFEST_CORRUPT: ("warning", "The next write makes this device's own anew, `repair` at once."),
        MANIFEST_STALE: ("info", "It is not relied upon; the next write makes it anew, `repair` at once."),
        MANIFEST_WRONG: ("warning", "`repair` makes it anew from the logs."),
        MISSING_LOG: ("warning", _SERVICE),
        MISSING_DOCUMENT: ("warning", _SERVICE),
        MISSING_RECORDS: ("info", _SERVICE),
        PLACEHOLDER: ("info", "The file is not on this machine: have the sync service keep it here."),
        CORRUPT_DOCUMENT: ("warning", "Restore the file from another device or a backup; nothing else depends on it."),
        CORRUPT_DELETION: ("error", "Restore the file from another device, or remove it to have the session back."),
        STORE_MISSING: ("warning", "The next write makes it anew, `repair` at once."),
        STORE_CORRUPT: ("error", "The store does not open with it. Remove the file: the next write makes it anew."),
        LATER_FORMAT: ("error", "Upgrade the package; the file is not touched."),
        UNREADABLE: ("error", "Give the user of this process access, or look at the disk; then check again."),
        SYMLINK: ("error", "It is not followed. Put the real file or directory in its place."),
        SPECIAL_FILE: ("error", "It is not opened. Take it away."),
        WRONG_MODE: ("warning", "The next write or `repair` makes it private again."),
        TEMPORARY: ("info", _REPAIR),
        TRASH: ("info", _REPAIR),
        UNREFERENCED: ("info", "No record names it. `repair` removes this device's own, other devices remove theirs."),
        UNMOVED_LOG: ("info", "It counts where it is. Its device's next write or `repair` moves it to the archive."),
        EMPTY_DIRECTORY: ("info", _REPAIR),
        DELETED_REST: ("info", "The session was deleted and none of this counts. " + _REPAIR),
        BACK: ("info", "Records came that the deletion had not seen. Delete the session again to have it gone."),
        IDENTICAL: ("info", "It changes nothing, and is left where it is."),
        SHORTER: ("info", "It changes nothing, and is left where it is."),
        DIVERGED: ("warning", "What it has of its own counts, and is left where it is. Keep the file."),
        TWIN: ("warning", "It is not read. Move it out of the store, or give it back its name."),
        FOREIGN: ("info", "It is not read and not touched. Take it away if nobody needs it."),
    }
)
"""Kind of finding → how grave it is, and what a user can do."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a check found."""

    kind: str
    """One of `KINDS`."""
    session_key: str | None
    """The session's canonical key; None where it is not known, or the finding is about the store."""
    path: str
    """The file or directory, relative to the store's root, with `/`; `.` is the root."""
    offset: int | None
    """Where in the file, in bytes; None where it is about the whole."""
    severity: Severity
    """`error`: something cannot be used. `warning`: something is lost or in doubt. `info`: worth knowing."""
    detail: str
    """What is the case, for people."""
    advice: str
    """What a user can do."""
    action: str = ""
    """What `repair` did about it, or would do; empty where it did nothing."""


def finding(
    kind: str,
    path: str,
    detail: str,
    *,
    session_key: str | None = None,
    offset: int | None = None,
    severity: Severity | None = None,
) -> Finding:
    """Return a finding of *kind*, with the severity (unless another is given) and the advice of its kind."""
    usual, advice = KINDS[kind]
    return Finding(kind, session_key, path, offset, severity or usual, detail, advice)


@dataclass(frozen=True, slots=True)
class Report:
    """What a check found, or a repair did."""

    findings: tuple[Finding, ...]
    """By path and offset."""

    @property
    def ok(self) -> bool:
        """Whether no error is left: none was found, or each was mended (in a dry run: would be)."""
        return not any(item.severity == "error" and not item.action for item in self.findings)

    @property
    def actions(self) -> tuple[Finding, ...]:
        """The findings about which something was done, or would be."""
        return tuple(item for item in self.findings if item.action)


def report_of(findings: Iterable[Finding]) -> Report:
    """Return the report of *findings*, each listed once."""
    return Report(tuple(sorted(set(findings), key=lambda f: (f.path, f.offset or 0, f.kind, f.detail))))


@dataclass(frozen=True, slots=True)
class DeviceStatus:
    """What is here of one device's writing in a session."""

    device: str
    """The device's name."""
    own: bool
    """Whether this machine writes under it."""
    logs: tuple[str, ...]
    """Its logs: paths below the session's directory, with `/`."""
    entries: int
    """How many messages of it count, in all generations."""
    last_id: int
    """The highest id of its records."""


@dataclass(frozen=True, slots=True)
class Missing:
    """Something that others speak of and that is not here."""

    kind: Literal["log", "records", "summary", "context", "placeholder"]
    """What is missing; `records`: the end of a log; `placeholder`: a file that is not on this machine."""
    name: str
    """The id of a log, summary or context state; else a path below the session's directory."""
    device: str | None
    """The device that wrote it, where that is known."""
    detail: str
    """Who speaks of it, for people."""


@dataclass(frozen=True, slots=True)
class SyncStatus:
    """How far a session has arrived on this device."""

    session_key: str
    """The canonical key."""
    devices: tuple[DeviceStatus, ...]
    """By name."""
    missing: tuple[Missing, ...]
    """Empty where all that is spoken of is here."""
