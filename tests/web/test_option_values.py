"""Whatever is written for an option either serves requests, or is an error where it is written, with an example."""

import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from functools import partial
from inspect import signature
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route

import slidegate
from slidegate import BanPolicy, Limit, Limiter, MessageLimits, Networks, RateLimitMiddleware, Rule, client_ip, header
from slidegate.dashboard import Dashboard
from slidegate.web.endpoint_rule import EndpointOptions

from ..asgi import page, statuses

VALUES: dict[str, Callable[[], Any]] = {
    **{
        repr(value): partial(lambda one: one, value) for value in (None, True, 0, -1, 7, 401, 1.5, 10**30, "", "x", "*")
    },
    **{
        repr(value): partial(lambda one: one, value) for value in ("5/minute", "10.0.0.0/8", "redis://h", "false", "/a")
    },
    **{repr(value): partial(lambda one: one, value) for value in (b"x", Decimal(5), (), ("x",), float("nan"))},
    **{
        repr(value): partial(lambda one: one, value)
        for value in ([], [None], ["x"], [401], [[1]], [{}], ["10.0.0.0/8"])
    },
    "a dict": lambda: {"path": "/", "limits": "5/minute"},
    "a set": lambda: {"GET"},
    "an iterator": lambda: iter([object()]),
    "a generator": lambda: (text for text in ["GET"]),
    "an object": object,
    "a class": lambda: Rule,
    "a function without arguments": lambda: lambda: "5/minute",
    "a function of three": lambda: lambda one, two, three: None,
    "client_ip": lambda: client_ip,
    "a response": lambda: PlainTextResponse("slower", 429),
    "a limit": lambda: Limit(5, "1m"),
    "a rule": lambda: Rule("*", "5/minute"),
    "rules": lambda: [Rule("*", "5/minute", name="a"), Rule("*", "6/minute", name="b")],
    "a policy": lambda: BanPolicy(),
    "policies": lambda: [BanPolicy()],
    "a key": lambda: header("X-Key"),
    "networks": lambda: Networks(["192.0.2.0/24"]),
    "message limits": lambda: MessageLimits("5/second"),
    "a client": lambda: client_ip(),
    "a limiter": lambda: Limiter(),
}
"""Values of all kinds, made anew each time."""


def endpoint(**options: Any) -> Any:
    async def limited(request: Request) -> Response:
        return await page(request)

    return slidegate.RateLimit(**options)(limited)


def site(**options: Any) -> Any:
    return RateLimitMiddleware(Starlette(routes=[Route("/", page)]), **options)


def behind(app: Any) -> Any:
    return RateLimitMiddleware(Starlette(routes=[Route("/", app)]))


LIMITED = {"limits": "5/minute"}
TOKEN = {"token": "t" * 32}
MAKERS: dict[str, tuple[Any, Callable[..., Any], dict[str, dict[str, Any]]]] = {
    "RateLimitMiddleware": (RateLimitMiddleware, site, {"key": LIMITED}),
    "Rule": (
        Rule,
        lambda path="*", **options: site(rules=[Rule(path, **options)]),
        {
            "status": {"block": True},
            "wait_max": {**LIMITED, "wait": "1ms"},
            "fair": {"concurrency": 2, "wait": "1ms"},
            "cost_max": {**LIMITED, "cost": lambda request: 1},
            "fallback_limits": {"limits": lambda request: None},
        },
    ),
    "RateLimit": (
        None,
        lambda **options: behind(endpoint(**options)),
        {
            "wait_max": {**LIMITED, "wait": "1ms"},
            "fair": {"concurrency": 2, "wait": "1ms"},
            "cost_max": {**LIMITED, "cost": lambda request: 1},
        },
    ),
    "BanPolicy": (BanPolicy, lambda **options: site(limits="1/minute", bans=BanPolicy(**options)), {}),
    "MessageLimits": (MessageLimits, lambda **options: site(messages=MessageLimits(**options)), {}),
    "client_ip": (client_ip, lambda **options: site(limits="5/minute", client=client_ip(**options)), {}),
    "Limiter": (Limiter, lambda **options: site(limits="5/minute", limiter=Limiter(**options)), {}),
    "Dashboard": (
        Dashboard,
        lambda limiter=None, **options: Starlette(routes=[Mount("/", Dashboard(limiter, **options))]),
        {"changes": {"limiter": Limiter(), **TOKEN}, "user": {"limiter": Limiter()}, "limiter": TOKEN},
    ),
}
"""What has options, what makes an application with some, and what else an option needs."""


def pairs() -> Iterator[tuple[str, str]]:
    for kind, (described, _, _) in MAKERS.items():
        options = {*EndpointOptions.__annotations__, "limits"}
        if described is not None:
            options = {*signature(described).parameters}
        for option in sorted(options - {"app", "token"}):  # an application, and a secret, which no message has
            yield kind, option


NEEDED = {"Rule": LIMITED, "RateLimit": LIMITED}
NOT_OURS = {("Rule", "fallback_limits"), ("RateLimit", "fallback_limits")}
"""The function beside these fails by intention."""


@pytest.mark.parametrize(("kind", "option"), [*pairs()])
async def test_a_value_serves_or_is_an_error_with_the_option_and_an_example(
    kind: str, option: str, caplog: pytest.LogCaptureFixture
) -> None:
    described, make, needs = MAKERS[kind]
    is_flag = described is not None and isinstance(signature(described).parameters[option].default, bool)
    for name, value in VALUES.items():
        beside = {**needs.get(option, NEEDED.get(kind, {}))}
        beside.pop(option, None)
        caplog.clear()
        try:
            app = make(**beside, **{option: value()})
        except slidegate.ConfigurationError as error:
            text = str(error)
            assert option.removeprefix("fallback_") in text, (name, text)
            assert re.search("example|such as|expected|write|which unit|requires|combined|did you mean|give ", text), (
                name
            )
            continue
        assert isinstance(value(), bool) or not is_flag, (name, "counts as true or false")
        answers = await statuses(app, 2)
        assert {200, 401, 403, 404, 429} >= {*answers}, (name, answers)
        failures = [one.getMessage() for one in caplog.records if one.levelname == "ERROR"]
        assert (kind, option) in NOT_OURS or failures == [], (name, failures)
