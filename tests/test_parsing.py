"""Whatever reads text takes time in proportion to its length.

The texts are those that make readers slow: runs of one character and of two, behind every beginning that a reader may
already have agreed to, and closed in the ways in which such a run may end. What is measured is processor time of this
process, and only how it grows: eight times the text may take at most 32 times as long, which is a factor of four of
room, and a half of what a quadratic reader takes.
"""

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount, Route

from slidegate import BanPolicy, ConfigurationError, RateLimitMiddleware, Rule, path_param
from slidegate.core import parse_duration_us, parse_limits
from slidegate.core.addresses import canonical_key, parse_network
from slidegate.ops.replay.logs import line_parser, parse_line
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
