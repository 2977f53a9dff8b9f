"""The clocks of Redis stores, which tests let run ahead."""

import sys
import time

import pytest

from .stores import Ahead


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> Ahead:
    ahead = Ahead()
    clocks = {
        "monotonic": lambda: time.monotonic() + ahead.by_s,
        "monotonic_ns": lambda: time.monotonic_ns() + int(ahead.by_s * 1e9),
    }
    ours = [module for name, module in sys.modules.items() if name.startswith("slidegate.stores.redis")]
    found = [(module, name) for module in ours for name in clocks if name in vars(module)]
    assert {name for _, name in found} == {*clocks}
    for module, name in found:
        monkeypatch.setattr(module, name, clocks[name])
    return ahead
