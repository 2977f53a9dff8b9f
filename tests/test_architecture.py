"""Who may import whom: the table below is the architecture.

Every import counts, lazy ones inside functions and those under `TYPE_CHECKING` too.
"""

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import slidegate.core
import slidegate.events
import slidegate.windows

SRC = Path(__file__).resolve().parents[1] / "src" / "slidegate"
# A room -> the other rooms that it may import, and the packages of others.
ALLOWED: dict[str, tuple[set[str], set[str]]] = {
    "core": (set(), set()),
    "stores": ({"core"}, {"lmdb", "redis", "hiredis"}),
    "limiter": ({"core", "stores"}, {"anyio"}),
    "web": (
        {"core", "limiter"},
        {"starlette", "anyio", "annotationlib"},  # the last one is Python's, from 3.14 on
    ),
    "files": ({"_watcher", "core", "limiter", "networks", "web"}, {"starlette"}),
    "networks": ({"_watcher", "core", "limiter", "web"}, {"starlette", "maxminddb"}),
    "findings": ({"_path_examples", "core", "limiter", "web"}, {"starlette"}),
    "windows": ({"core"}, set()),
    "testing": ({"core", "events", "limiter"}, set()),
    "ops": (
        {"core", "events", "limiter", "web", "windows"},
        {"anyio", "click", "jinja2", "markupsafe", "opentelemetry", "prometheus_client", "rich", "starlette"},
    ),
    "__main__": ({"ops"}, set()),
    "dashboard": ({"ops"}, set()),
    "events": ({"core", "limiter", "web"}, set()),
    "httpx": ({"_outbound"}, {"httpx"}),
    "httpx2": ({"_outbound"}, {"httpx2"}),
    "_outbound": ({"core", "limiter", "_pauses"}, {"anyio"}),
    "openapi": ({"_path_examples", "core", "limiter", "web"}, {"starlette"}),
    "_path_examples": (set(), {"starlette"}),
    "_pauses": (set(), set()),
    "_watcher": ({"core"}, set()),
    "otel": ({"ops"}, set()),
    "prometheus": ({"ops"}, set()),
    "__init__": ({"core", "files", "findings", "limiter", "networks", "stores", "web"}, set()),
}
PUBLIC = {
    module.__name__: {*module.__all__} for module in (slidegate, slidegate.core, slidegate.events, slidegate.windows)
}
PUBLIC["slidegate"] |= {"__version__", "__compiled__"}
"""The names that stand outside the library import."""
SEAMS = {
    # What methods of a limiter return, as docs/reference/api.md documents it; and the switch of `slidegate.testing`.
    "slidegate.limiter": {"Limiter", "Action", "Override", "Publication", "PublishedRule", "inspect_keys"}
    | {"let_others_run", "yielding_to_others"}
    | {"all_callers", "keys_refusing", "reset_all", "switch_all", "use_clock"},
    "slidegate.core.addresses": {"AddressRange", "network_of"},  # whether a key is an address or a network
    "slidegate.core.bans.policy": {"PRIVATE"},  # which addresses are within an operator's network
    "slidegate.core.memo": {"MANY", "MEMO_SIZE", "remember"},
    "slidegate.web.start": {"FailsAtStartup"},  # `slidegate check` shows the errors that such middlewares keep
    # `slidegate simulate` shows which endpoints have limits that it leaves out.
    "slidegate.web.endpoints": {"rules_of_route"},
    "slidegate.web.routes": {"mounted_routes"},
    "slidegate.core.exceeded": {"RateLimitExceeded"},
    **dict.fromkeys(
        f"slidegate.core.{name}"
        for name in ["arguments", "durations", "errors", "limits", "logs", "options", "passwords", "stored"]
    ),
}
"""Further modules that it may import, with the names; None for all public ones: texts, and checks of arguments."""
OF_NAMED_TUPLES = {"_asdict", "_fields", "_make", "_replace"}
AROUND = [*(SRC / f"{name}.py" for name in ("_outbound", "httpx", "httpx2", "testing"))]
AROUND.append(SRC.parent / "slidegate_pytest.py")
LIBRARY = {"core", "stores", "limiter", "web"}
"""What every application runs. The other rooms are tools, and none of these imports any of them."""
BESIDE = {"files", "findings", "networks", "windows"}
"""Rooms that import the library, which imports none of them: what a request does not need is not read with it."""
CLOCKS = {"asyncio", "time"}
"""Modules that the core may not import: it takes `now_us` as an argument."""


def imports(file: Path, source: str) -> Iterator[str]:
    """Yield the absolute dotted name of everything that a file imports."""
    package = file.relative_to(SRC.parent).parent.parts
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = (*base, node.module) if node.module else base
            yield from (".".join((*module, alias.name)) for alias in node.names)


def is_allowed(room: str, name: str) -> bool:
    """Tell whether a file of a room may import a name."""
    rooms, packages = ALLOWED[room]
    top, _, below = name.partition(".")
    if top == "slidegate":
        is_named_by_room = room in LIBRARY or room in BESIDE
        return below.partition(".")[0] in {room, *rooms} or (below in PUBLIC["slidegate"] and not is_named_by_room)
    return top in {*packages, *sys.stdlib_module_names} and not (room == "core" and top in CLOCKS)


def test_every_import_is_allowed() -> None:
    rooms = {file: file.relative_to(SRC).parts[0].removesuffix(".py") for file in SRC.rglob("*.py")}
    imported = [(file, name) for file in rooms for name in imports(file, file.read_text("utf-8"))]
    assert [(str(file), name) for file, name in imported if not is_allowed(rooms[file], name)] == []
    assert {*rooms.values()} == set(ALLOWED)


def reaches(file: Path) -> list[str]:
    """Return what a file outside the library uses beside public names: other imports, `engine`, private attributes."""
    source, found = file.read_text("utf-8"), []
    for name in imports(file, source):
        module, _, last = name.rpartition(".")
        if not name.startswith("slidegate.") or name.startswith(
            ("slidegate.ops", "slidegate._outbound", "slidegate._pauses", "slidegate.testing")
        ):
            continue
        public = PUBLIC.get(module, SEAMS.get(module, set()))
        if not (last in public if public is not None else last[0] != "_"):
            found.append(name)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and not node.attr.startswith("__"):
            own = ast.unparse(node.value) in ("self", "cls", "super()") or node.attr in OF_NAMED_TUPLES
            if node.attr == "engine" or (node.attr[0] == "_" and not own):
                found.append(ast.unparse(node))
    return found


def test_what_stands_around_the_library_imports_public_names_alone() -> None:
    found = {file.name: names for file in (*AROUND, *SRC.glob("ops/**/*.py")) if (names := reaches(file))}
    assert found == {}


def test_the_library_imports_no_tool() -> None:
    assert set().union(*(ALLOWED[room][0] for room in LIBRARY)) <= LIBRARY


# -- circles ----------------------------------------------------------------------------------------------------------


@cache
def file_of(name: str) -> Path | None:
    """Return the file of an absolute dotted name, or the one that defines it; None if it is not of this package."""
    path = SRC.parent.joinpath(*name.split("."))
    for one in (path, path.parent):
        for file in (one.with_suffix(".py"), one / "__init__.py"):
            if file.is_file() and SRC in file.parents:
                return file
    return None


def circles(sources: dict[Path, str]) -> list[set[str]]:
    """Return the groups of files that import each other, directly or by way of others, given the source of each."""
    reached = {file: {file_of(name) for name in imports(file, source)} & {*sources} for file, source in sources.items()}
    # Warshall: after each round the ways through one more file are among those that are known.
    for through in sources:
        for file in sources:
            if through in reached[file]:
                reached[file] |= reached[through]
    groups = {frozenset(other for other in reached[file] if file in reached[other]) for file in sources}
    return [{file.relative_to(SRC).as_posix() for file in group} for group in groups if group]


def test_no_file_imports_itself_by_way_of_others() -> None:
    # Packages import what they are made of, which imports others by their names.
    files = [file for file in SRC.rglob("*.py") if file.name != "__init__.py"]
    assert circles({file: file.read_text("utf-8") for file in files}) == []


def under_a_lock(source: str) -> Iterator[ast.stmt]:
    """Yield what stands in a `with` of a lock, or in a `try` that releases one."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.With) and re.search("lock|_all", ast.unparse(node.items[0].context_expr)):
            yield from node.body
        if isinstance(node, ast.Try) and "release" in ast.unparse([*node.handlers, *node.finalbody]):
            yield from node.body


def loops_that_end_in_a_condition(statement: ast.stmt) -> Iterator[ast.expr | ast.stmt]:
    """Yield the loops of a statement whose last step may be skipped, comprehensions of this frame included."""
    for node in ast.walk(statement):
        if isinstance(node, (ast.For, ast.While)) and isinstance(node.body[-1], ast.If):
            yield node
        if isinstance(node, (ast.ListComp, ast.DictComp, ast.SetComp)) and node.generators[-1].ifs:
            yield node


def test_no_loop_under_a_lock_ends_in_a_condition() -> None:
    """There CPython 3.14 leaves `with` and `try` without their end, if a signal handler raises: it stays locked."""
    found: list[str] = []
    for file in SRC.rglob("*.py"):
        for statement in under_a_lock(file.read_text("utf-8")):
            found += [f"{file.name}:{loop.lineno}" for loop in loops_that_end_in_a_condition(statement)]
    assert found == []
