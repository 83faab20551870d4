"""The README is true: its code runs, in order, in one directory, and the tree that it shows is what is then there."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from squilla_files import SessionManager, SessionStorage

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
TOOLS = ("bash", "jq", "grep", "tail")
LISTED = r"""agent:main:(?:fork \(no title\)|main Weather) running
agent:main:(?:fork \(no title\)|main Weather) running
agent:main:main .*>>>snow<<<.*
agent:main:main .*>>>snow<<<.*
\[\]
agent:main:fork reset_same_key 3
"""


class Block(NamedTuple):
    language: str
    code: str


BLOCKS = [Block(*found) for found in re.findall(r"^```(.*?)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)]
COMMANDS = [block.code.strip() for block in BLOCKS if block.code.startswith("python3 -m venv")]
PROGRAMS = [block.code for block in BLOCKS if block.language == "python" and "asyncio.run(" in block.code]
SUBSCRIBERS = [block.code for block in BLOCKS if block.language == "python" and ".watch(" in block.code]
SHELL = [block.code for block in BLOCKS if block.language == "sh" and block.code.strip() not in COMMANDS]
TREES = [block.code for block in BLOCKS if block.language == "text"]


def printed(*command: str, cwd: Path) -> str:
    environment = os.environ | {"SQUILLA_FILES_DEVICE": "laptop"}
    done = subprocess.run(command, capture_output=True, encoding="utf-8", cwd=cwd, env=environment, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory in which all programs of the README have run."""
    made = tmp_path_factory.mktemp("readme")
    shown = [printed(sys.executable, "-X", "utf8", "-W", "error", "-c", code, cwd=made) for code in PROGRAMS]
    assert "tool -4 °C, snow\n" in shown[0]
    assert shown[1].startswith("4 5\nsystem Asked about Oslo.\nassistant I look it up.\n")
    assert shown[1].endswith("\nAnd in Bergen?\n")
    assert re.fullmatch(LISTED, shown[2])
    return made


def paths_in(tree: str) -> Iterator[str]:
    """Yield the paths in a tree that is drawn by indentation, as patterns where a part of a name is random."""
    parents: list[str] = []
    for line in tree.splitlines():
        name = line.split()[0]
        depth = (len(line) - len(line.lstrip())) // 2
        parents[depth:] = [name.rstrip("/")]
        yield re.sub(r"\.[0-9a-f]{8,16}\.json$", ".*.json", "/".join(parents))


def test_each_block_is_of_a_kind_that_is_tried() -> None:
    kinds = (COMMANDS, PROGRAMS, SUBSCRIBERS, SHELL, TREES)
    assert [len(kind) for kind in kinds] == [2, 3, 1, 2, 1]
    assert sum(map(len, kinds)) == len(BLOCKS)


def test_the_first_command_shows_the_example_and_the_second_runs_these_tests() -> None:
    steps = [[shlex.split(step) for step in command.split(" && ")] for command in COMMANDS]
    assert [step for command in steps for step in command[:2]] == [
        ["python3", "-m", "venv", ".venv"],
        [".venv/bin/pip", "install", "."],
        ["python3", "-m", "venv", ".venv"],
        [".venv/bin/pip", "install", "-e", ".[dev]"],
    ]
    assert [command[2:] for command in steps] == [
        [[".venv/bin/python", "examples/quickstart.py"]],
        [[".venv/bin/python", "-m", "tests"]],
    ]
    assert (ROOT / "examples" / "quickstart.py").is_file()
    assert (ROOT / "tests" / "__main__.py").is_file()


def test_the_first_program_can_run_again(tmp_path: Path) -> None:
    first, second = (printed(sys.executable, "-X", "utf8", "-c", PROGRAMS[0], cwd=tmp_path) for _ in range(2))
    assert (first.count("tool -4 °C, snow\n"), second.count("tool -4 °C, snow\n")) == (1, 2)


def test_the_tree_is_what_the_programs_leave(directory: Path) -> None:
    shown = list(paths_in(TREES[0]))
    found = {match for pattern in shown for match in directory.glob(pattern)}
    assert [pattern for pattern in shown if not list(directory.glob(pattern))] == []
    assert {path for path in directory.rglob("*") if path not in found and ".local" not in path.parts} == set()


@pytest.mark.skipif(not all(map(shutil.which, TOOLS)), reason="these tools are not on every machine")
def test_the_usual_tools_read_the_store(directory: Path) -> None:
    reading, following = (printed("bash", "-ec", code.replace(" -f ", " "), cwd=directory) for code in SHELL)
    assert "tool: -4 °C, snow\n" in reading
    assert '"display_name": "Weather"' in reading
    assert "\n5\n" in reading
    assert "/agent-main-main~6d9217fe77c7f11d/archive/transcript.laptop.000001.jsonl\n" in reading
    assert " -f " in SHELL[1]
    assert "And in Bergen?" in following


async def test_the_subscriber_prints_what_is_said_until_the_session_is_deleted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program: dict[str, object] = {}
    exec(SUBSCRIBERS[0], program)  # noqa: S102
    async with SessionStorage(tmp_path) as store, SessionStorage(tmp_path) as other:
        manager = SessionManager(other)
        await manager.create("agent:main:main")
        subscriber = asyncio.create_task(program["follow"](store))  # type: ignore[operator]
        shown = ""
        while "assistant Hello!" not in shown:  # it begins with what is written after its first step
            await manager.append_message("agent:main:main", "assistant", "Hello!")
            shown += capsys.readouterr().out
        await other.delete_session("agent:main:main")
        await subscriber
