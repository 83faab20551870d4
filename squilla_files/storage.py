"""The store: sessions, transcripts, summaries and context states under one root directory.

`SessionStorage` is a thin asynchronous facade. Its methods are declared where they belong: `StoredSessions`,
`StoredTranscripts`, `StoredDocuments`, `StoredBranches`, `StoredCare` and `StoredEvents`, on the machinery of `Engine`.
"""

from __future__ import annotations

import os
from typing import Self

from squilla_files.errors import StaleEpochError
from squilla_files.files import Durability
from squilla_files.store_events import StoredEvents

__all__ = ["SessionStorage", "StaleEpochError"]


class SessionStorage(StoredEvents):
    """A file-based store of sessions that several processes, and several devices behind a sync service, may share.

    Use it as an asynchronous context manager, or call `connect` and `close`.

    Args:
        root: the store's directory, made by the first write; ``":memory:"`` for a private temporary store that is gone
            after `close`.
        device: the name under which this machine writes (``[a-z0-9-]``, at most 40 characters). Without it the
            environment variable ``SQUILLA_FILES_DEVICE`` is taken, or a name made once per machine and store. Two
            devices must never use the same name.
        durability: ``"full"``: what a call acknowledged survives a power cut. ``"os"``: it survives the death of the
            process, not of the machine.
        archive_dir: where the documents of closed generations go; else the environment variable
            ``SQUILLA_FILES_ARCHIVE_DIR``, else ``archives/`` in the store.
        lock_timeout: seconds to wait for a session that another process holds.
        files: the disk; tests hand in one that fails.

    A store belongs to the event loop that connected it. It can be connected again after it was closed.

    Raises:
        InvalidDeviceError: the device name is none.
        ValueError: the root is empty, or another argument is none that it can be.
    """

    @classmethod
    async def open(
        cls,
        root: str | os.PathLike[str],
        *,
        device: str | None = None,
        durability: Durability = "full",
        archive_dir: str | os.PathLike[str] | None = None,
        lock_timeout: float = 30.0,
    ) -> Self:
        """Return a store that is connected; see the class for the arguments and `connect` for what is raised."""
        store = cls(root, device=device, durability=durability, archive_dir=archive_dir, lock_timeout=lock_timeout)
        await store.connect()
        return store
