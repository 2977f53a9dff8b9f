"""Who may import whom: the tables below *are* the architecture, and this file keeps them true.

Every import counts, also lazy ones inside functions and those under `TYPE_CHECKING`:
the tables are about what a module knows, not about what happens to be loaded.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path, PurePosixPath

import pytest

SRC = Path(__file__).resolve().parents[1] / "src" / "slidegate"
FILES = sorted(path.relative_to(SRC).as_posix() for path in SRC.rglob("*.py"))

# area -> (other areas it may import, third-party packages it may import)
ALLOWED: dict[str, tuple[set[str], set[str]]] = {
    "core": (set(), set()),
    "limiter": ({"core", "stores"}, {"anyio"}),
    "netlists": ({"core"}, set()),
    "outbound": ({"core", "limiter"}, {"anyio", "httpx", "http_sf"}),
    "stores": ({"core"}, {"lmdb", "redis", "hiredis"}),
    "web": ({"core", "limiter", "netlists"}, {"starlette", "anyio", "pydantic", "pydantic_core"}),
    "ops": (
        {"core", "limiter", "netlists", "stores", "web"},
        {
            "anyio",
            "click",
            "itsdangerous",
            "opentelemetry",
            "prometheus_client",
            "rich",
            "starlette",
            "tomli_w",
            "uvicorn",
            "zstandard",
        },
    ),
    "testing": ({"core", "limiter", "stores"}, {"hypothesis", "pytest"}),
    "__main__": ({"ops"}, set()),
    "admin": ({"ops"}, set()),
    "httpx": ({"outbound"}, set()),
    "otel": ({"ops"}, set()),
    "prometheus": ({"ops"}, set()),
    "dashboard": ({"ops"}, set()),
    "__init__": ({"core", "limiter", "netlists", "stores", "web"}, set()),
}
# Names that several files share, because each does the same for another store, or adds files to it -> where.
TWINS: dict[str, set[str]] = {
    "store.py": {"stores/lmdb", "stores/memory", "stores/redis"},
    "bans.py": {"stores/lmdb/bans", "stores/memory", "stores/redis/bans"},
    "ban_codec.py": {"stores/lmdb/bans", "stores/redis/bans"},
    "known_refusals.py": {"stores/lmdb", "stores/redis"},
    "networks.py": {"core", "netlists"},
    "observers.py": {"core", "testing"},
}
MOST_FILES = 14
"""The largest number of files in one package, beside its `__init__.py`: as many as a reader takes in at a glance."""

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


def module_of(file: str) -> str:
    """Return the dotted name by which a file, relative to src/slidegate, is imported."""
    parts = PurePosixPath("slidegate", file).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def names_of(tree: ast.Module, package: tuple[str, ...]) -> Iterator[str]:
    """Yield the absolute dotted name of everything that a file imports, a name out of a module as `module.name`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            inside = (*base, node.module) if node.module else base
            yield from (".".join((*inside, alias.name)) for alias in node.names)


def graph_of(sources: Mapping[str, str]) -> dict[str, set[str]]:
    """Return which files each file imports, out of (file relative to src/slidegate -> source)."""
    files = {module_of(file): file for file in sources}
    graph = {}
    for file, source in sources.items():
        known = set()
        for name in names_of(ast.parse(source), ("slidegate", *PurePosixPath(file).parent.parts)):
            # `from .memo import Memo` names a thing in a module, `from . import memo` a module in a package.
            known.add(files.get(name) or files.get(name.rpartition(".")[0]))
        graph[file] = {other for other in known if other and other != file}
    return graph


def circle_in(graph: Mapping[str, set[str]]) -> list[str]:
    """Return the files of one circle, in the order of their imports."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        # The sorter speaks of predecessors: in its list each file is imported by the next one.
        return list(reversed(error.args[1]))
    return []


def beside(graph: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Return which packages each package imports, out of those that lie in one package with it."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for file, others in graph.items():
        for other in others:
            one, two = PurePosixPath(file).parent, PurePosixPath(other).parent
            if one != two and one.parent == two.parent:
                found[one.as_posix()].add(two.as_posix())
    return found


def crowded(files: Iterable[str]) -> dict[str, int]:
    """Return how many files each package holds that holds too many."""
    held: defaultdict[str, int] = defaultdict(int)
    for file in map(PurePosixPath, files):
        held[file.parent.as_posix()] += file.name != "__init__.py"
    return {package: count for package, count in held.items() if count > MOST_FILES}


def namesakes(files: Iterable[str]) -> dict[str, set[str]]:
    """Return the names that several files have -> the packages of those files."""
    packages: defaultdict[str, set[str]] = defaultdict(set)
    for file in map(PurePosixPath, files):
        packages[file.name].add(file.parent.as_posix())
    return {name: where for name, where in packages.items() if name != "__init__.py" and len(where) > 1}


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
        "web/a.py: import httpx",
        "web/a.py: from ..outbound import transport",
        "outbound/a.py: from ..web import gate",
        "httpx.py: from .limiter import Limiter",
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


# -- circles, crowds and namesakes ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def graph() -> dict[str, set[str]]:
    """Which file of the package imports which."""
    return graph_of({file: (SRC / file).read_text(encoding="utf-8") for file in FILES})


def test_no_files_import_each_other_in_a_circle(graph: dict[str, set[str]]) -> None:
    if circle := circle_in(graph):
        pytest.fail("a circle of imports: " + " -> ".join(circle), pytrace=False)


def test_packages_beside_each_other_import_one_way(graph: dict[str, set[str]]) -> None:
    if circle := circle_in(beside(graph)):
        pytest.fail("a circle of packages: " + " -> ".join(circle), pytrace=False)


def test_a_circle_of_packages_is_found_where_no_files_are_in_one() -> None:
    graph = graph_of({
        "web/keys/a.py": "from ..paths.a import A", "web/keys/b.py": "", "web/paths/a.py": "",
        "web/paths/b.py": "from ..keys.b import B",
    })  # fmt: skip
    assert not circle_in(graph)
    assert set(circle_in(beside(graph))) == {"web/keys", "web/paths"}


def test_the_graph_holds_the_arrows_that_are_there(graph: dict[str, set[str]]) -> None:
    assert "core/errors.py" in graph["core/limits.py"]
    assert sum(map(len, graph.values())) > 2 * len(FILES)


@pytest.mark.parametrize(
    "sources",
    [
        {"core/a.py": "from .b import B", "core/b.py": "from .a import A"},
        {"core/a.py": "from . import b", "core/b.py": "from slidegate.core import a"},
        {"core/a.py": "import slidegate.core.b", "core/b.py": "def f():\n    from .a import A"},
        {"core/a.py": "from .b import B", "core/b.py": "if TYPE_CHECKING:\n    from .a import A"},
        {"web/a.py": "from .x.b import B", "web/x/b.py": "from .c import C", "web/x/c.py": "from ..a import A"},
        {"web/__init__.py": "from .a import A", "web/a.py": "from . import A"},
        {"web/x/__init__.py": "from .b import B", "web/x/b.py": "from ..a import A", "web/a.py": "from .x import B"},
    ],
)
def test_a_circle_is_found_however_it_is_imported(sources: dict[str, str]) -> None:
    graph = graph_of(sources)
    circle = circle_in(graph)
    assert set(circle) == set(sources)
    assert all(other in graph[file] for file, other in pairwise(circle))


def test_what_only_looks_like_a_circle_is_none() -> None:
    sources = {"core/a.py": "from .b import a", "core/b.py": "import a", "core/__init__.py": "from .a import a"}
    assert not circle_in(graph_of(sources))


def test_no_package_holds_more_files_than_a_reader_takes_in() -> None:
    assert not crowded(FILES)
    assert crowded([*(f"web/{number}.py" for number in range(MOST_FILES + 1)), "web/__init__.py", "web/x/a.py"])


def test_files_of_one_name_do_like_things() -> None:
    assert namesakes(FILES) == TWINS
    assert namesakes(["web/a.py", "core/a.py", "web/__init__.py", "core/__init__.py"]) == {"a.py": {"web", "core"}}
