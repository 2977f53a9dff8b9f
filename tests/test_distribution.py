"""Both files of a release: their contents, how they are built, and the wheel alone in an empty environment."""

import os
import re
import subprocess
import sys
import tarfile
from importlib.metadata import distributions
from pathlib import Path
from typing import NamedTuple

import pytest

import dev
from slidegate import __version__

pytestmark = pytest.mark.all

TIMEOUT_S = 240
"""How long a command may take, on a machine with a lot to do."""
LIMITS_AN_APPLICATION = """
import asyncio
from importlib.metadata import distributions
import slidegate

async def hello(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello"})

with open("slidegate.toml", "w") as file:
    file.write('limits = "2/minute"')
app = slidegate.RateLimitMiddleware.from_file(hello, "slidegate.toml")

async def get():
    sent = []
    async def send(message):
        sent.append(message)
    scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "client": ("192.0.2.7", 5)}
    await app(scope, None, send)
    return sent[0]["status"], dict(sent[0]["headers"]).get(b"retry-after")

async def main():
    print(*[await get() for _ in range(3)])

asyncio.run(main())
print(slidegate.__version__, slidegate.__file__)
print(*sorted(found.name.lower() for found in distributions()))
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
    wheel: Path
    source: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Both, as `python3 dev.py build` builds and checks them."""
    into = tmp_path_factory.mktemp("dist")
    for line in dev.STEPS["build"].strip().splitlines():
        program, *arguments = line.replace("dist", str(into)).split()
        ended = called(str(Path(sys.executable).with_name(program)), *arguments, cwd=dev.ROOT)
        assert ended.returncode == 0, ended.stdout + ended.stderr
    return Built(*(next(into.glob(pattern)) for pattern in ("*.whl", "*.tar.gz")))


def test_both_are_built_and_pass_all_checks(built: Built) -> None:
    names = (f"slidegate-{__version__}-py3-none-any.whl", f"slidegate-{__version__}.tar.gz")
    assert (built.wheel.name, built.source.name) == names


def test_the_extra_all_brings_what_every_extra_brings(built: Built) -> None:
    (found,) = distributions(path=[str(built.wheel)])
    brought: dict[str, set[str]] = {}
    for line in found.requires or ():
        for extra in re.findall(r"extra == '(\w+)'", line):
            brought.setdefault(extra, set()).add(line.replace(f"'{extra}'", ""))
    asked = brought.pop("all")
    assert asked == set().union(*brought.values())
    assert len(brought) > 5


def test_the_source_distribution_holds_every_file_of_the_checkout_and_nothing_else(
    built: Built, tmp_path: Path
) -> None:
    if not (dev.ROOT / ".git").exists():
        pytest.skip("this is no checkout of git, so nobody knows which files belong to it")
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listing, cwd=dev.ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    with tarfile.open(built.source) as archive:
        # CPython before 3.11.4 has no filters, and from 3.12 on a warning where none is chosen.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(tmp_path)
    (root,) = (path for path in tmp_path.iterdir() if path.is_dir())
    held = {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}
    assert held - {"PKG-INFO"} == {name for name in names if (dev.ROOT / name).is_file()}
    assert os.access(root / ".ci" / "run", os.X_OK)


class Bare(NamedTuple):
    """An environment with the wheel and what it depends on, and its Python."""

    python: Path
    home: Path

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return called(str(self.python), *arguments, cwd=self.home)


def plain() -> dict[str, str]:
    """Return the variables of this process without those that make a Python import from elsewhere."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("COV", "PYTHON"))}
    return {"UV_SYSTEM_CERTS": "1", **kept}


def called(*command: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, env=plain(), capture_output=True, text=True, timeout=TIMEOUT_S)


def install(python: Path, *what: str) -> subprocess.CompletedProcess[str]:
    return called(sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", str(python), *what)


@pytest.fixture(scope="module")
def bare(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Bare:
    home = tmp_path_factory.mktemp("bare")
    made = called(sys.executable, "-m", "venv", "--without-pip", str(home / "venv"))
    assert made.returncode == 0, made.stderr
    python = home / "venv" / ("Scripts" if os.name == "nt" else "bin") / "python"
    brought = install(python, "starlette", "anyio")
    if brought.returncode and os.environ.get("CI") != "true":
        pytest.skip("no package index can be reached, so starlette cannot be installed beside the wheel")
    assert brought.returncode == 0, brought.stderr
    # Without the index: whatever else the wheel depended on would be missing now.
    alone = install(python, "--offline", str(built.wheel))
    assert alone.returncode == 0, alone.stderr
    return Bare(python, home)


def test_the_wheel_alone_limits_an_application_by_its_configuration_file(bare: Bare) -> None:
    ended = bare.run("-I", "-W", "error", "-c", LIMITS_AN_APPLICATION)
    assert ended.returncode == 0, ended.stderr
    answers, whence, there = ended.stdout.splitlines()
    assert answers == "(200, None) (200, None) (429, b'60')"
    assert whence.startswith(f"{__version__} {bare.home}")
    assert {*there.split()} <= {"anyio", "idna", "slidegate", "sniffio", "starlette", "typing_extensions"}


def test_pytest_finds_the_fixtures_of_the_wheel(bare: Bare) -> None:
    brought = install(bare.python, "pytest")
    assert brought.returncode == 0, brought.stderr
    (bare.home / "test_it.py").write_text(USES_THE_PLUGIN, "utf-8")
    ended = bare.run("-m", "pytest", "-q", "-W", "error", "test_it.py")
    assert "1 passed" in ended.stdout, ended.stdout + ended.stderr
