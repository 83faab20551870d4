from __future__ import annotations

import sys

import pytest

from squilla_files.facts import FACT_CHARACTERS, FactKind, result_facts, spoken_facts, token_facts

UUID = "3f2504e0-4f89-41d3-9a0c-0305e82c3301"


def said(text: str, *, by_user: bool = True) -> list[tuple[str, str]]:
    return [(kind.value, value) for _, kind, value in spoken_facts(text, by_user=by_user)]


def returned(text: str) -> list[tuple[str, str]]:
    return [(kind.value, value) for _, kind, value in result_facts(text)]


def tokens(text: str) -> list[str]:
    return [value for _, _, value in token_facts(text)]


@pytest.mark.parametrize(
    ("line", "kind", "value"),
    [
        ("Goal: ship by Friday", "user_goal", "ship by Friday"),
        ("  - **User goal**: ship it", "user_goal", "ship it"),
        ("My goal: ship it", "user_goal", "ship it"),
        ("目标：周五发布", "user_goal", "周五发布"),
        ("我的目标: 周五发布", "user_goal", "周五发布"),
        ("Constraint: no network", "user_constraint_or_preference", "no network"),
        ("2. Preferences: tabs, never spaces", "user_constraint_or_preference", "tabs, never spaces"),
        ("约束：不能联网", "user_constraint_or_preference", "不能联网"),
        ("偏好：用制表符", "user_constraint_or_preference", "用制表符"),
    ],
)
def test_goals_and_constraints_are_lines_so_labelled_by_the_user(line: str, kind: str, value: str) -> None:
    assert (kind, value) in said(f"Hello.\n{line}\nBye.")
    assert (kind, value) not in said(f"Hello.\n{line}\nBye.", by_user=False)


@pytest.mark.parametrize(
    ("line", "kind", "value"),
    [
        ("Decision: use SQLite", "decision_or_rationale", "use SQLite"),
        ("Rationale: it is there already", "decision_or_rationale", "it is there already"),
        ("决定：用文件", "decision_or_rationale", "用文件"),
        ("Yesterday we decided to use files", "decision_or_rationale", "Yesterday we decided to use files"),
        ("Next step: write the tests", "current_plan_or_next_action", "write the tests"),
        ("TODO: write the tests", "current_plan_or_next_action", "write the tests"),
        ("The next step is a test", "current_plan_or_next_action", "The next step is a test"),
        ("下一步：写测试", "current_plan_or_next_action", "写测试"),
        ("Do not repeat: the migration", "do_not_repeat_action", "the migration"),
        ("Please don't rerun the migration", "do_not_repeat_action", "Please don't rerun the migration"),
        ("不要重复迁移", "do_not_repeat_action", "不要重复迁移"),
        ("Artifact: quarterly figures", "artifact_path_or_name", "quarterly figures"),
        ("产物：季度报告", "artifact_path_or_name", "季度报告"),
        ("I wrote report.pdf today", "artifact_path_or_name", "report.pdf"),
        ("Open question: which region?", "unresolved_question", "which region?"),
        ("The region is still unresolved", "unresolved_question", "The region is still unresolved"),
        ("待确认：哪个区域", "unresolved_question", "哪个区域"),
        ("TypeError: x is not a function", "failed_command_or_error", "TypeError: x is not a function"),
        ("error TS2304: no name", "failed_command_or_error", "error TS2304: no name"),
        ("Build failed: out of memory", "failed_command_or_error", "Build failed: out of memory"),
        ("It stopped with exit code 2", "failed_command_or_error", "It stopped with exit code 2"),
        ("错误：内存不足", "failed_command_or_error", "错误：内存不足"),
        ("Command: make all", "command", "make all"),
        ("$ make all", "command", "make all"),
        ("Then `pytest -q tests` passes", "command", "pytest -q tests"),
        (f"The run was {UUID}.", "important_identifier", UUID),
        ("Commit 0a1b2c3d4e5f60718293 it is", "important_identifier", "0a1b2c3d4e5f60718293"),
        ("It is in src/app/main.py now", "file_path", "src/app/main.py"),
    ],
)
@pytest.mark.parametrize("by_user", [True, False])
def test_what_anyone_says_is_found(line: str, kind: str, value: str, by_user: bool) -> None:
    assert (kind, value) in said(f"Hello.\n{line}\nBye.", by_user=by_user)


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("42 tests passed", "tool_result_fact", "42 tests passed"),
        ("first\nResult: 42 rows\nlast", "tool_result_fact", "42 rows"),
        ("first\nsh: foo: command not found\nlast", "failed_command_or_error", "sh: foo: command not found"),
        ("cat: x: No such file or directory\n", "failed_command_or_error", "cat: x: No such file or directory"),
        ("Permission denied\nBye", "failed_command_or_error", "Permission denied"),
        ("a\nTraceback (most recent call last)\nb", "failed_command_or_error", "Traceback (most recent call last)"),
        ("a\nERROR: no space left\nb", "failed_command_or_error", "ERROR: no space left"),
        ("a\n/srv/data/x.csv\nb", "file_path", "/srv/data/x.csv"),
    ],
)
def test_what_a_tool_returns_is_found(text: str, kind: str, value: str) -> None:
    assert (kind, value) in returned(text)


def test_a_tool_result_holds_nobodys_goals_or_decisions() -> None:
    assert returned("x\nGoal: ship it\nDecision: use files\nTODO: more\n") == []


def test_a_long_tool_result_is_no_fact_as_a_whole() -> None:
    assert returned("word " * 100) == []


def test_facts_stand_in_the_order_of_the_text() -> None:
    text = f"Goal: a\nsee src/a/b.py\n$ make\n{UUID}\nwe decided it\nrun `git push`"
    kinds = [kind for kind, _ in said(text)]
    assert kinds == [
        "user_goal", "file_path", "command", "important_identifier", "decision_or_rationale", "command",
    ]  # fmt: skip
    assert said(text + "\n" + "word " * 2000) == said(text)


def test_under_a_label_that_stands_alone_the_items_count() -> None:
    text = "## Constraints\n\n- no network\n* Python 3.11\n\nSomething else\nGoal:\nship it\nnot this"
    assert said(text) == [
        ("user_constraint_or_preference", "no network"),
        ("user_constraint_or_preference", "Python 3.11"),
        ("user_goal", "ship it"),
    ]


def test_items_end_with_the_first_line_that_is_none() -> None:
    assert said("Goal:\n- one\nplain\n- two") == [("user_goal", "one")]


def test_a_labelled_line_is_found_once() -> None:
    assert said("Decision: we decided to use files") == [("decision_or_rationale", "we decided to use files")]


def test_a_line_with_a_phrase_is_found_once() -> None:
    assert said("We decided it.\nThey decided, then decided again.\nBye") == [
        ("decision_or_rationale", "We decided it."),
        ("decision_or_rationale", "They decided, then decided again."),
    ]


def test_a_success_is_no_failure() -> None:
    assert said("It ended with exit code 0 and we left by the exit") == []


def test_that_repeats_is_not_a_ban() -> None:
    assert said("a pattern that repeats, we want repeats") == []


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("see /etc/hosts.", "/etc/hosts"),
        ("see ~/notes/a.md, please", "~/notes/a.md"),
        ("(./run.sh)", "./run.sh"),
        ("at src/a.py:12", "src/a.py"),
        ("请看docs/设计/a.md的内容", "docs/设计/a.md"),
        ("on C:\\Users\\x\\a.txt now", "C:\\Users\\x\\a.txt"),
        ("packages/core/src", "packages/core/src"),
    ],
)
def test_a_path_is_found_as_it_stands(text: str, path: str) -> None:
    assert tokens(text) == [path]


@pytest.mark.parametrize(
    "text", ["and/or", "on 2024/01/02", "3/4", "/help", "https://example.com/a/b.py ", "</div>", "a // b", "x: \\ y"]
)
def test_not_every_slash_makes_a_path(text: str) -> None:
    assert tokens(text) == []


def test_a_name_in_a_script_without_spaces_is_found() -> None:
    assert tokens("打开报告.pdf") == ["打开报告.pdf"]
    assert tokens("改main.py和b.md。") == ["main.py", "b.md"]


def test_the_last_ending_of_a_name_counts() -> None:
    assert tokens("a.test.ts, b.tar.gz and c.py.") == ["a.test.ts", "b.tar.gz", "c.py"]
    assert tokens("a.py.unknown") == []


def test_a_path_late_in_a_long_line_is_found() -> None:
    text = "word " * 200_000 + "srv/late/file.py" + " word" * 10
    assert said(text) == [("file_path", "srv/late/file.py")]


def test_a_phrase_late_in_a_long_line_brings_what_stands_around_it() -> None:
    text = "word " * 10_000 + "So far. We decided to use files" + " word" * 10_000
    ((kind, value),) = said(text)
    assert kind == "decision_or_rationale"
    assert value.startswith("We decided to use files word")
    assert len(value) <= FACT_CHARACTERS


def test_a_phrase_late_in_a_short_line_brings_the_line() -> None:
    line = "word " * 30 + "and then we decided"
    assert said(f"{'x ' * 400}\n{line}\n{'x ' * 400}") == [("decision_or_rationale", line)]


def test_a_letter_that_grows_in_lower_case_shifts_nothing() -> None:
    assert said("İ" * 300 + "\nwe decided it\nBye") == [("decision_or_rationale", "we decided it")]


@pytest.mark.parametrize(
    "text", ["1763681581544", "abcdefabcdefabcdef", "x0a1b2c3d4e5f60718293", "0a1b2c3d", "0a1b2c3d4e5f6071z", "a" * 40]
)
def test_numbers_words_and_pieces_of_base64_are_no_identifiers(text: str) -> None:
    assert tokens(f"see {text} there") == []


def test_an_identifier_is_found_among_letters_of_any_script() -> None:
    assert tokens(f"编号 {UUID} 和 \udc80 {UUID.upper()}") == [UUID, UUID.upper()]


def test_every_kind_has_the_name_that_is_stored() -> None:
    assert {kind.value for kind in FactKind} == {
        "user_goal", "user_constraint_or_preference", "decision_or_rationale", "current_plan_or_next_action",
        "do_not_repeat_action", "artifact_path_or_name", "unresolved_question", "failed_command_or_error",
        "tool_result_id", "tool_result_fact", "important_identifier", "file_path", "command",
    }  # fmt: skip


# Each is a line, or lines, that makes a search start over at every step where a search is written carelessly.
HARD_UNITS = [
    "a", "/", "a/", "a/b.py ", "0a", "0a1b2c3d-", f"{UUID} ", "failed to ", "failed to x\n", ".py", "a.py ", "`",
    "`git ", "$ ", "\n$ a", ":", ":\n", "goal:\n", "goal: x\n", "# \n- a\n", "http://a", "c:\\", "not repeat ",
    "exit code 0 ", "error: x ", "中", "中.py", "中/", "决定", ".", " ", "\x00", "İ", "~", "a.b-c_d@",
]  # fmt: skip


def calls_of(text: str) -> int:
    """How many calls of functions, C functions included, it takes to find everything in *text*."""
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    sys.setprofile(count)
    try:
        for found in (*spoken_facts(text, by_user=True), *result_facts(text)):
            assert found[0] >= 0
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize("unit", HARD_UNITS)
def test_the_work_grows_with_the_text_not_with_its_square(unit: str) -> None:
    assert calls_of(unit * 4000) < 2.2 * calls_of(unit * 2000) + 100


@pytest.mark.parametrize("unit", HARD_UNITS)
def test_a_line_of_a_megabyte_is_searched_to_its_end(unit: str) -> None:
    # Where one match may run over the whole of the line again and again, this does not come back for hours.
    text = unit * (1_000_000 // len(unit)) + "\nDecision: the end"
    assert any(value == "the end" for _, _, value in spoken_facts(text, by_user=True))
