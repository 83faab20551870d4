"""The shape of the package: the table in the README says which module may import which, and the code keeps to it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
MODULES = {path.stem: path for path in (ROOT / "squilla_files").glob("*.py")}
MAX_LINES = 450
FIRST_ASYNC_LAYER = 6
# What a module may ask of `os` without going through `Files`: nothing that touches a file of a store.
PURE_OS = {
    *(
        "environ",
        "fspath",
        "getpid",
        "path",
        "PathLike",
        "register_at_fork",
        "sep",
        "stat_result",
        "strerror",
        "urandom",
    )
}
# Besides `files`: a store ":memory:" comes and goes with the engine, the machine's own id and its mounts are no files
# of a store.
DISK = {"files", "engine", "devices", "notifying"}
# Where the application's own code is called, which may raise anything: module → function.
CALLBACKS = {("compaction", "_ask_summarizer")}


@cache
def table() -> dict[str, int]:
    """Return module → layer, in the order of the README's table."""
    section = (ROOT / "README.md").read_text(encoding="utf-8").partition("\n## Reading the source\n")[2]
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \| \S.*\|$", section, re.MULTILINE)
    assert len(rows) == len({module for _, module in rows})
    return {module: int(layer) for layer, module in rows}


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text(encoding="utf-8"))


def imported(module: str) -> set[str]:
    """Return the modules of the package that *module* imports, those for type checkers included."""
    found = set()
    for node in ast.walk(tree(module)):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        if isinstance(node, ast.ImportFrom) and node.module == "squilla_files":
            names = [f"squilla_files.{name}" for name in names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module}:{node.lineno}: a relative import"
            names = [node.module or ""]
        found |= {name.split(".")[1] for name in names if name.startswith("squilla_files.")}
    return found


def functions(module: str) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree(module)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def handlers(module: str) -> Iterator[tuple[str, ast.ExceptHandler]]:
    """Yield the handlers for whatever is raised, each with the function in which it stands."""
    for function in functions(module):
        for node in ast.walk(function):
            if isinstance(node, ast.ExceptHandler):
                caught = ast.unparse(node.type) if node.type else "BaseException"
                if re.search(r"\b(Base)?Exception\b", caught):
                    yield function.name, node


def test_the_table_lists_each_module_and_the_layers_ascend() -> None:
    assert set(table()) == set(MODULES)
    assert list(table().values()) == sorted(table().values())


def test_a_module_imports_only_from_those_above_it_in_the_table() -> None:
    order = list(table())
    allowed = {module: set(order[:place]) for place, module in enumerate(order)}
    assert {m: wrong for m in order if (wrong := imported(m) - allowed[m])} == {}


def test_no_function_imports() -> None:
    inner = [(m, node) for m in MODULES for function in functions(m) for node in ast.walk(function)]
    assert [(m, node.lineno) for m, node in inner if isinstance(node, ast.Import | ast.ImportFrom)] == []


def test_whatever_is_raised_goes_on_except_from_what_the_application_passed_in() -> None:
    swallowing = {
        (module, function)
        for module in MODULES
        for function, handler in handlers(module)
        if not any(isinstance(node, ast.Raise) for node in ast.walk(handler))
    }
    assert swallowing == CALLBACKS


def test_the_disk_is_touched_through_files_alone() -> None:
    touching = {}
    for module in MODULES.keys() - DISK:
        nodes = list(ast.walk(tree(module)))
        names = {node.id for node in nodes if isinstance(node, ast.Name)}
        of_os = {n.attr for n in nodes if isinstance(n, ast.Attribute) and ast.unparse(n.value) == "os"}
        touching[module] = of_os - PURE_OS | names & {"open", "Path", "shutil", "tempfile"}
    assert {module: used for module, used in touching.items() if used} == {}


def test_what_lies_below_the_store_is_synchronous() -> None:
    below = [module for module, layer in table().items() if layer < FIRST_ASYNC_LAYER]
    assert len(below) > 30
    assert [(m, f.name) for m in below for f in functions(m) if isinstance(f, ast.AsyncFunctionDef)] == []


def test_no_module_is_too_long_to_be_read_at_once() -> None:
    lines = {module: len(path.read_text(encoding="utf-8").splitlines()) for module, path in MODULES.items()}
    assert {module: count for module, count in lines.items() if count > MAX_LINES} == {}
