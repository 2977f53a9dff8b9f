"""What a client can make the middleware do and remember is bounded, whatever the client may choose the text of."""

import asyncio
import gc
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count, product
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any
from weakref import WeakSet

import pytest
from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Host, Mount, Route
from starlette.types import Receive, Scope, Send

from slidegate import BanPolicy, Limiter, MemoryStore, RateLimit, RateLimitMiddleware, Rule, client_ip
from slidegate.testing import FakeClock
from slidegate.web.clients import Client
from slidegate.web.headers import Rendered
from slidegate.web.keys import combine, cookie, everyone, header, path_param, query
from slidegate.web.plan import BoundRule, Plan
from slidegate.web.refusals import Answer

from ..asgi import hello, page, scope_of, send_scope, statuses
from ..virtual_time import turns
from .middlewares import PLENTY
from .test_paths import LITERALS, named, template

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
            text = f"{rng.randrange(1 << 64):x}".ljust(TEXT, "x")
            answer = await send_scope(app, scope_of(**CHOICES[choice](text)))
            assert answer.status in (200, 403, 404, 405, 429)
        grown = text_held(app) - before
        assert grown < ALLOWED, f"{grown} bytes of text are held after {REQUESTS} requests of {TEXT}"


async def test_however_many_values_clients_choose_few_of_them_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    for most in ("web.rule_set.MANY", "web.clients.MANY", "stores.memory.store.MANY", "limiter.keys.MANY"):
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
    found = [one for one in reached(middleware.policy.rules).values() if isinstance(one, str)]
    paths = [one for one in found if one.startswith("/paths/")]
    assert 50 < len(paths) <= 101, "of all kinds of requests"


async def test_of_tenants_that_share_permits_only_those_are_remembered_that_have_some() -> None:
    may_end = asyncio.Event()

    async def stay(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/stays":
            await may_end.wait()
        await hello(scope, receive, send)

    rule = Rule("*", concurrency=2, key=everyone, wait="30s", fair=header("X-Tenant"))
    app = RateLimitMiddleware(stay, rules=[rule], limiter=Limiter(MemoryStore()))
    staying = asyncio.create_task(send_scope(app, scope_of("/stays")))
    await turns(1)
    assert await statuses(app, 1) == [200]
    before = len(reached(app.limiter.engine.queues))
    for number in range(100):
        await send_scope(app, scope_of(headers={"X-Tenant": f"t{number}"}))
    assert len(reached(app.limiter.engine.queues)) - before < 10
    may_end.set()
    assert (await staying).status == 200


@pytest.mark.interpreted("a default that the test replaces is a part of the compiled code")
async def test_however_many_routes_clients_request_few_answers_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slidegate.core.memo.remember.__defaults__", (100, 1_024))
    clock, routes = FakeClock(), 30
    site = Starlette(routes=[Route(f"/{number}", page) for number in range(routes)])
    app = RateLimitMiddleware(site, default_limits="1/hour", limiter=Limiter(MemoryStore(clock=clock)))
    for client in range(20):
        for number in range(routes):
            for _ in range(2):
                clock.advance(f"{client + 1}s")
                await send_scope(app, scope_of(f"/{number}", client=(f"192.0.2.{client}", 1)))
    found = reached(app).values()
    assert sum(isinstance(one, Client) for one in found) == 20
    assert 50 < sum(isinstance(one, Answer) for one in found) <= 100


async def test_nothing_is_remembered_of_a_client_but_one_object_that_holds_no_other() -> None:
    policy, clients = BanPolicy("20/10m", "1h", key=header("X-API-Key")), 2_000
    rules = [Rule("/a", "9/hour", key=header("X-API-Key"), name="a"), Rule("*", "9/hour"), Rule("*", "9/day", name="b")]
    for options in ({"limits": "9/hour"}, {"rules": rules, "bans": BanPolicy()}, {"rules": rules, "bans": policy}):
        app = RateLimitMiddleware(hello, **options)  # type: ignore[arg-type]
        for number in range(clients):
            for path in ("/a", "/b"):
                await send_scope(app, scope_of(path, client=(f"10.0.{number >> 8}.{number & 255}", 1)))
            await app.limiter.hit(f"user:{number}", "9/hour")
        gc.collect()
        visited = [one for one in reached(app).values() if gc.is_tracked(one)]
        assert sum(isinstance(one, Client) for one in visited) == clients
        assert len(visited) < clients * 1.5, "by the garbage collector"


@pytest.mark.parametrize("met", [1, 8, 9, 17, 18, 40, 200])
async def test_however_many_rules_a_request_meets_its_plans_and_fields_are_made_once(met: int) -> None:
    rules = [Rule("*", "9/hour", name=f"r{number}", when=lambda request: True) for number in range(met)]
    app = RateLimitMiddleware(hello, rules=rules)

    async def left_by_request() -> list[int]:
        await send_scope(app, scope_of())
        kept = reached(app.policy).items()
        plans = [key for key, one in kept if isinstance(one, Plan) and one.traits.is_evaluated]
        return plans + [key for key, one in kept if isinstance(one, Rendered) and len(one.limits) == met]

    first = await left_by_request()
    assert len(first) == 2, "a plan for the conditions as they are, and its fields"
    assert await left_by_request() == first


async def test_the_more_rules_requests_meet_the_fewer_plans_are_remembered() -> None:
    rules = [
        Rule("*", "99999/hour", name=f"r{bit}", when=lambda request, bit=bit: int(request.headers["x"]) >> bit & 1)
        for bit in range(40)
    ]
    app = RateLimitMiddleware(hello, rules=rules)
    for number in range(300):
        await send_scope(app, scope_of(headers={"X": str((1 << 40) - 1 - number)}))
    most = max(len(one) for one in reached(app.policy.rules).values() if isinstance(one, dict))
    assert most > 200
    weights = [sum(map(sys.getsizeof, key)) for key in app.policy.rules._plans]
    assert sum(weights) < 4_096 * 1_024


NUMBERS = count()
MADE: dict[str, Callable[[Any], RateLimit]] = {
    "equal": lambda holder: RateLimit("1000/hour", key=header("X-API-Key"), concurrency=9),
    "when": lambda holder: RateLimit("1000/hour", when=lambda request: holder is not None),
    "key": lambda holder: RateLimit("1000/hour", key=lambda request: f"all {type(holder)}"),
    "count_if": lambda holder: RateLimit("1000/hour", count_if=lambda status: holder is None),
    "name": lambda holder: RateLimit("1000/hour", name=f"n{next(NUMBERS)}", key=lambda request: f"all {type(holder)}"),
    "limits": lambda holder: RateLimit(limits=lambda request: f"{900 + id(holder) % 9}/hour", wait="1ms"),
}


@pytest.mark.parametrize("kind", MADE)
async def test_a_limit_that_each_request_makes_leaves_nothing_behind(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slidegate.web.endpoints._MEMO_ALIKE", 8)

    class Holder:
        """What a function of such a limit may refer to, for example its request."""

    held: WeakSet[Holder] = WeakSet()

    async def endpoint(request: Request) -> Response:
        holder = Holder()
        held.add(holder)
        await MADE[kind](holder).check(request)
        return PlainTextResponse("hi")

    app = RateLimitMiddleware(Starlette(routes=[Route("/", endpoint)]), limiter=Limiter(MemoryStore()))
    sizes = []
    for _ in range(2):
        for _ in range(40):
            assert (await send_scope(app, scope_of("/"))).status == 200
        gc.collect()
        kept = reached(app).values()
        sizes.append([sum(isinstance(one, kind) for one in kept) for kind in (Plan, BoundRule, RateLimit)])
        most = 10 if kind == "name" else 2
        assert len(held) <= most, "of the first request and the latest"
        assert len([*app.published()]) <= most + 1
    assert sizes[0] == sizes[1]


# -- the work for one request grows out of proportion neither with its texts nor with the number of routes -------------


ROOT = Path(__file__).resolve().parents[2]
BOUND_S = 300
"""How long what must not hang may take on a busy machine; it takes seconds."""
MOST_STEPS = 5_000_000
"""Enough for anything here."""


@contextmanager
def counted() -> Iterator[list[int]]:
    """Count lines of Python that run, again in each pass of a loop, and calls of C; end what would never end."""
    ran = [0]

    def trace(frame: object, event: str, argument: object) -> Any:
        ran[0] += 1
        if ran[0] > MOST_STEPS:
            pytest.fail("it never ends")  # what is no `Exception` is not caught on the way
        return trace

    def profile(frame: object, event: str, argument: object) -> None:
        ran[0] += event == "c_call"

    before = sys.gettrace(), sys.getprofile()
    sys.setprofile(profile)
    sys.settrace(trace)
    try:
        yield ran
    finally:
        sys.settrace(before[0])
        sys.setprofile(before[1])


async def fewest(app: Any, path: str) -> tuple[int, set[int]]:
    """Return the least that runs for some paths that were never seen, and the statuses of their answers.

    The least of them: now and then a request does what time asks for, such as sweeping the store, or logging.
    """
    least, seen = MOST_STEPS, set[int]()
    for number in range(10, 22):
        scope = scope_of(path.format(number), raw_path=b"/")
        with counted() as ran:
            answer = await send_scope(app, scope)
        least, seen = min(least, ran[0]), {*seen, answer.status}
    return least, seen


class Silent(FastAPI):
    """Shows its routes, and answers at once."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})


ROUTES = [Route("/a/{x}", page), Mount("/v1", routes=[Route("/{x:int}_{y:int}", page)]), Route("/{x}", page)]
LONG = ["/a", "//", "/./a", "/a/..", "/a\n", "/a;b", "a"]
RULES = [Rule("".join(f"/{{x{m}}}" for m in range(n)) + "/a", PLENTY, name=f"r{n}") for n in range(1, 12)]
RULES += [Rule("/v1/{rest:path}", PLENTY, name="rest"), Rule("/{a:int}_{b:int}", PLENTY, name="two")]
OPTIONS: dict[str, dict[str, Any]] = {
    "limits": {"limits": PLENTY},
    "rules": {"rules": [Rule("/v1/{x}", exempt=True), *RULES]},
    "default_limits": {"default_limits": PLENTY},
}


@pytest.mark.interpreted("what compiled functions do is not seen")
@pytest.mark.parametrize(("length", "options", "part"), [*product((2_048, 60_000), OPTIONS, LONG)])
async def test_a_long_path_costs_hardly_more_than_a_short_one(length: int, options: str, part: str) -> None:
    middleware = RateLimitMiddleware(Silent(routes=ROUTES), **OPTIONS[options])
    usual, _ = await fewest(middleware, "/{}" + "/a" * 8)
    # Up to 2,048 characters a path may be taken apart, once or twice; of longer ones not even that is done.
    apart = 2 * length if length <= 2_048 else 100
    least, _ = await fewest(middleware, ("/{}" + part * (length // len(part)))[:length])
    assert least <= 4 * usual + apart


PARTS = ["1", "1_", "_", "-", "a", "a.", "5e", "0x", ".", "1.", "inf", " ", "11-", "+", "00_", *filter(None, LITERALS)]


async def match_templates() -> None:
    for seed in range(60):
        dice = random.Random(seed)
        written = named(template(dice, 4), count())
        app = RateLimitMiddleware(hello, rules=[Rule(written, PLENTY), Rule(written + "/end", exempt=True)])
        slashes = written.count("/")
        for _ in range(4):
            part = dice.choice(PARTS)
            segments = [part * (2_048 // slashes // len(part) - 1) + end for end in dice.choices("!5_", k=slashes)]
            await statuses(app, 1, ("/" + "/".join(segments))[:2_048], raw_path=b"/")


def test_no_text_takes_a_template_for_ever() -> None:
    # A process can be ended while an expression goes back and forth. It takes some seconds.
    program = "import anyio; from tests.web.test_bounds import match_templates as work; anyio.run(work)"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, timeout=BOUND_S, check=True)


def shops(where: str, number: int) -> Silent:
    """Return an application with so many routes: its own, half of them below a mount, or those of a router."""
    routes = [APIRoute(f"/shop{n}/{{x}}", page) for n in range(number if where != "mounted" else number // 2)]
    if where == "mounted":
        return Silent(routes=[*routes, Mount("/v1", routes=routes), Mount("/", app=hello)])
    if where == "plain":
        return Silent(routes=routes)
    app = Silent()
    app.include_router(APIRouter(routes=routes))
    return app


PATHS = ("/shop3/{}", "/nope/{}", "/shop3/{}\n", "/shop3/{}" + "/../x" * 700, "/{}" + "/a;b/." * 600)
TWO = [Rule("/{x}/5", "9/hour"), Rule("/{x}/{rest:path}", "9/hour")]


@pytest.mark.interpreted("what compiled functions do is not seen")
@pytest.mark.parametrize("where", ["plain", "mounted", "included"])
@pytest.mark.parametrize("options", [{"limits": "9/hour"}, {"rules": TWO}], ids=str)
async def test_a_path_never_seen_costs_as_much_with_a_thousand_routes_as_with_ten(options: Any, where: str) -> None:
    least: list[list[int]] = []
    for number in (10, 1_000):
        limiter = Limiter(observers=[lambda event: None])
        middleware = RateLimitMiddleware(shops(where, number), limiter=limiter, **options)
        first = await statuses(middleware, 12, "/shop3//5", client=("192.0.2.1", 1))
        assert first == [200] * 9 + [429] * 3
        seen = [await fewest(middleware, path) for path in PATHS]
        assert set.union(*(statuses for _, statuses in seen)) == {200, 429}
        least.append([ran for ran, _ in seen])
    for path, few, many in zip(PATHS, *least, strict=True):
        assert many <= 1.2 * few, path[:40]


# -- an application that is mounted in itself, or seems to wrap others without end ------------------------------------


def circle(framework: Any, *prefixes: str) -> Any:
    """Return an application that is mounted in itself at each of some places."""
    app = framework()
    app.router.routes.append(Route("/x", RateLimit("900/minute")(page)))
    app.router.routes += [Mount(prefix, app) for prefix in prefixes]
    app.router.routes.append(Host("{name}.example.org", app))
    return app


CIRCLES = [circle(framework, *at) for framework in (FastAPI, Silent) for at in (("/a", "/b"), ("/{a}", "/{b}"))]
CIRCLES += [circle(Silent, "", "")]  # the routers of others never end there
for wrapped in (lambda self: type(self)(), lambda self: self):  # it seems to wrap another, and so on, as a `Mock` does
    CIRCLES += [type("Endless", (Silent,), {"app": property(wrapped)})()]


@pytest.mark.interpreted("the calls of compiled functions are not seen")
@pytest.mark.parametrize("app", CIRCLES)
@pytest.mark.parametrize(
    "options",
    [
        {"limits": "2/minute"},
        {"rules": [Rule("/a/{rest:path}", "2/minute"), Rule("/x", "90/minute")]},
        {"default_limits": "2/minute"},
        {"rules": [Rule("/{rest:path}", "2/minute")], "bans": BanPolicy(signals={"/.env": "ban"})},
    ],
)
async def test_an_application_in_circles_is_served_and_counted_in_few_steps(app: Any, options: Any) -> None:
    with counted():
        path = "/a/b" * 40 if isinstance(app, Silent) else "/a/b/x"
        assert await statuses(RateLimitMiddleware(app, **options), 3, path) == [200, 200, 429]
