"""The clock for tests, and the switches for all limiters of a process; the plugin and the contract as users run them.

What the fixtures do in a user's tests is in plugin/cases.py, and most of what a switch does in limiter/calls.txt.
"""

import asyncio
import os
import random
import re
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slidegate import Limiter, RateLimitMiddleware
from slidegate.core import Reason
from slidegate.stores.memory.store import MemoryStore
from slidegate.stores.system_clock import SystemClock, monotonic_us, system_us
from slidegate.testing import FakeClock, limits_clock, limits_off, reset_limits

from ..asgi import hello, statuses
from ..contract.ban_player import BanPlayer
from ..contract.programs import DAY_US, HOUR_US, MINUTE_US, Choices
from ..hurry import at_once, hurried
from ..pages.blocks import blocks
from ..reference.ban_model import BanModel
from ..workers import TESTED

TIMES = st.integers(DAY_US, 2**52)
MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("begin"), TIMES.map(FakeClock)),
        st.tuples(st.just("end"), st.integers(0, 9)),
        st.tuples(st.just("move"), st.integers(-HOUR_US, HOUR_US)),
        st.tuples(st.just("set back"), TIMES),
        st.tuples(st.just("fail"), st.integers(0, 9)),
    ),
    max_size=20,
)


@given(MOVES)
def test_the_monotonic_time_passes_only_as_the_clock_in_use_advances(moves: list[tuple[str, Any]]) -> None:
    failed = FakeClock()
    failing = limits_clock(failed)
    failed.now_us = "noon"  # type: ignore[assignment]
    with ExitStack() as all_blocks:
        blocks: list[tuple[ExitStack, FakeClock]] = []
        for move, value in moves:
            stood_still, passed_us = bool(blocks), 0
            before_us = monotonic_us()
            if move == "begin":
                block = all_blocks.enter_context(ExitStack())
                blocks.append((block, block.enter_context(limits_clock(value))))
            elif move == "end" and blocks:
                blocks.pop(value % len(blocks))[0].close()
            elif move == "fail" and blocks:
                block, clock = blocks.pop(value % len(blocks))
                clock.now_us = "noon"  # type: ignore[assignment]
                block.close()
                with pytest.raises(TypeError), failing:
                    raise AssertionError("it must not be entered")
            elif move == "move" and blocks:
                blocks[-1][1].advance(us=value)
                passed_us = max(value, 0)
            elif move == "set back" and blocks:
                clock = blocks[-1][1]
                clock.set(min(value, clock()))
            if blocks and stood_still:
                assert monotonic_us() == before_us + passed_us
            else:
                assert before_us <= monotonic_us() < before_us + MINUTE_US
            unix_us = blocks[-1][1]() if blocks else time.time_ns() // 1_000
            assert abs(system_us() - unix_us) < (1 if blocks else DAY_US)


def test_a_clock_that_fails_before_it_is_read_leaves_the_time_as_it_was() -> None:
    system, clock = SystemClock(), FakeClock()
    before_ns = system.monotonic_ns()
    system.use(clock)
    clock.now_us = "noon"  # type: ignore[assignment]
    system.use(None)
    assert system.monotonic_ns() >= before_ns


@pytest.mark.parametrize("order", [order for count in (1, 2, 3) for order in permutations(range(count))])
@pytest.mark.parametrize("is_one", [False, True])
async def test_limits_are_on_again_after_the_last_block(order: tuple[int, ...], is_one: bool) -> None:
    limiter = Limiter()
    app = RateLimitMiddleware(hello, limits="1/minute", limiter=limiter)
    assert await statuses(app, 2) == [200, 429]
    blocks, again = [ExitStack() for _ in order], limits_off()
    for block in blocks:
        block.enter_context(again if is_one else limits_off())
    made_meanwhile = RateLimitMiddleware(hello, limits="1/minute")
    for block in (blocks[place] for place in order):
        assert await statuses(app, 2) == await statuses(made_meanwhile, 2) == [200, 200]
        assert all([await limiter.hit("ann", "1/minute") for _ in range(2)])
        with pytest.raises(ZeroDivisionError), block:
            raise ZeroDivisionError
    assert await statuses(app, 2) == [429, 429]
    assert await statuses(made_meanwhile, 2) == [200, 429]
    assert [bool(await limiter.hit("ann", "1/minute")) for _ in range(2)] == [True, False]


def test_threads_create_limiters_while_others_are_switched() -> None:
    made = [Limiter() for _ in range(100)]

    def switch_and_create(thread: int) -> None:
        for _ in range(15):
            with limits_off():
                reset_limits()
            made.extend([Limiter() for _ in range(5)])

    with hurried(collecting=False):
        at_once(switch_and_create, 3)
    assert all(one.sync.hit("ann", "1/minute").reason is Reason.OK for one in made)


# -- the pytest plugin and the contract of stores as users run them: in a pytest of their own --------------------------


ROOT = Path(__file__).resolve().parents[2]
CASES = Path(__file__).parent / "plugin" / "cases.py"


def pytest_of(*arguments: str, path: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run pytest in a separate process that imports what is tested, and from `path`, with only the named plugins."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    found = {"PYTHONPATH": os.pathsep.join((str(TESTED), str(path))), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    everything = {**os.environ, **found}
    return subprocess.run(command, cwd=path, env=everything, capture_output=True, text=True, timeout=300)


def passed(*arguments: str, path: Path = ROOT) -> int:
    """Return how many tests have passed, see `pytest_of`; none may fail."""
    ended = pytest_of(*arguments, path=path)
    assert ended.returncode == 0, ended.stdout[-6_000:]
    return int(re.findall(r"(\d+) passed", ended.stdout)[-1])


def test_the_fixtures_do_what_they_say() -> None:
    count = sum(line.startswith(("def test", "async def test")) for line in CASES.read_text("utf-8").splitlines())
    assert count > 5
    assert passed("-p", "slidegate_pytest", "-p", "pytest_asyncio.plugin", str(CASES)) == count


def test_the_plugin_imports_the_package_on_first_use() -> None:
    code = "import sys, pytest; old = {*sys.modules}; import slidegate_pytest; print({*sys.modules} - old)"
    paths = {**os.environ, "PYTHONPATH": str(TESTED)}
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=paths)
    assert ended.stdout.strip() == "{'slidegate_pytest'}"


def test_the_tests_on_the_page_pass(tmp_path: Path) -> None:
    page = [*blocks((ROOT / "docs" / "how_to" / "testing_your_app.md").read_text("utf-8"))]
    files = {block.value: block.code for block in page if block.language == "python"}
    (fragment,) = [block.code for block in page if block.language == "toml"]
    for name, code in {**files, "pyproject.toml": fragment}.items():
        (tmp_path / name).write_text(code, "utf-8")
    assert len(files) == 2
    tests = [str(tmp_path / name) for name in files if name.startswith("test_")]
    count = sum(code.count("def test_") for code in files.values())
    assert passed("-p", "slidegate_pytest", "-W", "error", *tests, path=tmp_path) == count


def copy_contract(project: Path) -> None:
    for folder in ("contract", "reference"):
        shutil.copytree(ROOT / "tests" / folder, project / "tests" / folder)
    (project / "tests" / "__init__.py").touch()


def test_the_contract_of_stores_runs_where_it_is_copied_to(tmp_path: Path) -> None:
    copy_contract(tmp_path)
    page = (ROOT / "examples" / "own_store" / "README.md").read_text("utf-8")
    (code,) = [block.code for block in blocks(page) if block.mark == "file"]
    (tmp_path / "tests" / "test_my_store.py").write_text(code, "utf-8")
    assert passed("-W", "error", "tests/test_my_store.py", path=tmp_path) > 25


WRONG = """
from slidegate import MemoryStore
from tests.contract import StoreContract

class Wrong(MemoryStore):
    def hit(self, checks, *more, **options):
        return super().hit([(bucket, "everybody", cost) for bucket, key, cost in checks], *more, **options)

class TestWrong(StoreContract):
    def make_store(self, clock):
        return Wrong(clock=clock)
"""


@pytest.mark.interpreted("no class of a test derives from a compiled one")
def test_a_test_of_the_copied_contract_that_fails_shows_the_values(tmp_path: Path) -> None:
    copy_contract(tmp_path)
    (tmp_path / "tests" / "test_wrong.py").write_text(WRONG, "utf-8")
    ended = pytest_of("-x", "-k", "counted_apart", "tests", path=tmp_path)
    assert ended.returncode == 1, ended.stdout[-6_000:]
    assert re.search(r"assert 0 == 2\n.* where 0 = <Decision .*>.remaining", ended.stdout)


def played(drawn: bytes) -> list[str]:
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
