"""What the tests of stores share: records by the line, the bytes of a tree, and every public method of a store."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

from squilla_files.commits import CompactionCommit
from squilla_files.engine import Engine
from squilla_files.models import JsonValue, SessionContextState, SessionNode, SessionSummary, TranscriptEntry
from squilla_files.storage import SessionStorage

KEY = "agent:main:main"


def entry(node: SessionNode, content: JsonValue, role: str = "user", **given: Any) -> TranscriptEntry:
    return TranscriptEntry(
        **{"session_id": node.session_id, "session_key": node.session_key, "role": role, "content": content, **given}
    )


def summary(node: SessionNode, text: str, **given: Any) -> SessionSummary:
    return SessionSummary(
        **{"session_id": node.session_id, "session_key": node.session_key, "summary_text": text, **given}
    )


def state(node: SessionNode, kind: str = "kind", **given: Any) -> SessionContextState:
    return SessionContextState(
        **{"session_id": node.session_id, "session_key": node.session_key, "state_kind": kind, **given}
    )


async def say(store: SessionStorage, node: SessionNode, *contents: JsonValue, **given: Any) -> list[TranscriptEntry]:
    return [await store.append_transcript_entry(entry(node, content, **given)) for content in contents]


async def said(store: SessionStorage, session_id: str) -> list[JsonValue]:
    return [found.content for found in await store.get_transcript(session_id)]


async def stored(store: SessionStorage, key: str = KEY) -> SessionNode:
    node = await store.get_session(key)
    assert node is not None
    return node


def filled(node: SessionNode) -> SessionNode:
    """Give every field of *node*, its identity aside, a value that is not its default."""
    samples: dict[str, Any] = {"int": 7, "float": 0.25, "str": "text", "bool": True, "JsonObject": {"a": [1, None]}}
    for declared in fields(node):
        if declared.name not in ("session_key", "session_id", "epoch"):
            setattr(node, declared.name, samples[str(declared.type).split(" | ")[0]])
    return node


# --- bytes on disk ---------------------------------------------------------------------------------------------------


def tree(root: str | Path, *, stamps: bool = False) -> dict[str, object]:
    """Return path → content of everything below *root* (None for a directory), with mode and time if asked for."""
    found: dict[str, object] = {}
    for directory, subdirs, names in os.walk(root):
        for name in (*subdirs, *names):
            path = Path(directory, name)
            content = path.read_bytes() if path.is_file() else None
            status = path.lstat()
            found[str(path.relative_to(root))] = (
                (content, status.st_mode, status.st_mtime_ns, status.st_ino) if stamps else content
            )
    return found


def kept(root: str | Path) -> dict[str, object]:
    """Return what `tree` does, but for the lock files, which any writer touches."""
    return {path: content for path, content in tree(root).items() if not path.endswith(".lock")}


def logs(root: str | Path) -> list[Path]:
    """Return the paths of all logs of a store, sealed ones included."""
    return sorted(Path(root).rglob("transcript.*.jsonl"))


def records(root: str | Path) -> list[dict[str, Any]]:
    """Return what stands in all logs of a store, line by line."""
    return [json.loads(line) for path in logs(root) for line in path.read_text(encoding="utf-8").splitlines()]


# --- every public method ---------------------------------------------------------------------------------------------

# These take no key that an application gives, or belong to the machinery, whose keys are canonical already.
_MACHINERY = frozenset({*vars(Engine), "open", "find_key", "read_named", "change_named"})
ENDLESS = frozenset({"watch"})
"""Methods that, called as they should be, wait for what others do."""

_KEY_NAMES = ("session_key", "parent_key", "key")


def _arguments(key: str, session_id: str) -> dict[str, Any]:
    node = SessionNode(session_key=key, session_id=session_id)
    return {
        "node": node,
        "child": node,
        "entry": entry(node, "text"),
        "entries": [],
        "summary": summary(node, "text"),
        "state": state(node),
        "context_states": None,
        "commit": CompactionCommit(preimage=None, kept=()),
        "session_id": session_id,
        "session_ids": [session_id],
        "message_id": "no-such-message",
        "before_message_id": None,
        "max_fork_tokens": None,
        "compaction_id": "no-such-compaction",
        "summary_id": 1,
        "change": lambda _: {},
        "fields": {},
        "counters": {},
        "query": "word",
        "limit": 1,
        "n": 1,
        "max_messages": 1,
        "max_age_ms": 10**12,
        "reason": "reason",
        "status": "done",
        **dict.fromkeys(_KEY_NAMES, key),
    }


def public_methods(*, with_key: bool) -> list[str]:
    """Return the names of a store's public methods; *with_key*: of those that are told a session key."""
    found = []
    for name, method in inspect.getmembers(SessionStorage, callable):
        if name.startswith("_") or name in _MACHINERY:
            continue
        if not (inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method)):
            continue
        names = inspect.signature(method).parameters
        if not with_key or {*names} & {*_KEY_NAMES, "node", "child", "entry", "summary", "state", "spawned_by"}:
            found.append(name)
    return found


def key_is_optional(name: str) -> bool:
    """Say whether a public method may be called without a key, and then means every session."""
    parameters = inspect.signature(getattr(SessionStorage, name)).parameters
    told = [parameters[each].default for each in (*_KEY_NAMES, "spawned_by") if each in parameters]
    return told == [None]


def _chosen(method: Callable[..., Any], given: dict[str, Any], optional: Iterable[str]) -> dict[str, Any]:
    parameters = inspect.signature(method).parameters.values()
    wanted = [p.name for p in parameters if p.default is p.empty or p.name in optional]
    return {name: given[name] for name in wanted}


async def call(store: SessionStorage, name: str, key: str = KEY, session_id: str = "no-such-session") -> Any:
    """Call a public method with arguments that make sense, its key being *key*; return what it returns or yields."""
    method = getattr(store, name)
    given = {**_arguments(key, session_id), "spawned_by": key}
    result = method(**_chosen(method, given, ("spawned_by", "session_key", "key")))
    if isinstance(result, AsyncIterator):
        return [item async for item in result]
    return await result
