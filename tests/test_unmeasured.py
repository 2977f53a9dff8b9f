"""The table of tests that run unmeasured names tests that there are, and measuring goes on after them."""

from __future__ import annotations

import os
import re
import sys
import threading

import pytest

from .unmeasured import UNMEASURED, unmeasured


@pytest.mark.parametrize("beginning", UNMEASURED)
def test_a_name_in_the_table_is_the_beginning_of_a_test(beginning: str, request: pytest.FixtureRequest) -> None:
    place, _, name = beginning.partition("::")
    path = request.config.rootpath / place
    assert path.exists()
    if name:  # of a class; its tests may be inherited
        outermost = name.partition("::")[0]
        assert re.search(rf"^(class|(async )?def) {outermost}", path.read_text("utf-8"), re.MULTILINE)


def test_nothing_is_measured_meanwhile_and_everything_as_before_after(monkeypatch: pytest.MonkeyPatch) -> None:
    def trace(*_: object) -> None:
        return None

    before, threads_before = sys.gettrace(), threading.gettrace()
    monkeypatch.setenv("COVERAGE_PROCESS_START", "here")
    sys.settrace(trace)
    try:
        with unmeasured():
            assert sys.gettrace() is None
            assert threading.gettrace() is None
            assert not [name for name in os.environ if name.startswith("COVERAGE")]
        assert sys.gettrace() is trace
    finally:
        sys.settrace(before)
    assert os.environ["COVERAGE_PROCESS_START"] == "here"
    assert threading.gettrace() is threads_before
