"""Both files of a release: their contents, how they are built, and the wheel alone in an empty environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

import dev
from scripts import build_distribution
from slidegate import __version__

PATIENCE_S = 240
"""How long a command may take, on a machine with a lot to do."""
LIMITS_AN_APPLICATION = """
import asyncio
from importlib.metadata import distributions
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route
import slidegate

async def hello(request):
    return PlainTextResponse("hello")

app = Starlette(routes=[Route("/", hello)], middleware=[Middleware(slidegate.RateLimitMiddleware, limits="2/minute")])

async def get():
    sent = []
    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}
    async def send(message):
        sent.append(message)
    scope = {"type": "http", "http_version": "1.1", "method": "GET", "scheme": "http", "path": "/", "raw_path": b"/",
             "query_string": b"", "root_path": "", "headers": [], "client": ("192.0.2.7", 5), "server": ("test", 80)}
    await app(scope, receive, send)
    return sent[0]["status"], dict(sent[0]["headers"]).get(b"retry-after")

async def main():
    print(*[await get() for _ in range(3)])

asyncio.run(main())
print(slidegate.__version__, slidegate.__file__)
print(*sorted(found.name.lower() for found in distributions()))
"""
NEEDS_AN_EXTRA = {
    "from slidegate.admin import AdminRoutes": "dashboard",
    "from slidegate.dashboard import Dashboard": "dashboard",
    "from slidegate.httpx import LimitedTransport": "httpx",
    "from slidegate.ops.command import main; raise SystemExit(main(['explain', '5/minute']))": "cli",
    "from slidegate.otel import OtelMetrics": "otel",
    "from slidegate.prometheus import PrometheusMetrics": "prometheus",
    "from slidegate.stores.lmdb import LmdbStore": "lmdb",
    "from slidegate.stores.redis import RedisStore": "redis",
    "from slidegate.testing.contract import StoreContract": "testing",
    "import slidegate; slidegate.Limiter.from_url('lmdb:///tmp/x')": "lmdb",
    "import slidegate; slidegate.Limiter.from_url('redis://localhost')": "redis",
    "import slidegate; slidegate.RateLimitMiddleware.from_file(None, 'slidegate.toml')": "config",
}
TRIES = """
import io, json, sys
from contextlib import redirect_stderr

said = {}
for code in json.loads(sys.argv[1]):
    with redirect_stderr(io.StringIO()) as errors:
        try:
            exec(code, {})
            said[code] = "nothing was missing"
        except (Exception, SystemExit) as error:
            said[code] = f"{error} {errors.getvalue()}"
print(json.dumps(said))
"""
USES_THE_PLUGIN = """
import asyncio
from slidegate import Limiter

limiter = Limiter()

def test_it(slidegate_clock):
    assert [bool(limiter.sync.hit("ann", "1/hour")) for _ in range(2)] == [True, False]
    slidegate_clock.advance("1h")
    assert limiter.sync.hit("ann", "1/hour")
"""


class Built(NamedTuple):
    """The two files of a release."""

    wheel: Path
    source: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Both, built from this checkout."""
    return Built(*build_distribution.build(tmp_path_factory.mktemp("dist"), dev.ROOT))


def test_both_hold_what_they_should_and_nothing_else(built: Built) -> None:
    assert build_distribution.problems(*built) == []
    assert (built.wheel.name, built.source.name) == (
        f"slidegate-{__version__}-py3-none-any.whl",
        f"slidegate-{__version__}.tar.gz",
    )


def test_both_are_the_same_to_the_byte_when_they_are_built_from_the_source_distribution(built: Built) -> None:
    assert build_distribution.differences(*built) == []


def test_twine_takes_the_metadata(built: Built) -> None:
    command = [sys.executable, "-m", "twine", "check", "--strict", *map(str, built)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize(
    "name",
    [
        *(
            "access.log",
            "data/windows.mdb",
            "src/slidegate/__pycache__/a.pyc",
            "site/index.html",
            "tests/.hypothesis/x",
        ),
        *(".venv-bench/bin/python", ".coverage.host.1", "events.jsonl", ".git/HEAD", "slidegate.egg-info/PKG-INFO"),
    ],
)
def test_what_lies_about_in_a_checkout_is_found(name: str) -> None:
    assert build_distribution.strangers([name, "src/slidegate/limiter.py", ".github/workflows/release.yml"]) == [name]


def test_a_file_that_git_does_not_know_is_found() -> None:
    if not (dev.ROOT / ".git").exists():
        pytest.skip("this is no checkout of git, so nobody knows which files belong to it")
    assert build_distribution.untracked(["README.md", "PKG-INFO", "tests/left_behind.bin"]) == ["tests/left_behind.bin"]


def test_a_wheel_with_more_or_less_is_found(tmp_path: Path) -> None:
    (tmp_path / "slidegate").mkdir()
    for name in ("slidegate/__init__.py", "slidegate/py.typed"):
        (tmp_path / name).touch()
    whole = ["slidegate/__init__.py", "slidegate/py.typed"]
    whole += [f"slidegate-1.dist-info/{name}" for name in build_distribution.METADATA]
    assert build_distribution.beside_the_package(whole, tmp_path) == []
    assert build_distribution.beside_the_package([*whole, "tests/a.py"], tmp_path) == ["tests/a.py"]
    assert build_distribution.beside_the_package(whole[1:], tmp_path) == ["slidegate/__init__.py"]
    assert build_distribution.beside_the_package(whole[:-1], tmp_path) == [whole[-1].partition("/")[2]]


# -- the wheel alone -----------------------------------------------------------------------------------------------


class Bare(NamedTuple):
    """An environment with the wheel and what it depends on, and its Python."""

    python: Path
    home: Path

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run its Python, where nothing of the checkout is found."""
        return called(str(self.python), *arguments, cwd=self.home)


def called(*command: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command and return what it said."""
    plain = {name: value for name, value in dev.child_environment().items() if not name.startswith("COV")}
    return subprocess.run(command, cwd=cwd, env=plain, capture_output=True, text=True, timeout=PATIENCE_S)


def install(python: Path, *what: str) -> subprocess.CompletedProcess[str]:
    """Install something with uv."""
    return called(sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", str(python), *what)


@pytest.fixture(scope="module")
def bare(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Bare:
    """The wheel in an environment of its own."""
    home = tmp_path_factory.mktemp("bare")
    made = called(sys.executable, "-m", "venv", "--without-pip", str(home / "venv"))
    assert made.returncode == 0, made.stderr
    python = dev.place(home / "venv", "scripts") / "python"
    brought = install(python, "starlette", "anyio")
    if brought.returncode and os.environ.get("CI") != "true":
        pytest.skip("no package index can be reached, so starlette cannot be installed beside the wheel")
    assert brought.returncode == 0, brought.stderr
    # Without the index: whatever else the wheel depended on would be missing now.
    alone = install(python, "--offline", str(built.wheel))
    assert alone.returncode == 0, alone.stderr
    return Bare(python, home)


def test_the_wheel_alone_limits_an_application(bare: Bare) -> None:
    ended = bare.run("-I", "-W", "error", "-c", LIMITS_AN_APPLICATION)
    assert ended.returncode == 0, ended.stderr
    answers, whence, there = ended.stdout.splitlines()
    assert answers == "(200, None) (200, None) (429, b'60')"
    assert whence.startswith(f"{__version__} {bare.home}")
    assert {*there.split()} <= {"anyio", "idna", "slidegate", "sniffio", "starlette", "typing_extensions"}


def test_everything_that_needs_an_extra_names_it(bare: Bare) -> None:
    ended = bare.run("-I", "-c", TRIES, json.dumps(list(NEEDS_AN_EXTRA)))
    assert ended.returncode == 0, ended.stderr
    said: dict[str, str] = json.loads(ended.stdout)
    wrong = {code: said[code] for code, extra in NEEDS_AN_EXTRA.items() if f"slidegate[{extra}]" not in said[code]}
    assert wrong == {}


def test_the_command_of_the_wheel_says_what_it_needs(bare: Bare) -> None:
    ended = called(str(bare.python.with_name("slidegate")), "--help", cwd=bare.home)
    assert ended.returncode == 2
    assert ended.stderr.strip() == 'slidegate: the command needs the package click: pip install "slidegate[cli]"'


def test_pytest_finds_the_fixtures_of_the_wheel(bare: Bare) -> None:
    brought = install(bare.python, "pytest")
    assert brought.returncode == 0, brought.stderr
    (bare.home / "test_it.py").write_text(USES_THE_PLUGIN, "utf-8")
    ended = bare.run("-m", "pytest", "-q", "-W", "error", "test_it.py")
    assert "1 passed" in ended.stdout, ended.stdout + ended.stderr
