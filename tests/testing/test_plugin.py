"""The pytest plugin of users: what it does stands in plugin/cases.py, which runs here in a pytest of its own.

There it changes how the stores of the whole process tell the time, which the other tests must not notice.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slidegate_pytest.app_time import MOVED, AppTime

ROOT = Path(__file__).resolve().parents[2]
CASES = Path(__file__).parent / "plugin" / "cases.py"
CLOCKS = {"monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "time", "time_ns", "clock_gettime_ns"}
LEFT = {
    "limiter/events": "how long observers take",
    "limiter/failsafe.py": "how long a store that others share has been away",
    "limiter/figures": "figures are about the moments at which requests really came",
    "limiter/leases": "only stores that others share give leases",
    "limiter/local_counts.py": "it stands in for a store that others share",
    "limiter/places/waits.py": "how long requests really waited",
    "limiter/sync": "how long threads wait",
    "outbound/transport.py": "dates in answers of other servers",
    "web/config": "when to look at files again",
    "web/lists": "when to look at files again",
    "web/rules/user_functions.py": "how often to report a fault",
}
"""The files that go on reading the system's clocks while a test has one of its own, and why."""


def pytest_of_its_own(*arguments: str, path: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run pytest in a process of its own, which finds the source and `path`, and no plugin that is not named."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    found = {"PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(path))), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    everything = {**os.environ, **found, **environment}
    return subprocess.run(command, cwd=path, env=everything, capture_output=True, text=True, timeout=300)


def test_the_fixtures_do_what_they_say() -> None:
    ended = pytest_of_its_own("-p", "slidegate_pytest", "-p", "pytest_asyncio.plugin", str(CASES))
    assert ended.returncode == 0, ended.stdout[-6_000:]
    count = sum(line.startswith(("def test", "async def test")) for line in CASES.read_text("utf-8").splitlines())
    assert count > 20
    assert f"{count} passed" in ended.stdout


def test_the_plugin_imports_nothing_of_the_package_before_a_test_asks_for_it() -> None:
    code = """
import sys, pytest
before = set(sys.modules)
import slidegate_pytest
print(sorted(set(sys.modules) - before))
"""
    paths = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=paths)
    assert ended.stdout.strip() == "['slidegate_pytest']"


def test_the_plugin_may_be_named_where_it_is_installed_too(tmp_path: Path) -> None:
    # An entry point of the same name, as the wheel has it.
    entry = tmp_path / "slidegate-0.dist-info"
    entry.mkdir()
    (entry / "METADATA").write_text("Metadata-Version: 2.1\nName: slidegate\nVersion: 0\n")
    (entry / "entry_points.txt").write_text("[pytest11]\nslidegate_pytest = slidegate_pytest\n")
    (tmp_path / "test_one.py").write_text(
        "pytest_plugins = ['slidegate_pytest']\ndef test_one(slidegate_clock, no_limits): pass\n"
    )
    named = ("-p", "slidegate_pytest", "-o", "addopts=", "-W", "default", str(tmp_path))
    ended = pytest_of_its_own(*named, path=tmp_path, PYTEST_DISABLE_PLUGIN_AUTOLOAD="")
    assert "1 passed" in ended.stdout, ended.stdout


def test_the_tests_on_the_page_pass_in_another_order(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "how_to" / "testing_your_app.md").read_text("utf-8")
    saved = dict(re.findall(r"^<!-- file: ([\w.]+) -->\n```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL))
    (fragment,) = re.findall(r"^```toml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    for name, code in {**saved, "pyproject.toml": fragment}.items():
        (tmp_path / name).write_text(code, "utf-8")
    assert page.count("```python") == len(saved) > 4
    files = sorted((str(tmp_path / name) for name in saved if name.startswith("test_")), reverse=True)
    plugins = ("-p", "slidegate_pytest", "-p", "anyio.pytest_plugin")
    ended = pytest_of_its_own(*plugins, "-W", "error", *files, path=tmp_path)
    assert ended.returncode == 0, ended.stdout[-6_000:]
    assert f"{sum(code.count('def test_') for code in saved.values())} passed" in ended.stdout


def clock_readers() -> Iterator[tuple[str, str]]:
    """Yield (file, function) for each clock that a file of some rooms imports; "import time" for all of them."""
    source = ROOT / "src" / "slidegate"
    files = [path for room in ("limiter", "web", "outbound", "stores/memory") for path in (source / room).rglob("*.py")]
    for path in [*files, *(source / "stores").glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            name = path.relative_to(source).as_posix()
            if isinstance(node, ast.ImportFrom) and node.module == "time" and not node.level:
                yield from ((name, alias.name) for alias in node.names if alias.name in CLOCKS)
            elif isinstance(node, ast.Import) and any(alias.name == "time" for alias in node.names):
                yield name, "import time"


def test_every_file_that_reads_a_clock_is_moved_or_left_for_a_reason() -> None:
    readers = set(clock_readers())
    moved = {(f"{module.removeprefix('slidegate.').replace('.', '/')}.py", name) for module, name in MOVED.items()}
    assert moved <= readers
    left = {file for file, _ in readers - moved}
    assert [file for file in sorted(left) if not file.startswith(tuple(LEFT))] == []
    assert [place for place in LEFT if not any(file.startswith(place) for file in left)] == []


@pytest.mark.parametrize(("module", "name"), MOVED.items())
def test_what_is_moved_reads_the_clock_by_that_name(module: str, name: str) -> None:
    assert callable(getattr(AppTime(), name))
    text = (ROOT / "src" / "slidegate" / Path(*module.split(".")[1:])).with_suffix(".py").read_text("utf-8")
    assert re.search(rf"(?<![\w.]){name}\(\)", text)
