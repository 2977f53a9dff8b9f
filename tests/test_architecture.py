"""Who may import whom: the table below is the architecture.

Every import counts, lazy ones inside functions and those under `TYPE_CHECKING` too.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

SRC = Path(__file__).resolve().parents[1] / "src" / "slidegate"
# A room -> the other rooms that it may import, and the packages of others.
ALLOWED: dict[str, tuple[set[str], set[str]]] = {
    "core": (set(), set()),
    "stores": ({"core"}, {"lmdb", "redis", "hiredis"}),
    "limiter": ({"core", "stores"}, {"anyio"}),
    "web": ({"core", "limiter"}, {"starlette", "anyio", "maxminddb", "pydantic", "pydantic_core"}),
    "stats": ({"core", "limiter", "stores"}, {"anyio"}),
    "admin": ({"core", "limiter", "stats", "web"}, {"anyio", "pydantic", "pydantic_core", "starlette"}),
    "logs": ({"core"}, set()),
    "simulation": ({"core", "limiter", "logs", "stores", "web"}, {"anyio", "starlette"}),
    "cli": ({"core", "limiter", "admin", "logs", "simulation", "stats", "stores", "web"}, {"click", "starlette"}),
    "testing": ({"core", "events", "limiter"}, set()),
    "ops": (
        {"core", "events", "limiter", "web"},
        {"anyio", "click", "jinja2", "markupsafe", "opentelemetry", "prometheus_client", "rich", "starlette"},
    ),
    "__main__": ({"cli"}, set()),
    "dashboard": ({"admin"}, set()),
    "events": ({"core", "limiter", "web"}, set()),
    "httpx": ({"core", "limiter"}, {"anyio", "httpx", "http_sf"}),
    "otel": ({"ops"}, set()),
    "prometheus": ({"ops"}, set()),
    "__init__": ({"core", "limiter", "stores", "web"}, set()),
}
LIBRARY = {"core", "stores", "limiter", "web"}
"""What every application runs. The other rooms are tools, and none of these imports any of them."""
CLOCKS = {"asyncio", "time"}
"""Modules that the core may not import: it takes `now_us` as an argument."""


def imports(file: Path, source: str) -> Iterator[str]:
    """Yield the absolute dotted name of everything that a file imports."""
    package = ("slidegate", *file.relative_to(SRC).parent.parts)
    for node in ast.walk(ast.parse(source)):
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


def test_every_import_is_allowed() -> None:
    sources = {file: file.read_text("utf-8") for file in SRC.rglob("*.py")}
    found = {str(file): names for file, source in sources.items() if (names := refused(file, source))}
    assert found == {}
    assert {file.relative_to(SRC).parts[0].removesuffix(".py") for file in sources} == set(ALLOWED)


def test_the_library_imports_no_tool() -> None:
    assert set().union(*(ALLOWED[room][0] for room in LIBRARY)) <= LIBRARY
