"""A disk that fails at any call costs an error and no more: nothing half done, nothing forgotten, and no restart."""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from faulty_files import Kind
from operations import (
    Operation,
    Prepared,
    check_files,
    check_logs_only_grew,
    each_operation,
    go_on,
    logs_of,
    messages,
    prepare,
    seen_by_another,
    state_of,
    steady,
    with_message,
)

_OPENING = (errno.EMFILE, errno.EACCES, errno.EIO)
_WRITING = (errno.ENOSPC, errno.EIO)
_NAMING = (errno.ENOSPC, errno.EACCES, errno.EIO)
# What each call of the disk fails with in real life.
ERRORS = {
    "open_read": _OPENING,
    "open_append": _OPENING,
    "read_file": _OPENING,
    "scan": _OPENING,
    "create": (*_OPENING, errno.ENOSPC),
    "write": _WRITING,
    "sync": _WRITING,
    "sync_dir": (errno.EMFILE, *_WRITING),
    "mkdir": _NAMING,
    "rename": _NAMING,
}
ANY = (errno.EIO, errno.EACCES)


@pytest.fixture(autouse=True)
def steady_world() -> Iterator[None]:
    with steady(2):
        yield


class Plan(NamedTuple):
    """What goes wrong: the kind of fault at the k-th call, and whether later calls of its sort fail, too."""

    k: int
    kind: Kind
    sticky: bool


def plans(prepared: Prepared) -> Iterator[Plan]:
    """Every call fails, once and for all later calls of its sort, with one error after another."""
    for k, call in enumerate(prepared.calls, 1):
        errors = ERRORS.get(call.name, ANY)
        yield Plan(k, errors[k % len(errors)], sticky=False)
        yield Plan(k, errors[(k + 1) % len(errors)], sticky=True)
        if call.name == "write":
            yield Plan(k, "short", sticky=True)
        if call.name == "sync":
            yield Plan(k, "sync", sticky=False)


@each_operation
def test_an_operation_that_raises_changed_nothing_and_one_that_returns_is_done(
    operation: Operation, caplog: pytest.LogCaptureFixture
) -> None:
    prepared = prepare(operation)
    for plan in plans(prepared):
        caplog.clear()
        check_fault(prepared, plan, caplog.records)


def check_fault(prepared: Prepared, plan: Plan, logged: list[logging.LogRecord]) -> None:
    files, session = prepared.start()
    files.fail_at(plan.k, plan.kind, sticky=plan.sticky)
    raised = None
    try:
        prepared.run(session)
    except OSError as error:
        raised = error
    files.heal()
    expected = prepared.new if raised is None else prepared.old
    assert raised is not None or logged, plan
    assert state_of(session) == expected, plan
    assert seen_by_another(files) == expected, plan
    check_files(session)
    go_on(session)
    assert messages(state_of(session)) == with_message(expected, "next"), plan
    after = files.crash("synced")
    assert messages(state_of(prepared.reopen(after))) == with_message(expected, "next"), plan
    if expected.node is not None:
        check_logs_only_grew(logs_of(prepared.disk), logs_of(after))
    session.close()
    assert not files.open_paths or prepared.calls[plan.k - 1].name == "close", plan
