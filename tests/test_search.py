from __future__ import annotations

import re
import sys
import unicodedata
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from squilla_files import search
from squilla_files.models import SessionNode
from squilla_files.search import compile_query, fold, text_of, title_matches

# Characters whose case, composition or extent is not one to one, between plain ones.
TRICKY = (
    "aAzZ ßẞſİIıiΣσςŉǅﬁﬀΐάέᾳ漢한가ᄒ\u1161\u11abéñ\u0301\u0323\u0307\u0308ष\u093fकำ"
    "👩\u200d🚀👍🏽❤\ufe0f\n\t\u2028\u00a0"
)
texts = st.text(st.one_of(st.sampled_from(TRICKY), st.characters(codec="utf-8")), max_size=60)


def marked(query: str, text: str) -> list[str]:
    return re.findall(r">>>(.*?)<<<", compile_query(query).snippet(text))


class TestMatching:
    @pytest.mark.parametrize(
        ("query", "text", "found"),
        [
            ("brown fox", "The quick brown fox", True),
            ("fox brown", "The quick brown fox", True),
            ("row", "The quick brown fox", True),
            ("brown cat", "The quick brown fox", False),
            ("brownfox", "The quick brown fox", False),
            ("  brown\n\tfox ", "The quick brown fox", True),
            ("brown brown", "The quick brown fox", True),
            ("100%", "it is 100% done", True),
            ("100%", "it is 1000 done", False),
            ("a_c", "abc", False),
            ("a.c", "abc", False),
            ("(", "f(x)", True),
            ('"quoted', 'a "quoted" word', True),
            ("公園", "今日は公園に行く", True),
            ("公園 晩", "今日は公園に行く", False),
        ],
    )
    def test_every_word_must_occur_somewhere_as_it_is(self, query: str, text: str, found: bool) -> None:
        assert compile_query(query).matches(text) is found

    @pytest.mark.parametrize("query", ["", "  ", "\n\t\u2003"])
    def test_a_query_without_words_finds_nothing(self, query: str) -> None:
        assert not compile_query(query).matches("text")
        assert not compile_query(query).matches("")
        assert compile_query(query).snippet("text") == ""

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            ("DEPLOY", "deploy"),
            ("ПРИВЕТ", "привет"),
            ("ΟΔΟΣ", "οδος"),
            ("οδοσ", "οδος"),
            ("STRASSE", "straße"),
            ("STRAẞE", "strasse"),
            ("ﬁnd ﬂow", "FIND FLOW"),
            ("İSTANBUL", "istanbul"),
            ("ISPARTA", "ısparta"),
            ("Ա", "ա"),
            ("ＡＢＣ", "ａｂｃ"),
            ("Ꭰ", "ꭰ"),
            ("𐐀", "𐐨"),
            ("café", "cafe\u0301"),
            ("CAFÉ", "cafe\u0301"),
            ("a\u0323\u0302", "a\u0302\u0323"),
            ("가나", "\u1100\u1161\u1102\u1161"),
            ("Å", "\u212b"),
            ("\u1fb4", "α\u0345\u0301"),
        ],
    )
    def test_case_and_composition_make_no_difference_in_any_script(self, one: str, other: str) -> None:
        assert compile_query(one).matches(f"… {other} …")
        assert compile_query(other).matches(f"… {one} …")

    @pytest.mark.parametrize(("query", "text"), [("cafe", "café"), ("cafe", "cafe\u0301"), ("하", "한")])
    def test_another_letter_is_not_found_however_it_is_composed(self, query: str, text: str) -> None:
        assert not compile_query(query).matches(text)

    @settings(max_examples=150)
    @given(texts)
    def test_a_text_is_found_by_each_spelling_of_it(self, text: str) -> None:
        # Capitals turn the iota below into a letter of its own, which parts it from accents that follow.
        assume(text.split() and "\u0345" not in text)
        for spelling in (text, text.upper(), text.lower(), text.title(), text.casefold()):
            assert compile_query(spelling).matches(text)
        for form in ("NFC", "NFD"):
            assert compile_query(unicodedata.normalize(form, text)).matches(text)


class TestFolding:
    @settings(max_examples=200)
    @given(texts)
    def test_the_folded_text_is_its_folded_clusters_in_a_row(self, text: str) -> None:
        clusters = list(search._clusters(text))
        assert "".join(clusters) == text
        assert "".join(map(fold, clusters)) == fold(text)

    def test_no_character_outside_a_cluster_composes_with_it(self) -> None:
        for char in map(chr, range(sys.maxunicode + 1)):
            parts = unicodedata.decomposition(char).split()
            if len(parts) == 2 and not parts[0].startswith("<"):
                assert search._attaches("x", chr(int(parts[1], 16))), hex(ord(char))
            elif char >= "\x80" and not search._attaches("x", char):
                assert not unicodedata.combining(fold(char)[0]), hex(ord(char))

    def test_a_cluster_holds_a_whole_emoji_syllable_or_accented_letter(self) -> None:
        for cluster in ("👩\u200d🚀", "👍🏽", "❤\ufe0f", "\u1112\u1161\u11ab", "e\u0323\u0301", "कि"):
            assert list(search._clusters(f"a{cluster}b")) == ["a", cluster, "b"]

    @settings(max_examples=100)
    @given(st.lists(texts, min_size=3, max_size=8).map("".join), st.data())
    def test_every_position_of_the_folded_text_leads_back_to_its_cluster(self, text: str, data: Any) -> None:
        folded = fold(text)
        assume(folded)
        at = data.draw(st.integers(0, len(folded) - 1))
        start, end = search._cluster_at(text, at)
        assert start < end
        assert len(fold(text[:start])) <= at < len(fold(text[:end]))
        assert fold(text[:start]) + fold(text[start:end]) + fold(text[end:]) == folded
        if text.isascii():
            assert end == start + 1

    @pytest.mark.parametrize("piece", ["e\u0323\u0301", "ßa", "\u1112\u1161\u11ab", "ﬃé", "👩\u200d🚀-"])
    def test_positions_far_into_a_text_lead_back_exactly(self, piece: str) -> None:
        text = piece * 50 + "|" + piece * 51
        expected = []
        start = 0
        for cluster in search._clusters(text):
            expected += [(start, start + len(cluster))] * len(fold(cluster))
            start += len(cluster)
        assert [search._cluster_at(text, at) for at in range(len(fold(text)))] == expected


class TestSnippet:
    @pytest.mark.parametrize(
        ("query", "text", "snippet"),
        [
            ("fox", "The quick brown Fox!", "The quick brown >>>Fox<<<!"),
            ("fox the", "The quick brown Fox!", ">>>The<<< quick brown >>>Fox<<<!"),
            ("strasse", "Die Straße.", "Die >>>Straße<<<."),
            ("s", "ß", ">>>ß<<<"),
            ("straße", "Die STRASSE.", "Die >>>STRASSE<<<."),
            ("istanbul", "In İstanbul", "In >>>İstanbul<<<"),
            ("οδοσ", "ο οδός ΟΔΟΣ", "ο οδός >>>ΟΔΟΣ<<<"),
            ("find", "I ﬁnd it", "I >>>ﬁnd<<< it"),
            ("café", "le cafe\u0301 noir", "le >>>cafe\u0301<<< noir"),
            ("x", "an x\u0302 here", "an >>>x\u0302<<< here"),
            ("한", "그 \u1112\u1161\u11ab 말", "그 >>>\u1112\u1161\u11ab<<< 말"),
            ("公園", "今日は公園に行く", "今日は>>>公園<<<に行く"),
            ("foob obar", "a foobar b", "a >>>foobar<<< b"),
            ("ha", "haha", ">>>haha<<<"),
            ("nothing", "else", ""),
        ],
    )
    def test_hits_are_marked_as_they_stand_in_the_text(self, query: str, text: str, snippet: str) -> None:
        assert compile_query(query).snippet(text) == snippet

    def test_line_breaks_and_other_white_space_become_one_space(self) -> None:
        text = "one\r\n\r\ntwo\u2028 three\t\tfour\x85five\n"
        assert compile_query("three").snippet(text) == "one two >>>three<<< four five"

    @pytest.mark.parametrize(("needle", "after"), [("needle", 15), ("pins", 16)])
    def test_a_long_text_is_cut_around_its_first_hit_between_words(self, needle: str, after: int) -> None:
        text = "aaaaa " * 50 + needle + " bbbbb" * 50 + needle
        snippet = compile_query(needle).snippet(text)
        assert snippet == "…" + "aaaaa " * 10 + f">>>{needle}<<<" + " bbbbb" * after + "…"

    @pytest.mark.parametrize("width", range(3, 16))
    def test_no_word_is_cut_where_spaces_are_near(self, width: int) -> None:
        text = ("a" * width + " ") * 50 + "needle" + (" " + "b" * width) * 50
        snippet = compile_query("needle").snippet(text)
        assert re.fullmatch(rf"…(a{{{width}}} )+>>>needle<<<( b{{{width}}})+…", snippet)
        assert 130 <= len(snippet) <= 170

    def test_the_first_hit_of_any_word_is_the_one_that_is_shown(self) -> None:
        text = "end " + "filling " * 100 + "beginning"
        assert compile_query("beginning end").snippet(text).startswith(">>>end<<< filling")

    def test_a_space_before_the_hit_does_not_cut_off_what_follows_it(self) -> None:
        assert compile_query("公園").snippet("go 公園" + "字" * 500) == "go >>>公園<<<" + "字" * 155 + "…"

    def test_a_text_without_spaces_is_cut_between_characters(self) -> None:
        snippet = compile_query("公園").snippet("漢" * 500 + "公園" + "字" * 500)
        assert re.fullmatch(r"…漢{60}>>>公園<<<字{98}…", snippet)

    def test_a_hit_at_either_end_of_a_long_text_is_shown(self) -> None:
        filling = " word" * 100 + " "
        assert compile_query("start").snippet("start" + filling).startswith(">>>start<<< word")
        assert compile_query("end").snippet(filling + "end").endswith("word >>>end<<<")

    def test_a_hit_longer_than_a_snippet_is_shown_whole(self) -> None:
        word = "x" * 400
        assert marked(word, "a " * 100 + word + " b" * 100) == [word]

    @pytest.mark.parametrize("lead", ["ß", "é", "e\u0301", "ﬃ", "İ", "👩\u200d🚀", "\u1112\u1161\u11ab", "漢 ", "ß\n"])
    def test_a_hit_far_into_a_text_is_marked_where_it_is(self, lead: str) -> None:
        text = lead * 3000 + "Nadel" + lead * 300
        assert marked("NADEL", text) == ["Nadel"]
        assert len(compile_query("NADEL").snippet(text)) <= 190

    def test_a_snippet_never_parts_a_letter_from_its_accents(self) -> None:
        for shift in range(12):
            text = "e\u0323\u0301" * 200 + "z" * shift + "needle" + "o\u0323\u0301" * 200
            snippet = compile_query("needle").snippet(text)
            assert re.fullmatch(r"…(e\u0323\u0301)+z*>>>needle<<<(o\u0323\u0301)+…", snippet)

    def test_a_text_of_nothing_but_accents_is_searched_like_any_other(self) -> None:
        assert marked("needle", "\u0301" * 5000 + " needles") == ["needle"]

    @settings(max_examples=200)
    @given(st.lists(texts, max_size=8).map("".join), st.data())
    def test_a_snippet_of_what_matches_is_a_piece_of_the_text_with_hits(self, text: str, data: Any) -> None:
        assume(not set(">…<") & set(text) and text.split())
        word = data.draw(st.sampled_from(text.split()))
        start = data.draw(st.integers(0, len(word) - 1))
        query = compile_query(data.draw(st.sampled_from([word, word[start:], word[: start + 1], word.upper()])))
        assume(query.matches(text))
        snippet = query.snippet(text)
        hits = re.findall(r">>>(.*?)<<<", snippet)
        assert any(query.words[0] in fold(hit) for hit in hits)
        plain = snippet.replace(">>>", "").replace("<<<", "").strip("… ")
        assert plain in " ".join(text.split())


class TestContent:
    @pytest.mark.parametrize(
        ("content", "text"),
        [
            ("plain", "plain"),
            (None, ""),
            (7, ""),
            ([], ""),
            ([{"type": "text", "text": "one"}, {"type": "text", "text": "two"}], "one\ntwo"),
            ({"text": "one", "attachments": [{"name": "a.png", "data": "AAAA"}]}, "one"),
            ([{"type": "tool_result", "content": [{"type": "text", "text": "deep"}]}], "deep"),
            ([{"type": "tool_result", "content": "direct"}], "direct"),
            ([{"type": "image", "source": {"data": "AAAA", "media_type": "image/png"}}], ""),
            (["bare", {"text": 5}], "bare"),
            ({"a": {"b": [{"text": "x"}, "not text"]}, "text": "y"}, "x\ny"),
        ],
    )
    def test_the_text_of_blocks_is_what_stands_under_text_or_content(self, content: Any, text: str) -> None:
        assert text_of(content) == text

    def test_blocks_may_be_nested_as_deep_as_json_can_be(self) -> None:
        content: Any = "core"
        for _ in range(5000):
            content = [{"content": content}]
        assert text_of(content) == "core"


class TestTitles:
    NODE = SessionNode(
        session_key="k", display_name="Reise nach Köln", derived_title="Bahn", subject="Urlaub", label="privat"
    )

    @pytest.mark.parametrize("query", ["KÖLN", "bahn", "urlaub", "PRIVAT", "privat köln", "Bahn Urlaub reise"])
    def test_each_word_stands_in_one_of_the_names(self, query: str) -> None:
        assert title_matches(compile_query(query), self.NODE)

    @pytest.mark.parametrize("query", ["", "hamburg", "köln hamburg", "kölnbahn", "k main"])
    def test_no_title_is_found_by_a_word_that_no_name_holds(self, query: str) -> None:
        assert not title_matches(compile_query(query), self.NODE)

    def test_a_session_without_names_is_never_found(self) -> None:
        assert not title_matches(compile_query("k"), SessionNode(session_key="k", channel="k", model="k"))
