"""Every directory and file name of a store, built and parsed here and nowhere else. Pure: no disk is touched.

The names are ASCII, lower case, at most 80 characters, and differ after case folding, so that every file system and
every file-sync service keeps them as they are. FORMAT.md, "Layout", shows the tree.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from typing import Final, NamedTuple

from squilla_files.errors import InvalidDeviceError

ARCHIVE: Final = "archive"
"""The name of the directory, inside a session's, in which sealed logs lie."""

_SLUG_LENGTH: Final = 40
_HASH_LENGTH: Final = 16

_DEVICE: Final = r"[a-z0-9-]{1,40}"
_DEVICE_NAME: Final = re.compile(_DEVICE)
_SLUG_RUN: Final = re.compile(r"[a-z0-9]+")
_SESSION_DIR: Final = re.compile(r"[a-z0-9-]{1,40}~([0-9a-f]{16})")
_LOG: Final = re.compile(rf"transcript\.({_DEVICE})\.([0-9]{{6,12}})(?:\.([0-9a-f]{{8}}))?\.jsonl")
_MANIFEST: Final = re.compile(rf"manifest\.({_DEVICE})\.json")
_NUMBERED: Final = re.compile(rf"([0-9]{{6,12}})\.({_DEVICE})\.json")
_DELETION: Final = re.compile(r"([a-z0-9-]{1,40}~[0-9a-f]{16})\.([0-9a-f]{16})\.json")
_CURSOR: Final = re.compile(r"([0-9a-f]{16})\.jsonl")
_TEMPORARY: Final = re.compile(r"~sqf-[0-9a-f]+\.tmp")
_PLACEHOLDER: Final = re.compile(r"\.(.+)\.icloud", re.IGNORECASE)
_IN_PROGRESS_ENDS: Final = (
    ".tmp",
    ".temp",
    ".part",
    ".partial",
    ".filepart",
    ".ocpart",
    ".crdownload",
    ".download",
    ".icloud",
    ".!sync",
)


class LogName(NamedTuple):
    """What the name of a log says.

    Attributes:
        device: the device that writes it.
        number: the log's number, counted up at every seal.
        digest: the first 8 hex digits of the content's SHA-256, where another content had the plain name; else None.
    """

    device: str
    number: int
    digest: str | None = None


class NumberedName(NamedTuple):
    """What the name of a summary's or a context state's file says; it is for people, the id inside counts.

    Attributes:
        number: the number in the name.
        device: the device that wrote it.
    """

    number: int
    device: str


class DeletionName(NamedTuple):
    """What the name of a deletion's file says.

    Attributes:
        dir_name: the name of the session's directory.
        token: 16 hex digits that keep two deletions of one session apart.
    """

    dir_name: str
    token: str


def validate_device(name: str) -> str:
    """Return *name* if it can be a device's name: 1 to 40 characters of ``a-z``, ``0-9`` and ``-``.

    Raises:
        InvalidDeviceError: it cannot.
    """
    if not isinstance(name, str) or not is_device(name):
        raise InvalidDeviceError(name)
    return name


def is_device(name: str) -> bool:
    """Say whether *name* can be a device's name."""
    return _DEVICE_NAME.fullmatch(name) is not None


def key_hash(session_key: str) -> str:
    """Return the first 16 hex digits of the SHA-256 of a canonical key in UTF-8."""
    return hashlib.sha256(session_key.encode("utf-8")).hexdigest()[:_HASH_LENGTH]


def session_dir_name(session_key: str) -> str:
    """Return the name of the directory of the session with this canonical key.

    A readable slug, ``~``, a hash: the slug is for people, the hash makes any key usable and keeps keys apart.
    """
    return f"{slug(session_key)}~{key_hash(session_key)}"


def slug(session_key: str) -> str:
    """Return the ASCII letters and digits of a key, lower case, joined by ``-``, at most 40 characters, or ``key``."""
    # ASCII first: str.lower() turns some other letters (the Kelvin sign) into ASCII ones.
    letters = session_key.encode("ascii", "replace").decode("ascii").lower()
    return "-".join(_SLUG_RUN.findall(letters))[:_SLUG_LENGTH].strip("-") or "key"


def parse_session_dir_name(name: str) -> str | None:
    """Return the hash in the name of a session's directory, or None where it is no such name."""
    found = _SESSION_DIR.fullmatch(name)
    return found[1] if found else None


def log_name(device: str, number: int, digest: str | None = None) -> str:
    """Return the name of a device's log; *digest* (8 hex digits) where another content has the plain name."""
    middle = "" if digest is None else f".{digest}"
    return f"transcript.{device}.{number:06d}{middle}.jsonl"


def parse_log_name(name: str) -> LogName | None:
    """Return what the name of a log says, or None where it is no such name."""
    found = _LOG.fullmatch(name)
    return LogName(found[1], int(found[2]), found[3]) if found else None


def manifest_name(device: str) -> str:
    """Return the name of a device's manifest."""
    return f"manifest.{device}.json"


def parse_manifest_name(name: str) -> str | None:
    """Return the device that a manifest's name bears, or None where it is no such name."""
    found = _MANIFEST.fullmatch(name)
    return found[1] if found else None


def summary_name(number: int, device: str) -> str:
    """Return the name of a summary's file."""
    return f"{number:06d}.{device}.json"


def context_name(number: int, device: str) -> str:
    """Return the name of a context state's file."""
    return f"{number:06d}.{device}.json"


def parse_numbered_name(name: str) -> NumberedName | None:
    """Return what the name of a summary's or context state's file says, or None where it is no such name."""
    found = _NUMBERED.fullmatch(name)
    return NumberedName(int(found[1]), found[2]) if found else None


def deletion_name(dir_name: str, token: str) -> str:
    """Return the name of a deletion's file; *token* are 16 hex digits, another for each deletion."""
    return f"{dir_name}.{token}.json"


def parse_deletion_name(name: str) -> DeletionName | None:
    """Return what the name of a deletion's file says, or None where it is no such name."""
    found = _DELETION.fullmatch(name)
    return DeletionName(found[1], found[2]) if found else None


def archive_document_name(dir_name: str, epoch: int, token: str) -> str:
    """Return the name of the document that holds a closed generation; *token* are 8 hex digits."""
    return f"{dir_name}.{epoch:06d}.{token}.json"


def trash_name(dir_name: str, token: str) -> str:
    """Return the name under which a deleted session's directory lies in the trash; *token* are 16 hex digits."""
    return f"{dir_name}.{token}"


def cursor_name(token: str) -> str:
    """Return the name of a file of positions; *token* are 16 hex digits."""
    return f"{token}.jsonl"


def parse_cursor_name(name: str) -> str | None:
    """Return the token in the name of a file of positions, or None where it is no such name."""
    found = _CURSOR.fullmatch(name)
    return found[1] if found else None


def temporary_name(token: str) -> str:
    """Return the name of a file or directory under way; *token* are hex digits.

    A leading ``~`` together with ``.tmp`` is what the common sync services leave alone.
    """
    return f"~sqf-{token}.tmp"


def is_temporary(name: str) -> bool:
    """Say whether *name* is one that `temporary_name` makes: a leftover of ours after a crash."""
    return _TEMPORARY.fullmatch(name) is not None


def is_in_progress(name: str) -> bool:
    """Say whether *name* is one that a program or sync service gives to a file that it has not finished.

    Such a file is never read: leading ``.`` or ``~``, and the usual endings, whatever their case.
    """
    return name.startswith((".", "~")) or name.lower().endswith(_IN_PROGRESS_ENDS)


def is_placeholder(name: str) -> str | None:
    """Return the name for which *name* stands in while its file is not on this machine, else None.

    iCloud leaves ``.NAME.icloud`` behind for an evicted ``NAME``.
    """
    found = _PLACEHOLDER.fullmatch(name)
    return found[1] if found else None


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths of one store.

    Attributes:
        root: the store's root directory, absolute.
    """

    root: str

    @property
    def store_file(self) -> str:
        """The file that names the format and its version; the same bytes on every device."""
        return os.path.join(self.root, "store.json")

    @property
    def sessions(self) -> str:
        """The directory with a directory for each session."""
        return os.path.join(self.root, "sessions")

    @property
    def archives(self) -> str:
        """The directory of the documents that resets leave."""
        return os.path.join(self.root, "archives")

    @property
    def deleted(self) -> str:
        """The directory with a small file for each deletion."""
        return os.path.join(self.root, "deleted")

    @property
    def local(self) -> str:
        """The directory that belongs to this machine only."""
        return os.path.join(self.root, ".local")

    @property
    def locks(self) -> str:
        """The directory of lock files; none of them is ever deleted."""
        return os.path.join(self.local, "locks")

    @property
    def devices(self) -> str:
        """The directory of device names, one file for each fingerprint of a machine."""
        return os.path.join(self.local, "devices")

    @property
    def memory(self) -> str:
        """The directory of what this machine remembers of its own logs."""
        return os.path.join(self.local, "memory")

    @property
    def cursors(self) -> str:
        """The directory of what followers remember."""
        return os.path.join(self.local, "cursors")

    @property
    def trash(self) -> str:
        """The directory in which deleted sessions lie until they are removed."""
        return os.path.join(self.local, "trash")

    @property
    def quarantine(self) -> str:
        """The directory in which repair puts what it takes out of a session."""
        return os.path.join(self.local, "quarantine")

    def session(self, dir_name: str) -> str:
        """The directory of a session."""
        return os.path.join(self.sessions, dir_name)

    def archive(self, dir_name: str) -> str:
        """The directory of a session's sealed logs."""
        return os.path.join(self.sessions, dir_name, ARCHIVE)

    def summaries(self, dir_name: str) -> str:
        """The directory of a session's summaries."""
        return os.path.join(self.sessions, dir_name, "summaries")

    def contexts(self, dir_name: str) -> str:
        """The directory of a session's context states."""
        return os.path.join(self.sessions, dir_name, "contexts")

    def lock_file(self, dir_name: str) -> str:
        """The lock file of a session."""
        return os.path.join(self.locks, f"{dir_name}.lock")

    def device_file(self, fingerprint: str) -> str:
        """The file that holds the device name of the machine with this fingerprint (hex digits)."""
        return os.path.join(self.devices, f"{fingerprint}.json")

    def memory_file(self, fingerprint: str, dir_name: str) -> str:
        """The file in which the machine with this fingerprint remembers its log of a session."""
        return os.path.join(self.memory, fingerprint, f"{dir_name}.json")
