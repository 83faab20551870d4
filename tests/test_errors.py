"""Every error says what happened, bears its data, and can be handed to another process."""

from __future__ import annotations

import copy
import inspect
import pickle

import pytest

from squilla_files import errors
from squilla_files.errors import LockTimeoutError, SquillaFilesError

HOLDER = {"pid": 7, "host": "desk", "since_ms": 1_764_547_200_000}
MADE: list[SquillaFilesError] = [
    SquillaFilesError("text"),
    errors.SessionNotFoundError("key"),
    errors.MessageNotFoundError("key", "message"),
    errors.SessionExistsError("key"),
    errors.MessageConflictError("key", "message", "was removed"),
    errors.InvalidKeyError("", "it is empty"),
    errors.InvalidDeviceError("A"),
    errors.InvalidCursorError("x", "it is malformed"),
    errors.UnstorableTypeError("content", "a set has no form in JSON"),
    errors.UnstorableValueError("content", "nan is not a number in JSON"),
    errors.StaleEpochError("key", 1, None),
    errors.StalePreimageError("key"),
    LockTimeoutError("/a.lock", 3, HOLDER),
    LockTimeoutError("/a.lock", 0.5, None),
    errors.StoreClosedError("not open"),
    errors.WrongLoopError("/store"),
    errors.LogReplacedError("/log"),
    errors.UnsupportedFormatError("/log", 2),
    errors.UnsafePathError("/log"),
    errors.CorruptFileError("/file", 0, "not JSON"),
    errors.CorruptRecordError("/log", 12, "not JSON"),
    errors.CorruptManifestError("/manifest", 0, "not JSON", "Restore it."),
]


def test_every_leaf_is_tried_here() -> None:
    leaves = {kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, SquillaFilesError)}
    assert leaves == {type(error) for error in MADE}


def test_the_tree_at_the_head_names_every_class_with_its_parent() -> None:
    tree = errors.__doc__ or ""
    for error in MADE:
        (line,) = [line for line in tree.split("\n") if line.split("──")[-1].split()[:1] == [type(error).__name__]]
        builtin = [base.__name__ for base in type(error).__bases__ if base.__module__ == "builtins"]
        if type(error) is not SquillaFilesError:
            assert [name for name in builtin if f"({name})" in line] == builtin


@pytest.mark.parametrize("error", MADE, ids=[f"{type(e).__name__}{n}" for n, e in enumerate(MADE)])
@pytest.mark.parametrize("hand_on", [lambda e: pickle.loads(pickle.dumps(e)), copy.copy, copy.deepcopy])  # noqa: S301
def test_an_error_that_is_handed_on_is_the_same(error: SquillaFilesError, hand_on) -> None:  # type: ignore[no-untyped-def]
    other = hand_on(error)
    assert type(other) is type(error)
    assert str(other) == str(error)
    assert vars(other) == vars(error)


def test_a_lock_that_was_not_free_names_process_host_and_since_when() -> None:
    text = str(LockTimeoutError("/a.lock", 3, HOLDER))
    assert "process 7 on desk since 2025-12-01T00:00:00.000+00:00" in text
    assert "lock_timeout" in text
