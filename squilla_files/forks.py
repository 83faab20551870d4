"""What a forked process leaves to its parent: threads are not forked, and what they hold would stay held for ever."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Final

_acts: Final[set[weakref.WeakMethod[Callable[[], None]]]] = set()


def call_in_child(act: Callable[[], None]) -> None:
    """Have *act*, a method of an object, called in each process that is forked from this one while the object lives."""
    _acts.difference_update([known for known in _acts if known() is None])
    _acts.add(weakref.WeakMethod(act))


def _after_fork() -> None:
    for reference in list(_acts):
        act = reference()
        if act is not None:
            act()


if hasattr(os, "register_at_fork"):  # Windows has neither
    os.register_at_fork(after_in_child=_after_fork)
