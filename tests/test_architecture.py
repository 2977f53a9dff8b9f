"""Who may import whom: the table below *is* the architecture, and this file keeps it true.

Every import counts, also lazy ones inside functions and those under `TYPE_CHECKING`:
the table is about what a module knows, not about what happens to be loaded.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

SRC = Path(__file__).resolve().parents[1] / "src" / "slidegate"
FILES = sorted(path.relative_to(SRC).as_posix() for path in SRC.rglob("*.py"))

# area -> (other areas it may import, third-party packages it may import)
ALLOWED: dict[str, tuple[set[str], set[str]]] = {
    "core": (set(), set()),
    "limiter": ({"core", "stores"}, set()),
    "netlists": ({"core"}, set()),
    "stores": ({"core"}, {"lmdb", "redis", "hiredis"}),
    "web": ({"core", "limiter", "netlists"}, {"starlette", "anyio", "pydantic", "pydantic_core"}),
    "ops": ({"core", "limiter", "netlists", "stores", "web"}, {"starlette"}),
    "testing": ({"core", "limiter", "stores"}, {"hypothesis", "pytest"}),
    "__init__": ({"core", "limiter", "netlists", "stores", "web"}, set()),
}
ASYNC = (ast.AsyncFunctionDef, ast.Await, ast.AsyncFor, ast.AsyncWith)
CLOCK = re.compile(r"^time\.\w+$|\b(datetime|date)\.(now|utcnow|today)$")


def imports(tree: ast.Module, package: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """Yield (line, absolute dotted name) of every module the file imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            yield node.lineno, ".".join((*base, node.module) if node.module else base)


def area_of(file: str) -> str:
    """Return the room that a file, relative to src/slidegate, belongs to."""
    return PurePosixPath(file).parts[0].removesuffix(".py")


def broken_rules(file: str, source: str) -> Iterator[str]:
    """Yield one sentence for each rule that `file` (relative to src/slidegate) breaks."""
    path, tree, area = PurePosixPath(file), ast.parse(source), area_of(file)
    if area not in ALLOWED:
        yield f"{file}: unknown area {area!r}; give it a row in ALLOWED"
        return
    areas, packages = ALLOWED[area]
    for line, name in imports(tree, ("slidegate", *path.parent.parts)):
        top, _, rest = name.partition(".")
        other = rest.partition(".")[0]
        if name == "slidegate":
            yield f"{file}:{line} imports the root package; import from the module that defines the name"
        elif top == "slidegate" and other not in {area, *areas}:
            yield f"{file}:{line} {area} may not import {other}; allowed: {sorted(areas) or 'itself only'}"
        elif top not in {"slidegate", *packages, *sys.stdlib_module_names}:
            yield f"{file}:{line} {area} may not import {top}; allowed: {sorted(packages) or 'stdlib only'}"
        elif area == "core" and top in {"asyncio", "time"}:
            yield f"{file}:{line} core may not import {top}; take `now_us: int` as an argument"
    for node in ast.walk(tree) if area == "core" else ():
        if isinstance(node, ASYNC):
            yield f"{file}:{node.lineno} core is synchronous; a protocol may say `def f(...) -> Awaitable[T]`"
        elif isinstance(node, ast.Attribute) and CLOCK.search(ast.unparse(node)):
            yield f"{file}:{node.lineno} core reads no clock ({ast.unparse(node)}); take `now_us: int` as an argument"


def test_there_is_something_to_check() -> None:
    assert FILES, f"no Python files under {SRC}"


@pytest.mark.parametrize("file", FILES)
def test_file_obeys_the_import_table(file: str) -> None:
    if broken := list(broken_rules(file, (SRC / file).read_text(encoding="utf-8"))):
        pytest.fail("\n".join(broken), pytrace=False)


def test_no_row_outlives_its_room() -> None:
    assert set(ALLOWED) == {area_of(file) for file in FILES}


@pytest.mark.parametrize(
    "case",
    [
        "core/a.py: import redis",
        "core/a.py: from ..stores import memory",
        "core/a.py: async def f(): ...",
        "core/a.py: import time",
        "core/a.py: from time import monotonic_ns",
        "core/a.py: import asyncio",
        "core/a.py: t = datetime.datetime.now()",
        "limiter.py: from .web import rules",
        "stores/a.py: import slidegate.web.keys.key",
        "stores/a.py: import starlette",
        "web/a.py: from .. import core",
        "web/a.py: from ..ops import accesslog",
        "web/a.py: import fastapi",
        "web/a.py: def f():\n    import fastapi",
        "ops/a.py: import slidegate",
        "testing.py: import httpx",
        "__init__.py: from .ops import accesslog",
        "new/a.py: x = 1",
    ],
)
def test_every_rule_bites(case: str) -> None:
    file, _, source = case.partition(": ")
    assert list(broken_rules(file, source)), f"{source!r} in {file} should have been refused"
