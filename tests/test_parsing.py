"""Whatever reads text takes time in proportion to its length, and a number of any size is an error like any other.

The texts are those that make readers slow: runs of one character and of two, behind every beginning that a reader may
already have agreed to, and closed in the ways in which such a run may end. What is measured is processor time of this
process, and only how it grows: eight times the text may take at most 32 times as long, which is a factor of four of
room, and a half of what a quadratic reader takes.
"""

import asyncio
import inspect
import itertools
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount, Route

from slidegate import (
    BanPolicy,
    ConfigurationError,
    Limit,
    Limiter,
    MemoryStore,
    MessageLimits,
    Networks,
    Quota,
    RateLimit,
    RateLimitMiddleware,
    Rule,
    client_ip,
    cookie,
    header,
    path_param,
    query,
)
from slidegate.core import (
    Concurrency,
    CounterWindow,
    HotKeys,
    MetricWindow,
    RollingTotals,
    parse_duration_us,
    parse_limits,
)
from slidegate.core.addresses import canonical_key, parse_network
from slidegate.httpx import LimitedTransport
from slidegate.ops.replay.logs import line_parser, parse_line
from slidegate.stores.redis import RedisStore
from slidegate.web.client_ip import read_node, split_forwarded, split_list
from slidegate.web.lists import read_entries

from .asgi import call, hello, page

SHORT, LONG = 2_000, 16_000
SUSPICIOUS_S = 0.05
"""A reader that is done with a long text in this time need not be measured twice."""
PIECES = (*" \t\n,;:/@#.=-+|%\"\\'[](){}<>10axé\0", "a.", "1.", "[1,", "a=1\n", "per", "for=", "deny 1;", "::", "\r\n")
ENDS = ("", "x")
NGINX = line_parser(preset="nginx")
Reader = Callable[[str], object]


def entries(text: str) -> None:
    for _, entry in read_entries(text.splitlines(keepends=True)):
        with suppress(ConfigurationError):
            parse_network(entry)


ROUTES = [Route("/a", page), Route("/items/{id}", page), Mount("/v1", routes=[Route("/{x}/b", page)])]
RULES = [
    *(Rule(path, "9999/minute") for path in ("/a", "/v1/{x}/b", "/{x:float}", "/z{x:uuid}", "/{y}/{rest:path}")),
    Rule("/items/{id:int}", "9999/minute", key=path_param("id")),
    Rule("/{x}/ok", exempt=True),
    Rule("*", "99999/minute"),
]
HONEYPOT = BanPolicy("9999/m", "1h", signals={"/.env": 1})
MIDDLEWARES = [
    RateLimitMiddleware(app, rules=RULES, default_limits="99999/minute", bans=HONEYPOT)
    for app in (Starlette(routes=ROUTES), hello)
]


def path(text: str) -> None:
    """Ask middlewares, one of which knows the routes behind it."""
    for middleware in MIDDLEWARES:
        answer = asyncio.run(call(middleware, text))
        assert text.endswith("/ok") or answer.headers["ratelimit"]


LOG_BEGINNINGS = ("192.0.2.7 - - [", "{", '{"remote_addr":"', "<13>Jan 1 ", "<13>1 a b c d e [", "192.0.2.7, ", "1 - [")
LOG_BEGINNINGS += ('192.0.2.7 - - [12/May/2024:00:00:17 +0000] "', '2024-05-12 00:00:17 192.0.2.7 - "', "2024-05-12 ")
READERS: dict[str, tuple[Reader, tuple[str, ...]]] = {
    "path": (path, ("", "/a", "/items/", "/v1/x/b")),
    "limits": (parse_limits, ("", "5/", "5 per ", "a:", "a: 5/minute", "5/minute;", "5/minute @")),
    "duration": (parse_duration_us, ("", "5", "5 s")),
    "forwarded": (lambda text: list(split_forwarded(text)), ("", "for=", 'for="', "for=1.2.3.4;", "for=1.2.3.4,")),
    "list of addresses": (lambda text: list(map(read_node, split_list(text))), ("", "[", '"', "1.2.3.4,")),
    "node": (read_node, ("", "[", '"', "1.2.3.4:")),
    "network": (parse_network, ("", "192.0.2.0/", "::", "2001:db8::/", "fe80::1%")),
    "key": (canonical_key, ("x", "192.0.2.0/", "2001:db8::/")),
    "access log": (parse_line, ("", *LOG_BEGINNINGS)),
    "access log of JSON": (NGINX, ("", "{", '{"msec":"', '{"http_')),
}
READERS["list"] = entries, ("", "192.0.2.7 ", "192.0.2.7 1 ", "192.0.2.0 -")


def hostile(beginning: str, length: int) -> Iterator[str]:
    """Yield long texts with one beginning, in an order that does not depend on the length."""
    pairs = [left + right for left, right in itertools.combinations('a1 ,;"\\', 2)]
    for piece, end in itertools.product((*PIECES, *pairs), ENDS):
        yield beginning + piece * (length // len(piece)) + end


def seconds(read: Reader, text: str) -> float:
    start = time.process_time()
    with suppress(ConfigurationError):
        read(text)
    return time.process_time() - start


@pytest.mark.parametrize("reader", READERS)
def test_reading_takes_time_in_proportion_to_the_text(reader: str) -> None:
    read, beginnings = READERS[reader]
    for beginning in beginnings:
        for short, long in zip(hostile(beginning, SHORT), hostile(beginning, LONG), strict=True):
            if seconds(read, long) > SUSPICIOUS_S:
                grown = min(seconds(read, long) for _ in range(3)) / min(seconds(read, short) for _ in range(3))
                assert grown < 32, f"{long[:60]!r}… takes {grown:.0f} times as long as an eighth of it"


# -- of any size -----------------------------------------------------------------------------------------------------

DIGITS = "1" * 5_000
HUGE = (
    "{0}|-{0}|0.{0}|{0}/minute|5/{0}s|5/minute @{0}|{0}-01|{0}:00|192.0.2.0/{0}|redis://localhost:{0}|"
    "memory://?max_keys={0}|1e400|\u00b2|\0|\ud800"
)
HUGE_TEXTS = (*HUGE.format(DIGITS).split("|"), "9" * 30, "\u0661" * 5_000, "x" * 100_000)
HUGE_FLOATS = (1e308, -1e308, float("inf"), float("nan"))
HUGE_NUMBERS = (10**5_000, -(10**5_000), 2**64, -1, *HUGE_FLOATS, timedelta.max, timedelta.min)
MADE: tuple[tuple[Callable[..., object], dict[str, object]], ...] = (
    (Limit, {"amount": 5, "window": "1m"}),
    *((Quota, {"text": f"5/{unit}"}) for unit in ("day", "week", "month", "year")),
    (Concurrency, {"amount": 4}),
    (parse_limits, {"limits": "5/minute"}),
    (parse_duration_us, {"value": "5s"}),
    (BanPolicy, {}),
    *((make, {**path, "limits": "5/minute", "wait": "5s"}) for make, path in ((Rule, {"path": "/"}), (RateLimit, {}))),
    (MessageLimits, {"limits": "5/minute"}),
    (RateLimitMiddleware, {"app": None, "limits": "5/minute"}),
    *((key, {"name": "x"}) for key in (header, cookie, query, path_param)),
    (client_ip, {"trusted": ["192.0.2.0/24"]}),
    (Networks, {}),
    (Limiter, {}),
    (Limiter.from_url, {"url": "memory://"}),
    (MemoryStore, {}),
    (RedisStore, {"client": "redis://localhost"}),
    (CounterWindow, {"slices": 5, "slice_us": 1}),
    (MetricWindow, {"slices": 5, "slice_us": 1}),
    (RollingTotals, {"slice_us": 1, "windows_us": [5]}),
    (HotKeys, {"capacity": 5, "threshold": 5, "window": "5s"}),
    (LimitedTransport, {"limits": "5/minute"}),
    (line_parser, {"preset": "caddy"}),
)


def given_to(annotation: str) -> Iterator[object]:
    """Yield values of the types that a parameter takes, and huge; a list of each too, where it takes several."""
    for types, values in (
        (("str", "AnyLimit", "Limits"), HUGE_TEXTS),
        (("int", "float", "SupportsIndex", "timed"), HUGE_NUMBERS),
    ):
        if any(re.search(rf"\b{kind}", annotation) for kind in types):
            yield from values
            if re.search("Iterable|Sequence", annotation):
                yield from ([value] for value in values)
            if "Mapping" in annotation:
                yield from ({"refused": value} for value in values)
                yield from ({value: 1} for value in values)


@pytest.mark.parametrize("made", range(len(MADE)), ids=lambda index: f"{MADE[index][0].__qualname__}-{index}")
def test_whatever_is_huge_is_taken_or_a_clear_error(made: int) -> None:
    make, usual = MADE[made]
    make(**usual)
    failed = []
    for name, parameter in inspect.signature(make).parameters.items():
        if parameter.kind is parameter.POSITIONAL_ONLY or name in {"low_us", "high_us"}:
            continue  # `RateLimit("5/minute")`, which is another way to write limits=; bounds, which no user writes
        for value in given_to(str(parameter.annotation)):
            try:
                make(**{**usual, name: value})
            except ConfigurationError:
                pass
            except Exception as error:
                failed.append(f"{name}: {type(value).__name__}: {type(error).__name__}: {error!s:.60}")
    assert failed == []
