"""Everything that cannot work is said at construction: what was wrong, and what to write instead."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from starlette.applications import Starlette

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
    combine,
    cookie,
    everyone,
    header,
    path_param,
    query,
)
from slidegate.core import Store
from slidegate.httpx import LimitedTransport

from ..asgi import hello, statuses
from ..remote_stores import RemoteStore

RULE = Rule("*", "5/minute")


def middleware(**options: Any) -> RateLimitMiddleware:
    return RateLimitMiddleware(hello, **options)


def rule(*args: Any, **options: Any) -> Rule:
    return Rule(*args, **options)


def from_file(path: Any, **options: Any) -> object:
    return RateLimitMiddleware.from_file(hello, path, **options)


def bans(**options: Any) -> RateLimitMiddleware:
    return middleware(bans=BanPolicy(**options))


async def never(status: int) -> bool:
    return False


class Windows(RemoteStore):
    """A store that counts no permits."""

    permits_held = Store.permits_held  # type: ignore[assignment]


NO_NAMES: list[Any] = ["", "x" * 65, "\u00e9", "a\r", "a\nb", "a\0", "a:b", "a;b", " a", "a ", 5]
COUNT_IF = "expected a function of status, for example lambda status: "
NO_COUNT_IF: list[Any] = [lambda: True, lambda a, b, c, d: True, lambda status, *, request: True, 401]
NO_ENDPOINTS: list[Any] = [5, "page", Starlette()]
NO_SLASH = ["login", "^/api", r"^\/api", "api/.*"]
NOTHING: Any = lambda: None  # noqa: E731 - a function that takes nothing
MOST = [["0.0.0.0/0"], ["::/0"], ["0.0.0.0/1", "128.0.0.0/1"]]


BAD: dict[str, list[tuple[Callable[[], object], str]]] = {
    "middleware": [
        (lambda: middleware(limits="5/minute", rules=[RULE]), "not both"),
        (lambda: middleware(limits="5/minute; x"), "column 11"),
        (lambda: middleware(rules=RULE), "expected a list"),
        (lambda: middleware(rules=["5/minute"]), "not '5/minute' in it"),
        (lambda: middleware(limits="5/minute", limiter=MemoryStore()), "expected Limiter"),
        (lambda: middleware(limiter="redis://localhost"), 'Limiter.from_url("redis://localhost:6379/0")'),
        (lambda: middleware(limits="5/minute", blocklist="a"), "blocklist: expected Networks, "),
        (lambda: middleware(limits="5/minute", allowlist=["192.0.2.0/24"]), "allowlist: expected Networks, for exampl"),
        (lambda: middleware(limits="5/minute", headers="drafts"), "'drafts'"),
        (lambda: middleware(limits="5/minute", enabled="yes"), "enabled"),
        (lambda: middleware(limits="5/minute", on_refuse=None), "did you mean 'on_refused'"),
        (lambda: middleware(default_limits="x"), "default_limits: "),
        (lambda: middleware(default_limits=lambda: "1/minute"), "default_limits: expected"),
        (lambda: middleware(limits="5/minute", messages="10/second"), "messages: expected MessageLimits, for example "),
        (lambda: middleware(rules=[Rule("*", concurrency=1)], limiter=Limiter(Windows())), "counts no permits"),
        (lambda: middleware(limits="5/minute", ignore_checks=["SG1O3"]), "unknown code 'SG1O3'; did you mean 'SG103'?"),
        (lambda: middleware(limits="5/minute", ignore_checks="SG103"), 'expected a list of codes such as ["SG103"]'),
        (lambda: middleware(limits="5/minute", ignore_checks=[103]), "not 103 in it"),
        (lambda: from_file(None), "expected the path"),
        (lambda: Limiter.from_url("mysql://u:s3cret@h"), "mysql://***@h"),
        (lambda: Limiter(secret="short"), "16 to 64 bytes"),
    ],
    "paths": [
        *((lambda path=path: rule(path, "5/minute"), 'or a path such as "/items/{id}"') for path in NO_SLASH),
        (lambda: rule("/api/*", "5/minute"), '"/api/{rest:path}"'),
        (lambda: rule("/a/{id:nosuch}", "5/minute"), "nosuch"),
        (lambda: rule("/a/{id}/{id}", "5/minute"), "id"),
        (lambda: rule("/login?x=1", "5/minute"), "the query is not part of a path; write '/login'"),
        (lambda: rule(["/a", "/login#top"], "5/minute"), "the fragment is not part of a path; write '/login'"),
        (lambda: rule("/items/{id", "5/minute"), "'/items/{id' can never match: it has a brace"),
        (lambda: rule("/items/id}", exempt=True), "it has a brace without a parameter"),
        (lambda: rule("/caf%C3%A9", "5/minute"), "are decoded first; write '/café'"),
        (lambda: rule([], "1/s"), 'expected paths such as ["/login", "/token"], not an empty list'),
        (lambda: rule(["/a", "*"], "1/s"), 'path: "*" means every path; do not combine'),
        (lambda: rule(["/a", "/b", "/a"], "1/s"), "path: '/a' is listed twice in"),
        (lambda: rule(b"/a", "1/s"), "not b'/a'"),
        (lambda: rule("*", "1/s", key=path_param("t")), "path_param: '*' has no parameter 't'"),
        (lambda: rule(["/t/{t}", "/u"], "1/s", key=path_param("t")), "path_param: '/u' has no parameter 't'"),
        (lambda: rule("/u", "1/s", key=combine(everyone, path_param("t"))), "path_param: '/u' has no parameter 't'"),
        (lambda: rule("/u", "1/s", key=header("X", fallback=path_param("t"))), "path_param: '/u' has no parameter 't'"),
        (
            lambda: rule("/u/{u}", "1/s", key=path_param("u", fallback=path_param("t"))),
            "path_param: '/u/{u}' has no parameter 't'",
        ),
        (lambda: bans(signals={"/.env?x": 1}), "signals: path: '/.env?x' can never match"),
        (lambda: bans(signals={"/{a}/{a}": 1}), "cannot be used"),
    ],
    "rule": [
        (lambda: rule("/a"), "Rule('/a'): expected limits"),
        (lambda: rule("/a", exempt=True, limits="5/minute"), "exempt"),
        (lambda: rule("/a", "5/minute", methods="POST"), '["GET", "POST"]'),
        (lambda: rule("/a", "5/minute", methods=[]), "all methods"),
        (lambda: rule("/a", "5/minute", methods=["GET "]), "'GET '"),
        (lambda: rule("/a", "5/minute", connection="ws"), "websocket"),
        (lambda: rule("/a", "5/minute", key="ip"), "client_ip()"),
        (lambda: rule("/a", "5/minute", key=client_ip), "call it"),
        (lambda: rule("/a", "5/minute", cost=-1), "0 or more"),
        (lambda: rule("/a", "9/minute; 5/hour", cost=6), "could never pass"),
        (lambda: rule("/a", Quota("5/day"), cost=6), "cost: 6 is more than '5/day from 00:00 in UTC' allows"),
        (lambda: rule("/a", "5/minute", cots=2), "did you mean 'cost'"),
        (lambda: rule("/a", "5/minute", cost=5, cost_max=9), "cost_max: requires a function as cost"),
        (lambda: rule("/a", "5/minute", cost=len, cost_max=0), "cost_max: expected"),
        (lambda: rule("/a", "5/minute", cost=len, cost_max=9), "cost_max: 9 is more than '5/1m' allows"),
        (lambda: rule("/a", "5/minute", unit=""), "unit: expected 1 to 64 characters"),
        (lambda: rule("/a", "5/minute", unit="a;b"), "unit: ';' in 'a;b' is not allowed"),
        (lambda: rule("/a", [Limit(5, "1m"), "6/minute"]), "same window"),
        (lambda: rule("/a", lambda r: "5/m", fallback_limits="x"), "AMOUNT/WINDOW"),
        (lambda: rule("/a", "5/minute", fallback_limits="nobody"), "is not AMOUNT/WINDOW"),
        (lambda: rule("/a", "5/minute", shadow="yes"), "shadow: expected True or False"),
        (lambda: rule("/a", "5/minute", shadow=True, count_if=bool), "count_if"),
        (lambda: rule("/a", "5/minute", shadow=True, wait="1s"), "only reports"),
        (lambda: rule("/a", "5/minute", wait="soon"), "wait"),
        (lambda: rule("/a", "5/minute", wait="1s", wait_max=0), "wait_max"),
        (lambda: rule("/a", "5/minute", count_if=never), "plain function"),
        (lambda: rule("/a", "5/minute", count_denied="no"), "count_denied"),
        (lambda: rule("/a", "5/minute", when=True), "when: expected a function of request"),
        (lambda: rule("/a", "5/minute", block=True), "block: cannot be combined with limits"),
        (lambda: rule("/a", block=True, key=everyone), "block: cannot be combined with key"),
        (lambda: rule("/a", block=True, status=200), "status: expected a whole number from 400 to 599"),
        (lambda: rule("/a", "5/minute", status=503), "status: requires block; add block=True"),
        (lambda: rule("/a", concurrency=0), "expected a whole number from 1"),
        (lambda: rule("/a", concurrency="4/minute"), "it has no window"),
        (lambda: rule("/a", concurrency=4, exempt=True), "exempt: cannot be combined with concurrency"),
        (lambda: rule("/a", "5/minute", concurrency=4, shadow=True), "shadow: cannot be combined with concurrency"),
        (lambda: rule("/a", concurrency=4, cost=2), "cost: requires limits; add limits"),
        *((lambda given=given: rule("*", "5/minute", count_if=given), COUNT_IF) for given in NO_COUNT_IF),
        *((lambda name=name: rule("*", "5/minute", name=name), "name") for name in NO_NAMES),
    ],
    "endpoint": [
        (lambda: RateLimit("1/hour", block=True), "RateLimit: unknown option 'block'"),
        (lambda: RateLimit("1/hour", methods="POST"), 'methods: expected a list such as ["GET", "POST"]'),
        (lambda: RateLimit("1/hour", when="post"), "when:"),
        *(
            (lambda given=given: RateLimit.exempt(given), "RateLimit.exempt: expected")
            for given in (5, "a", Starlette())
        ),
        (lambda: RateLimit("1/s", default_limits="1/s"), "option 'default_limits'; "),
        (lambda: rule("*", "1/s", default_limits="1/s"), "fallback_limits= at a Rule"),
    ],
    "functions elsewhere": [
        (lambda: middleware(limits="5/minute", on_refused=len), "on_refused: expected a function of request and deci"),
        (lambda: Limiter(observers=[NOTHING]), "observers: expected a function of event, for example lambda event: "),
        (lambda: LimitedTransport(limits="5/minute", key=NOTHING), "key: expected a function of request, for example"),
    ],
    "names of other libraries": [
        (lambda: rule("*", "1/s", key_func=1), "Rule: unknown option 'key_func'; write key=header(\"X-API-Key\")"),
        (lambda: middleware(storage_uri=1), "RateLimitMiddleware: unknown option 'storage_uri'; "),
        (lambda: middleware(storage_uri=1), 'Limiter.from_url("redis://localhost:6379/0")'),
        (lambda: RateLimit("1/s", strategy=1), "leave it out: every window slides"),
        (lambda: middleware(times=1), 'limits="100/minute"'),
        (lambda: middleware(exclude_paths=1), 'Rule("/health", exempt=True)'),
        (lambda: RateLimit("1/s", exempt_when=1), "when=lambda request: ..."),
        (lambda: Limiter(handler=1), "Limiter: unknown option 'handler'; "),
        (lambda: MessageLimits("1/s", handler=1), "on_refused=function"),
        (lambda: middleware(trusted_proxies=1), 'client=client_ip(trusted=["10.0.0.0/8"])'),
        (lambda: middleware(whitelist=1), 'allowlist=Networks(["192.0.2.0/24"])'),
        (lambda: bans(threshold=1), 'after="20/10m" at a BanPolicy'),
    ],
    "keys": [
        *((lambda prefix=prefix: client_ip(ipv6_prefix=prefix), "ipv6_prefix") for prefix in (0, 31, 129, "64", True)),
        (lambda: client_ip(ipv4_prefix=33), "ipv4_prefix"),
        *((lambda name=name: header(name), "header") for name in ("", "X:Key", "X-K\u00e9y", "a\r\n", None, 5, "(x)")),
        *((lambda name=name: cookie(name), "cookie") for name in ("", "a b", 5)),
        *((lambda name=name: query(name), "query") for name in ("", None)),
        (lambda: path_param(""), "path_param"),
        (lambda: cookie("a", fallback="ip"), "fallback"),
        (lambda: header("X", fallback=lambda request: "k"), "fallback"),
        *((lambda keys=keys: combine(*keys), "combine") for keys in ((), (everyone,), (everyone, len))),
    ],
    "trust": [
        *((lambda given=given: client_ip(trusted=given), "trusted") for given in ("10.0.0.0/8", 1.5, None)),
        *((lambda given=given: client_ip(trusted=given), "1 to 64") for given in (0, -1, 65, True)),
        *((lambda given=given: client_ip(trusted=given), "trust_all") for given in MOST),
        (lambda: client_ip(trusted="*"), "list of networks"),
        (lambda: client_ip(trusted=["*"]), "'*'"),
        (lambda: client_ip(trusted=["10.0.0.0/33"]), "10.0.0.0/33"),
        (lambda: client_ip(trusted=["proxy.example"]), "proxy.example"),
        (lambda: client_ip(trusted=["10.0.0.1/8"]), "host bits"),
    ],
    "bans": [
        (lambda: middleware(bans="20/10m"), "bans: expected BanPolicy"),
        (lambda: middleware(bans=[BanPolicy, 3]), "not <class"),
        (lambda: middleware(bans=[BanPolicy(), BanPolicy()]), "two policies are named 'abuse'"),
        (lambda: bans(key="x"), "expected a built-in key such as header, not 'x'"),
        (lambda: bans(key=everyone), "does not identify a client"),
        (lambda: bans(key=header("X-Key", fallback=everyone)), "does not identify a client"),
        (lambda: bans(key=combine(client_ip(), path_param("id"))), "does not identify a client"),
        (lambda: bans(key=client_ip(ipv4_prefix=16)), "its clients have ipv4_prefix=16, "),
    ],
    "messages": [
        (lambda: MessageLimits("often"), "often"),
        (lambda: MessageLimits("1/s", limit="2/s"), "unknown option 'limit'; did you mean 'limits'"),
    ],
    "lists": [
        (lambda: Networks.from_file(5), 'path: expected a file, for example "drop.netset", not 5'),
        (lambda: Networks.from_file("a/"), "path: expected a file"),
        (lambda: Networks.from_file("a", strict="no"), "strict: expected True or False, not 'no'"),
        (lambda: Networks.from_file("no such.netset"), "cannot read no such.netset: No such file or directory"),
    ],
}


@pytest.mark.parametrize(
    ("make", "part"),
    [(make, part) for rows in BAD.values() for make, part in rows],
    ids=[f"{about}-{number}" for about, rows in BAD.items() for number, _ in enumerate(rows)],
)
def test_what_cannot_work_is_a_clear_error_where_it_is_written(make: Callable[[], object], part: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(part)) as caught:
        make()
    assert isinstance(caught.value, ValueError)


SHAPES: list[tuple[Callable[..., object], int]] = [
    (lambda: None, 0),
    (lambda a: None, 1),
    (lambda a, b: None, 2),
    (lambda a, b, c: None, 3),
    (lambda a, *, b: None, 0),
    (partial(lambda a, b: None, b=1), 1),
    (partial(lambda a, b, c: None, 1), 2),
]


async def plenty(first: object, second: object = None, *rest: object, more: object = None) -> None:
    """Take one or more."""


class Two:
    def __call__(self, first: object, second: object = None) -> None:
        """Take one or two."""


TAKES = {"limits": 1, "key": 1, "cost": 1, "when": 1}


@pytest.mark.parametrize("make", [partial(rule, "/a"), RateLimit], ids=["rule", "endpoint"])
@pytest.mark.parametrize("option", TAKES)
def test_a_function_that_does_not_take_what_it_will_be_given_is_refused_where_it_is_given(
    option: str, make: Callable[..., object]
) -> None:
    for function, takes in SHAPES:
        if takes == TAKES[option]:
            make(**{"limits": "5/minute", option: function})
            continue
        with pytest.raises(ConfigurationError, match=f"^{option}: expected a function of .* which takes "):
            make(**{"limits": "5/minute", option: function})
    for fitting in (plenty, Two(), partial(plenty, more=1), lambda *given: None, print):
        make(**{"limits": "5/minute", option: fitting})


FOREIGN = r"""
/\d+ /items/\w+ /items/<id> /items/<int:id> /items/:id /:tenant/items /(a|b) /api/(v1|v2)/x /api/.+$ /api/.* /api/(.*)
/files/.*\.js /api/v1\.0 /..\windows /api/.+ /api$ /items/[id] /items/[0-9]+ /(?P<id>\d+) /^api
"""


@pytest.mark.parametrize("path", FOREIGN.split())
def test_a_path_in_the_language_of_another_library_is_refused(path: str) -> None:
    for make in (
        lambda: rule(path, "5/minute"),
        lambda: rule(["/a", path], exempt=True),
        lambda: middleware(rules=[], bans=BanPolicy(signals={path: "ban"})),
    ):
        with pytest.raises(ConfigurationError, match=r"is not in Starlette's syntax, where .* write for example"):
            make()


ODD = "/$metadata /v1/items:batch /v1/things:batchGet /wiki/A_(b) /a+b /~me /a;b=1 /@x /a|b /P({id})"


@pytest.mark.parametrize("path", ODD.split())
async def test_a_path_with_odd_letters_that_clients_send_is_taken(path: str) -> None:
    assert await statuses(middleware(rules=[rule(path, "1/hour")]), 2, path) == [200, 429]
