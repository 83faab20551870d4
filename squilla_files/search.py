"""Which texts a query finds, and how a hit is shown. Pure.

A query is words; a text matches if every word occurs in it, anywhere, in any case of any script. Both are compared in a
folded form (`fold`), in which ``ß`` and ``SS``, the sigmas, a ligature and its letters, composed and decomposed accents
are the same. The folded form has other lengths than the text, so that a hit is led back to the text by clusters: a
character together with all that attaches to it. Folding one cluster never depends on its neighbours.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from squilla_files.models import JsonValue, SessionNode

HIT_START: Final = ">>>"
HIT_END: Final = "<<<"

_SNIPPET_CHARACTERS: Final = 160
_CHARACTERS_BEFORE_HIT: Final = 60
# How far a snippet gives way, so that it does not begin or end within a word.
_WORD_CHARACTERS: Final = 20
_WALK_CHARACTERS: Final = 64

_TEXT_KEYS: Final = frozenset({"text", "content"})
_TO_NEXT_WORD: Final = re.compile(r"\S*\s+")
_LAST_SPACE: Final = re.compile(r"\s\S*\Z")
_JOINERS: Final = "\u200c\u200d"


def fold(text: str) -> str:
    """Return the form in which texts are compared: caseless, and normalised (NFC).

    The four i of Turkish are one, for which of them is the capital of which depends on a language that is not known.
    """
    if text.isascii():
        return text.lower()
    caseless = unicodedata.normalize("NFC", text).casefold()
    return unicodedata.normalize("NFC", caseless.replace("i\u0307", "i").replace("ı", "i"))


@dataclass(frozen=True, slots=True)
class Query:
    """The words that a text must hold, made by `compile_query`.

    Attributes:
        words: folded, each once, the longest first. Without words nothing matches.
    """

    words: tuple[str, ...]

    def matches(self, text: str) -> bool:
        """Return whether every word occurs in *text*."""
        if not self.words:
            return False
        folded = fold(text)
        return all(word in folded for word in self.words)

    def snippet(self, text: str) -> str:
        """Return about 160 characters of *text* around its first hit, all hits marked ``>>>hit<<<``.

        White space, line breaks included, is one space; ``…`` stands where the text goes on. A hit is marked with the
        accents that it bears. ``""`` where no word occurs.
        """
        folded = fold(text)
        found = [(at, at + len(word)) for word in self.words if (at := folded.find(word)) >= 0]
        if not found:
            return ""
        start, end = min(found)
        begin, stop = _window(text, _cluster_at(text, start)[0], _cluster_at(text, end - 1)[1])
        shown = " ".join(self._mark(text[begin:stop]).split())
        return f"{'…' if begin else ''}{shown}{'…' if stop < len(text) else ''}"

    def _mark(self, text: str) -> str:
        clusters = list(_clusters(text))
        owners = [number for number, cluster in enumerate(clusters) for _ in fold(cluster)]
        folded = fold(text)
        hit = [False] * len(clusters)
        for word in self.words:
            at = folded.find(word)
            while at >= 0:
                for owner in owners[at : at + len(word)]:
                    hit[owner] = True
                at = folded.find(word, at + len(word))
        parts = []
        for is_hit, group in groupby(zip(hit, clusters, strict=True), key=itemgetter(0)):
            part = "".join(cluster for _, cluster in group)
            parts.append(f"{HIT_START}{part}{HIT_END}" if is_hit else part)
        return "".join(parts)


def compile_query(query: str) -> Query:
    """Return what is to be looked for: the words of *query*, which are parted by white space."""
    # The longest word is the one that most texts lack.
    return Query(tuple(sorted({fold(word) for word in query.split()}, key=lambda word: (-len(word), word))))


def text_of(content: JsonValue) -> str:
    """Return the text of an entry's content, one line for each piece.

    Of blocks that is every string that stands under ``text`` or ``content``, however deep, in the order of the blocks.
    """
    if isinstance(content, str):
        return content
    pieces: list[str] = []
    waiting: list[tuple[JsonValue, bool]] = [(content, True)]
    while waiting:
        value, is_text = waiting.pop()
        if isinstance(value, str):
            if is_text:
                pieces.append(value)
        elif isinstance(value, list):
            waiting.extend((item, is_text) for item in reversed(value))
        elif isinstance(value, dict):
            waiting.extend((item, key in _TEXT_KEYS) for key, item in reversed(value.items()))
    return "\n".join(pieces)


def title_matches(query: Query, node: SessionNode) -> bool:
    """Return whether each word of *query* occurs in one of the session's names, not all in the same one."""
    names = (node.display_name, node.derived_title, node.subject, node.label)
    # No word holds a line break, so that none is found across two names.
    return query.matches("\n".join(name for name in names if name))


def _attaches(before: str, char: str) -> bool:
    """Return whether *char* belongs to the cluster of the character *before* it.

    Marks of all kinds (variation selectors, too), the later parts of a decomposed Hangul syllable, joiners and what is
    joined, skin tones. This covers every character that normalisation can compose with one before it.
    """
    if char < "\u0300":
        return False
    return (
        unicodedata.category(char)[0] == "M"
        or "\u1160" <= char <= "\u11ff"
        or char in _JOINERS
        or before == "\u200d"
        or "\U0001f3fb" <= char <= "\U0001f3ff"
    )


def _cluster_start(text: str, at: int) -> int:
    """Return where the cluster begins that holds the character *at*; the end of the text is a beginning, too."""
    while 0 < at < len(text) and _attaches(text[at - 1], text[at]):
        at -= 1
    return at


def _clusters(text: str) -> Iterator[str]:
    start = 0
    for at in range(1, len(text)):
        if not _attaches(text[at - 1], text[at]):
            yield text[start:at]
            start = at
    if text:
        yield text[start:]


def _cluster_at(text: str, folded_at: int) -> tuple[int, int]:
    """Return start and end of the cluster of *text* whose folded form holds the position *folded_at* of the whole."""
    if text.isascii():
        return folded_at, folded_at + 1
    start, stop = 0, len(text)
    # Halving folds the text twice at most; walking alone would take a second for a megabyte.
    while stop - start > _WALK_CHARACTERS:
        middle = _cluster_start(text, (start + stop) // 2)
        if middle <= start:
            break
        width = len(fold(text[start:middle]))
        if folded_at < width:
            stop = middle
        else:
            start, folded_at = middle, folded_at - width
    for cluster in _clusters(text[start:stop]):
        stop = start + len(cluster)
        width = len(fold(cluster))
        if folded_at < width:
            break
        start, folded_at = stop, folded_at - width
    return start, stop


def _window(text: str, hit_start: int, hit_end: int) -> tuple[int, int]:
    """Return start and end of what is shown around a hit: whole clusters, and whole words where spaces are near."""
    begin = _cluster_start(text, max(0, hit_start - _CHARACTERS_BEFORE_HIT))
    if begin and (gap := _TO_NEXT_WORD.match(text, begin - 1, min(begin + _WORD_CHARACTERS, hit_start))):
        begin = gap.end()
    stop = _cluster_start(text, min(len(text), max(begin + _SNIPPET_CHARACTERS, hit_end)))
    near = max(hit_end, stop - _WORD_CHARACTERS)
    if stop < len(text) and (space := _LAST_SPACE.search(text[near : stop + 1])):
        stop = near + space.start()
    return begin, stop
