"""Session keys: one spelling for each, builders for the usual ones, and what a key tells.

    agent:AGENT:main                            an agent's main conversation
    agent:AGENT:webchat:default                 its web chat
    agent:AGENT:[CHANNEL:[ACCOUNT:]]direct:PEER a direct conversation, as far as the scope tells them apart
    agent:AGENT:CHANNEL:group:PEER              a group, or with `channel` a channel
    …:thread:THREAD                             a thread of any of these; `topic` on Telegram
    agent:AGENT:subagent:RUN, subagent:KEY      a subagent at work
    cron:NAME:run:RUN                           one run of a scheduled task

Any other text is a key, too. A canonical key is its own canonical form, whatever was given.
"""

from __future__ import annotations

import re
from enum import StrEnum
from functools import lru_cache
from typing import Final, Literal

from squilla_files.errors import InvalidKeyError

MAX_KEY_CHARACTERS: Final = 512
"""The longest key, counted in Unicode characters of its canonical form."""

_MAX_ID_CHARACTERS: Final = 64
_NOT_IN_IDS: Final = re.compile(r"[^a-z0-9_-]")
# Names that JavaScript objects inherit: a web client that keys an object by account would be led astray by them.
_INHERITED_NAMES: Final = frozenset({"__proto__", "constructor", "prototype", "hasownproperty"})
_DISCORD_CHANNEL: Final = re.compile(r":discord:(?:[^:]+:)?guild-[^:]+:channel-[^:]")


class DmScope(StrEnum):
    """What tells two direct conversations with one agent apart."""

    MAIN = "main"
    PER_PEER = "per_peer"
    PER_CHANNEL_PEER = "per_channel_peer"
    PER_ACCOUNT_CHANNEL_PEER = "per_account_channel_peer"


class PeerKind(StrEnum):
    """What stands at the other end of a conversation."""

    DIRECT = "direct"
    GROUP = "group"
    CHANNEL = "channel"


def canonicalize_session_key(key: str) -> str:
    """Return the one spelling of *key* under which its session is stored.

    Surrounding space goes away, the agent's id is normalised, ``webchat:default`` is the main agent's web chat. Nothing
    else of the key changes, its case least of all.

    Raises:
        InvalidKeyError: it is empty, longer than `MAX_KEY_CHARACTERS`, holds NUL or a lone surrogate, or is no string.
    """
    if not isinstance(key, str):
        raise InvalidKeyError(key, "a key is a string")
    return _canonical(key.strip())


@lru_cache(maxsize=4096)
def _canonical(key: str) -> str:
    _check(key)
    canonical = _respell(key)
    # An empty agent id becomes `main`, so that the canonical form can be the longer one.
    _check(canonical)
    return canonical


def _check(key: str) -> None:
    if not key:
        raise InvalidKeyError(key, "a key is not empty")
    if len(key) > MAX_KEY_CHARACTERS:
        raise InvalidKeyError(key, f"it has more than {MAX_KEY_CHARACTERS} characters")
    if "\0" in key:
        raise InvalidKeyError(key, "it holds a NUL character")
    try:
        key.encode()
    except UnicodeEncodeError:
        raise InvalidKeyError(key, "it holds a lone surrogate") from None


def _respell(key: str) -> str:
    if key == "webchat:default":
        return build_webchat_key("main")
    if key.startswith("subagent:agent:"):
        return build_subagent_key(_respell(key.removeprefix("subagent:")))
    if key.startswith("agent:"):
        agent_id, colon, rest = key.removeprefix("agent:").partition(":")
        return f"agent:{normalize_agent_id(agent_id)}{colon}{rest}"
    return key


def _normalize_id(text: str) -> str:
    plain = _NOT_IN_IDS.sub("-", text.lower()).strip("-")
    # A cut can bring a dash to the end; left there, the next normalisation would give another id.
    return plain[:_MAX_ID_CHARACTERS].rstrip("-")


def normalize_agent_id(agent_id: str | None) -> str:
    """Return the id in lower case, at most 64 of ``a-z 0-9 _ -``; ``main`` for an empty one and for ``default``."""
    plain = _normalize_id(agent_id or "")
    return "main" if plain in ("", "default") else plain


def normalize_account_id(account_id: str | None) -> str:
    """Return the id as `normalize_agent_id` does; ``default`` for an empty one and for names that objects inherit."""
    plain = _normalize_id(account_id or "")
    return "default" if not plain or plain in _INHERITED_NAMES else plain


def build_main_key(agent_id: str = "main") -> str:
    """Return the key of an agent's main conversation."""
    return f"agent:{normalize_agent_id(agent_id)}:main"


def build_webchat_key(agent_id: str = "main") -> str:
    """Return the key of an agent's web chat."""
    return f"agent:{normalize_agent_id(agent_id)}:webchat:default"


def build_direct_key(
    agent_id: str,
    peer_id: str,
    channel: str | None = None,
    account_id: str | None = None,
    dm_scope: DmScope | str = DmScope.MAIN,
) -> str:
    """Return the key of a direct conversation.

    Args:
        agent_id: the agent.
        peer_id: who it talks with.
        channel: over which channel; None is written ``unknown``.
        account_id: with which of its accounts; None is written ``default``.
        dm_scope: which of the three count. By default none does: all direct conversations are the main one.

    Raises:
        ValueError: there is no such scope.
    """
    agent = f"agent:{normalize_agent_id(agent_id)}"
    match DmScope(dm_scope):
        case DmScope.MAIN:
            return build_main_key(agent_id)
        case DmScope.PER_PEER:
            return f"{agent}:direct:{peer_id}"
        case DmScope.PER_CHANNEL_PEER:
            return f"{agent}:{channel or 'unknown'}:direct:{peer_id}"
        case DmScope.PER_ACCOUNT_CHANNEL_PEER:
            return f"{agent}:{channel or 'unknown'}:{normalize_account_id(account_id)}:direct:{peer_id}"


def build_group_key(agent_id: str, channel: str, peer_id: str) -> str:
    """Return the key of a group on a channel."""
    return f"agent:{normalize_agent_id(agent_id)}:{channel}:group:{peer_id}"


def build_channel_key(agent_id: str, channel: str, peer_id: str) -> str:
    """Return the key of a room that is a channel itself, as in Slack or Discord."""
    return f"agent:{normalize_agent_id(agent_id)}:{channel}:channel:{peer_id}"


def build_thread_key(base_key: str, thread_id: str, channel_hint: str | None = None) -> str:
    """Return the key of a thread of the conversation under *base_key*; Telegram's threads are topics."""
    return f"{base_key}:{'topic' if channel_hint == 'telegram' else 'thread'}:{thread_id}"


def parse_thread_suffix(key: str) -> tuple[str, str | None]:
    """Split what `build_thread_key` built: the base key, and the thread or None. The last marker counts."""
    marker = max((":thread:", ":topic:"), key=key.rfind)
    base_key, found, thread_id = key.rpartition(marker)
    return (base_key, thread_id) if found else (key, None)


def build_subagent_key(base_key: str) -> str:
    """Return the key of a subagent that works for the conversation under *base_key*."""
    return f"subagent:{base_key}"


def build_subagent_session_key(agent_id: str, run_id: str) -> str:
    """Return the key of one run of an agent as a subagent; the run's id is normalised like an account's."""
    return f"agent:{normalize_agent_id(agent_id)}:subagent:{normalize_account_id(run_id)}"


def build_cron_key(name: str, run_id: str) -> str:
    """Return the key of one run of a scheduled task."""
    return f"cron:{name}:run:{run_id}"


def is_subagent_key(key: str) -> bool:
    """Return whether a subagent works under *key*, in either spelling of such keys."""
    match key.strip().lower().split(":", 3):
        case ["subagent", _, *_] | ["agent", _, "subagent", _]:
            return True
    return False


def parse_agent_id(key: str) -> str:
    """Return the agent whose session *key* names, ``main`` where it names none."""
    match key.strip().removeprefix("subagent:").split(":", 2):
        case ["agent", agent_id, *_]:
            return normalize_agent_id(agent_id)
    return "main"


def derive_chat_type(key: str) -> Literal["direct", "group", "channel", "unknown"]:
    """Return which kind of conversation *key* names: the value of a `ChatType`. Case does not matter."""
    lowered = key.lower()
    if _DISCORD_CHANNEL.search(lowered):
        return "channel"
    # In this order: a direct message inside a group's thread is the group's.
    tokens: tuple[tuple[str, Literal["direct", "group", "channel"]], ...] = (
        ("group", "group"),
        ("channel", "channel"),
        ("direct", "direct"),
        ("dm", "direct"),
    )
    # With a colon behind it, `:t` at the end of the key looks like `:t:`.
    closed = f"{lowered}:"
    return next((chat_type for token, chat_type in tokens if f":{token}:" in closed), "unknown")
