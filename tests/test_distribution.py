"""Both files of a release: their contents, how they are built, and the wheel alone in an empty environment."""

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import distributions
from pathlib import Path
from typing import NamedTuple

import pytest

import dev
from slidegate import __version__

pytestmark = pytest.mark.all

TIMEOUT_S = 240
"""How long a command may take, on a machine with a lot to do."""
PYTHON = Path("venv", "Scripts" if os.name == "nt" else "bin", "python")
LIMITS_AN_APPLICATION = """
import asyncio
from importlib.metadata import distributions
import slidegate
from starlette.responses import PlainTextResponse

with open("slidegate.toml", "w") as file:
    file.write('limits = "2/minute"')
app = slidegate.RateLimitMiddleware.from_file(PlainTextResponse("hello"), "slidegate.toml")

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


def output_of(*command: str, cwd: Path | None = None) -> str:
    """Return what a command prints, without the variables that make a Python import from elsewhere."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("COV", "PYTHON"))}
    env = {"UV_SYSTEM_CERTS": "1", **kept}
    ended = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


class Built(NamedTuple):
    wheel: Path
    source: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Both, as `python3 dev.py build` builds and checks them."""
    into = tmp_path_factory.mktemp("dist")
    for line in dev.STEPS["build"].strip().splitlines():
        program, *arguments = line.replace("dist", str(into)).split()
        output_of(str(Path(sys.executable).with_name(program)), *arguments, cwd=dev.ROOT)
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
    all_extra = brought.pop("all")
    assert all_extra == set().union(*brought.values())
    assert len(brought) > 5


def test_the_source_distribution_holds_the_files_of_the_checkout_and_no_other(built: Built, tmp_path: Path) -> None:
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


def test_the_wheel_holds_the_package_the_plugin_and_nothing_else(built: Built) -> None:
    source = dev.ROOT / "src"
    files = {path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()}
    with zipfile.ZipFile(built.wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert held == {name for name in files if "__pycache__" not in name}


def test_the_wheel_holds_the_skill_where_agents_look_for_it(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as archive:
        held = archive.read("slidegate/.agents/skills/slidegate/SKILL.md").decode()
    assert held.startswith("---\nname: slidegate\ndescription: ")


def install(home: Path, *what: str) -> None:
    output_of(sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", str(home / PYTHON), *what)


@pytest.fixture(scope="module")
def home(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with an environment that has the wheel and what it depends on."""
    home = tmp_path_factory.mktemp("bare")
    output_of(sys.executable, "-m", "venv", "--without-pip", str(home / "venv"))
    try:
        install(home, "starlette", "anyio")
    except AssertionError:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip("no package index can be reached, so starlette cannot be installed beside the wheel")
    # Without the index: whatever else the wheel depended on would be missing now.
    install(home, "--offline", str(built.wheel))
    return home


def test_the_wheel_alone_limits_an_application_by_its_configuration_file(home: Path) -> None:
    said = output_of(str(home / PYTHON), "-I", "-W", "error", "-c", LIMITS_AN_APPLICATION, cwd=home)
    answers, whence, there = said.splitlines()
    assert answers == "(200, None) (200, None) (429, b'60')"
    assert whence.startswith(f"{__version__} {home}")
    assert {*there.split()} <= {"anyio", "idna", "slidegate", "sniffio", "starlette", "typing_extensions"}
