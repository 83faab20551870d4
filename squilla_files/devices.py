"""Who writes here: the device's name, and what it remembers of its own logs (FORMAT.md, "Devices").

One content per name is what keeps file-sync services from choosing between two versions of a file. So a device has a
name of its own, and goes on under another as soon as its log is not the one that it left: a restored backup, a cloned
disk, a service that put an older version back.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import re
import secrets
import sys
import threading
import uuid
from collections.abc import Container
from dataclasses import asdict, dataclass

from squilla_files.codec import counter_of, decode_document, encode_document
from squilla_files.files import Files
from squilla_files.layout import Layout, is_device, validate_device

if sys.platform == "win32":
    import winreg

ENVIRONMENT_VARIABLE = "SQUILLA_FILES_DEVICE"
_MACHINE_ID_FILES = ("/etc/machine-id", "/var/lib/dbus/machine-id")
_SUFFIX = re.compile(r"-r[0-9a-f]{6}$")


@dataclass(frozen=True, slots=True)
class Memory:
    """What a machine remembers of its log in one session."""

    device: str
    """The name under which it writes."""
    log: str
    """The random id of its log."""
    line: int
    """The number of a late line in it; 1 where only the first line is known."""
    record: str | None
    """The identity of the record in that line."""


def machine_fingerprint(root: str, given: str | None = None) -> str:
    """Return 16 hex digits that stand for this machine, the store at *root*, and the device name that was *given*.

    A `.local/` that was synced or copied to another machine, or with its store to another place, is not taken for one's
    own. Nor is what another container remembers, which may have the same machine id and path, but not the same name.
    """
    text = f"{_machine_id()}\n{os.path.realpath(root)}" + ("" if given is None else f"\n{given}")
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _machine_id() -> str:
    if sys.platform == "win32":
        with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, r"SOFTWARE\Microsoft\Cryptography") as key:
            return str(winreg.QueryValueEx(key, "MachineGuid")[0])
    for path in _MACHINE_ID_FILES:
        try:
            with open(path, encoding="ascii", errors="surrogateescape") as file:
                found = file.read().strip()
        except (FileNotFoundError, PermissionError, IsADirectoryError):
            continue  # a sandbox may close the file, a container may have a directory in its place
        if found:
            return found
    address = uuid.getnode()
    # Where there is no address this is a random number, another one in each process; a bit in it says so.
    return platform.node() if address >> 40 & 1 else f"{address:012x}"


def _label() -> str:
    letters = re.findall(r"[a-z0-9]+", platform.node().split(".")[0].lower())
    return "-".join(letters)[:20].strip("-") or "device"


def given_device(name: str | None) -> str | None:
    """Return the device's name that the application or else the environment gives, None where neither does.

    Raises:
        InvalidDeviceError: it can be no device's name.
    """
    given = name if name is not None else os.environ.get(ENVIRONMENT_VARIABLE) or None
    return given if given is None else validate_device(given)


class Devices:
    """The device names of one store on this machine.

    Args:
        files: the disk.
        layout: the store's paths.
        given: the name that was given, see `given_device`; None for one made once per machine and store.
    """

    def __init__(self, files: Files, layout: Layout, given: str | None) -> None:
        self._files = files
        self._layout = layout
        self._given = given
        self._fingerprint: str | None = None
        self._name: str | None = None
        self._mutex = threading.Lock()

    @property
    def fingerprint(self) -> str:
        """16 hex digits that stand for this machine, store and given name."""
        if self._fingerprint is None:
            self._fingerprint = machine_fingerprint(self._layout.root, self._given)
        return self._fingerprint

    def known(self) -> str | None:
        """Return the device's name if there is one already. Changes nothing."""
        if self._given is not None or self._name is not None:
            return self._given or self._name
        document = self._load(self._layout.device_file(self.fingerprint))
        name = document.get("device") if document is not None else None
        return name if isinstance(name, str) and is_device(name) else None

    def name(self) -> str:
        """Return the device's name, choosing and keeping one where there is none yet.

        Durability: a name that was chosen is durable before any file bears it.
        """
        with self._mutex:
            found = self.known()
            if found is None:
                found = f"{_label()}-{secrets.token_hex(3)}"
                self._save(self._layout.device_file(self.fingerprint), {"device": found})
            self._name = found
            return found

    def another(self) -> str:
        """Return a name that no log bears yet, for a session in which one's own log is not what one left."""
        base = _SUFFIX.sub("", self.name())[:32].strip("-") or "device"
        return f"{base}-r{secrets.token_hex(3)}"

    def recall(self, dir_name: str) -> Memory | None:
        """Return what is remembered of the log in one session, None where nothing is or it cannot be understood."""
        document = self._load(self._layout.memory_file(self.fingerprint, dir_name))
        if document is None:
            return None
        device, log, line, record = (document.get(name) for name in ("device", "log", "line", "record"))
        if not isinstance(device, str) or not is_device(device) or not isinstance(log, str):
            return None
        number = counter_of(line)
        return Memory(device, log, number, record) if number and isinstance(record, str | None) else None

    def recall_log(self, dir_name: str, known: Memory | None, deleted: Container[str]) -> Memory | None:
        """Return what is *known* of the log in one session, or else is remembered; None where that log was deleted.

        A log that was deleted with its session is not missing: another process may have begun the session anew since.
        """
        memory = known
        if memory is None or memory.log in deleted:
            memory = self.recall(dir_name)
        return None if memory is not None and memory.log in deleted else memory

    def remember(self, dir_name: str, memory: Memory) -> None:
        """Keep *memory* of the log in one session.

        Durability: durable on return. Where it is lost, the device goes on under another name.
        """
        self._save(self._layout.memory_file(self.fingerprint, dir_name), asdict(memory))

    def forget(self, dir_name: str) -> None:
        """Drop what is remembered of a session that was deleted, so that its key begins like any other."""
        try:
            self._files.unlink(self._layout.memory_file(self.fingerprint, dir_name))
        except FileNotFoundError:
            return

    def _load(self, path: str) -> dict[str, object] | None:
        try:
            self._files.check_below(self._layout.root, path)
            return decode_document(self._files.read_file(path))
        except FileNotFoundError:
            return None

    def _save(self, path: str, document: dict[str, object]) -> None:
        with contextlib.suppress(FileNotFoundError):  # made below
            self._files.check_below(self._layout.root, path)
        self._files.ensure_dir(os.path.dirname(path))
        self._files.replace_file(path, encode_document(document))
