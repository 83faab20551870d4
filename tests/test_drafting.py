"""Records on their way into a log: members, ids, links, and amounts that give just what was wanted."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from written import call, head, line, message, read, result

from squilla_files.codec import decode_line, encode_line
from squilla_files.drafting import (
    ENTRY_MEMBERS,
    Draft,
    counter_changes,
    counter_difference,
    creation_members,
    entry_members,
    field_changes,
    node_fields,
    same_message,
)
from squilla_files.errors import UnstorableTypeError, UnstorableValueError
from squilla_files.models import SESSION_COUNTERS, SessionNode, SessionStatus, TranscriptEntry, adopt_entries
from squilla_files.timeline import Timeline, total

CREATED = line("session", 1, record="made", event="created", set={"session_id": "s"})


def entry(**fields: Any) -> TranscriptEntry:
    values: dict[str, Any] = {"message_id": "m", "role": "user", "content": "text", "created_at": 5, **fields}
    return TranscriptEntry(session_id="s", session_key="k", **values)


# --- members ---------------------------------------------------------------------------------------------------------


def test_members_stand_in_their_order_with_the_large_ones_last() -> None:
    assert ENTRY_MEMBERS[:5] == ("message_id", "role", "tool_call_id", "tool_calls", "created_at")
    assert ENTRY_MEMBERS[-3:] == ("turn_usage", "reasoning_content", "content")
    full = entry(tool_calls=[{"id": "c"}], tool_call_id="c", reasoning_content="r", turn_usage={"a": 1}, token_count=3)
    full.provenance_kind, full.schema_version = "external_user", 2
    members = entry_members(full)
    assert list(members) == [name for name in ENTRY_MEMBERS if name in members]
    assert members["schema_version"] == 2


def test_what_has_its_default_is_left_out_but_for_what_every_message_has() -> None:
    assert entry_members(entry()) == {"message_id": "m", "role": "user", "created_at": 5, "content": "text"}
    bare = entry_members(entry(content=None, created_at=0))
    assert bare == {"message_id": "m", "role": "user", "created_at": 0, "content": None}
    assert "id" not in entry_members(entry(id=7))


def test_an_entry_that_was_read_says_what_its_line_says() -> None:
    line = {
        "type": "message",
        "id": 3,
        "message_id": "m",
        "role": "user",
        "created_at": 5,
        "content": "x",
        "after": "k",
    }
    (found,) = adopt_entries([dict(line)], [3], "s", "k")
    assert entry_members(found) == {name: line[name] for name in ("message_id", "role", "created_at", "content")}


@pytest.mark.parametrize("name", ["message_id", "role"])
@pytest.mark.parametrize("value", ["", None, 7, b"m"])
def test_a_message_without_identity_or_role_is_refused(name: str, value: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        entry_members(entry(**{name: value}))


def test_a_text_of_another_class_becomes_the_plain_text() -> None:
    members = entry_members(entry(role=SessionStatus.DONE, message_id=SessionStatus.FAILED))
    assert {name: (value, type(value)) for name, value in members.items() if name in ("role", "message_id")} == {
        "role": ("done", str),
        "message_id": ("failed", str),
    }


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"content": {1}}, UnstorableTypeError),
        ({"turn_usage": {"a": math.inf}}, UnstorableValueError),
        ({"token_count": 2**64}, UnstorableValueError),
        ({"role": "\ud800"}, UnstorableValueError),
    ],
)
def test_what_json_cannot_hold_is_refused(fields: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        entry_members(entry(**fields))


def test_a_message_is_the_stored_one_if_all_but_its_time_is_equal() -> None:
    stored = decode_line(encode_line({"type": "message", "id": 3, "after": "k", **entry_members(entry())}))
    assert stored is not None
    assert same_message(entry_members(entry(created_at=9)), stored)
    assert same_message(entry_members(entry()), {**stored, "color": "red", "tool_calls": None})
    for changed in ({"content": "other"}, {"role": "tool"}, {"token_count": 1}, {"content": ["text"]}):
        assert not same_message(entry_members(entry(**changed)), stored)
    assert not same_message(entry_members(entry(token_count=True)), {**stored, "token_count": 1})


# --- fields and counters ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["session_key", "epoch", "total_tokens", "no_such_field", "id"])
def test_only_fields_of_a_session_can_be_set(name: str) -> None:
    assert field_changes({"label": None, "origin": {"a": 1}}) == {"label": None, "origin": {"a": 1}}
    with pytest.raises(ValueError, match=name):
        field_changes({"label": "x", name: 1})


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"label": 5}, UnstorableTypeError),
        ({"started_at": "now"}, UnstorableTypeError),
        ({"label": "\ud800"}, UnstorableValueError),
        ({"origin": {"a": math.nan}}, UnstorableValueError),
    ],
)
def test_a_value_that_a_field_cannot_have_is_neither_set_nor_created(
    fields: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        field_changes(fields)
    with pytest.raises(error):
        creation_members(SessionNode(session_key="k", **fields))


def test_only_counters_can_be_raised_by_numbers_and_zero_is_left_out() -> None:
    raised = counter_changes({"total_tokens": 3, "cache_read": 0, "total_cost_usd": 0.0, "billed_cost_usd": -0.5})
    assert raised == {"total_tokens": 3, "billed_cost_usd": -0.5}
    with pytest.raises(ValueError, match="label"):
        counter_changes({"label": 1})
    for amount in ("1", None, True, [1]):
        with pytest.raises(TypeError, match="total_tokens"):
            counter_changes({"total_tokens": amount})  # type: ignore[dict-item]
    for amount in (math.nan, -math.inf, 2**64):
        with pytest.raises(UnstorableValueError):
            counter_changes({"total_cost_usd": amount})


def test_a_creation_says_what_differs_from_the_default_and_always_identity_and_status() -> None:
    node = SessionNode(session_key="k", session_id="s", created_at=0, updated_at=0)
    assert creation_members(node) == {"set": {"session_id": "s", "status": "running"}}
    node.label, node.created_at, node.total_tokens, node.epoch = "x", 7, 3, 9
    assert node_fields(node) == {"session_id": "s", "status": "running", "label": "x", "created_at": 7}
    assert creation_members(node) == {"set": node_fields(node), "add": {"total_tokens": 3}}
    assert not SESSION_COUNTERS & node_fields(node).keys()


FLOATS = st.floats(allow_nan=False, allow_infinity=False)
MONEY = st.floats(0, 100) | st.sampled_from([0.1, 0.2, 0.3, 1e-7, 0.0])
COUNTS = st.integers(-(2**53), 2**53)


@given(st.lists(FLOATS | MONEY | COUNTS, max_size=8), FLOATS | MONEY | COUNTS)
@example([0.1, 0.2], 0.0)
@example([1e17], 0.1)
@example([1e16, 1.0], 0.5)
@example([1.7e308], -1.7e308)
@example([1.7e308, 1.7e308], 0.1)
@example([1e308, 1e308], -1.7e308)
@example([5e-324, 1e300], 5e-324)
@example([3], 5)
def test_what_is_added_gives_exactly_what_was_wanted(amounts: list[Any], wanted: Any) -> None:
    added = counter_difference(wanted, amounts)
    parts = added if type(added) is list else [added]
    assert total([*amounts, *parts]) == wanted
    assert all(math.isfinite(part) for part in parts)
    assert type(added) is not list or (len(added) > 1 and all(type(part) is float for part in added))


@given(st.lists(COUNTS, max_size=5), COUNTS)
def test_integers_stay_integers(amounts: list[int], wanted: int) -> None:
    assert counter_difference(wanted, amounts) == wanted - sum(amounts)
    assert type(counter_difference(wanted, amounts)) is int


def test_one_amount_is_said_where_one_is_enough() -> None:
    assert counter_difference(0.75, [0.5]) == 0.25
    assert counter_difference(0.3, [0.1, 0.2]) == [0.3, -0.30000000000000004, 2**-55]
    assert counter_difference(0.1, [1e17]) == [0.1, -1e17]


# --- drafts ----------------------------------------------------------------------------------------------------------


def draft(*lines: bytes, device: str = "laptop", others: bytes = b"", **given: Any) -> Draft:
    files = {"own": head("L", "laptop") + CREATED + b"".join(lines)}
    if others:
        files["other"] = head("D", "desk") + others
    return Draft(read(files), device, **given)


def add(onto: Draft, message_id: str, **members: Any) -> dict[str, Any]:
    values = {"message_id": message_id, "role": "user", "content": message_id, **members}
    return onto.message(values, set_fields={}, add={})


def test_ids_follow_the_highest_one_known() -> None:
    made = draft(message(7, "a"))
    assert [add(made, "b")["id"], made.record("mood")["id"], add(made, "c")["id"]] == [8, 9, 10]
    assert [record["id"] for record in made.records] == [8, 9, 10]
    assert list(made.messages) == ["b", "c"]
    assert add(Draft(Timeline(), None), "first")["id"] == 1


def test_each_message_hangs_on_the_one_before_it() -> None:
    made = draft(message(2, "a"), message(3, "b", "a"), line("remove", 4, record="r", message_id="b"))
    assert [add(made, name)["after"] for name in "cde"] == ["a", "c", "d"]
    assert "after" not in add(draft(), "first")


def test_epoch_and_generation_are_said_where_they_are_not_the_default() -> None:
    assert {"epoch", "generation"}.isdisjoint(add(draft(), "m"))
    fenced = draft(line("session", 2, epoch=3, generation=0, record="f", event="fenced"))
    assert (add(fenced, "m")["epoch"], add(fenced, "n")["generation"]) == (3, 0)
    opened = draft(epoch=4, generation=4).record("session")
    assert opened["epoch"] == 4
    assert "generation" not in opened
    assert draft(epoch=0, generation=2).record("session")["generation"] == 2


def test_a_record_has_an_identity_of_its_own_and_no_members_that_are_empty_objects() -> None:
    made = draft()
    one = made.record("session", set={}, add={"total_tokens": 1}, covers=[], event="created")
    two = made.record("session")
    assert list(one) == ["type", "id", "record", "add", "covers", "event"]
    assert one["record"] != two["record"]
    assert len(one["record"]) == 16
    assert not made.messages


def test_members_of_a_line_stand_in_their_order_and_the_content_last() -> None:
    members = entry_members(entry(turn_usage={"a": 1}, token_count=3, tool_call_id="c"))
    made = draft(message(2, "a")).message(members, set_fields={"label": "x"}, add={"total_tokens": 3})
    assert list(made) == [
        "type", "id", "message_id", "after", "role", "tool_call_id", "created_at", "token_count", "set", "add",
        "turn_usage", "content",
    ]  # fmt: skip
    assert (made["set"], made["add"]) == ({"label": "x"}, {"total_tokens": 3})
    assert {"set", "add"}.isdisjoint(draft().message(members, set_fields={}, add={}))


def test_with_one_device_a_result_hangs_on_what_comes_last() -> None:
    made = draft(call(2, "ask"), message(3, "b", "ask"))
    assert not made.needs_order()
    assert add(made, "answer", role="tool", tool_call_id="c")["after"] == "b"
    assert add(made, "next")["after"] == "answer"
    assert made.settled


def two_devices(*lines: bytes, others: bytes) -> Draft:
    made = draft(*lines, others=others)
    assert made.needs_order()
    return made


def test_with_two_a_result_hangs_on_the_run_of_its_call_and_what_follows_on_the_end() -> None:
    made = two_devices(call(2, "ask"), others=message(3, "theirs", "ask"))
    assert made.settled
    assert add(made, "answer", role="tool", tool_call_id="c")["after"] == "ask"
    assert not made.settled
    assert add(made, "next")["after"] == "theirs"
    assert made.place({"tool_call_id": None}) == "next"


def test_a_further_result_hangs_on_those_that_are_there() -> None:
    made = two_devices(call(2, "ask", calls=("c", "d")), result(3, "one", "ask"), others=message(3, "theirs", "ask"))
    assert made.place({"tool_call_id": "d"}) == "one"


def test_the_call_is_the_last_one_with_the_id_that_was_not_removed() -> None:
    mine = [call(2, "ask"), result(3, "one", "ask"), message(4, "end", "one")]
    theirs = call(6, "again", "one")
    assert two_devices(*mine, others=theirs).place({"tool_call_id": "c"}) == "again"
    removed = line("remove", 7, record="r", message_id="again")
    assert two_devices(*mine, removed, others=theirs).place({"tool_call_id": "c"}) == "end"


def test_a_result_without_a_call_hangs_on_what_comes_last() -> None:
    made = two_devices(message(2, "a"), others=message(3, "theirs", "a"))
    assert made.place({"tool_call_id": "unknown"}) == "theirs"


def test_what_another_device_alone_wrote_needs_the_order_and_nothing_at_all_does_not() -> None:
    assert draft(others=message(2, "theirs")).needs_order()
    assert not draft().needs_order()
    assert draft(message(2, "mine"), device="desk").needs_order()
