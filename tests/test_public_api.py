"""What the package offers: the names, what importing it costs, and what works where those of POSIX are missing."""

import ast
import importlib
import inspect
import json
import os
import pkgutil
import subprocess
import sys
import typing
from pathlib import Path
from types import ModuleType

import pytest

import slidegate
import slidegate.core
import slidegate.events
import slidegate.stores
import slidegate.testing
import slidegate.windows

from .redis_servers import AT_REDIS, REDIS
from .workers import TESTED

PACKAGE = Path(slidegate.__file__).parent
EXPORTING = [slidegate, slidegate.core, slidegate.events, slidegate.stores, slidegate.windows]
OPTIONAL = (
    "fastapi hiredis http_sf httpx httpx2 hypothesis lmdb msgspec opentelemetry prometheus_client pydantic pytest "
    "redis rich uvicorn"
)
TOOLS = {"annotations"}
"""What a package imports for itself."""


@pytest.mark.parametrize("module", EXPORTING, ids=lambda module: module.__name__)
def test_all_names_exactly_what_exists(module: ModuleType) -> None:
    bound = {name for name in dir(module) if not inspect.ismodule(getattr(module, name)) and not name.startswith("_")}
    assert {*module.__all__} == bound - TOOLS
    with pytest.raises(AttributeError, match="no attribute 'HotWindow'"):
        _ = module.HotWindow


def test_a_type_checker_reads_code_that_uses_each_name() -> None:
    """`typing/api.py` is what mypy reads with --strict in the place of users' code."""
    code = ast.parse(Path(__file__).parent.joinpath("typing", "api.py").read_text("utf-8"))
    imports = [node for node in code.body if isinstance(node, ast.ImportFrom) and node.module == "slidegate"]
    imported = {name.name for node in imports for name in node.names}
    used = {ast.unparse(node) for node in ast.walk(code) if isinstance(node, (ast.Name, ast.Attribute))}
    assert {one for one in slidegate.__all__ if f"slidegate.{one}" not in used} == imported & used


@pytest.mark.parametrize("module", EXPORTING, ids=lambda module: module.__name__)
def test_annotations_of_classes_are_read_at_run_time_too(module: ModuleType) -> None:
    for one in filter(inspect.isclass, map(vars(module).get, module.__all__)):
        typing.get_type_hints(one)


def test_every_exception_has_one_root() -> None:
    names = [info.name for info in pkgutil.walk_packages(slidegate.__path__, "slidegate.")]
    for name, module in zip(names, map(importlib.import_module, names), strict=True):
        for found in vars(module).values():
            if inspect.isclass(found) and issubclass(found, BaseException) and found.__module__ == name:
                assert issubclass(found, slidegate.SlidegateError), found


def loaded_by(code: str) -> set[str]:
    """Run `code` in a new interpreter and return the names of the modules that it loaded."""
    begin = f"import json, sys; sys.path.insert(0, {str(PACKAGE.parent)!r}); before = set(sys.modules)"
    end = "print(json.dumps(sorted(set(sys.modules) - before)))"
    run = subprocess.run([sys.executable, "-c", f"{begin}\n{code}\n{end}"], capture_output=True, text=True, check=True)
    return set(json.loads(run.stdout))


@pytest.mark.parametrize("module", ["slidegate", "slidegate.testing"])
def test_importing_the_package_loads_nothing_optional_and_nothing_that_few_applications_need(module: str) -> None:
    few = "stores.lmdb", "stores.redis", "files.config", "stores.open_store"
    others = "csv", "decimal", "difflib", "tomllib", "anyio.lowlevel", "starlette.middleware.cors"
    loaded = loaded_by(f"import {module}")
    assert {name.partition(".")[0] for name in loaded} & {*OPTIONAL.split()} == set()
    assert [name for name in loaded if name.startswith((*(f"slidegate.{name}" for name in few), *others))] == []
    assert {"slidegate.web.middleware", "slidegate.stores.memory.store"} <= loaded


OF_URL = "slidegate.Limiter.from_url('{}')"
EXTRAS = {
    "lmdb": ("lmdb", OF_URL.format("lmdb:///tmp"), "ConfigurationError: store address: LmdbStore"),
    "redis": ("redis", OF_URL.format("redis://localhost"), "ConfigurationError: store address: RedisStore"),
    "httpx": ("httpx", "import slidegate.httpx", "ImportError: slidegate.httpx"),
    "httpx2": ("httpx2", "import slidegate.httpx2", "ImportError: slidegate.httpx2"),
    "jinja2": ("dashboard", "import slidegate.dashboard", "ImportError: Dashboard"),
    "opentelemetry": ("otel", "import slidegate.otel", "ImportError: slidegate.otel"),
    "prometheus_client": ("prometheus", "import slidegate.prometheus", "ImportError: PrometheusMetrics"),
    "click": ("cli", "from slidegate.ops.cli import run; sys.exit(run(['--help']))", "slidegate: the command"),
}
"""Packages, each with its extra, what asks for it, and who says so."""
ASKS = """
import sys
path, package, asks = sys.argv[1:]

class Hidden:
    def find_spec(name, *more):
        if name == package:
            raise error

sys.meta_path.insert(0, Hidden)
sys.path.insert(0, path)
import slidegate
for error in (ModuleNotFoundError(name=package), ImportError("no library")):
    try:
        exec(asks)
    except Exception as raised:
        print(f"{type(raised).__name__}: {raised}", file=sys.stderr)
    except SystemExit as end:
        print(f"exit {end}", file=sys.stderr)
"""


@pytest.mark.parametrize("package", EXTRAS)
def test_one_sentence_says_what_to_install_or_why_what_is_installed_cannot_be_imported(package: str) -> None:
    extra, asks, who = EXTRAS[package]
    command = [sys.executable, "-c", ASKS, str(PACKAGE.parent), package, asks]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stderr.splitlines()
    if package == "click":  # a command shows no traceback, and ends
        assert said.pop(1) == "exit 1"
    missing, other = said
    assert missing == f'{who} needs the package {package}: pip install "slidegate[{extra}]"'
    assert other.endswith(": no library")


# -- without names and modules of POSIX, as on Windows: they are hidden from a new process -----------------------------


# Other libraries are imported first: each has its own ways on Windows, which are not tried here.
ON_WINDOWS = """
import asyncio, multiprocessing, os, signal, sys, time
import click._termui_impl, fastapi, httpx, pydantic, redis.asyncio, starlette.testclient, uvicorn

for module in ("fcntl", "grp", "pty", "pwd", "resource", "termios", "tty"):
    sys.modules[module] = None
for owner, names in {
    asyncio: "open_unix_connection start_unix_server",
    os: "fork forkpty register_at_fork getuid geteuid getgid getegid sched_getaffinity uname posix_fallocate fchmod "
    "chown fchown mkfifo O_CLOEXEC O_NOFOLLOW O_NONBLOCK O_NOCTTY",
    signal: "pthread_sigmask SIGHUP SIGUSR1 SIGUSR2 SIGALRM SIGKILL setitimer alarm",
    time: "clock_gettime clock_gettime_ns CLOCK_BOOTTIME CLOCK_MONOTONIC",
}.items():
    for name in names.split():
        delattr(owner, name)

from slidegate import BanPolicy, Limiter, RateLimit, RateLimitMiddleware, Rule
from slidegate.dashboard import Dashboard
from slidegate.ops.cli import run as command

limiter = Limiter.from_url(sys.argv[1], deadline="30s")
app = fastapi.FastAPI()
app.add_middleware(
    RateLimitMiddleware, limiter=limiter, rules=[Rule("/a", "2/hour")], bans=BanPolicy(signals={"/.env": "ban"})
)
app.mount("/middleware", Dashboard(limiter, token="a-token-of-this-test-alone"))
app.get("/a")(lambda: None)
app.get("/b", dependencies=[fastapi.Depends(RateLimit("1/hour"))])(lambda: None)
with starlette.testclient.TestClient(app, "http://localhost", client=("203.0.113.9", 1)) as client:
    paths = ("/a", "/a", "/a", "/b", "/b", "/middleware/", "/.env", "/b")
    print(*(client.get(path, auth=("me", "a-token-of-this-test-alone")).status_code for path in paths))
print(*(limiter.sync.hit("user:1", "1/hour").allowed for _ in range(2)))
limiter.sync.close()
print(*(command(words.split()) for words in sys.argv[2:]), file=sys.stderr)
"""
LOG = "examples/demo/sample.log"


@pytest.mark.parametrize("kind", [AT_REDIS if REDIS else "memory"])
def test_middleware_dashboard_and_command_line_work_and_lmdb_says_what_it_needs(url: str) -> None:
    commands = (
        f"bans list --store {url}",
        "check examples/slidegate.toml",
        f"simulate {LOG} --limit 60/minute",
        f"suggest {LOG}",
        "bans list --store lmdb:///var/lib/app",
    )
    ours = {**os.environ, "PYTHONPATH": str(TESTED)}
    command = [sys.executable, "-c", ON_WINDOWS, url, *commands]
    ended = subprocess.run(
        command, cwd=Path(__file__).parents[1], env=ours, capture_output=True, text=True, timeout=120
    )
    out, errors = ended.stdout.splitlines(), ended.stderr.splitlines()
    assert out[:2] == ["200 200 429 200 429 200 403 403", "True False"], ended.stderr
    assert errors[-1] == f"{'2' if url == 'memory://' else '0'} 0 0 0 2", errors
    assert errors[-2].startswith("Error: store address: LmdbStore needs POSIX")
    assert url == "memory://" or any("203.0.113.9" in line for line in out)
    assert len(out) > 4
