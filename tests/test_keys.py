from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from squilla_files import keys
from squilla_files.errors import InvalidKeyError
from squilla_files.keys import DmScope, PeerKind, canonicalize_session_key
from squilla_files.models import ChatType


class TestCanonicalKey:
    @pytest.mark.parametrize(
        ("given_key", "canonical"),
        [
            ("agent:main:main", "agent:main:main"),
            ("  agent:main:main\n", "agent:main:main"),
            ("agent:Ops Team:discord:group:AbC", "agent:ops-team:discord:group:AbC"),
            ("agent:Ops", "agent:ops"),
            ("agent:default:main", "agent:main:main"),
            ("agent::main", "agent:main:main"),
            ("webchat:default", "agent:main:webchat:default"),
            ("subagent:agent:OPS:Main", "subagent:agent:ops:Main"),
            ("subagent:Agent:OPS:Main", "subagent:Agent:OPS:Main"),
            ("subagent:webchat:default", "subagent:webchat:default"),
            ("webchat:Default", "webchat:Default"),
            ("Agent:OPS:main", "Agent:OPS:main"),
            ("agents:OPS:main", "agents:OPS:main"),
            ("../../etc/passwd", "../../etc/passwd"),
            ("chat 한국어 Ä", "chat 한국어 Ä"),
        ],
    )
    def test_only_the_agent_and_the_surrounding_space_are_normalised(self, given_key: str, canonical: str) -> None:
        assert canonicalize_session_key(given_key) == canonical

    @pytest.mark.parametrize(
        ("key", "reason"),
        [
            ("", "not empty"),
            (" \t\n", "not empty"),
            ("k" * 513, "512"),
            ("agent:" + "x" * 600 + ":main", "512"),
            ("a\0b", "NUL"),
            ("a\ud800b", "surrogate"),
            ("a\udfff", "surrogate"),
            (None, "string"),
            (b"agent:main:main", "string"),
            (["agent"], "string"),
        ],
    )
    def test_a_key_that_no_session_can_have_is_a_value_error(self, key: str, reason: str) -> None:
        with pytest.raises(InvalidKeyError, match=reason) as caught:
            canonicalize_session_key(key)
        assert isinstance(caught.value, ValueError)

    def test_512_characters_are_allowed_however_many_bytes_they_take(self) -> None:
        assert canonicalize_session_key("漢" * 512) == "漢" * 512

    def test_space_around_a_key_does_not_count_for_its_length(self) -> None:
        assert canonicalize_session_key(" " + "k" * 512 + " ") == "k" * 512

    def test_a_key_that_becomes_too_long_by_normalising_is_refused(self) -> None:
        with pytest.raises(InvalidKeyError, match="512"):
            canonicalize_session_key("agent::" + "k" * 505)

    def test_a_pair_of_surrogates_in_json_is_one_character_and_allowed(self) -> None:
        assert canonicalize_session_key("\U0001f600") == "\U0001f600"

    def test_a_string_of_a_subclass_becomes_a_plain_string(self) -> None:
        assert type(canonicalize_session_key(DmScope.MAIN)) is str

    def test_a_cut_that_ends_in_a_dash_gives_a_key_that_is_its_own_canonical_form(self) -> None:
        once = canonicalize_session_key("agent:" + "a" * 63 + "-b:main")
        assert once == "agent:" + "a" * 63 + ":main"
        assert canonicalize_session_key(once) == once

    @settings(max_examples=150)
    @given(
        st.sampled_from(["", "agent:", "subagent:agent:", "webchat:default", " agent:-"]),
        st.text(st.one_of(st.sampled_from("aZ-_: İK\u00a0\u2028"), st.characters(codec="utf-8")), max_size=80),
    )
    def test_a_canonical_key_is_its_own_canonical_form(self, prefix: str, rest: str) -> None:
        try:
            once = canonicalize_session_key(prefix + rest)
        except InvalidKeyError:
            return
        assert canonicalize_session_key(once) == once
        assert once == once.strip()


class TestIds:
    @pytest.mark.parametrize(
        ("given_id", "agent", "account"),
        [
            (None, "main", "default"),
            ("", "main", "default"),
            ("  ", "main", "default"),
            ("---", "main", "default"),
            ("Default", "main", "default"),
            ("-default-", "main", "default"),
            (" Ops_1 ", "ops_1", "ops_1"),
            ("a b/c", "a-b-c", "a-b-c"),
            ("--a--", "a", "a"),
            ("数", "main", "default"),
            ("x" * 70, "x" * 64, "x" * 64),
            ("__proto__", "__proto__", "default"),
            ("Constructor", "constructor", "default"),
            (" prototype", "prototype", "default"),
            ("hasOwnProperty", "hasownproperty", "default"),
            ("-constructor-", "constructor", "default"),
        ],
    )
    def test_ids_are_lower_case_and_plain(self, given_id: str | None, agent: str, account: str) -> None:
        assert keys.normalize_agent_id(given_id) == agent
        assert keys.normalize_account_id(given_id) == account

    @settings(max_examples=100)
    @given(st.text(max_size=100))
    def test_a_normalised_id_is_plain_and_stays_as_it_is(self, text: str) -> None:
        for normalize in (keys.normalize_agent_id, keys.normalize_account_id):
            once = normalize(text)
            assert re.fullmatch(r"[a-z0-9_-]{1,64}", once)
            assert normalize(once) == once


class TestBuilders:
    def test_the_main_and_the_web_chat_key(self) -> None:
        assert keys.build_main_key() == "agent:main:main"
        assert keys.build_main_key("Ops") == "agent:ops:main"
        assert keys.build_webchat_key() == "agent:main:webchat:default"
        assert keys.build_webchat_key("Ops") == "agent:ops:webchat:default"

    @pytest.mark.parametrize(
        ("scope", "key"),
        [
            (DmScope.MAIN, "agent:ops:main"),
            (DmScope.PER_PEER, "agent:ops:direct:U7"),
            (DmScope.PER_CHANNEL_PEER, "agent:ops:slack:direct:U7"),
            (DmScope.PER_ACCOUNT_CHANNEL_PEER, "agent:ops:slack:work:direct:U7"),
            ("per_peer", "agent:ops:direct:U7"),
        ],
    )
    def test_a_direct_key_tells_apart_what_its_scope_says(self, scope: DmScope | str, key: str) -> None:
        assert keys.build_direct_key("Ops", "U7", "slack", "Work", scope) == key

    def test_direct_conversations_are_the_main_one_by_default(self) -> None:
        assert keys.build_direct_key("ops", "U7", "slack") == "agent:ops:main"

    def test_a_direct_key_names_a_missing_channel_and_account(self) -> None:
        key = keys.build_direct_key("ops", "U7", dm_scope=DmScope.PER_ACCOUNT_CHANNEL_PEER)
        assert key == "agent:ops:unknown:default:direct:U7"
        assert keys.build_direct_key("ops", "U7", dm_scope=DmScope.PER_CHANNEL_PEER) == "agent:ops:unknown:direct:U7"

    def test_an_unknown_scope_is_a_value_error(self) -> None:
        with pytest.raises(ValueError, match="per_planet"):
            keys.build_direct_key("ops", "U7", dm_scope="per_planet")

    def test_keys_of_groups_channels_subagents_and_scheduled_runs(self) -> None:
        assert keys.build_group_key("Ops", "slack", "G1") == "agent:ops:slack:group:G1"
        assert keys.build_channel_key("Ops", "slack", "C1") == "agent:ops:slack:channel:C1"
        assert keys.build_subagent_key("agent:ops:main") == "subagent:agent:ops:main"
        assert keys.build_subagent_session_key("Ops", "run-1") == "agent:ops:subagent:run-1"
        assert keys.build_subagent_session_key("Ops", "Run:1") == "agent:ops:subagent:run-1"
        assert keys.build_cron_key("nightly", "R1") == "cron:nightly:run:R1"

    def test_the_kinds_of_peers(self) -> None:
        assert [str(kind) for kind in PeerKind] == ["direct", "group", "channel"]


class TestThreads:
    @pytest.mark.parametrize(
        ("hint", "key"),
        [(None, "agent:a:x:thread:T1"), ("slack", "agent:a:x:thread:T1"), ("telegram", "agent:a:x:topic:T1")],
    )
    def test_a_thread_is_a_suffix_that_can_be_taken_off(self, hint: str | None, key: str) -> None:
        assert keys.build_thread_key("agent:a:x", "T1", hint) == key
        assert keys.parse_thread_suffix(key) == ("agent:a:x", "T1")

    @pytest.mark.parametrize("key", ["agent:main:main", "thread:1", "agent:a:threads:1", ""])
    def test_a_key_without_a_thread_comes_back_whole(self, key: str) -> None:
        assert keys.parse_thread_suffix(key) == (key, None)

    @pytest.mark.parametrize("hint", [None, "telegram"])
    @pytest.mark.parametrize("base_hint", [None, "telegram"])
    def test_of_a_thread_in_a_thread_the_inner_one_is_taken_off(self, hint: str | None, base_hint: str | None) -> None:
        outer = keys.build_thread_key("agent:a:x", "0", hint)
        base = keys.build_thread_key(outer, "1", base_hint)
        assert keys.parse_thread_suffix(keys.build_thread_key(base, "2:b", hint)) == (base, "2:b")


class TestWhatAKeyTells:
    @pytest.mark.parametrize(
        ("key", "is_subagent"),
        [
            ("subagent:agent:main:main", True),
            (" SubAgent:x", True),
            ("agent:main:subagent:run-1", True),
            ("agent:main:subagent:run-1:thread:4", True),
            ("agent:main:subagent", False),
            ("agent:main:main", False),
            ("agent:subagent:main", False),
            ("subagents:x", False),
            ("subagent", False),
        ],
    )
    def test_a_subagent_is_known_by_its_key(self, key: str, is_subagent: bool) -> None:
        assert keys.is_subagent_key(key) is is_subagent

    @pytest.mark.parametrize(
        ("key", "agent"),
        [
            ("agent:Ops:discord:group:1", "ops"),
            ("agent:ops", "ops"),
            ("subagent:agent:ops:main", "ops"),
            ("cron:nightly:run:1", "main"),
            ("agent:", "main"),
            ("agent", "main"),
            ("", "main"),
            ("agents:ops:main", "main"),
        ],
    )
    def test_the_agent_is_read_from_the_key_else_it_is_main(self, key: str, agent: str) -> None:
        assert keys.parse_agent_id(key) == agent

    @pytest.mark.parametrize(
        ("key", "chat_type"),
        [
            ("agent:a:slack:group:1", ChatType.GROUP),
            ("agent:a:slack:GROUP:1", ChatType.GROUP),
            ("agent:a:slack:channel:1", ChatType.CHANNEL),
            ("agent:a:direct:1", ChatType.DIRECT),
            ("agent:a:slack:dm:1", ChatType.DIRECT),
            ("agent:a:slack:dm", ChatType.DIRECT),
            ("agent:a:slack:direct:1:group:2", ChatType.GROUP),
            ("agent:a:dm:1:channel", ChatType.CHANNEL),
            ("agent:a:discord:guild-1:channel-2", ChatType.CHANNEL),
            ("Agent:A:Discord:Guild-1:Channel-2:direct:3", ChatType.CHANNEL),
            ("agent:a:discord:work:guild-1:channel-2", ChatType.CHANNEL),
            ("agent:a:slack:guild-1:channel-2", ChatType.UNKNOWN),
            ("agent:a:discord:guild-1", ChatType.UNKNOWN),
            ("agent:main:main", ChatType.UNKNOWN),
            ("agent:a:groups:1", ChatType.UNKNOWN),
            ("group:1", ChatType.UNKNOWN),
            ("", ChatType.UNKNOWN),
        ],
    )
    def test_the_chat_type_is_read_from_the_key(self, key: str, chat_type: ChatType) -> None:
        assert keys.derive_chat_type(key) == chat_type
