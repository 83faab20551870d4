"""The order of entries: the tree of `after`, walked depth first (FORMAT.md, "Order"). Pure.

With one device that is file order. With two that wrote at the same time each one's run stays together, and a tool
result never lands away from its call.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from operator import attrgetter

from squilla_files.journal import Record

_by_key = attrgetter("key")


class Ordered:
    """Entries in order, and which of them answers which call.

    Attributes:
        order: every entry, removed and replaced ones included.
        call_of: identity of a tool result → identity of the entry that stands where its call was made.
        replaced: identities of the entries that others replace.
    """

    def __init__(self) -> None:
        self.order: list[Record] = []
        self.call_of: dict[str, str] = {}
        self.replaced: set[str] = set()


def order_entries(entries: Iterable[Record], closed: Collection[str]) -> Ordered:
    """Put the entries of one generation in order.

    Args:
        entries: one record for each identity.
        closed: identities of entries of other generations: what hangs on one of them is a root, not an orphan.

    Returns:
        The order, the same for whatever order *entries* came in.
    """
    listed = sorted(entries, key=_by_key)
    ordered = Ordered()
    if not _chain(listed, ordered):
        _Tree(listed, closed, ordered).walk()
    return ordered


def end_of_run(
    order: list[Record], call_of: Mapping[str, str], gone: Collection[str], device: str, call: Record
) -> Record:
    """Return the entry on which the next result of *call* hangs: the end of the run that hangs on it.

    The run is the call, its results, and what *device* itself put behind them.

    Args:
        order: the entries of the generation, in order.
        call_of: identity of a result → identity of its call.
        gone: identities that were removed or replaced: nothing hangs on those anew.
        device: the device that writes.
        call: an entry of *order*.
    """
    start = next(position for position, record in enumerate(order) if record is call)
    below, run, last = {call.identity}, {call.identity}, call
    for record in order[start + 1 :]:
        above = record.replaces if record.replaces is not None else record.after
        if above not in below:
            break  # the walk is depth first: all that hangs on the call stands together
        below.add(record.identity)
        answers = call_of.get(record.identity) == call.identity
        if answers or (above in run and record.device == device):
            run.add(record.identity)
            if record.identity not in gone:
                last = record
    return last


def _chain(listed: list[Record], ordered: Ordered) -> bool:
    """Order entries of which each hangs on the one before: the usual case, and the tree's order without a tree.

    Whatever the first one hangs on, it is the only top, and so it stands first.
    """
    last: str | None = None
    sites: dict[str, str] = {}
    call_of: dict[str, str] = {}
    for record in listed:
        if record.replaces is not None or record.after != (last or record.after):
            return False
        last = record.identity
        if record.call_id is not None and record.call_id in sites:
            call_of[last] = sites[record.call_id]
        for call in record.calls:
            sites[call] = last
    ordered.order = listed
    ordered.call_of = call_of
    return True


class _Place:
    """Where an entry hangs, with the entries that took its place."""

    __slots__ = ("base", "children", "head", "members", "parent", "results")

    def __init__(self, base: Record) -> None:
        self.base = base
        self.members = [base]
        self.parent: _Place | None = None
        self.head: _Place = self
        self.results: list[_Place] = []
        self.children: list[_Place] = []


class _Tree:
    def __init__(self, listed: list[Record], closed: Collection[str], ordered: Ordered) -> None:
        self._listed = listed
        self._closed = closed
        self._ordered = ordered
        self._call_ids = {call for record in listed for call in record.calls}
        self._keys = {record.identity: record.key for record in listed}
        self._places: dict[str, _Place] = {}
        self._roots: list[_Place] = []
        self._orphans: list[_Place] = []

    def walk(self) -> None:
        # Ascending, so that what an entry hangs on has its place before the entry asks for it.
        for record in self._listed:
            self._settle(record)
        # Only now: where a call was replaced, what took its place has its results, whichever came first.
        for record in self._listed:
            self._hang(record)
        emit = self._ordered.order.extend
        stack = [*reversed(self._orphans), *reversed(self._roots)]
        while stack:
            place = stack.pop()
            node = [place, *place.results]
            for member in node:
                emit(member.members)
            children = [child for member in node for child in member.children]
            writer = place.base.device
            children.sort(key=lambda child: (child.base.device != writer, child.base.key))
            stack.extend(reversed(children))

    def _settle(self, record: Record) -> None:
        target = record.replaces
        if target is not None and target in self._places and self._keys[target] < record.key:
            place = self._places[target]
            place.members.append(record)
            self._places[record.identity] = place
            self._ordered.replaced.add(target)
            return
        place = self._places[record.identity] = _Place(record)
        place.parent = self._parent(record, place)

    def _hang(self, record: Record) -> None:
        place = self._places[record.identity]
        if place.parent is None:
            return
        call = self._call(record, place.parent)
        if call is not None:
            self._ordered.call_of[record.identity] = call.members[-1].identity
        if place.base is not record:
            return
        # A result that hangs on its call, or on another result that does, is one node with it.
        if call is not None and place.parent.head is call.head:
            place.head = call.head
            call.head.results.append(place)
        else:
            place.parent.children.append(place)

    def _parent(self, record: Record, place: _Place) -> _Place | None:
        after = record.after
        if record.replaces is not None and record.replaces not in self._keys:
            after = record.replaces
        if after is None or after in self._closed:
            self._roots.append(place)
            return None
        if after not in self._keys:
            self._orphans.append(place)
            return None
        if not self._keys[after] < record.key or after not in self._places:
            self._roots.append(place)
            return None
        return self._places[after]

    def _call(self, record: Record, parent: _Place) -> _Place | None:
        """Find the call that *record* answers: the nearest entry, going up by `after`, that has its `tool_call_id`."""
        if record.call_id is None or record.call_id not in self._call_ids:
            return None
        above: _Place | None = parent
        while above is not None and not any(record.call_id in member.calls for member in above.members):
            above = above.parent
        return above
