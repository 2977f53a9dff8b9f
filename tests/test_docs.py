"""What the README, the pages and the examples show is run, so that it cannot go stale.

* A python block runs, in order, with the blocks before it on its page; a block may `await`.
* A toml block is a configuration of the middleware; json and yaml blocks are read. Code of other programs is shown.
* The commands of a bash or console block are run by tests/pages, which also says how blocks are marked (blocks.py)."""

import ast
import asyncio
import importlib
import json
import re
import sys
import tomllib
import types
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from pkgutil import resolve_name
from typing import Final

import pytest
import yaml
from markdown import Markdown
from starlette.applications import Starlette
from starlette.types import Message

import slidegate
import slidegate.core
import slidegate.events
import slidegate.testing
from slidegate import RateLimitMiddleware
from slidegate.core.errors import StoreUnavailable
from slidegate.ops.cli.check import CODES as SUBJECTS

from .asgi import scope_of
from .pages.blocks import MARKED, SHELL, Block, blocks, varying
from .remote_stores import SlowStore
from .web.middlewares import mmdb

ROOT: Final = Path(__file__).resolve().parents[1]
LINK: Final = re.compile(r"\]\((?P<target>[^)\s]+)(?:\s+\"[^\"]*\")?\)")
ATTRIBUTE: Final = re.compile(r"\b(?:href|src|srcset)=\"(?P<target>[^\"\s]+)")
ID: Final = re.compile(r"\bid=\"([^\"]+)\"")
EXTENSIONS: Final = ["attr_list", "tables", "toc", "pymdownx.superfences"]
"""What of mkdocs.yml has a part in headings."""
CODES: Final = (
    *("SG102", "SG103", "SG104", "SG109", "SG110", "SG123", "SG126", "SG131", "SG132"),
    *("SG133", "SG134", "SG136", "SG137", "SG138", "SG139", "SG140", "SG142", "SG143", "SG144", "SG145"),
)
"""The codes of all findings; one that has gone is given to no other."""
DOCUMENTED: Final = re.compile(r"^::: ([\w.]+)$", re.MULTILINE)
"""Names that mkdocstrings replaces by signatures and docstrings."""
OF_THE_ROOT: Final = re.compile(r'--8<-- "([\w.]+)"')
"""What includes a file of the root."""
PROSE: Final = re.compile(r"^( *)(`{3,}|~{3,}).*?^\1\2$|`[^`\n]+`|<!--.*?-->", re.MULTILINE | re.DOTALL)


@cache
def text_of(page: Path) -> str:
    """Return the text of a page; that of a file of the root where the page stands for one."""
    text = page.read_text("utf-8")
    found = OF_THE_ROOT.match(text)
    return (ROOT / found[1]).read_text("utf-8") if found else text


@cache
def anchors(page: Path) -> frozenset[str]:
    """Return what may stand behind the # of a link to a page."""
    text = text_of(page)
    return frozenset((*ID.findall(Markdown(extensions=EXTENSIONS).convert(text)), *DOCUMENTED.findall(text)))


def links(text: str) -> list[str]:
    """Return the targets of the links and images of a page, outside of code."""
    prose = PROSE.sub(lambda found: "code" if found[0].startswith("`") else "", text)
    return [found["target"] for pattern in (LINK, ATTRIBUTE) for found in pattern.finditer(prose)]


def leads_somewhere(page: Path, target: str) -> bool:
    """Tell whether there are the file and the anchor that a link of a page names."""
    if re.match(r"\w+:", target):
        return True
    path, _, anchor = target.partition("#")
    file = (page.parent / path).resolve() if path else page
    if not file.is_relative_to(ROOT) or not file.exists():
        return False
    # Behind images the # says for which colours they are.
    return not anchor or (file.suffix == ".md" and anchor in anchors(file)) or anchor in {"only-light", "only-dark"}


SKILL = ROOT / "src" / "slidegate" / ".agents" / "skills" / "slidegate" / "SKILL.md"
"""People copy it to where their coding agent looks for skills; so it links to nothing."""
SITE = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [ROOT / "README.md", SKILL, *SITE]
OTHERS = [
    *(page for page in sorted(ROOT.glob("*.md")) if page not in PAGES),
    *(page for room in ("benchmarks", "examples", "tests") for page in sorted((ROOT / room).rglob("*.md"))),
]
WALKED = {ROOT / "README.md", ROOT / "docs" / "first_steps.md"}
"""tests/pages saves their files and types their commands, in terminals of a newcomer."""
TESTED = ROOT / "docs" / "how_to" / "testing_your_app.md"
"""tests/testing/test_switches.py saves its files and has pytest run them."""
RUN_HERE = [page for page in PAGES if page not in {*WALKED, TESTED}]
WITH_PYTHON = [page for page in RUN_HERE if any(one.language == "python" for one in blocks(page.read_text("utf-8")))]
# Anything else would be shown without being run: "py" and "sh" among others.
SHOWN = {"text", "http", "caddyfile", "dockerfile", "ini", "java", "javascript", "lua", "nginx", "ruby", "yaml"}
LANGUAGES = {"python", "json", "toml", *SHOWN, *SHELL}


MARKS = {
    None: (LANGUAGES, ""),
    "file": (LANGUAGES - SHELL, r"[\w.-]+"),
    "fragment": ({"toml"}, ".+"),
    "not run": (SHELL, ".+"),
    "needs": ({"python"}, r"[A-Za-z_]\w*"),
    "varies": (LANGUAGES, ".*"),
}
"""The languages of blocks with each mark, and what it may say."""


def is_misused(block: Block) -> bool:
    languages, value = MARKS[block.mark]
    is_known = block.language in languages and re.fullmatch(value, block.value)
    return not is_known or any(part not in block.code for part in varying(block))


def page_name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_every_block_is_marked_as_what_it_is(page: Path) -> None:
    text = page.read_text("utf-8")
    found = list(blocks(text))
    assert [block for block in found if is_misused(block)] == []
    assert text.count("```") == 2 * len(found), "a fence is not closed, or not at the start of its line"
    assert len(MARKED.findall(text)) == sum(block.mark is not None for block in found)


def run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """Run the Python of a page in a directory with its files, and return it as a module."""
    module, found = types.ModuleType("page"), list(blocks(page.read_text("utf-8")))
    monkeypatch.setitem(sys.modules, "page", module)  # where a dataclass or a forward reference looks itself up
    monkeypatch.chdir(tmp_path)
    # The files of operators and countries that pages take for granted.
    mmdb(tmp_path / "GeoLite2-ASN.mmdb", {"198.51.100.0/24": {"autonomous_system_number": 64500}})
    mmdb(tmp_path / "GeoLite2-Country.mmdb", {"192.0.2.0/24": {"country": {"iso_code": "NL"}}})
    for block in found:
        if block.mark == "file":
            (tmp_path / block.value).write_text(block.code, encoding="utf-8")
    with asyncio.Runner() as runner:
        for block in found:
            if block.language == "python" and (block.mark != "needs" or find_spec(block.value)):
                # As many empty lines as the page has above the block: a traceback then names the page's own line.
                source = "\n" * block.line + block.code
                code = compile(source, str(page), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
                if (running := eval(code, vars(module))) is not None:
                    runner.run(running)
    return module


# Other libraries, whose code some pages show, still ask for it where Python 3.14 wants another one asked.
@pytest.mark.filterwarnings("ignore:.*iscoroutinefunction:DeprecationWarning")
@pytest.mark.parametrize("page", WITH_PYTHON, ids=page_name)
def test_code_on_the_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(page, tmp_path, monkeypatch)


@pytest.mark.parametrize("fault", ["fails", "hangs"])
@pytest.mark.parametrize("name", ["site", "bank"])
def test_a_login_of_the_page_answers_right_passwords_while_its_store_is_away(
    name: str, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slidegate.limiter.limiter.MemoryStore", SlowStore)
    page = run(ROOT / "docs" / "guides" / "endpoints.md", tmp_path, monkeypatch)
    store = page.limiter.store
    store.hangs, store.error = fault == "hangs", StoreUnavailable("gone")

    async def receive() -> Message:
        return {"type": "http.request", "body": b'{"account": "ann", "password": "open sesame"}'}

    async def log_in() -> None:
        for _ in range(4):
            status: asyncio.Future[int] = asyncio.Future()

            async def send(message: Message, status: asyncio.Future[int] = status) -> None:
                if "status" in message:
                    status.set_result(message["status"])

            scope = scope_of("/login", "POST", headers={"Content-Type": "application/json"})
            request = asyncio.ensure_future(getattr(page, name)(scope, receive, send))
            assert await asyncio.wait_for(status, 10) == 200
            store.goes_on.set()
            await request
            store.goes_on.clear()

    asyncio.run(log_in())


def read_json(code: str) -> Iterator[object]:
    """Yield the document of a block, or those of its lines."""
    try:
        yield json.loads(code)
    except json.JSONDecodeError:
        yield from map(json.loads, code.splitlines())


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_data_on_the_page_is_what_it_says(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIDEGATE_STORE", "memory://")
    for block in blocks(page.read_text("utf-8")):
        if block.language == "json":
            assert list(read_json(block.code))
        elif block.language == "yaml":
            assert [*yaml.safe_load_all(block.code)]
        elif block.language == "toml" and block.mark == "fragment":
            tomllib.loads(block.code)
        elif block.language == "toml":
            (tmp_path / "slidegate.toml").write_text(block.code, "utf-8")
            RateLimitMiddleware.from_file(Starlette(), tmp_path / "slidegate.toml")


@pytest.mark.parametrize("page", [*PAGES, *OTHERS], ids=page_name)
def test_links_on_the_page_lead_somewhere(page: Path) -> None:
    assert [target for target in links(page.read_text("utf-8")) if not leads_somewhere(page, target)] == []


def test_every_page_is_in_the_navigation_once() -> None:
    navigation = re.search(r"^nav:\n((?:  .*\n)+)", (ROOT / "mkdocs.yml").read_text("utf-8"), re.MULTILINE)
    assert navigation
    listed = re.findall(r"^      - (\S+\.md)$", navigation[1], re.MULTILINE)
    assert sorted(listed) == [page.relative_to(ROOT / "docs").as_posix() for page in SITE]


def test_what_decides_is_where_the_page_for_contributors_says() -> None:
    rows = re.findall(r"^\|[^|]*\| (`[\w/]+\.py`.*) \| (`.*`) \|$", (ROOT / "CONTRIBUTING.md").read_text("utf-8"), re.M)
    assert rows
    for files, names in rows:
        modules = [f"slidegate.{file.replace('/', '.')}" for file in re.findall(r"([\w/]+)\.py", files)]
        found = {name for name in re.findall(r"[\w.]+", names) for module in modules if is_in(module, name)}
        assert found == {*re.findall(r"[\w.]+", names)}, files


def is_in(module: str, name: str) -> bool:
    """Return whether a module of the library defines a name; true as well if it needs what this system lacks."""
    try:
        attrgetter(name)(importlib.import_module(module))
    except AttributeError:
        return False
    except ImportError as error:
        return error.name != module
    return True


API = ROOT / "docs" / "reference" / "api.md"


def test_the_reference_lists_every_public_name() -> None:
    text = API.read_text("utf-8")
    wanted = [f"slidegate.{name}" for name in slidegate.__all__]
    elsewhere = {*slidegate.__all__, *slidegate.events.__all__}
    wanted += [f"slidegate.core.{name}" for name in slidegate.core.__all__ if name not in elsewhere]
    files = [f"slidegate.{path.stem}" for path in (ROOT / "src" / "slidegate").glob("[!_]*.py")]
    for module in (*files, "slidegate.stores"):
        wanted += [f"{module}.{name}" for name in importlib.import_module(module).__all__]
    # Stores with a driver of their own are imported from where they are.
    wanted += ["slidegate.stores.lmdb.LmdbStore", "slidegate.stores.redis.RedisStore"]
    wanted += [
        f"slidegate.limiter.{name}" for name in ("KeyView", "Override", "Action", "Publication", "PublishedRule")
    ]
    names = ("Statistics", "Stats", "Traffic", "Worker", "Ranking", "ClientTraffic", "LoggedEvent")
    wanted += [f"slidegate.ops.statistics.{name}" for name in names]
    shown = {*DOCUMENTED.findall(text), *re.findall(r"`([\w.]+)`", text)}
    assert [
        name
        for name in wanted
        if not {name, name.removeprefix("slidegate."), name.removeprefix("slidegate.core.")} & shown
    ] == []


@pytest.mark.interpreted("compiled classes and functions have no docstrings")
def test_what_the_reference_documents_has_a_docstring() -> None:
    documented = DOCUMENTED.findall(API.read_text("utf-8"))
    assert len(documented) == len({*documented})
    named = {path: resolve_name(":".join(path.rsplit(".", 1))) for path in documented}  # an ImportError stays one
    assert [path for path, one in named.items() if not getattr(one, "__doc__", None)] == []


ERRORS = ROOT / "docs" / "reference" / "errors.md"
PAGE = re.compile(r"docs/[\w/]+\.md(?:#[\w-]+)?")


def test_every_finding_has_its_heading_in_order() -> None:
    section = ERRORS.read_text("utf-8").partition("\n## Findings\n")[2].partition("\n## ")[0]
    assert re.findall(r"^### (.+)$", section, re.MULTILINE) == [*CODES, *SUBJECTS]
    assert not set(SUBJECTS) & set(CODES)


def test_every_page_that_the_source_names_is_there() -> None:
    named = {
        (path.relative_to(ROOT).as_posix(), page)
        for room in ("src", "examples", "scripts", "requirements")
        for path in (ROOT / room).rglob("*")
        if path.suffix in {".py", ".toml", ".lua", ".js", ".html", ".in", ".yml"}
        for page in PAGE.findall(path.read_text("utf-8"))
    }
    assert named
    assert {(path, page) for path, page in named if not leads_somewhere(ROOT / "README.md", page)} == set()
