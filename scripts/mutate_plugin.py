"""What `python3 dev.py mutate` adds to pytest: which test runs which line, and nothing but the tests of one mutant.

MUTATE_RECORD names the file to write: how long each test takes, and the lines of the source that it runs.
MUTATE_SELECT names a file with the tests to run, in this order. The examples of Hypothesis are the same in every run.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import Phase, settings

# Nobody reads what a mutant fails with, so nothing is shrunk.
settings.register_profile(
    "mutate", max_examples=100, deadline=None, derandomize=True, database=None, phases=(Phase.explicit, Phase.generate)
)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Record tests, or select them, from before anything imports the source."""
    if target := os.environ.get("MUTATE_RECORD"):
        early_config.pluginmanager.register(Recorder(Path(target)))
    if source := os.environ.get("MUTATE_SELECT"):
        early_config.pluginmanager.register(Selection(Path(source).read_text("utf-8").splitlines()))


class Recorder:
    """Measures the tests that stay when those whose id matches MUTATE_LEAVE_OUT are gone."""

    def __init__(self, target: Path) -> None:
        import coverage

        self._target = target
        self._seconds: dict[str, float] = {}
        self._coverage = coverage.Coverage(
            data_file=None, config_file=False, include=os.environ["MUTATE_INCLUDE"].split(",")
        )
        self._coverage.start()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave out what says nothing about a mutant."""
        left_out = re.compile(os.environ["MUTATE_LEAVE_OUT"])
        items[:] = [item for item in items if not left_out.search(item.nodeid)]

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Note what runs from here on under the name of this test."""
        self._coverage.switch_context(item.nodeid)
        start_s = time.perf_counter()
        try:
            return (yield)
        finally:
            self._seconds[item.nodeid] = time.perf_counter() - start_s

    def pytest_sessionfinish(self) -> None:
        """Write the record; a test is its number in the order in which they ran. A line without one ran before them."""
        self._coverage.stop()
        data = self._coverage.get_data()
        numbers = {test: number for number, test in enumerate(self._seconds)}
        lines = {
            str(Path(path).relative_to(Path.cwd())): {
                line: sorted(numbers[test] for test in tests if test in numbers)
                for line, tests in data.contexts_by_lineno(path).items()
            }
            for path in data.measured_files()
        }
        self._target.write_text(json.dumps({"seconds": self._seconds, "lines": lines}), "utf-8")


class Selection:
    """Runs the named tests in the order in which they are named."""

    def __init__(self, tests: list[str]) -> None:
        self._ranks = {test: rank for rank, test in enumerate(tests)}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep the named tests."""
        items[:] = sorted(
            (item for item in items if item.nodeid in self._ranks), key=lambda item: self._ranks[item.nodeid]
        )
