"""The names that programs take from the package itself: which they are, and that nobody pays for them unasked."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from importlib.metadata import version

import pytest

import squilla_files
from squilla_files import errors

ERRORS = {
    name
    for name, value in vars(errors).items()
    if isinstance(value, type) and issubclass(value, errors.SquillaFilesError)
}
OTHERS = {
    "SessionManager",
    "SessionStorage",
    "TranscriptPage",
    "SessionNode",
    "TranscriptEntry",
    "SessionSummary",
    "SessionContextState",
    "SessionStatus",
    "SessionIntent",
    "ChatType",
    "QueueMode",
    "SendPolicy",
    "InputProvenanceKind",
    "CompactionConfig",
    "CompactionRequest",
    "CompactionResult",
    "Summarizer",
    "compact_context",
    "Finding",
    "Report",
    "DeviceStatus",
    "Missing",
    "SyncStatus",
    "Event",
    "Appended",
    "Compacted",
    "ConflictFound",
    "ContextChanged",
    "Created",
    "DamageFound",
    "Deleted",
    "Gap",
    "Pending",
    "Removed",
    "Reset",
    "Updated",
    "__version__",
}


def modules_after(statement: str) -> set[str]:
    """Return what a fresh interpreter has imported after *statement*."""
    script = f"{statement}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_the_public_names_are_these() -> None:
    assert set(squilla_files.__all__) == OTHERS | ERRORS


def test_each_public_name_is_there_and_listed_by_dir() -> None:
    assert {name for name in squilla_files.__all__ if getattr(squilla_files, name, None) is None} == set()
    assert set(squilla_files.__all__) <= set(dir(squilla_files))


def test_a_public_name_is_the_object_that_its_module_declares() -> None:
    for name, module in (("SessionStorage", "storage"), ("SessionManager", "manager"), ("StaleEpochError", "storage")):
        assert getattr(squilla_files, name) is getattr(import_module(f"squilla_files.{module}"), name)


def test_a_star_import_gives_the_public_names_and_no_others() -> None:
    given: dict[str, object] = {}
    exec("from squilla_files import *", given)  # noqa: S102
    assert given.keys() - {"__builtins__"} == set(squilla_files.__all__)


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'squilla_files' has no attribute 'SessionStore'"):
        _ = squilla_files.SessionStore  # type: ignore[attr-defined]
    with pytest.raises(ImportError, match="cannot import name 'SessionStore'"):
        exec("from squilla_files import SessionStore")  # noqa: S102


def test_importing_the_package_imports_nothing_of_it_and_no_dependency() -> None:
    after = modules_after("import squilla_files")
    assert {name for name in after if name.startswith("squilla_files.")} == set()
    assert after.isdisjoint({"orjson", "filelock", "watchfiles", "asyncio"})


def test_importing_one_submodule_does_not_import_the_public_names() -> None:
    after = modules_after("from squilla_files import layout, files")
    assert {"squilla_files.layout", "squilla_files.files"} <= after
    assert "squilla_files.public" not in after


def test_the_version_is_that_of_the_distribution() -> None:
    assert squilla_files.__version__ == version("squilla-files")
