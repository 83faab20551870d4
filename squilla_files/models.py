"""The records of a session, each field declared once.

Everything that stores, compares, folds or shows a record walks these declarations (`dataclasses.fields`), so that a
field that is added here is stored, merged, exported and shown without another line of code. Times are milliseconds
since the Unix epoch, UTC. Records are mutable and compare by value; nothing that is done to one touches the store until
it is handed to a method that writes.
"""

from __future__ import annotations

import os
from dataclasses import MISSING, Field, dataclass, field, fields
from enum import Enum, StrEnum
from types import MappingProxyType, NoneType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Never, TypeAlias, TypeVar, get_args, get_type_hints

from squilla_files.clock import now_ms

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

JsonValue: TypeAlias = "dict[str, JsonValue] | list[JsonValue] | str | int | float | bool | None"
"""What JSON can hold."""

JsonObject: TypeAlias = dict[str, Any]
"""A JSON object whose shape belongs to the application, or to the maker of a model."""

COUNTER: Final[Mapping[str, bool]] = MappingProxyType({"counter": True})
"""Marks a field that the store adds up from every record, instead of letting the last one win."""


class Choice(StrEnum):
    """One of several words."""

    @classmethod
    def _missing_(cls, value: object) -> Never:
        raise ValueError(f"{value!a:.40} is no {cls.__name__}: it is one of {', '.join(cls)}")


class SessionStatus(Choice):
    """Where a session stands; every one but ``running`` is final."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    KILLED = "killed"
    TIMEOUT = "timeout"


class SessionIntent(Choice):
    """What a caller wants to happen to the session under a key."""

    CONTINUE = "continue"
    NEW_CHAT = "new_chat"
    RESET_SAME_KEY = "reset_same_key"


class ChatType(Choice):
    """What kind of conversation a session holds."""

    DIRECT = "direct"
    GROUP = "group"
    CHANNEL = "channel"
    UNKNOWN = "unknown"


class QueueMode(Choice):
    """What happens to input that arrives while the agent is at work."""

    STEER = "steer"
    FOLLOWUP = "followup"
    COLLECT = "collect"
    STEER_BACKLOG = "steer-backlog"
    STEER_PLUS_BACKLOG = "steer+backlog"
    QUEUE = "queue"
    INTERRUPT = "interrupt"


class SendPolicy(Choice):
    """Whether the agent may send into the conversation."""

    ALLOW = "allow"
    DENY = "deny"


class InputProvenanceKind(Choice):
    """Where an input came from."""

    EXTERNAL_USER = "external_user"
    INTER_SESSION = "inter_session"
    INTERNAL_SYSTEM = "internal_system"


_VARIANT: Final = dict(zip("0123456789abcdef", "89ab" * 4, strict=True))


def new_id() -> str:
    """Return a new random identity: the text of a UUID, version 4 (RFC 9562, section 5.4)."""
    # Formatted here, because the standard library's UUID object costs several times as much as the random bytes.
    digits = os.urandom(16).hex()
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{_VARIANT[digits[16]]}{digits[17:20]}-{digits[20:]}"


class Record:
    """What all records can do."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def model_dump(self, *, mode: Literal["json", "python"] = "python") -> dict[str, Any]:
        """Return the fields as a plain dict, in the order in which they are declared.

        Args:
            mode: ``"json"`` gives plain strings for enums and copies of lists and objects, so that the result shares
                nothing with the record; ``"python"`` gives the values as they are.
        """
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        if mode == "python":
            return values
        return {
            name: value if value is None or type(value) in _ATOMS else _plain(value) for name, value in values.items()
        }


_ATOMS: Final = frozenset({str, int, float, bool})


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value.value if isinstance(value, Enum) else value


@dataclass(kw_only=True)
class SessionNode(Record):
    """A session: whose conversation it is, how it runs, and what it has used."""

    session_key: str  #: the canonical key
    session_id: str = field(default_factory=new_id)  #: UUID of the present generation; a reset gives another

    created_at: int = field(default_factory=now_ms)  #: ms
    updated_at: int = field(default_factory=now_ms)  #: ms; the age by which sessions are listed and pruned
    started_at: int | None = None  #: ms; when it began to run
    ended_at: int | None = None  #: ms; when it was finished
    runtime_ms: int | None = None  #: from start to end

    last_channel: str | None = None  #: routing: the channel that was last used
    last_to: str | None = None  #: routing: the recipient that was last written to
    last_account_id: str | None = None  #: routing: the account that was last used
    last_thread_id: str | None = None  #: routing: the thread that was last used
    delivery_context: JsonObject | None = None  #: routing: what else the channel needs for an answer

    model: str | None = None  #: the model that answers
    model_provider: str | None = None  #: who runs it
    provider_override: str | None = None  #: the provider that the user chose instead
    model_override: str | None = None  #: the model that the user chose instead
    auth_profile_override: str | None = None  #: the credentials' profile to use instead
    auth_profile_override_source: str | None = None  #: who chose that profile
    context_tokens: int | None = None  #: size of the context, in tokens, as last seen

    input_tokens: int = field(default=0, metadata=COUNTER)  #: tokens sent
    output_tokens: int = field(default=0, metadata=COUNTER)  #: tokens received
    total_tokens: int = field(default=0, metadata=COUNTER)  #: tokens altogether
    total_tokens_fresh: bool = False  #: whether ``total_tokens`` is what the provider last reported
    estimated_cost_usd: float = field(default=0.0, metadata=COUNTER)  #: US dollars, for display
    total_cost_usd: float = field(default=0.0, metadata=COUNTER)  #: US dollars, billed and estimated
    billed_cost_usd: float = field(default=0.0, metadata=COUNTER)  #: US dollars that the provider billed
    estimated_cost_component_usd: float = field(default=0.0, metadata=COUNTER)  #: US dollars that are estimates
    cost_source: str = "none"  #: provider_billed, opensquilla_estimate, unavailable, mixed or none
    missing_cost_entries: int = field(default=0, metadata=COUNTER)  #: turns whose cost is not known
    cache_read: int = field(default=0, metadata=COUNTER)  #: tokens read from the provider's cache
    cache_write: int = field(default=0, metadata=COUNTER)  #: tokens written to the provider's cache

    compaction_count: int = field(default=0, metadata=COUNTER)  #: compactions since the last reset

    session_file: str | None = None  #: a file that the application keeps for the session
    spawned_by: str | None = None  #: key of the session that started this one
    parent_session_key: str | None = None  #: key of the session that this one branched from
    forked_from_parent: bool = False  #: whether the parent's transcript was taken along
    spawn_depth: int = 0  #: sessions above this one
    status: str = SessionStatus.RUNNING  #: a `SessionStatus`

    chat_type: str = ChatType.UNKNOWN  #: a `ChatType`
    thinking_level: str | None = None  #: how hard the model shall think
    fast_mode: bool = False  #: whether speed goes first
    verbose_level: str | None = None  #: how much the agent tells of its work
    reasoning_level: str | None = None  #: how much of the reasoning is shown
    send_policy: str = SendPolicy.ALLOW  #: a `SendPolicy`
    queue_mode: str = QueueMode.STEER  #: a `QueueMode`

    label: str | None = None  #: a name that the user gave
    display_name: str | None = None  #: a name to show
    derived_title: str | None = None  #: a title made from the content
    channel: str | None = None  #: the channel that the session belongs to
    group_id: str | None = None  #: the group that the session belongs to
    subject: str | None = None  #: what the conversation is about

    origin: JsonObject | None = None  #: how the session came to be
    agent_id: str = "main"  #: the agent that the session belongs to
    schema_version: int = 1  #: version of this record's shape
    epoch: int = 0  #: fences writers; only grows


@dataclass(kw_only=True)
class TranscriptEntry(Record):
    """One message of a transcript."""

    id: int | None = None  #: grows within what one device writes; set by the append
    session_id: str  #: UUID of a generation of the session
    session_key: str  #: the session's canonical key
    message_id: str = field(default_factory=new_id)  #: identity of the message on every device
    role: str  #: user, assistant, system or tool
    content: JsonValue = None  #: the text, or blocks as JSON
    tool_calls: list[JsonObject] | None = None  #: the tools that an assistant calls
    tool_call_id: str | None = None  #: the call that a tool's result answers
    reasoning_content: str | None = None  #: what an assistant thought
    turn_usage: JsonObject | None = None  #: tokens and cost of the turn
    created_at: int = field(default_factory=now_ms)  #: ms; orders nothing
    token_count: int | None = None  #: tokens of the entry, where known
    provenance_kind: str | None = None  #: an `InputProvenanceKind`
    provenance_origin_session_id: str | None = None  #: the session in which the input arose
    provenance_source_session_key: str | None = None  #: the session that handed it on
    provenance_source_channel: str | None = None  #: the channel that handed it on
    provenance_source_tool: str | None = None  #: the tool that handed it on
    schema_version: int = 1  #: version of this record's shape


@dataclass(kw_only=True)
class SessionSummary(Record):
    """What a compaction put in the place of the entries that it archived."""

    id: int | None = None  #: unique in the store; set when it is saved
    session_id: str  #: UUID of a generation of the session
    session_key: str  #: the session's canonical key
    compaction_index: int = 0  #: 0, 1, 2 … per session
    compaction_id: str | None = None  #: the application's name for the compaction
    trigger_reason: str | None = None  #: why it was made
    summary_text: str = ""  #: the summary for people and models
    summary_payload: JsonObject | None = None  #: the summary as a structure
    summary_format: str = "text"  #: ``text`` or ``structured_v1``
    summary_source: str = "unknown"  #: llm, fallback, mixed, skipped or unknown
    coverage_status: str = "unknown"  #: whether the facts that must survive did
    missing_obligations: list[str] | None = None  #: facts that the text lacks, as ``kind: value``
    critical_carry_forward: list[str] | None = None  #: those of them that the payload carries
    tokens_before: int | None = None  #: tokens of the live transcript before
    tokens_after: int | None = None  #: tokens of the summary and what was kept
    removed_count: int = 0  #: entries archived
    kept_count: int = 0  #: entries that stayed live
    chunk_count: int = 0  #: pieces that were summarised
    flush_receipt_status: str = "unknown"  #: whether the application's memory took over what was archived
    covered_through_id: int = 0  #: highest ``id`` of the entries archived
    created_at: int = field(default_factory=now_ms)  #: ms
    schema_version: int = 1  #: version of this record's shape


@dataclass(kw_only=True)
class SessionContextState(Record):
    """A state of the context that a provider, or any model, can go on from."""

    id: int | None = None  #: unique in the store; set when it is saved
    session_id: str  #: UUID of a generation of the session
    session_key: str  #: the session's canonical key
    provider: str = "portable"  #: who can read it; ``portable`` is anyone
    model: str | None = None  #: the model that it is for
    state_kind: str  #: what kind of state the payload is
    payload: JsonObject | None = None  #: the state itself
    covered_through_id: int = 0  #: highest ``id`` of the entries that it stands for
    created_at: int = field(default_factory=now_ms)  #: ms
    expires_at: int | None = None  #: ms; the application looks at it, the store does not
    portable: bool = False  #: whether other models can use it
    cacheable: bool = False  #: whether a provider may cache it
    valid: bool = True  #: false once it was invalidated
    invalid_reason: str | None = None  #: why it was
    schema_version: int = 1  #: version of this record's shape


_R = TypeVar("_R", bound=Record)


SESSION_COUNTERS: Final = frozenset(f.name for f in fields(SessionNode) if f.metadata.get("counter"))
"""The fields of a session that add up over the records of a generation."""

SESSION_FIELDS: Final = frozenset(f.name for f in fields(SessionNode)) - SESSION_COUNTERS - {"session_key", "epoch"}
"""The fields of a session in which the last record wins."""


_SCALARS: Final = (str, int, float, bool)
_SCALAR_FIELDS: Final[Mapping[str, tuple[type, ...]]] = MappingProxyType(
    {
        name: tuple(kind for kind in (get_args(hint) or (hint,)) if isinstance(kind, type))
        for name, hint in get_type_hints(SessionNode).items()
        if any(kind in _SCALARS for kind in (get_args(hint) or (hint,)))
    }
)


def misfit(name: str, value: object) -> str | None:
    """Return what a field of a session must be where *value* is none of it, else None.

    Numbers pass for each other. Objects, whose shape is the application's, are not looked at.
    """
    kinds = _SCALAR_FIELDS.get(name)
    if kinds is None:
        return None
    if type(value) is bool:
        fits = bool in kinds
    elif isinstance(value, int | float):
        fits = int in kinds or float in kinds
    else:
        fits = isinstance(value, kinds)
    return None if fits else " or ".join("None" if kind is NoneType else kind.__name__ for kind in kinds)


def _stored_default(declared: Field[Any]) -> Any:
    if declared.default is not MISSING:
        return declared.default
    return 0 if declared.default_factory is now_ms else ""


STORED_DEFAULTS: Final[Mapping[type[Record], dict[str, Any]]] = MappingProxyType(
    {
        cls: {f.name: _stored_default(f) for f in fields(cls)}
        for cls in (SessionNode, TranscriptEntry, SessionSummary, SessionContextState)
    }
)
"""By kind of record: the value that each field has where a stored record does not name it.

An identity or a time that is given to a new record is not made up for a stored one, for then two reads of the same
bytes would differ: it is ``""`` or 0 here. So is a field that a new record must be given.
"""


def load(cls: type[_R], stored: Mapping[str, Any]) -> _R:
    """Build a record from what is stored of it.

    Names that are unknown are ignored, fields that are missing have their stored default. Lists and objects are not
    copied: they are shared with *stored*.
    """
    values = STORED_DEFAULTS[cls].copy()
    for name in stored:
        if name in values:
            values[name] = stored[name]
    # Without __init__, which would draw an identity and ask the clock for every entry of a transcript.
    record = object.__new__(cls)
    record.__dict__ = values
    return record


# A field with a plain default need not be set on an instance: it is found on the class. These three have none there.
_ENTRY_UNSET: Final = {"message_id": "", "role": "", "created_at": 0}
_ENTRY_NAMES: Final = STORED_DEFAULTS[TranscriptEntry].keys()
# What else a line of a log may say: it belongs to the session, not to the entry.
_OF_THE_LINE: Final = ("epoch", "generation", "set", "add")


def adopt_entries(
    stored: Sequence[dict[str, Any]], identifiers: Iterable[int], session_id: str, session_key: str
) -> list[TranscriptEntry]:
    """Make the objects of lines entries, as `load` would: in half a microsecond each, for a read makes thousands.

    The objects become the entries' own and must not be used any more.

    Args:
        stored: the objects.
        identifiers: the `id` of each.
        session_id: that of all.
        session_key: that of all.
    """
    made: list[TranscriptEntry] = []
    construct = object.__new__
    for values, identifier in zip(stored, identifiers, strict=True):
        values.pop("type", None)
        values.pop("after", None)
        values["id"] = identifier
        values["session_id"] = session_id
        values["session_key"] = session_key
        if not values.keys() <= _ENTRY_NAMES:
            for name in _OF_THE_LINE:
                values.pop(name, None)
            if not values.keys() <= _ENTRY_NAMES:
                values = {name: value for name, value in values.items() if name in _ENTRY_NAMES}
        if "message_id" not in values or "role" not in values or "created_at" not in values:
            values = _ENTRY_UNSET | values
        entry = construct(TranscriptEntry)
        entry.__dict__ = values
        made.append(entry)
    return made
