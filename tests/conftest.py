"""What all tests share: how hard Hypothesis tries, and random numbers that say where they come from."""

from __future__ import annotations

import os
import random

import pytest
from hypothesis import settings

from .interpreted_only import reason_to_leave_out

settings.register_profile("default", max_examples=300, deadline=None, print_blob=True)
settings.register_profile("deep", max_examples=10_000, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.fixture
def rng() -> random.Random:
    """Random numbers; the seed is shown with a failure, and SLIDEGATE_TEST_SEED repeats it."""
    seed = int(os.environ.get("SLIDEGATE_TEST_SEED", 0)) or random.SystemRandom().getrandbits(32)
    print(f"SLIDEGATE_TEST_SEED={seed}")  # noqa: T201 - pytest shows it where a test fails
    return random.Random(seed)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what a compiled wheel cannot do, where one is tested."""
    if os.environ.get("SLIDEGATE_COMPILED") == "1":
        for item in items:
            if reason := reason_to_leave_out(item.nodeid):
                item.add_marker(pytest.mark.skip(reason=reason))
