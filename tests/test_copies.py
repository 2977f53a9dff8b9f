"""Answers, limits and stats are copied and pickled whole: by worker processes, caches and tests of users."""

import copy
import pickle
import re
from collections.abc import Callable
from inspect import signature
from typing import Any

import pytest

import slidegate
from slidegate import ConfigurationError, Limiter, MessageLimits, Networks, Quota, Rule
from slidegate.core import Bucket, Concurrency, CounterWindow, Decision, InvalidKey, Limit, MetricWindow, Reason
from slidegate.core.bans.ban import Ban
from slidegate.core.decision import Check, refused_by_ban
from slidegate.ops.statistics import Stats, Traffic, Worker

from .test_wrong_arguments import RIGHT

LIMIT = Limit(5, "1m")
BUCKET = Bucket("api", [LIMIT], ["a"], count_denied=True, label="All", on_error="deny")
BAN = Ban("192.0.2.1", "a reason", "flood", 1, 3, 90)
CHECK: Check = (BUCKET, "192.0.2.1", 2)
DECISION = Decision(False, Reason.LIMITED, 10, (CHECK,), ((5, 40, 20, 30),))

WINDOW = MetricWindow(10, 100)
WINDOW.record(0, "pass", rt_us=5)
SAMPLES: list[Any] = [
    BUCKET,
    DECISION,
    Decision(False, Reason.LIMITED, 10, (CHECK,), ((5, 40, 20, 30),), at_least_us=77),
    Decision(False, Reason.BLOCKED, 5, (CHECK,), by="a list"),
    Decision(False, Reason.BLOCKED, by="nobody", status=404),
    Decision(False, Reason.UNAVAILABLE, checks=(CHECK,), at_least_us=9),
    refused_by_ban(BAN, 5, (CHECK,)),
    WINDOW.read(0),
    Traffic(passed=3, refused=1),
    Worker("host:7:1f3a", "host", 7, 0.5),
    Stats(5, 0, Traffic(3), {"api": Traffic(3)}, {}, [Traffic(3)], []),
    ConfigurationError("expected text", "limits"),
    InvalidKey("key: expected text"),
    Limit(5, "1m", name="burst", resolution=10),
    Quota("10/day", zone="UTC", name="plan"),
    Concurrency(4, name="permits"),
    Networks(["10.0.0.0/8"]),
    Rule("/items/{id}", "5/minute", methods=["POST"], name="items"),
    MessageLimits("10/second"),
]
MADE: dict[str, tuple[Any, ...]] = {
    "Decision": (True, Reason.OK),
    "RateLimitExceeded": (DECISION,),
    "SyncLimiter": (Limiter(),),
    **dict.fromkeys(["ConfigurationError", "SlidegateError", "StoreError"], ("a reason",)),
}
"""The arguments of public classes for which names are not enough."""
NEEDED = {"amount", "app", "limits", "path", "text", "window"}
COMPILED: frozenset[str] = frozenset({"Decision", "MemoryStore"} if slidegate.__compiled__ else ())
WAYS: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda value: pickle.loads(pickle.dumps(value)),
}


def parts(value: object) -> dict[str, str]:
    """Return all that a value says of itself."""
    found = {name: getattr(value, name) for name in dir(value) if not name.startswith("_")}
    said = {name: repr(part) for name, part in found.items() if not callable(part)} | {"": repr(value)}
    return {name: re.sub(" at 0x[0-9a-f]+", "", text) for name, text in said.items()}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("value", SAMPLES, ids=[type(value).__name__ for value in SAMPLES])
def test_a_copy_says_what_the_original_says(value: Any, way: str) -> None:
    twin = WAYS[way](value)
    assert type(twin) is type(value)
    assert twin is not value
    assert parts(twin) == parts(value)
    if isinstance(value, (Limit, Quota, Concurrency, Networks)):
        assert {twin} == {value}


@pytest.mark.parametrize("name", [name for name in slidegate.__all__ if isinstance(getattr(slidegate, name), type)])
def test_users_derive_from_a_public_class_but_for_those_that_are_compiled(name: str) -> None:
    public, given = getattr(slidegate, name), MADE.get(name, ())
    kind = type("Derived", (public,), {"of_the_user": True})
    options = {} if given else {name: RIGHT[name] for name in signature(public).parameters if name in NEEDED}
    if name in COMPILED:
        with pytest.raises(TypeError, match="compiled"):
            kind(*given)
    else:
        assert kind(*given, **options).of_the_user


@pytest.mark.parametrize("way", WAYS)
def test_a_copy_of_a_window_counts_on(way: str) -> None:
    window = CounterWindow(3, 10)
    window.add(50, 4)
    twin = WAYS[way](window)
    twin.add(55, 2)
    assert (window.total(55), twin.total(55)) == (4, 6)
