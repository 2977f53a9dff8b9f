"""The pytest plugin and the contract of stores as users run them: in a pytest of their own.

What the plugin does is in plugin/cases.py.
"""

import asyncio
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from slidegate.stores.memory.store import MemoryStore

from ..contract.ban_player import BanPlayer
from ..contract.programs import Choices
from ..reference.ban_model import BanModel

ROOT = Path(__file__).resolve().parents[2]
CASES = Path(__file__).parent / "plugin" / "cases.py"


def pytest_of_its_own(*arguments: str, path: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run pytest in a separate process that imports from the source and `path`, with only the named plugins."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    found = {"PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(path))), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    everything = {**os.environ, **found, **environment}
    return subprocess.run(command, cwd=path, env=everything, capture_output=True, text=True, timeout=300)


def test_the_fixtures_do_what_they_say() -> None:
    ended = pytest_of_its_own("-p", "slidegate_pytest", "-p", "pytest_asyncio.plugin", str(CASES))
    assert ended.returncode == 0, ended.stdout[-6_000:]
    count = sum(line.startswith(("def test", "async def test")) for line in CASES.read_text("utf-8").splitlines())
    assert count > 5
    assert f"{count} passed" in ended.stdout


def test_the_plugin_imports_the_package_on_first_use() -> None:
    code = "import sys, pytest; old = {*sys.modules}; import slidegate_pytest; print({*sys.modules} - old)"
    paths = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=paths)
    assert ended.stdout.strip() == "{'slidegate_pytest'}"


def test_the_tests_on_the_page_pass(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "how_to" / "testing_your_app.md").read_text("utf-8")
    saved = dict(re.findall(r"^<!-- file: ([\w.]+) -->\n```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL))
    (fragment,) = re.findall(r"^```toml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    for name, code in {**saved, "pyproject.toml": fragment}.items():
        (tmp_path / name).write_text(code, "utf-8")
    assert page.count("```python") == len(saved) == 2
    files = [str(tmp_path / name) for name in saved if name.startswith("test_")]
    plugins = ("-p", "slidegate_pytest")
    ended = pytest_of_its_own(*plugins, "-W", "error", *files, path=tmp_path)
    assert ended.returncode == 0, ended.stdout[-6_000:]
    assert f"{sum(code.count('def test_') for code in saved.values())} passed" in ended.stdout


def test_the_contract_of_stores_runs_where_it_is_copied_to(tmp_path: Path) -> None:
    for folder in ("contract", "reference"):
        shutil.copytree(ROOT / "tests" / folder, tmp_path / "tests" / folder)
    (tmp_path / "tests" / "__init__.py").touch()
    page = (ROOT / "examples" / "own_store" / "README.md").read_text("utf-8")
    (code,) = re.findall(r"^<!-- file: test_my_store.py -->\n```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "tests" / "test_my_store.py").write_text(code, "utf-8")
    ended = pytest_of_its_own("-W", "error", "tests/test_my_store.py", path=tmp_path)
    assert ended.returncode == 0, ended.stdout[-6_000:]
    assert int(re.findall(r"(\d+) passed", ended.stdout)[-1]) > 30


# -- what the contract of stores finds in a wrong one ------------------------------------------------------------------


def played(drawn: bytes) -> list[str]:
    """Play drawn choices to a memory store, and return the moves."""
    player = BanPlayer(lambda clock: MemoryStore(clock=clock), Choices(drawn))
    asyncio.run(player.play())
    return player.moves


def test_a_difference_is_shown_with_the_moves_that_led_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = random.Random(7).randbytes(600)
    assert any(move.startswith("a peek of") for move in played(drawn))
    monkeypatch.setattr(BanModel, "refusing", lambda *_: [])
    with pytest.raises(AssertionError, match="the store returned False, the reference True") as caught:
        played(drawn)
    moves = [line for line in str(caught.value).splitlines() if line.startswith("  ")]
    assert moves[-1].startswith(("  a peek of ", "  a hit of "))
    assert len(moves) > 1
