"""Everything that cannot work is said at construction: what was wrong, and what to write instead."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from slidegate import (
    BanPolicy,
    ConfigurationError,
    Limit,
    Limiter,
    MemoryStore,
    MessageLimits,
    RateLimit,
    RateLimitMiddleware,
    Rule,
    client_ip,
    header,
    path_param,
)
from slidegate.dashboard import Dashboard
from slidegate.httpx import LimitedTransport

from ..asgi import hello, statuses

RULE = Rule("*", "5/minute")


def middleware(**options: Any) -> RateLimitMiddleware:
    return RateLimitMiddleware(hello, **options)


def rule(*args: Any, **options: Any) -> Rule:
    return Rule(*args, **options)


async def never(status: int) -> bool:
    return False


BAD: list[tuple[Callable[[], object], str]] = [
    (lambda: middleware(limits="5/minute", rules=[RULE]), "not both"),
    (lambda: middleware(limits="5/minute; x"), "column 11"),
    (lambda: middleware(rules=RULE), "expected a list"),
    (lambda: middleware(rules=["5/minute"]), "Rule"),
    (lambda: middleware(limits="5/minute", limiter=MemoryStore()), "expected Limiter"),
    (lambda: middleware(limits="5/minute", client=client_ip), "client_ip()"),
    (lambda: middleware(limits="5/minute", blocklist=["192.0.2.0/24"]), "expected Networks"),
    (lambda: middleware(limits="5/minute", allowlist="192.0.2.0/24"), "expected Networks"),
    (lambda: middleware(limits="5/minute", on_refused="no"), "on_refused"),
    (lambda: middleware(limits="5/minute", headers="drafts"), "'drafts'"),
    (lambda: middleware(limits="5/minute", enabled="yes"), "enabled"),
    (lambda: middleware(limits="5/minute", on_refuse=None), "did you mean 'on_refused'"),
    (lambda: rule("login", "5/minute"), "'login'"),
    (lambda: rule("/api/*", "5/minute"), '"/api/{rest:path}"'),
    (lambda: rule("/a/{id:nosuch}", "5/minute"), "nosuch"),
    (lambda: rule("/a/{id}/{id}", "5/minute"), "id"),
    (lambda: rule("/login?x=1", "5/minute"), "the query is no part of a path; write '/login'"),
    (lambda: rule(["/a", "/login#top"], "5/minute"), "the fragment is no part of a path; write '/login'"),
    (lambda: rule("/items/{id", "5/minute"), "'/items/{id' can never match: a brace in it"),
    (lambda: rule("/items/id}", exempt=True), "a brace in it is no parameter"),
    (lambda: rule("/caf%C3%A9", "5/minute"), "compared decoded; write '/café'"),
    (
        lambda: middleware(limits="5/m", bans=BanPolicy(signals={"/.env?x": 1})),
        "signals: path: '/.env?x' can never match",
    ),
    (lambda: rule("/a"), 'Rule("/a", "5/minute")'.replace('"/a"', "'/a'")),
    (lambda: rule("/a", exempt=True, limits="5/minute"), "exempt"),
    (lambda: rule("/a", "5/minute", methods="POST"), '["GET", "POST"]'),
    (lambda: rule("/a", "5/minute", methods=[]), "all methods"),
    (lambda: rule("/a", "5/minute", methods=["GET "]), "'GET '"),
    (lambda: rule("/a", "5/minute", connection="ws"), "websocket"),
    (lambda: rule("/a", "5/minute", key="ip"), "client_ip()"),
    (lambda: rule("/a", "5/minute", cost=-1), "0 or more"),
    (lambda: rule("/a", "9/minute; 5/hour", cost=6), "could never pass"),
    (lambda: rule("/a", "5/minute", cots=2), "did you mean 'cost'"),
    (lambda: rule("/a", [Limit(5, "1m"), "6/minute"]), "same window"),
    (lambda: rule("/a", lambda r: "5/m", fallback_limits="x"), "AMOUNT/WINDOW"),
    (lambda: rule("/a", "5/minute", count_if=401), "count_if"),
    (lambda: rule("/a", "5/minute", shadow="yes"), "shadow: expected True or False"),
    (lambda: rule("/a", "5/minute", shadow=True, count_if=bool), "count_if"),
    (lambda: rule("/a", "5/minute", wait="soon"), "wait"),
    (lambda: rule("/a", "5/minute", wait="1s", wait_max=0), "wait_max"),
    (lambda: rule("/a", "5/minute", key=client_ip), "call it"),
    (lambda: rule("/a", "5/minute", count_if=never), "plain function"),
    (lambda: rule("/a", "5/minute", count_denied="no"), "count_denied"),
    (lambda: rule("/a", "5/minute", shadow=True, final=True), "only looks on"),
    (lambda: rule("/a", "5/minute", shadow=True, wait="1s"), "only looks on"),
    (lambda: RateLimitMiddleware.from_file(hello, None), "expected the path"),  # type: ignore[arg-type]
    (lambda: Limiter.from_url("mysql://u:s3cret@h"), "mysql://***@h"),
    (lambda: client_ip(ipv4_prefix=33), "ipv4_prefix"),
    (lambda: header("X Key"), "X Key"),
    (lambda: middleware(limiter="redis://localhost"), 'Limiter.from_url("redis://localhost:6379/0")'),
    (lambda: Limiter(secret="short"), "16 to 64 bytes"),
]


FUNCTIONS: dict[str, tuple[Callable[[Any], object], int]] = {
    "limits": (lambda function: rule("/a", function), 1),
    "key": (lambda function: rule("/a", "5/minute", key=function), 1),
    "cost": (lambda function: rule("/a", "5/minute", cost=function), 1),
    "when": (lambda function: rule("/a", "5/minute", when=function), 1),
    "on_exceeded": (lambda function: rule("/a", "5/minute", on_exceeded=function), 2),
    "on_refused": (lambda function: middleware(limits="5/minute", on_refused=function), 2),
    # The same at an endpoint.
    "limits ": (RateLimit, 1),
    "key ": (lambda function: RateLimit("5/minute", key=function), 1),
    "cost ": (lambda function: RateLimit("5/minute", cost=function), 1),
    "on_exceeded ": (lambda function: RateLimit("5/minute", on_exceeded=function), 2),
}
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


@pytest.mark.parametrize("option", FUNCTIONS)
def test_a_function_that_does_not_take_what_it_will_be_given_is_refused_where_it_is_given(option: str) -> None:
    make, given = FUNCTIONS[option]
    for function, takes in SHAPES:
        if takes == given:
            make(function)
            continue
        with pytest.raises(ConfigurationError, match=f"^{option.strip()}: expected a function of .* which takes "):
            make(function)
    for fitting in (plenty, Two(), partial(plenty, more=1), lambda *given: None, print):
        make(fitting)


ELSEWHERE: dict[str, Callable[[Any], object]] = {
    "observers: expected a function of event, for example lambda event: ...": lambda f: Limiter(observers=[f]),
    "on_exceeded: expected a function of key and decision": lambda f: RateLimitMiddleware.from_file(
        hello, "none.toml", on_exceeded=f
    ),
    "Dashboard: auth: expected a function of request, for": lambda f: Dashboard(Limiter(), auth=f),
    "key: expected a function of request, for example lambda request: ...": lambda f: LimitedTransport(
        limits="5/minute", key=f
    ),
}


@pytest.mark.parametrize("said", ELSEWHERE)
def test_a_function_is_checked_wherever_one_is_given(said: str) -> None:
    for function in (lambda: None, lambda a, b, c: None):
        with pytest.raises(ConfigurationError) as caught:
            ELSEWHERE[said](function)
        assert str(caught.value).startswith(said)


FOREIGN = r"/\d+ /items/\w+ /items/<id> /items/<int:id> /items/:id /:tenant/items /(a|b) /api/(v1|v2)/x "
FOREIGN += r"/api/.+$ "
FOREIGN += (
    r"/api/.* /api/(.*) /files/.*\.js /api/v1\.0 /..\windows /api/.+ /api$ /items/[id] /items/[0-9]+ /(?P<id>\d+) /^api"
)


@pytest.mark.parametrize("path", FOREIGN.split())
def test_a_path_in_the_language_of_another_library_is_refused(path: str) -> None:
    for make in (
        lambda: rule(path, "5/minute"),
        lambda: rule(["/a", path], exempt=True),
        lambda: middleware(rules=[], bans=BanPolicy(signals={path: "ban"})),
    ):
        with pytest.raises(ConfigurationError, match=r"is not in Starlette's syntax, where .* write for example"):
            make()


@pytest.mark.parametrize(
    "path",
    ["/$metadata", "/v1/items:batch", "/v1/things:batchGet", "/wiki/A_(b)", "/a+b", "/~me", "/a;b=1", "/@x", "/a|b"],
)
async def test_a_path_with_odd_letters_that_clients_send_is_taken(path: str) -> None:
    assert await statuses(middleware(rules=[rule(path, "1/hour")]), 2, path) == [200, 429]


async def test_a_parameter_may_stand_in_parentheses() -> None:
    app = middleware(rules=[rule("/Products({id})", "1/hour", key=path_param("id"))])
    assert await statuses(app, 2, "/Products(7)") == [200, 429]
    assert await statuses(app, 1, "/Products(8)") == [200]


@pytest.mark.parametrize("path", ["^/api", r"^\/api", "api/.*"])
def test_a_path_that_does_not_begin_with_a_slash_is_shown_one_that_does(path: str) -> None:
    with pytest.raises(ConfigurationError, match=r'expected "\*" or a path such as "/items/{id}"'):
        rule(path, "5/minute")


CALLED_ELSEWHERE = {
    "key_func": 'key=header("X-API-Key")',
    "storage_uri": 'Limiter.from_url("redis://localhost:6379/0")',
    "strategy": "leave it out: every window slides",
    "times": 'limits="100/minute"',
    "exclude_paths": 'Rule("/health", exempt=True)',
    "exempt_when": "when=lambda request: ...",
    "handler": "on_refused=function",
    "trusted_proxies": 'client=client_ip(trusted=["10.0.0.0/8"])',
    "whitelist": 'allowlist=Networks(["192.0.2.0/24"])',
    "threshold": 'after="20/10m" at a BanPolicy',
}


@pytest.mark.parametrize("option", CALLED_ELSEWHERE)
def test_an_option_by_the_name_of_another_library_is_answered_with_the_name_here(option: str) -> None:
    makes: dict[str, Callable[..., object]] = {
        "RateLimitMiddleware": middleware,
        "Rule": partial(rule, "*", "5/minute"),
        "RateLimit": partial(RateLimit, "5/minute"),
        "Limiter": Limiter,
        "BanPolicy": BanPolicy,
        "MessageLimits": partial(MessageLimits, "5/minute"),
    }
    for name, make in makes.items():
        with pytest.raises(ConfigurationError) as caught:
            make(**{option: "x"})
        assert str(caught.value).startswith(f"{name}: unknown option {option!r}; ")
        assert CALLED_ELSEWHERE[option] in str(caught.value)


def test_the_fall_back_of_a_limits_function_is_named_where_it_is_sought() -> None:
    for make in (partial(rule, "*"), RateLimit):
        with pytest.raises(ConfigurationError, match=r"unknown option 'default_limits'; .* fallback_limits= at a Rule"):
            make(lambda request: "5/minute", default_limits="5/minute")


@pytest.mark.parametrize("number", range(len(BAD)))
def test_bad_input_is_a_clear_error_at_construction(number: int) -> None:
    make, part = BAD[number]
    with pytest.raises(ConfigurationError) as caught:
        make()
    assert part in str(caught.value)
    assert isinstance(caught.value, ValueError)
