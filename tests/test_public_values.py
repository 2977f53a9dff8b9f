"""Values of users: a wrong one is accepted or refused with what is expected; what is no list, by Python's own error.

And answers, limits and stats are copied and pickled whole: by worker processes, caches and tests of users.
"""

import copy
import inspect
import pickle
import re
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from math import inf, nan
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import anyio
import httpx
import pytest
from redis.asyncio import Redis
from starlette.applications import Starlette
from starlette.requests import Request

import slidegate
from slidegate import Limiter, Networks, RateLimitMiddleware, Rule, SlidegateError, SyncLimiter, header, user
from slidegate.core import Bucket, Concurrency, InvalidKey, Reason, Store
from slidegate.core.bans.ban import Ban
from slidegate.core.buckets import Check
from slidegate.core.decision import refused_by_ban
from slidegate.dashboard import Dashboard
from slidegate.httpx import LimitedTransport, SyncLimitedTransport
from slidegate.ops.statistics import Statistics, Stats, Traffic, Worker
from slidegate.otel import OtelMetrics
from slidegate.prometheus import PrometheusMetrics
from slidegate.stores.redis import RedisStore
from slidegate.testing import FakeClock, RecordingObserver
from slidegate.windows import CounterWindow, HotKeys, MetricWindow, RollingTotals

from .asgi import hello, scope_of, send_scope
from .test_passwords import ADDRESSES, PASSWORD, shown_by

LIMITER = Limiter()
TOOLS = slidegate.mcp_tool("search", validated=True)
REQUEST = Request(scope_of())
anyio.run(send_scope, RateLimitMiddleware(hello, limits="99999/s", bans=slidegate.BanPolicy()), REQUEST.scope)
RIGHT = {
    **dict.fromkeys(["amount", "capacity", "slices", "threshold"], 5),
    **dict.fromkeys(["cost", "slice_us", "units", "used"], 1),
    **dict.fromkeys(["limit", "limits"], "5/minute"),
    **dict.fromkeys(["connection", "request"], REQUEST),
    "app": Starlette(),
    "client": Redis(),
    "duration": "1h",
    "key": "192.0.2.1",
    "keys": (header("X-Tenant"), user),
    "limiter": LIMITER,
    "name": "api",
    "path": "/items",
    "policy": slidegate.BanPolicy(),
    "text": "5/day",
    "url": "memory://",
    "value": b"x",
    "window": "1m",
    "windows_us": [5],
}
"""A right value for each argument that has no default."""
HUGE_TEXTS = "N|-N|0.N|N/minute|5/Ns|5/minute @N|N-01|N:00|192.0.2.0/N|redis://localhost:N|memory://?max_keys=N"
HUGE = HUGE_TEXTS.replace("N", "1" * 5_000).split("|")
WRONG: list[Any] = [
    *(None, True, 0, -1, 3, 1.5, nan, inf, 10**30, "", "x", "1m", "5/minute", "a\x00b", "é\ud800", "x" * 5_000),
    *(b"", b"x", bytearray(b"x"), [], [None], ["x"], [1], ["x", 1], [[]], {}, {"x": 1}, {1: 2}, {1}, (), range(3)),
    *(object(), ..., int, ValueError, Starlette, Rule, lambda: 1, lambda request: request, Path("/nowhere")),
    *(timedelta(1), timedelta(-1), slidegate.Limit(5, "1m"), slidegate.everyone, REQUEST, REQUEST.scope),
    *(10**5_000, -(10**5_000), 2**64, 1e308, -1e308, timedelta.max, timedelta.min, "9" * 30, "\u0661" * 5_000),
    *("x" * 100_000, "1e400", "\u00b2", *HUGE, HUGE, {"refused": 10**5_000}, {"refused": HUGE[0]}, {HUGE[0]: 1}),
]
LISTS = {"bans", "exempt", "lines", "networks", "observers", "rules", "statuses", "trusted", "without"}
"""Arguments that are iterated: values of other types fail at once, as everywhere in Python."""
OBJECTS = {"transport", "allowlist", "blocklist", "client", "decision", "limiter", "messages", "policy", "rule"}
OBJECTS |= {"meter_provider", "registry"}
"""Arguments that are asked for an attribute, or looked up by name: values of other types fail at once, too."""
NOT_CALLED = {"Decision", "ConfigurationError", "RateLimitExceeded", "SlidegateError", "StoreError"}
"""What users receive."""
METHODS = [
    *(getattr(LIMITER, name) for name in dir(Limiter) if name not in ("close", "rows", "keep_row", "observe")),
    *(getattr(SyncLimiter(LIMITER), name) for name in dir(SyncLimiter) if name != "close"),
]
CALLED: list[Callable[..., Any]] = [
    *(getattr(slidegate, name) for name in slidegate.__all__ if name not in {*NOT_CALLED, "rate_limit_exceeded"}),
    *(method for method in METHODS if callable(method) and not method.__name__.startswith("_")),
    *(Networks.from_file, RateLimitMiddleware.from_file, Dashboard, OtelMetrics, PrometheusMetrics, Statistics.of),
    *(partial(one, transport=httpx.MockTransport(hello)) for one in (LimitedTransport, SyncLimitedTransport)),
    *(FakeClock, RecordingObserver, RedisStore),
    *(Statistics.of(LIMITER).read, Statistics.of(LIMITER).clients, Statistics.of(LIMITER).events),
    *(Concurrency, CounterWindow, HotKeys, MetricWindow, RollingTotals),
    *(key.of for key in (header("X-A"), slidegate.cookie("a"), slidegate.query("a"), slidegate.path_param("a"))),
    *(TOOLS.is_in, slidegate.RateLimit("1/s").check),
    partial(Rule, "/", "5/minute", wait="5s"),
    *(partial(slidegate.Quota, f"5/{unit}") for unit in ("week", "month", "year")),
]


def needed(signature: inspect.Signature) -> dict[str, Any]:
    """Return right values for the arguments that a function needs."""
    parameters = signature.parameters.values()
    return {one.name: RIGHT[one.name] for one in parameters if one.default is one.empty and one.name in RIGHT}


VALUES: dict[str, Any] = {f"number {number}": value for number, value in enumerate(WRONG)} | ADDRESSES
NO_ADDRESSES = {
    *(("LmdbStore", way) for way in ("with a user", "an assignment")),  # a directory, which is made by that name
    *((name, way) for name in ("settle", "charge") for way in ("keywords", "TOML")),  # the units of a rule "password"
    ("inspect", "keywords"),  # the limits of one
}


async def problem_of(function: Callable[..., Any], signature: inspect.Signature, name: str, way: str) -> str | None:
    """Call a function with one wrong argument; return what is wrong with its answer."""
    bound = signature.bind_partial()
    bound.arguments |= needed(signature)
    value = VALUES[way]
    if name in bound.signature.parameters:
        is_several = bound.signature.parameters[name].kind == inspect.Parameter.VAR_POSITIONAL
        bound.arguments[name] = (value,) if is_several else value
    else:
        bound.arguments["options"] = {name: value}
    try:
        answer = function(*bound.args, **bound.kwargs)
        said = repr(answer) if isinstance(answer, Store | Limiter) else ""
        if isinstance(answer, PrometheusMetrics) or type(answer).__name__ == "LmdbStore":
            answer = answer.close()
        if inspect.isawaitable(answer):
            await answer
    except Exception as error:
        said = shown_by(error)
        is_iterated = name in LISTS | OBJECTS and isinstance(error, (TypeError, AttributeError))
        if not (is_iterated or way in ADDRESSES or isinstance(error, SlidegateError)):
            return f"{name}={type(value).__name__}, {way}: {error!r:.80}"
    if PASSWORD in said and (getattr(function, "__name__", ""), way) not in NO_ADDRESSES:
        return f"{name}={way} shows the password"
    return None


LMDB = "slidegate.stores.lmdb:LmdbStore"
"""Imported where it is called: not every Python has LMDB."""


@pytest.mark.parametrize(
    "function",
    [*filter(callable, CALLED), pytest.param(LMDB, id="LmdbStore")],
    ids=lambda one: getattr(one, "__qualname__", "partial"),
)
async def test_no_argument_but_a_list_or_an_object_leads_to_an_error_of_pythons_own_and_no_message_shows_a_password(
    function: Callable[..., Any] | str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.chdir(tmp_path)
    if isinstance(function, str):
        function = resolve_name(function)
    signature = inspect.signature(function)
    names = [name for name in signature.parameters if name != "options"]
    if "options" in signature.parameters:
        names += inspect.signature(Rule).parameters
    for name in names:
        problems = [await problem_of(function, signature, name, way) for way in VALUES]
        assert [*filter(None, problems)] == []
    is_by_name = getattr(function, "__name__", "") == "ban"  # by whom, which the log says
    assert is_by_name or PASSWORD not in caplog.text


# -- copies and pickles -----------------------------------------------------------------------------------------------


BUCKET = Bucket("api", [slidegate.Limit(5, "1m")], ["a"], count_denied=True, label="All", on_error="deny")
BAN = Ban("192.0.2.1", "a reason", "flood", 1, 3, 90)
CHECK: Check = (BUCKET, "192.0.2.1", 2)
DECISION = slidegate.Decision(False, Reason.LIMITED, 10, (CHECK,), ((5, 40, 20, 30),))

WINDOW = MetricWindow(10, 100)
WINDOW.record(0, "pass", rt_us=5)
SAMPLES: list[Any] = [
    BUCKET,
    DECISION,
    slidegate.Decision(False, Reason.LIMITED, 10, (CHECK,), ((5, 40, 20, 30),), at_least_us=77),
    slidegate.Decision(False, Reason.BLOCKED, 5, (CHECK,), by="a list"),
    slidegate.Decision(False, Reason.BLOCKED, by="nobody", status=404),
    slidegate.Decision(False, Reason.UNAVAILABLE, checks=(CHECK,), at_least_us=9),
    refused_by_ban(BAN, 5, (CHECK,)),
    WINDOW.read(0),
    Traffic(passed=3, refused=1),
    Worker("host:7:1f3a", "host", 7, 0.5),
    Stats(5, 0, Traffic(3), {"api": Traffic(3)}, {}, [Traffic(3)], []),
    slidegate.ConfigurationError("expected text", "limits"),
    InvalidKey("key: expected text"),
    slidegate.Limit(5, "1m", name="burst", resolution=10),
    slidegate.Quota("10/day", zone="UTC", name="plan"),
    Concurrency(4, name="permits"),
    Networks(["10.0.0.0/8"]),
    Rule("/items/{id}", "5/minute", methods=["POST"], name="items"),
    slidegate.MessageLimits("10/second"),
    slidegate.RateLimitExceeded(DECISION),
]
MADE: dict[str, tuple[Any, ...]] = {
    "Decision": (True, Reason.OK),
    "RateLimit": ("5/minute",),
    "RateLimitExceeded": (DECISION,),
    "Rule": ("/items", "5/minute"),
    "SyncLimiter": (Limiter(),),
    **dict.fromkeys(["ConfigurationError", "SlidegateError", "StoreError"], ("a reason",)),
}
"""The arguments of public classes for which names are not enough."""
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
    if isinstance(value, (slidegate.Limit, slidegate.Quota, Concurrency, Networks)):
        assert {twin} == {value}


@pytest.mark.parametrize("name", [name for name in slidegate.__all__ if isinstance(getattr(slidegate, name), type)])
def test_users_derive_from_a_public_class_but_for_those_that_are_compiled(name: str) -> None:
    public, given = getattr(slidegate, name), MADE.get(name, ())
    kind = type("Derived", (public,), {"of_the_user": True})
    if name in COMPILED:
        with pytest.raises(TypeError, match="compiled"):
            kind(*given)
    else:
        assert kind(*given, **({} if given else needed(inspect.signature(public)))).of_the_user


@pytest.mark.parametrize("way", WAYS)
def test_a_copy_of_a_window_counts_on(way: str) -> None:
    window = CounterWindow(3, 10)
    window.add(50, 4)
    twin = WAYS[way](window)
    twin.add(55, 2)
    assert (window.total(55), twin.total(55)) == (4, 6)


def test_a_limiter_belongs_to_its_process_and_is_not_pickled() -> None:
    with pytest.raises(TypeError, match="cannot pickle"):
        pickle.dumps(Limiter())
