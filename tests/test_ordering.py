"""The rules of FORMAT.md, "Order"."""

from __future__ import annotations

from collections import defaultdict
from random import Random
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from squilla_files.journal import MESSAGE, Log, Record
from squilla_files.ordering import Ordered, _chain, _Tree, order_entries

LOGS = {device: Log(device, device) for device in ("a", "b", "c")}


def entry(number: int, identity: str, after: str | None = None, device: str = "a", **members: Any) -> Record:
    """An entry; ``call`` are the ids it calls, ``of`` the one that it answers, ``replaces`` whose place it takes."""
    obj: dict[str, Any] = {"type": MESSAGE, "id": number, "message_id": identity, "after": after}
    obj["tool_calls"] = [{"id": call_id} for call_id in members.get("call", "")]
    obj["tool_call_id"] = members.get("of")
    record = Record(LOGS[device], number + 1, 0, 0, obj)
    record.replaces = members.get("replaces")
    return record


def ordered(*entries: Record, closed: frozenset[str] = frozenset()) -> str:
    """The order, which must be the same for the reverse."""
    order = [record.identity for record in order_entries(entries, closed).order]
    assert [record.identity for record in order_entries(entries[::-1], closed).order] == order
    return " ".join(order)


def test_entries_of_one_device_stand_in_the_order_of_its_file() -> None:
    assert ordered(entry(1, "z"), entry(2, "y", "z"), entry(3, "x", "y")) == "z y x"


def test_what_the_device_of_the_parent_wrote_comes_first_among_siblings() -> None:
    here = [entry(1, "m", device="b"), entry(2, "a2", "m", "a"), entry(3, "b3", "m", "b"), entry(4, "c4", "m", "c")]
    assert ordered(*here) == "m b3 a2 c4"


def test_other_siblings_stand_by_id_then_device_then_identity() -> None:
    here = [entry(1, "m", device="c"), entry(2, "y", "m", "b"), entry(2, "z", "m", "a"), entry(2, "x", "m", "b")]
    assert ordered(*here, entry(1, "w", "m", "a")) == "w m z x y"  # w is not above m, so it is a root


def test_roots_stand_by_id_then_device_then_identity() -> None:
    assert ordered(entry(2, "x", None, "b"), entry(1, "z", None, "b"), entry(2, "y", None, "a")) == "z y x"


def test_runs_of_two_devices_are_not_interleaved() -> None:
    one = [entry(1, "r"), entry(2, "a2", "r"), entry(4, "a4", "a2"), entry(6, "a6", "a4")]
    other = [entry(3, "b3", "r", "b"), entry(5, "b5", "b3", "b")]
    assert ordered(*one, *other) == "r a2 a4 a6 b3 b5"


def test_an_after_in_another_generation_makes_a_root() -> None:
    assert ordered(entry(3, "x", "old"), entry(4, "y", "x"), entry(2, "w"), closed=frozenset({"old"})) == "w x y"


def test_an_unknown_after_stands_after_the_rest_with_all_that_hangs_on_it() -> None:
    assert ordered(entry(2, "x", "gone"), entry(3, "y", "x"), entry(9, "z")) == "z x y"
    assert ordered(entry(2, "x", "gone"), entry(3, "y", "x")) == "x y"
    assert ordered(entry(4, "x", "gone"), entry(3, "w", "lost", "b"), entry(1, "r")) == "r w x"


def test_an_after_that_is_not_lower_makes_a_root() -> None:
    assert ordered(entry(1, "x", "y"), entry(2, "y", "x")) == "x y"
    assert ordered(entry(1, "x", "x"), entry(2, "y")) == "x y"
    assert ordered(entry(5, "x", "y"), entry(6, "y"), entry(1, "w")) == "w x y"


def test_a_result_is_one_node_with_its_call() -> None:
    here = [
        entry(1, "k", call=["c", "d"]),
        entry(2, "u", "k"),
        entry(3, "r", "k", "b", of="c"),
        entry(4, "s", "r", "b", of="d"),
    ]
    assert ordered(*here, entry(5, "v", "r", "b")) == "k r s u v"


def test_results_of_a_call_stand_by_id_whoever_wrote_them() -> None:
    assert (
        ordered(entry(1, "k", device="b", call="c"), entry(3, "r", "k", "b", of="c"), entry(2, "s", "k", of="c"))
        == "k s r"
    )


def test_children_of_a_node_stand_behind_its_results_those_of_the_calls_device_first() -> None:
    here = [entry(1, "k", device="b", call="c"), entry(2, "u", "k", "a"), entry(4, "r", "k", "a", of="c")]
    assert ordered(*here, entry(5, "v", "r", "b")) == "k r v u"


def test_children_of_several_members_of_a_node_stand_by_id_then_device() -> None:
    here = [entry(1, "k", device="c", call="c"), entry(2, "r", "k", of="c"), entry(3, "s", "k", of="c")]
    assert ordered(*here, entry(9, "x", "r", "b"), entry(9, "y", "s", "a")) == "k r s y x"


def test_the_call_is_the_nearest_one_going_up() -> None:
    here = [
        entry(1, "k", call="c"),
        entry(2, "r", "k", of="c"),
        entry(3, "l", "r", call="c"),
        entry(4, "s", "l", of="c"),
    ]
    answer = order_entries(here, frozenset())
    assert answer.call_of == {"r": "k", "s": "l"}
    assert ordered(*here, entry(5, "x", "k", "b")) == "k r l s x"


def test_a_result_that_hangs_further_down_stands_where_it_hangs() -> None:
    here = [entry(1, "k", call="c"), entry(2, "u", "k"), entry(3, "r", "u", of="c"), entry(4, "v", "k", "b")]
    assert ordered(*here) == "k u r v"
    assert order_entries(here, frozenset()).call_of == {"r": "k"}


def test_a_result_whose_call_is_not_above_it_is_an_entry_like_any_other() -> None:
    here = [entry(1, "m"), entry(2, "u", "m"), entry(3, "r", "m", "b", of="c"), entry(4, "k", "m", "c", call="c")]
    assert ordered(*here) == "m u r k"
    assert order_entries(here, frozenset()).call_of == {}


def test_a_replacement_takes_the_place_and_what_hangs_on_it() -> None:
    here = [entry(1, "m"), entry(2, "n", "m"), entry(3, "o", "m", "b"), entry(9, "x", "o", replaces="m")]
    answer = order_entries(here, frozenset())
    assert ordered(*here) == "m x n o"
    assert answer.replaced == {"m"}
    assert ordered(*here, entry(10, "p", "x")) == "m x n p o"


def test_a_replacement_can_be_replaced() -> None:
    here = [entry(1, "m"), entry(2, "n", "m"), entry(3, "x", replaces="m"), entry(4, "y", replaces="x")]
    assert ordered(*here) == "m x y n"
    assert order_entries(here, frozenset()).replaced == {"m", "x"}


def test_a_replacement_of_what_is_unknown_hangs_on_it() -> None:
    assert ordered(entry(1, "m"), entry(2, "x", "m", replaces="gone"), entry(3, "n", "m")) == "m n x"
    here = [entry(1, "m"), entry(2, "x", "m", replaces="old"), entry(3, "n", "m")]
    assert ordered(*here, closed=frozenset({"old"})) == "m n x"


def test_a_replacement_that_is_not_higher_replaces_nothing() -> None:
    here = [entry(1, "m"), entry(2, "x", "m", replaces="n"), entry(3, "n", "m")]
    assert ordered(*here) == "m x n"
    assert order_entries(here, frozenset()).replaced == set()


@pytest.mark.parametrize("replaced_first", [True, False])
def test_a_replaced_call_keeps_its_results(replaced_first: bool) -> None:
    k, r, x = (
        entry(1, "k", call="c"),
        entry(2 + replaced_first, "r", "k", of="c"),
        entry(3 - replaced_first, "x", replaces="k"),
    )
    u = entry(4, "u", "k", "b")
    assert ordered(k, r, x, u) == "k x r u"
    assert order_entries([k, r, x, u], frozenset()).call_of == {"r": "x"}


# --- any tree -----------------------------------------------------------------------------------------------------


@st.composite
def trees(draw: st.DrawFn, *, honest: bool = False, replacing: bool = True) -> list[Record]:
    """Entries of three devices that hang on each other; unless *honest* on unknown, closed and higher ones, too."""
    found: list[Record] = []
    number = 0
    for position in range(draw(st.integers(0, 9))):
        number += draw(st.integers(0 if not honest else 1, 1))
        known = [f"m{p}" for p in range(position)]
        others = [] if honest else ["unknown", "closed", "m9", f"m{position}"]
        after = draw(st.sampled_from([None, *known[-3:], *known, *others]))
        members = {
            "call": draw(st.sampled_from(["", "", "c", "cd"])),
            "of": draw(st.sampled_from([None, None, "c", "d"])),
            "replaces": draw(st.sampled_from([None, None, None, *known, *others])) if replacing else None,
        }
        found.append(entry(max(number, 1), f"m{position}", after, draw(st.sampled_from("abc")), **members))
    return found


CLOSED = frozenset({"closed"})


class Plainly:
    """The section as it reads, without thought of speed."""

    def __init__(self, entries: list[Record]) -> None:
        self.entries = sorted(entries, key=lambda r: r.key)
        self.known = {record.identity: record for record in entries}
        self.bases = [record for record in self.entries if self.base(record) is record]

    def replaced(self, record: Record) -> Record | None:
        target = self.known.get(record.replaces or "")
        return target if target is not None and target.key < record.key else None

    def base(self, record: Record) -> Record:
        target = self.replaced(record)
        return record if target is None else self.base(target)

    def sharing(self, base: Record) -> list[Record]:
        return [record for record in self.entries if self.base(record) is base]

    def link(self, base: Record) -> str | None:
        return base.replaces if base.replaces is not None and base.replaces not in self.known else base.after

    def parent(self, base: Record) -> Record | None:
        above = self.known.get(self.link(base) or "")
        return self.base(above) if above is not None and above.key < base.key else None

    def is_orphan(self, base: Record) -> bool:
        return self.link(base) not in (None, *CLOSED, *self.known)

    def call(self, record: Record) -> Record | None:
        above = self.parent(self.base(record))
        while above is not None:
            if any(record.call_id in other.calls for other in self.sharing(above)):
                return above
            above = self.parent(above)
        return None

    def node(self, base: Record) -> Record:
        """The first entry of the node that *base* belongs to."""
        call, parent = self.call(base), self.parent(base)
        if call is None or parent is None or self.node(parent) is not self.node(call):
            return base
        return self.node(call)

    def walk(self, first: Record) -> list[Record]:
        inside = [first, *(base for base in self.bases if base is not first and self.node(base) is first)]
        children = [b for b in self.bases if self.parent(b) in inside and self.node(b) is b]
        children.sort(key=lambda b: (b.device != first.device, b.key))
        return [
            *(r for base in inside for r in self.sharing(base)),
            *(r for child in children for r in self.walk(child)),
        ]

    def order(self) -> list[str]:
        tops = sorted((b for b in self.bases if self.parent(b) is None), key=lambda b: (self.is_orphan(b), b.key))
        return [record.identity for top in tops for record in self.walk(top)]

    def call_of(self) -> dict[str, str]:
        found = ((record.identity, self.call(record)) for record in self.entries if record.call_id is not None)
        return {identity: self.sharing(call)[-1].identity for identity, call in found if call is not None}


@settings(max_examples=400)
@given(trees())
def test_the_order_is_the_one_that_the_section_describes(entries: list[Record]) -> None:
    plain, answer = Plainly(entries), order_entries(entries, CLOSED)
    assert [record.identity for record in answer.order] == plain.order()
    assert answer.call_of == plain.call_of()
    assert answer.replaced == {r.replaces for r in entries if plain.replaced(r) is not None}


@settings(max_examples=150)
@given(trees(), st.randoms(use_true_random=False))
def test_every_entry_stands_once_in_an_order_that_no_order_of_files_changes(
    entries: list[Record], random: Random
) -> None:
    first = order_entries(entries, CLOSED)
    assert sorted(record.identity for record in first.order) == sorted(record.identity for record in entries)
    random.shuffle(entries)
    second = order_entries(entries, CLOSED)
    assert (second.order, second.call_of, second.replaced) == (first.order, first.call_of, first.replaced)


@settings(max_examples=150)
@given(trees(honest=True, replacing=False))
def test_all_that_hangs_on_an_entry_stands_together_behind_it(entries: list[Record]) -> None:
    answer = order_entries(entries, frozenset())
    places = {record.identity: place for place, record in enumerate(answer.order)}
    below: dict[str, set[str]] = defaultdict(set)
    for record in entries:
        assert record.after is None or places[record.after] < places[record.identity]
        above = record.after
        while above is not None:
            below[above].add(record.identity)
            above = next(r.after for r in entries if r.identity == above)
    for record in entries:
        if record.identity not in answer.call_of:  # results share what hangs on them with their call
            here = {places[identity] for identity in below[record.identity]} | {places[record.identity]}
            assert max(here) - min(here) == len(here) - 1


@settings(max_examples=150)
@given(trees(honest=True, replacing=False))
def test_results_follow_directly_on_their_call(entries: list[Record]) -> None:
    answer = order_entries(entries, frozenset())
    order = [record.identity for record in answer.order]
    for record in entries:
        hanging = [
            r for r in entries if r.after == record.identity and answer.call_of.get(r.identity) == record.identity
        ]
        if record.identity not in answer.call_of and hanging:
            start = order.index(record.identity)
            for answered in hanging:
                between = order[start + 1 : order.index(answered.identity)]
                assert all(other in answer.call_of for other in between)


@st.composite
def chains(draw: st.DrawFn) -> list[Record]:
    found: list[Record] = []
    last: str | None = draw(st.sampled_from([None, "closed", "unknown"]))
    for number in range(1, 1 + draw(st.integers(0, 10))):
        members = {"call": draw(st.sampled_from(["", "c", "cd"])), "of": draw(st.sampled_from([None, "c", "d"]))}
        found.append(entry(number, f"m{number}", last, draw(st.sampled_from("abc")), **members))
        last = f"m{number}"
    return found


def walked(entries: list[Record]) -> Ordered:
    answer = Ordered()
    _Tree(sorted(entries, key=lambda r: r.key), CLOSED, answer).walk()
    return answer


@settings(max_examples=200)
@given(chains() | trees())
def test_the_short_way_for_chains_gives_what_the_tree_gives(entries: list[Record]) -> None:
    short = Ordered()
    assume(_chain(sorted(entries, key=lambda r: r.key), short))
    tree = walked(entries)
    assert (short.order, short.call_of, short.replaced) == (tree.order, tree.call_of, tree.replaced)


@given(chains())
def test_a_chain_stands_in_its_own_order(entries: list[Record]) -> None:
    assert order_entries(entries, CLOSED).order == entries
    assert walked(entries).order == entries


@settings(max_examples=100)
@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 4)), unique_by=lambda t: t[0]),
    st.data(),
)
def test_each_run_stays_whole(common: int, runs: list[tuple[str, int]], data: st.DataObject) -> None:
    entries = [
        entry(n, f"m{n}", f"m{n - 1}" if n > 1 else None, data.draw(st.sampled_from("abc")))
        for n in range(1, common + 1)
    ]
    for device, length in runs:
        # Devices that do not know of each other give the same ids.
        names = [f"m{common}", *(f"{device}{n}" for n in range(length))]
        entries += [entry(common + 1 + n, names[n + 1], names[n], device) for n in range(length)]
    order = [record.identity for record in order_entries(entries, frozenset()).order]
    for device, length in runs:
        start = order.index(f"{device}0")
        assert order[start : start + length] == [f"{device}{n}" for n in range(length)]
    if runs:
        writer = entries[common - 1].device
        first = writer if writer in dict(runs) else min(device for device, _ in runs)
        assert order[common] == f"{first}0"
