"""What a client can make the middleware remember is bounded in bytes, whatever the client may choose the text of."""

import gc
import random
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount, Route
from starlette.types import Receive, Scope, Send

from slidegate import (
    BanPolicy,
    Limiter,
    MemoryStore,
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
from slidegate.core.question import Question
from slidegate.testing import FakeClock
from slidegate.web.client_ip import Client
from slidegate.web.responses import Answer

from ..asgi import hello, page, scope_of, send_scope
from .middlewares import FollowedFiles

TEXT = 60_000
REQUESTS = 60
ALLOWED = TEXT * REQUESTS // 10
"""What remembering one text in ten would weigh."""


def reached(root: object) -> dict[int, object]:
    """Return all objects that can be reached from one, by their identity."""
    seen: dict[int, object] = {}
    waiting = [root]
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, (type, ModuleType)):
            continue
        seen[id(one)] = one
        # The globals of a function are its module's; a dictionary does not tell the collector of keys that are text.
        waiting += (one.__closure__ or ()) if isinstance(one, FunctionType) else gc.get_referents(one)
        waiting += one if isinstance(one, dict) else ()
    return seen


def text_held(root: object) -> int:
    """Return the bytes of all texts that can be reached from an object, each once."""
    return sum(sys.getsizeof(one) for one in reached(root).values() if isinstance(one, (str, bytes, bytearray)))


def huge(dice: random.Random) -> str:
    return f"{dice.randrange(1 << 64):x}".ljust(TEXT, "x")


# What a client, or a server in front that believes it, has a choice of.
CHOICES: dict[str, Callable[[str], dict[str, Any]]] = {
    "peer": lambda text: {"client": (text, 1)},
    "address": lambda text: {"client": (f"fe80::1%{text}", 1)},
    "path": lambda text: {"path": f"/{text}"},
    "below": lambda text: {"path": f"/below/{text}"},
    "mounted": lambda text: {"path": f"/mounted/{text}"},
    "root_path": lambda text: {"path": f"/{text}/x", "root_path": f"/{text}"},
    "method": lambda text: {"method": text},
    "query": lambda text: {"query_string": f"token={text}".encode()},
    "cookie": lambda text: {"headers": {"Cookie": f"device={text}"}},
    "header": lambda text: {"headers": {"X-API-Key": text}},
    "origin": lambda text: {"method": "OPTIONS", "headers": {"Origin": text, "Access-Control-Request-Method": text}},
    "x-forwarded-for": lambda text: {"client": ("10.0.0.1", 1), "headers": {"X-Forwarded-For": f"{text}, 192.0.2.7"}},
    "garbage": lambda text: {"client": ("10.0.0.1", 1), "headers": {"X-Forwarded-For": text}},
    "host": lambda text: {"headers": {"Host": text}},
}


def made(limiter: Limiter) -> RateLimitMiddleware:
    ok = RateLimit("1000/hour", key=lambda request: request.url.path)(page)
    rest = [Route("/{rest:path}", ok, methods=["GET", "POST", "OPTIONS"])]
    host, api_key = header("Host"), header("X-API-Key")
    rules = [
        Rule("*", "9/hour", name="client"),
        Rule("/below/{what}", "9/hour", key=path_param("what")),
        Rule("*", "9/hour", key=header("X-API-Key"), name="header"),
        Rule("*", "9/hour", key=cookie("device"), name="cookie"),
        Rule("*", "9/hour", key=query("token"), name="query"),
        Rule("*", "9000/hour", key=combine(client_ip(), api_key), name="both"),
        Rule("*", "9000/hour", key=lambda request: f"path:{request.url.path}", name="function"),
        Rule("*", lambda request: "5/minute" + " " * random.randrange(3_000), fallback_limits="9/minute", name="plans"),
        Rule("*", "9/hour", shadow=True, key=host, name="shadow"),
        Rule("*", "100000/hour", key=everyone),
    ]
    signals: dict[Any, Any] = {"refused": 1, 404: 1, 405: 1}
    bans = [BanPolicy("50/1h", key=api_key, signals=signals, name="by value"), BanPolicy("50/1h")]
    app = Starlette(routes=[Mount("/mounted", routes=rest), *rest])
    return RateLimitMiddleware(app, limiter=limiter, rules=rules, client=client_ip(["10.0.0.0/8"]), bans=bans)


@pytest.mark.parametrize("kind", ["memory", "lmdb"])
@pytest.mark.parametrize("choice", CHOICES)
async def test_no_text_of_a_client_is_remembered_at_its_length(choice: str, url: str, rng: random.Random) -> None:
    async with Limiter.from_url(url) as limiter:
        app = made(limiter)
        await send_scope(app, scope_of())
        before = text_held(app)
        for _ in range(REQUESTS):
            answer = await send_scope(app, scope_of(**CHOICES[choice](huge(rng))))
            assert answer.status in (200, 403, 404, 405, 429)
        grown = text_held(app) - before
        assert grown < ALLOWED, f"{grown} bytes of text are held after {REQUESTS} requests of {TEXT}"


async def test_however_many_values_clients_choose_few_of_them_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    for most in ("web.rule_set.MANY", "web.rule_set.MAX_QUESTIONS", "web.client_ip.MANY", "limiter.keys.MANY"):
        monkeypatch.setattr(f"slidegate.{most}", 100)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await RateLimit("1000000/hour", key=everyone, name="made on the way").check(Request(scope))
        await hello(scope, receive, send)

    by_value = header("X-API-Key")
    rules = [
        Rule("*", "9/hour", name="clients"),
        Rule("*", "9/hour", key=client_ip(ipv4_prefix=30), name="prefixes"),
        Rule("/{rest:path}", "9/hour", key=by_value, name="values"),
        Rule("*", lambda request: f"{10**6 + int(request.headers['X-API-Key'])}/hour", key=everyone, name="plans"),
        Rule("*", lambda request: "1/hour", key=by_value, shadow=True, name="hot"),
    ]
    limiter = Limiter(MemoryStore())
    middleware = RateLimitMiddleware(app, rules=rules, limiter=limiter)
    for number in range(4_200):
        client = (f"10.{number >> 8}.{number & 255}.4", 1)
        method, headers = f"M{number % 40}" if number % 2 else "GET", {"X-API-Key": str(number)}
        answer = await send_scope(middleware, scope_of(f"/paths/{number}", method, client=client, headers=headers))
        assert answer.status == 200
    windows = set(reached(limiter.store))
    remembered = [one for key, one in reached(middleware).items() if key not in windows]
    assert 100 < max(len(one) for one in remembered if isinstance(one, (dict, list, set))) <= 4_096
    paths = [one for one in reached(middleware.rule_set).values() if isinstance(one, str) and one.startswith("/paths/")]
    assert 50 < len(paths) <= 101, "of all kinds of requests"


async def test_the_clients_and_keys_of_a_busy_site_are_all_remembered() -> None:
    app, busy = RateLimitMiddleware(hello, limits="9/hour"), 5_000
    for number in range(busy):
        await send_scope(app, scope_of(client=(f"10.0.{number >> 8}.{number & 255}", 1)))
        await app.limiter.hit(f"user:{number}", "9/hour")
    found = reached(app).values()
    assert sum(isinstance(one, Client) for one in found) == busy
    assert sum(isinstance(one, Question) for one in found) == 2 * busy


@pytest.mark.interpreted("a default that the test replaces is a part of the compiled code")
async def test_however_many_routes_clients_request_they_leave_no_more_questions_also_when_all_are_made_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("slidegate.web.rule_set.MAX_QUESTIONS", 300)
    monkeypatch.setattr("slidegate.core.memo.remember.__defaults__", (100, 1_024))
    clock, routes = FakeClock(), 30
    site = Starlette(routes=[Route(f"/{number}", page) for number in range(routes)])
    app = RateLimitMiddleware(site, default_limits="1/hour", limiter=Limiter(MemoryStore(clock=clock)))

    def asked() -> int:
        return sum(isinstance(one, Question) for one in reached(app).values())

    for client in range(40):
        if client % 10 == 9:
            questions = asked()
            app.begin_anew()
            assert asked() == questions, "all are freed at once"
        for number in range(routes):
            for _ in range(2):
                clock.advance("1s")
                await send_scope(app, scope_of(f"/{number}", client=(f"192.0.2.{client}", 1)))
    assert 200 < asked() <= 300
    found = reached(app).values()
    assert sum(isinstance(one, Answer) for one in found) <= 100


async def test_of_a_file_that_changes_only_the_newest_middleware_is_kept(tmp_path: Path) -> None:
    files = FollowedFiles(tmp_path)
    site = Starlette(routes=[Route("/", RateLimit("9000/hour")(page))])
    app = RateLimitMiddleware.from_file(site, files.write("it.toml", 'default_limits = "900/hour"'))
    made = []
    for number in range(3):
        assert (await send_scope(app, scope_of())).status == 200
        made.append(weakref.ref(app.app))
        files.write("it.toml", f'default_limits = "{number + 9}/hour"')
        await files.visit(app)
    gc.collect()
    assert [one() for one in made] == [None] * 3
