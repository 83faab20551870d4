from __future__ import annotations

import json
import uuid
from dataclasses import fields
from typing import Any

import pytest

from squilla_files.clock import now_ms
from squilla_files.models import (
    SESSION_COUNTERS,
    SESSION_FIELDS,
    STORED_DEFAULTS,
    ChatType,
    InputProvenanceKind,
    QueueMode,
    Record,
    SendPolicy,
    SessionContextState,
    SessionIntent,
    SessionNode,
    SessionStatus,
    SessionSummary,
    TranscriptEntry,
    adopt_entries,
    load,
    new_id,
)

NODE_DEFAULTS: dict[str, Any] = {
    "started_at": None, "ended_at": None, "runtime_ms": None,
    "last_channel": None, "last_to": None, "last_account_id": None, "last_thread_id": None, "delivery_context": None,
    "model": None, "model_provider": None, "provider_override": None, "model_override": None,
    "auth_profile_override": None, "auth_profile_override_source": None, "context_tokens": None,
    "input_tokens": 0, "output_tokens": 0, "total_tokens": 0, "total_tokens_fresh": False,
    "estimated_cost_usd": 0.0, "total_cost_usd": 0.0, "billed_cost_usd": 0.0, "estimated_cost_component_usd": 0.0,
    "cost_source": "none", "missing_cost_entries": 0, "cache_read": 0, "cache_write": 0, "compaction_count": 0,
    "session_file": None, "spawned_by": None, "parent_session_key": None, "forked_from_parent": False,
    "spawn_depth": 0, "status": "running", "chat_type": "unknown", "thinking_level": None, "fast_mode": False,
    "verbose_level": None, "reasoning_level": None, "send_policy": "allow", "queue_mode": "steer",
    "label": None, "display_name": None, "derived_title": None, "channel": None, "group_id": None, "subject": None,
    "origin": None, "agent_id": "main", "schema_version": 1, "epoch": 0,
}  # fmt: skip
ENTRY_DEFAULTS: dict[str, Any] = {
    "id": None, "content": None, "tool_calls": None, "tool_call_id": None, "reasoning_content": None,
    "turn_usage": None, "token_count": None, "provenance_kind": None, "provenance_origin_session_id": None,
    "provenance_source_session_key": None, "provenance_source_channel": None, "provenance_source_tool": None,
    "schema_version": 1,
}  # fmt: skip
SUMMARY_DEFAULTS: dict[str, Any] = {
    "id": None, "compaction_index": 0, "compaction_id": None, "trigger_reason": None, "summary_text": "",
    "summary_payload": None, "summary_format": "text", "summary_source": "unknown", "coverage_status": "unknown",
    "missing_obligations": None, "critical_carry_forward": None, "tokens_before": None, "tokens_after": None,
    "removed_count": 0, "kept_count": 0, "chunk_count": 0, "flush_receipt_status": "unknown",
    "covered_through_id": 0, "schema_version": 1,
}  # fmt: skip
STATE_DEFAULTS: dict[str, Any] = {
    "id": None, "provider": "portable", "model": None, "payload": None, "covered_through_id": 0, "expires_at": None,
    "portable": False, "cacheable": False, "valid": True, "invalid_reason": None, "schema_version": 1,
}  # fmt: skip

REQUIRED: dict[type[Record], dict[str, Any]] = {
    SessionNode: {"session_key": "k"},
    TranscriptEntry: {"session_id": "s", "session_key": "k", "role": "user"},
    SessionSummary: {"session_id": "s", "session_key": "k"},
    SessionContextState: {"session_id": "s", "session_key": "k", "state_kind": "x"},
}
DEFAULTS: dict[type[Record], dict[str, Any]] = {
    SessionNode: NODE_DEFAULTS,
    TranscriptEntry: ENTRY_DEFAULTS,
    SessionSummary: SUMMARY_DEFAULTS,
    SessionContextState: STATE_DEFAULTS,
}
GIVEN_AT_CREATION = {"session_id", "message_id", "created_at", "updated_at"}

every_record = pytest.mark.parametrize("cls", list(REQUIRED), ids=lambda cls: cls.__name__)


def make(cls: type[Record], **values: Any) -> Any:
    return cls(**{**REQUIRED[cls], **values})


class TestDeclarations:
    @every_record
    def test_every_field_has_the_promised_default(self, cls: type[Record]) -> None:
        dumped = make(cls).model_dump()
        promised = DEFAULTS[cls] | REQUIRED[cls]
        assert {name: dumped[name] for name in dumped if name not in GIVEN_AT_CREATION or name in promised} == promised
        for name, default in DEFAULTS[cls].items():
            assert isinstance(dumped[name], type(default)), name

    @every_record
    def test_records_are_built_by_the_names_of_their_fields(self, cls: type[Record]) -> None:
        construct: Any = cls
        with pytest.raises(TypeError, match="positional"):
            construct(*REQUIRED[cls].values())
        with pytest.raises(TypeError, match="missing"):
            construct()
        with pytest.raises(TypeError, match="no_such_field"):
            construct(**REQUIRED[cls], no_such_field=1)

    @every_record
    def test_records_with_the_same_values_are_equal_and_can_change(self, cls: type[Record]) -> None:
        ids = {name: "i" for name in ("message_id",) if cls is TranscriptEntry} | {"session_id": "s"}
        times = {name: 5 for name in ("created_at", "updated_at") if name in {f.name for f in fields(cls)}}
        one, other = make(cls, **ids, **times), make(cls, **ids, **times)
        assert one == other
        one.schema_version = 9
        assert one != other

    def test_a_record_never_equals_one_of_another_kind(self) -> None:
        assert make(SessionSummary, created_at=1) != make(SessionContextState, created_at=1)

    def test_a_new_session_and_a_new_message_have_an_identity_of_their_own(self) -> None:
        for record, name in ((SessionNode, "session_id"), (TranscriptEntry, "message_id")):
            one, other = getattr(make(record), name), getattr(make(record), name)
            assert one != other
            assert uuid.UUID(one).version == 4

    @every_record
    def test_a_new_record_bears_the_time_of_its_making(self, cls: type[Record]) -> None:
        before = now_ms()
        record = make(cls)
        assert before <= record.created_at <= now_ms()

    def test_a_message_keeps_the_identity_that_it_is_given(self) -> None:
        assert make(TranscriptEntry, message_id="m-1").message_id == "m-1"

    def test_enums_are_strings_with_the_promised_values(self) -> None:
        promised = {
            SessionStatus: "running done failed killed timeout",
            SessionIntent: "continue new_chat reset_same_key",
            ChatType: "direct group channel unknown",
            QueueMode: "steer followup collect steer-backlog steer+backlog queue interrupt",
            SendPolicy: "allow deny",
            InputProvenanceKind: "external_user inter_session internal_system",
        }
        for enum, values in promised.items():
            assert [member.value for member in enum] == values.split()
            assert all(isinstance(member, str) and str(member) == member.value for member in enum)


class TestIdentities:
    def test_an_identity_is_the_text_of_a_uuid_of_version_4(self) -> None:
        identities = {new_id() for _ in range(500)}
        assert len(identities) == 500
        for identity in identities:
            parsed = uuid.UUID(identity)
            assert str(parsed) == identity
            assert (parsed.version, parsed.variant) == (4, uuid.RFC_4122)

    def test_all_four_variant_digits_occur(self) -> None:
        assert {new_id()[19] for _ in range(500)} == set("89ab")


class TestCounters:
    def test_tokens_costs_and_compactions_add_up(self) -> None:
        promised = """input_tokens output_tokens total_tokens estimated_cost_usd total_cost_usd billed_cost_usd
            estimated_cost_component_usd missing_cost_entries cache_read cache_write compaction_count"""
        assert set(promised.split()) == SESSION_COUNTERS

    def test_every_other_field_can_be_set_but_the_key_and_the_epoch(self) -> None:
        every_name = {declared.name for declared in fields(SessionNode)}
        assert SESSION_FIELDS | SESSION_COUNTERS | {"session_key", "epoch"} == every_name
        assert not SESSION_FIELDS & SESSION_COUNTERS
        assert not SESSION_FIELDS & {"session_key", "epoch"}
        assert {"total_tokens_fresh", "context_tokens", "cost_source", "session_id", "updated_at"} <= SESSION_FIELDS


class TestDump:
    @every_record
    @pytest.mark.parametrize("mode", ["json", "python"])
    def test_a_dump_has_every_field_in_the_declared_order(self, cls: type[Record], mode: Any) -> None:
        record = make(cls)
        record.schema_version = record.__dict__.pop("schema_version")
        record.not_a_field = 1
        assert list(record.model_dump(mode=mode)) == [declared.name for declared in fields(cls)]

    def test_a_json_dump_has_plain_strings_for_enums_however_deep(self) -> None:
        dumped = make(
            SessionNode, status=SessionStatus.DONE, origin={"policy": [SendPolicy.DENY], ChatType.DIRECT: 1}
        ).model_dump(mode="json")
        assert type(dumped["status"]) is str
        assert type(dumped["chat_type"]) is str
        assert type(dumped["origin"]["policy"][0]) is str
        assert [type(key) for key in dumped["origin"]] == [str, str]
        assert dumped["origin"] == {"policy": ["deny"], "direct": 1}
        assert json.loads(json.dumps(dumped)) == dumped

    def test_a_json_dump_shares_nothing_with_the_record(self) -> None:
        entry = make(TranscriptEntry, tool_calls=[{"id": "c", "arguments": {"a": [1]}}])
        dumped = entry.model_dump(mode="json")
        dumped["tool_calls"][0]["arguments"]["a"].append(2)
        assert entry.tool_calls == [{"id": "c", "arguments": {"a": [1]}}]

    @every_record
    def test_a_dump_builds_an_equal_record(self, cls: type[Record]) -> None:
        record = make(cls)
        for dumped in (record.model_dump(), record.model_dump(mode="json")):
            assert cls(**dumped) == record
            assert load(cls, dumped) == record


class TestLoad:
    @every_record
    def test_missing_names_have_their_defaults(self, cls: type[Record]) -> None:
        loaded: Any = load(cls, {"schema_version": 3})
        assert type(loaded) is cls
        for name, default in DEFAULTS[cls].items():
            assert getattr(loaded, name) == (3 if name == "schema_version" else default)

    @every_record
    def test_unknown_names_are_ignored(self, cls: type[Record]) -> None:
        loaded = load(cls, {"type": "message", "after": "m", "model_dump": 1, "__class__": 2})
        assert loaded == load(cls, {})
        assert vars(loaded) == STORED_DEFAULTS[cls]

    @every_record
    def test_two_loads_of_the_same_are_equal_and_share_no_state(self, cls: type[Record]) -> None:
        one: Any = load(cls, {})
        assert one == load(cls, {})
        one.session_key = "changed"
        assert one != load(cls, {})

    def test_no_identity_and_no_time_is_made_up_for_a_stored_record(self) -> None:
        entry = adopt_entries([{"role": "user"}], [1], "", "")[0]
        assert (entry.message_id, entry.created_at) == ("", 0)
        node = load(SessionNode, {})
        assert (node.session_key, node.session_id, node.created_at, node.updated_at) == ("", "", 0, 0)

    def test_an_entry_is_built_from_a_line_of_a_log(self) -> None:
        line = {"type": "message", "id": 4, "message_id": "c3", "after": "b2", "role": "tool", "tool_call_id": "c-1"}
        assert adopt_entries([line], [9], "s", "k")[0] == TranscriptEntry(
            id=9, session_id="s", session_key="k", message_id="c3", role="tool", tool_call_id="c-1", created_at=0
        )

    def test_an_entry_of_a_line_is_what_load_makes_of_it(self) -> None:
        line = {"type": "message", "message_id": "m", "role": "user", "unknown": 1, "set": {}, "content": "hi"}
        loaded = load(TranscriptEntry, {**line, "id": 3, "session_id": "s", "session_key": "k"})
        adopted = adopt_entries([dict(line)], [3], "s", "k")[0]
        assert adopted == loaded
        assert adopted.model_dump(mode="json") == loaded.model_dump(mode="json")
        assert "unknown" not in vars(adopted)

    def test_what_is_loaded_from_an_entry_equals_one_that_was_constructed(self) -> None:
        entry = make(TranscriptEntry, content=[{"type": "text", "text": "hi"}], turn_usage={"input": 3})
        assert load(TranscriptEntry, vars(entry)) == entry
        assert load(TranscriptEntry, entry.model_dump()) is not entry


def test_a_word_that_is_none_of_the_choices_is_refused_with_all_of_them() -> None:
    with pytest.raises(ValueError, match="no SessionIntent: it is one of continue, new_chat, reset_same_key"):
        SessionIntent("reset")
