"""Who may import whom: the table below is the architecture.

Every import counts, lazy ones inside functions and those under `TYPE_CHECKING` too; but a circle that only annotations
close is none.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

SRC = Path(__file__).resolve().parents[1] / "src" / "slidegate"
# A room -> the other rooms that it may import, and the packages of others.
ALLOWED: dict[str, tuple[set[str], set[str]]] = {
    "core": (set(), set()),
    "stores": ({"core"}, {"lmdb", "redis", "hiredis"}),
    "limiter": ({"core", "stores"}, {"anyio"}),
    "web": ({"core", "limiter"}, {"starlette", "anyio", "pydantic", "pydantic_core"}),
    "stats": ({"core", "limiter", "stores"}, {"anyio"}),
    "admin": ({"core", "limiter", "stats", "web"}, {"anyio", "pydantic", "pydantic_core", "starlette"}),
    "logs": ({"core"}, set()),
    "metrics": (
        {"core", "limiter", "stats", "stores", "web"},
        {"opentelemetry", "prometheus_client", "starlette"},
    ),
    "simulation": ({"core", "limiter", "logs", "stores", "web"}, {"anyio", "starlette"}),
    "cli": (
        {"core", "limiter", "admin", "logs", "simulation", "stats", "stores", "web"},
        {"click", "starlette"},
    ),
    "testing": ({"core", "limiter", "stores"}, {"hypothesis", "pytest"}),
    "__main__": ({"cli"}, set()),
    "dashboard": ({"admin"}, set()),
    "events": ({"core", "limiter", "web"}, set()),
    "httpx": ({"core", "limiter"}, {"anyio", "httpx", "http_sf"}),
    "otel": ({"metrics"}, set()),
    "prometheus": ({"metrics"}, set()),
    "__init__": ({"core", "limiter", "stores", "web"}, set()),
}
LIBRARY = {"core", "stores", "limiter", "web"}
"""What every application runs. The other rooms are tools, and none of these imports any of them."""
CLOCKS = {"asyncio", "time"}
"""Modules that the core may not import: it takes `now_us` as an argument."""


class ForAnnotations(ast.NodeTransformer):
    """Takes out what is imported for annotations alone."""

    def visit_If(self, node: ast.If) -> ast.AST | None:
        return None if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING" else node


def imports(file: Path, source: str, *, for_annotations: bool = True) -> Iterator[str]:
    """Yield the absolute dotted name of everything that a file imports."""
    package = ("slidegate", *file.relative_to(SRC).parent.parts)
    tree = ast.parse(source)
    for node in ast.walk(tree if for_annotations else ForAnnotations().visit(tree)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = (*base, node.module) if node.module else base
            yield from (".".join((*module, alias.name)) for alias in node.names)


def refused(file: Path, source: str) -> list[str]:
    """Return the imports of a file that the table does not allow."""
    room = file.relative_to(SRC).parts[0].removesuffix(".py")
    rooms, packages = ALLOWED[room]
    found = []
    for name in imports(file, source):
        top, _, below = name.partition(".")
        if top == "slidegate":
            allowed = below.partition(".")[0] in {room, *rooms}
        else:
            allowed = top in {*packages, *sys.stdlib_module_names} and not (room == "core" and top in CLOCKS)
        if not allowed:
            found.append(name)
    return found


def graph(sources: dict[Path, str]) -> dict[Path, set[Path]]:
    """Return the files that each file imports."""
    modules = {}
    for file in sources:
        parts = ("slidegate", *file.relative_to(SRC).with_suffix("").parts)
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return {
        file: {
            other
            for name in imports(file, source, for_annotations=False)
            # `from .memo import Memo` names a thing in a module, `from . import memo` a module in a package.
            if (other := modules.get(name) or modules.get(name.rpartition(".")[0])) not in (None, file)
        }
        for file, source in sources.items()
    }


@pytest.fixture(scope="module")
def sources() -> dict[Path, str]:
    return {file: file.read_text("utf-8") for file in SRC.rglob("*.py")}


def test_every_import_is_allowed(sources: dict[Path, str]) -> None:
    found = {str(file): names for file, source in sources.items() if (names := refused(file, source))}
    assert found == {}
    assert {file.relative_to(SRC).parts[0].removesuffix(".py") for file in sources} == set(ALLOWED)


def test_the_library_imports_no_tool() -> None:
    assert set().union(*(ALLOWED[room][0] for room in LIBRARY)) <= LIBRARY


def test_no_files_import_each_other_in_a_circle(sources: dict[Path, str]) -> None:
    TopologicalSorter(graph(sources)).prepare()


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("core/a.py", "import redis"),
        ("core/a.py", "from ..stores import memory"),
        ("core/a.py", "from time import monotonic_ns"),
        ("stores/a.py", "import slidegate.web.keys"),
        ("web/a.py", "from ..ops import admin"),
        ("limiter/a.py", "from ..stats import Statistics"),
        ("web/a.py", "def f():\n    import fastapi"),
        ("web/a.py", "from slidegate import Limiter"),
        ("httpx.py", "from .stores import memory"),
    ],
)
def test_an_import_that_the_table_does_not_allow_is_found(file: str, source: str) -> None:
    assert refused(SRC / file, source)
