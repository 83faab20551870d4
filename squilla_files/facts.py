"""Where in a text a fact stands that must survive, and of which kind it is.

Every search moves through the text once and looks back a bounded number of characters, so that a line of a megabyte
costs what a thousand lines of a kilobyte cost. No pattern here is tried at each character: a plain substring search
finds the rare character or word, and only there is anything matched.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from heapq import merge
from itertools import chain
from typing import Final, TypeAlias

FACT_CHARACTERS: Final = 240
_LABEL_CHARACTERS: Final = 48
_NAME_CHARACTERS: Final = 120
_SHORT_TEXT: Final = 4096


class FactKind(StrEnum):
    """The kinds of facts that a summary must not lose."""

    USER_GOAL = "user_goal"
    CONSTRAINT = "user_constraint_or_preference"
    DECISION = "decision_or_rationale"
    PLAN = "current_plan_or_next_action"
    DO_NOT_REPEAT = "do_not_repeat_action"
    ARTIFACT = "artifact_path_or_name"
    QUESTION = "unresolved_question"
    FAILURE = "failed_command_or_error"
    TOOL_RESULT_ID = "tool_result_id"
    TOOL_RESULT_FACT = "tool_result_fact"
    IDENTIFIER = "important_identifier"
    FILE_PATH = "file_path"
    COMMAND = "command"


Found: TypeAlias = tuple[int, FactKind, str]
"""Position in the text, kind, and the text of the fact as it stands there."""


def _labels(**kinds: str) -> dict[str, FactKind]:
    return {label: FactKind[kind] for kind, labels in kinds.items() for label in labels.split("|")}


_RESULT_LABELS: Final = _labels(
    FAILURE="error|errors|fatal|failed|failure|exception|traceback|panic|stderr|failed command"
    "|错误|报错|失败|异常|失败命令",
    TOOL_RESULT_FACT="fact|facts|result|results|tool result|finding|findings|found|observation|事实|结果|发现|工具结果",
)
_ANYONE_LABELS: Final = _RESULT_LABELS | _labels(
    DECISION="decision|decisions|decided|rationale|reason|conclusion|决定|决策|理由|原因|结论|决策理由",
    PLAN="plan|next|next step|next steps|next action|next actions|todo|to do|to-do|action item|action items"
    "|计划|当前计划|下一步|下一步行动|下一步计划|待办|待办事项",
    DO_NOT_REPEAT="do not repeat|don't repeat|do not redo|do not retry|already done|already tried|avoid repeating"
    "|不要重复|请勿重复|勿重复|不再重复|已完成|已尝试",
    ARTIFACT="artifact|artifacts|deliverable|deliverables|output file|output files|file|files|created|wrote|saved"
    "|saved to|written to|产物|交付物|输出文件|文件|生成文件|已创建|已生成|保存到",
    QUESTION="question|questions|open question|open questions|unresolved|unresolved question|unresolved questions"
    "|pending question|tbd|未解决|待解决|待确认|未解决问题|未解决的问题|待解决问题|问题|疑问",
    COMMAND="command|commands|run|ran|命令|执行命令|运行",
)
_USER_LABELS: Final = _ANYONE_LABELS | _labels(
    USER_GOAL="goal|goals|objective|objectives|task|aim|purpose|目标|任务|目的|用户目标|总目标|需求",
    CONSTRAINT="constraint|constraints|requirement|requirements|preference|preferences|rule|rules|must|must not"
    "|important|i prefer|prefer|always|never|limit|limits"
    "|限制|约束|约束条件|偏好|要求|条件|规则|必须|禁止|不要|注意|用户偏好",
)
_LABEL_OPENINGS: Final = ("my ", "our ", "the ", "user ", "current ", "key ", "我的", "当前的")
# Labels that tell of a failure without being listed: `TypeError`, `error TS2304`, `Build failed`, `编译失败`.
_FAILURE_LABEL: Final = re.compile(r"^[\w.]*(?:error|exception)$|^error[ \[]| (?:failed|failure)$|(?:失败|报错)$")
_LABEL_DECORATION: Final = " \t-*#>_•·.()[]【】0123456789、"
_VALUE_DECORATION: Final = " \t\r*_"
_ITEM_STARTS: Final = ("-", "*", "•", "+", "·", *"0123456789")

# What tells of a fact without a label. Each is searched for in every message, so they are few. Where a pattern is
# given, it must match from the phrase on.
_EXITS: Final = re.compile(r"exit(?:ed)?(?: with)?(?: code| status)?[: =]{1,2}(?:[1-9]|-\d)")
_REPEATS: Final = re.compile(r"(?<=no|n'|n’)t re(?:peat|run|-run|try|do )")
_Phrases: TypeAlias = tuple[tuple[str, FactKind, re.Pattern[str] | None], ...]
_SPOKEN_PHRASES: Final[_Phrases] = (
    ("decided", FactKind.DECISION, None),
    ("决定", FactKind.DECISION, None),
    ("next step", FactKind.PLAN, None),
    ("下一步", FactKind.PLAN, None),
    ("t re", FactKind.DO_NOT_REPEAT, _REPEATS),
    ("不要重复", FactKind.DO_NOT_REPEAT, None),
    ("不要再", FactKind.DO_NOT_REPEAT, None),
    ("unresolved", FactKind.QUESTION, None),
    ("未解决", FactKind.QUESTION, None),
    ("待确认", FactKind.QUESTION, None),
    ("failed ", FactKind.FAILURE, None),
    ("exit", FactKind.FAILURE, _EXITS),
)
_RESULT_PHRASES: Final[_Phrases] = (
    ("failed ", FactKind.FAILURE, None),
    ("exit", FactKind.FAILURE, _EXITS),
    ("not found", FactKind.FAILURE, None),
    ("permission denied", FactKind.FAILURE, None),
    ("no such file", FactKind.FAILURE, None),
    ("traceback (", FactKind.FAILURE, None),
)

_PATH_CHARACTERS: Final = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-@+~"
_PATH_TAIL: Final = re.compile(r"(?:/[\w.@+~%=-]+)+/?")
_PATH_END_BEFORE_WORDS: Final = re.compile(r"(?<=\.)[A-Za-z0-9]{1,8}(?=[^\x00-\x7f])")
_SLASHES: Final = re.compile(r"/+")
_LETTER: Final = re.compile(r"[^\W\d_]")
_URL_TAIL: Final = re.compile(r"[^\s\"'<>)]*")
_DRIVE_PATH: Final = re.compile(r"[A-Za-z]:\\[^\s\"'<>|*?:]{1,400}")
_NAME_TAIL: Final = re.compile(
    r"\.(?:py|pyi|ipynb|js|jsx|mjs|ts|tsx|vue|html|css|scss|md|rst|txt|json|jsonl|ya?ml|toml|ini|cfg|conf|lock"
    r"|xml|csv|tsv|sql|db|sqlite|sh|bash|ps1|bat|rs|go|java|kt|c|h|cc|cpp|hpp|cs|rb|php|swift|lua|pdf|docx?|xlsx?"
    r"|pptx?|png|jpe?g|gif|svg|webp|mp[34]|wav|zip|tar|gz|tgz|whl|log|diff|patch|proto|ipa|apk|exe|dll|parquet)"
    r"(?![A-Za-z0-9_/\\]|\.\w)"
)
_BACKTICK_COMMAND: Final = re.compile(
    r"`((?:git|gh|npm|npx|pnpm|yarn|node|bun|deno|pip3?|pipx|uvx?|python3?|pytest|ruff|mypy|poetry|tox|make|cmake|cargo"
    r"|rustc|go|docker|kubectl|helm|terraform|curl|wget|ssh|scp|rsync|sudo|apt|apt-get|brew|cd|ls|cat|cp|mv|rm|mkdir"
    r"|chmod|grep|rg|find|sed|awk|tar|bash|sh|psql|sqlite3|java|mvn|gradle|dotnet|systemctl)(?![\w.-])[^`\n]{0,300})`"
)
_HEX_RUN: Final = b"x" * 12
_HEX_MAP: Final = bytes(120 if chr(byte) in "0123456789abcdefABCDEF" else 32 for byte in range(256))
_UUID_HEAD: Final = re.compile(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}")


def spoken_facts(text: str, *, by_user: bool) -> Iterator[Found]:
    """Find the facts in what a person or a model said, in the order in which they stand there."""
    labels = _USER_LABELS if by_user else _ANYONE_LABELS
    return _in_order(text, labels, _SPOKEN_PHRASES)


def result_facts(text: str) -> Iterator[Found]:
    """Find the facts in what a tool returned. A result of one short line is a fact as a whole."""
    found = _in_order(text, _RESULT_LABELS, _RESULT_PHRASES)
    line = text[: FACT_CHARACTERS * 2].strip()
    if line and "\n" not in line and len(text) <= FACT_CHARACTERS:
        return chain([(0, FactKind.TOOL_RESULT_FACT, line)], found)
    return found


def token_facts(text: str) -> Iterator[Found]:
    """Find paths, file names and identifiers, in the order in which they stand in *text*."""
    return _by_position(text, _token_searches(text))


def _in_order(text: str, labels: Mapping[str, FactKind], phrases: _Phrases) -> Iterator[Found]:
    searches = _token_searches(text)
    if ":" in text or "：" in text or "#" in text:
        searches.append(_labelled(text, labels))
    # The one letter that str.lower() makes longer would shift every position behind it.
    lowered = text.replace("İ", "I").lower()
    for phrase, kind, pattern in phrases:
        if phrase in lowered:
            where = _occurrences(lowered, phrase, pattern)
            searches.append(_lines_around(text, where, kind, labels))
    if "$ " in text:
        searches.append(_prompts(text))
    if "`" in text:
        searches.append((found.start(), FactKind.COMMAND, found[1]) for found in _BACKTICK_COMMAND.finditer(text))
    return _by_position(text, searches)


def _by_position(text: str, searches: list[Iterator[Found]]) -> Iterator[Found]:
    if len(searches) < 2:
        return searches[0] if searches else iter(())
    if len(text) > _SHORT_TEXT:
        # Whoever has enough facts stops here, and the rest of a long text is never searched.
        return merge(*searches)
    return iter(sorted(chain.from_iterable(searches)))


def _token_searches(text: str) -> list[Iterator[Found]]:
    searches: list[Iterator[Found]] = []
    if "/" in text:
        searches.append(_paths(text))
    if ":\\" in text:
        searches.append((found.start(), FactKind.FILE_PATH, found[0].rstrip(".,;)")) for found in _drives(text))
    if "." in text and _NAME_TAIL.search(text):
        searches.append(_names(text))
    # One byte for each character, whatever the script: positions in the map are positions in the text.
    mapped = text.encode("latin-1", "replace").translate(_HEX_MAP)
    if _HEX_RUN in mapped:
        searches.append(_identifiers(text, mapped))
    return searches


def _labelled(text: str, labels: Mapping[str, FactKind]) -> Iterator[Found]:
    """Find `Label: value` lines, and the items or the one line under a label that stands alone."""
    position = 0
    heading: FactKind | None = None
    items = 0
    for line in text.split("\n"):
        kind, value = _split_label(line, labels)
        if kind is not None and value:
            yield position, kind, line.strip() if kind is FactKind.FAILURE else value
            heading = None
        elif kind is not None:
            heading, items = kind, 0
        elif heading is not None and (item := line.strip()):
            is_item = item.startswith(_ITEM_STARTS)
            if is_item or not items:
                yield position, heading, item.lstrip("-*•+· \t") if is_item else item
                items += 1
            if not is_item:
                heading = None
        elif items:
            heading = None
        position += len(line) + 1


def _split_label(line: str, labels: Mapping[str, FactKind]) -> tuple[FactKind | None, str]:
    """Split a line into the kind that its label stands for and what follows; without a known label, None."""
    colon = line.find(":", 0, _LABEL_CHARACTERS)
    wide = line.find("：", 0, colon if colon >= 0 else _LABEL_CHARACTERS)
    colon = wide if wide >= 0 else colon
    if colon < 0:
        if not line.startswith("#") or len(line) > _LABEL_CHARACTERS:
            return None, ""
        colon = len(line)
    label = line[:colon].strip(_LABEL_DECORATION).casefold()
    kind = labels.get(label)
    if kind is None and label.startswith(_LABEL_OPENINGS):
        kind = next((labels[rest] for rest in map(label.removeprefix, _LABEL_OPENINGS) if rest in labels), None)
    if kind is None and _FAILURE_LABEL.search(label):
        kind = FactKind.FAILURE
    return kind, "" if kind is None else line[colon + 1 :].strip(_VALUE_DECORATION)


def _occurrences(lowered: str, phrase: str, pattern: re.Pattern[str] | None) -> Iterator[int]:
    at = lowered.find(phrase)
    while at >= 0:
        if pattern is None or pattern.match(lowered, at):
            yield at
        at = lowered.find(phrase, at + len(phrase))


def _lines_around(text: str, where: Iterator[int], kind: FactKind, labels: Mapping[str, FactKind]) -> Iterator[Found]:
    """Find the lines at *where*; of a long line, the part around it. A labelled line is found by its label."""
    end = 0
    for at in where:
        if at < end:
            continue
        start, end = _surroundings(text, at)
        if _split_label(text[start:end], labels)[0] is None:
            yield at, kind, text[start:end]


def _surroundings(text: str, at: int) -> tuple[int, int]:
    """Return the bounds of the line around *at*, or of a piece of it from the start of a sentence or word on."""
    floor = max(0, at - FACT_CHARACTERS)
    start = text.rfind("\n", floor, at) + 1
    if start or not floor:
        end = text.find("\n", at, start + FACT_CHARACTERS)
        if end >= 0 or len(text) - start <= FACT_CHARACTERS:
            return start, end if end >= 0 else len(text)
    floor = max(start, at - FACT_CHARACTERS // 2)
    sentence = max(text.rfind(". ", floor, at) + 2, text.rfind("。", floor, at) + 1)
    start = sentence if sentence > floor else max(text.find(" ", floor, at) + 1, floor)
    end = text.find("\n", at, start + FACT_CHARACTERS)
    return start, end if end >= 0 else min(len(text), start + FACT_CHARACTERS)


def _paths(text: str) -> Iterator[Found]:
    done = 0
    at = text.find("/")
    while at >= 0:
        if at > 0 and text[at - 1] == ":" and text.startswith("//", at):
            done = _end_of_match(_URL_TAIL, text, at)
        else:
            head = text[max(done, at - _NAME_CHARACTERS) : at]
            start = at - len(head) + len(head.rstrip(_PATH_CHARACTERS))
            tail = _PATH_TAIL.match(text, at)
            done = tail.end() if tail else _end_of_match(_SLASHES, text, at)
            if tail and _looks_like_path(path := _trim_path(text[start : tail.end()])):
                yield start, FactKind.FILE_PATH, path
        at = text.find("/", done)


def _end_of_match(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return found.end() if found else at + 1


def _trim_path(path: str) -> str:
    # In a script without spaces the sentence goes on right behind the file's ending.
    ending = None if path.isascii() else _PATH_END_BEFORE_WORDS.search(path)
    return (path[: ending.end()] if ending else path).rstrip(".,")


def _looks_like_path(path: str) -> bool:
    """Tell a path from `and/or`, a date, a fraction or a slash command."""
    if not _LETTER.search(path):
        return False
    parts = [part for part in path.split("/") if part]
    rooted = path.startswith(("/", "./", "../", "~/"))
    stem, dot, ending = parts[-1].rpartition(".")
    if dot and stem and ending.isalnum():
        return True
    return len(parts) > 2 or (rooted and len(parts) > 1)


def _drives(text: str) -> Iterator[re.Match[str]]:
    at = text.find(":\\")
    while at >= 0:
        found = _DRIVE_PATH.match(text, max(at - 1, 0))
        if found:
            yield found
        at = text.find(":\\", found.end() if found else at + 2)


def _names(text: str) -> Iterator[Found]:
    """Find names of files that stand alone, by their ending."""
    for found in _NAME_TAIL.finditer(text):
        at = found.start()
        head = text[max(0, at - _NAME_CHARACTERS) : at]
        start = at - len(head) + len(head.rstrip(_PATH_CHARACTERS))
        if start == at:
            # A name in a script without spaces has no start that could be told from the sentence.
            floor = max(0, at - 20)
            while start > floor and text[start - 1].isalnum():
                start -= 1
        if start < at and (start == 0 or text[start - 1] not in "/\\"):
            yield start, FactKind.ARTIFACT, text[start : found.end()]


def _identifiers(text: str, mapped: bytes) -> Iterator[Found]:
    """Find UUIDs, and runs of hexadecimal digits that hold a digit and a letter."""
    at = mapped.find(_HEX_RUN)
    while at >= 0:
        end = mapped.find(b" ", at)
        end = len(mapped) if end < 0 else end
        start = at - 24 if end - at == 12 and at >= 24 and _UUID_HEAD.fullmatch(text, at - 24, at) else at
        # Inside a longer word, as in base64, it is no identifier.
        alone = not (start > 0 and text[start - 1].isalnum()) and not (end < len(text) and text[end].isalnum())
        run = text[start:end]
        if alone and (start < at or not (run.isdigit() or run.isalpha())):
            yield start, FactKind.IDENTIFIER, run
        at = mapped.find(_HEX_RUN, end)


def _prompts(text: str) -> Iterator[Found]:
    """Find commands as a terminal shows them: `$ command` at the start of a line."""
    at = text.find("$ ")
    while at >= 0:
        before = text[max(0, at - 8) : at].rstrip(" \t")
        if before.endswith("\n") or (not before and at <= 8):
            yield at, FactKind.COMMAND, text[at + 2 : at + 402].split("\n", 1)[0]
        at = text.find("$ ", at + 2)
